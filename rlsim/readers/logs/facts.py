"""Lengths and acceptance that a run tells, as keys of the scenario that describes it."""

from __future__ import annotations

from rlsim.files.records import dataclass
from rlsim.loading.scenario import vary
from rlsim.readers.logs.steady import Steady
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantLength

SAME = 0.02
"""Difference from what the scenario states, as a share, up to which its key stays as it is."""


@dataclass(frozen=True)
class Taken:
    """A key that the log sets. stated: in the scenario, None where it states none."""

    key: str
    stated: float | None
    measured: float


def with_facts(scenario: Scenario, steady: Steady) -> tuple[Scenario, tuple[Taken, ...]]:
    """``scenario`` with the mean lengths and the acceptance length of the run, where it states others.

    Raises InputError where these contradict the rest of it, as a mean response above the cap.
    """
    taken = [*_lengths(scenario, steady), *_acceptance(scenario, steady)]
    if not taken:
        return scenario, ()
    changes: dict[str, float | None] = {one.key: one.measured for one in taken}
    if "speculation.acceptance_length" in changes:
        changes |= {f"speculation.{name}": None for name in ("position_acceptance", "first_acceptance")}
    return vary(scenario, changes), tuple(taken)


def _lengths(scenario: Scenario, steady: Steady) -> list[Taken]:
    """Mean lengths; those of agents are of whole trajectories and tell no turn."""
    if scenario.workload.agent is not None:
        return []
    out = []
    for name in ("prompt_tokens", "response_tokens"):
        length, found = getattr(scenario.workload, name), steady.found.get(name)
        if found is None:
            continue
        constant = isinstance(length, ConstantLength)
        stated = float(length.tokens) if constant else length.mean_tokens
        measured = float(max(1, round(found.mean))) if constant else found.mean
        if stated is None or abs(measured / stated - 1) > SAME:
            key = f"workload.{name}.{'tokens' if constant else 'mean_tokens'}"
            out.append(Taken(key, stated, int(measured) if constant else float(f"{measured:.6g}")))
    return out


def _acceptance(scenario: Scenario, steady: Steady) -> list[Taken]:
    found, given = steady.found.get("acceptance_length"), scenario.speculation
    if found is None or not given.active:
        return []
    if given.acceptance_length is not None and abs(found.mean / given.acceptance_length - 1) <= SAME:
        return []
    return [Taken("speculation.acceptance_length", given.acceptance_length, float(f"{found.mean:.5g}"))]
