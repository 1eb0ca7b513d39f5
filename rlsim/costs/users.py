"""What runs of users take beyond tuned ones: families of a scenario, and the deviations of its phases."""

from rlsim.parameters.users import deviation_of, load_user_runs, user_runs_of
from rlsim.schema.scenario import Scenario
from rlsim.schema.users import UserDeviation, UserHost

EVERY = "all"
"""The family of any run."""
UNKNOWN = "unknown"
"""Framework of a stack that stands for software that nobody named."""


def families(scenario: Scenario, phase: str) -> tuple[str, ...]:
    """Families of a phase of ``scenario``, the most specific first.

    Trainers differ by backend, by whether there are experts, and by framework; rollouts by experts and engine;
    transfers by whether both share their GPUs, and by framework.
    """
    stack, kind = scenario.training_stack, "dense" if scenario.model.moe is None else "experts"
    framework = UNKNOWN if stack is None else stack.framework
    parts: tuple[str, ...]
    if phase == "generation":
        parts = (kind, scenario.engine.name)
    elif phase == "transfer":
        parts = ("colocated" if scenario.cluster.colocated else "split", framework)
    else:
        parts = (scenario.trainer.backend, kind, framework)
    return (*(", ".join(parts[:count]) for count in range(len(parts), 0, -1)), EVERY)


def user_deviation(scenario: Scenario, phase: str) -> UserDeviation | None:
    """How users' runs like ``scenario`` deviate in ``phase``; None for a stack of tuned recipes."""
    stack = scenario.training_stack
    if stack is None or stack.tuned or scenario.simulation.measured_stack is not None:
        return None
    if phase in ("logprob", "train") and scenario.trainer.device_efficiency is not None:
        return None  # its own speed is stated
    known = user_runs_of(scenario)
    return None if known is None else deviation_of(known, phase, families(scenario, phase))


def user_host(scenario: Scenario) -> UserHost | None:
    """Host that engines have beyond that of measured servers: of the class that a scenario states, else of users' runs.

    None where its time or its speed is stated, and where the stack is tuned and no class is stated.
    """
    stack, engine = scenario.stack, scenario.engine
    known_time = engine.host_iteration_s is not None or engine.host_slowdown is not None
    if known_time or scenario.simulation.measured_stack is not None:
        return None
    if engine.host is not None:
        known = user_runs_of(scenario) or load_user_runs()  # a stated class counts for tuned runs too
        return None if known is None else known.host_classes.get(engine.host)
    known = None if stack is None or stack.tuned else user_runs_of(scenario)
    return None if known is None else known.host
