"""One cell: a scenario to its numbers, or to the reason why it has none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from rlsim.errors import Infeasible, InputError
from rlsim.loading import scenario_digest
from rlsim.planning.objective import cost_usd, energy_j
from rlsim.planning.results import CellNumbers, CellResult
from rlsim.planning.variation import Overrides, varied
from rlsim.projection import baseline_of
from rlsim.results import Interval, Variant
from rlsim.schema.scenario import Scenario
from rlsim.simulated import SimulatedVariant, simulate_variant
from rlsim.summary import generation_error, phase_parts, speedups, step_values, variant_of

BASELINES_KEPT = 256

STEP_PHASES = {
    "sync": ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s"),
    "async": ("exposed_generation_s", "data_s", "logprob_s", "train_s", "refit_s"),
}
"""Phases that add up to a step."""


@dataclass(frozen=True)
class VariantTimes:
    """Seconds of one arm and its summary.

    step_s, generation_s: by measured step, or cycle of steps, so that entries of equal index share their drawn work.
    step_error, speedup_error: standard deviations of the logarithm of a predicted time and of a predicted speed-up.
    """

    step_s: tuple[float, ...]
    generation_s: tuple[float, ...]
    arm: Variant
    step_error: float
    speedup_error: float


def simulate(scenario: Scenario) -> VariantTimes:
    """Simulate one arm over the scenario's replications. Raises Infeasible and InputError."""
    return _times(simulate_variant(scenario))


def _times(run: SimulatedVariant) -> VariantTimes:
    step = step_values(run, lambda record: record.seconds)
    generation = step_values(run, lambda record: record.phases.generation_s)
    errors = run.prices.overheads
    return VariantTimes(
        tuple(step),
        tuple(generation),
        variant_of(run, phase_parts(run)),
        errors.step_error,
        generation_error(run, errors.speedup_error),
    )


def baseline_times(scenario: Scenario) -> VariantTimes:
    """The autoregressive arm of ``scenario``, simulated once for all cells that share it."""
    return _simulated_baseline(baseline_of(scenario))


@lru_cache(maxsize=BASELINES_KEPT)
def _simulated_baseline(baseline: Scenario) -> VariantTimes:
    return simulate(baseline)


def evaluate(scenario: Scenario, with_baseline: bool = True) -> CellResult:
    """Numbers of ``scenario`` against its baseline on the same drawn work, or why it cannot run."""
    try:
        before = baseline_times(scenario) if with_baseline or not scenario.speculation.active else None
        after = simulate(scenario) if scenario.speculation.active or before is None else before
    except Infeasible as error:
        return CellResult("infeasible", str(error).removeprefix("infeasible: "), infeasible=error)
    except InputError as error:
        return CellResult("invalid", str(error))
    return CellResult("ok", "", _numbers(scenario, before if with_baseline else None, after))


def evaluate_overrides(base: Scenario, overrides: Overrides, with_baseline: bool = True) -> CellResult:
    """:func:`evaluate` of ``base`` with ``overrides``; what makes no sense is the result's reason."""
    try:
        scenario = varied(base, overrides)
    except InputError as error:
        return CellResult("invalid", _bare(str(error)))
    return evaluate(scenario, with_baseline)


def step_s_of(task: tuple[Scenario, Overrides]) -> float:
    """Step time of a varied scenario on one drawn workload, in seconds; NaN where it cannot run."""
    base, overrides = task
    result = evaluate_overrides(base, {**overrides, "simulation.replications": 1}, with_baseline=False)
    return math.nan if result.numbers is None else result.numbers.step_s.mean


def _bare(message: str) -> str:
    """A validation message without the list of overrides in front of it."""
    _, marker, rest = message.partition(": ")
    return rest if marker and message.startswith("scenario '") else message


def _numbers(scenario: Scenario, before: VariantTimes | None, after: VariantTimes) -> CellNumbers:
    cluster, arm = scenario.cluster, after.arm
    memory = {use.pool: use.total_bytes for use in arm.memory}
    rollout, end_to_end = (None, None) if before is None else speedups_over(before, after)
    return CellNumbers(
        num_gpus=cluster.num_gpus,
        generation_gpus=cluster.generation,
        training_gpus=cluster.training,
        method=arm.method,
        draft_length=arm.draft_length,
        acceptance_length=arm.acceptance_length.mean,
        policy_lag=scenario.loop.policy_lag,
        step_s=arm.step_s,
        **{name: quantity.mean for name, quantity in arm.phases.items()},
        tokens_per_s=arm.tokens_per_s_per_gpu.mean * cluster.num_gpus,
        tokens_per_s_per_gpu=arm.tokens_per_s_per_gpu.mean,
        cost_per_step_usd=cost_usd(scenario, arm.step_s.mean),
        energy_per_step_j=energy_j(scenario, arm.step_s.mean),
        generation_memory_bytes=memory["generation"],
        training_memory_bytes=memory["training"],
        limit=limit_of(scenario, arm),
        baseline_step_s=None if before is None else before.arm.step_s.mean,
        baseline_cost_per_step_usd=None if before is None else cost_usd(scenario, before.arm.step_s.mean),
        rollout_speedup=rollout,
        end_to_end_speedup=end_to_end,
        digest=scenario_digest(scenario),
    )


def speedups_over(before: VariantTimes, after: VariantTimes) -> tuple[Interval, Interval]:
    """Rollout and end-to-end speed-up of ``after`` over ``before`` on the same drawn work, with the model's error.

    One arm beside itself has none.
    """
    error = 0.0 if before is after else after.speedup_error
    return speedups((before.generation_s, after.generation_s), (before.step_s, after.step_s), error)


def limit_of(scenario: Scenario, arm: Variant) -> str:
    """The longest phase of the step and its largest part, such as ``generation: experts (memory)``."""
    phase = max(STEP_PHASES[scenario.loop.mode], key=lambda name: arm.phases[name].mean)
    shown = "generation_s" if phase == "exposed_generation_s" else phase
    parts = [share for share in arm.parts if share.phase == shown]
    if not parts:
        return shown.removesuffix("_s")
    largest = max(parts, key=lambda share: share.seconds)
    return f"{shown.removesuffix('_s')}: {largest.name} ({largest.bound})"
