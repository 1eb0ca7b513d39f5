"""The catalogue of known misconfigurations (faults.yaml), each as changes of a scenario by its severity; and what a run
under each shows of itself: seconds of its phases, and figures in its logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from rlsim.attribution.causes import (
    Cause,
    Changes,
    Priced,
    iterations_with,
    passes_with,
    simulate_changed,
    with_changes,
)
from rlsim.costs.interface import Prices
from rlsim.errors import Infeasible, InputError
from rlsim.files.yaml import lists_beside
from rlsim.loading.overrides import value_at
from rlsim.loading.scenario import vary
from rlsim.projection.summary import contract_name, iteration_tokens, mean_value, phase_parts
from rlsim.projection.uncertainty.features import VALUES
from rlsim.projection.variant import SimulatedVariant, so_many
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantLength, ConstantTime
from rlsim.workload.batches import expected_prompt_tokens

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


class Fault(Struct, frozen=True):
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
        held = ((value_at(scenario, key), allowed) for key, allowed in self.when.items())
        return all(value in allowed or (GIVEN in allowed and value is not None) for value, allowed in held)

    def at(self, scenario: Scenario, severity: float, step_s: float) -> Cause | None:
        """The fault at a severity in a scenario whose step is expected to take ``step_s``; None where it has no key."""
        if self.does:
            return FUNCTIONS[self.does](scenario, severity)
        changes: dict[str, Any] = {}
        for key, form in self.set.items():
            if form not in FORMS:
                changes[key] = form
                continue
            now = value_at(scenario, key)
            if now is None and key in self.instead:
                now = value_at(scenario, self.instead[key])
            if now is None and "now" in str(form):
                return None
            value = FORMS[str(form)](now or 0.0, severity, step_s)
            # Counts (GPUs, sequences) must stay whole and above 0 for the schema.
            changes[key] = max(1, round(value)) if isinstance(now, int) else value
        return Cause(self.name, self.title, changes)


def catalogue() -> tuple[Fault, ...]:
    """All known faults."""
    listed: dict[str, dict[str, Any]] = _lists()["faults"]
    return tuple(
        Fault(name, **entry | {"severities": (*entry.get("severities", ()),)}) for name, entry in listed.items()
    )


def prior_of(name: str) -> float:
    """Prior weight of ``healthy`` or ``unlisted`` beside 1 for all faults together."""
    return float(_lists()[name])


class Figure(Struct, frozen=True):
    """A figure that logs print. spread: deviation of its logarithm by which the model may miss it; floor: next to
    nothing of it."""

    title: str
    how: str
    spread: float
    floor: float


def figures() -> dict[str, Figure]:
    """Figures of a run besides its phases, by name, cheapest to read first."""
    return {name: Figure(**one) for name, one in _lists()["figures"].items()}


def _lists() -> Mapping[str, Any]:
    return lists_beside(__file__, "faults.yaml")


def _idle_replicas(scenario: Scenario, share: float) -> Cause:
    return Cause(
        "idle_replicas",
        "work goes to a share of the replicas",
        prices=lambda prices: replace(prices, replicas=max(1, round(share * prices.replicas))),
    )


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
        # A cache below one longest sequence could not run at all.
        capacity = min(table.kv_capacity_tokens, max(least, table.kv_capacity_tokens / divisor))
        return replace(prices, iteration=replace(table, kv_capacity_tokens=capacity))

    return Cause("little_kv_cache", "a replica's cache holds less", prices=smaller)


def longer_responses(scenario: Scenario, factor: float) -> Cause | None:
    """Mean length times ``factor``, within what the cap leaves; None where the lengths have no mean to change."""
    length, key = scenario.workload.response_tokens, "workload.response_tokens"
    # A mean near the cap could not be reached: longer responses are cut there.
    room = 0.95 * min(scenario.workload.max_sequence_tokens - 1, scenario.workload.longest_response_tokens)
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


def _reloaded_base(scenario: Scenario, bytes_per_s: float) -> Cause:
    """Every engine reads the base's weights from storage at ``bytes_per_s`` (verl#4470: vLLM's sleep level 2)."""
    seconds = BF16_BYTES * parameter_counts(scenario.model).total / bytes_per_s
    return Cause("reloaded_base", "", {"loop.refit_fixed_s": (scenario.loop.refit_fixed_s or 0.0) + seconds})


def _routes_through_driver(scenario: Scenario, bytes_per_s: float) -> Cause | None:
    """A driver passes on the experts of every token and layer at ``bytes_per_s``, 4 bytes each (THUDM/slime 624b824a,
    slime/utils/types.py: routed_experts of shape tokens, layers, top-k in int32)."""
    moe = scenario.model.moe
    if moe is None:
        return None
    sample_bytes = float(VALUES["sequence"](scenario)) * scenario.model.num_layers * moe.top_k * INT32_BYTES
    most = 1.0  # of the schema
    seconds = min(most, scenario.loop.driver_sample_s + sample_bytes / bytes_per_s)
    return Cause("driven_routes", "", {"loop.driver_sample_s": seconds})


FUNCTIONS: Mapping[str, Callable[[Scenario, float], Cause | None]] = {
    "idle_replicas": _idle_replicas,
    "slow_trainer": lambda scenario, factor: Cause(
        "slow_rank", "log-probs and updates take longer", prices=_passes(factor)
    ),
    "slow_devices": _slow_devices,
    "little_kv_cache": _little_kv_cache,
    "longer_responses": longer_responses,
    "slow_turns": _slow_turns,
    "reloaded_base": _reloaded_base,
    "routes_through_driver": _routes_through_driver,
}
"""Faults that no key says."""


BF16_BYTES, INT32_BYTES = 2.0, 4.0
MOST_STEPS = 4
"""Measured steps of a lagged loop that a fault is simulated on: differences on equal drawn work settle early."""
DESCRIBING = ("name", "question", "assumptions", "missing")
"""Sections of a scenario that move no time."""
SAME = 0.01
"""Share of a step by which a phase must move for a fault to count as one."""


def phase_names(scenario: Scenario) -> tuple[str, ...]:
    """Phases that a framework's log prints of such a loop, as ``rlsim log`` calls them."""
    waited = "generation" if scenario.loop.mode == "sync" else "exposed_generation"
    return ("step", waited, "logprob", "train", "refit", "data")


class Pattern(Struct, frozen=True, eq=False, dict=True):
    """Observables of a run. phases: mean seconds; figures: of the catalogue's list; run: where it comes from."""

    phases: Mapping[str, float]
    run: SimulatedVariant

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.phases["step"]

    @cached_property
    def figures(self) -> Mapping[str, float]:
        """Figures of the run by name, without those that it does not have."""
        return figures_of(self.run)

    @cached_property
    def parts(self) -> Mapping[tuple[str, str], float]:
        """Seconds of each part of each phase, as a profile of a step shows them."""
        return {(part.phase, part.name): part.seconds for part in phase_parts(self.run)}


def pattern_of(run: SimulatedVariant) -> Pattern:
    """The pattern of a simulated run."""
    mode = run.scenario.loop.mode
    phases = {
        name: mean_value(run, lambda step: step.seconds) if name == "step" else run.phases_s[contract_name(name, mode)]
        for name in phase_names(run.scenario)
    }
    return Pattern(phases, run)


def figures_of(run: SimulatedVariant) -> dict[str, float]:
    """Figures of the catalogue's list that the run has, per step where they are counts."""
    scenario, counters, steps = run.scenario, run.counters, len(run.every_step)
    # iteration_s is of decode iterations; the parts hold prefills too.
    busy_s = sum(part.seconds for part in run.prices.engine.parts(counters)) - counters.prefill_s
    samples = scenario.workload.samples_per_step
    batch = scenario.trainer.global_batch_samples or samples
    found = {
        "updates": max(1.0, samples / batch) * scenario.trainer.epochs,
        "generated_tokens": mean_value(run, lambda step: step.generated_tokens),
        "engines": float(run.prices.replicas),
        "running_sequences": counters.mean_batch,
        "iteration_s": busy_s / max(1, counters.iterations),
        "prefill_tokens": counters.prefill_tokens / steps,
        "preemptions": counters.preemptions / steps,
    }
    if scenario.workload.agent is None:
        total = mean_value(run, lambda step: step.total_tokens)
        found["response_tokens"] = total / samples - expected_prompt_tokens(scenario.workload)
    if scenario.speculation.active:
        found["acceptance_length"] = float(np.mean(iteration_tokens(run)))
    return {name: found[name] for name in figures() if name in found}


class Faulty:
    """Simulations of one scenario under faults, each once, on the same drawn work. scenario: as it is answered for."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = _shortened(scenario)
        self.healthy = pattern_of(simulate_changed(self.scenario, ()))
        self._found: dict[tuple[str, float], Pattern | None] = {}

    @property
    def simulated(self) -> int:
        """Simulations so far."""
        return len(self._found)

    def with_fault(self, fault: Fault, severity: float) -> Pattern | None:
        """The pattern of the run under a fault; None where the scenario cannot have it or would not change."""
        key = fault.name, severity
        if key not in self._found:
            self._found[key] = self._simulated(fault, severity)
        return self._found[key]

    def _simulated(self, fault: Fault, severity: float) -> Pattern | None:
        try:
            cause = fault.at(self.scenario, severity, self.healthy.step_s)
            # Faults by function change prices, which keys do not show.
            if cause is None or (not fault.does and _same(with_changes(self.scenario, [cause]), self.scenario)):
                return None
            found = pattern_of(simulate_changed(self.scenario, [cause]))
        # A fault that the scenario cannot run with explains no run of it.
        except (Infeasible, InputError):
            return None
        least = SAME * self.healthy.step_s
        return found if any(abs(found.phases[p] - s) > least for p, s in self.healthy.phases.items()) else None

    def cured(self, fault: Fault) -> Pattern | None:
        """The run without a fault that the scenario itself states; None where it states none or cannot do without."""
        try:
            if not fault.cured or not self._stated(fault):
                return None
            return pattern_of(simulate_changed(vary(self.scenario, fault.cured), ()))
        except (Infeasible, InputError):
            return None

    def _stated(self, fault: Fault) -> bool:
        """Whether the scenario is already as the fault would make it, and the cure another."""
        stated = _same(vary(self.scenario, fault.set), self.scenario)
        return stated and not _same(vary(self.scenario, fault.cured), self.scenario)


def _same(first: Scenario, second: Scenario) -> bool:
    """Whether two scenarios state the same, whatever they say of themselves."""
    return all(getattr(first, name) == value for name, value in second if name not in DESCRIBING)


def _shortened(scenario: Scenario) -> Scenario:
    """One replication, and of a lagged loop few steps."""
    changes = so_many(scenario, 1)
    if scenario.loop.mode == "async" and len(scenario.measured_steps) > MOST_STEPS:
        changes["simulation.steps"] = MOST_STEPS
    return vary(scenario, changes)
