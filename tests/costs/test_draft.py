"""Drafting: passes, launches, the drafter's own dimensions, n-gram look-ups."""

from typing import Any

import builders
import numpy as np
import pytest

from rlsim.costs.engine.draft import PROPOSER_LAUNCHES, Drafting, draft_card
from rlsim.loading.models import load_card
from rlsim.schema.architecture import LayerCounts
from rlsim.schema.drafter import draft_model_from_card

SEQUENCES = np.array([1.0, 16.0, 128.0])
CAPTURED = np.zeros(3, dtype=bool)


def _drafting(model: str = "qwen3-8b", hardware: str = "h100_sxm", **speculation: Any) -> Drafting:
    chosen = {"method": "eagle3", "draft_length": 3, "acceptance_length": 1.5, **speculation}
    given = builders.scenario(model, hardware, speculation=chosen)
    return Drafting(builders.layers(given), given.speculation, given.hardware.eager_launch_s.value)


def test_who_drafts() -> None:
    card = load_card("deepseek-v3")
    for method, kind in (("eagle3", "eagle3"), ("mtp", "mtp"), ("ngram", None), ("suffix", None), ("none", None)):
        length = 0 if method == "none" else 1
        accepted = {"acceptance_length": 1.5} if length else {}
        chosen = builders.scenario(speculation={"method": "none"}).speculation.model_copy(
            update={"method": method, "draft_length": length, **accepted}
        )
        draft = draft_card(chosen, card)
        assert (draft.kind if draft else None) == kind


def test_a_further_draft_token_costs_one_more_pass() -> None:
    """The first pass alone runs over the verified positions: every further token costs the same."""
    seconds = {k: _drafting(draft_length=k).passes(SEQUENCES, CAPTURED).seconds for k in (2, 3, 4)}
    first = _drafting(draft_length=1).passes(SEQUENCES, CAPTURED).seconds
    assert seconds[3] - seconds[2] == pytest.approx(seconds[4] - seconds[3], rel=0.2)
    assert (seconds[2] > first).all()
    assert (seconds[2] < 2.2 * first).all()


def test_a_graphed_eagle_pass_streams_its_weights_and_a_launched_one_waits_for_the_host() -> None:
    """EAGLE-3 of Qwen3-8B: about 0.33 G parameters a pass. Launched: every operation waits for the host."""
    drafting = _drafting()
    graphed = drafting.passes(np.ones(1), np.zeros(1, dtype=bool)).seconds[0] / 3
    weights = 2 * (8192 * 6144 + 4096 * 4096 + 3 * 4096 * 12288 + 32_000 * 4096)
    assert weights / 3.35e12 < graphed < 2.5 * weights / 3.35e12
    launched = _drafting(draft_graph=False).passes(np.ones(1), np.zeros(1, dtype=bool))
    assert launched.bound == "launch"
    assert launched.seconds[0] >= 3 * PROPOSER_LAUNCHES * drafting.eager_launch_s
    eager = drafting.passes(np.ones(1), np.ones(1, dtype=bool))
    assert eager.seconds[0] == launched.seconds[0]


def test_a_small_draft_model_has_its_own_width_in_its_head() -> None:
    """The head of a drafter of hidden size 1,024 is a quarter of one of 4,096 over the same vocabulary."""
    wide = draft_model_from_card(load_card("llama-3.1-8b")).model_copy(update={"num_layers": 1})
    narrow = wide.model_copy(update={"hidden_size": 1024, "num_heads": 8, "num_kv_heads": 8, "intermediate_size": 3072})
    times = []
    for draft in (wide, narrow):
        given = _drafting(method="draft_model", draft=draft.model_dump(mode="json"), heterogeneous_vocabulary=True)
        times.append(given.passes(np.ones(1), np.zeros(1, dtype=bool)).seconds[0])
    assert times[1] < 0.45 * times[0]


def test_mtp_layer_of_deepseek_v3_costs_about_one_layer_and_its_head() -> None:
    given = builders.deepseek(speculation={"method": "mtp", "draft_length": 1, "acceptance_length": 1.8})
    layers = builders.layers(given)
    drafting = Drafting(layers, given.speculation, given.hardware.eager_launch_s.value)
    own = drafting.passes(SEQUENCES, CAPTURED).seconds
    layer = sum(t.seconds for t in layers.layer_components(SEQUENCES * 2, True, LayerCounts(1, 0, 0, 0, 1)).values())
    head = sum(t.seconds for t in layers.head_components(SEQUENCES, SEQUENCES).values())
    assert (own > layer + head).all()
    assert (own < 1.5 * (layer + head)).all()


def test_ngram_costs_host_time_in_proportion_to_the_context() -> None:
    drafting = _drafting(method="ngram", lookup_s_per_1k_tokens=3e-5)
    found = drafting.cached_attention(np.array([64.0]), np.array([4000.0]))
    assert found.seconds[0] == pytest.approx(64 * 4 * 3e-5)
    assert found.bound == "host"
    assert (drafting.passes(SEQUENCES, CAPTURED).seconds == 0).all()


def test_drafter_attention_is_a_small_share_of_the_targets() -> None:
    drafting = _drafting(draft_length=1)
    own = drafting.cached_attention(np.array([64.0]), np.array([4000.0])).seconds[0]
    target = drafting.layers.cached_attention(np.array([64.0]), np.array([4000.0]), 1).seconds[0]
    assert own == pytest.approx(target / 36, rel=0.01)
