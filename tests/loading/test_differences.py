"""What leads from one scenario to another, as answers print it: with it the other one is made again."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from rlsim import InputError, Scenario, load_scenario, vary
from rlsim.loading.differences import changes, differences
from rlsim.loading.variation import Overrides
from rlsim.projection.moves import moves, varied

DRAFTERS: tuple[Mapping[str, Any], ...] = (
    {},
    {"k": 5},
    {"k": 0},
    {"speculation.draft_length": 5, "speculation.acceptance_length": 2.79},
    {"speculation.method": "suffix", "speculation.draft_length": 8, "speculation.acceptance_length": 2.79},
    {"speculation.first_acceptance": 0.7},
    {"speculation.method": "ngram", "speculation.first_acceptance": 0.7},
    {"speculation.variation": {"prompt_spread": 0.5}},
)
"""Of quickstart, which drafts with EAGLE-3, k = 3, acceptance length 2.79."""
SECTIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {"workload.tail_batching": {}},
    {"workload.response_tokens": {"kind": "constant", "tokens": 300}},
    {"model": "qwen3-30b-a3b"},
)


@pytest.mark.parametrize("ways", [DRAFTERS, SECTIONS], ids=["drafters", "sections"])
def test_changes_lead_from_any_scenario_to_any_other(ways: tuple[Mapping[str, Any], ...]) -> None:
    found = [load_scenario("quickstart", way) for way in ways]
    for first, second in itertools.permutations(found, 2):
        assert not differences(vary(first, *changes(first, second)), second), changes(first, second)


@pytest.mark.parametrize("acceptance", [1.7, 1.8, 2.5, 2.8, 4.5])
def test_every_move_is_what_its_printed_keys_make_again(acceptance: float) -> None:
    base = load_scenario("quickstart", {"speculation.acceptance_length": acceptance, "speculation.draft_length": 5})
    tried = 0
    for move in moves():
        for way in move.ways(base):
            if (other := _taken(base, way)) is not None:
                tried += 1
                assert not differences(vary(base, *changes(base, other)), other), move.name
    assert tried > 20


def _taken(base: Scenario, way: Overrides) -> Scenario | None:
    try:
        return varied(base, way)
    except InputError:
        return None


def test_a_length_alone_keeps_its_line_short() -> None:
    base = load_scenario("quickstart")
    keys = [each.split("=")[0] for each in changes(base, vary(base, {"k": 2}))]
    assert keys == ["speculation.draft_length", "speculation.acceptance_at_draft_length"]
