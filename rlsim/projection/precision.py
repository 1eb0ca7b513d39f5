"""Simulating on until an answer is as exact as its scenario asks."""

import math
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from rlsim.errors import Infeasible
from rlsim.projection.control import FURTHER_PER_STEP, LEAST_BATCHES, MOST_FURTHER, control_of
from rlsim.projection.scale import TURN, pools_of
from rlsim.projection.summary import phase_estimate, simulated_estimate
from rlsim.projection.uncertainty.estimate import Estimate, relative_error
from rlsim.projection.variant import SimulatedVariant, compared_run, extended, seconds_of, simulate_variant
from rlsim.schema.scenario import MAX_SIMULATED_STEPS, MOST_SAMPLES, Scenario
from rlsim.workload.draw import BEGINNING

GROWTH = 4
"""Times the replications of a block that the next one brings at most: an error found in few of them may be far off."""
LEAST_PAIRED = 4
"""Parts of equal drawn work behind a slope, which misses itself by 1 / (n - 3) of the variance."""
RESERVE = 1.2
"""Replications over those that the error of now asks for, so that one further block mostly does."""


def precise(
    run: SimulatedVariant, progress: Callable[[int, int], object] = lambda done, total: None
) -> SimulatedVariant:
    """``run`` with so many replications that the standard error of its step is within the precision of its scenario, or
    MOST_SAMPLES are simulated; as it is where the scenario states its replications.

    Blocks of whole replications whose number follows from the draws alone: same scenario and seed, same answer. Steps
    that last as long as they have tokens, or mostly wait for environments, are moved to what these are in the mean
    (projection/control.py).
    progress: as of :func:`~rlsim.projection.variant.extended`.
    """
    while run.scenario.simulation.replications is None:
        run = _controlled(run)
        now = len(run.traces)
        wanted = min(GROWTH * now, _wanted(run), _affordable(run))
        if wanted <= now:
            break
        run = extended(run, wanted, progress)
    return run


@lru_cache(maxsize=8)
def answered(scenario: Scenario) -> Estimate:
    """The step that ``project`` answers. Raises Infeasible where the scenario cannot run."""
    return phase_estimate(precise(simulate_variant(scenario, tokens=False)), "step")


class Anchor(Struct, frozen=True, eq=False):
    """What carries the steps of alternatives over to what ``project`` answers of a scenario. own: that step. base: the
    one on the work on which alternatives are compared."""

    own: Estimate
    base: Estimate

    @property
    def scale(self) -> float:
        """The step that ``project`` answers over that of the compared work."""
        return self.own.mean / self.base.mean

    def carried(self, other: Estimate) -> "Carried":
        """How the step of an alternative on that work is carried over: with the part of :attr:`scale` by which it moves
        with the scenario's from one independent part of the work to the next. All of it where both wait for the same
        environments, none for a lagged loop, whose measured steps are others than those of a synchronous one.

        The regression estimator of Cochran, Sampling Techniques, 3rd ed., chapter 7, of relative times; its slope lies
        between 0 and 1, and is 1 where there are too few parts for one. Parts of different number do not pair.
        """
        count = len(other.parts)
        if count != len(self.base.parts):
            return Carried(1.0, other.error, math.hypot(self.own.error, other.error))
        x, y = (one.parts / one.parts.mean() - 1.0 for one in (self.base, other))
        known = count >= LEAST_PAIRED and bool(x.any())
        slope = min(1.0, max(0.0, float(x @ y / (x @ x)))) if known else 1.0
        rest = relative_error(1.0 + y - slope * x, 1.0) * (math.sqrt((count - 1) / (count - 3)) if known else 1.0)
        # What one pool of engines leaves open of many no part shows.
        rest = math.hypot(rest, other.carried - slope * self.base.carried)
        both = slope * self.own.error  # which the ratio of the two does not have
        ratio_error = math.hypot(rest, self.own.error - both)
        return Carried(1.0 + slope * (self.scale - 1.0), math.hypot(rest, both), ratio_error)


class Carried(Struct, frozen=True):
    """What the seconds of an alternative are to be taken times, its relative error then, and that of its ratio to what
    ``project`` answers."""

    scale: float
    error: float
    ratio_error: float


@lru_cache(maxsize=8)
def anchor(scenario: Scenario) -> Anchor | None:
    """The anchor of a scenario; None of stated replications, which are compared as they are, and of one that cannot run
    itself."""
    if scenario.simulation.replications is not None:
        return None
    try:
        return Anchor(answered(scenario), simulated_estimate(compared_run(scenario), "step"))
    except Infeasible:
        return None


def _controlled(run: SimulatedVariant) -> SimulatedVariant:
    """The run beside a control of its drawn work, where its error is too large and most of it is that work's."""
    scenario, step = run.scenario, simulated_estimate(run, "step")
    asked = scenario.simulation.precision
    # One pool of engines draws other work than the scenario, lengths that grow have other means than its own. A lagged
    # step is of several steps' work: moved by that of its own it would be 0.3 % too short and held in 60 %
    # of draws (benchmarks/coverage.py).
    as_stated = pools_of(scenario) == 1 and run.stretch == BEGINNING
    apart = scenario.workload.agent is not None or scenario.loop.mode == "sync"
    if run.control is not None or step.error <= asked or not (as_stated and apart):
        return run
    most = min(MOST_FURTHER, FURTHER_PER_STEP * scenario.measured_steps.stop * _affordable(run))
    # Half of the variance that is asked for: the other half is what the control leaves of the simulated steps.
    aim, values = asked * step.mean / math.sqrt(2.0), run.values(seconds_of("step"))
    control = control_of(scenario.workload, scenario.simulation.seed, values, run.seen, aim, most)
    return run if control is None else replace(run, control=control)


def _wanted(run: SimulatedVariant) -> int:
    """Replications after which the error would be within the precision; it falls with their root, but for what one pool
    of engines leaves open of many, which they only show better."""
    step, asked, count = simulated_estimate(run, "step"), run.scenario.simulation.precision, len(run.traces)
    if run.control is not None and run.fitted_batches < LEAST_BATCHES:
        return math.ceil(count * LEAST_BATCHES / run.fitted_batches)
    if step.error <= asked:
        return count
    left = max(asked**2 - step.carried**2, (asked / 2) ** 2)
    return math.ceil(RESERVE * count * (step.error**2 - step.carried**2) / left)


def _affordable(run: SimulatedVariant) -> int:
    """Replications that MOST_SAMPLES pay for."""
    steps, samples, pools = run.scenario.measured_steps, run.scenario.workload.samples_per_step, pools_of(run.scenario)
    turns = run.agents.turns / (len(run.traces) * len(steps) * samples)
    samples = 2 * samples // pools if pools > 1 else samples  # a pool and its halves
    by_work = int(MOST_SAMPLES / (steps.stop * samples * max(1.0, TURN * turns)))
    return min(by_work, MAX_SIMULATED_STEPS // steps.stop)
