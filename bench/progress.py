"""Progress bar on stderr, only where it is a terminal (standard library only)."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 28


class Progress:
    """Bar over ``total`` cells of which ``done`` were measured before; silent unless ``shown``."""

    def __init__(self, total: int, done: int, shown: bool | None = None, stream: TextIO | None = None) -> None:
        self.total, self.done, self.at_start = total, done, done
        self.stream = stream or sys.stderr
        self.shown = self.stream.isatty() if shown is None else shown
        self.started = time.monotonic()

    def advance(self, label: str) -> None:
        """Count one cell; ``label`` names what was measured."""
        self.done += 1
        if not self.shown:
            return
        filled = _WIDTH * self.done // max(1, self.total)
        bar = "#" * filled + "." * (_WIDTH - filled)
        self.stream.write(f"\r[{bar}] {self.done}/{self.total} {self._left():>8} {label[:24]:<24}")
        self.stream.flush()

    def close(self) -> None:
        """End the line."""
        if self.shown:
            self.stream.write("\n")

    def _left(self) -> str:
        measured = self.done - self.at_start
        if measured == 0:
            return ""
        seconds = (time.monotonic() - self.started) / measured * (self.total - self.done)
        return f"{seconds:.0f} s left"
