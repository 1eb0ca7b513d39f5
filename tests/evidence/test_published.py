"""The published tables inside the project, and the document made of them."""

import pytest

from rlsim.evidence.published import measured_speculation, published_refits, study
from rlsim.report.text.validation import group_errors


def test_the_study_is_predicted_cell_by_cell() -> None:
    cells = study(replications=1)
    counts = {group: n for group, n, _, _ in group_errors(cells)}
    assert counts == {
        "generation speedup, k sweep": 6,
        "generation speedup, draft initialisation": 6,
        "generation speedup, n-gram": 2,
        "step times": 24,
        "asynchronous, lag 1": 4,
    }
    assert all(cell.predicted.mean >= 0 for cell in cells)


def test_speedup_at_fixed_batch_follows_the_acceptance_length() -> None:
    """speedup = acceptance length x t(decode) / t(step): the same k has the same ratio of times."""
    ratios: dict[str, list[float]] = {}
    for cell in measured_speculation():
        if cell.unit == "x":
            k, length = cell.label.split("k=")[1].split(", length ")
            ratios.setdefault(k, []).append(cell.predicted.mean / float(length))
    assert set(ratios) == {"3", "5", "7"}
    for values in ratios.values():
        assert max(values) == pytest.approx(min(values), rel=1e-9)
    assert ratios["3"][0] > ratios["5"][0] > ratios["7"][0]


def test_every_published_refit_is_compared_or_left_out_with_a_reason() -> None:
    compared, left_out = published_refits()
    assert len(compared) + len(left_out) == 22
    assert {cell.group for cell in compared} == {"refit, NeMo-RL", "refit, verl"}
    assert all(reason for _, reason in left_out.items())
