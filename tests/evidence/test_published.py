"""The published tables inside the project, the document, pictures and notebook made of them."""

from pathlib import Path

import pytest

from rlsim.evidence.published import measured_speculation, published_refits, published_table, study
from rlsim.evidence.tables import read_table
from rlsim.report.figures.style import save_picture
from rlsim.report.figures.validation import ratios, reliability, scatter
from rlsim.report.text.validation import group_errors
from rlsim.results.validation import ComparedRow, CrossValidation, Ranks, Validation


def test_the_study_is_predicted_and_speedups_follow_acceptance() -> None:
    cells = study(replications=1)
    counts = {group: n for group, n, _, _ in group_errors(cells)}
    assert counts == {"generation speedup, k sweep": 6, "generation speedup, draft initialisation": 6,
                      "generation speedup, n-gram": 2, "step times": 24, "asynchronous, lag 1": 4}  # fmt: skip
    assert all(cell.predicted.mean >= 0 for cell in cells)
    compared, left_out = published_refits()
    assert len(compared) + len(left_out) == 22
    assert {cell.group for cell in compared} == {"refit, NeMo-RL", "refit, verl"}
    assert all(reason for _, reason in left_out.items())


def test_a_speedup_at_fixed_batch_is_the_acceptance_length_over_a_ratio_of_times() -> None:
    ratios: dict[tuple[str, ...], list[float]] = {}
    known = list(measured_speculation())
    for record in read_table(published_table("speculation.csv"), ("id",)):
        cell = record.cells
        if cell["model"] == "Llama-3.1-8B-Instruct" and "topk=1 " in cell["notes"]:
            drafted = next(one for one in known if one.label.startswith(f"{cell['id']} "))
            ratios.setdefault((cell["k"],), []).append(drafted.predicted.mean / float(cell["acceptance_length"]))
    assert {key[0] for key in ratios} == {"3", "5", "7"}
    for values in ratios.values():
        assert max(values) == pytest.approx(min(values), rel=1e-9)
    assert ratios["3",][0] > ratios["5",][0] > ratios["7",][0]


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
