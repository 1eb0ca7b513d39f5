"""Budgets of calibrated predictions: what exceeds one, and that the file says all that it must."""

from types import ModuleType

import pytest
import yaml

FIGURES = {"median": 4.0, "p90": 9.0, "bias": -2.0, "coverage": 88.0, "half_width": 1.2}
BUDGET = {"median": 4.5, "p90": 10.0, "bias": 2.5, "coverage": [85.0, 95.0], "half_width": 1.25}


@pytest.fixture(scope="module")
def regression(script) -> ModuleType:
    return script("benchmarks/regression.py")


def test_figures_within_their_budgets_are_fine(regression: ModuleType) -> None:
    assert regression.exceeded(FIGURES, BUDGET) == []
    assert regression.judged({"a": FIGURES}, {"a": BUDGET}, True) == {"a": []}
    assert regression.exceeded(FIGURES, regression.proposed(FIGURES)) == []


@pytest.mark.parametrize(
    ("figure", "value"), [("median", 4.6), ("p90", 10.1), ("bias", -2.6), ("coverage", 84), ("half_width", 1.3)]
)
def test_a_figure_beyond_its_budget_is_named(regression: ModuleType, figure: str, value: float) -> None:
    (reason,) = regression.exceeded({**FIGURES, figure: value}, BUDGET)
    assert figure in reason and "is not within" in reason


def test_figures_and_budgets_without_each_other_are_wrong(regression: ModuleType) -> None:
    assert regression.judged({"a": FIGURES}, {}, True) == {"a": ["no budget"]}
    assert regression.judged({}, {"a": BUDGET}, True) == {"a": ["is not predicted any more"]}
    assert regression.judged({}, {"a": BUDGET}, False) == {}
    assert len(regression.exceeded({"error": 1.0}, {"bias": 2.0})) == 2


def test_every_budget_is_of_something_and_every_raise_has_a_reason(regression: ModuleType) -> None:
    document = yaml.safe_load(regression.BUDGETS.read_text(encoding="utf-8"))
    assert set(document) == {"raised", "budgets"}
    for entry in document["raised"]:
        assert set(entry) == {"date", "budget", "from", "to", "reason"} and len(entry["reason"]) > 20
        assert entry["budget"].rpartition(", ")[0] in document["budgets"]
    for name in (*regression.TABLES, "8B study", "235B projections", "mlperf_grpo_256", "async_128"):
        assert any(budget.startswith(f"{name}: ") for budget in document["budgets"]), name


def test_transfers_are_within_their_budgets_and_half_as_wrong_again_they_are_not(regression: ModuleType) -> None:
    budgets = yaml.safe_load(regression.BUDGETS.read_text(encoding="utf-8"))["budgets"]
    found = dict(regression.of_table("transfers"))
    worse = {name: {**figures, "median": figures["median"] * 1.5} for name, figures in found.items()}
    assert found and not any(regression.judged(found, budgets, False).values())
    assert all(regression.judged(worse, budgets, False).values())
