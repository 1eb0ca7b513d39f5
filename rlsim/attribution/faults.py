"""The catalogue of known misconfigurations (faults.yaml), each as changes of a scenario by its severity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from rlsim.attribution.causes import Cause, Changes, Priced, iterations_with, passes_with
from rlsim.costs.interface import Prices
from rlsim.files.records import dataclass
from rlsim.files.yaml import lists_beside
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantLength, ConstantTime

GIVEN = "given"
"""In a condition: any value but none."""
FORMS: Mapping[str, Callable[[float, float, float], float]] = {
    "x": lambda now, x, step: x,
    "now * x": lambda now, x, step: now * x,
    "now / x": lambda now, x, step: now / x,
    "step * x": lambda now, x, step: step * x,
    "1 + (now - 1) * x": lambda now, x, step: 1 + (now - 1) * x,
}
"""What a key becomes: from its value now, the severity x and the expected seconds of a step."""


@dataclass(frozen=True)
class Fault:
    """A known misconfiguration as faults.yaml has it (its head says what each field means)."""

    name: str
    title: str
    cure: str
    prior: float
    set: Changes = field(default_factory=dict)
    severities: tuple[float, ...] = ()
    when: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    does: str = ""
    cured: Changes = field(default_factory=dict)
    misstated: bool = False
    whole: bool = False

    def possible(self, scenario: Scenario) -> bool:
        """Whether the scenario states what the fault needs."""
        return all(_holds(value_of(scenario, key), allowed) for key, allowed in self.when.items())

    def at(self, scenario: Scenario, severity: float, step_s: float) -> Cause | None:
        """The fault at a severity in a scenario whose step is expected to take ``step_s``; None where it has no key."""
        if self.does:
            return FUNCTIONS[self.does](scenario, severity)
        changes: dict[str, Any] = {}
        for key, form in self.set.items():
            if form not in FORMS:
                changes[key] = form
                continue
            now = value_of(scenario, key)
            if now is None and key in self.instead:
                now = value_of(scenario, self.instead[key])
            if now is None and "now" in str(form):
                return None
            value = FORMS[str(form)](now or 0.0, severity, step_s)
            changes[key] = max(1, round(value)) if isinstance(now, int) else value
        return Cause(self.name, self.title, changes)


def _holds(value: Any, allowed: Sequence[Any]) -> bool:
    return value in allowed or (GIVEN in allowed and value is not None)


def value_of(scenario: Scenario, key: str) -> Any:
    """What a dotted key or property of a scenario is; None where a section of it is missing."""
    found: Any = scenario
    for name in key.split("."):
        found = getattr(found, name, None)
    return found


def catalogue() -> tuple[Fault, ...]:
    """All known faults."""
    found = []
    for name, told in _lists()["faults"].items():
        fields: dict[str, Any] = {**told, "severities": tuple(told.get("severities", ()))}
        found.append(Fault(name=name, **fields))
    return tuple(found)


def prior_of(name: str) -> float:
    """Prior weight of ``healthy`` or ``unlisted`` beside 1 for all faults together."""
    return float(_lists()[name])


@dataclass(frozen=True)
class Figure:
    """A figure that logs tell. spread: deviation of its logarithm by which the model may miss it; floor: next to
    nothing of it."""

    title: str
    how: str
    spread: float
    floor: float


def figures() -> dict[str, Figure]:
    """What a run tells besides its phases, by name, cheapest to read first."""
    return {name: Figure(**one) for name, one in _lists()["figures"].items()}


def _lists() -> dict[str, Any]:
    return lists_beside(__file__, "faults.yaml")


def _idle_replicas(scenario: Scenario, share: float) -> Cause:
    return Cause(
        "idle_replicas",
        "work goes to a share of the replicas",
        prices=lambda prices: replace(prices, replicas=max(1, round(share * prices.replicas))),
    )


def _slow_trainer(scenario: Scenario, factor: float) -> Cause:
    return Cause("slow_rank", "log-probs and updates take longer", prices=_passes(factor))


def _slow_devices(scenario: Scenario, factor: float) -> Cause:
    def slower(prices: Prices) -> Prices:
        return _passes(factor)(iterations_with(factor)(prices))

    return Cause("throttled_device", "all kernels take longer", prices=slower)


def _passes(factor: float) -> Priced:
    """Log-probs and updates times ``factor``."""
    return passes_with(lambda phase, part: 1.0 if phase == "data" else factor)


def _little_kv_cache(scenario: Scenario, divisor: float) -> Cause:
    least = float(scenario.workload.max_sequence_tokens)

    def smaller(prices: Prices) -> Prices:
        table = prices.iteration
        capacity = min(table.kv_capacity_tokens, max(least, table.kv_capacity_tokens / divisor))
        return replace(prices, iteration=replace(table, kv_capacity_tokens=capacity))

    return Cause("little_kv_cache", "a replica's cache holds less", prices=smaller)


def _longer_responses(scenario: Scenario, factor: float) -> Cause | None:
    """Mean length times ``factor``, within what the cap leaves; None where the lengths have no mean to change."""
    length, key = scenario.workload.response_tokens, "workload.response_tokens"
    room = 0.95 * (scenario.workload.max_sequence_tokens - 1)
    if isinstance(length, ConstantLength):
        return Cause("responses", "", {f"{key}.tokens": max(1, round(min(room, factor * length.tokens)))})
    if length.mean_tokens is None or factor * length.mean_tokens > room:
        return None
    return Cause("responses", "", {f"{key}.mean_tokens": factor * length.mean_tokens})


def _slow_turns(scenario: Scenario, factor: float) -> Cause | None:
    agent = scenario.workload.agent
    if agent is None:
        return None
    constant = isinstance(agent.environment_s, ConstantTime)
    name = "seconds" if constant else "mean_s"
    return Cause(
        "slow_turns", "", {f"workload.agent.environment_s.{name}": factor * getattr(agent.environment_s, name)}
    )


FUNCTIONS: Mapping[str, Callable[[Scenario, float], Cause | None]] = {
    "idle_replicas": _idle_replicas,
    "slow_trainer": _slow_trainer,
    "slow_devices": _slow_devices,
    "little_kv_cache": _little_kv_cache,
    "longer_responses": _longer_responses,
    "slow_turns": _slow_turns,
}
"""Faults that no key says."""
