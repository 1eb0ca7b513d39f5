"""Every coefficient of the costs, pinned by arithmetic where it is used, on a device without tables.

The figures are written out: a coefficient that is imported from the code would move with it.
"""

import builders
import numpy as np
import pytest
from builders import BANDWIDTH, BARE, EAGLE, MATRIX_RATE, VOCABULARY, bare, exactly, layers

from rlsim.costs.engine.capture import captured_sizes
from rlsim.costs.engine.draft import Drafting, as_model
from rlsim.costs.operators import work
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.device import GENERATION_BIAS
from rlsim.costs.operators.operators import Operators
from rlsim.loading.models import load_card
from rlsim.schema.architecture import LayerCounts
from rlsim.tables.operators import ExpertShape

ONE_DENSE, ONE_MOE = LayerCounts(1, 0, 0, 1, 0), LayerCounts(1, 0, 0, 0, 1)


def test_sampling_passes_four_times_over_the_logits_and_rejection_five_times_with_twenty_kernels() -> None:
    drawn = layers(bare()).head_components(np.array([1000.0]), np.array([1000.0]))["sampling"]
    assert drawn.seconds[0] == exactly(1000 * VOCABULARY * 4 * 4 / BANDWIDTH)
    given = bare(speculation=EAGLE)
    drafting = Drafting(layers(given), given.speculation, 1e-5)
    many, few = (drafting.rejection(np.array([sequences])) for sequences in (1000.0, 1.0))
    assert (many.seconds[0], many.bound) == (exactly(4000 * VOCABULARY * 4 * 5 / BANDWIDTH), "memory")
    assert (few.seconds[0], few.bound) == (exactly(20 * 1e-5), "launch")


def test_a_draft_pass_launches_its_layer_and_its_proposer_and_fuses_two_hidden_states_or_three_once() -> None:
    one, captured = np.ones(1), np.array([False])
    # By the host, 34 launches around the layer's 17; in pieces 13 of the attention and two of what is compiled; in full
    # graphs the first pass alone. Releases before 0.9 have 72 around, those from 0.19 on launch while others work.
    for version, graph, launches in (
        ("0.17.1", "none", 3 * (34 + 17)), ("0.17.1", "piecewise", 3 * (34 + 15)), ("0.17.1", "full", 34 + 15),
        ("0.17.1", "one", 0), ("0.8.4", "piecewise", 3 * (72 + 15)), ("0.19.0", "piecewise", 3 * (34 + 15) - 100),
    ):  # fmt: skip
        given = bare(speculation={**EAGLE, "draft_graph": graph}, engine={"version": version})
        drafting = Drafting(layers(given), given.speculation, 1.0)
        both = drafting.passes(one, captured, 100 * one)
        assert sum(timed.seconds[0] for timed in both) == pytest.approx(launches, abs=0.01)
    tokens = np.array([5000.0])
    card = load_card("deepseek-v3")
    latent = builders.deepseek(BARE, speculation={"method": "mtp", "draft_length": 1, "acceptance_length": 1.5})
    mtp = Drafting(layers(latent), latent.speculation, 0.0)
    draft = mtp.draft
    rest = mtp._own_layers(tokens, draft, mtp.layers) | mtp.layers.head_components(
        tokens, tokens, (draft.vocab_size, 7168, 16)
    )
    fusion = mtp._pass(tokens, tokens, draft, False).seconds - sum(timed.seconds for timed in rest.values())
    assert fusion[0] == exactly(2 * 5000 * 7168 * 2 * card.hidden_size / MATRIX_RATE)
    given = bare(speculation=EAGLE)
    eagle = Drafting(layers(given), given.speculation, 0.0)
    first, later = (eagle._pass(tokens, tokens, eagle.draft, first).seconds for first in (True, False))
    assert (first - later)[0] == exactly(2 * 5000 * 4096 * 3 * 4096 / MATRIX_RATE)


def test_a_draft_layer_reads_two_hidden_states_reduces_twice_and_attends_once_a_token() -> None:
    given = bare(speculation=EAGLE, engine={"tensor_parallel": 2})
    drafting = Drafting(layers(given), given.speculation, 0.0)
    operators, tokens = Operators(BARE, None), np.array([512.0])
    draft = drafting.draft
    width = (draft.num_heads + 2 * draft.num_kv_heads) // 2 * draft.head_dim
    rest = work.attention_matrices(as_model(draft), 2)[1:] + work.ffn_matrices(4096, draft.intermediate_size, 2)
    own = drafting._own_layers(tokens, draft, drafting.layers)
    products = operators.gemms(tokens, [work.Matrix("qkv", width, 2 * 4096), *rest], "bf16")
    assert own["layers"].seconds[0] == exactly(products.seconds[0])
    assert own["all-reduce"].seconds[0] == exactly(
        2 * float(Collectives(BARE, None).all_reduce(2, 512 * 4096 * 2).seconds)
    )
    once = operators.decode_attention(work.heads_of(as_model(draft), 2), tokens, np.array([2048.0]))
    assert drafting.cached_attention(tokens, np.array([2048.0])).seconds[0] == exactly(3 * once.seconds[0])


def test_experts_of_an_engine_layer_are_routed_first_and_the_lm_head_is_cut_over_the_ranks() -> None:
    given, operators = bare("qwen3-30b-a3b", trainer={"expert_parallel": 8}), Operators(BARE, None)
    tokens = np.array([64.0])
    router = operators.gemm(tokens, work.Matrix("router", 128, 2048), "bf16")
    routed = operators.experts(tokens, ExpertShape("bf16", 2048, 768, 8, 128, 1, 1), 3, "balanced")
    found = layers(given).layer_components(tokens, ONE_MOE)["experts"]
    assert found.seconds[0] == exactly((router + routed).seconds[0])
    halves = layers(bare(engine={"tensor_parallel": 2})).head_components(np.array([4096.0]), np.array([1.0]))
    gathered = float(Collectives(BARE, None).collective("all_gather", 2, 4096 * VOCABULARY * 2).seconds)
    assert halves["LM head"].seconds[0] == exactly(2 * 4096 * (VOCABULARY / 2) * 4096 / MATRIX_RATE + gathered)


def test_a_compiled_pass_takes_thirteen_four_and_eight_launches_two_reductions_and_four_floors_a_layer() -> None:
    assert layers(bare()).launches() == 36 * 17
    assert layers(bare(engine={"tensor_parallel": 2})).launches() == 36 * 19
    assert layers(bare("qwen3-30b-a3b", trainer={"expert_parallel": 8})).launches() == 48 * 21
    found = layers(bare()).layer_components(np.array([1.0]), ONE_DENSE)["elementwise"]
    assert found.seconds[0] == exactly(4 * 2.5e-6)


def test_captured_sizes_and_the_last_stage_samples_once_for_each_stage() -> None:
    assert captured_sizes(1).tolist() == [1]
    assert captured_sizes(2).tolist() == [1, 2]
    assert captured_sizes(24).tolist() == [1, 2, 4, 8, 16, 24]
    assert captured_sizes(288).tolist()[-4:] == [248, 256, 272, 288]
    assert captured_sizes(500).tolist()[-2:] == [496, 500]
    assert builders.Costs(bare()).iteration.attention_s.shape[1] == 64
    one, two = (builders.Costs(bare(engine={"pipeline_parallel": stages}, speculation=EAGLE)).iteration_costs.components
                for stages in (1, 2))  # fmt: skip
    for name in ("LM head", "sampling", "draft passes", "rejection sampling"):
        assert two[name].seconds[16] == exactly(2 * one[name].seconds[8])


def test_prefill_attends_to_its_prompts_in_every_layer() -> None:
    """The same 8,192 tokens as 16 or as 4 prompts differ by the attention of 36 layers."""
    operators, lengths = Operators(BARE, None), (512, 2048)
    given = [bare(workload={"prompt_tokens": {"kind": "constant", "tokens": n}}, engine={"max_batched_tokens": 8192})
             for n in lengths]  # fmt: skip
    short, long = (builders.Costs(one).iteration.prefill_s[0, -1] for one in given)
    once = [operators.prefill_attention(given[0].model, 1, np.array([8192 / n]), np.array([n])) for n in lengths]
    biased = float(np.exp(GENERATION_BIAS))
    assert long - short == exactly(biased * 36 * float((once[1].seconds - once[0].seconds)[0]))


def test_a_device_without_tables_reaches_seventy_percent_of_its_rate_and_eighty_of_its_bandwidth() -> None:
    operators = Operators(BARE, None)
    large = operators.gemm(np.array([65_536.0]), work.Matrix("m", 8192, 8192), "bf16")
    assert large.seconds[0] == exactly(2 * 65_536 * 8192 * 8192 / MATRIX_RATE)
    row = operators.gemm(np.array([1.0]), work.Matrix("m", 152_064, 4096), "bf16")
    assert row.seconds[0] == exactly((152_064 * 4096 + 152_064 + 4096) * 2 / BANDWIDTH)
    assert operators.stream(np.array([1e9])).seconds[0] == exactly(1e9 / BANDWIDTH)
    assert operators.stream(np.array([0.0]), 3.0).seconds[0] == exactly(3 * 2.5e-6)
    assert operators.gemm(np.array([1.0]), work.Matrix("m", 1, 1), "bf16").seconds[0] == exactly(2.5e-6)


def test_links_carry_three_quarters_of_their_rate_and_a_group_over_nodes_waits_for_the_network() -> None:
    fabric, latency = Collectives(BARE, None), BARE.nvlink_latency_s.value
    rate = 450e9 * 0.75
    for op in ("all_gather", "reduce_scatter", "alltoall"):
        assert float(fabric.collective(op, 4, 1e9).seconds) == exactly(3 * latency + 0.75e9 / rate)
    assert float(fabric.all_reduce(4, 1e9).seconds) == exactly(4 * latency + 1.5e9 / rate)
    assert float(fabric.host_copy(1e9).seconds) == exactly(1e9 / (64e9 * 0.75))
    assert float(fabric.broadcast(1e9, crosses_network=True).seconds) == exactly(1e9 / (50e9 * 0.75))
    assert float(fabric.broadcast(1e9, crosses_network=False).seconds) == exactly(1e9 / rate)
    fabric, latency = Collectives(BARE, None), BARE.network_latency_s.value
    network = BARE.network_bandwidth_bytes_per_s.value * 0.75
    size, inside = 1e9, float(Collectives(BARE, None).collective("all_gather", 8, 1e9).seconds)
    across = max(inside, size * 3 / 4 / 8 / network) + 3 * latency
    assert float(fabric.collective("all_gather", 32, size).seconds) == exactly(across)
    exchange = max(float(fabric.collective("alltoall", 8, size).seconds), size * 0.75 / network) + 3 * latency
    assert float(fabric.collective("alltoall", 32, size).seconds) == exactly(exchange)
    reduce = float(fabric.all_reduce(8, size).seconds)
    hops = 2 * 3 * latency + 2 * 3 / 4 * size / 8 / network
    assert float(fabric.all_reduce(32, size).seconds) == exactly(reduce + hops)
