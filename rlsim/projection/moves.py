"""Moves: named changes of a scenario, each with what it asks and where it comes from.

One registry (moves.yaml, faults.yaml) for every command that asks "what would change this answer": what a user can do,
what idle time has as causes, what nobody can do, and what goes wrong. What two commands show of a move is one number,
since both simulate the same change on the same drawn work.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct, convert, field
from msgspec.structs import replace

from rlsim.costs.engine.releases import launched_drafts, schedules_ahead
from rlsim.costs.memory import check_no_worse
from rlsim.costs.stack_terms import fsdp_terms
from rlsim.errors import Infeasible, InputError
from rlsim.files.yaml import lists_beside
from rlsim.loading.differences import differences
from rlsim.loading.overrides import value_at
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides, pool_unit
from rlsim.projection.agent_moves import capped_turns, faster_calls, more_places, started_beforehand
from rlsim.projection.change import Change, Keys
from rlsim.projection.effects import FUNCTIONS
from rlsim.projection.summary import Timed, mean_value, timed
from rlsim.projection.variant import searched, simulate_variant
from rlsim.schema.scenario import Scenario

LISTS: Mapping[str, Any] = lists_beside(__file__, "moves.yaml")
"""Moves, what they need, and the values that are tried."""
FAULTS: Mapping[str, Any] = lists_beside(__file__, "faults.yaml")
"""Misconfigurations, their priors, and the figures that tell them apart."""
ALREADY = "the scenario does so already"
PLAN = "plan"
"""What a move tries out that is fair in a layout of its own alone; planning/techniques.py searches that."""
SETTING = "setting"
"""Kind of a move that asks for keys alone: the same samples, update, engine release and GPUs."""


FORMS: Mapping[str, Callable[[float, float, float], float]] = {
    "x": lambda now, x, step: x,
    "now * x": lambda now, x, step: now * x,
    "now / x": lambda now, x, step: now / x,
    "step * x": lambda now, x, step: step * x,
    "1 + (now - 1) * x": lambda now, x, step: 1 + (now - 1) * x,
}
"""What a key becomes: from its value now, the severity x and the expected seconds of a step."""
GIVEN = "given"
"""In a condition: any value but none."""
Conditions = Mapping[str, Sequence[Any]]
"""Keys or properties of a scenario, each with the values of which it must have one."""


class Move(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named change as the lists have it (the heads of moves.yaml and faults.yaml say what each field means)."""

    name: str
    title: str
    kind: str
    sets: Overrides = field(default_factory=dict, name="set")
    does: str = ""
    tries: str = ""
    needs: str = ""
    when: Conditions = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Overrides] = field(default_factory=dict)
    update: bool = False
    asks: str = "nothing else"
    source: str = ""
    exact: bool = True
    rebound: str = "other waits grow"

    def missing(self, scenario: Scenario) -> str:
        """Why the scenario is none for it; empty where it is."""
        if scenario.loop.supervised and not self.update and self.kind != "fault":
            return str(LISTS["needs"]["generating"])
        if self.needs and not _NEEDS[self.needs](scenario):
            return str(LISTS["needs"][self.needs])
        if not held(scenario, self.when):
            return ALREADY
        return self.lacks(scenario)

    def lacks(self, scenario: Scenario) -> str:
        """What the scenario's framework does instead, which has no option for it; empty where it has one."""
        framework, layout = _framework(scenario), "shared" if scenario.cluster.colocated else "split"
        names = (framework, f"{framework} {scenario.trainer.backend}", f"{framework} {layout}")
        return next((self.lacking[name] for name in names if name in self.lacking), "")

    def keys(self, scenario: Scenario) -> Overrides:
        """Its overrides before any that it tries out, as the scenario's framework has them."""
        return self.own.get(_framework(scenario), self.sets)

    def at(self, scenario: Scenario, severity: float = 1.0) -> Change | None:
        """What it changes of a scenario; None where there is nothing."""
        found = FUNCTIONS[self.does](scenario, severity) if self.does else Change(keys=self.keys(scenario))
        how = found.how or self.title if found else ""
        return None if found is None else replace(found, name=self.name, how=how, rebound=self.rebound)

    def ways(self, scenario: Scenario) -> list[Overrides]:
        """Its overrides, with each value of what it tries out; a cluster that is split already stays so."""
        if self.tries in ("", PLAN) or (self.tries == "split" and not scenario.cluster.colocated):
            return [self.keys(scenario)]
        tried = _TRIED[self.tries]
        return [{**self.keys(scenario), **tried(scenario, value)} for value in LISTS["values"][self.tries]]


class Fault(Move, frozen=True, kw_only=True):
    """A known misconfiguration: a move that a run took unasked, by its severity."""

    cure: str
    prior: float = 1.0
    severities: tuple[float, ...] = ()
    instead: Mapping[str, str] = field(default_factory=dict)
    undo: str = ""
    misstated: bool = False
    whole: bool = False

    def of(self, scenario: Scenario, severity: float, step_s: float) -> Change | None:
        """The fault at a severity, of a run whose step is expected to take ``step_s``; None where it has no key."""
        keys: dict[str, Any] = {}
        for key, form in self.sets.items():
            if form not in FORMS:
                keys[key] = form
                continue
            now = value_at(scenario, key)
            if now is None and key in self.instead:
                now = value_at(scenario, self.instead[key])
            if now is None and "now" in str(form):
                return None
            value = FORMS[str(form)](now, severity, step_s)
            # Counts (GPUs, sequences) must stay whole and above 0 for the schema.
            keys[key] = max(1, round(value)) if isinstance(now, int) else value
        found = self.at(scenario, severity)
        return found if found is None or self.does else replace(found, keys=keys)

    def stated(self, scenario: Scenario) -> bool:
        """Whether the scenario itself is as the fault would make it."""
        return bool(self.sets) and states(scenario, self.sets)


def _framework(scenario: Scenario) -> str:
    """Name of the scenario's framework; "" where no stack says one."""
    return "" if scenario.stack is None else scenario.stack.framework


def states(scenario: Scenario, keys: Keys) -> bool:
    """Whether a scenario has these values of these keys already."""
    return all(value_at(scenario, key) == value for key, value in keys.items())


def held(scenario: Scenario, conditions: Conditions) -> bool:
    """Whether a scenario has one of the allowed values of every key."""
    values = ((value_at(scenario, key), allowed) for key, allowed in conditions.items())
    return all(value in allowed or (GIVEN in allowed and value is not None) for value, allowed in values)


_NEEDS: Mapping[str, Callable[[Scenario], bool]] = {
    "agent": lambda one: one.workload.agent is not None,
    "starting": lambda one: one.workload.agent is not None and one.workload.agent.starts,
    "places": lambda one: bool(more_places(one, 1)),
    "reference": lambda one: one.trainer.reference_logprobs,
    "undrafted": lambda one: not one.speculation.active,
    "drafts": lambda one: one.speculation.active,
    "eager_drafts": launched_drafts,
    "unscheduled": lambda one: not schedules_ahead(one.released_engine, one.model, one.speculation),
    "in_order": lambda one: one.loop.mode == "async" and one.loop.asynchrony.membership == "target",
    "synchronous": lambda one: one.loop.mode == "sync",
    "lagged": lambda one: one.loop.mode == "async",
    "apart": lambda one: not one.cluster.colocated,
    "hugging_face": lambda one: fsdp_terms(one) is not None,
    "one_update": lambda one: (one.trainer.global_batch_samples or math.inf) >= one.workload.samples_per_step,
    "filtering": lambda one: one.workload.usable_group_share < 1 or one.workload.generated_batch_factor > 1,
    "waiting": lambda one: bool(one.workload.environment_s) or one.workload.agent is not None,
    "single_turns": lambda one: one.workload.agent is None,
    "stages": lambda one: one.trainer.pipeline_parallel > 1,
}
"""What of a scenario a move needs, in words of the list."""


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
    """All moves that a user can make."""
    return tuple(convert({"name": name, **one}, Move) for name, one in LISTS["moves"].items())


def ideals(kind: str) -> tuple[Move, ...]:
    """Moves that nobody can make wholly, in the order in which they are made one on top of the other: ``idle``, each
    without a cause of idle time, or ``rung``, each nearer to the roofline."""
    return tuple(convert({"name": name, "kind": kind, **one}, Move) for name, one in LISTS[kind].items())


def faults() -> tuple[Fault, ...]:
    """All known misconfigurations."""
    listed: Mapping[str, Any] = FAULTS["faults"]
    return tuple(convert({"name": name, "kind": "fault", **one}, Fault) for name, one in listed.items())


def move_named(name: str) -> Move:
    """The move of that name."""
    return next(one for one in moves() if one.name == name)


def best_way(scenario: Scenario, move: Move) -> Tried | str:
    """The fastest way to apply a move, or why there is none."""
    if missing := move.missing(scenario):
        return missing
    ways = move.ways(scenario)
    try:
        return tried(scenario, move, ways[0] if len(ways) == 1 else fastest_way(scenario, ways))
    except (Infeasible, InputError) as error:
        return str(error).removeprefix("infeasible: ")


def fastest_way(scenario: Scenario, ways: Sequence[Overrides]) -> Overrides:
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
    ways = [{**overrides, **_split(scenario, share)} for share in LISTS["values"]["split"]]
    return fastest_way(scenario, ways)


def tried(scenario: Scenario, move: Move, overrides: Overrides) -> Tried:
    """The scenario under some overrides. Raises InputError where they make no sense or change nothing, and Infeasible
    where it cannot run so."""
    after = _changed(scenario, overrides)
    check_no_worse(scenario, after)
    return Tried(move, overrides, after, timed_of(after))


@lru_cache(maxsize=128)  # all that one answer tries; each takes some hundred kB of draws
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


def _split(scenario: Scenario, share: float) -> Overrides:
    """The share of GPUs that generate, of whole nodes where the stack divides none."""
    gpus = scenario.cluster.policy_gpus
    unit = pool_unit(scenario, gpus)
    whole = min(max(1, round(share * gpus / unit)), gpus // unit - 1) * unit / gpus
    return {"generation_share": share if unit == 1 else whole}


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
    "split": _split,
    "share": _split,
    "pool": _pooled,
    "trajectories": _trajectories,
    "turns": capped_turns,
    "calls": faster_calls,
    "places": more_places,
    "started": started_beforehand,
    "tensor": _tensor,
    "captured": _captured,
    "micro_batch": _micro_batch,
    "draft_length": lambda scenario, step: {"k": scenario.speculation.draft_length + step},
}


def faster(found: Sequence[Tried], step_s: float) -> list[Tried]:
    """Those that shorten a step of ``step_s`` seconds, fastest first."""
    return sorted((one for one in found if one.step_s < step_s), key=lambda one: one.step_s)
