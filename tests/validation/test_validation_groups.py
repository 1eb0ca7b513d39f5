"""Groups left out of a fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rlsim.validation.groups import groups_of, leave_one_group_out, pooled_median
from rlsim.validation.rows import Row


def rows() -> list[dict[str, str]]:
    """Steps of three models that take 2, 2 and 4 s per thousand tokens, exactly."""
    rates = {"org/Alpha": 2.0, "beta": 2.0, "gamma": 4.0}
    return [
        {
            "id": f"{model}-{tokens}",
            "model": model,
            "gpu": "h100" if tokens > 1 else "gb200",
            "framework_version": "",
            "avg_seq_len": str(1000 * tokens),
            "total_step_time_s": str(rate * tokens),
        }
        for model, rate in rates.items()
        for tokens in (1, 2, 3)
    ]


def fit(given: Sequence[Row]) -> float:
    """Median seconds per thousand tokens."""
    return float(np.median([float(r["total_step_time_s"]) / float(r["avg_seq_len"]) * 1000 for r in given]))


def predict(given: Sequence[Row], rate: float) -> list[float]:
    return [rate * float(r["avg_seq_len"]) / 1000 for r in given]


def test_groups_cover_all_rows_once() -> None:
    for grouping in ("model", "device", "release"):
        indices = sorted(i for members in groups_of(rows(), grouping).values() for i in members)
        assert indices == list(range(9))
    assert list(groups_of(rows(), "model")) == ["alpha", "beta", "gamma"]
    assert list(groups_of(rows(), "release")) == ["not given"]


def test_a_group_is_predicted_without_having_been_seen() -> None:
    held_out = leave_one_group_out(rows(), "model", fit, predict)
    errors = {group.group: group.errors_pct for group in held_out}
    assert errors["gamma"] == pytest.approx({f"gamma-{t}": -50.0 for t in (1, 2, 3)})
    assert errors["alpha"] == pytest.approx({f"org/Alpha-{t}": 50.0 for t in (1, 2, 3)})
    assert {group.group: group.median_abs_error_pct for group in held_out} == pytest.approx(
        {"alpha": 50.0, "beta": 50.0, "gamma": 50.0}
    )
    assert pooled_median(held_out) == pytest.approx(50.0)


def test_the_fit_never_sees_the_group() -> None:
    seen = list[set[str]]()

    def spy(given: Sequence[Row]) -> float:
        seen.append({r["model"] for r in given})
        return fit(given)

    leave_one_group_out(rows(), "model", spy, predict)
    assert seen == [{"beta", "gamma"}, {"org/Alpha", "gamma"}, {"org/Alpha", "beta"}]


def test_one_group_alone_cannot_be_left_out() -> None:
    assert leave_one_group_out(rows()[:3], "model", fit, predict) == ()
    assert pooled_median(()) is None
