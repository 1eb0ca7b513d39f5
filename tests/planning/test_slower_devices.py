"""A slower device is never sold: no interval of its speed-up lies above 1, and no plan on it is surely better."""

import pytest

from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning import compare, plan, sweep
from rlsim.schema.scenario import Scenario

SMALL = ("workload.prompts_per_step=8", "workload.generations_per_prompt=8", "trainer.global_batch_samples=null",
         "simulation.replications=2")  # fmt: skip
HEAVY = "workload.response_tokens={kind: lognormal, mean_tokens: 700, log_sigma: 1.4}"
AGENT = ("workload.agent={turns: {kind: lognormal, mean_turns: 6, log_sigma: 0.6}, observation_tokens: {kind: constant,"
         " tokens: 200}, environment_s: {kind: lognormal, mean_s: 4, log_sigma: 1.2}}")  # fmt: skip
STYLES = {
    "synchronous": (), "heavy tail": (HEAVY,), "in order": ("lag=1", "loop.style=nemo_rl"),
    "first done": ("lag=2", "loop.style=skyrl", HEAVY), "verl": ("lag=1", "loop.style=verl"),
    "partial": ("loop.mode=async", "loop.overlap=false", "loop.membership=first_done", "loop.recompute_kv=true",
                "loop.staleness_fraction=1.0"),
    "tail batching": ("workload.tail_batching={prompts_factor: 1.25, samples_factor: 1.25}",),
    "agent": (AGENT,), "lagged agent": (AGENT, "lag=1", "loop.style=areal"),
}  # fmt: skip
SLOWER = {
    "memory_bandwidth_bytes_per_s": 1.7e12, "bf16_flops": 5e14, "nvlink_bandwidth_bytes_per_s": 2e11,
    "host_link_bandwidth_bytes_per_s": 1.5e10,
}  # fmt: skip


def small(*more: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, *more])


@pytest.mark.parametrize(("style", "key"), [
    *((style, "memory_bandwidth_bytes_per_s") for style in ("heavy tail", "first done", "verl", "lagged agent")),
    *(("synchronous", key) for key in SLOWER),
    *(pytest.param(style, key, marks=pytest.mark.nightly) for style in STYLES for key in SLOWER),
])  # fmt: skip
def test_no_slower_device_is_surely_faster(style: str, key: str) -> None:
    scenario = small(*STYLES[style])
    found = compare(scenario, vary(scenario, f"hardware.{key}={SLOWER[key]}"))
    assert found.speedup.low <= 1.0
    assert found.b_faster < 0.95


@pytest.mark.parametrize("key", ["memory_bandwidth_bytes_per_s", "bf16_flops"])
def test_no_slower_device_has_a_surely_better_plan_or_cell(key: str) -> None:
    scenario = small()
    slow = vary(scenario, f"hardware.{key}={SLOWER[key]}")
    better, worse = (plan(one, rest=False).best.numbers for one in (scenario, slow))
    assert better is not None and worse is not None
    assert worse.step_s.high >= better.step_s.low
    assert worse.step_s.mean >= 0.99 * better.step_s.mean
    value = getattr(scenario.hardware, key).value
    cells = sweep(scenario, {f"hardware.{key}": [value, SLOWER[key]]}).to_frame()
    assert cells["step_s"].iloc[1] >= 0.99 * cells["step_s"].iloc[0]
