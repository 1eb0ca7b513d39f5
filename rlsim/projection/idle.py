"""Idle GPU time by cause, from what a run counted."""

import numpy as np

from rlsim.costs.trainer.layer import IMBALANCE
from rlsim.costs.trainer.training import REFERENCE_POOL
from rlsim.projection.variant import SimulatedVariant
from rlsim.results.planning import Idle
from rlsim.simulation.trace import StepRecord

BUBBLE = "pipeline bubble"
"""Part of a pass in which stages wait for each other."""
STRAGGLER = "straggler trajectory"
"""The tail of a rollout of agents: one trajectory has more turns, longer ones or slower calls than the others."""
WAITS = (BUBBLE, IMBALANCE, REFERENCE_POOL)
"""Parts of a pass in which GPUs of the trainer wait for others."""
Seconds = dict[str, float]


def idle_of(run: SimulatedVariant) -> tuple[Idle, ...]:
    """GPU-seconds per step in which GPUs wait, by pool and cause, the largest first.

    A replica is idle while it has no sequence (straggler tail, or trajectory: others of the pool have some; apart from
    environments), while nobody in the pool has any (the loop's limit) and while weights move. A training GPU is idle
    while its batch is not there, while weights move, in the bubble of its pipeline and while it waits for a rank with
    more tokens, or for the pool of the reference policy, whose GPUs idle outside their pass.
    """
    step_s = float(np.mean([step.seconds for step in run.every_step]))
    cluster = run.scenario.cluster
    pools = {"generation": cluster.generation, "training": cluster.training, "reference": cluster.reference_gpus}
    apart = {"nothing to score": step_s - float(np.mean([step.cost.reference_s for step in run.every_step]))}
    found = [
        Idle(
            pool="all"
            if cluster.colocated and causes is not apart
            else name,  # the same GPUs in turn, so that causes are those of one pool
            cause=cause,
            gpu_s=seconds * gpus,
            share=seconds * gpus / (step_s * cluster.num_gpus),
        )
        for (name, gpus), causes in zip(pools.items(), (*_causes(run, step_s), apart), strict=True)
        for cause, seconds in causes.items()
        # Differences of sums leave rests of this size where nothing waits.
        if gpus and seconds > 1e-9 * step_s
    ]
    return tuple(sorted(found, key=lambda one: -one.gpu_s))


def _causes(run: SimulatedVariant, step_s: float) -> tuple[Seconds, Seconds]:
    """Seconds per step in which a GPU of either pool waits, by cause."""
    mean, scenario = run.phases_s, run.scenario
    lagged, shared = scenario.loop.mode == "async", scenario.cluster.colocated
    moving_s = mean["refit_s"] if lagged else mean["prepare_s"]
    generation, waits = _generation(run), _waits(run.every_step)
    if shared:
        return {**generation, "refit": moving_s}, waits
    trainer_s = sum(mean[name] for name in ("data_s", "logprob_s", "train_s"))
    turns_s = step_s - mean["generation_s"] - moving_s
    generation |= {"refit": moving_s, "staleness limit" if lagged else "training meanwhile": turns_s}
    waiting = "generation" if lagged else "generation meanwhile"
    return generation, {waiting: step_s - trainer_s - moving_s, "refit": moving_s, **waits}


def _generation(run: SimulatedVariant) -> Seconds:
    """Seconds of a generation phase in which a replica waits, by cause, mean over replicas."""
    phase_s, per_step = run.phases_s["generation_s"], 1.0 / len(run.every_step) / run.prices.replicas
    busy_s = sum(part.seconds for part in run.prices.engine.parts(run.counters)) * per_step
    several = run.scenario.workload.agent is not None
    if several:
        environment_s = (run.agents.environment_idle_s + run.agents.judge_idle_s) * per_step
    else:
        environment_s = run.rewards_s if run.scenario.loop.mode == "sync" else 0.0
    # Busy replicas wait for nobody: environments can hold only what is left of the phase, which a control may move.
    rest_s = max(0.0, phase_s - busy_s)
    environment_s = min(environment_s, rest_s)
    tail = STRAGGLER if several else "straggler tail"
    return {"environment": environment_s, tail: rest_s - environment_s}


def _waits(steps: list[StepRecord]) -> Seconds:
    """Seconds of log-probs and updates in which the mean GPU waits for others, by part."""
    costs = [cost for step in steps for cost in (step.cost.logprob, step.cost.train)]
    return {
        name: sum(part.seconds for cost in costs for part in cost.parts if part.name == name) / len(steps)
        for name in WAITS
    }
