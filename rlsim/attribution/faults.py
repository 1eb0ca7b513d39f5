"""What a run under each known misconfiguration (projection/faults.yaml) shows of itself: seconds of its phases, and
figures in its logs."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import vary
from rlsim.projection.effects import BETWEEN
from rlsim.projection.moves import FAULTS, Fault
from rlsim.projection.summary import contract_name, iteration_tokens, mean_value, phase_parts
from rlsim.projection.variant import SimulatedVariant, simulate_variant, so_many
from rlsim.schema.scenario import Scenario
from rlsim.simulation.trace import StepRecord
from rlsim.workload.batches import expected_prompt_tokens

MOST_STEPS = 4
"""Measured steps of a lagged loop that a fault is simulated on: differences on equal drawn work settle early."""
SAME = 0.01
"""Share of a step by which a phase must move for a fault to count as one."""


def phase_names(scenario: Scenario) -> tuple[str, ...]:
    """Phases that a framework's log prints of such a loop, as ``rlsim log`` calls them."""
    waited = "generation" if scenario.loop.mode == "sync" else "exposed_generation"
    return ("step", waited, "logprob", "train", "refit", "data")


class Figure(Struct, frozen=True):
    """A figure that logs print. spread: deviation of its logarithm by which the model may miss it; floor: next to
    nothing of it."""

    title: str
    how: str
    spread: float
    floor: float


def figures() -> dict[str, Figure]:
    """Figures of a run besides its phases, by name, cheapest to read first."""
    return {name: Figure(**one) for name, one in FAULTS["figures"].items()}


class Pattern(Struct, frozen=True, eq=False, dict=True):
    """Observables of a run. phases: mean seconds; figures: of the catalogue's list; run: where it comes from."""

    phases: Mapping[str, float]
    run: SimulatedVariant

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.phases["step"]

    @cached_property  # of the healthy run, beside those of every fault
    def figures(self) -> Mapping[str, float]:
        """Figures of the run by name, without those that it does not have."""
        return figures_of(self.run)

    @property
    def parts(self) -> Mapping[tuple[str, str], float]:
        """Seconds of each part of each phase, as a profile of a step shows them."""
        return {(part.phase, part.name): part.seconds for part in phase_parts(self.run)}


def printed_phases(step: StepRecord, scenario: Scenario) -> dict[str, float]:
    """Seconds of a simulated step as a framework's log prints them: what no timer of a phase holds is simulated with
    the data, and shows in the step alone."""
    mode = scenario.loop.mode
    names = [name for name in phase_names(scenario) if name != "step"]
    out = {"step": step.seconds} | {name: step.phases[contract_name(name, mode)] for name in names}
    out["data"] -= sum(part.seconds for part in step.cost.data.parts if part.name == BETWEEN)
    return out


def pattern_of(run: SimulatedVariant) -> Pattern:
    """The pattern of a simulated run."""
    steps = [printed_phases(step, run.scenario) for step in run.every_step]
    return Pattern({name: float(np.mean([one[name] for one in steps])) for name in steps[0]}, run)


def figures_of(run: SimulatedVariant) -> dict[str, float]:
    """Figures of the catalogue's list that the run has, per step where they are counts."""
    scenario, counters, steps = run.scenario, run.counters, len(run.every_step)
    # iteration_s is of decode iterations; the parts hold prefills too.
    busy_s = sum(part.seconds for part in run.prices.engine.parts(counters)) - counters.prefill_s
    samples = scenario.workload.samples_per_step
    batch = scenario.trainer.global_batch_samples or samples
    found = {
        "updates": samples / batch * scenario.trainer.epochs,
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
        self.healthy = pattern_of(simulate_variant(self.scenario))
        self._found: dict[tuple[str, float], Pattern | None] = {}

    def with_fault(self, fault: Fault, severity: float) -> Pattern | None:
        """The pattern of the run under a fault; None where the scenario cannot have it or would not change."""
        key = fault.name, severity
        if key not in self._found:
            self._found[key] = self._simulated(fault, severity)
        return self._found[key]

    def _simulated(self, fault: Fault, severity: float) -> Pattern | None:
        try:
            change = fault.of(self.scenario, severity, self.healthy.step_s)
            if change is None:
                return None
            found = pattern_of(simulate_variant(self.scenario, changes=[change]))
        # A fault that the scenario cannot run with explains no run of it.
        except (Infeasible, InputError):
            return None
        least = SAME * self.healthy.step_s
        return found if any(abs(found.phases[p] - s) > least for p, s in self.healthy.phases.items()) else None


def _shortened(scenario: Scenario) -> Scenario:
    """One replication, and of a lagged loop few steps."""
    changes = so_many(scenario, 1)
    if scenario.loop.mode == "async" and len(scenario.measured_steps) > MOST_STEPS:
        changes["simulation.steps"] = MOST_STEPS
    return vary(scenario, changes)
