"""Lanes of a timeline: spans of one actor spread so that no two in a lane cross."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlsim.results import Span


@dataclass(frozen=True)
class Lane:
    """One row of a timeline: ``spans`` follow each other or nest (refit inside prepare of the same step)."""

    actor: str
    index: int
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        """The actor, numbered from its second row on."""
        return self.actor if self.index == 0 else f"{self.actor} ({self.index + 1})"


def lanes(spans: Iterable[Span]) -> list[Lane]:
    """Rows in order of actors' first appearance; batches of one actor that overlap in time get further rows.

    First fit in order of start, so the number of rows of an actor is its greatest overlap.
    """
    by_actor: dict[str, list[Span]] = {}
    for span in spans:
        by_actor.setdefault(span.actor, []).append(span)
    return [
        Lane(actor, index, tuple(row))
        for actor, members in by_actor.items()
        for index, row in enumerate(_rows(sorted(members, key=lambda s: (s.start_s, -s.end_s))))
    ]


def _rows(ordered: list[Span]) -> list[list[Span]]:
    rows: list[list[Span]] = []
    open_spans: list[list[Span]] = []
    for span in ordered:
        for row, stack in zip(rows, open_spans, strict=True):
            while stack and stack[-1].end_s <= span.start_s:
                stack.pop()
            if not stack or _nests(span, stack[-1]):
                row.append(span)
                stack.append(span)
                break
        else:
            rows.append([span])
            open_spans.append([span])
    return rows


def _nests(inner: Span, outer: Span) -> bool:
    return inner.end_s <= outer.end_s and inner.step == outer.step and inner.phase != outer.phase
