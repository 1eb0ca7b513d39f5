"""The real loop of ``bench.loop``: its journals read and replayed, its measured steps beside their predictions."""
