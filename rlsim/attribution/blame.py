"""blame(): idle GPU time by cause, and counterfactual simulations with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rlsim.attribution.causes import Cause, Policy, causes_of, simulate_changed, tail_policies
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import scenario_digest, vary
from rlsim.projection.idle import idle_of
from rlsim.projection.variant import simulate_variant
from rlsim.results.planning import Blame, Removal, WhatIf
from rlsim.schema.scenario import Scenario

Progress = Callable[[int, int], None]
SAME = 1e-9
"""Share of a step below which two of them are the same."""


def blame(scenario: Scenario, progress: Progress | None = None) -> Blame:
    """Why the GPUs of ``scenario`` are idle, and what removing each cause gains.

    Every cause is taken away alone and after those before it, on the same drawn work; one that would then cost time
    stays, so that all together gain at least what one alone does. Tail policies are tried as they are. Raises
    Infeasible where the scenario cannot run.
    """
    causes, policies = causes_of(scenario), tail_policies(scenario)
    total = 2 * len(causes) + len(policies) + 1
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    run = simulate_variant(scenario)
    advance()
    step_s = _step_s([[step.seconds for step in steps] for steps in run.steps])
    alone = {}
    for cause in causes:
        alone[cause.name] = _without(scenario, (cause,))
        advance()
    removals, left_s = _in_turn(scenario, causes, alone, step_s, advance)
    if any(alone_s < left_s - SAME * step_s for alone_s in alone.values()):  # the one that gains most goes first
        ranked = sorted(causes, key=lambda cause: alone[cause.name] > min(alone.values()))
        removals, left_s = _in_turn(scenario, ranked, alone, step_s, lambda: None)
    what_ifs = []
    for policy in policies:
        what_ifs.append(_tried(scenario, policy))
        advance()
    idle = idle_of(run)
    return Blame(
        scenario=scenario.name,
        digest=scenario_digest(scenario),
        num_gpus=scenario.cluster.num_gpus,
        step_s=step_s,
        left_s=left_s,
        work_share=1.0 - sum(one.share for one in idle),
        idle=idle,
        removals=tuple(removals),
        what_ifs=tuple(what_ifs),
    )


def _in_turn(
    scenario: Scenario, causes: Sequence[Cause], alone: Mapping[str, float], step_s: float, advance: Callable[[], None]
) -> tuple[list[Removal], float]:
    """Removals one after the other, and the step after all of them; what would cost time in its turn stays."""
    removals, removed, before_s = list[Removal](), list[Cause](), step_s
    for cause in causes:
        alone_s = alone[cause.name]
        chain_s = _without(scenario, (*removed, cause)) if removed else alone_s
        costs = [when for when, more in (("alone", alone_s - step_s), ("in turn", chain_s - before_s)) if more > 0]
        why = f"{' and '.join(costs)} it costs time, as {cause.rebound}" if costs else ""
        if chain_s <= before_s:
            removed.append(cause)
        after_s = min(chain_s, before_s)
        gains = {"saved_s": step_s - alone_s, "chain_s": before_s - after_s}
        removals.append(Removal(cause=cause.name, how=cause.how, step_s=alone_s, **gains, why=why))
        before_s = after_s
        advance()
    return removals, before_s


def _without(scenario: Scenario, causes: Sequence[Cause]) -> float:
    """Mean step time on the same drawn work with causes taken away."""
    run = simulate_changed(scenario, causes)
    return _step_s([[step.seconds for step in steps] for steps in run.steps])


def _tried(scenario: Scenario, policy: Policy) -> WhatIf:
    name, how, changes = policy
    try:
        run = simulate_variant(vary(scenario, changes))
    except (Infeasible, InputError) as error:
        return WhatIf(name=name, how=how, step_s=None, reason=str(error))
    return WhatIf(name=name, how=how, step_s=_step_s([[step.seconds for step in steps] for steps in run.steps]))


def _step_s(seconds: Sequence[Sequence[float]]) -> float:
    return float(np.mean([value for one in seconds for value in one]))
