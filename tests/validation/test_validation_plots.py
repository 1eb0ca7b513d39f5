"""Pictures of a validation: drawn whatever a table holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsim.validation.plots import MOST_BARS, scatter, waterfall
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
