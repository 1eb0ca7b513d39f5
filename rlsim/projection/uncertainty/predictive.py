"""Predictive draws of a simulated scenario: what else its phases and its step may take.

Every draw moves all fitted terms and group deviations together as their posterior says, draws anew what was never
measured (a release, a device, a model, what a layout alone misses), and puts the phases together to a step. Draws are
the same for every scenario and command: what two scenarios share moves them alike, so that speed-ups and rankings stay
sharp, and one question has one interval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct

from rlsim.costs.operators.groups import family_of, phase_groups
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior
from rlsim.projection.uncertainty.inputs import OpenInput, open_inputs
from rlsim.projection.uncertainty.response import Factors, StepResponse, step_response
from rlsim.projection.uncertainty.slopes import PhaseSlopes, Slopes, phase_slopes
from rlsim.projection.variant import SimulatedVariant
from rlsim.results import Interval
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

Found = TypeVar("Found")

DRAWS = 2048
"""Draws behind an interval; a bound of the 90 % interval is then off by some 3 % of its distance from the middle."""
LOW, HIGH = 0.05, 0.95
PHASES = ("generation", "logprob", "train", "transfer")
PRICED_BY_TABLES = ("generation", "logprob", "train")
NORMAL = 1e6
"""Degrees of freedom from which on Student's t is a normal distribution."""
SEED = 20261122
UNMEASURED_SPREAD = 0.15
"""Scale of a family of groups that no measurement holds at all. Assumption."""


class Prediction(Struct, frozen=True, eq=False):
    """Draws of one simulated scenario, each of shape (DRAWS,).

    factors: of the phases' times. step_s: seconds of the step; central_s: of the step without deviations. slopes: of
    the phases by fitted terms.
    """

    slopes: PhaseSlopes
    response: StepResponse
    factors: Factors
    step_s: FloatArray
    central_s: float

    @property
    def step_factor(self) -> FloatArray:
        """Draws of the step over its simulated time."""
        return self.step_s / self.central_s

    def factor(self, phase: str, seconds: float) -> FloatArray:
        """Draws of ``step`` or a phase (a name of the contract) over its simulated ``seconds``."""
        if phase == "step":
            return self.step_factor
        if phase == "exposed_generation_s":
            return self._exposed_factor(seconds)
        if phase == "generation_s":
            return self._generated_factor(seconds)
        name = "transfer" if phase in ("prepare_s", "refit_s") else phase.removesuffix("_s")
        return np.asarray(getattr(self.factors, name)) if name in PHASES else np.ones(DRAWS)

    def _generated_factor(self, seconds: float) -> FloatArray:
        """Draws of generation over its simulated time; rewards and environments in a synchronous one move with none."""
        rewards_s = self.response.rewards_s
        if self.response.generation_ratio is not None or not rewards_s:
            return self.factors.generation
        return np.asarray(1.0 + max(0.0, 1.0 - rewards_s / seconds) * (self.factors.generation - 1.0))

    def _exposed_factor(self, exposed_s: float) -> FloatArray:
        """Draws of the generation that a step waits for over its simulated time ``exposed_s``."""
        if self.response.generation_ratio is None and not self.response.overlapped_s:
            return self._generated_factor(exposed_s)
        waited = self.step_s - self.response.trainer_s(self.factors)
        centre = self.central_s - float(self.response.trainer_s(unmoved())[0])
        # By its seconds and not by a factor of its own: a trainer that slows down hides more of the generation.
        return np.maximum(0.0, exposed_s + waited - centre) / exposed_s if exposed_s > 0 else np.ones(DRAWS)


def unmoved() -> Factors:
    """Factors of 1."""
    one = np.ones(1)
    return Factors(one, one, one, one)


def cached_with_run(function: Callable[[SimulatedVariant], Found]) -> Callable[[SimulatedVariant], Found]:
    """``function``, called once for each run and cached as long as that lives."""
    found: WeakKeyDictionary[SimulatedVariant, Found] = WeakKeyDictionary()

    @wraps(function)
    def of(run: SimulatedVariant) -> Found:
        if run not in found:
            found[run] = function(run)
        return found[run]

    return of


@cached_with_run
def open_draws(run: SimulatedVariant) -> tuple[tuple[OpenInput, dict[str, FloatArray]], ...]:
    """Inputs that a scenario leaves open, each with what its draws add to the logarithms of the phases' times."""
    drawn = [(one, _heavy(f"input: {one.key}", NORMAL)) for one in open_inputs(run)]
    return tuple((one, {phase: one.moves(phase, normals) for phase in PHASES}) for one, normals in drawn)


@cached_with_run
def prediction_of(run: SimulatedVariant) -> Prediction:
    """Draws of a simulated scenario."""
    response = step_response(run)
    posterior = posterior_of(run.scenario)
    slopes = phase_slopes(run)
    groups = phase_groups(run.scenario)
    parts = [(getattr(slopes, phase), dict.fromkeys(groups[phase], 1.0)) for phase in PHASES]
    logs = dict(zip(PHASES, parted_draws(posterior, parts), strict=True))
    for _, moves in open_draws(run):
        logs = {phase: log + moves[phase] for phase, log in logs.items()}
    # What the operator tables in use miss by their own checks; nothing of imported ones, which the posterior knows.
    tables = run.prices.overheads.tables_error * _heavy(f"operator tables: {run.scenario.hardware.name}", NORMAL)
    factors = Factors(
        **{phase: np.exp(logs[phase] + (tables if phase in PRICED_BY_TABLES else 0.0)) for phase in PHASES}
    )
    central_s = float(response.seconds(unmoved())[0])
    return Prediction(slopes, response, factors, response.seconds(factors), central_s)


def posterior_of(scenario: Scenario) -> Posterior:
    """The posterior whose spreads the scenario's intervals have; the shipped one where it names none."""
    # Without a posterior nothing is shifted, and still something must say how far the values are known.
    found = load_posterior(scenario.simulation.posterior or DEFAULT) or load_posterior(DEFAULT)
    assert found is not None
    return found


def log_draws(posterior: Posterior, slopes: Slopes, groups: Mapping[str, float]) -> FloatArray:
    """Draws of the logarithm of a time around its prediction, shape (DRAWS,).

    slopes: derivatives of the logarithm by fitted terms. groups: coefficient of each group's deviation.
    """
    return np.asarray(parted_draws(posterior, [(slopes, groups)])[0])


def parted_draws(posterior: Posterior, parts: Sequence[tuple[Slopes, Mapping[str, float]]]) -> FloatArray:
    """Draws of each of several parts, given as to :func:`log_draws`; their sum is that of all of them together.

    Shape (parts, DRAWS).
    """
    found = [_drawn(posterior, tuple(slopes.items()), tuple(groups.items())) for slopes, groups in parts]
    return np.array(found, dtype=np.float64).reshape(len(parts), DRAWS)


@lru_cache(maxsize=64)  # of 16 kB each
def _drawn(
    posterior: Posterior, slopes: tuple[tuple[str, float], ...], groups: tuple[tuple[str, float], ...]
) -> FloatArray:
    """Draws of one part. The cells of a sweep ask for those of phases that no axis changes again and again."""
    direction, never_measured, own = np.zeros(len(posterior.columns)), np.zeros(DRAWS), dict(groups)
    for name, value in (*slopes, *groups):
        place = posterior.place(name)
        if place is not None:
            direction[place] += value
        elif name in own:
            scale = posterior.spreads.get(family_of(name), UNMEASURED_SPREAD)
            never_measured += value * scale * _heavy(name, posterior.group_degrees)
    # einsum and not a matrix product: so small a one only wakes the threads of a BLAS up, which then spin.
    spread = np.einsum("c,ck->k", direction, posterior.factor)
    half = np.einsum("k,dk->d", spread, _normals(len(posterior.columns)))
    return np.concatenate([half, -half]) + never_measured


def error_draws(posterior: Posterior, kind: str, name: str) -> FloatArray:
    """Draws of what a measured time of ``kind`` misses by itself, in logarithms."""
    return posterior.errors[kind] * _heavy(f"error of {kind}: {name}", posterior.degrees)


def simulation_draws(degrees: float) -> FloatArray:
    """Draws of Student's t for the mean of a simulation of ``degrees`` + 1 independent parts, shape (DRAWS,)."""
    return _heavy("simulation of two variants", degrees)


def between(values: FloatArray) -> tuple[float, float]:
    """Bounds of the 90 % interval of draws: numpy.quantile's, to the bit, without the modules that it imports."""
    ordered = np.sort(values)
    return _quantile(ordered, LOW), _quantile(ordered, HIGH)


def _quantile(ordered: FloatArray, share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    rest, low, high = place - below, float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    # NumPy's quantile interpolates from the nearer end, and so must this to agree to the bit.
    return low + (high - low) * rest if rest < 0.5 else high - (high - low) * (1 - rest)


def around(mean: float, factors: FloatArray) -> Interval:
    """A simulated quantity with the 90 % interval of its draws; ``factors`` of it."""
    low, high = between(factors)
    # An interval holds its mean even where all draws lie to one side of it.
    return Interval(mean, min(mean, mean * low), max(mean, mean * high))


@lru_cache(maxsize=2)
def _normals(columns: int) -> FloatArray:
    """Standard normal draws, shape (DRAWS / 2, columns); each has its mirror image, whose sums differ in sign alone."""
    # By column, so that a posterior with further columns has the same draws of the others.
    return np.ascontiguousarray(np.random.default_rng(SEED).standard_normal((columns, DRAWS // 2)).T)


@lru_cache(maxsize=4096)
def _heavy(name: str, degrees: float) -> FloatArray:
    """Draws of Student's t for what was never measured, the same for equal names; each draw has its mirror image."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    half = np.random.default_rng(seed).standard_t(degrees, DRAWS // 2)
    # Shuffled, or two names would have their signs in common.
    return np.random.default_rng(seed + 1).permutation(np.concatenate([half, -half]))
