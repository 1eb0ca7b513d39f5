"""What to try first: the best of a few moves that ask for keys alone, simulated for the answer itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlsim.loading.differences import changes
from rlsim.projection.moves import LISTS, Tried, best_way, move_named
from rlsim.projection.summary import beside_first, phase_estimate
from rlsim.projection.uncertainty.inputs import guesses_of
from rlsim.projection.variant import SimulatedVariant, replicated
from rlsim.results.moves import TryFirst
from rlsim.results.projection import PhasePart
from rlsim.schema.asynchrony import OBSERVED_STEPS

SHARE = 0.15
"""Replications that the moves may take together, over those of the answer; at most MOST moves."""
MOST = 2
OF_A_GUESS = 1.5
"""Replications that a move takes beside its own, for each input that the scenario guesses, where a loop is far ahead:
it is simulated with less of it, and mostly with more, and warms up for as long each time."""
GAIN = 0.99
"""Step over the step now from which on a move is worth a line."""


def try_first(run: SimulatedVariant, parts: Sequence[PhasePart], variants: int) -> TryFirst | None:
    """The best of a few moves that may save most of a step with such parts; None where none gains or none was tried.

    Each is simulated on the work of the first replication, beside that replication as it is. variants: simulated for
    the answer.
    """
    scenario = run.scenario
    far = scenario.measured_steps.start > OBSERVED_STEPS
    each = 1.0 + (OF_A_GUESS * len(guesses_of(scenario)) if far else 0.0)
    count = min(MOST, round(SHARE * len(run.traces) * variants / each))
    one = replicated(scenario, 1)
    found = list[Tried]()
    for name in _candidates(run, parts) if count else ():
        best = best_way(one, move_named(name))
        if not isinstance(best, str):
            found.append(best)
        if len(found) == count:
            break
    if not found:
        return None
    best = min(found, key=lambda tried: tried.step_s)
    after = beside_first(run, best.timed)
    ratio = after.mean / phase_estimate(run, "step").mean
    if ratio > GAIN:
        return None
    return TryFirst(
        name=best.move.name,
        title=best.move.title,
        changes=changes(one, best.scenario),
        step_s=after.interval,
        speedup=1.0 / ratio,
    )


def _candidates(run: SimulatedVariant, parts: Sequence[PhasePart]) -> list[str]:
    """Names of moves, those first that can save most of a step."""
    waited = phase_estimate(run, "exposed_generation_s").mean / max(phase_estimate(run, "generation_s").mean, 1e-9)

    def saved_s(one: Mapping[str, Any]) -> float:
        inside = [part for part in parts if part.phase == one["phase"]]
        seconds = sum(part.seconds for part in inside if one["bound"] in ("any", part.bound))
        # What a trainer does not wait for saves nothing where it is shorter.
        return float(seconds * one["share"] * (waited if one["phase"] == "generation_s" else 1.0))

    return [one["move"] for one in sorted(LISTS["first"], key=saved_s, reverse=True)]
