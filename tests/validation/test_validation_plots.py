"""Pictures of a validation: drawn whatever a table holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsim.validation.measured import MeasuredRow, MeasuredTable
from rlsim.validation.plots import MOST_BARS, scatter, waterfall
from rlsim.validation.ratio_plots import MOST_GROUPS, by_group, by_release, releases_of
from rlsim.validation.validate import PhaseError, RowResult, Validation

PNG = b"\x89PNG\r\n\x1a\n"


def scored(name: str, measured: float, predicted: float, phases: dict[str, PhaseError] | None = None) -> RowResult:
    return RowResult(
        name, "org/M", "h100", "r", "sync", measured, predicted, predicted * 0.8, predicted * 1.2, None, phases
    )


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (RowResult("left out", skipped="why"),),
        (scored("one", 10.0, 11.0),),
        (scored("$\\frac{broken$ _^{ \x1b[31m\n", 10.0, 11.0), scored("x" * 500, 1e-3, 1e5)),
        tuple(scored(f"row {i}", 10.0 + i, 12.0 + i * 0.7, {"generation_s": PhaseError(5.0, 6.0)}) for i in range(6)),
        tuple(scored(f"row {i}", 10.0 + i, 12.0) for i in range(MOST_BARS + 5)),
    ],
    ids=["empty", "all skipped", "one", "hostile names", "phases", "many"],
)
def test_pictures_are_drawn_and_repeat_to_the_byte(tmp_path: Path, rows: tuple[RowResult, ...]) -> None:
    validation = Validation("t$able.csv", "0", rows)
    for draw in (scatter, waterfall):
        draw(validation, tmp_path / "a.png")
        draw(validation, tmp_path / "b.png")
        first = (tmp_path / "a.png").read_bytes()
        assert first.startswith(PNG)
        assert len(first) > 3000
        assert first == (tmp_path / "b.png").read_bytes()


def ratio(
    name: str, error: float, family: str = "MoE", series: str = "26.02", framework: str = "Bridge"
) -> MeasuredRow:
    details = {"framework": framework, "series": series, "family": family, "gpu": "GB200 NVL72"}
    return MeasuredRow(name, f"{framework} of {name}", "s", 10.0, details=details).predict(10.0 * error, 0.1)


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (MeasuredRow("left out", "g", "s", skipped="why"),),
        (ratio("one", 1.0),),
        (ratio("$\\frac{broken$ _^{ \x1b[31m\n", 1e-6), ratio("x" * 500, 1e6, "dense", "", "")),
        (ratio("a", 1.1), ratio("b", 0.9, "dense", "26.10"), ratio("c", 2.0, "dense", "main", "torchtitan")),
        tuple(ratio(f"row {i}", 0.5 + 0.02 * i, series=f"{i}.0") for i in range(MOST_GROUPS + 5)),
    ],
    ids=["empty", "all skipped", "one", "hostile names and far beyond", "frameworks", "many"],
)
def test_ratios_are_drawn_and_repeat_to_the_byte(tmp_path: Path, rows: tuple[MeasuredRow, ...]) -> None:
    found = MeasuredTable("training", "t$able.csv", "0", rows)
    for name in ("a.png", "b.png"):
        by_release(found, tmp_path / f"release_{name}")
        by_group(found, tmp_path / f"group_{name}", "Predicted over measured", "gpu")
    for kind in ("release", "group"):
        first = (tmp_path / f"{kind}_a.png").read_bytes()
        assert first.startswith(PNG)
        assert len(first) > 3000
        assert first == (tmp_path / f"{kind}_b.png").read_bytes()


def test_releases_stand_in_their_order_and_the_framework_with_most_of_them_first() -> None:
    rows = [ratio(s, 1.0, series=s) for s in ("26.10", "26.2", "25.09")] + [ratio("t", 1.0, framework="A")]
    assert releases_of(rows) == {"Bridge": ["25.09", "26.2", "26.10"], "A": ["26.02"]}
