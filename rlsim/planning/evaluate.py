"""One cell: a scenario to its numbers, or to the reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from rlsim.errors import Infeasible, InputError
from rlsim.loading import scenario_digest
from rlsim.planning.money import cost_usd, energy_j
from rlsim.planning.variation import varied
from rlsim.projection import baseline_of
from rlsim.results import Arm, Quantity
from rlsim.schema.scenario import Scenario
from rlsim.simulated import SimulatedVariant, simulate_variant
from rlsim.summary import phase_parts, replication_means, speedups, step_values, variant_of

BASELINES_KEPT = 256
Status = Literal["ok", "infeasible", "invalid"]
Value = float | int | str | None

STEP_PHASES = {
    "sync": ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s"),
    "async": ("exposed_generation_s", "data_s", "logprob_s", "train_s", "refit_s"),
}
"""Phases that add up to a step."""


@dataclass(frozen=True)
class ArmTimes:
    """Seconds of one arm and its summary.

    step_s, generation_s: by measured step, or cycle of steps, so that entries of equal index share their drawn work;
    mean_s: step by replication.
    """

    step_s: tuple[float, ...]
    generation_s: tuple[float, ...]
    mean_s: tuple[float, ...]
    arm: Arm
    speedup_error: float


@dataclass(frozen=True)
class Outcome:
    """What a cell came to. values: columns of the results, empty where it cannot run; step_s: per replication.

    reason: in one line why not; infeasible: the same with the bound that was violated.
    """

    status: Status
    reason: str = ""
    values: dict[str, Value] = field(default_factory=dict)
    step_s: tuple[float, ...] = ()
    infeasible: Infeasible | None = None


def simulate(scenario: Scenario) -> ArmTimes:
    """Simulate one arm over the scenario's replications. Raises Infeasible and InputError."""
    return _times(simulate_variant(scenario))


def _times(run: SimulatedVariant) -> ArmTimes:
    step = step_values(run, lambda record: record.seconds)
    generation = step_values(run, lambda record: record.phases.generation_s)
    mean = replication_means(run, lambda record: record.seconds)
    summary = variant_of(run, phase_parts(run))
    error = run.prices.overheads.speedup_error if run.scenario.speculation.active else 0.0
    return ArmTimes(tuple(step), tuple(generation), tuple(mean), summary, error)


def baseline_times(scenario: Scenario) -> ArmTimes:
    """The autoregressive arm of ``scenario``, simulated once for all cells that share it."""
    return _simulated_baseline(baseline_of(scenario))


@lru_cache(maxsize=BASELINES_KEPT)
def _simulated_baseline(baseline: Scenario) -> ArmTimes:
    return simulate(baseline)


def evaluate(scenario: Scenario, with_baseline: bool = True) -> Outcome:
    """Numbers of ``scenario`` against its baseline on the same drawn work, or why it cannot run."""
    try:
        before = baseline_times(scenario) if with_baseline or not scenario.speculation.active else None
        after = simulate(scenario) if scenario.speculation.active or before is None else before
    except Infeasible as error:
        return Outcome("infeasible", str(error).removeprefix("infeasible: "), infeasible=error)
    except InputError as error:
        return Outcome("invalid", str(error))
    return Outcome("ok", "", _columns(scenario, before if with_baseline else None, after), after.mean_s)


def evaluate_assignment(
    base: Scenario, assignment: Mapping[str, str], settings: Sequence[str] = (), with_baseline: bool = True
) -> Outcome:
    """:func:`evaluate` of ``base`` varied by ``assignment``; settings: further overrides, such as replications."""
    try:
        scenario = varied(base, {**dict(item.split("=", 1) for item in settings), **assignment})
    except InputError as error:
        return Outcome("invalid", _bare(str(error)))
    return evaluate(scenario, with_baseline)


def _bare(message: str) -> str:
    """A validation message without the list of overrides in front of it."""
    _, marker, rest = message.partition(": ")
    return rest if marker and message.startswith("scenario '") else message


def _columns(scenario: Scenario, before: ArmTimes | None, after: ArmTimes) -> dict[str, Value]:
    cluster, arm = scenario.cluster, after.arm
    out: dict[str, Value] = {
        "num_gpus": cluster.num_gpus,
        "generation_gpus": cluster.generation,
        "training_gpus": cluster.training,
        "method": arm.method,
        "draft_length": arm.draft_length,
        "acceptance_length": arm.acceptance_length.mean,
        "policy_lag": scenario.loop.policy_lag,
        **_spread("step", "_s", arm.step_s),
        **{name: quantity.mean for name, quantity in arm.phases.items()},
        "tokens_per_s": arm.tokens_per_s_per_gpu.mean * cluster.num_gpus,
        "tokens_per_s_per_gpu": arm.tokens_per_s_per_gpu.mean,
        "cost_per_step_usd": cost_usd(scenario, arm.step_s.mean),
        "energy_per_step_j": energy_j(scenario, arm.step_s.mean),
        **{f"{use.pool}_memory_bytes": use.total_bytes for use in arm.memory},
        "limit": limit_of(scenario, arm),
    }
    if before is not None:
        rollout, end_to_end = speedups(
            (before.generation_s, after.generation_s), (before.step_s, after.step_s), after.speedup_error
        )
        out |= {
            "baseline_step_s": before.arm.step_s.mean,
            "baseline_cost_per_step_usd": cost_usd(scenario, before.arm.step_s.mean),
            **_spread("rollout_speedup", "", rollout),
            **_spread("end_to_end_speedup", "", end_to_end),
        }
    out["digest"] = scenario_digest(scenario)
    return out


def _spread(name: str, unit: str, quantity: Quantity) -> dict[str, Value]:
    return {f"{name}{unit}": quantity.mean, f"{name}_low{unit}": quantity.low, f"{name}_high{unit}": quantity.high}


def limit_of(scenario: Scenario, arm: Arm) -> str:
    """The longest phase of the step and its largest part, such as ``generation: experts (memory)``."""
    phase = max(STEP_PHASES[scenario.loop.mode], key=lambda name: arm.phases[name].mean)
    shown = "generation_s" if phase == "exposed_generation_s" else phase
    parts = [share for share in arm.parts if share.phase == shown]
    if not parts:
        return shown.removesuffix("_s")
    largest = max(parts, key=lambda share: share.seconds)
    return f"{shown.removesuffix('_s')}: {largest.name} ({largest.bound})"
