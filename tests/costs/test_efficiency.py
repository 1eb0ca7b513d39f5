"""MFU, HFU and bandwidth use: counted work against formulas, and shares that move as they must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlsim
from research.efficiency import efficiency_table
from rlsim.costs.efficiency import (
    forward_flops,
    iteration_bytes,
    logprob_flops,
    passed_weights,
    peak_flops,
    update_flops,
)
from rlsim.costs.memory import engine_memory
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario
from rlsim.projection.efficiency import measured_beside
from rlsim.report.text.projection import render

FEW = ["simulation.replications=1"]
ROOT = Path(__file__).parents[2]


def of(name: str, *overrides: str) -> dict[str, object]:
    answer = rlsim.project(load_scenario(name, [*FEW, *overrides]))
    return {one.phase: one for one in answer.candidate.efficiency}


def test_weights_that_a_token_passes() -> None:
    dense, experts = load_card("llama-3.1-8b"), load_card("qwen3-235b-a22b")
    assert passed_weights(dense) == pytest.approx(7.50e9, rel=0.01)
    assert passed_weights(experts) == pytest.approx(22e9, rel=0.05)
    tied = load_card("qwen3-0.6b")
    assert tied.tied_embeddings
    assert passed_weights(tied) == pytest.approx(0.6e9, rel=0.05)


def test_recomputation_and_padding_are_hardware_work_alone() -> None:
    tokens = np.full(512, 900.0)
    plain, full, padded = (
        update_flops(load_scenario("quickstart", [f"trainer.{key}"]), tokens)
        for key in ("recompute=none", "recompute=full", "sequence_packing=false")
    )
    assert plain.model == plain.hardware == full.model == padded.model
    assert full.hardware == pytest.approx(4 / 3 * full.model)
    assert padded.hardware > 4 * padded.model


def test_adapters_and_passes() -> None:
    tokens = np.full(512, 900.0)
    scenario = load_scenario("quickstart", ["trainer.lora_rank=32"])
    once = forward_flops(scenario.model, tokens)
    assert update_flops(scenario, tokens).model == pytest.approx(2 * once)
    alone = load_scenario("quickstart", ["trainer.reference_logprobs=false", "trainer.policy_logprobs=true"])
    assert logprob_flops(alone, tokens).model == pytest.approx(once)


def test_an_iteration_reads_its_weights_and_caches() -> None:
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


def test_shares_are_shares() -> None:
    for name in ("quickstart", "qwen235b_512", "qwen8b_async_lag1", "verl_dapo_7b"):
        for one in of(name).values():
            assert 0 < one.mfu <= one.hfu < 1  # type: ignore[attr-defined]
            assert one.bandwidth_use is None or 0 < one.bandwidth_use < 1  # type: ignore[attr-defined]


def test_mfu_is_work_over_time_over_peak() -> None:
    answer = rlsim.project(load_scenario("quickstart", [*FEW, "k=0"]))
    train = next(one for one in answer.candidate.efficiency if one.phase == "train_s")
    scenario = load_scenario("quickstart")
    tokens = train.tokens_per_s_per_gpu * 8 * answer.candidate.phases.train_s.mean
    assert tokens == pytest.approx(answer.candidate.tokens_per_s_per_gpu.mean * 8 * answer.candidate.step_s.mean)
    least = 6 * passed_weights(scenario.model) * tokens
    done = train.mfu * 8 * peak_flops(scenario, True) * answer.candidate.phases.train_s.mean
    assert least < done < 1.1 * least


def test_drafts_read_less_and_compute_more() -> None:
    plain, drafted = of("quickstart", "k=0")["generation_s"], of("quickstart")["generation_s"]
    assert drafted.tokens_per_s_per_gpu > plain.tokens_per_s_per_gpu  # type: ignore[attr-defined]
    assert drafted.hfu / drafted.mfu > 1.2  # type: ignore[attr-defined]
    assert plain.hfu == pytest.approx(plain.mfu, rel=0.02)  # type: ignore[attr-defined]


def test_the_table_of_measured_runs_is_that_of_the_published_tables() -> None:
    written = efficiency_table()
    assert written == (ROOT / "calibration" / "efficiency.csv").read_text()


def test_measured_runs_stand_beside() -> None:
    found = measured_beside(load_scenario("quickstart"))
    assert {one.device for one in found} == {"h100_sxm"}
    assert {one.model for one in found if one.phase == "train"} == {"Llama-3.1-8B"}
    assert {one.model for one in found if one.phase == "decode"} == {"any"}
    assert all(0 < one.median <= one.best <= 1.05 for one in found)
    told = render(rlsim.project(load_scenario("quickstart", FEW)))
    assert "train MFU 41 %, at best 41 % (Llama-3.1-8B, bf16, 3)" in " ".join(told.split())
