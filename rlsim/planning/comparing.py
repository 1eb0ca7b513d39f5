"""Two scenarios side by side: what differs in them, what differs in the answer, and which phase explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlsim.planning.evaluate import STEP_PHASES, ArmTimes, simulate
from rlsim.planning.money import cost_usd, energy_j
from rlsim.results import Quantity
from rlsim.schema.scenario import Scenario
from rlsim.statistics import interval
from rlsim.summary import speedups

IGNORED = ("name", "question", "assumptions")
"""Keys that describe a scenario without changing its answer."""


@dataclass(frozen=True)
class PhaseChange:
    """Seconds that a phase adds to the step of A and of B. share: of the difference of the steps."""

    phase: str
    before_s: float
    after_s: float
    share: float | None


@dataclass(frozen=True)
class Comparison:
    """B against A. differences: dotted key -> (value in A, value in B); None where a side lacks the key.

    paired: both drew the same work, so that ``speedup`` (step of A over step of B) is taken replication by replication.
    """

    names: tuple[str, str]
    differences: dict[str, tuple[Any, Any]]
    step_s: tuple[Quantity, Quantity]
    speedup: Quantity
    paired: bool
    phases: tuple[PhaseChange, ...]
    cost_per_step_usd: tuple[float, float]
    energy_per_step_j: tuple[float, float]

    @property
    def explains(self) -> PhaseChange | None:
        """The phase with the largest difference; None where nothing differs."""
        largest = max(self.phases, key=lambda change: abs(change.after_s - change.before_s))
        return largest if largest.after_s != largest.before_s else None

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``."""
        return {
            "schema": "rlsim.comparison/1",
            "scenarios": list(self.names),
            "differences": {key: list(pair) for key, pair in self.differences.items()},
            "step_s": [quantity.as_dict() for quantity in self.step_s],
            "speedup": self.speedup.as_dict(),
            "paired": self.paired,
            "phases": [vars(change) for change in self.phases],
            "explained_by": self.explains.phase if self.explains else None,
            "cost_per_step_usd": list(self.cost_per_step_usd),
            "energy_per_step_j": list(self.energy_per_step_j),
        }


def compare(first: Scenario, second: Scenario) -> Comparison:
    """Simulate both as they are (no baselines). Raises Infeasible where one cannot run."""
    runs = (simulate(first), simulate(second))
    paired = _same_work(first, second)
    return Comparison(
        names=(first.name, second.name),
        differences=differences(first, second),
        step_s=(runs[0].arm.step_s, runs[1].arm.step_s),
        speedup=_speedup(runs, paired),
        paired=paired,
        phases=_phases((first, second), runs),
        cost_per_step_usd=(cost_usd(first, runs[0].arm.step_s.mean), cost_usd(second, runs[1].arm.step_s.mean)),
        energy_per_step_j=(energy_j(first, runs[0].arm.step_s.mean), energy_j(second, runs[1].arm.step_s.mean)),
    )


def differences(first: Scenario, second: Scenario) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, in the order of the schema; names, questions and assumptions do not count."""
    before, after = (flattened(scenario.model_dump(mode="json")) for scenario in (first, second))
    keys = [key for key in dict.fromkeys([*before, *after]) if key.split(".")[0] not in IGNORED]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested mappings."""
    out: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            out |= flattened(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def _same_work(first: Scenario, second: Scenario) -> bool:
    a, b = first.simulation, second.simulation
    return first.workload == second.workload and (a.seed, a.replications) == (b.seed, b.replications)


def _speedup(runs: tuple[ArmTimes, ArmTimes], paired: bool) -> Quantity:
    first, second = runs[0].step_s, runs[1].step_s
    if paired and len(first) == len(second):
        generation = (runs[0].generation_s, runs[1].generation_s)
        return speedups(generation, (first, second), 0.0)[1]
    return interval([a / b for a in first for b in second])


def _phases(scenarios: tuple[Scenario, Scenario], runs: tuple[ArmTimes, ArmTimes]) -> tuple[PhaseChange, ...]:
    """Serial phases of both; waiting for an asynchronous generator stands beside synchronous generation."""
    sides = [
        {
            name.replace("exposed_", "").replace("refit", "prepare").removesuffix("_s"): run.arm.phases[name].mean
            for name in STEP_PHASES[scenario.loop.mode]
        }
        for scenario, run in zip(scenarios, runs, strict=True)
    ]
    total = runs[1].arm.step_s.mean - runs[0].arm.step_s.mean
    out = []
    for phase in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = sides[0].get(phase, 0.0), sides[1].get(phase, 0.0)
        out.append(PhaseChange(phase, before, after, (after - before) / total if total else None))
    return tuple(out)
