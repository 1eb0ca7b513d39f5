"""Errors in the fit and left out of it, behind docs/trust.md; measured courses of acceptance met by few values."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.drift import fit_trend, fit_within
from research.leaving_out import (
    BEGIN,
    END,
    KNOWN,
    PICTURES,
    REASONS,
    Errors,
    errors_of,
    spread_picture,
    with_table,
    worst_groups,
    worst_table,
)
from rlsim.evidence.cross import Fit
from rlsim.evidence.hierarchy import Design, Spreads, Weights
from rlsim.files.yaml import read_yaml
from rlsim.projection.uncertainty.evidence import Evidence
from rlsim.report.figures.style import save_picture
from rlsim.schema.speculation import Drift, Speculation
from rlsim.workload.acceptance_steps import acceptance_at

ROOT = Path(__file__).parents[2]


def row(name: str, model: str, surprise: float, setup: str) -> Evidence:
    groups = {f"engine with model: {model}": 1.0, f"engine setup: {setup}": 1.0}
    about = {"engine": "vllm", "model": model, "device": "h100", "release": "0.1"}
    return Evidence("iteration", name, surprise, {}, groups, about)


def fit() -> Fit:
    """Two models of three rows each, the second slower by 20 %, whose third layout is slower by another 30 %."""
    rows = [row(f"a{n}", "a", 0.0, f"a{n}") for n in range(3)]
    rows += [row(f"b{n}", "b", 0.2 + (0.3 if n == 2 else 0.0), f"b{n}") for n in range(3)]
    design = Design.of(rows, [])
    families = {"engine with model": 1.0, "engine setup": 0.1}
    return Fit(rows, design, Spreads(families, {"iteration": 0.01}), Weights.even(design))


def test_known_rows_have_their_model_left_out_ones_nothing_and_the_worst_come_first() -> None:
    errors = errors_of(fit())
    assert errors.of["model"] == pytest.approx([0.0, 0.0, 0.0, -0.2, -0.2, -0.5])
    # The mean of the second model is 0.3; what its third layout has for itself is no part of a prediction.
    assert errors.of[KNOWN] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.1, -0.2], abs=0.01)
    assert set(errors.kind("iteration")) >= {KNOWN, "model", "release", "device", "framework", "runs"}
    assert errors.kind("step") == {}
    found = worst_groups(errors_of(fit()))
    assert [group.name for group in found] == ["iteration: vllm, b, h100", "iteration: vllm, a, h100"]
    assert found[0].left_out == pytest.approx(np.expm1(-0.2))
    assert found[0].rows == 3
    text = worst_table(found, {found[0].name: "slow\n"})
    assert "|iteration: vllm, b, h100|3|+10.4 %|-18.1 %|slow|" in text
    assert "|0.0 %|not known|" in text.replace("+0.0", "0.0").replace("-0.0", "0.0")
    few = Errors(errors_of(fit()).rows[:2], {name: values[:2] for name, values in errors_of(fit()).of.items()})
    assert worst_groups(few) == []


def test_a_picture_shows_what_there_is_and_the_table_stands_between_its_marks(tmp_path: Path) -> None:
    figure = spread_picture("iteration", errors_of(fit()).kind("iteration"))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[0] == "in the fit\n(6 times)"
    assert "without its model\n(6 times)" in labels
    assert save_picture(figure, tmp_path / "a.png").stat().st_size > 10_000
    assert with_table(f"a {BEGIN} old {END} b", "new") == f"a {BEGIN}\n\nnew\n\n{END} b"
    with pytest.raises(ValueError, match="no place"):
        with_table("a", "new")


def test_every_group_on_the_page_has_a_reason_and_every_reason_a_group() -> None:
    page = (ROOT / "docs" / "trust.md").read_text("utf-8")
    table = page.partition(BEGIN)[2].partition(END)[0]
    told = [line.split("|")[1].strip().replace("\\", "") for line in table.splitlines() if line.startswith("|")][2:]
    assert len(told) == 10
    assert told == [name for name in told if name in read_yaml(REASONS)]
    assert set(read_yaml(REASONS)) == set(told)
    for name in PICTURES.values():
        assert f"(left_out_{name}.png)" in page
        assert (ROOT / "docs" / f"left_out_{name}.png").stat().st_size < 150_000


@settings(max_examples=10, deadline=None)
@given(length=st.floats(1.5, 3.5), shifts=st.lists(st.floats(-0.8, 0.8), min_size=2, max_size=4),
       noise=st.floats(0.0, 0.08), seed=st.integers(0, 100))  # fmt: skip
def test_a_course_is_met_within_the_tolerance_by_fewer_values_than_points(
    length: float, shifts: list[float], noise: float, seed: int
) -> None:
    knots = tuple(float(x) for x in np.linspace(0, 60, len(shifts)))
    drift = Drift(steps=knots, logit_shift=tuple(shifts))
    true = Speculation(method="eagle3", draft_length=3, acceptance_length=length, drift=drift)
    rng = np.random.default_rng(seed)
    points = [(float(x), acceptance_at(true, x).mean + rng.uniform(-noise, noise)) for x in range(61)]
    points = [(x, min(max(y, 1.0), 4.0)) for x, y in points]
    within = fit_within(points, 3, 0.1)
    assert within.worst_tokens <= 0.1
    assert len(within.steps) <= 12
    assert fit_trend(points, 3).rms_tokens < 0.2


def test_points_of_one_step_that_contradict_each_other_are_shown() -> None:
    found = fit_within([(0.0, 2.0), (0.0, 2.6), (1.0, 2.3)], 3, 0.1)
    assert found.worst_tokens == pytest.approx(0.3, abs=0.01)
    assert found.beyond(0.1) == 2
