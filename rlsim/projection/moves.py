"""Moves: named changes of a scenario that may shorten its step, each with what it asks and where it comes from.

One registry (moves.yaml) for every command that asks "what would change this answer": what two commands show of a move
is one number, since both simulate the same overrides on the same drawn work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct

from rlsim.costs.engine.releases import launched_drafts, schedules_ahead
from rlsim.costs.stack_terms import fsdp_terms
from rlsim.errors import Infeasible, InputError
from rlsim.files.yaml import lists_beside
from rlsim.loading.differences import differences
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides
from rlsim.projection.summary import Timed, mean_value, timed
from rlsim.projection.variant import searched, simulate_variant
from rlsim.schema.scenario import Scenario

LISTS: Mapping[str, Any] = lists_beside(__file__, "moves.yaml")
"""Moves, what they need, and the values that are tried."""
ALREADY = "the scenario does so already"
TIMED_CACHED = 128
"""Scenarios whose times are cached per process: all that one answer tries. Each takes some hundred kB of draws."""
PLAN = "plan"
"""What a move tries out that is fair in a layout of its own alone; planning/techniques.py searches that."""
SETTING = "setting"
"""Kind of a move that asks for keys alone: the same samples, update, engine release and GPUs."""


class Move(Struct, frozen=True):
    """A move as the list has it. sets: its overrides, words included; asks: of algorithm or user; exact: whether the
    same samples train the same update, in distribution."""

    name: str
    title: str
    kind: str
    sets: Overrides
    asks: str
    source: str
    exact: bool
    tries: str = ""
    needs: str = ""

    def missing(self, scenario: Scenario) -> str:
        """Why the scenario is none for it; empty where it is."""
        batch, drafts = scenario.trainer.global_batch_samples, scenario.speculation
        holds = {
            "": True,
            "agent": scenario.workload.agent is not None,
            "reference": scenario.trainer.reference_logprobs,
            "undrafted": not drafts.active,
            "drafts": drafts.active,
            "eager_drafts": launched_drafts(scenario),
            "unscheduled": not schedules_ahead(scenario.released_engine, scenario.model, drafts),
            "in_order": scenario.loop.mode == "async" and scenario.loop.asynchrony.membership == "target",
            "synchronous": scenario.loop.mode == "sync",
            "apart": not scenario.cluster.colocated,
            "hugging_face": fsdp_terms(scenario) is not None,
            "one_update": batch is None or batch >= scenario.workload.samples_per_step,
        }
        return "" if holds[self.needs] else str(LISTS["needs"][self.needs])

    def ways(self, scenario: Scenario) -> list[Overrides]:
        """Its overrides, with each value of what it tries out; a cluster that is split already stays so."""
        if self.tries in ("", PLAN) or (self.tries == "split" and not scenario.cluster.colocated):
            return [self.sets]
        tried = _TRIED[self.tries]
        return [{**self.sets, **tried(scenario, value)} for value in LISTS["values"][self.tries]]


class Tried(Struct, frozen=True):
    """A scenario under a move, and its step beside the one it is compared with."""

    move: Move
    overrides: Overrides
    scenario: Scenario
    timed: Timed

    @property
    def step_s(self) -> float:
        """Mean seconds of its step."""
        return self.timed.step_s


@cache
def moves() -> tuple[Move, ...]:
    """All moves of the list."""
    return tuple(
        Move(name=name, sets=one["set"], **{key: value for key, value in one.items() if key != "set"})
        for name, one in LISTS["moves"].items()
    )


def move_named(name: str) -> Move:
    """The move of that name."""
    return next(one for one in moves() if one.name == name)


def best_way(scenario: Scenario, move: Move) -> Tried | str:
    """The fastest way to apply a move, or why there is none."""
    if missing := move.missing(scenario):
        return missing
    ways = move.ways(scenario)
    try:
        return tried(scenario, move, ways[0] if len(ways) == 1 else _fastest(scenario, ways))
    except (Infeasible, InputError) as error:
        return str(error).removeprefix("infeasible: ")


def _fastest(scenario: Scenario, ways: Sequence[Overrides]) -> Overrides:
    """The fastest of several ways on the work of a search: which is best that tells, how good it is all of them do.

    Raises what the first way raises where none runs.
    """
    one = searched(scenario)
    found, errors = list[tuple[float, int]](), list[Infeasible | InputError]()
    for place, overrides in enumerate(ways):
        try:
            run = simulate_variant(_changed(one, overrides), tokens=False)
            found.append((mean_value(run, lambda step: step.seconds), place))
        except (Infeasible, InputError) as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return ways[min(found)[1]]


def fairly_split(scenario: Scenario, overrides: Overrides) -> Overrides:
    """Overrides that ask for a lag on shared GPUs and name no split, with the best share of GPUs that generate; others
    as they are."""
    named = {"generation_share", "cluster.generation_gpus", "cluster.training_gpus"} & overrides.keys()
    if not overrides.get("lag") or named or not scenario.cluster.colocated:
        return overrides
    ways = [{**overrides, "generation_share": share} for share in LISTS["values"]["split"]]
    return _fastest(scenario, ways)


def tried(scenario: Scenario, move: Move, overrides: Overrides) -> Tried:
    """The scenario under some overrides. Raises InputError where they make no sense or change nothing, and Infeasible
    where it cannot run so."""
    after = _changed(scenario, overrides)
    return Tried(move, overrides, after, timed_of(after))


@lru_cache(maxsize=TIMED_CACHED)
def timed_of(scenario: Scenario) -> Timed:
    """The scenario simulated once, whichever parts of an answer ask for it. Raises Infeasible and InputError."""
    return timed(simulate_variant(scenario, tokens=False))


def _changed(scenario: Scenario, overrides: Overrides) -> Scenario:
    """The scenario under overrides; InputError where they change nothing."""
    after = varied(scenario, overrides)
    if not differences(scenario, after):
        raise InputError(ALREADY)
    return after


def varied(base: Scenario, overrides: Overrides) -> Scenario:
    """The varied scenario; InputError without the list of overrides in front of its message."""
    try:
        return vary(base, overrides)
    except InputError as error:
        _, marker, rest = str(error).partition(": ")
        raise InputError(rest if marker and str(error).startswith("scenario '") else str(error)) from None


def _pooled(scenario: Scenario, share: float) -> Overrides:
    """GPUs of the trainer for the reference policy, whole shards of it."""
    cluster, trainer = scenario.cluster, scenario.trainer
    shard = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
    # The reference policy has the trainer's layout, so that its pool holds whole shards (schema/scenario.py).
    gpus = max(1, round(share * cluster.training / shard)) * shard
    left = {} if cluster.training_gpus is None else {"cluster.training_gpus": cluster.training - gpus}
    return {"cluster.reference_gpus": gpus, **left}


def _trajectories(scenario: Scenario, share: float) -> Overrides:
    return {"workload.agent.max_trajectories": math.ceil(share * scenario.workload.samples_per_step)}


def _tensor(scenario: Scenario, factor: float) -> Overrides:
    size = scenario.engine.tensor_parallel * factor
    # Half of one is none: what the key then says of itself is the reason.
    return {"engine.tensor_parallel": int(size) if size >= 1 else 0}


def _captured(scenario: Scenario, tokens: float) -> Overrides:
    return {"engine.max_captured_tokens": int(tokens)}


def _micro_batch(scenario: Scenario, factor: float) -> Overrides:
    trainer = scenario.trainer
    if trainer.micro_batch_tokens is not None:
        return {"trainer.micro_batch_tokens": int(trainer.micro_batch_tokens * factor)}
    return {"trainer.micro_batch_samples": int((trainer.micro_batch_samples or 1) * factor)}


_TRIED: Mapping[str, Callable[[Scenario, Any], Overrides]] = {
    "split": lambda scenario, share: {"generation_share": share},
    "share": lambda scenario, share: {"generation_share": share},
    "pool": _pooled,
    "trajectories": _trajectories,
    "tensor": _tensor,
    "captured": _captured,
    "micro_batch": _micro_batch,
    "draft_length": lambda scenario, step: {"k": scenario.speculation.draft_length + step},
}


def faster(found: Sequence[Tried], step_s: float) -> list[Tried]:
    """Those that shorten a step of ``step_s`` seconds, fastest first."""
    return sorted((one for one in found if one.step_s < step_s), key=lambda one: one.step_s)
