"""Policies against the tail of a rollout, as scenario changes."""

from __future__ import annotations

from collections.abc import Callable

from rlsim.loading.scenario import vary
from rlsim.schema.scenario import Scenario

CARRIED_SHARE = 0.25
"""Groups started beyond a batch where unfinished ones wait for the next step. Assumption: a quarter."""

Policy = tuple[str, str, Callable[[Scenario], Scenario]]


def tail_policies(scenario: Scenario) -> list[Policy]:
    """Name, meaning and change of each policy that the scenario does not follow already."""
    found: list[Policy] = []
    if scenario.workload.agent is not None:
        return found
    lagged = scenario.loop.mode == "async"
    # In a lagged loop groups start a few at a time, when every replica has room: then who is least loaded takes them.
    dispatch = "least_loaded" if lagged else "shared_queue"
    if scenario.engine.dispatch != dispatch:
        how = "samples go to the replica with the fewest" if lagged else "replicas take samples from one queue"
        found.append(("work stealing", how, lambda one: vary(one, {"engine.dispatch": dispatch})))
    if scenario.loop.mode == "sync":
        if scenario.workload.usable_group_share == 1:
            found += [_carried("partial rollouts", "recompute_kv", "goes on in the next step")]
            found += [_carried("tail batching", "restart_requests", "starts again in the next step")]
    elif scenario.loop.asynchrony.membership == "target":
        found.append(
            (
                "first done",
                "a step trains on the groups that are done first",
                lambda one: vary(one, {"loop.membership": "first_done"}),
            )
        )
    return found


def _carried(name: str, key: str, what: str) -> Policy:
    """A quarter more groups start than a step trains on; what is not among the first done ``what``."""

    def change(scenario: Scenario) -> Scenario:
        return vary(
            scenario,
            {
                "loop.mode": "async",
                "loop.overlap": False,
                "loop.membership": "first_done",
                "loop.staleness_fraction": CARRIED_SHARE,
                f"loop.{key}": True,
                "simulation.warmup_steps": None,
                "simulation.steps": None,
            },
        )

    return name, f"a quarter more groups start than a step trains on; what is not done {what}", change
