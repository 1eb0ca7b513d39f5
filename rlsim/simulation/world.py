"""What a loop works on: the scenario's costs and the drawn work of one replication, the same for every arm."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlsim.costs.interface import CostModel, FloatArray, PhaseCost
from rlsim.schema.scenario import Scenario
from rlsim.simulation.trace import StepRecord
from rlsim.workload.batches import Batch, Generated, IntArray, draw_iterations, draw_rollouts
from rlsim.workload.acceptance import Acceptance


@dataclass(frozen=True)
class StepWork:
    """One step's drawn rollouts and what training on them costs."""

    rollouts: tuple[Generated, ...]
    logprob: PhaseCost
    train: PhaseCost
    data: PhaseCost
    trained_tokens: FloatArray


@dataclass
class Draws:
    """Batches of one replication, drawn once and shared by the arms that are compared."""

    scenario: Scenario
    replication: int
    _rollouts: dict[int, tuple[Generated, ...]] = field(default_factory=dict)
    _work: dict[int, StepWork] = field(default_factory=dict)
    _iterations: dict[tuple[int, int, Acceptance], IntArray] = field(default_factory=dict)

    def rollouts(self, step: int) -> tuple[Generated, ...]:
        """The drawn rollouts of ``step``: one, more under dynamic sampling."""
        if step not in self._rollouts:
            seed = self.scenario.simulation.seed
            self._rollouts[step] = draw_rollouts(self.scenario.workload, seed, step, self.replication)
        return self._rollouts[step]

    def batch(self, step: int) -> Batch:
        """The drawn batch of the first rollout of ``step``."""
        return self.rollouts(step)[0].batch

    def forget_costs(self) -> None:
        """Keep what was drawn and drop what training on it costs, before an arm with another trainer asks."""
        self._work.clear()

    def step(self, step: int, costs: CostModel) -> StepWork:
        """The work of ``step``; training costs come from the arm that asks first (the trainer is the same for all)."""
        if step not in self._work:
            rollouts = self.rollouts(step)
            trained = [one.batch.total_tokens[one.trained] for one in rollouts]
            tokens = np.concatenate(trained).astype(np.float64)
            handled = costs.data(sum(one.batch.samples for one in rollouts))
            self._work[step] = StepWork(rollouts, costs.logprob(tokens), costs.train(tokens), handled, tokens)
        return self._work[step]

    def iterations(self, step: int, acceptance: Acceptance, number: int = 0) -> IntArray:
        """Engine iterations of every sample of rollout ``number`` of ``step`` under ``acceptance``."""
        key = (step, number, acceptance)
        if key not in self._iterations:
            batch, seed = self.rollouts(step)[number].batch, self.scenario.simulation.seed
            self._iterations[key] = draw_iterations(batch, acceptance, seed, step, self.replication, number)
        return self._iterations[key]


@dataclass(frozen=True)
class World:
    """One arm of one replication."""

    scenario: Scenario
    costs: CostModel
    replicas: int
    acceptance: Acceptance
    draws: Draws


def record(
    world: World,
    step: int,
    start_s: float,
    end_s: float,
    phases: dict[str, float],
    staleness: dict[int, int],
    facts: dict[str, float],
) -> StepRecord:
    """Put one finished step down."""
    work = world.draws.step(step, world.costs)
    iterations = sum(
        float(np.sum(world.draws.iterations(step, world.acceptance, number))) for number in range(len(work.rollouts))
    )
    tokens = float(sum(one.batch.response_tokens.sum() for one in work.rollouts))
    verified = tokens - sum(one.batch.samples for one in work.rollouts)
    return StepRecord(
        step=step,
        start_s=start_s,
        end_s=end_s,
        phases=phases,
        samples=len(work.trained_tokens),
        generated_tokens=tokens,
        total_tokens=float(work.trained_tokens.sum()),
        staleness=staleness,
        facts={**facts, "tokens_per_verification": verified / max(1.0, iterations)},
    )
