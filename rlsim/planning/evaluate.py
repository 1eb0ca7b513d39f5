"""One scenario to its numbers, or to the reason why it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from rlsim.costs.engine.draft_policy import counted
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import scenario_digest, vary
from rlsim.loading.variation import Overrides
from rlsim.projection.project import baseline_of
from rlsim.projection.summary import (
    Timed,
    cost_usd,
    energy_j,
    iteration_tokens,
    mean_value,
    memory_of,
    phase_parts,
    speedups,
    timed,
    tokens_per_s_per_gpu,
)
from rlsim.projection.uncertainty.predictive import around
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.results import PHASES, Interval, PhasePart
from rlsim.results.statistics import interval
from rlsim.results.sweep import Mean, StepNumbers
from rlsim.schema.scenario import Scenario

BASELINES_CACHED = 256

STEP_PHASES = {
    "sync": ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s"),
    "async": ("exposed_generation_s", "data_s", "logprob_s", "train_s", "refit_s"),
}
"""Phases that add up to a step."""


@dataclass(frozen=True)
class CellResult:
    """What a cell came to: numbers, or in one line the reason why it has none.

    infeasible: the reason with the bound that was violated.
    """

    status: Literal["ok", "infeasible", "invalid"]
    reason: str = ""
    numbers: StepNumbers | None = None
    infeasible: Infeasible | None = None


@dataclass(frozen=True)
class SimulatedCell:
    """A cell by itself: its numbers without those of a baseline, and its mean times with the draws around them."""

    numbers: StepNumbers
    timed: Timed


@dataclass(frozen=True)
class TimedCell:
    """A cell with its mean times and the draws around them; None where it cannot run."""

    result: CellResult
    timed: Timed | None = None


def _simulated(scenario: Scenario) -> SimulatedCell:
    """Simulate ``scenario`` over its replications. Raises Infeasible and InputError."""
    run = simulate_variant(scenario)
    found = timed(run)
    return SimulatedCell(_numbers(run, around(found.step_s, found.prediction.step_factor)), found)


def baseline_cell(scenario: Scenario) -> SimulatedCell:
    """The autoregressive arm of ``scenario``, simulated once for all cells that share it."""
    return _simulated_baseline(baseline_of(scenario))


@lru_cache(maxsize=BASELINES_CACHED)
def _simulated_baseline(baseline: Scenario) -> SimulatedCell:
    return _simulated(baseline)


def evaluate_overrides(base: Scenario, overrides: Overrides, with_baseline: bool = True) -> CellResult:
    """Numbers of ``base`` with ``overrides`` against its baseline on the same drawn work, or why it cannot run."""
    return _answer(lambda: _evaluated(_varied(base, overrides), with_baseline)).result


def evaluate_timed(base: Scenario, overrides: Overrides) -> TimedCell:
    """``base`` with ``overrides``, without its baseline, with the draws around its times."""
    return _answer(lambda: _evaluated(_varied(base, overrides), with_baseline=False))


def evaluate_means(base: Scenario, overrides: Overrides) -> CellResult:
    """``base`` with ``overrides``, without its baseline and without intervals: what a search of many cells needs."""
    return _answer(lambda: TimedCell(CellResult("ok", "", means_of(simulate_variant(_varied(base, overrides)))))).result


def _answer(work: Callable[[], TimedCell]) -> TimedCell:
    """What ``work`` finds, or why it finds nothing."""
    try:
        return work()
    except Infeasible as error:
        return TimedCell(CellResult("infeasible", str(error).removeprefix("infeasible: "), infeasible=error))
    except InputError as error:
        return TimedCell(CellResult("invalid", str(error)))


def _varied(base: Scenario, overrides: Overrides) -> Scenario:
    try:
        return vary(base, overrides)
    except InputError as error:
        raise InputError(_bare(str(error))) from None


def _bare(message: str) -> str:
    """A validation message without the list of overrides in front of it."""
    _, marker, rest = message.partition(": ")
    return rest if marker and message.startswith("scenario '") else message


def _evaluated(scenario: Scenario, with_baseline: bool) -> TimedCell:
    before = baseline_cell(scenario) if with_baseline or not scenario.speculation.active else None
    after = _simulated(scenario) if scenario.speculation.active or before is None else before
    numbers = after.numbers
    if after is before:  # under the name of the scenario that was asked for
        numbers = replace(numbers, digest=scenario_digest(scenario))
    if with_baseline and before is not None:
        numbers = beside(scenario, numbers, after.timed, before)
    return TimedCell(CellResult("ok", "", numbers), after.timed)


def beside(scenario: Scenario, numbers: StepNumbers, after: Timed, before: SimulatedCell) -> StepNumbers:
    """Numbers of ``scenario`` with those of its baseline and the speed-ups over it."""
    rollout, end_to_end = speedups(before.timed, after)
    baseline_s = before.timed.step_s
    return replace(
        numbers,
        baseline_step_s=baseline_s,
        baseline_cost_per_step_usd=cost_usd(scenario, baseline_s),
        rollout_speedup=rollout,
        end_to_end_speedup=end_to_end,
    )


def means_of(run: SimulatedVariant) -> StepNumbers:
    """Numbers of a simulated scenario without any interval."""
    return _numbers(run, Mean(mean_value(run, lambda step: step.seconds)))


def _numbers(run: SimulatedVariant, step_s: Interval | Mean) -> StepNumbers:
    """Numbers of a simulated scenario without those of a baseline."""

    def phase_s(name: str) -> float:
        return mean_value(run, lambda step: step.phases[name])

    scenario, phases = run.scenario, {name: phase_s(name) for name in PHASES}
    used = {pool: use.total_bytes for pool, use in memory_of(run).items()}
    per_gpu = tokens_per_s_per_gpu(run)
    cluster, speculation = scenario.cluster, scenario.speculation
    return StepNumbers(
        num_gpus=cluster.num_gpus,
        generation_gpus=cluster.generation,
        training_gpus=cluster.training,
        method=speculation.method if speculation.active else "none",
        draft_length=speculation.draft_length if speculation.active else 0,
        acceptance_length=interval(iteration_tokens(run)).mean,
        policy_lag=scenario.loop.lag,
        step_s=step_s,
        **phases,
        tokens_per_s=per_gpu * cluster.num_gpus,
        tokens_per_s_per_gpu=per_gpu,
        cost_per_step_usd=cost_usd(scenario, step_s.mean),
        energy_per_step_j=energy_j(scenario, step_s.mean),
        generation_memory_bytes=used["generation"],
        training_memory_bytes=used["training"],
        eager_share=run.prices.engine.eager_share(counted(run.prices.engine, run.counters).iterations_at),
        captured_tokens=run.prices.engine.captured_tokens,
        limit=limit_of(scenario, phases, phase_parts(run)),
        baseline_step_s=None,
        baseline_cost_per_step_usd=None,
        rollout_speedup=None,
        end_to_end_speedup=None,
        digest=scenario_digest(scenario),
    )


def limit_of(scenario: Scenario, phases: Mapping[str, float], parts: Iterable[PhasePart]) -> str:
    """The longest phase of the step and its largest part, such as ``generation: experts (memory)``."""
    phase = max(STEP_PHASES[scenario.loop.mode], key=lambda name: phases[name])
    shown = "generation_s" if phase == "exposed_generation_s" else phase
    inside = [share for share in parts if share.phase == shown]
    if not inside:
        return shown.removesuffix("_s")
    largest = max(inside, key=lambda share: share.seconds)
    return f"{shown.removesuffix('_s')}: {largest.name} ({largest.bound})"
