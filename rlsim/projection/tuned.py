"""What a step of a user's stack would take if it were tuned as its makers' recipes are."""

from rlsim.loading.scenario import vary
from rlsim.parameters.posterior import NONE
from rlsim.parameters.users import user_runs_of
from rlsim.projection.summary import beside_first, timed
from rlsim.projection.variant import SimulatedVariant, replicated, simulate_variant
from rlsim.results.record import Interval


def tuned_step_s(run: SimulatedVariant) -> Interval | None:
    """Seconds of a step without what users' runs take beyond tuned ones, on the network that the profile says where
    none is stated, by the work of the first replication; None for a stack of tuned recipes."""
    scenario = run.scenario
    stack = scenario.training_stack
    if stack is None or stack.tuned or user_runs_of(scenario) is None:
        return None
    other = timed(simulate_variant(vary(replicated(scenario, 1), {"simulation.user_runs": NONE})))
    return beside_first(run, other).interval
