"""What is left out of published memory says nothing of itself, and lies hardly further off than what is not."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from rlsim.evidence import Kind
from rlsim.evidence.memory.left_out import ENGINES, GROUPINGS, TRAINERS, framework_spread, known_rows, left_out
from rlsim.evidence.memory.rows import LIKELY, VERDICT, probability
from rlsim.evidence.tables import SkippedRow, Table
from rlsim.files.reading import data_folder

DRAWS = 400
MARKS = {ENGINES: 0.03, TRAINERS: 0.08}
"""Median errors that memory is held to; what is left out may lie 1.6 times as far off."""


@pytest.mark.parametrize("grouping", sorted(GROUPINGS))
def test_left_out_rows_lie_at_most_1_6_times_as_far_off(grouping: str) -> None:
    for one in left_out(grouping, DRAWS):
        known = [abs(row.counted / row.measured - 1) for row in known_rows() if row.kind == one.kind]
        left = np.abs(np.expm1(-one.log_error))
        assert len(left) == len(known)
        assert np.median(left) <= 1.6 * max(np.median(known), MARKS[one.kind])
        low, high = np.quantile(one.draws, (0.05, 0.95), axis=1)
        assert 0.85 <= np.mean((one.log_error >= low) & (one.log_error <= high)) <= 0.95
        half_width = np.median(np.exp((high - low) / 2))
        assert half_width <= 1.25


def test_published_twice_a_layout_of_a_framework_counts_once() -> None:
    rows = [row for row in known_rows() if row.kind == TRAINERS]
    often = [row for row in rows if row.cells["framework"] == "Megatron-LM"]
    assert framework_spread(rows) == pytest.approx(framework_spread([*rows, *often]))
    further = [replace(row, measured=2 * row.measured) for row in often]
    assert framework_spread([*rows, *further]) > framework_spread(rows)


def test_distances_are_gib_of_caches_whatever_their_unit() -> None:
    # A start-up log prints one cache in tokens and in GiB.
    of = {row.cells["id"]: row for row in known_rows() if row.kind == ENGINES}
    pairs = [(of[name], of[name.replace("tokens", "gib")]) for name in of if name.endswith("kv_tokens")]
    assert pairs
    for tokens, gib in pairs:
        assert tokens.away == pytest.approx(gib.away, abs=0.05)


def test_no_run_that_failed_is_said_to_fit_and_none_that_ran_is_refused() -> None:
    path = data_folder("calibration") / "published" / "memory" / "rows.csv"
    said: dict[bool, list[float]] = {True: [], False: []}
    for record in Table.read(path, Kind.MEMORY).rows:
        if record.cells["kind"] == VERDICT:
            with suppress(SkippedRow):
                said[record.cells["measured_quantity"] == VERDICT].append(probability(record.cells))
    assert len(said[False]) == 15 and max(said[False]) <= LIKELY
    assert len(said[True]) == 7 and min(said[True]) >= 0.5
