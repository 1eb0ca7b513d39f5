"""Answers must not move unnoticed, in any number."""

import pytest
from answers import every, read_answers

pytestmark = pytest.mark.nightly
GOLDEN = read_answers()
COMMAND = "if meant, run python -m tests.golden.answers and say why"


def same(old: str, new: str) -> bool:
    """Equal as text, or as numbers to what numerical libraries differ by."""
    try:
        return old == new or abs(float(old) - float(new)) <= 1e-4 * abs(float(old)) + 1e-9
    except ValueError:
        return False


@pytest.mark.parametrize("case", GOLDEN)
def test_answers_stay(case: str) -> None:
    found, old = every()[case](), GOLDEN[case]
    places, now = (list(found), list(found.values())) if isinstance(found, dict) else (range(len(found)), found)
    moved = [f"{place}: {was} -> {is_now}" for place, was, is_now in zip(places, old, now, strict=False)
             if not same(was, is_now)]  # fmt: skip
    moved += [f"{len(old)} values -> {len(now)}"] if len(old) != len(now) else []
    assert not moved, f"{COMMAND}; python -m tests.golden.answers CASE NUMBER prints one: {'; '.join(moved[:9])}"


def test_every_case_is_held() -> None:
    assert list(every()) == list(GOLDEN), COMMAND
