"""Published techniques on a scenario: what each would bring, what it asks, and which two go best together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from msgspec import Struct

from rlsim.errors import Infeasible, InputError
from rlsim.files.progress import ProgressLine
from rlsim.files.yaml import lists_beside
from rlsim.loading.scenario import scenario_digest
from rlsim.loading.variation import Overrides
from rlsim.planning.compare import changes, differences
from rlsim.planning.evaluate import Cell, varied
from rlsim.projection.summary import Timed, speedups, timed
from rlsim.projection.variant import simulate_variant
from rlsim.results import Interval
from rlsim.results.planning import LeftOut, Technique, Techniques
from rlsim.schema.scenario import Scenario

EFFECT_ERROR = 0.3
"""Standard deviation of what a technique gains (logarithm of its ratio), as a share of it: its rules and the lengths
behind it are assumed. 1.5 times the median of 0.2 by which predicted gains miss published ones (docs/techniques.md)."""
NORMAL_90 = 1.645
"""Standard deviations to either side that hold 90 %."""
LISTS: Mapping[str, Any] = lists_beside(__file__, "techniques.yaml")
"""Techniques, what they need, and the shares that are tried."""


class _Known(Struct, frozen=True):
    """A technique as the list has it. sets: its overrides, words included; asks: of algorithm or user."""

    name: str
    title: str
    sets: Overrides
    asks: str
    source: str
    exact: bool
    tries: str = ""
    needs: str = ""

    def missing(self, scenario: Scenario) -> str:
        """Why the scenario is none for it; empty where it is."""
        batch = scenario.trainer.global_batch_samples
        holds = {
            "": True,
            "agent": scenario.workload.agent is not None,
            "reference": scenario.trainer.reference_logprobs,
            "undrafted": not scenario.speculation.active,
            "drafts": scenario.speculation.active,
            "one_update": batch is None or batch >= scenario.workload.samples_per_step,
        }
        return "" if holds[self.needs] else str(LISTS["needs"][self.needs])

    def ways(self, scenario: Scenario) -> list[Overrides]:
        """Its overrides, with each share of what it tries out; a cluster that is split already stays so."""
        if not self.tries or (self.tries == "split" and not scenario.cluster.colocated):
            return [self.sets]
        samples = scenario.workload.samples_per_step
        tried: dict[str, Callable[[float], Overrides]] = {
            "split": lambda share: {"generation_share": share},
            "pool": lambda share: _pooled(scenario, share),
            "trajectories": lambda share: {"workload.agent.max_trajectories": math.ceil(share * samples)},
        }
        return [{**self.sets, **tried[self.tries](share)} for share in LISTS["shares"][self.tries]]


def _pooled(scenario: Scenario, share: float) -> Overrides:
    """GPUs of the trainer for the reference policy, whole shards of it."""
    cluster, trainer = scenario.cluster, scenario.trainer
    shard = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
    # The reference policy has the trainer's layout, so that its pool holds whole shards (schema/scenario.py).
    gpus = max(1, round(share * cluster.training / shard)) * shard
    left = {} if cluster.training_gpus is None else {"cluster.training_gpus": cluster.training - gpus}
    return {"cluster.reference_gpus": gpus, **left}


class _Tried(Struct, frozen=True):
    """A scenario under a technique, and its step beside the one it is compared with."""

    known: _Known
    overrides: Overrides
    scenario: Scenario
    timed: Timed

    @property
    def step_s(self) -> float:
        return self.timed.step_s


def known_techniques() -> tuple[_Known, ...]:
    """All techniques of the list (techniques.yaml)."""
    return tuple(
        _Known(name=name, sets=one["set"], **{key: value for key, value in one.items() if key != "set"})
        for name, one in LISTS["techniques"].items()
    )


def techniques(scenario: Scenario) -> Techniques:
    """Every technique that ``scenario`` can take, fastest first, and the best pair of them, on equal drawn work.

    The interval of a ratio is that of two answers whose common uncertainty cancels, widened by what is unknown of the
    technique (EFFECT_ERROR). Raises Infeasible where the scenario itself cannot run.
    """
    base, known = timed(simulate_variant(scenario)), known_techniques()
    found: list[_Tried] = []
    left_out: list[LeftOut] = []
    pairs = LISTS["pairs"]
    with ProgressLine("techniques tried", len(known) + pairs) as progress:
        for one in known:
            best = _best(scenario, one)
            if isinstance(best, str):
                left_out.append(LeftOut(name=one.name, title=one.title, reason=best))
            else:
                found.append(best)
            progress.advance(1)
        found.sort(key=lambda one: one.step_s)
        together = []
        for first, second in _promising([one for one in found if one.step_s < base.step_s])[:pairs]:
            pair = _combined(scenario, first, second)
            together += [] if pair is None else [pair]
            progress.advance(1)
    best_pair = min(together, key=lambda one: one.step_s, default=None)
    if best_pair is not None and best_pair.step_s >= found[0].step_s:
        best_pair = None  # the fastest technique alone does better
    return Techniques(
        scenario=scenario.name,
        digest=scenario_digest(scenario),
        step_s=base.interval,
        techniques=tuple(_technique(scenario, base, one) for one in found),
        best_pair=None if best_pair is None else _technique(scenario, base, best_pair),
        left_out=tuple(left_out),
    )


def _best(scenario: Scenario, known: _Known) -> _Tried | str:
    """The fastest way to apply a technique, or why there is none."""
    if missing := known.missing(scenario):
        return missing
    tried, reasons = list[_Tried](), list[str]()
    for overrides in known.ways(scenario):
        try:
            tried.append(_tried(scenario, known, overrides))
        except (Infeasible, InputError) as error:
            reasons.append(Cell(error=error).reason)
    return min(tried, key=lambda one: one.step_s) if tried else reasons[0]


def _tried(scenario: Scenario, known: _Known, overrides: Overrides) -> _Tried:
    changed = varied(scenario, overrides)
    if not differences(scenario, changed):
        raise InputError("the scenario does so already")
    return _Tried(known, overrides, changed, timed(simulate_variant(changed)))


def _promising(faster: Sequence[_Tried]) -> list[tuple[_Tried, _Tried]]:
    """Pairs that set no key to different values, by the product of their steps."""

    def agree(first: _Tried, second: _Tried) -> bool:
        shared = first.overrides.keys() & second.overrides.keys()
        return all(first.overrides[key] == second.overrides[key] for key in shared)

    pairs = [pair for pair in combinations(faster, 2) if agree(*pair)]
    # As if both gains multiplied, which they seldom do: it only picks the few pairs that are simulated.
    return sorted(pairs, key=lambda pair: pair[0].step_s * pair[1].step_s)


def _combined(scenario: Scenario, first: _Tried, second: _Tried) -> _Tried | None:
    """Both together; None where they cannot be."""
    one, other = first.known, second.known
    title, asks, source = (f"{getattr(one, each)}; {getattr(other, each)}" for each in ("title", "asks", "source"))
    known = _Known(f"{one.name} + {other.name}", title, {}, asks, source, one.exact and other.exact)
    try:
        return _tried(scenario, known, {**first.overrides, **second.overrides})
    except (Infeasible, InputError):
        return None


def with_effect_error(ratio: Interval) -> Interval:
    """The speed-up of a technique whose interval holds EFFECT_ERROR beside the model's error."""
    added = NORMAL_90 * EFFECT_ERROR * math.log(ratio.mean)
    # Independent errors add up in squares, here of logarithms.
    low, high = (math.hypot(math.log(ratio.mean / end), added) for end in (ratio.low, ratio.high))
    return Interval(ratio.mean, ratio.mean * math.exp(-low), ratio.mean * math.exp(high))


def _technique(scenario: Scenario, base: Timed, one: _Tried) -> Technique:
    return Technique(
        name=one.known.name,
        title=one.known.title,
        changes=changes(scenario, one.scenario),
        step_s=one.timed.interval,
        speedup=with_effect_error(speedups(base, one.timed)[1].interval),
        same_update=one.known.exact,
        asks=one.known.asks,
        source=one.known.source,
    )
