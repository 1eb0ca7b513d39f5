"""The iteration table: staircase, eager fallback, verification, prefill, monotone where it must be."""

from functools import cache
from threading import Event, Thread
from typing import Any

import builders
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rlsim.costs.engine import prices
from rlsim.costs.engine.device_times import highest_so_far, pipeline_hops
from rlsim.costs.engine.draft import Drafting, draft_card
from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import engine_prices
from rlsim.costs.interface import EngineCounters
from rlsim.loading.models import load_card
from rlsim.schema.drafter import draft_model_from_card
from rlsim.schema.engine_parameters import PrefillHost
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.profile import load_profile

SPECULATION = {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.8}
MOE = {"cluster": {"num_gpus": 8}, "engine": {"tensor_parallel": 2}, "trainer": {"expert_parallel": 8}}


def slow_host(name: str, launch_s: float) -> HardwareProfile:
    profile = load_profile(name)
    return builders.scaled(profile, "eager_launch_s", launch_s / profile.eager_launch_s.value)


CASES: dict[str, tuple[str, str | HardwareProfile, dict[str, Any]]] = {
    "dense": ("qwen3-8b", "h100_sxm", {}),
    "slow host": ("qwen3-8b", slow_host("h100_sxm", 50e-6), {}),
    "moe": ("qwen3-30b-a3b", "gb200_nvl72", MOE),
    "latent": (
        "deepseek-v3", "h100_sxm",
        {"cluster": {"num_gpus": 256}, "engine": {"tensor_parallel": 32, "gpu_memory_utilization": 0.9},
         "trainer": {"expert_parallel": 16, "pipeline_parallel": 16}},
    ),
    "no tables": ("llama-3.1-8b", builders.without_tables("a100_sxm"), {}),
}  # fmt: skip


@cache
def _costs(case: str, speculative: bool = False, prompts: int = 128, captured: int = 512) -> IterationCosts:
    model, hardware, sections = CASES[case]
    engine = {**sections.get("engine", {}), "max_captured_tokens": captured}
    extra = {"speculation": SPECULATION} if speculative else {}
    given = builders.scenario(
        model, hardware, **{**sections, "engine": engine}, workload={"prompts_per_step": prompts}, **extra
    )
    return builders.Costs(given).iteration_costs


@pytest.mark.parametrize("case", CASES)
def test_layers_take_one_time_between_captured_sizes_and_verification_costs_at_least_a_decode(case: str) -> None:
    costs = _costs(case)
    device = costs.components["attention projections"].seconds + costs.components["elementwise"].seconds
    most = min(len(device) - 1, 255)
    for low in range(8, most - 8, 8):
        stair = device[low + 1 : low + 9]
        assert (stair == stair[0]).all()
    decode, verify = _costs(case).table, _costs(case, True).table
    most = min(len(decode.step_s), len(verify.step_s))
    assert (verify.step_s[1:most] >= decode.step_s[1:most]).all()
    assert (verify.attention_s[1:most] >= decode.attention_s[1:most] * (1 - 1e-12)).all()
    assert verify.tokens_per_sequence == 4


@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_iteration_never_gets_shorter_with_more_sequences(case: str, speculative: bool) -> None:
    """Captured or eager: within each regime, and from the one into the other."""
    table = _costs(case, speculative).table
    assert (np.diff(table.step_s) >= -1e-12).all()
    assert (np.diff(table.attention_s, axis=1) >= 0).all()
    assert (np.diff(table.attention_s[1:], axis=0) >= -1e-12).all()


def test_batches_beyond_the_largest_capture_wait_for_launches_speculative_ones_at_a_quarter() -> None:
    """Qwen3-8B: 36 layers x 17 compiled launches of 35 us and 8 of 50 us take longer than the device at 129 tokens."""
    small, large = _costs("slow host", captured=128), _costs("slow host", captured=512)
    launches = (36 * 17 * 35 + 8 * 50) * 1e-6
    assert large.components["eager launches"].seconds[129] == 0.0
    assert small.components["eager launches"].seconds[128] == 0
    device = sum(part.seconds[129] for name, part in small.components.items() if name in LAYER_PARTS)
    assert device + small.components["eager launches"].seconds[129] == pytest.approx(launches)
    assert (small.table.step_s[:129] == large.table.step_s[:129]).all()
    assert small.table.step_s[129] > large.table.step_s[129]
    costs = _costs("moe", True, prompts=256)
    waiting = costs.components["eager launches"].seconds
    assert (costs.eager == (np.arange(len(waiting)) > 128)).all()
    assert (waiting[:129] == 0).all()
    assert (waiting[129:200] > 0).all()


LAYER_PARTS = {"attention projections", "feed-forward", "experts", "all-reduce", "elementwise"}


def test_eager_launches_count_an_all_reduce_once_and_nothing_drafted_is_the_baseline() -> None:
    """Launch-bound: layers and launches together last as long as all launches, all-reduces among them; nothing is
    compiled."""
    given = builders.scenario(
        "qwen3-30b-a3b", "gb200_nvl72", **{**MOE, "engine": {"tensor_parallel": 2, "cuda_graphs": False}}
    )
    costs = builders.Costs(given).iteration_costs
    device = sum(part.seconds[1] for name, part in costs.components.items() if name in LAYER_PARTS | {"eager launches"})
    assert device == pytest.approx((48 * (13 + 8 + 2) + 8) * 39.3e-6)
    # k = 0 at acceptance length 1, whatever the method says, is the autoregressive table.
    base = builders.Costs(builders.scenario()).iteration
    for method in ("none", "eagle3", "ngram"):
        chosen = {"method": method, "draft_length": 0, "acceptance_length": 1.0}
        table = builders.Costs(builders.scenario(speculation=chosen)).iteration
        assert (table.step_s == base.step_s).all()
        assert (table.attention_s == base.attention_s).all()
        assert (table.prefill_s == base.prefill_s).all()
        assert table.tokens_per_sequence == 1
        assert table.kv_capacity_tokens == base.kv_capacity_tokens


def test_components_add_up_to_the_table() -> None:
    costs = _costs("moe", True)
    summed = sum(part.seconds for part in costs.components.values())
    assert costs.table.step_s[1:] == pytest.approx(summed[1:])
    counters = EngineCounters(32)
    counters.count(32, 2, 1000.0)
    parts = costs.parts(counters)
    row = costs.table.attention_s[32]
    attention = np.interp(1000.0, np.arange(len(row)) * costs.table.context_step_tokens, row)
    assert sum(part.seconds for part in parts) == pytest.approx(2 * (costs.table.step_s[32] + attention), rel=1e-6)


@pytest.mark.parametrize(("model", "floor_s"), [("qwen3-8b", 36 * 1e-3), ("qwen3-30b-a3b", 48 * 1.5e-3)])
def test_a_short_prefill_takes_as_long_as_its_host(model: str, floor_s: float) -> None:
    blocks = PrefillHost(attention_s=2e-4, dense_s=8e-4, moe_s=1.3e-3, recurrent_s=1.0, indexer_s=1.0)
    inputs = builders.Costs(builders.scenario(model, engine={"name": "sglang"})).inputs.engine
    hosts = (replace(inputs.host, prefill_s=own.seconds(inputs.model, "bf16")) for own in (blocks, PrefillHost()))
    short, free = (engine_prices(replace(inputs, host=host)).table.prefill_s[0] for host in hosts)
    assert short[1] == pytest.approx(floor_s, rel=0.15)
    assert short[1] > 1.5 * free[1] and short[-1] == free[-1]


def test_full_prefills_and_absorbed_attention_are_bound_by_compute() -> None:
    blocks, card = PrefillHost(attention_s=2e-4, dense_s=1e-4, moe_s=8e-4), builders.scenario("gpt-oss-120b").model
    seconds = [blocks.seconds(card, precision) for precision in ("bf16", "mxfp4")]
    assert seconds == pytest.approx([36 * 1e-3, 36 * 3e-4])
    # 16,384 tokens of Qwen3-8B: 6.95 G layer parameters; H100 BF16 serving reaches 50 to 80 % of 989 TFLOP/s.
    table = _costs("dense").table
    rate = 2 * 6.95e9 * 16384 / table.prefill_s[0, -1]
    assert 0.4 < rate / 989e12 < 0.85
    # Sixteen copies capture 512 tokens each: 4,096 sequences still replay.
    shape = {"attention_data_parallel": 16, "max_running_sequences": 4096}
    given = builders.deepseek(engine=shape, workload={"prompts_per_step": 4096})
    costs = builders.Costs(given).iteration_costs
    assert len(costs.table.step_s) > 4000
    assert "eager launches" not in costs.components
    # DeepSeek-V3 with 128 heads on one GPU: 512 rows share one latent vector, far above the machine balance.
    given = builders.layers(builders.deepseek(engine={"attention_data_parallel": 16}))
    sequences, context = np.array([[1024.0]]), np.array([[16384.0]])
    once, verify = (given.cached_attention(sequences, context, q) for q in (1, 4))
    assert float(verify.seconds[0, 0]) > 1.2 * float(once.seconds[0, 0])
    assert verify.bound == "compute"


def test_published_decode_iterations_of_llama_8b() -> None:
    """A100-80GB, vLLM 0.11.2, graphs, 2,048 tokens of context: Llama-3.1-8B 10.3, 12.6 and 14.1 ms at batch 1,
    16 and 32 (furiosa-ai/EfficientRollout@0ff0bc5, sd_toggle/configs). From datasheet rates alone: within 25 %."""
    costs = _costs("no tables")
    table = costs.table
    for batch, published in ((1, 10.3), (16, 12.6), (32, 14.1)):
        row = table.attention_s[batch]
        attention = np.interp(2048.0, np.arange(len(row)) * table.context_step_tokens, row)
        host = costs.components["host"].seconds[batch]
        assert 1e3 * (table.step_s[batch] + attention - host) == pytest.approx(published, rel=0.25)


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b"])
def test_verification_attention_costs_between_one_and_k_plus_one_passes(model: str) -> None:
    given = builders.layers(builders.scenario(model))
    sequences, context = np.array([[1.0], [64.0], [256.0]]), np.array([[1.0, 1000.0, 8000.0]])
    once = given.cached_attention(sequences, context, 1).seconds
    for queries in (2, 4, 8):
        verify = given.cached_attention(sequences, context, queries).seconds
        assert (verify >= once).all()
        assert (verify <= queries * once * (1 + 1e-12)).all()
    assert given.cached_attention(sequences, context, 4).seconds == pytest.approx(once, rel=0.05)


SEQUENCES = np.array([1.0, 16.0, 128.0])
CAPTURED = np.zeros(3, dtype=bool)


def _drafting(model: str = "qwen3-8b", hardware: str = "h100_sxm", **speculation: Any) -> Drafting:
    chosen = {"method": "eagle3", "draft_length": 3, "acceptance_length": 1.5, **speculation}
    given = builders.scenario(model, hardware, speculation=chosen)
    return Drafting(builders.layers(given), given.speculation, given.hardware.eager_launch_s.value)


def test_drafters_by_method_cost_their_head_or_their_host() -> None:
    card = load_card("deepseek-v3")
    for method, kind in (("eagle3", "eagle3"), ("mtp", "mtp"), ("ngram", None), ("suffix", None), ("none", None)):
        length = 0 if method == "none" else 1
        accepted = {"acceptance_length": 1.5} if length else {}
        chosen = builders.scenario(speculation={"method": "none"}).speculation.model_copy(
            update={"method": method, "draft_length": length, **accepted}
        )
        draft = draft_card(chosen, card)
        assert (draft.kind if draft else None) == kind
    # The head of a drafter of hidden size 1,024 is a quarter of one of 4,096 over the same vocabulary.
    wide = draft_model_from_card(load_card("llama-3.1-8b")).model_copy(update={"num_layers": 1})
    narrow = wide.model_copy(update={"hidden_size": 1024, "num_heads": 8, "num_kv_heads": 8, "intermediate_size": 3072})
    times = []
    for draft in (wide, narrow):
        given = _drafting(
            method="draft_model", draft=draft.model_dump(mode="json"), heterogeneous_vocabulary=True, draft_graph="one"
        )
        times.append(given.passes(np.ones(1), np.zeros(1, dtype=bool), np.zeros(1))[0].seconds[0])
    assert times[1] < 0.45 * times[0]
    drafting = _drafting(method="ngram", lookup_s_per_1k_tokens=3e-5)
    found = drafting.cached_attention(np.array([64.0]), np.array([4000.0]))
    assert found.seconds[0] == pytest.approx(64 * 4 * 3e-5)
    assert found.bound == "host"
    assert (drafting.passes(SEQUENCES, CAPTURED, SEQUENCES)[0].seconds == 0).all()
    profile = load_profile("h100_sxm")
    fabric = builders.fabric(profile)
    near = builders.scenario(engine={"pipeline_parallel": 4}).engine
    far = builders.scenario(cluster={"num_gpus": 16}, engine={"tensor_parallel": 4, "pipeline_parallel": 4}).engine
    tokens = np.array([1e5])
    inside = float(pipeline_hops(near, fabric, tokens, 4096).seconds[0])
    assert inside == pytest.approx(3 * (4.7e-6 + 1e5 * 4096 * 2 / fabric.nvlink))
    assert float(pipeline_hops(far, fabric, tokens, 4096).seconds[0]) > 5 * inside


@given(st.integers(1, 70), st.integers(1, 9), st.integers(0, 99))
def test_running_maxima_are_those_of_numpy(rows: int, columns: int, seed: int) -> None:
    values = np.random.default_rng(seed).random((rows, columns))
    for one in (values, values.T):
        assert np.array_equal(highest_so_far(one), np.maximum.accumulate(one, axis=0))


def test_a_smaller_engine_of_another_thread_takes_no_rows_from_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller one is asked first, priced last, and done before the larger one goes on."""
    scenario = builders.scenario("llama-3.1-8b", "h100_sxm", engine={"max_batched_tokens": 5555})
    large = builders.Costs(scenario).inputs.engine
    small, at_prefill, small_is_done = replace(large, max_sequences=4), Event(), Event()
    device_times, prefill = prices._device_times, prices._known_prefill
    threads, found = [], []

    def priced(inputs: prices.EngineInputs) -> Any:
        if inputs is small:
            threads.append(Thread(target=lambda: found.append(prices.engine_times(large))))
            threads[0].start()
            assert at_prefill.wait(60)
        return device_times(inputs)

    def waiting(engine: Drafting, max_sequences: int, prompt: float) -> Any:
        if max_sequences == large.max_sequences:
            at_prefill.set()
            assert small_is_done.wait(60)
        return prefill(engine, max_sequences, prompt)

    monkeypatch.setattr(prices, "_device_times", priced)
    monkeypatch.setattr(prices, "_known_prefill", waiting)
    assert len(prices.engine_times(small).table.step_s) == 5
    small_is_done.set()
    threads[0].join()
    assert np.array_equal(found[0].table.step_s, engine_prices(large).table.step_s)
