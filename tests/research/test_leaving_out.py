"""Errors in the fit and left out of it: the script behind the pictures and the table of docs/trust.md."""

from pathlib import Path

import numpy as np
import pytest

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


def test_known_rows_have_their_model_and_left_out_rows_have_nothing() -> None:
    errors = errors_of(fit())
    assert errors.of["model"] == pytest.approx([0.0, 0.0, 0.0, -0.2, -0.2, -0.5])
    # The mean of the second model is 0.3; what its third layout has for itself is no part of a prediction.
    assert errors.of[KNOWN] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.1, -0.2], abs=0.01)
    assert set(errors.kind("iteration")) >= {KNOWN, "model", "release", "device", "framework", "runs"}
    assert errors.kind("step") == {}


def test_the_worst_groups_come_first_and_tell_what_is_known() -> None:
    found = worst_groups(errors_of(fit()))
    assert [group.name for group in found] == ["iteration: vllm, b, h100", "iteration: vllm, a, h100"]
    assert found[0].left_out == pytest.approx(np.expm1(-0.2))
    assert found[0].rows == 3
    text = worst_table(found, {found[0].name: "slow\n"})
    assert "| iteration: vllm, b, h100 | 3 | +10.4 % | -18.1 % | slow |" in text
    assert "| 0.0 % | not known |" in text.replace("+0.0", "0.0").replace("-0.0", "0.0")
    few = Errors(errors_of(fit()).rows[:2], {name: values[:2] for name, values in errors_of(fit()).of.items()})
    assert worst_groups(few) == []


def test_a_picture_shows_what_there_is(tmp_path: Path) -> None:
    figure = spread_picture("iteration", errors_of(fit()).kind("iteration"))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[0] == "in the fit\n(6 times)"
    assert "without its model\n(6 times)" in labels
    assert save_picture(figure, tmp_path / "a.png").stat().st_size > 10_000


def test_the_table_stands_between_its_marks() -> None:
    assert with_table(f"a {BEGIN} old {END} b", "new") == f"a {BEGIN}\n\nnew\n\n{END} b"
    with pytest.raises(ValueError, match="no place"):
        with_table("a", "new")


def test_every_group_on_the_page_has_a_reason_and_every_reason_a_group() -> None:
    page = (ROOT / "docs" / "trust.md").read_text("utf-8")
    table = page.partition(BEGIN)[2].partition(END)[0]
    told = [line.split("|")[1].strip().replace("\\", "") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(told) == 10
    assert told == [name for name in told if name in read_yaml(REASONS)]
    assert set(read_yaml(REASONS)) == set(told)
    for name in PICTURES.values():
        assert f"(left_out_{name}.png)" in page
        assert (ROOT / "docs" / f"left_out_{name}.png").stat().st_size < 150_000
