"""Scenarios small enough to simulate in milliseconds."""

import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.schema.scenario import Scenario

TINY = (
    "workload.prompts_per_step=8", "workload.generations_per_prompt=4", "workload.response_tokens.mean_tokens=200",
    "workload.max_sequence_tokens=1024", "trainer.global_batch_samples=32", "trainer.micro_batch_tokens=2048",
    "trainer.logprob_micro_batch_tokens=2048", "simulation.replications=3",
)  # fmt: skip
SPLIT = (
    "cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async", "loop.policy_lag=1",
    "simulation.warmup_steps=2", "simulation.steps=2",
)  # fmt: skip


@pytest.fixture(scope="session")
def tiny() -> Scenario:
    """Llama-3.1-8B with EAGLE-3 on 8 H100, 32 samples of 200 tokens."""
    return load_scenario("quickstart", TINY)


@pytest.fixture(scope="session")
def lagged() -> Scenario:
    """The same, asynchronous with lag 1 on 4 + 4 GPUs."""
    return load_scenario("quickstart", (*TINY, *SPLIT))
