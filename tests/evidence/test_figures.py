"""Pictures of predicted beside measured: drawn for every kind, the same bytes again, also of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsim.report.figures.style import save_picture
from rlsim.report.figures.validation import ratios, reliability, scatter
from rlsim.results.validation import ComparedRow, CrossValidation, Ranks, Validation


@pytest.mark.parametrize(("kind", "by", "count"), [("steps", "", 3), ("training", "gpu", 300), ("transfers", "gpu", 0)])
def test_pictures_are_drawn_and_repeat_to_the_byte(kind: str, by: str, count: int, tmp_path: Path) -> None:
    rows = [
        ComparedRow(
            id=f"{n}", group=f"group {n % 50}", measured=1.0 + n, predicted=(1.0 + n) * (0.1 + 0.05 * (n % 200)),
            low=0.5, high=2.0 + n, details={"gpu": ("h100", "b200 (x)")[n % 2]},
        )
        for n in range(count)
    ]  # fmt: skip
    found = Validation.of(kind, rows, table="t.csv")
    for name in ("a", "b"):
        save_picture(scatter(found), tmp_path / f"scatter_{name}.png")
        save_picture(ratios(found, by), tmp_path / f"ratios_{name}.png")
    for picture in ("scatter", "ratios"):
        first, second = ((tmp_path / f"{picture}_{name}.png").read_bytes() for name in ("a", "b"))
        assert first == second and len(first) > 5_000


def test_reliability_is_drawn_by_kind_of_time(tmp_path: Path) -> None:
    ranks = Ranks(grouping="release", kind="step", values=(0.1, 0.5, 0.9))
    save_picture(reliability(CrossValidation(scores=(), own_rows=(), ranks=(ranks,))), tmp_path / "r.png")
    assert (tmp_path / "r.png").stat().st_size > 10_000
