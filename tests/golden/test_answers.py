"""Answers must not move unnoticed, in any number."""

from __future__ import annotations

from itertools import chain

import pytest
from answers import digests, numbers, read_answers, sweeps

pytestmark = pytest.mark.nightly
GOLDEN = read_answers()
COMMAND = "if meant, run python -m tests.golden.answers and say why"


def same(old: str, new: str) -> bool:
    """Equal as text, or as numbers to what numerical libraries differ by."""
    try:
        return old == new or abs(float(old) - float(new)) <= 1e-4 * abs(float(old)) + 1e-9
    except ValueError:
        return False


def test_numbers_of_commands_stay() -> None:
    moved = []
    for case, found in numbers():
        old = GOLDEN[case]
        pairs = zip(found.items(), old, strict=False)
        moved += [f"{case}: {place} {was} -> {now}" for (place, now), was in pairs if not same(was, now)][:5]
        moved += [f"{case}: {len(old)} values -> {len(found)}"] if len(old) != len(found) else []
    assert not moved, f"{COMMAND}\n" + "\n".join(moved)


def test_what_is_read_of_files_stays() -> None:
    moved = [
        f"{case} {number}" for case, found in chain(digests(), sweeps()) for number, (old, new) in
        enumerate(zip(GOLDEN[case], found, strict=True)) if old != new
    ]  # fmt: skip
    assert not moved, f"{COMMAND}; python -m tests.golden.answers CASE NUMBER prints one: {', '.join(moved)}"
