"""Drafters that draft all tokens in one pass: DFlash, DSpark, P-EAGLE, PARD."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rlsim.costs.engine.draft import Drafting, draft_card
from rlsim.costs.engine.layers import total
from rlsim.costs.engine.releases import draft_graph, proposer_launches
from rlsim.errors import InputError
from rlsim.loading.models import load_card
from rlsim.schema.drafter import DraftCard, block_draft, draft_parameters, met_draft_parameters
from rlsim.schema.engine import Engine
from rlsim.schema.model import kv_bytes_per_token, parameter_counts
from rlsim.schema.speculation import Speculation
from rlsim.units import FloatArray
from tests.costs import builders

SEQUENCES = np.array([1.0, 8.0, 64.0])
CAPTURED = np.zeros(3, dtype=bool)


def _passes(k: int, model: str = "qwen3-8b", tensor_parallel: int = 1, **values: Any) -> FloatArray:
    """Seconds of all draft passes of an iteration of SEQUENCES, graphs that hold all of them."""
    drafts = {"method": "eagle3", "draft_length": k, "acceptance_length": 1.5, "draft_graph": "one", **values}
    given = builders.scenario(model, engine={"tensor_parallel": tensor_parallel}, speculation=drafts)
    drafting = Drafting(builders.layers(given), given.speculation, 1e-5)
    return np.asarray(drafting.passes(SEQUENCES, CAPTURED, np.full(3, 1.0))[0].seconds)


def _draft(**values: Any) -> DraftCard:
    return DraftCard.model_validate({**block_draft(load_card("qwen3-8b"), markov=False).model_dump(), **values})


def test_one_token_in_parallel_costs_what_a_chain_of_one_does() -> None:
    for layers in (1, 3):
        head = draft_card(Speculation(method="eagle3", draft_length=1, acceptance_length=1.5), load_card("qwen3-8b"))
        assert head is not None
        same = DraftCard.model_validate({**head.model_dump(), "num_layers": layers})
        assert _passes(1, draft=same, parallel_drafting=True) == pytest.approx(_passes(1, draft=same), rel=1e-12)


def test_more_tokens_in_parallel_cost_more_and_less_than_in_sequence() -> None:
    for method in ({"parallel_drafting": True}, {"method": "dflash"}, {"method": "dspark"}):
        for fewer, more in pairwise([_passes(k, **method) for k in (1, 3, 7, 15)]):
            assert (more >= fewer).all()
    # One sequence: weights are read once instead of seven times.
    assert _passes(7, parallel_drafting=True)[0] < 0.5 * _passes(7)[0]


def test_dspark_adds_its_sequence_to_the_block() -> None:
    block, biased = (
        _passes(7, method="dflash", draft=_draft()),
        _passes(7, method="dspark", draft=_draft(markov_rank=256)),
    )
    assert (biased > block).all()
    # Each of k tokens reads the bias of its own token: V x rank of BF16 at no more than the peak bandwidth.
    least = 7 * builders.VOCABULARY * 256 * 2 / 3.35e12
    assert (biased - block)[0] > least


def _bare(tensor_parallel: int = 1, **values: Any) -> tuple[Drafting, DraftCard]:
    """Of a device whose operators come from the roofline alone."""
    drafts = {
        "method": "dspark",
        "draft_length": 3,
        "acceptance_length": 1.5,
        "draft": _draft(markov_rank=256),
        **values,
    }
    given = builders.bare(engine={"tensor_parallel": tensor_parallel}, speculation=drafts)
    return Drafting(builders.layers(given), given.speculation, 1.0), _draft(markov_rank=256)


def test_a_block_makes_keys_and_values_of_its_context_and_passes_over_logits() -> None:
    (drafting, draft), (shared, _) = _bare(), _bare(tensor_parallel=2)
    rows = np.array([5000.0])
    context = drafting._context(rows, draft)["context"].seconds
    assert context == builders.exactly(2 * 5000 * 4096 * 5 * 2 * 8 * 128 / builders.MATRIX_RATE)
    halves = shared._context(rows, draft)["context"].seconds
    assert halves == builders.exactly(2 * 5000 * 4096 * 5 * 2 * 4 * 128 / builders.MATRIX_RATE)
    # Rows of BF16 logits: both addends read, the sum written; read and written to join the parts of two GPUs.
    assert drafting._logit_bytes(rows, draft, 3.0) == builders.exactly(5000 * builders.VOCABULARY * 2 * 3)
    assert shared._logit_bytes(rows, draft, 3.0) == builders.exactly(5000 * builders.VOCABULARY * 2 * 5)
    # Each token of a sequence: V x rank, draw and small kernels; beside what the block of DFlash does in k + 1 rows.
    one = drafting.layers.operators.stream(drafting._logit_bytes(rows, draft, 3.0), 4.0).seconds
    head = total(drafting._head(rows, rows, draft, 256))
    base = drafting._own_layers(3 * rows, draft, drafting.verifying) | drafting._fusion(4 * rows, draft, 5)
    base |= drafting._context(4 * rows, draft) | {"LM head": drafting._head(3 * rows, rows, draft, 4096)["LM head"]}
    small = drafting.layers.operators.stream(0.0, 8.0).seconds
    assert drafting._block(rows, draft).seconds == builders.exactly(total(base)[0] + small + 3 * (head + one)[0])


def test_the_host_launches_context_and_proposer_of_a_block_outside_its_graph() -> None:
    around = proposer_launches(Engine()) + 7 + 5  # of the context: seven, and one for each layer
    for graph, launches in (("one", 0), ("full", around), ("piecewise", around + 5 * 14 + 1)):
        drafting, draft = _bare(draft_graph=graph)
        assert drafting._launch_s(draft)[0] == launches


def test_a_drafter_on_one_gpu_computes_all_and_reduces_nothing() -> None:
    shared, alone = _passes(3, tensor_parallel=8), _passes(3, tensor_parallel=8, draft_tensor_parallel=1)
    assert _passes(3, tensor_parallel=8, draft_tensor_parallel=8) == pytest.approx(shared)
    assert alone[0] > shared[0]
    assert (_passes(3, draft_precision="fp8") < _passes(3)).all()
    assert _passes(3, draft_precision="bf16") == pytest.approx(_passes(3), rel=0)


def test_parameters_of_block_drafters_are_their_matrices() -> None:
    card = load_card("qwen3-8b")
    dense = _draft(num_layers=5, fused_hidden_states=5)
    hidden, width = card.hidden_size, card.intermediate_size
    layer = hidden * (32 + 2 * 8) * 128 + 32 * 128 * hidden + 3 * hidden * width + 2 * hidden
    assert draft_parameters(dense, card) == 5 * hidden * hidden + 5 * layer + hidden
    biased = _draft(num_layers=5, fused_hidden_states=5, markov_rank=256)
    assert draft_parameters(biased, card) - draft_parameters(dense, card) == 2 * card.vocab_size * 256
    assert met_draft_parameters(dense, card) - draft_parameters(dense, card) == card.vocab_size * hidden
    own = block_draft(load_card("deepseek-v4-flash"), markov=True)
    assert (own.kind, own.num_layers, own.markov_rank) == ("mtp", 3, 256)


def test_deepseek_v4_caches_entries_of_several_tokens() -> None:
    card = load_card("deepseek-v4-flash")
    assert parameter_counts(card).norms_per_layer == 2 * 4096 + 2 * 24 * 4 * 4096
    # 21 layers of 4 tokens an entry with an index key, 22 of 128; 512 values each.
    assert kv_bytes_per_token(card, "fp8") == pytest.approx((21 / 4 + 22 / 128) * 512 + 21 / 4 * (128 + 4))
    sparse = card.sparse_attention
    assert sparse is not None
    contexts = np.array([64.0, 1024.0, 100_000.0])
    assert sparse.attended(True, contexts).tolist() == [16 + 64, 256 + 128, 512 + 128]
    assert sparse.attended(False, contexts).tolist() == [0.5 + 64, 8 + 128, 100_000 / 128 + 128]


@pytest.mark.parametrize(("version", "drafts", "graph"), [
    (None, {"method": "dflash"}, "full"), ("0.17.1", {"method": "dflash"}, "piecewise"),
    (None, {"parallel_drafting": True}, "piecewise"),
    (None, {"method": "draft_model", "parallel_drafting": True}, "full"),
])  # fmt: skip
def test_graphs_of_parallel_drafters_follow_the_release(
    version: str | None, drafts: dict[str, Any], graph: str
) -> None:
    given = Speculation(**{"method": "eagle3", "draft_length": 3, "acceptance_length": 2.0, **drafts})
    assert draft_graph(Engine(name="vllm", version=version), load_card("qwen3-8b"), given) == graph


@pytest.mark.parametrize(("values", "message"), [
    ({"method": "mtp", "parallel_drafting": True}, "parallel_drafting needs method eagle3"),
    ({"method": "dflash", "tree_width": 2, "verified_positions": 8}, "tree_width must be 1"),
    ({"draft_tensor_parallel": 3}, "does not divide engine.tensor_parallel"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(values: dict[str, Any], message: str) -> None:
    drafts = {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.0, **values}
    with pytest.raises((InputError, ValueError), match=message):
        builders.scenario("mimo-7b", engine={"tensor_parallel": 4}, speculation=drafts)


def test_dspark_on_b300_takes_what_was_measured() -> None:
    """DeepSeek-V4-Flash on four B300 (vLLM blog of 2026-08-14, its cost table read off a chart): milliseconds of a
    verification by tokens, and of drafting by sequences; k is unpublished, 7 as in its other figures."""
    verified = {1: 5.11, 16: 5.59, 64: 7.9, 112: 9.2, 272: 12.52, 448: 15.67, 1008: 20.26}
    drafted = {1: 0.88, 16: 1.32, 64: 2.27, 128: 3.14, 200: 4.44, 256: 5.38}
    engine = {"tensor_parallel": 4, "weight_precision": "mxfp4", "kv_precision": "fp8", "max_captured_tokens": 2048}
    drafts = {"method": "dspark", "draft_length": 7, "acceptance_length": 3.0}
    given = builders.scenario("deepseek-v4-flash", "b300_sxm", engine=engine, speculation=drafts)
    drafting = Drafting(builders.layers(given), given.speculation, given.hardware.eager_launch_s.value)
    tokens, sequences = (np.array(list(table), dtype=float) for table in (verified, drafted))
    context = np.full(len(tokens), 1024.0)
    verify_s = total(drafting.layers.components(tokens)) + drafting.layers.cached_attention(tokens, context, 1).seconds
    draft_s = drafting.passes(sequences, np.zeros(len(sequences), dtype=bool), np.full(len(sequences), 1.0))[0].seconds
    draft_s = draft_s + drafting.cached_attention(sequences, context[: len(sequences)]).seconds
    for predicted_s, measured in ((verify_s, verified), (draft_s, drafted)):
        errors = np.abs(1e3 * predicted_s / list(measured.values()) - 1)
        assert np.median(errors) < 0.15
        assert errors.max() < 0.25
