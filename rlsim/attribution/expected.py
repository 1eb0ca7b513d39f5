"""What a healthy run is expected to show, with the model's own error, and where a measurement stands beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlsim.attribution.faults import figures
from rlsim.attribution.likelihood import FLOOR, LEAST_NOISE, Observed, covariance
from rlsim.attribution.patterns import Pattern, contract_name, figures_of, phase_names
from rlsim.errors import InputError
from rlsim.projection.efficiency import efficiency_of
from rlsim.projection.summary import around_phase
from rlsim.projection.uncertainty.predictive import DRAWS, prediction_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.results import Interval
from rlsim.results.check import CheckedPhase, Verdict
from rlsim.results.record import widened
from rlsim.units import FloatArray

NOISE = 0.05
"""Deviation of a pasted time's logarithm, by default."""

Noise = float | Mapping[str, float]
"""Deviation of the logarithms of measured times, of all or by name."""


def sorted_out(run: SimulatedVariant, measured: Mapping[str, float]) -> tuple[dict[str, float], tuple[str, ...]]:
    """What of ``measured`` the scenario of ``run`` has, and remarks on the rest. Raises InputError."""
    scenario = run.scenario
    known = {*phase_names(scenario), *figures_of(run)}
    every = {"generation", "exposed_generation", *known, *figures()}
    for name, value in measured.items():
        if name not in every:
            raise InputError(f"unknown measurement '{name}'; known are {', '.join(sorted(every))}")
        if not (value >= 0 and math.isfinite(value)):
            raise InputError(f"{name}: must be a number of at least 0, got {value:g}")
    given = {name: float(value) for name, value in measured.items() if name in known}
    if not given:
        raise InputError(f"no time of the run is given; give one of {', '.join(phase_names(scenario))}")
    left = [name for name in measured if name not in known]
    return given, tuple(f"{name}: a scenario with loop.mode {scenario.loop.mode} has none of it" for name in left)


def expected_phases(run: SimulatedVariant) -> dict[str, Interval]:
    """Each phase with its 90 % interval, as ``rlsim project`` answers it."""
    mode = run.scenario.loop.mode
    return {
        name: around_phase(run, name if name == "step" else contract_name(name, mode))
        for name in phase_names(run.scenario)
    }


def phase_factors(run: SimulatedVariant) -> dict[str, FloatArray]:
    """Draws of the model's error of each phase, as factors of its time."""
    predicted, mode, out = prediction_of(run), run.scenario.loop.mode, {}
    for name in phase_names(run.scenario):
        if name == "step":
            out[name] = predicted.step_factor
        elif name == "exposed_generation":
            mean = run.phases_s["exposed_generation_s"]
            out[name] = predicted.exposed_factor(mean) if mean > 0 else np.ones(DRAWS)
        else:
            out[name] = predicted.phase_factor(contract_name(name, mode))
    return out


def observed_of(
    run: SimulatedVariant, expected: Mapping[str, Interval], given: Mapping[str, float], noise: Noise
) -> Observed:
    """What was measured with its floors, its noise and the model's error."""
    names = tuple(name for name in (*expected, *figures()) if name in given)
    phases = [name for name in names if name in expected]
    listed, factors = figures(), phase_factors(run)
    floor_s = FLOOR * max(expected["step"].mean, given.get("step", 0.0))
    values = np.array([given[name] for name in names])
    floors = np.array([floor_s if name in expected else listed[name].floor for name in names])
    own = [_noise_of(name, noise) if name in expected else listed[name].spread for name in names]
    error = np.zeros((len(names), len(names)))
    if phases:
        means = np.array([expected[name].mean for name in phases])
        drawn = np.array([factors[name] for name in phases])
        error[: len(phases), : len(phases)] = covariance(means, drawn, floors[: len(phases)])
    # Noise is of a time, and of its logarithm with a floor the less the smaller it is.
    return Observed(names, values, floors, np.maximum(LEAST_NOISE, np.array(own) * values / (values + floors)), error)


def _noise_of(name: str, noise: Noise) -> float:
    return noise if isinstance(noise, float) else noise.get(name, NOISE)


def logs_of(observed: Observed, expected: Mapping[str, Interval], healthy: Pattern, pattern: Pattern) -> FloatArray:
    """Logarithms of what a run with ``pattern`` is expected to show: the answer moved as the simulations differ."""
    moved = {name: one.mean + pattern.phases[name] - healthy.phases[name] for name, one in expected.items()}
    wanted = [name for name in observed.names if name not in expected]
    told = {name: pattern.figures.get(name, healthy.figures[name]) for name in wanted}
    return observed.logs({**moved, **told})


def checked_phases(
    run: SimulatedVariant, expected: Mapping[str, Interval], given: Mapping[str, float], observed: Observed
) -> tuple[CheckedPhase, ...]:
    """Every phase with its verdict and its MFU."""
    shares = {one.phase.removesuffix("_s"): one.mfu for one in efficiency_of(run)}
    return tuple(_checked(name, expected[name], given.get(name), observed, shares.get(name)) for name in expected)


def _checked(
    name: str, expected: Interval, measured: float | None, observed: Observed, mfu: float | None
) -> CheckedPhase:
    """A phase with its verdict: outside the interval, widened by the noise, or within it."""
    told: dict[str, Any] = {"phase": name, "expected_s": expected, "expected_mfu": mfu}
    if measured is None:
        return CheckedPhase(**told, measured_s=None, ratio=None, lost_s=None, verdict="not given")
    place = observed.names.index(name)
    wide, floor = widened(expected, float(observed.noise[place])), float(observed.floors[place])
    verdict: Verdict = "as expected"
    if measured > wide.high + floor:
        verdict = "slow"
    elif measured < wide.low - floor:
        verdict = "fast"
    return CheckedPhase(
        **told,
        measured_s=measured,
        ratio=measured / expected.mean if expected.mean > floor else None,
        lost_s=measured - expected.mean,
        verdict=verdict,
        mfu=mfu * expected.mean / measured if mfu and measured > 0 else None,
    )
