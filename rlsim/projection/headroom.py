"""headroom(): how far a step is from what would be possible, rung by rung, each simulated on the same drawn work; and
blame(): idle GPU time by cause, and counterfactual simulations with the same random numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from rlsim.costs.efficiency import iteration_bytes
from rlsim.costs.engine.releases import launched_drafts
from rlsim.costs.interface import EngineCounters, IterationTable, Prices
from rlsim.costs.trainer.layer import IMBALANCE
from rlsim.errors import Infeasible, InputError
from rlsim.loading.overrides import value_at
from rlsim.loading.scenario import scenario_digest
from rlsim.loading.variation import check_rollout
from rlsim.projection.change import Change, iterations_with, no_refit, passes_with, without_parts
from rlsim.projection.efficiency import contexts_of, efficiency_of, measured_beside
from rlsim.projection.idle import BUBBLE, STRAGGLER, idle_of
from rlsim.projection.moves import ALREADY, LISTS, Move, best_way, ideals, move_named, states
from rlsim.projection.precision import Anchor, anchor
from rlsim.projection.project import identity
from rlsim.projection.variant import SimulatedVariant, compared, compared_run, simulate_variant
from rlsim.results.check import Headroom, Rung
from rlsim.results.planning import Blame, Removal, WhatIf
from rlsim.schema.scenario import Scenario

SAME = 1e-9
"""Share of a step below which two of them are the same."""
NO_HOST = without_parts(lambda part: part.bound in ("host", "launch"))
NO_LINKS = without_parts(lambda part: part.bound in ("network", "host link"))
NO_DATA = passes_with(lambda phase, part: 0.0 if phase == "data" else 1.0)
EVEN = ("straggler tail", STRAGGLER, BUBBLE, IMBALANCE)
"""Causes without which lengths and trajectories are equal, and no rank or stage of the trainer waits for another."""
Shown = TypeVar("Shown", Rung, Removal)
Climb = Callable[[SimulatedVariant], Sequence[Change]]
"""The causes that a rung takes away, known once those below it are."""


def headroom(scenario: Scenario) -> Headroom:
    """The ladder of a scenario: no host time, kernels at their best measured speed, perfect overlap, no straggler tail,
    roofline.

    A rung that would cost time on top of those below it is left out and says so. Raises Infeasible where the scenario
    cannot run.
    """
    check_rollout(scenario, "headroom")
    about, by, run = identity(scenario), anchor(scenario), compared_run(scenario)
    scenario = compared(scenario)
    rungs = [_rung("as it is", "", "", run, None)]
    climbed: list[Change] = []
    taken_away, keys = _steps(scenario)
    for one in ideals("rung"):
        name, how, who = one.name, one.title, one.asks
        # From the run below: what is left to gain depends on what was climbed already.
        causes = [*climbed, *taken_away[name](run)]
        try:
            found = simulate_variant(scenario, changes=causes)
        except (Infeasible, InputError) as error:
            rungs.append(_rung(name, how, who, run, rungs[-1], why=str(error)))
            continue
        if _step_s(found) <= rungs[-1].step_s * (1.0 + SAME):
            climbed, run, why = causes, found, ""
        else:
            why = f"on top of the rungs below it costs {_step_s(found) - rungs[-1].step_s:.1f} s: other waits grow"
        rungs.append(_rung(name, how, who, run, rungs[-1], keys.get(name, ()), why))
    return Headroom(**about, rungs=tuple(_carried(one, by) for one in rungs))


def _rung(
    name: str,
    how: str,
    who: str,
    run: SimulatedVariant,
    below: Rung | None,
    changes: Sequence[str] = (),
    why: str = "",
) -> Rung:
    """The rung of a simulated run. how: it is climbed; who: can."""
    step_s, generation_s = _step_s(run), run.phases_s["generation_s"]
    saved_s = 0.0 if below is None else below.step_s - step_s
    seconds = {"step_s": step_s, "generation_s": generation_s, "saved_s": saved_s}
    return Rung(name=name, how=how, who=who, **seconds, changes=tuple(changes), why=why)


def _step_s(run: SimulatedVariant) -> float:
    """Seconds of a step, mean over all that were measured."""
    return float(np.mean([step.seconds for step in run.every_step]))


def _carried(found: Shown, by: Anchor | None) -> Shown:
    """A part of an answer with all its seconds carried over to what ``project`` answers."""
    seconds = {name: value for name, value in found if name.endswith("_s") and value is not None}
    scale = 1.0 if by is None else by.scale
    return found.model_copy(update={name: scale * value for name, value in seconds.items()})


def _steps(scenario: Scenario) -> tuple[dict[str, Climb], dict[str, tuple[str, ...]]]:
    """How each rung above the layout is climbed, and the keys that do the same, where there are any."""
    hostless = _hostless(scenario)
    overlapping = [key for key in LISTS["overlap"] if not value_at(scenario, key)]
    if scenario.model.moe is not None and not scenario.trainer.exchange_overlap:
        overlapping.append("trainer.exchange_overlap")
    causes: dict[str, Climb] = {
        "no host time": lambda run: [Change("host", "", hostless), Change("host parts", "", prices=NO_HOST)],
        "best kernels": lambda run: [_faster(run, _best(scenario))],
        "perfect overlap": lambda run: [Change("refit", "", prices=no_refit), Change("links", "", prices=NO_LINKS)],
        "no straggler tail": lambda run: [one for one in causes_of(scenario) if one.name in EVEN],
        "roofline": lambda run: [_faster(run, {"train": 1.0, "decode": 1.0}), Change("data", "", prices=NO_DATA)],
    }
    changes = {
        "no host time": tuple(
            f"{key}={str(value).lower()}" for key, value in hostless.items() if value not in (0, 0.0)
        ),
        "perfect overlap": tuple(f"{key}=true" for key in overlapping),
    }
    return causes, changes


def _hostless(scenario: Scenario) -> dict[str, float | bool | str]:
    """Keys without which an engine waits for no host."""
    changes = dict(LISTS["hostless"])
    if scenario.speculation.active and launched_drafts(scenario):
        changes["speculation.draft_graph"] = "one"
    if scenario.loop.mode == "async":
        changes["loop.poll_s"] = 0.0
    return changes


def _best(scenario: Scenario) -> Mapping[str, float]:
    """The best measured shares on the device, of the scenario's precision where any was measured: MFU of updates and
    bandwidth use of iterations; 0 where nothing was."""
    precisions = {"train": scenario.trainer.precision, "decode": scenario.engine.weight_precision}
    out = {}
    for phase, precision in precisions.items():
        found = [one for one in measured_beside(scenario) if one.phase == phase]
        # Other precisions say more of a device than nothing does.
        same = [one for one in found if one.precision == precision] or found
        out[phase] = max((one.best for one in same), default=0.0)
    return out


def _faster(run: SimulatedVariant, shares: Mapping[str, float]) -> Change:
    """All work at a share of the device's peak: passes by their MFU, iterations by the larger of bandwidth and MFU.

    What is at or above it already stays; a share of 0 stands for nothing measured.
    """
    used = {one.phase: one for one in efficiency_of(run)}
    passes = {
        # At most 1: a rung speeds up and never slows down what is better than the best measured.
        name: min(1.0, used[f"{name}_s"].mfu / shares["train"])
        for name in ("logprob", "train")
        if f"{name}_s" in used and shares["train"]
    }
    iterations = min(1.0, _iteration_share(run) / shares["decode"]) if shares["decode"] else 1.0

    def faster(prices: Prices) -> Prices:
        return passes_with(lambda phase, part: passes.get(phase, 1.0))(iterations_with(iterations)(prices))

    return Change("kernels", "", prices=faster)


def _iteration_share(run: SimulatedVariant) -> float:
    """The larger of bandwidth use and MFU of the engines' iterations alone, without any wait for others."""
    scenario, counters, table = run.scenario, run.counters, run.prices.iteration
    seconds = _iteration_seconds(table, counters)
    times = np.array(counters.iterations_at, dtype=np.float64)
    sizes, contexts = np.arange(len(times), dtype=np.float64), contexts_of(counters)
    read = float((times * iteration_bytes(scenario, run.prices.engine_memory.parts, sizes, contexts)).sum())
    bandwidth = read / seconds / scenario.hardware.memory_bandwidth_bytes_per_s.value
    generation = next(one for one in efficiency_of(run) if one.phase == "generation_s")
    busy = seconds / run.prices.replicas / len(run.every_step)
    # HFU is over the phase; iterations alone are busy for less of it.
    return max(bandwidth, generation.hfu * run.phases_s["generation_s"] / busy)


def _iteration_seconds(table: IterationTable, counters: EngineCounters) -> float:
    """Seconds of all counted iterations of all replicas."""
    times = np.array(counters.iterations_at, dtype=np.float64)
    columns = contexts_of(counters) / table.context_step_tokens
    # The last column has no next one to interpolate to.
    below = np.clip(columns.astype(np.int64), 0, table.attention_s.shape[1] - 2)
    rows, weight = np.arange(len(times)), columns - below
    attention = table.attention_s[rows, below] * (1 - weight) + table.attention_s[rows, below + 1] * weight
    return float((times * (table.step_s[: len(times)] + attention)).sum()) + counters.prefill_s


def causes_of(scenario: Scenario) -> tuple[Change, ...]:
    """The causes of idle time that a scenario can have, as changes without each, in the order of the list."""
    known = (one.at(scenario) for one in ideals("idle") if not one.missing(scenario))
    # What the scenario has already (no polling, say) is no cause.
    return tuple(one for one in known if one is not None and (not one.keys or not states(scenario, one.keys)))


def blame(scenario: Scenario) -> Blame:
    """Why the GPUs of ``scenario`` are idle, and what removing each cause gains.

    Every cause is taken away alone and after those before it, on the same drawn work; one that would then cost time
    stays, so that all together gain at least what one alone does. Moves of loop and dispatch are tried beside them.
    Raises Infeasible where the scenario cannot run.
    """
    digest, by, run = scenario_digest(scenario), anchor(scenario), compared_run(scenario)
    scenario = compared(scenario)
    causes = causes_of(scenario)
    policies = [move_named(name) for name in LISTS["policies"]]
    policies = [one for one in policies if not one.missing(scenario)]
    step_s = _step_s(run)
    alone = {cause.name: _step_s(simulate_variant(scenario, changes=(cause,))) for cause in causes}
    removals, left_s = _in_turn(scenario, causes, alone, step_s)
    if any(alone_s < left_s - SAME * step_s for alone_s in alone.values()):  # the one that gains most goes first
        # sorted is stable: all others stay in their order behind the best.
        ranked = sorted(causes, key=lambda cause: alone[cause.name] > min(alone.values()))
        removals, left_s = _in_turn(scenario, ranked, alone, step_s)
    what_ifs = [one for one in (_what_if(scenario, policy, by) for policy in policies) if one.reason != ALREADY]
    idle, scale = idle_of(run), 1.0 if by is None else by.scale
    return Blame(
        scenario=scenario.name,
        digest=digest,
        num_gpus=scenario.cluster.num_gpus,
        step_s=scale * step_s,
        left_s=scale * left_s,
        work_share=1.0 - sum(one.share for one in idle),
        idle=idle,
        removals=tuple(_carried(one, by) for one in removals),
        what_ifs=tuple(what_ifs),
    )


def _in_turn(
    scenario: Scenario, causes: Sequence[Change], alone: Mapping[str, float], step_s: float
) -> tuple[list[Removal], float]:
    """Removals one after the other, and the step after all of them; what would cost time in its turn stays."""
    removals, removed, before_s = list[Removal](), list[Change](), step_s
    for cause in causes:
        alone_s = alone[cause.name]
        chain_s = _step_s(simulate_variant(scenario, changes=(*removed, cause))) if removed else alone_s
        costs = [when for when, more in (("alone", alone_s - step_s), ("in turn", chain_s - before_s)) if more > 0]
        why = f"{' and '.join(costs)} it costs time, as {cause.rebound}" if costs else ""
        if chain_s <= before_s:
            removed.append(cause)
        after_s = min(chain_s, before_s)
        gains = {"saved_s": step_s - alone_s, "chain_s": before_s - after_s}
        removals.append(Removal(cause=cause.name, how=cause.how, step_s=alone_s, **gains, why=why))
        before_s = after_s
    return removals, before_s


def _what_if(scenario: Scenario, move: Move, by: Anchor | None) -> WhatIf:
    """What a move makes of the compared work, carried over to what ``project`` answers."""
    found = best_way(scenario, move)
    if isinstance(found, str):
        return WhatIf(name=move.name, how=move.title, step_s=None, reason=found)
    scale = 1.0 if by is None else by.carried(found.timed.step).scale
    return WhatIf(name=move.name, how=move.title, step_s=scale * found.step_s)
