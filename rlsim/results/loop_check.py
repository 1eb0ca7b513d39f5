"""The real loop beside its predictions, as ``rlsim calibrate check-loop`` finds it and its JSON holds it."""

import math
import statistics
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from rlsim.results.record import Record, Rounded6

LEAST_EXPOSED = 0.05
"""Share of a step from which on exposed generation counts in the scores: less is lost in the noise of its trainer."""


class Pair(Record):
    """A quantity as measured and as predicted before; seconds, or a ratio."""

    measured_s: Rounded6
    predicted_s: Rounded6

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1.0 if self.measured_s > 0 else 0.0


class Speedup(Record):
    """Generation without drafts over generation with them, at equal work. planned: as predicted for one pace of the
    machine, before anything ran: what a draft length is chosen by."""

    measured: Rounded6
    predicted: Rounded6
    planned: Rounded6


class LoopRow(Record):
    """One configuration: mean of its measured steps beside the prediction made before it ran, both over its rounds.

    interval: 90 % of the step. undisturbed_s: the journal replayed by the simulation with CPU time in place of seconds:
    the step without what others took. idle: of generator and trainer on cores of their own. others_cpu_s: CPU time of
    other processes in a step, steal_s: what a hypervisor took from it. pace: how many times slower the machine was
    before it ran than when the parts were measured. why: what a large miss comes from.
    """

    name: str
    measured_s: Rounded6
    predicted_s: Rounded6
    interval: tuple[Rounded6, Rounded6]
    phases: dict[str, Pair]
    idle: dict[str, Pair]
    speedup: Speedup | None = None
    steps_s: tuple[Rounded6, ...]
    tokens_per_verification: tuple[Rounded6, Rounded6]
    undisturbed_s: Rounded6
    others_cpu_s: Rounded6
    steal_s: Rounded6
    pace: Rounded6 = 1.0
    why: str = ""
    settings: dict[str, Any]

    @property
    def error(self) -> float:
        """Predicted step over measured, less 1."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def covered(self) -> bool:
        """Whether the measured step lies inside its interval."""
        return self.interval[0] <= self.measured_s <= self.interval[1]


class LoopScores(Record):
    """Errors over all configurations, as shares of the measured; null where there is nothing to score.

    undisturbed: of the steps without what other processes took. best: by drafter the draft length of the fastest
    generation as measured, as planned, and how much slower the planned one was measured than the best.
    """

    n: int
    median_abs_error: Rounded6
    p90_abs_error: Rounded6
    coverage: Rounded6
    undisturbed_median_abs_error: Rounded6
    speedup_median_abs_error: Rounded6 | None
    exposed_median_abs_error: Rounded6 | None
    best: dict[str, tuple[int, int, Rounded6]]


class LoopCheck(Record):
    """All configurations and their scores."""

    schema_: Literal["rlsim.loop_check/1"] = Field("rlsim.loop_check/1", alias="schema")
    device: str
    rows: tuple[LoopRow, ...]
    scores: LoopScores


def scores_of(rows: Iterable[LoopRow]) -> LoopScores:
    """Scores of one or more rows."""
    rows = list(rows)
    errors = sorted(abs(row.error) for row in rows)
    speedups = [abs(row.speedup.predicted / row.speedup.measured - 1.0) for row in rows if row.speedup]
    split = [(row, row.phases["exposed_generation_s"]) for row in rows if row.settings["placement"] == "split"]
    exposed = [
        abs(pair.error)
        for row, pair in split
        if max(pair.measured_s, pair.predicted_s) > LEAST_EXPOSED * row.measured_s
    ]
    return LoopScores(
        n=len(rows),
        median_abs_error=statistics.median(errors),
        p90_abs_error=errors[math.ceil(0.9 * len(errors)) - 1],
        coverage=sum(row.covered for row in rows) / len(rows),
        undisturbed_median_abs_error=statistics.median(abs(row.predicted_s / row.undisturbed_s - 1.0) for row in rows),
        speedup_median_abs_error=statistics.median(speedups) if speedups else None,
        exposed_median_abs_error=statistics.median(exposed) if exposed else None,
        best=_best(rows),
    )


def speedups_of(rows: Iterable[LoopRow], drafter: str) -> dict[int, Speedup]:
    """Speed-ups of a drafter by draft length, 1 without drafts."""
    compared = [(row.settings["draft_length"], row.speedup) for row in rows if row.settings["drafter"] == drafter]
    none = Speedup(measured=1.0, predicted=1.0, planned=1.0)
    return {0: none} | {k: found for k, found in compared if found is not None}


def _best(rows: list[LoopRow]) -> dict[str, tuple[int, int, float]]:
    out: dict[str, tuple[int, int, float]] = {}
    for drafter in dict.fromkeys(row.settings["drafter"] for row in rows if row.speedup):
        speedups = speedups_of(rows, drafter)
        # The prediction for one pace: a choice is made before anything runs, at no particular moment.
        measured, predicted = (
            max(speedups, key=lambda k: getattr(speedups[k], side)) for side in ("measured", "planned")
        )
        out[drafter] = (measured, predicted, speedups[measured].measured / speedups[predicted].measured - 1.0)
    return out
