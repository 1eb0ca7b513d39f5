"""Speed-up of speculation: measured rows with and without a drafter that agree in everything else."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlsim.report.format import percent, signed_percent
from rlsim.validation.measured import MeasuredRow
from rlsim.validation.scores import Score, short

AGREEING = (
    "model", "gpu", "engine", "precision", "decode_gpus_per_engine", "tp", "ep", "dp_attention", "isl", "osl",
    "concurrency", "decode_workers", "serving_mode",
)  # fmt: skip
"""Columns that both rows of a pair share."""
CLEAR = 0.05
"""Speed-ups nearer to 1 than this are not asked for their sign: repeated points differ by as much."""


@dataclass(frozen=True)
class Pair:
    """Speed-up of a speculating row over its plain partner: time per output token without over with speculation."""

    row: MeasuredRow
    plain: MeasuredRow
    measured: float
    predicted: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "id": self.row.id,
            "plain_id": self.plain.id,
            "group": self.row.group,
            "batch": self.row.details.get("batch"),
            "measured": short(self.measured),
            "predicted": short(self.predicted),
        }


@dataclass(frozen=True)
class SpeculationPairs:
    """All pairs of a table."""

    pairs: tuple[Pair, ...]

    @property
    def score(self) -> Score:
        """Errors of the predicted speed-ups as shares of the measured ones."""
        return Score.of_errors([pair.predicted / pair.measured - 1 for pair in self.pairs])

    @property
    def clear(self) -> tuple[Pair, ...]:
        """Pairs whose measured speed-up is more than CLEAR away from 1."""
        return tuple(pair for pair in self.pairs if abs(pair.measured - 1) > CLEAR)

    @property
    def right_sign_share(self) -> float | None:
        """Share of the clear pairs that are predicted on their side of 1; None where no pair is clear."""
        right = [(pair.measured > 1) == (pair.predicted > 1) for pair in self.clear]
        return sum(right) / len(right) if right else None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        score = self.score.as_dict()
        del score["coverage"], score["half_width"]
        return {
            **score,
            "clear": len(self.clear),
            "right_sign_share": short(self.right_sign_share),
            "pairs": [pair.as_dict() for pair in self.pairs],
        }

    def text(self) -> list[str]:
        """The score of the pairs in a line; nothing where there are none."""
        score, share = self.score, self.right_sign_share
        if not score.n:
            return []
        sign = "" if share is None else f"; sign right on {percent(share)} of {len(self.clear)} that are clear"
        bias, median = signed_percent(score.bias or 0.0), percent(score.median_abs_error or 0.0)
        return [f"speed-up of speculation: {score.n} pairs, bias {bias}, median error {median}{sign}"]


def speculation_pairs(rows: Sequence[MeasuredRow], cells: Sequence[Mapping[str, str]]) -> SpeculationPairs:
    """Each speculating row with a plain one that agrees with it in AGREEING; ``cells`` of the rows in their order.

    The partner is of the same source if there is one, and of the nearest release.
    """
    times = [_times(row) for row in rows]
    plain: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if times[i] and not row.details.get("speculative"):
            plain.setdefault(_key(cells[i]), []).append(i)
    found = []
    for i, row in enumerate(rows):
        own, partners = times[i], plain.get(_key(cells[i]), [])
        if own is None or not partners or not row.details.get("speculative"):
            continue
        nearest = min(partners, key=lambda other: (*_distance(cells[i], cells[other]), other))
        measured, predicted = (a / b for a, b in zip(times[nearest] or own, own, strict=True))
        found.append(Pair(row, rows[nearest], measured, predicted))
    return SpeculationPairs(tuple(found))


def _times(row: MeasuredRow) -> tuple[float, float] | None:
    """Measured and predicted time per output token, where the row has both."""
    measured, predicted = row.details.get("tpot_measured_ms"), row.details.get("tpot_predicted_ms")
    return (float(measured), float(predicted)) if measured and predicted else None


def _key(cells: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(cells.get(column, "") for column in AGREEING)


def _distance(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[bool, float]:
    """How far two rows are apart in what a pair may differ in: source, then release."""
    own, others = (_release(cells.get("engine_version", "")) for cells in (one, other))
    apart = math.inf if own is None or others is None else abs(own - others)
    return one.get("source") != other.get("source"), apart


def _release(text: str) -> float | None:
    """A release as one number, so that 0.5.9 is nearer to 0.5.10 than to 0.6; None where the text names none."""
    parts = re.findall(r"\d+", text)[:3] if re.match(r"v?\d+\.\d", text) else []
    return sum(float(part) / 1000**i for i, part in enumerate(parts)) if parts else None
