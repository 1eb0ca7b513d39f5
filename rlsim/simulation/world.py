"""What a loop works on: the scenario's costs and the drawn work of one replication, the same for every arm."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlsim.costs.seam import CostModel, FloatArray, PhaseCost
from rlsim.schema.scenario import Scenario
from rlsim.simulation.trace import StepRecord
from rlsim.simulation.workload import Batch, IntArray, draw_batch, draw_iterations
from rlsim.speculation.acceptance import Acceptance


@dataclass(frozen=True)
class StepWork:
    """One step's drawn batch and what training on it costs."""

    batch: Batch
    logprob: PhaseCost
    train: PhaseCost
    data: PhaseCost
    trained_tokens: FloatArray


@dataclass
class Draws:
    """Batches of one replication, drawn once and shared by the arms that are compared."""

    scenario: Scenario
    replication: int
    _batches: dict[int, Batch] = field(default_factory=dict)
    _work: dict[int, StepWork] = field(default_factory=dict)
    _iterations: dict[tuple[int, Acceptance], IntArray] = field(default_factory=dict)

    def batch(self, step: int) -> Batch:
        """The drawn batch of ``step``."""
        if step not in self._batches:
            seed = self.scenario.simulation.seed
            self._batches[step] = draw_batch(self.scenario.workload, seed, step, self.replication)
        return self._batches[step]

    def forget_costs(self) -> None:
        """Keep what was drawn and drop what training on it costs, before an arm with another trainer asks."""
        self._work.clear()

    def step(self, step: int, costs: CostModel) -> StepWork:
        """The work of ``step``; training costs come from the arm that asks first (the trainer is the same for all)."""
        if step not in self._work:
            batch = self.batch(step)
            kept = batch.group < self.scenario.workload.prompts_per_step
            tokens = batch.total_tokens[kept].astype(np.float64)
            self._work[step] = StepWork(
                batch, costs.logprob(tokens), costs.train(tokens), costs.data(batch.samples), tokens
            )
        return self._work[step]

    def iterations(self, step: int, acceptance: Acceptance) -> IntArray:
        """Engine iterations of every sample of ``step`` under ``acceptance``."""
        key = (step, acceptance)
        if key not in self._iterations:
            seed = self.scenario.simulation.seed
            self._iterations[key] = draw_iterations(self.batch(step), acceptance, seed, step, self.replication)
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
    iterations = world.draws.iterations(step, world.acceptance)
    tokens = float(work.batch.response_tokens.sum())
    verified = tokens - work.batch.samples
    return StepRecord(
        step=step,
        start_s=start_s,
        end_s=end_s,
        phases=phases,
        samples=len(work.trained_tokens),
        generated_tokens=tokens,
        total_tokens=float(work.trained_tokens.sum()),
        staleness=staleness,
        facts={**facts, "tokens_per_verification": verified / max(1.0, float(np.sum(iterations)))},
    )
