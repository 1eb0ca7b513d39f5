"""Whole scenarios: slower hardware never helps, measured tables scale with the profile, phases are consistent."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlsim
from research.efficiency import efficiency_table
from rlsim.costs.efficiency import (
    forward_flops,
    generation_flops,
    iteration_bytes,
    logprob_flops,
    peak_flops,
    update_flops,
)
from rlsim.costs.memory import engine_memory
from rlsim.costs.operators.model_work import token_flops
from rlsim.costs.prices import PriceInputs
from rlsim.errors import InputError
from rlsim.files.lookup import catalogue
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario
from rlsim.projection.efficiency import measured_beside
from rlsim.projection.variant import simulate_variant
from rlsim.report.text.projection import render
from rlsim.schema.model import parameter_counts
from rlsim.tables.profile import load_profile
from rlsim.units import BYTES_PER_ELEMENT

EAGLE = {"speculation": {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.5}}
NGRAM = {"speculation": {"method": "ngram", "draft_length": 5, "acceptance_length": 2.0}}
MTP = {"speculation": {"method": "mtp", "draft_length": 1, "acceptance_length": 1.8}}
SCENARIOS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("qwen3-8b", "h100_sxm", {}),
    "eagle": ("llama-3.1-8b", "h200_sxm", {**EAGLE, "engine": {"tensor_parallel": 2, "cuda_graphs": False}}),
    "split": (
        "qwen3-32b", "h100_sxm",
        {**NGRAM, "cluster": {"num_gpus": 32, "generation_gpus": 16, "training_gpus": 16},
         "engine": {"tensor_parallel": 4, "pipeline_parallel": 2, "async_scheduling": True},
         "trainer": {"tensor_parallel": 4, "pipeline_parallel": 2, "context_parallel": 2}},
    ),
    "moe": (
        "qwen3-30b-a3b", "gb200_nvl72",
        {**EAGLE, "cluster": {"num_gpus": 16},
         "engine": {"tensor_parallel": 4, "expert_parallel": 4, "weight_precision": "fp8", "kv_precision": "fp8"},
         "trainer": {"expert_parallel": 8, "tensor_parallel": 2, "moe_host_layer_s": 0.0001}},
    ),
    "latent": (
        "deepseek-v3", "gb200_nvl72",
        {
            **MTP,
            "cluster": {"num_gpus": 128},
            "engine": {"tensor_parallel": 16, "expert_parallel": 16, "attention_data_parallel": 8,
                       "weight_precision": "fp8"},
            "trainer": {"expert_parallel": 16, "pipeline_parallel": 8, "moe_host_layer_s": 0.0},
        },
    ),
    "fsdp": ("llama-3.1-8b", "b200_sxm", {"trainer": {"backend": "fsdp"}, "cluster": {"num_gpus": 16}}),
    "pinned": ("qwen3-8b", "h100_sxm", {"loop": {"offload_memory": "pinned"}}),
}  # fmt: skip


@lru_cache(maxsize=64)
def _costs(name: str, tables: bool, key: str = "", factor: float = 1.0) -> builders.Costs:
    model, hardware, sections = SCENARIOS[name]
    profile = load_profile(hardware) if tables else builders.without_tables(hardware)
    return builders.Costs(
        builders.scenario(model, builders.scaled(profile, key, factor) if key else profile, **sections)
    )


def _everything(costs: builders.Costs, mean: float) -> dict[str, np.ndarray]:
    table = costs.iteration
    lengths = np.random.default_rng(1).integers(100, int(mean), 256).astype(float)
    mixed = table.step_s[table.prefill_sequences.astype(int)][:, None] + table.prefill_s
    out = {name: np.array(phase.seconds) for name, phase in costs.phases(lengths).items()}
    return out | {"step": table.step_s, "attention": table.step_s[:, None] + table.attention_s, "mixed": mixed}


@settings(max_examples=40)
@given(st.sampled_from(sorted(SCENARIOS)), st.booleans(), st.sampled_from(builders.RATES),
       st.sampled_from([0.5, 0.25, 0.9]), st.integers(200, 4000))  # fmt: skip
def test_less_of_any_rate_never_speeds_anything_up(name: str, tables: bool, key: str, factor: float, mean: int) -> None:
    before = _everything(_costs(name, tables), mean)
    after = _everything(_costs(name, tables, key, factor), mean)
    for what, seconds in before.items():
        assert (after[what] >= seconds * (1 - 1e-9)).all(), what


def test_one_sample_is_accepted_the_table_covers_all_and_unknown_ones_are_named() -> None:
    costs = _costs("dense", True)
    assert costs.step(np.array([100.0])).train.seconds > 0
    assert costs.step(np.array([1.0])).logprob.seconds > 0
    several = builders.Costs(builders.scenario(trainer={"global_batch_samples": 64, "recompute": "full"}))
    updates = [sum(part.seconds for part in each.step(np.full(256, 900.0)).train.parts if part.name == "optimizer")
               for each in (several, costs)]  # fmt: skip
    assert updates[0] == pytest.approx(4 * updates[1])
    assert len(costs.iteration.step_s) - 1 >= 256 // 8
    capped = builders.Costs(builders.scenario(engine={"max_running_sequences": 4}))
    assert len(capped.iteration.step_s) - 1 == 4
    profile = load_profile("h100_sxm").model_copy(update={"operator_tables": "h101"})
    with pytest.raises(InputError, match="h101"):
        _ = PriceInputs(builders.scenario(hardware=profile)).device


def test_log_prob_passes_are_counted_batches_go_through_one_driver_and_rewards_last_as_they_say() -> None:
    lengths = np.full(256, 1000.0)
    both, policy, none = (
        builders.Costs(
            builders.scenario(trainer={"policy_logprobs": own, "reference_logprobs": reference, "recompute": "full"})
        )
        .step(lengths)
        .logprob
        for own, reference in ((True, True), (True, False), (False, False))
    )
    assert none.seconds == 0
    swap = sum(part.seconds for part in both.parts if part.name == "reference swap")
    assert both.seconds - swap == pytest.approx(2 * policy.seconds)
    # Seconds that do not shrink with GPUs: samples x longest sequence x 32, 48 and 60 bytes over the rate.
    lengths, loop = np.full(256, 1000.0), {"driver_bytes_per_s": 1e8}
    plain = builders.Costs(builders.scenario()).step(lengths)
    driven = builders.Costs(builders.scenario(loop=loop, workload={"batch_reward_s": 7.0})).step(lengths)
    positions = 256 * builders.scenario().workload.max_sequence_tokens
    assert driven.logprob.seconds - plain.logprob.seconds == pytest.approx(positions * 48 / 1e8)
    assert driven.train.seconds - plain.train.seconds == pytest.approx(positions * 60 / 1e8)
    assert driven.data.seconds - plain.data.seconds == pytest.approx(7.0 + positions * 32 / 1e8)


FEW = ["simulation.replications=1"]
ROOT = Path(__file__).parents[2]


def of(name: str, *overrides: str) -> dict[str, object]:
    answer = rlsim.project(load_scenario(name, [*FEW, *overrides]))
    return {one.phase: one for one in answer.candidate.efficiency}


def test_passed_weights_count_once_adapters_train_none_and_recomputation_and_padding_are_hardware_work() -> None:
    dense, experts = load_card("llama-3.1-8b"), load_card("qwen3-235b-a22b")
    assert token_flops(dense) / 2 == pytest.approx(7.50e9, rel=0.01)
    assert token_flops(experts) / 2 == pytest.approx(22e9, rel=0.05)
    tied = load_card("qwen3-0.6b")
    assert tied.tied_embeddings
    assert token_flops(tied) / 2 == pytest.approx(0.6e9, rel=0.05)
    tokens = np.full(512, 900.0)
    plain, full, padded = (update_flops(load_scenario("quickstart", [f"trainer.{key}"]), tokens)
                           for key in ("recompute=none", "recompute=full", "sequence_packing=false"))  # fmt: skip
    assert plain.model == plain.hardware == full.model == padded.model
    assert full.hardware == pytest.approx(4 / 3 * full.model)
    assert padded.hardware == padded.model
    uneven = np.where(np.arange(512) < 500, 900.0, 3600.0)
    longest = update_flops(load_scenario("quickstart", ["trainer.sequence_packing=false"]), uneven)
    assert longest.hardware == update_flops(load_scenario("quickstart"), np.full(512, 3600.0)).model
    apart = ["trainer.reference_logprobs=true", "simulation.replications=1"]
    one, two = (load_scenario("quickstart", [*apart, f"cluster.reference_gpus={n}"]) for n in (0, 2))
    assert logprob_flops(one, tokens).model == pytest.approx(2 * logprob_flops(two, tokens).model)
    ppo = load_scenario("quickstart", ["trainer.critic=true", "trainer.epochs=1"])
    assert 1.8 < update_flops(ppo, tokens).model / plain.model < 2
    scenario = load_scenario("quickstart", ["trainer.lora_rank=32"])
    once = forward_flops(scenario.model, tokens)
    assert update_flops(scenario, tokens).model == pytest.approx(2 * once)
    alone = load_scenario("quickstart", ["trainer.reference_logprobs=false", "trainer.policy_logprobs=true"])
    assert logprob_flops(alone, tokens).model == pytest.approx(once)


def test_mfu_is_work_over_time_over_peak_and_an_iteration_reads_weights_and_caches() -> None:
    scenario = load_scenario("quickstart", ["k=0"])
    memory = engine_memory(scenario).parts
    alone, many = iteration_bytes(scenario, memory, np.array([1.0, 100.0]), np.array([1000.0, 1000.0]))
    per_token = 2 * 32 * 8 * 128 * 2
    assert alone == pytest.approx(memory.weights + 1000 * per_token)
    assert many == pytest.approx(memory.weights + 100 * 1000 * per_token)
    experts = load_scenario("qwen235b_512", ["k=0"])
    few, most = iteration_bytes(
        experts, engine_memory(experts).parts, np.array([1.0, 4096.0]), np.array([0.0, 0.0])
    ) / np.array([engine_memory(experts).parts.weights] * 2)
    assert few < 0.2
    assert most == pytest.approx(1.0, rel=1e-6)
    answer = rlsim.project(load_scenario("quickstart", [*FEW, "k=0"]))
    train = next(one for one in answer.candidate.efficiency if one.phase == "train_s")
    scenario = load_scenario("quickstart")
    tokens = train.tokens_per_s_per_gpu * 8 * answer.candidate.phases.train_s.mean
    assert tokens == pytest.approx(answer.candidate.tokens_per_s_per_gpu.mean * 8 * answer.candidate.step_s.mean)
    least = 6 * token_flops(scenario.model) / 2 * tokens
    done = train.mfu * 8 * peak_flops(scenario, True) * answer.candidate.phases.train_s.mean
    assert least < done < 1.1 * least


def test_generation_counts_the_pairs_of_its_prompts_once_however_they_are_cut() -> None:
    """By the glossary: products of every token, and 4 x heads x head size for each pair of query and key."""
    few = ["k=0", "workload.prompts_per_step=8", "workload.generations_per_prompt=1", "trainer.global_batch_samples=8"]
    long = ["workload.prompt_tokens={kind: constant, tokens: 8000}", "workload.max_sequence_tokens=9000"]
    two = ["workload.response_tokens={kind: constant, tokens: 2}", *FEW]
    two += ["trainer.micro_batch_tokens=9000", "trainer.logprob_micro_batch_tokens=9000"]
    chunks = []
    for budget in (512, 16384):
        run = simulate_variant(load_scenario("quickstart", [*few, *long, *two, f"engine.max_batched_tokens={budget}"]))
        counters, card, responses = run.counters, run.scenario.model, 8 * len(run.every_step)
        assert counters.prefill_squares == responses * 8000**2
        chunks.append(counters.prefill_iterations)
        pair = 32 * 4 * 32 * 128
        expected = responses * (8001 * token_flops(card) + pair * (8000**2 / 2 + 8000))
        found = generation_flops(run.scenario, counters, responses, np.zeros(len(counters.iterations_at)))
        assert found.model == found.hardware == pytest.approx(expected, rel=1e-4)
    assert chunks[0] > 5 * chunks[1]
    for name in catalogue("scenarios", "models"):  # all that a token passes but norms, biases and convolutions
        card, counts = load_card(name), parameter_counts(load_card(name))
        assert token_flops(card) / 2 == pytest.approx(
            counts.active - (counts.embedding if counts.lm_head else 0), rel=1e-3
        )


def test_shares_are_shares_and_measured_runs_stand_beside() -> None:
    for name in ("quickstart", "qwen235b_512", "qwen8b_async_lag1", "verl_dapo_7b"):
        for one in of(name).values():
            assert 0 < one.mfu <= one.hfu < 1  # type: ignore[attr-defined]
            assert one.bandwidth_use is None or 0 < one.bandwidth_use < 1  # type: ignore[attr-defined]
    plain, drafted = of("quickstart", "k=0")["generation_s"], of("quickstart")["generation_s"]
    assert drafted.tokens_per_s_per_gpu > plain.tokens_per_s_per_gpu  # type: ignore[attr-defined]
    assert drafted.hfu / drafted.mfu > 1.2  # type: ignore[attr-defined]
    assert plain.hfu == pytest.approx(plain.mfu, rel=0.02)  # type: ignore[attr-defined]
    written = efficiency_table()
    assert written == (ROOT / "calibration" / "efficiency.csv").read_text()
    found = measured_beside(load_scenario("quickstart"))
    assert {one.device for one in found} == {"h100_sxm"}
    assert {one.model for one in found if one.phase == "train"} == {"Llama-3.1-8B"}
    assert {one.model for one in found if one.phase == "decode"} == {"any"}
    assert all(0 < one.median <= one.best <= 1.05 for one in found)
    told = render(rlsim.project(load_scenario("quickstart", FEW)))
    assert "train MFU 41 %, at best 41 % (Llama-3.1-8B, bf16, 3)" in " ".join(told.split())


TREE = (
    "draft_length=3", "tree_width=4", "verified_positions=32", "acceptance_length=2.5", "policy=off_above",
    "off_above_sequences=0",
)  # fmt: skip


def test_iterations_that_draft_nothing_verify_nothing_of_a_tree() -> None:
    words = ["engine.max_batched_tokens=512", *(f"speculation.{word}" for word in TREE)]
    one = of("quickstart", *words)["generation_s"]
    assert one.hfu == pytest.approx(one.mfu, rel=0.02)  # type: ignore[attr-defined]
    drafting = ["engine.max_batched_tokens=512", *(f"speculation.{word}" for word in TREE[:4])]
    told, silent = ([line for line in rlsim.project(load_scenario("quickstart", [*FEW, *given])).warnings
                     if "iterations decode more tokens" in line] for given in (drafting, words))  # fmt: skip
    assert told and not silent


def test_a_tier_holds_and_reads_what_its_bytes_and_its_link_allow() -> None:
    """Qwen3-8B: 36 layers of 8 KV heads of 128, keys and values; TP 2 gives a GPU half of them and so does FP8."""
    found = {}
    for name, keys in {
        "link": {"shared": True, "store_bytes_per_s": 1e11, "prefetch": True},
        "stated": {"bytes_per_s": 5e9, "latency_s": 0.2, "write": "on_eviction"},
    }.items():
        for tp, precision in ((1, "bf16"), (2, "bf16"), (1, "fp8")):
            scenario = rlsim.vary(load_scenario("coding_agent_64"), {
                "model": "qwen3-8b", "engine.tensor_parallel": tp, "engine.kv_precision": precision,
                "engine.kv_offload": {"capacity_bytes": 4e10, **keys},
            })  # fmt: skip
            found[name, tp, precision] = PriceInputs(scenario).before_work.tier
    token_bytes = 36 * 8 * 128 * 2 * BYTES_PER_ELEMENT["bf16"]
    link = 0.75 * scenario.hardware.host_link_bandwidth_bytes_per_s.value
    for tp, precision in ((1, "bf16"), (2, "bf16"), (1, "fp8")):
        own = token_bytes / (1 if (tp, precision) == (1, "bf16") else 2)
        by_link, stated = found["link", tp, precision], found["stated", tp, precision]
        assert by_link.capacity_tokens == stated.capacity_tokens == int(4e10 / own)
        assert by_link.token_s == pytest.approx(own / link)
        assert (by_link.prefetch, by_link.store_token_s) == (True, pytest.approx(own * tp / 1e11))
        assert (stated.prefetch, stated.store_token_s) == (False, 0.0)
        assert (stated.token_s, stated.latency_s, stated.through) == (pytest.approx(own / 5e9), 0.2, False)
    assert PriceInputs(load_scenario("quickstart")).before_work.tier is None
