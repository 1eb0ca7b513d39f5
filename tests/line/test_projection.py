"""project(): what adds up, what is paired, what is deterministic, what the intervals hold."""

import gc
import math
import re
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import baseline_of, project
from rlsim.projection.summary import phase_parts, speedups, step_values, timed, variant_of
from rlsim.projection.variant import simulate_variant
from rlsim.results import PHASES, Interval, Projection, Variant
from rlsim.results.record import interval, student_t95, widened
from rlsim.schema.scenario import Scenario
from rlsim.simulation import run as driver

SYNC = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s")
ASYNC = ("exposed_generation_s", "data_s", "logprob_s", "train_s", "refit_s")
SMALL = ("workload.prompts_per_step=16", "workload.generations_per_prompt=8", "trainer.global_batch_samples=128")
LAGGED = ("cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async", "simulation.steps=2")
SCENARIOS = ("quickstart", "qwen8b_rl_zero", "qwen8b_rl_think", "qwen8b_async_lag1", "qwen235b_512", "qwen235b_2048")


def scenario(*overrides: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, "simulation.replications=2", *overrides])


def lagged(*overrides: str) -> Scenario:
    return scenario(*LAGGED, "loop.policy_lag=1", "simulation.warmup_steps=2", *overrides)


@pytest.fixture(scope="module")
def sync() -> Projection:
    return project(scenario())


@pytest.fixture(scope="module")
def asynchronous() -> Projection:
    return project(lagged())


def both(made: Projection) -> tuple[Variant, Variant]:
    return made.baseline, made.candidate


def test_a_price_that_a_scenario_states_is_not_assumed():
    plain, own = (
        project(scenario(*keys)).price_source for keys in ((), ("hardware.price_per_gpu_hour_usd.value=2.2",))
    )
    assert "assum" in plain.lower() and own == "stated by the scenario"


def test_decoding_beyond_the_budget_of_an_iteration_is_told():
    """16 sequences on a replica with 4 tokens each."""
    warnings = (project(scenario(f"engine.max_batched_tokens={most}")).warnings for most in (60, 64))
    told = [any("max_batched_tokens" in text for text in found) for found in warnings]
    assert told == [True, False]


def test_phases_add_up_to_the_step(sync, asynchronous):
    for arm in both(sync):
        assert sum(arm.phases[name].mean for name in SYNC) == pytest.approx(arm.step_s.mean, rel=1e-12)
        assert arm.phases["exposed_generation_s"] == arm.phases["generation_s"]
        assert arm.phases["refit_s"].mean <= arm.phases["prepare_s"].mean
    for arm in both(asynchronous):
        assert sum(arm.phases[name].mean for name in ASYNC) == pytest.approx(arm.step_s.mean, rel=1e-12)
        assert arm.phases["prepare_s"].mean == 0.0
        assert arm.staleness == {1: 1.0}


@pytest.mark.parametrize("made", ["sync", "asynchronous"])
def test_parts_add_up_intervals_hold_their_means_and_speedups_are_ratios_of_the_times_shown(made, request):
    answer = request.getfixturevalue(made)
    for arm in both(answer):
        sums: dict[str, float] = {}
        for share in arm.parts:
            sums[share.phase] = sums.get(share.phase, 0.0) + share.seconds
        phases = set(SYNC if made == "sync" else ASYNC) - {"exposed_generation_s"} | {"generation_s"}
        assert sums == pytest.approx({name: arm.phases[name].mean for name in phases})
    for arm in both(answer):
        phases = (value for _, value in arm.phases.items())
        for quantity in (arm.step_s, arm.acceptance_length, arm.tokens_per_s_per_gpu, *phases):
            assert 0 <= quantity.low <= quantity.mean <= quantity.high
        assert tuple(arm.phases) == PHASES
        assert sum(arm.staleness.values()) == pytest.approx(1.0)
    for quantity in (answer.rollout_speedup, answer.end_to_end_speedup):
        assert 0 < quantity.low < quantity.mean < quantity.high
    assert sum(asdict(answer.provenance).values()) == pytest.approx(1.0)
    assert all(0 <= share <= 1 for share in asdict(answer.provenance).values())
    before, after = both(answer)
    assert answer.end_to_end_speedup.mean == pytest.approx(before.step_s.mean / after.step_s.mean)
    rollout = before.phases["generation_s"].mean / after.phases["generation_s"].mean
    assert answer.rollout_speedup.mean == pytest.approx(rollout)


@pytest.mark.parametrize("keys", [("speculation={method: none}",), ("speculation={method: eagle3, draft_length: 0}",)])
@pytest.mark.parametrize("make", [scenario, lagged])
def test_nothing_drafted_is_the_baseline(keys, make):
    made = project(make(*keys))
    assert made.candidate == made.baseline
    assert made.candidate.method == "none"
    assert made.rollout_speedup == made.end_to_end_speedup == Interval(1.0, 1.0, 1.0)


def test_both_arms_meet_the_same_batches_and_share_their_errors(sync):
    other = project(scenario("speculation={method: ngram, draft_length: 4, acceptance_length: 1.6}"))
    assert other.baseline == sync.baseline
    assert other.candidate.step_s != sync.candidate.step_s
    frame = sync.to_frame()
    assert frame.loc["generation", ("candidate", "high")] == sync.candidate.phases.generation_s.high
    assert frame.loc["step", ("baseline", "mean")] == sync.baseline.step_s.mean
    assert f"{sync.candidate.step_s.mean:.1f}" in sync._repr_html_()
    # Both sides share model, device, software and all but generation; drafting alone is the candidate's.
    before, after = both(sync)
    rollout, step = (np.log(one.high / one.low) for one in (sync.rollout_speedup, sync.end_to_end_speedup))
    apart = np.log(before.step_s.high / before.step_s.low) + np.log(after.step_s.high / after.step_s.low)
    assert 0.05 < step < 0.75 * apart
    assert step < rollout
    chosen = lagged("loop.policy_lag=2")
    runs = [simulate_variant(variant) for variant in (baseline_of(chosen), chosen)]
    for before, after in zip(*(run.steps for run in runs), strict=True):
        assert [s.step for s in before] == [s.step for s in after] == [2, 3]
        assert [s.generated_tokens for s in before] == [s.generated_tokens for s in after]
        assert [s.phases["train_s"] for s in before] == [s.phases["train_s"] for s in after]
    tokens = [[s.generated_tokens for s in steps] for steps in runs[0].steps]
    assert len({*tokens[0], *tokens[1]}) == 4
    plain, trained = (project(scenario(f"speculation.online_training={t}")) for t in ("false", "true"))
    assert trained.baseline == plain.baseline
    assert trained.candidate.phases["train_s"].mean > plain.candidate.phases["train_s"].mean
    assert trained.candidate.phases["generation_s"] == plain.candidate.phases["generation_s"]


@pytest.mark.parametrize("make", [scenario, lagged])
def test_same_seed_same_bytes_other_seed_other_bytes(make):
    first, again, other = (project(make(f"simulation.seed={seed}")).to_json() for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize(("keys", "total"), [((), 4), (("speculation={method: none}",), 2)])
def test_progress_counts_to_the_end(keys, total):
    calls: list[tuple[int, int]] = []
    project(scenario(*keys), lambda done, of: calls.append((done, of)))
    assert calls == [(done, total) for done in range(1, total + 1)]


def test_steps_and_cycles_are_single_values_and_rewards_their_own_part():
    for lag, values in ((1, 4), (2, 2)):
        chosen = lagged(f"loop.policy_lag={lag}", "simulation.steps=4", "simulation.replications=1")
        run = simulate_variant(chosen)
        found = step_values(run, lambda s: s.seconds)
        assert len(found) == values
        assert variant_of(run, phase_parts(run)).step_s.mean == pytest.approx(sum(found) / values)
    chosen = lagged("loop.policy_lag=2", "simulation.steps=4", "simulation.warmup_steps=3", "simulation.replications=1")
    run = simulate_variant(chosen)
    rate = variant_of(run, phase_parts(run)).tokens_per_s_per_gpu
    cycles = [run.steps[0][:2], run.steps[0][2:]]
    expected = [sum(s.total_tokens for s in cycle) / sum(s.seconds for s in cycle) / 8 for cycle in cycles]
    assert rate.mean == pytest.approx(sum(expected) / 2)
    chosen = scenario("workload.environment_s=40", "simulation.replications=1", "speculation={method: none}")
    arm, plain = project(chosen).candidate, project(vary(chosen, "workload.environment_s=0")).candidate
    parts = {share.name: share.seconds for share in arm.parts if share.phase == "generation_s"}
    assert parts.pop("environment") == pytest.approx(40.0)
    assert parts == pytest.approx({s.name: s.seconds for s in plain.parts if s.phase == "generation_s"})
    # Rates of the engine are of its own time: rewards are none of it.
    assert arm.statistics.tokens_per_s == pytest.approx(plain.statistics.tokens_per_s)
    assert arm.statistics.iterations_per_s == pytest.approx(plain.statistics.iterations_per_s)
    idle = timed(simulate_variant(scenario()))
    nothing = replace(idle, step=replace(idle.step, mean=0.0))
    assert speedups(idle, nothing)[1].interval == Interval(1.0, 1.0, 1.0)
    assert any("warmup_steps" in text for text in project(lagged("simulation.warmup_steps=0")).warnings)
    assert not any("warmup_steps" in text for text in project(lagged()).warnings)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_the_host_of_a_lookup_is_not_called_attention(method):
    made = project(scenario(f"speculation={{method: {method}, draft_length: 4, acceptance_length: 1.6}}"))
    lookup = [s for s in made.candidate.parts if s.name == "context look-up"]
    assert [share.bound for share in lookup] == ["host"]
    assert "draft attention" not in {s.name for s in made.candidate.parts}


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled, monkeypatch):
    seen: list[bool] = []
    monkeypatch.setattr(driver, "run_synchronous", lambda *args: (seen.append(gc.isenabled()), 1 / 0))
    chosen: Any = scenario()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError):
            project(chosen)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert seen == [False]


def test_a_trace_cut_at_the_cap_is_told_with_its_share(tmp_path):
    (tmp_path / "lengths.csv").write_text("prompt_id,output_tokens\n1,100\n2,9000\n")
    keys = ["simulation.replications=1", "workload.response_tokens.kind=trace"]
    path = f"workload.response_tokens.path={tmp_path / 'lengths.csv'}"
    warnings = project(load_scenario("quickstart", [*keys, path])).warnings
    share = int(re.match(r"(\d+) % of the responses are longer than .* = 4,096 leaves", warnings[0])[1])
    assert share == pytest.approx(50, abs=8)
    assert "prompt_id of" in warnings[1] and "workload.group_correlation = 0.3" in warnings[1]


SAID = ("what the RL framework adds is nemo_rl's of vllm 0.17.1",
        "of the operator tables' speed (fitted: nemo_rl; trainer.device_efficiency)")  # fmt: skip
"""What the plain scenario rests on."""
SAID_OF = {
    ("engine.host_iteration_s=0.002",): "engine.host_sequence_s; stated)",
    ("trainer.device_efficiency=0.5",): "Training products reach 50 % of the operator tables' speed (stated;",
    ("trainer.stack=megatron_bridge-26.06",): "nemo_rl-0.7, trainer megatron_bridge-26.06 (stack), vllm 0.20.0",
    ("engine.name=sglang", "engine.version=0.5.3"): "with 1.1 ms because no iteration is prepared ahead (engine.async_",
    ("trainer.rank_balance=tokens",): "by work",
    ("trainer.rank_balance=samples",): "in their order",
    ("trainer.optimizer_on_host=true",): "at 38.4 GB/s of state, gradients and weights for each GPU (assumed",
    ("trainer.optimizer_on_host=true", "trainer.host_memory_bytes_per_s=5e10"): "at 50 GB/s of state",
    ("trainer.optimizer_on_host=true", "trainer.optimizer_step=device"): "over the host link of 64 GB/s",
    ("engine.migration=cheaper",): "Replicas that run dry take half",
    ("workload.agent={max_turns: 2}", "engine.kv_offload.capacity_bytes=1e11"): "a store of 93.1 GiB a GPU",
    ("workload.agent={max_turns: 2}", "engine.kv_offload={capacity_bytes: 1e11, prefetch: true}"): "Loads begin with",
    ("loop.refit_framework=other",): "as software that nobody names does it",
    ("cluster.reference_gpus=2", "trainer.reference_logprobs=true"): "has 2 GPUs of its own",
}
"""What an override makes an answer rest on."""


@pytest.mark.parametrize("overrides", SAID_OF, ids=" ".join)
def test_an_answer_says_what_it_rests_on(overrides: tuple[str, ...], sync: Projection) -> None:
    told = project(scenario("simulation.replications=1", *overrides)).assumptions
    assert sum(SAID_OF[overrides] in text for text in told) == 1
    assert not any(SAID_OF[overrides] in text for text in sync.assumptions)
    plain = " ".join(sync.assumptions)
    assert all(said in plain for said in SAID) and "trainer.rank_balance" not in plain


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 10, 15, 31, 100, 10_000])
def test_student_t_agrees_with_scipy(degrees):
    tolerance = 1e-9 if degrees <= 2 else 3e-3
    assert student_t95(degrees) == pytest.approx(stats.t.ppf(0.95, degrees), rel=tolerance)


def test_intervals_of_replications_are_students():
    values = [10.0, 12.0, 9.0, 11.5, 10.5]
    found = interval(values)
    half = stats.t.ppf(0.95, 4) * np.std(values, ddof=1) * math.sqrt(1 + 1 / 5)
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.high - found.mean, found.mean - found.low) == pytest.approx((half, half), rel=3e-3)
    rng = np.random.default_rng(1)
    draws = rng.normal(100.0, 5.0, (4000, 5))
    covered = sum(q.low <= row[4] <= q.high for row in draws for q in [interval(row[:4].tolist())])
    low, high = stats.binom.interval(0.999, 4000, 0.9)
    assert low <= covered <= high
    assert interval([3.0]) == Interval(3.0, 3.0, 3.0)
    assert interval([3.0] * 5) == Interval(3.0, 3.0, 3.0)
    assert interval([1.0, 100.0]).low == 0.0
    assert interval([1.0, 100.0], floor=-math.inf).low < 0.0


def test_widths_add_in_squares_of_the_logarithm_and_a_lower_end_at_zero_stays_there():
    found = widened(Interval(10.0, 10.0, 10.0), 0.15)
    factor = math.exp(stats.norm.ppf(0.95) * 0.15)
    assert (found.low, found.mean, found.high) == pytest.approx((10 / factor, 10.0, 10 * factor))
    model = stats.norm.ppf(0.95) * 0.2
    found = widened(Interval(10.0, 10 / math.exp(0.3), 10 * math.exp(0.4)), 0.2)
    assert math.log(10.0 / found.low) == pytest.approx(math.hypot(0.3, model))
    assert math.log(found.high / 10.0) == pytest.approx(math.hypot(0.4, model))
    found = widened(Interval(5.0, 0.0, 12.0), 0.1)
    assert found.low == 0.0
    assert found.high > 12.0


@pytest.mark.parametrize("quantity", [Interval(0.0, 0.0, 0.0), Interval(0.0, 0.0, 1.0)])
def test_what_is_zero_stays_zero(quantity):
    assert widened(quantity, 0.3) == quantity
