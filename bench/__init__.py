"""Measure a device: torch and numpy only, so that this folder can be carried alone to the machine with the GPU.

``python -m bench run cases.json --out DIR`` reads what to measure and writes ``measurements.json``.
"""


class BenchError(Exception):
    """Something that the user can mend; the text is the whole message."""
