"""What would shorten a step: what each move brings and asks, which two go best together, and the parts beside it."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from rlsim.errors import Infeasible, InputError
from rlsim.files.progress import ProgressLine
from rlsim.loading.differences import changes
from rlsim.loading.scenario import as_scenario, scenario_digest
from rlsim.loading.variation import Overrides
from rlsim.planning.plan import default_limits, leading_overrides
from rlsim.planning.search import NEAR
from rlsim.planning.sensitivity import sensitivity
from rlsim.planning.space import own_lag
from rlsim.projection.headroom import blame, headroom
from rlsim.projection.moves import (
    ALREADY,
    LISTS,
    PLAN,
    SETTING,
    Move,
    Tried,
    best_way,
    faster,
    fastest_way,
    held,
    moves,
    timed_of,
    tried,
    varied,
)
from rlsim.projection.precision import Anchor, anchor
from rlsim.projection.summary import Timed, speedups, timed
from rlsim.projection.variant import compared, compared_run
from rlsim.results import Interval
from rlsim.results.check import Improvement
from rlsim.results.planning import LeftOut, Technique, Techniques
from rlsim.schema.scenario import Scenario

EFFECT_ERROR = 0.3
"""Standard deviation of what a technique gains (logarithm of its ratio), as a share of it: its rules and the lengths
behind it are assumed. 1.5 times the median of 0.2 by which predicted gains miss published ones (docs/techniques.md)."""
LEADERS = 2
"""Layouts of a move of the loop that are simulated in full, of those that a search finds within 3 % of the best."""
NORMAL_90 = 1.645
"""Standard deviations to either side that hold 90 %."""


def improve(
    scenario: Scenario | Path | str,
    only: Literal["techniques", "idle", "headroom", "inputs"] | None = None,
    *,
    uncertain: Sequence[str] = (),
) -> Improvement:
    """Moves ranked, why GPUs are idle, how far the ideal is and what is worth measuring; ``only``: one of them alone.

    uncertain: ``key=low:high`` each, ranges of what the scenario states (:func:`~rlsim.planning.sensitivity`). Raises
    Infeasible where the scenario cannot run, InputError where a range or a part makes no sense.
    """
    scenario = as_scenario(scenario)
    if uncertain and only not in (None, "inputs"):
        raise InputError(f"--uncertain: is of what is worth measuring, which --only {only} leaves out")
    # The rungs of the ideal are of rollouts.
    ladder = only == "headroom" or (only is None and not scenario.loop.supervised)
    return Improvement(
        scenario=scenario.name,
        digest=scenario_digest(scenario),
        moves=techniques(scenario) if only in (None, "techniques") else None,
        idle=blame(scenario) if only in (None, "idle") else None,
        headroom=headroom(scenario) if ladder else None,
        inputs=sensitivity(scenario, uncertain=uncertain) if only in (None, "inputs") else None,
    )


def techniques(scenario: Scenario) -> Techniques:
    """Every move that ``scenario`` can take, fastest first, and the best pair where it beats the fastest alone by more
    than NEAR, on equal drawn work.

    The interval of a ratio is that of two answers whose common uncertainty cancels, widened by what is unknown of a
    technique (EFFECT_ERROR). Raises Infeasible where the scenario itself cannot run.
    """
    digest, asked, scenario = scenario_digest(scenario), scenario, compared(scenario)
    base, by = timed(compared_run(asked)), anchor(asked)
    # What undoes a setting that the scenario does not have is nothing to tell of.
    known = [one for one in moves() if held(scenario, one.when)]
    found: list[Tried] = []
    left_out: list[LeftOut] = []
    with ProgressLine("moves tried", len(known)) as progress:
        for one in known:
            best = _planned(asked, scenario, one) if one.tries == PLAN else best_way(scenario, one)
            if isinstance(best, str):
                left_out.append(LeftOut(name=one.name, title=one.title, reason=best))
            else:
                found.append(best)
            progress.advance(1)
        pair = _best_pair(scenario, _promising(faster(found, base.step_s))[: LISTS["pairs"]])
    ranked = sorted((technique(scenario, asked, base, by, one) for one in found), key=lambda one: one.step_s.mean)
    best_pair = None if pair is None else technique(scenario, asked, base, by, pair)
    if best_pair is not None and best_pair.step_s.mean > (1 - NEAR) * ranked[0].step_s.mean:
        best_pair = None  # what the second move asks for is paid by nothing
    return Techniques(
        scenario=scenario.name,
        digest=digest,
        step_s=(base.step if by is None else by.own).interval,
        techniques=tuple(ranked),
        best_pair=best_pair,
        left_out=tuple(left_out),
    )


def _planned(asked: Scenario, scenario: Scenario, move: Move) -> Tried | str:
    """A move of the loop with the split and the layouts that ``plan`` finds best for it on the same GPUs. asked: the
    scenario as the user states it."""
    if lacking := move.lacks(scenario):
        return lacking
    sets = move.keys(scenario)
    rules = {key: value for key, value in sets.items() if key != "lag"}
    try:
        base = varied(scenario, rules)
        drafted = (scenario.speculation.draft_length,) if scenario.speculation.active else ()
        lag = int(str(sets.get("lag", own_lag(scenario))))
        if sets and lag == own_lag(scenario) and base.loop.asynchrony == scenario.loop.asynchrony:
            return ALREADY  # what another layout brings is a move of its own
        limits = replace(default_limits(base), lags=(lag,), draft_lengths=drafted)
        leaders = leading_overrides(base, limits, LEADERS)
    except (Infeasible, InputError) as error:
        return str(error).removeprefix("infeasible: ")
    return _fastest(scenario, move, [_enough(asked, {**rules, **one}) for one in leaders])


def _enough(asked: Scenario, overrides: Overrides) -> Overrides:
    """Overrides with as much simulation as what they make of ``asked`` is compared on itself, where nothing pairs: a
    lagged loop shares no measured step with a synchronous one, whose replications each hold six of its own."""
    other = varied(asked, overrides)
    if asked.simulation.replications is not None or other.loop.mode == asked.loop.mode:
        return overrides
    own = compared(other).simulation
    return {**overrides, "simulation.replications": own.replications, "simulation.steps": own.steps}


def _fastest(scenario: Scenario, move: Move, ways: Sequence[Overrides]) -> Tried | str:
    """The fastest of several ways over all drawn work, or why none of them runs."""
    found, reasons = list[Tried](), list[str]()
    for overrides in ways:
        try:
            found.append(tried(scenario, move, overrides))
        except (Infeasible, InputError) as error:
            reasons.append(str(error).removeprefix("infeasible: "))
    best = min(found, key=lambda one: one.step_s, default=None)
    if best is None or (ALREADY in reasons and best.step_s >= timed_of(scenario).step_s):
        return ALREADY if ALREADY in reasons else reasons[0]
    return best


def _promising(found: Sequence[Tried]) -> list[tuple[Tried, Tried]]:
    """Pairs that set no key to different values, by the product of their steps."""

    def agree(first: Tried, second: Tried) -> bool:
        shared = first.overrides.keys() & second.overrides.keys()
        return all(first.overrides[key] == second.overrides[key] for key in shared)

    pairs = [pair for pair in combinations(found, 2) if agree(*pair)]
    # As if both gains multiplied, which they seldom do: it only picks the few pairs that are simulated.
    return sorted(pairs, key=lambda pair: pair[0].step_s * pair[1].step_s)


def _best_pair(scenario: Scenario, pairs: Sequence[tuple[Tried, Tried]]) -> Tried | None:
    """The moves of the pair that is fastest on the work of a search, together; None where none can be."""
    if not pairs:  # one move or none shortens the step
        return None
    ways = [{**first.overrides, **second.overrides} for first, second in pairs]
    try:
        best = fastest_way(scenario, ways)
        one, other = (each.move for each in pairs[ways.index(best)])
        title, asks, source = (f"{getattr(one, each)}; {getattr(other, each)}" for each in ("title", "asks", "source"))
        about = replace(one, name=f"{one.name} + {other.name}", title=title, asks=asks, source=source)
        return tried(scenario, replace(about, sets={}, exact=one.exact and other.exact), best)
    except (Infeasible, InputError):
        return None


def with_effect_error(ratio: Interval) -> Interval:
    """The speed-up of a technique whose interval holds EFFECT_ERROR beside the model's error."""
    added = NORMAL_90 * EFFECT_ERROR * math.log(ratio.mean)
    # Independent errors add up in squares, here of logarithms.
    low, high = (math.hypot(math.log(ratio.mean / end), added) for end in (ratio.low, ratio.high))
    return Interval(ratio.mean, ratio.mean * math.exp(-low), ratio.mean * math.exp(high))


def technique(scenario: Scenario, asked: Scenario, base: Timed, by: Anchor | None, one: Tried) -> Technique:
    """A move that was tried, as answers show it. asked: the scenario as the user states it; base: the one beside it, of
    which ``scenario`` states more; by: what carries over to the step that ``project`` answers."""
    step, gain = one.timed.step, speedups(base, one.timed)[1]
    if by is not None:
        how = by.carried(step)
        step = replace(step, mean=how.scale * step.mean, error=how.error)
        gain = replace(gain, mean=by.own.mean / step.mean, error=how.ratio_error)
    ratio = gain.interval
    return Technique(
        name=one.move.name,
        title=one.move.title,
        # Of what the comparison alone states nothing is to be set.
        changes=tuple(
            each
            for each in changes(scenario, one.scenario)
            if asked.simulation.steps is not None or not each.startswith("simulation.steps=")
            if asked.simulation.replications is not None or not each.startswith("simulation.replications=")
        ),
        step_s=step.interval,
        # Of a setting nothing is assumed beyond the model.
        speedup=ratio if one.move.kind == SETTING else with_effect_error(ratio),
        same_update=one.move.exact,
        asks=one.move.asks,
        source=one.move.source,
    )
