"""What a step of a user's stack would take if it were tuned as its makers' recipes are."""

from __future__ import annotations

from msgspec.structs import replace

from rlsim.loading.scenario import vary
from rlsim.parameters.posterior import NONE
from rlsim.parameters.users import user_runs_of
from rlsim.projection.summary import timed
from rlsim.projection.variant import SimulatedVariant, replicated, simulate_variant
from rlsim.results.record import Interval


def tuned_step_s(run: SimulatedVariant) -> Interval | None:
    """Seconds of a step without what users' runs take beyond tuned ones, on the network that the profile says where
    none is stated; None for a stack of tuned recipes.

    The scenario's own mean, moved by what the work of its first replication shows; the error of that is its own.
    """
    scenario = run.scenario
    stack = scenario.training_stack
    if stack is None or stack.tuned or user_runs_of(scenario) is None:
        return None
    other = simulate_variant(vary(replicated(scenario, 1), {"simulation.user_runs": NONE}))
    ratio = sum(step.seconds for step in other.steps[0]) / sum(step.seconds for step in run.steps[0])
    step, now = timed(other).step, timed(run).step
    return replace(step, mean=now.mean * ratio, error=now.error, degrees=now.degrees).interval
