"""Work (FLOPs, bytes) and seconds of single operators and collectives."""
