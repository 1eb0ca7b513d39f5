"""What the phases of a run say of the model: evidence on top of a posterior, and which sources take the difference up.

Evidence as :mod:`rlsim.projection.uncertainty.learning` takes it, one row for each phase: its median over the steady
steps against the median of the simulated ones, with the error that so few steps leave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rlsim.costs.operators.groups import phase_groups
from rlsim.errors import InputError
from rlsim.files.records import dataclass
from rlsim.parameters.posterior import Posterior
from rlsim.parameters.terms import fitted_of
from rlsim.projection.uncertainty.evidence import Evidence, Kind
from rlsim.projection.uncertainty.learning import simulated_evidence, updated, with_sets
from rlsim.projection.uncertainty.predictive import posterior_of
from rlsim.projection.uncertainty.sources import origin_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.readers.logs.steady import Steady
from rlsim.schema.scenario import Scenario
from rlsim.simulation.trace import StepRecord
from rlsim.units import FloatArray

TOLD = 0.005
"""Least share of a time that a source is named for."""


@dataclass(frozen=True)
class Explained:
    """How one phase's prediction follows its measurement, in logarithms.

    surprise: ln(measured / predicted before). by_source: change of the prediction by what each source moved, largest
    first. left: what stays between measured and predicted.
    """

    surprise: float
    by_source: tuple[tuple[str, float], ...]

    @property
    def left(self) -> float:
        """ln(measured / predicted after), as linearised."""
        return self.surprise - sum(change for _, change in self.by_source)


@dataclass(frozen=True, eq=False)
class LearnedRun:
    """The posterior with a run, and what it changed of each of its phases."""

    posterior: Posterior
    explained: Mapping[str, Explained]


def kinds_of(scenario: Scenario) -> tuple[Kind, ...]:
    """Phases that are evidence; the busy time of an asynchronous generation is told by no log."""
    if scenario.loop.mode == "sync":
        return ("step", "generation", "logprob", "train", "refit")
    return ("step", "logprob", "train", "refit")


def seconds_of(step: StepRecord, quantity: str, mode: str) -> float:
    """Simulated seconds of what logs call ``quantity``."""
    if quantity == "step":
        return step.seconds
    return step.phases["prepare_s" if quantity == "refit" and mode == "sync" else f"{quantity}_s"]


def values_of(run: SimulatedVariant, quantity: str) -> FloatArray:
    """Simulated seconds of a phase in every measured step."""
    mode = run.scenario.loop.mode
    return np.array([seconds_of(step, quantity, mode) for steps in run.steps for step in steps])


def learn_run(scenario: Scenario, steady: Steady, name: str) -> LearnedRun:
    """The scenario's posterior with the run's phases as evidence.

    Raises InputError where the scenario names fitted sets of its own, which no posterior moves, or no
    phase is evidence.
    """
    sets = fitted_of(scenario)
    if sets.posterior is None:
        raise InputError(
            f"scenario '{scenario.name}': a run moves the posterior, and its simulation.posterior or another set in "
            "simulation is its own; leave them out"
        )
    before = posterior_of(scenario)
    measured: dict[Kind, float] = {}
    for kind in kinds_of(scenario):
        found = steady.found.get(kind)
        if found is not None and found.median > 0:
            measured[kind] = found.median
    run = simulate_variant(with_sets(scenario, replace(sets, posterior=None)))
    rows = simulated_evidence(name, run, measured, phase_groups(scenario), np.median)
    if not rows:
        raise InputError(f"{name}: none of its phases is one that scenario '{scenario.name}' has")
    # The error of a published time of its kind, although no rounding is in a log: it also holds what the model misses
    # of this one batch and layout, which another batch of the same run does not share.
    errors = [
        math.hypot(before.errors[row.kind], steady.found[row.kind].error(values_of(run, row.kind))) for row in rows
    ]
    steps = {row.kind: steady.found[row.kind].count for row in rows}
    after = updated(
        before, rows, name, {"own_rows": len(rows), "own_log": name, "own_steps": max(steps.values())}, errors
    )
    return LearnedRun(after, {row.kind: _explained(row, scenario, before, after) for row in rows})


def _explained(row: Evidence, scenario: Scenario, before: Posterior, after: Posterior) -> Explained:
    """Changes of one phase's prediction, added up by the source that each term and group belongs to."""
    known = sum(share * before.mean_of(group) for group, share in row.groups.items())
    changes: dict[str, float] = {}
    for name, slope in (*row.slopes.items(), *row.groups.items()):
        change = slope * (after.mean_of(name) - before.mean_of(name))
        if change:
            source = origin_of(name, scenario, before).text
            changes[source] = changes.get(source, 0.0) + change
    told = sorted(changes.items(), key=lambda entry: -abs(entry[1]))
    return Explained(row.surprise - known, tuple(told))
