"""One line on stderr: what is done and how long the rest takes."""

from __future__ import annotations

import sys
import time
from types import TracebackType

SILENT_S = 10.0
"""Longest work without a word where stderr is no terminal."""


class ProgressLine:
    """Progress on stderr: a line that moves on a terminal, elsewhere one sentence once SILENT_S are over. Use as a
    context manager.

    remark: what else to say, behind the share.
    """

    def __init__(self, what: str, total: int = 0, done: int = 0) -> None:
        self.what, self.total, self.first, self.done = what, total, done, done
        # Not the time of day, which may be set while the work lasts.
        self.start_s = self.shown_s = time.monotonic()
        self.remark = ""
        self.visible = sys.stderr.isatty()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.visible:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def advance(self, count: int) -> None:
        """``count`` more are done."""
        self.done += count
        now = time.monotonic()
        if self.visible and (now - self.shown_s > 0.1 or self.done == self.total):
            self.shown_s = now
            print(f"\r\033[K{self.text(now - self.start_s)}", end="", file=sys.stderr, flush=True)
        if not self.visible and self.shown_s == self.start_s and now - self.start_s > SILENT_S:
            self.shown_s = now
            print(self.text(now - self.start_s), file=sys.stderr, flush=True)

    def reach(self, done: int, total: int) -> None:
        """``done`` of ``total`` are done; for callbacks that count for themselves."""
        self.total = total
        self.advance(done - self.done)

    def text(self, elapsed_s: float) -> str:
        """``312/1000 cells  31 %  0:12 left``; what was there before this run does not count for the pace. Where nobody
        knows the total, what is done alone."""
        if not self.total:
            return f"{self.done} {self.what}"
        share = self.done / self.total
        line = f"{self.done}/{self.total} {self.what}  {share:.0%}" + (f"  {self.remark}" if self.remark else "")
        fresh = self.done - self.first
        if not fresh:
            return line
        left_s = round(elapsed_s / fresh * (self.total - self.done))
        return f"{line}  {left_s // 3600:d}:{left_s // 60 % 60:02d}:{left_s % 60:02d} left"
