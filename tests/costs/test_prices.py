"""Whole scenarios: slower hardware never helps, measured tables scale with the profile, phases are consistent."""

from functools import lru_cache
from typing import Any

import builders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsim.costs.prices import PriceInputs
from rlsim.errors import InputError
from rlsim.tables.profile import load_profile

EAGLE = {"speculation": {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.5}}
NGRAM = {"speculation": {"method": "ngram", "draft_length": 5, "acceptance_length": 2.0}}
MTP = {"speculation": {"method": "mtp", "draft_length": 1, "acceptance_length": 1.8}}
SCENARIOS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("qwen3-8b", "h100_sxm", {}),
    "eagle": ("llama-3.1-8b", "h200_sxm", {**EAGLE, "engine": {"tensor_parallel": 2, "cuda_graphs": False}}),
    "split": (
        "qwen3-32b",
        "h100_sxm",
        {
            **NGRAM,
            "cluster": {"num_gpus": 32, "generation_gpus": 16, "training_gpus": 16},
            "engine": {"tensor_parallel": 4, "pipeline_parallel": 2, "async_scheduling": True},
            "trainer": {"tensor_parallel": 4, "pipeline_parallel": 2, "context_parallel": 2},
        },
    ),
    "moe": (
        "qwen3-30b-a3b",
        "gb200_nvl72",
        {
            **EAGLE,
            "cluster": {"num_gpus": 16},
            "engine": {"tensor_parallel": 4, "expert_parallel": 4, "weight_precision": "fp8", "kv_precision": "fp8"},
            "trainer": {"expert_parallel": 8, "tensor_parallel": 2, "moe_host_layer_s": 0.0001},
        },
    ),
    "latent": (
        "deepseek-v3",
        "gb200_nvl72",
        {
            **MTP,
            "cluster": {"num_gpus": 128},
            "engine": {
                "tensor_parallel": 16,
                "expert_parallel": 16,
                "attention_data_parallel": 8,
                "weight_precision": "fp8",
            },
            "trainer": {"expert_parallel": 16, "pipeline_parallel": 8, "moe_host_layer_s": 0.0},
        },
    ),
    "fsdp": ("llama-3.1-8b", "b200_sxm", {"trainer": {"backend": "fsdp"}, "cluster": {"num_gpus": 16}}),
    "pinned": ("qwen3-8b", "h100_sxm", {"loop": {"offload_memory": "pinned"}}),
}


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
@given(
    st.sampled_from(sorted(SCENARIOS)),
    st.booleans(),
    st.sampled_from(builders.RATES),
    st.sampled_from([0.5, 0.25, 0.9]),
    st.integers(200, 4000),
)
def test_less_of_any_rate_never_speeds_anything_up(name: str, tables: bool, key: str, factor: float, mean: int) -> None:
    before = _everything(_costs(name, tables), mean)
    after = _everything(_costs(name, tables, key, factor), mean)
    for what, seconds in before.items():
        assert (after[what] >= seconds * (1 - 1e-9)).all(), what


@pytest.mark.parametrize("name", SCENARIOS)
def test_costs_are_finite_positive_and_consistent(name: str) -> None:
    costs = _costs(name, True)
    lengths = np.array([500.0, 700.0, 3000.0])
    for phase in costs.phases(lengths).values():
        assert phase.seconds > 0
        assert sum(part.seconds for part in phase.parts) == pytest.approx(phase.seconds)
        assert all(0 <= part.measured <= 1 for part in phase.parts)
    table = costs.iteration
    assert table.step_s[0] == 0
    assert (table.step_s[1:] > 0).all()
    assert np.isfinite(table.attention_s).all()
    assert (table.attention_s >= 0).all()


def test_one_sample_is_accepted_and_optimizer_steps_are_counted() -> None:
    costs = _costs("dense", True)
    assert costs.step(np.array([100.0])).train.seconds > 0
    assert costs.step(np.array([1.0])).logprob.seconds > 0
    several = builders.Costs(builders.scenario(trainer={"global_batch_samples": 64, "recompute": "full"}))
    updates = [
        sum(part.seconds for part in each.step(np.full(256, 900.0)).train.parts if part.name == "optimizer")
        for each in (several, costs)
    ]
    assert updates[0] == pytest.approx(4 * updates[1])


def test_log_prob_passes_are_counted() -> None:
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


def test_the_padded_batch_goes_through_one_driver_and_a_serial_reward_lasts_as_it_says() -> None:
    """Seconds that do not shrink with GPUs: samples x longest sequence x 32, 48 and 60 bytes over the rate."""
    lengths, loop = np.full(256, 1000.0), {"driver_bytes_per_s": 1e8}
    plain = builders.Costs(builders.scenario()).step(lengths)
    driven = builders.Costs(builders.scenario(loop=loop, workload={"batch_reward_s": 7.0})).step(lengths)
    positions = 256 * builders.scenario().workload.max_sequence_tokens
    assert driven.logprob.seconds - plain.logprob.seconds == pytest.approx(positions * 48 / 1e8)
    assert driven.train.seconds - plain.train.seconds == pytest.approx(positions * 60 / 1e8)
    assert driven.data.seconds - plain.data.seconds == pytest.approx(7.0 + positions * 32 / 1e8)


def test_table_covers_every_sequence_that_can_run() -> None:
    costs = _costs("dense", True)
    assert len(costs.iteration.step_s) - 1 >= 256 // 8
    capped = builders.Costs(builders.scenario(engine={"max_running_sequences": 4}))
    assert len(capped.iteration.step_s) - 1 == 4


def test_unknown_tables_are_named() -> None:
    profile = load_profile("h100_sxm").model_copy(update={"operator_tables": "h101"})
    with pytest.raises(InputError, match="h101"):
        _ = PriceInputs(builders.scenario(hardware=profile)).device
