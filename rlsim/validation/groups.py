"""Leaving whole groups of rows out: how well does a fit speak about models, devices or releases it never saw?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rlsim.validation.rows import Row
from rlsim.validation.validate import quantile_abs

Parameters = TypeVar("Parameters")
GROUPINGS = {"model": "model", "device": "gpu", "release": "framework_version"}
"""Column behind each grouping."""


@dataclass(frozen=True)
class HeldOut:
    """Errors in per cent of the rows of one group, predicted with parameters fitted to all other groups."""

    grouping: str
    group: str
    errors_pct: Mapping[str, float]

    @property
    def median_abs_error_pct(self) -> float:
        """Median absolute error of the group."""
        return quantile_abs(list(self.errors_pct.values()), 0.5) or 0.0


def groups_of(rows: Sequence[Row], grouping: str) -> dict[str, list[int]]:
    """Indices of rows by group, groups in order of appearance; models are told apart without owner and letter case."""
    out: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        name = row.get(GROUPINGS[grouping], "").strip().split("/")[-1].lower()
        out.setdefault(name or "not given", []).append(index)
    return out


def leave_one_group_out(
    rows: Sequence[Row],
    grouping: str,
    fit: Callable[[Sequence[Row]], Parameters],
    predict: Callable[[Sequence[Row], Parameters], Sequence[float]],
) -> tuple[HeldOut, ...]:
    """Fit to every group but one and predict that one, in turn.

    rows: with a measured total_step_time_s and distinct ids. grouping: a key of GROUPINGS. fit: parameters from rows.
    predict: step seconds of rows under parameters. With fewer than two groups nothing can be left out: empty.
    """
    groups = groups_of(rows, grouping)
    if len(groups) < 2:
        return ()
    out = []
    for group, members in groups.items():
        inside = set(members)
        parameters = fit([row for index, row in enumerate(rows) if index not in inside])
        own = [rows[index] for index in members]
        predicted = predict(own, parameters)
        errors = {
            row["id"]: 100 * (seconds / float(row["total_step_time_s"]) - 1)
            for row, seconds in zip(own, predicted, strict=True)
        }
        out.append(HeldOut(grouping, group, errors))
    return tuple(out)


def pooled_median(held_out: Sequence[HeldOut]) -> float | None:
    """Median absolute error over the rows of all groups, in per cent."""
    return quantile_abs([error for group in held_out for error in group.errors_pct.values()], 0.5)
