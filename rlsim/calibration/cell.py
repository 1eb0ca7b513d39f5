"""One thing to measure: operator, parameters and declared work (standard library only)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

Value = int | str


@dataclass(frozen=True)
class Cell:
    """Operator ``op`` at ``params``, with the work that it must do: FLOPs, and bytes read and written at least once."""

    op: str
    params: tuple[tuple[str, Value], ...]
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def key(self) -> str:
        """Identity of the cell in a journal."""
        return f"{self.op} {json.dumps(dict(sorted(self.params)), separators=(',', ':'))}"

    def number(self, name: str) -> int:
        """Integer parameter ``name``."""
        return int(dict(self.params)[name])

    def text(self, name: str) -> str:
        """Parameter ``name`` as text."""
        return str(dict(self.params)[name])


def make_cell(op: str, flops: float, moved_bytes: float, params: Mapping[str, Value]) -> Cell:
    """Cell with its parameters in the given order."""
    return Cell(op, tuple(params.items()), flops, moved_bytes)
