"""Which draft length pays: every one up to a longest on equal work, and at which live batches it gains."""

from pathlib import Path

import numpy as np

from rlsim.costs.engine.prices import decode_points_s
from rlsim.costs.prices import PriceInputs
from rlsim.errors import InputError
from rlsim.loading.scenario import as_scenario, scenario_digest, vary
from rlsim.loading.variation import check_rollout
from rlsim.planning.sweep import sweep
from rlsim.projection.moves import move_named, varied
from rlsim.projection.uncertainty.slopes import points_of
from rlsim.projection.variant import simulate_variant, so_many
from rlsim.results import Interval
from rlsim.results.planning import DraftCurve, DraftLength
from rlsim.results.record import Row
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import ACCEPTANCE_KEYS
from rlsim.units import FloatArray

LONGEST = 8
"""Longest draft that is tried: published chains have up to seven tokens."""
KEYS = {"speculation.policy": "fixed"}
"""One length for every iteration, whatever the scenario's policy."""


def draft_lengths(scenario: Scenario | Path | str, longest: int = LONGEST) -> DraftCurve:
    """Speed-ups of the rollout and of the step for k = 0 to ``longest`` under the scenario's acceptance process, or
    where it names no drafter under that of an EAGLE-3 head as ``improve`` assumes it.

    Raises InputError where a drafter lacks its acceptance or drafts a tree, whose acceptance is that of one depth, and
    Infeasible where the scenario cannot run.
    """
    scenario = as_scenario(scenario)
    check_rollout(scenario, "a draft length")
    assumed = ""
    if scenario.speculation.method == "none":
        head = move_named("eagle3")
        scenario, assumed = varied(scenario, head.sets), f"{head.title}: {head.asks} ({head.source})"
    drafting = scenario.speculation
    if not drafting.active:
        given = {
            "draft_length": drafting.draft_length > 0,
            "acceptance_length": any(getattr(drafting, key) is not None for key in ACCEPTANCE_KEYS),
        }
        raise InputError(
            f"{scenario.name}: nothing is drafted; state speculation."
            f"{' and '.join(key for key, there in given.items() if not there)} (draft_length: at which the acceptance "
            "was measured)"
        )
    if drafting.verified_positions is not None:
        raise InputError(f"{scenario.name}: speculation.verified_positions asks for a tree; k is the length of a chain")
    base = vary(scenario, KEYS)
    rows = {int(str(row["k"])): row for row in sweep(base, [f"k=0:{longest}"]).rows}
    plain = simulate_variant(vary(base, {"k": 0, **so_many(base, 1)}), tokens=False)
    points = points_of(plain.counters)
    most = int(np.max(np.flatnonzero(plain.counters.iterations_at), initial=1))
    known = [_length(base, k, row, points, most) for k, row in rows.items() if row["status"] == "ok"]
    best = max(known, key=lambda one: one.step_speedup.mean)
    return DraftCurve(
        scenario=scenario.name,
        digest=scenario_digest(scenario),
        method=drafting.method,
        assumed=assumed,
        most_live=most,
        lengths=tuple(known),
        best=best.draft_length,
        left_out={k: str(row["reason"]) for k, row in rows.items() if row["status"] != "ok"},
    )


def _length(
    base: Scenario, k: int, row: Row, points: tuple[FloatArray, FloatArray, FloatArray], most: int
) -> DraftLength:
    rollout, step = (
        Interval(*(float(str(row[f"{name}{end}"])) for end in ("", "_low", "_high")))
        for name in ("rollout_speedup", "end_to_end_speedup")
    )
    tokens = float(str(row["acceptance_length"])) if k else 1.0
    pays_share, pays_up_to = _paying(base, k, tokens, points)
    return DraftLength(
        draft_length=k,
        acceptance_length=tokens,
        rollout_speedup=rollout,
        step_speedup=step,
        pays_share=pays_share,
        pays_up_to=pays_up_to,
        eager_share=float(str(row["eager_share"])),
        captured_tokens=int(str(row["captured_tokens"])),
        needed_tokens=most * (k + 1),
    )


def _paying(
    base: Scenario, k: int, tokens: float, points: tuple[FloatArray, FloatArray, FloatArray]
) -> tuple[float, int]:
    """Share of the undrafted rollout whose live batches gain by drafts of k tokens, and the largest of these."""
    batches, contexts, counts = points
    if k == 0 or not len(batches):  # responses of one token, the prefill's: nothing is decoded
        return 0.0, 0
    plain_s, drafted_s = (
        decode_points_s(PriceInputs(vary(base, {"k": drafted})).engine, batches, contexts) for drafted in (0, k)
    )
    gains = tokens * plain_s > drafted_s
    spent_s = counts * plain_s
    return float(spent_s[gains].sum() / spent_s.sum()), int(np.max(batches[gains], initial=0.0))
