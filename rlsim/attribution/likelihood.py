"""How well hypotheses explain what was measured: likelihoods of patterns of phases, in logarithms.

A time v counts as u = log(v + f), f a hundredth of a step, so that phases of next to no time say next to nothing. Under
a hypothesis with pattern p, u is distributed around u(p) as a multivariate Student's t whose scale is the model's own
error (the covariance of the draws behind the healthy run's intervals, and in no phase less than f: all hypotheses share
it) and the noise of the measurement. Along a fault's severity the likelihood is averaged, so that one that fits
anything is not preferred for it (Kass and Raftery 1995, doi:10.1080/01621459.1995.10476572).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from rlsim.attribution.faults import Pattern, figures, figures_of, phase_names
from rlsim.errors import InputError
from rlsim.projection.efficiency import efficiency_of
from rlsim.projection.summary import around_phase, contract_name
from rlsim.projection.uncertainty.predictive import DRAWS, prediction_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.results import Interval
from rlsim.results.check import CheckedPhase, Verdict
from rlsim.results.record import P90_DEVIATIONS, PHASE_FLOOR, widened
from rlsim.units import FloatArray

DEGREES = 5.0
"""Degrees of freedom of the likelihood: model errors have heavier tails than a normal distribution. Assumption."""
BETWEEN = 64
"""Points of a path from one simulated severity to the next, so close that neighbours differ by less than the noise."""
LEAST_NOISE = 0.005
UNLISTED_DEVIATION = 1.0
"""Deviation of the logarithm of each phase under a cause that is in no list: any phase up to several times off."""
CUT = 0.005
"""Share of the draws at either end that the covariance leaves out."""
NEAR = 1e-4
"""Difference of logarithms below which their logarithmic mean is the plain one."""


class Observed(Struct, frozen=True, eq=False):
    """What was measured, by name, with the floors of its logarithms and the deviations of its noise and of the model.

    error: covariance of the model's error of the logarithms, shape (n, n).
    """

    names: tuple[str, ...]
    values: FloatArray
    floors: FloatArray
    noise: FloatArray
    error: FloatArray

    def logs(self, pattern: Mapping[str, float]) -> FloatArray:
        """The pattern's logarithms of what was measured."""
        return np.log(np.array([max(0.0, pattern[name]) for name in self.names]) + self.floors)

    @property
    def measured_logs(self) -> FloatArray:
        """Logarithms of the measured values."""
        return np.log(self.values + self.floors)

    def log_likelihood(self, logs: FloatArray) -> FloatArray:
        """Log likelihood of patterns, given as logarithms of what was measured, shape (..., n)."""
        return student_log_density(self.measured_logs - logs, self.error + np.diag(self.noise**2))

    def log_likelihood_unlisted(self, logs: FloatArray) -> FloatArray:
        """Log likelihood of a cause that is in no list, around the healthy pattern."""
        spread = np.eye(len(self.names)) * UNLISTED_DEVIATION**2
        return student_log_density(self.measured_logs - logs, self.error + spread)

    def agree(self, first: FloatArray, second: FloatArray) -> bool:
        """Whether two patterns differ by less than the noise of each measurement."""
        return bool(np.all(np.abs(first - second) <= self.noise))

    def nearer(self, pattern: FloatArray, healthy: FloatArray) -> bool:
        """Whether a pattern moves a measurement of the healthy one by more than its noise, and towards what it is."""
        before, after = (np.abs(self.measured_logs - logs) for logs in (healthy, pattern))
        return bool(np.any((np.abs(pattern - healthy) > self.noise) & (after < before)))


def covariance(expected: FloatArray, factors: FloatArray, floors: FloatArray) -> FloatArray:
    """Covariance of the logarithms of ``expected`` values under the draws of their factors, shape (n, draws)."""
    logs = np.log(np.maximum(0.0, expected[:, None] * factors) + floors[:, None])
    # Heavy tails: a few draws would else decide the covariance.
    low, high = np.quantile(logs, (CUT, 1 - CUT), axis=1, keepdims=True)
    return np.atleast_2d(np.cov(np.clip(logs, low, high)))


def floored(error: FloatArray, first: FloatArray, second: FloatArray, floors: FloatArray) -> FloatArray:
    """``error``, a covariance of logarithms, with deviations of at least what ``floors`` in seconds are as logarithms.

    first, second: seconds measured and expected. Between the two the logarithms differ by as many of these deviations
    as the seconds do: they are divided by the logarithmic mean.
    """
    one, other = first + floors, second + floors
    apart = np.log(one / other)
    # (a - b) / ln(a / b) loses its digits where a and b are nearly equal.
    near = np.abs(apart) < NEAR
    mean = np.where(near, (one + other) / 2, (one - other) / np.where(near, 1.0, apart))
    least = (floors / P90_DEVIATIONS / mean) ** 2
    return np.asarray(error + np.diag(np.maximum(0.0, least - np.diag(error))))


def student_log_density(residual: FloatArray, scale: FloatArray) -> FloatArray:
    """Logarithm of the density of a multivariate Student's t with DEGREES, up to a constant of the dimension.
    residual: shape (..., n)."""
    size = residual.shape[-1]
    distance = (residual * np.linalg.solve(scale, residual.T).T).sum(axis=-1)
    # slogdet: the determinant of many small variances underflows.
    return np.asarray(-0.5 * np.linalg.slogdet(scale)[1] - 0.5 * (DEGREES + size) * np.log1p(distance / DEGREES))


class Path(Struct, frozen=True, eq=False):
    """A fault's patterns by severity. severities: of its points; logs: shape (points, n)."""

    severities: FloatArray
    logs: FloatArray

    @classmethod
    def through(cls, simulated: Sequence[tuple[float, FloatArray]], whole: bool = False) -> Path:
        """Through simulated points, linear in the logarithms of severity and times; whole: nothing between them."""
        severities, logs = [simulated[0][0]], [simulated[0][1]]
        for (low, before), (high, after) in pairwise(simulated):
            for share in [1.0] if whole else np.arange(1, BETWEEN + 1) / BETWEEN:
                severities.append(low ** (1 - share) * high**share)
                logs.append((1 - share) * before + share * after)
        return cls(np.array(severities), np.array(logs))


class Fit(Struct, frozen=True, eq=False):
    """How well a path explains: logarithm of its mean likelihood, and its best point."""

    log_likelihood: float
    severity: float
    logs: FloatArray


def fitted(observed: Observed, path: Path) -> Fit:
    """The path's mean likelihood and best severity."""
    each = observed.log_likelihood(path.logs)
    best = int(np.argmax(each))
    # Shifted by the best: exponents of unlikely points alone would underflow to 0.
    mean = float(each[best] + math.log(np.mean(np.exp(each - each[best]))))
    return Fit(mean, float(path.severities[best]), path.logs[best])


def probabilities(log_weights: Sequence[float]) -> FloatArray:
    """Shares of one of weights given as logarithms."""
    logs = np.array(log_weights)
    # Shifted by the largest, so that at least one weight survives the exponential.
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


NOISE = 0.05
"""Deviation of a pasted time's logarithm, by default."""

Noise = float | Mapping[str, float]
"""Deviation of the logarithms of measured times, of all or by name."""
TOGETHER = 1.1
"""Times the step that its phases may come to: medians do not add up, and timers begin and end apart. Assumption."""
MOST_DEVIATIONS = 5.0
"""Deviations by which times with a noise of their own may contradict each other."""
MOST_MEASURED = 1e12
"""Largest value that is taken for measured; no seconds, tokens or rates of a step come near it."""
FLAGS = {"refit": "weight-update"}
"""Options of ``rlsim check`` that are called otherwise than their phase."""


def sorted_out(
    run: SimulatedVariant, measured: Mapping[str, float], noise: Noise
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Those of ``measured`` that the scenario of ``run`` has, and remarks on the rest. Raises InputError."""
    scenario = run.scenario
    known = {*phase_names(scenario), *figures_of(run)}
    every = {"generation", "exposed_generation", *known, *figures()}
    for name, value in measured.items():
        if name not in every:
            raise InputError(f"unknown measurement '{name}'; known are {', '.join(sorted(every))}")
        if not (value >= 0 and math.isfinite(value)):
            raise InputError(f"{name}: must be a number of at least 0, got {value:g}")
        if value > MOST_MEASURED:
            raise InputError(f"{name}: must be at most {MOST_MEASURED:g}, got {value:g}")
    given = {name: float(value) for name, value in measured.items() if name in known}
    if not given:
        raise InputError(f"no time of the run is given; give one of {', '.join(phase_names(scenario))}")
    if given.get("step") == 0:
        raise InputError("step (--step): must be above 0 seconds, got 0")
    if scenario.loop.mode == "sync":
        phases = [name for name in phase_names(scenario) if name in given and name != "step"]
        for together in [[name] for name in phases] if scenario.loop.streaming else [phases]:  # those overlap
            _refuse_longer_than_the_step({name: given[name] for name in together}, given.get("step", math.inf), noise)
    left = [name for name in measured if name not in known]
    return given, tuple(f"{name}: a scenario with loop.mode {scenario.loop.mode} has none of it" for name in left)


def _refuse_longer_than_the_step(given: Mapping[str, float], step_s: float, noise: Noise) -> None:
    """Raise InputError where the phases of a synchronous step, one after the other, take longer than the step does.

    noise: deviations of single times are of another step than the rest; times without a stated one are of the same.
    """
    phases = {name: seconds for name, seconds in given.items() if seconds}
    stated = noise if isinstance(noise, float) else 0.0
    most = step_s * max(TOGETHER, math.exp(MOST_DEVIATIONS * math.sqrt(2) * stated))
    if sum(phases.values()) <= most:
        return
    alone = max(phases, key=lambda name: phases[name])
    refused = {alone: phases[alone]} if phases[alone] > most else phases
    listed = ", ".join(f"--{FLAGS.get(name, name)} {seconds:g}" for name, seconds in refused.items())
    what = "is" if len(refused) == 1 else f"come to {sum(refused.values()):g}, which is"
    raise InputError(
        f"{listed} {what} longer than --step {step_s:g}: the phases of a synchronous step follow one another "
        "within it (seconds of one and the same step are needed; of an asynchronous run, loop.mode=async)"
    )


def expected_phases(run: SimulatedVariant) -> dict[str, Interval]:
    """Each phase with its 90 % interval, as ``rlsim project`` answers it."""
    mode = run.scenario.loop.mode
    return {name: around_phase(run, contract_name(name, mode)) for name in phase_names(run.scenario)}


def phase_factors(run: SimulatedVariant) -> dict[str, FloatArray]:
    """Draws of the model's error of each phase, as factors of its time."""
    predicted, mode, out = prediction_of(run), run.scenario.loop.mode, {}
    for name in phase_names(run.scenario):
        contract = contract_name(name, mode)
        seconds = run.phases_s.get(contract, 1.0)
        # A loop that never waits for generation has nothing that an error could scale.
        never = name == "exposed_generation" and seconds <= 0
        out[name] = np.ones(DRAWS) if never else predicted.factor(contract, seconds)
    return out


def observed_of(
    run: SimulatedVariant, expected: Mapping[str, Interval], given: Mapping[str, float], noise: Noise,
    own_level: bool = False,
) -> Observed:  # fmt: skip
    """Measured values with their floors, their noise and the model's error, which a run's ``own_level`` leaves out."""
    names = tuple(name for name in (*expected, *figures()) if name in given)
    phases = [name for name in names if name in expected]
    listed, factors = figures(), phase_factors(run)
    # Of the longer step: in a run that is far slower, small phases are as negligible as they look there.
    floor_s = PHASE_FLOOR * max(expected["step"].mean, given.get("step", 0.0))
    values = np.array([given[name] for name in names])
    floors = np.array([floor_s if name in expected else listed[name].floor for name in names])
    of_times = dict.fromkeys(expected, noise) if isinstance(noise, float) else noise
    noises = [of_times.get(name, NOISE) if name in expected else listed[name].spread for name in names]
    error = np.zeros((len(names), len(names)))
    if phases:
        means = np.array([expected[name].mean for name in phases])
        drawn = np.array([factors[name] for name in phases])
        size = slice(len(phases))
        drawn_error = covariance(means, drawn, floors[size]) * (0.0 if own_level else 1.0)
        error[size, size] = floored(drawn_error, values[size], means, floors[size])
    # Noise is of a time, and of its logarithm with a floor the less the smaller it is.
    return Observed(
        names, values, floors, np.maximum(LEAST_NOISE, np.array(noises) * values / (values + floors)), error
    )


def logs_of(observed: Observed, expected: Mapping[str, Interval], healthy: Pattern, pattern: Pattern) -> FloatArray:
    """Logarithms of what a run with ``pattern`` is expected to show: the answer moved as the simulations differ."""
    moved = {name: one.mean + pattern.phases[name] - healthy.phases[name] for name, one in expected.items()}
    wanted = [name for name in observed.names if name not in expected]
    figure_values = {name: pattern.figures.get(name, healthy.figures[name]) for name in wanted}
    return observed.logs({**moved, **figure_values})


def checked_phases(
    run: SimulatedVariant, expected: Mapping[str, Interval], given: Mapping[str, float], observed: Observed
) -> tuple[CheckedPhase, ...]:
    """Every phase with its verdict and its MFU."""
    # A phase of teachers alone has none of the policy's FLOP.
    shares = {one.phase.removesuffix("_s"): one.mfu for one in efficiency_of(run) if one.mfu}
    return tuple(_checked(name, expected[name], given.get(name), observed, shares.get(name)) for name in expected)


def _checked(
    name: str, expected: Interval, measured: float | None, observed: Observed, mfu: float | None
) -> CheckedPhase:
    """A phase with its verdict: outside the interval, widened by the noise, or within it."""
    about: dict[str, Any] = {"phase": name, "expected_s": expected, "expected_mfu": mfu}
    if measured is None:
        return CheckedPhase(**about, measured_s=None, ratio=None, lost_s=None, verdict="not given")
    place = observed.names.index(name)
    wide, floor = widened(expected, float(observed.noise[place])), float(observed.floors[place])
    verdict: Verdict = "as expected"
    if measured > wide.high + floor:
        verdict = "slow"
    elif measured < wide.low - floor:
        verdict = "fast"
    return CheckedPhase(
        **about,
        measured_s=measured,
        # Ratios to next to nothing would be the largest of the table.
        ratio=measured / expected.mean if expected.mean > floor else None,
        lost_s=measured - expected.mean,
        verdict=verdict,
        mfu=mfu * expected.mean / measured if mfu and measured > 0 else None,
    )
