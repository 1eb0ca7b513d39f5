"""Coefficients of an engine iteration beyond its operators, pinned by arithmetic on devices without tables."""

from typing import Any

import builders
import numpy as np
import pytest
from builders import BARE, EAGLE, bare, exactly

from rlsim.costs.engine.capture import largest_captured_tokens
from rlsim.costs.engine.hosts import HostOverheads
from rlsim.costs.engine.layers import EngineLayers
from rlsim.costs.engine.prices import decode_points_s, engine_prices
from rlsim.costs.memory import engine_memory, weight_bytes
from rlsim.costs.operators import work
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.device import GENERATION_BIAS
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.time import OperatorTime, beside
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.schema.architecture import LayerCounts
from rlsim.schema.engine import Engine
from rlsim.schema.model import attention_parameters, parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.tables.operators import ExpertShape
from rlsim.tables.profile import load_profile

RACK = builders.without_tables("gb200_nvl72")
OVERLAP_S = 1e-6


def layers(given: Scenario, overlap_s: float = 0.0, hop_s: float = 0.0) -> EngineLayers:
    return builders.layers(given, HostOverheads(0.0, 0.0, overlap_s, hop_s))


def wide(gpus: int = 16, speculation: dict[str, Any] | None = None, **engine: Any) -> Scenario:
    """DeepSeek-V3 with data-parallel attention on several trays of one NVLink domain."""
    shape = {"tensor_parallel": gpus, "expert_parallel": gpus, "attention_data_parallel": gpus}
    own = {**shape, "weight_precision": "fp8_block", **engine}
    return builders.deepseek(RACK, engine=own, speculation=speculation or {})


def one_layer(given: EngineLayers, tokens: float, moe: float = 0.0) -> dict[str, float]:
    experts = int(moe)
    found = given.layer_components(np.array([tokens]), LayerCounts(1, 0, 0, 1 - experts, experts))
    return {name: float(timed.seconds[0]) for name, timed in found.items()}


def test_a_time_is_shortened_to_its_floor_and_of_two_beside_each_other_the_longer_counts() -> None:
    timed = OperatorTime(np.array([1e-5, 2e-6, 1e-6]), np.array([1.0, 0.5, 0.0]), "memory")
    shorter = timed.shortened_by(1e-6, 1.3e-6)
    assert shorter.seconds == pytest.approx([9e-6, 1.3e-6, 1e-6])
    assert shorter.measured.tolist() == [1.0, 0.5, 0.0]
    assert timed.shortened_by(0.0, 1.0) is timed
    one = OperatorTime(np.array([1.0, 4.0]), np.array([1.0, 1.0]), "memory")
    other = OperatorTime(np.array([2.0, 3.0]), np.array([0.0, 0.5]), "compute")
    both = beside(one, other)
    assert (both.seconds.tolist(), both.measured.tolist()) == ([2.0, 4.0], [0.0, 1.0])


EXPERTS = bare("qwen3-30b-a3b", trainer={"expert_parallel": 8})
LATENT = wide(attention_data_parallel=1)
LATENT_MATRICES = len(work.attention_matrices(LATENT.model, 16))


@pytest.mark.parametrize(("given", "tokens", "part", "kernels"), [
    # QKV and output, gate with up and down.
    (bare(), 4096.0, "attention projections", 2),
    (bare(), 4096.0, "feed-forward", 2),
    (bare(), 4096.0, "elementwise", 4),
    # Four behind a router.
    (EXPERTS, 4096.0, "experts", 5),
    (LATENT, 1e5, "attention projections", LATENT_MATRICES),
    # Two all-reduces, or a gather and a scatter.
    (bare(engine={"tensor_parallel": 2}), 4096.0, "all-reduce", 2),
    (wide(4), 4096.0, "all-reduce", 2),
])  # fmt: skip
def test_each_kernel_starts_under_the_one_before_it(given: Scenario, tokens: float, part: str, kernels: int) -> None:
    moe = 0.0 if given.model.moe is None else 1.0
    before, after = (one_layer(layers(given, overlap_s), tokens, moe)[part] for overlap_s in (0.0, OVERLAP_S))
    assert before - after == exactly(kernels * OVERLAP_S)


def test_no_kernel_of_a_graph_takes_less_than_a_node_and_head_and_sampling_lie_outside() -> None:
    found = one_layer(layers(bare(), 1.0), 1.0)
    assert found["attention projections"] == exactly(2 * 1.3e-6)
    assert found["feed-forward"] == exactly(2 * 1.3e-6)
    assert found["elementwise"] == exactly(4 * 1.3e-6)
    assert one_layer(layers(EXPERTS, 1.0), 1.0, 1.0)["experts"] == exactly(5 * 1.3e-6)
    rows = np.array([64.0])
    plain, overlapped = (layers(bare(), overlap_s).head_components(rows, rows) for overlap_s in (0.0, 1.0))
    assert [timed.seconds for timed in plain.values()] == [timed.seconds for timed in overlapped.values()]


def test_shared_experts_run_beside_routed_ones_and_norms_over_heads_exchange_eight_bytes() -> None:
    given, tokens = wide(attention_data_parallel=1), np.array([65_536.0])
    operators = Operators(RACK, None)
    router = operators.gemm(tokens, work.Matrix("router", 256, 7168), "bf16")
    routed = operators.experts(
        tokens, ExpertShape("fp8_block", 7168, 2048, 8, 256, 1, 16), 3, given.engine.expert_balance
    )
    shared = operators.gemms(tokens, work.shared_expert_matrices(given.model, 16), "fp8_block")
    assert float(shared.seconds[0]) > 0
    assert one_layer(layers(given), 65_536.0, 1.0)["experts"] == exactly(float((router + routed).seconds[0]))

    def reduced(model: str, tp: int) -> float:
        given = bare(model, RACK, engine={"tensor_parallel": tp}, trainer={"expert_parallel": 8})
        return one_layer(layers(given), 4096.0, 1.0).get("all-reduce", 0.0)

    fabric = Collectives(RACK, None)
    rows, statistics = (float(fabric.all_reduce(4, 4096 * size).seconds) for size in (3072 * 2, 8))
    assert reduced("minimax-m2.5", 4) == exactly(2 * rows + statistics)
    assert reduced("qwen3-30b-a3b", 4) == exactly(2 * float(fabric.all_reduce(4, 4096 * 2048 * 2).seconds))


def test_every_hop_of_the_ring_and_racks_that_groups_straddle_cost_their_time() -> None:
    fabric = Collectives(BARE, None)
    for gpus, hops in ((8, 0), (16, 2), (24, 4), (32, 6)):
        plain, hopped = (float(fabric.all_reduce(gpus, 1e6, network_hop_s=s).seconds) for s in (0.0, 3e-5))
        assert hopped - plain == pytest.approx(hops * 3e-5, abs=1e-12)
    given = builders.scenario("qwen3-32b", BARE, cluster={"num_gpus": 64}, engine={"tensor_parallel": 16})
    plain, hopped = (one_layer(layers(given, hop_s=hop_s), 64.0)["all-reduce"] for hop_s in (0.0, 1e-5))
    assert hopped - plain == exactly(2 * 2 * 1e-5)
    aligned, straddling = (Collectives(RACK, None, rack_aligned=a) for a in (True, False))
    across = RACK.network_latency_s.value * 2 + 1e6 / 4 / (RACK.network_bandwidth_bytes_per_s.value * 0.75)
    for gpus, inside in ((4, 4), (8, 4)):
        whole, half = (float(aligned.all_reduce(n, 1e6).seconds) for n in (gpus, inside))
        expected = whole if gpus == inside else half + across
        assert float(straddling.all_reduce(gpus, 1e6).seconds) == exactly(expected)
    given = wide(16)
    split = EngineLayers(given.model, given.engine, Operators(RACK, None), straddling)
    gathered = (
        float(straddling.collective(op, 16, 4096 * 7168 * 2).seconds) for op in ("all_gather", "reduce_scatter")
    )
    assert one_layer(split, 4096.0, 1.0)["all-reduce"] == exactly(sum(gathered))


def test_experts_over_several_trays_exchange_by_latencies_and_copies_others_gather_and_scatter() -> None:
    fabric, link = Collectives(RACK, None), 900e9 * 0.75
    latency = 3 * 2 * RACK.nvlink_latency_s.value
    for precision, each in (("bf16", 2.0), ("fp8", 1.0), ("fp8_block", 1.0), ("nvfp4", 0.5625)):
        found = fabric.expert_exchange(16, [512.0], 7168, precision, 8)
        assert found.seconds[0] == exactly(latency + 512 * 8 * 7168 * (each + 2) / link)
        assert found.measured[0] == 0.0
    few = fabric.expert_exchange(4, [512.0], 7168, "fp8", 8).seconds[0]
    assert few == exactly(latency + 512 * 3 * 7168 * 3 / link)
    assert fabric.expert_exchange(4, [0.0], 7168, "fp8", 8).seconds[0] == exactly(latency + 3 * 7168 * 3 / link)
    fabric, row = Collectives(RACK, None), 7168 * 2
    found = one_layer(layers(wide(16)), 4096.0, 1.0)["all-reduce"]
    assert found == exactly(float(fabric.expert_exchange(16, 256.0, 7168, "fp8_block", 8).seconds))
    for gpus, changes in ((4, {}), (16, {"expert_parallel": 4})):
        gathered = (float(fabric.collective(op, gpus, 4096 * row).seconds) for op in ("all_gather", "reduce_scatter"))
        assert one_layer(layers(wide(gpus, **changes)), 4096.0, 1.0)["all-reduce"] == exactly(sum(gathered))
    pair = one_layer(layers(wide(16, attention_data_parallel=8)), 4096.0, 1.0)["all-reduce"]
    assert pair - found == exactly(float(fabric.all_reduce(2, 512 * row).seconds))


X86, BLACKWELL = load_profile("h100_sxm"), load_profile("b200_sxm")


@pytest.mark.parametrize(("engine", "draft_length", "blackwell", "tokens"), [
    ({}, 0, False, 512),
    ({}, 0, True, 1024),
    ({"version": "0.26.0"}, 0, True, 1024),
    ({"version": "0.25.1"}, 0, True, 512),
    ({"version": "0.26.0"}, 0, False, 512),
    ({"max_running_sequences": 64}, 0, False, 128),
    ({"max_running_sequences": 64}, 3, False, 512),
    ({"max_running_sequences": 32}, 3, False, 256),
    ({"max_running_sequences": 32, "version": "0.13.0"}, 3, False, 64),
    ({"max_running_sequences": 32, "version": "0.14.0"}, 3, False, 256),
    ({"max_batched_tokens": 300}, 0, False, 300),
    ({"max_captured_tokens": 77, "max_running_sequences": 8}, 3, True, 77),
    ({"name": "sglang", "tensor_parallel": 4}, 0, False, 512),
    ({"name": "sglang", "tensor_parallel": 2}, 0, False, 256),
    ({"name": "sglang", "tensor_parallel": 2, "pipeline_parallel": 2}, 0, False, 512),
    ({"name": "sglang", "tensor_parallel": 8}, 3, False, 2048),
    ({"name": "sglang", "max_running_sequences": 100}, 1, False, 200),
    ({"name": "sglang", "tensor_parallel": 2}, 0, True, 512),
    ({"name": "sglang", "tensor_parallel": 2, "version": "0.5.3"}, 0, False, 256),
    ({"name": "sglang", "tensor_parallel": 8, "version": "0.5.2"}, 0, False, 160),
    ({"name": "sglang", "version": "0.4.10"}, 0, True, 512),
    ({"name": "sglang", "version": "0.4.6.post4"}, 0, True, 256),
    ({"name": "sglang", "version": "0.4.0"}, 0, True, 160),
    ({"name": "trtllm"}, 0, True, 128),
    ({"name": "trtllm"}, 3, True, 512),
    ({"name": "trtllm", "max_running_sequences": 16}, 3, True, 64),
])  # fmt: skip
def test_the_largest_captured_graph(engine: dict[str, Any], draft_length: int, blackwell: bool, tokens: int) -> None:
    assert largest_captured_tokens(Engine(**engine), draft_length + 1, BLACKWELL if blackwell else X86) == tokens


def test_prices_and_memory_take_the_captures_and_copies_of_attention_schedule_their_sequences() -> None:
    engine = {"max_running_sequences": 32}
    plain, drafting = bare(engine=engine), bare(engine=engine, speculation=EAGLE)
    assert [builders.Costs(one).iteration_costs.captured_tokens for one in (plain, drafting)] == [64, 256]
    graphs = [engine_memory(one).parts.graphs / (120 * 36 * 4096) for one in (plain, drafting)]
    assert graphs == [len([1, 2, 4, *range(8, 65, 8)]), len([1, 2, 4, *range(8, 257, 8)])]
    costs = builders.Costs(wide(16, host_iteration_s=0.001, host_sequence_s=1e-5)).iteration_costs
    host = costs.components["host"].seconds
    # Nobody measured the device: generation is longer by the bias of measured ones priced so.
    biased = np.exp(GENERATION_BIAS)
    assert host[[1, 16, 17, 49]] == pytest.approx(biased * np.array([0.00101, 0.00101, 0.00102, 0.00104]))


@pytest.mark.parametrize("given", [
    builders.scenario(),
    builders.scenario(speculation=EAGLE),
    builders.scenario(engine={"pipeline_parallel": 2, "async_scheduling": True}),
    builders.scenario(engine={"cuda_graphs": False, "tensor_parallel": 2}),
    wide(speculation={"method": "mtp", "draft_length": 3, "acceptance_length": 2.0}),
], ids=["plain", "speculative", "pipeline", "eager", "latent"])  # fmt: skip
def test_single_points_are_those_of_the_prepared_table(given: Scenario) -> None:
    inputs = builders.Costs(given).inputs.engine
    table = engine_prices(inputs).table
    rows, columns = (
        grid.ravel() for grid in np.meshgrid([1, 2, 9, 33, len(table.step_s) - 1], [0, 1, 7, 63], indexing="ij")
    )
    contexts = np.maximum(columns * table.context_step_tokens, 1.0)
    found = decode_points_s(inputs, rows.astype(np.float64), contexts)
    assert found == pytest.approx(table.step_s[rows] + table.attention_s[rows, columns], rel=1e-9)


@pytest.mark.parametrize(("engine", "mixes"), [
    ({}, True),
    ({"name": "trtllm"}, True),
    ({"name": "sglang"}, False),
    ({"name": "sglang", "chunked_prefill": True}, True),
    ({"chunked_prefill": False}, False),
])  # fmt: skip
def test_sglang_stops_decoding_for_prefill_and_the_others_mix(engine: dict[str, Any], mixes: bool) -> None:
    assert Engine(**engine).mixes_prefill is mixes
    given = bare(engine={key: value for key, value in engine.items() if key != "name"})
    if "name" not in engine:
        assert builders.Costs(given).iteration.chunked_prefill is mixes


def test_nvfp4_checkpoints_with_latent_attention_keep_it_in_bf16() -> None:
    """The projections cost what BF16 ones do, and the weights of a GPU hold them at 2 bytes instead of 0.5625."""
    bf16, nvfp4 = wide(weight_precision="bf16"), wide(weight_precision="nvfp4")
    dense = builders.scenario("qwen3-32b", RACK, engine={"weight_precision": "nvfp4"})
    assert nvfp4.engine.attention_precision(nvfp4.model) == "bf16"
    assert dense.engine.attention_precision(dense.model) == "nvfp4"
    assert wide().engine.attention_precision(nvfp4.model) == "fp8_block"
    names = "attention projections", "experts"
    (same, fewer), (other, more) = ([one_layer(layers(g), 64.0, 1.0)[n] for n in names] for g in (nvfp4, bf16))
    assert same == other and fewer < more
    counts = nvfp4.model.num_layers * attention_parameters(nvfp4.model)
    # Whole on every GPU as it is: projections into latents (1,536, 512 and 64 wide), routers of 58 layers.
    down, routers = 61 * 7168 * (1536 + 512 + 64), 58 * parameter_counts(nvfp4.model).router_per_layer
    plain = wide(weight_precision="nvfp4", attention_data_parallel=1)
    copies = engine_memory(nvfp4).parts.weights - engine_memory(plain).parts.weights
    assert copies * 16 == exactly(15 * (counts - down) * 2.0)
    all_nvfp4 = weight_bytes(plain.model, "nvfp4")
    assert engine_memory(plain).parts.weights * 16 == exactly(
        all_nvfp4 + counts * (2.0 - 0.5625) + 15 * (down + routers) * 2.0
    )


def test_experts_may_be_held_twice_but_no_gpu_goes_without() -> None:
    keys = ["model=deepseek-v3", "trainer.tensor_parallel=8", "trainer.pipeline_parallel=8"]
    shape = ["cluster.num_gpus=768", "trainer.expert_parallel=32"]
    for gpus in (24, 48):
        wanted = [f"engine.{k}={gpus}" for k in ("tensor_parallel", "expert_parallel", "attention_data_parallel")]
        assert load_scenario("quickstart", [*keys, *shape, *wanted]).engine.expert_parallel == gpus
    wanted = [f"engine.{key}=384" for key in ("tensor_parallel", "expert_parallel", "attention_data_parallel")]
    with pytest.raises(InputError, match=r"engine\.expert_parallel \(384\) exceeds the 256 experts of DeepSeek-V3"):
        load_scenario("quickstart", [*keys, *shape, *wanted])
