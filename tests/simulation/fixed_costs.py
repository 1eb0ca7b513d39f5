"""Fixed costs behind the CostModel seam, and worlds in which every time can be reckoned by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlsim.costs.interface import FloatArray, IterationTable, PhaseCost
from rlsim.loading import load_scenario
from rlsim.simulation.loop import run_loop
from rlsim.simulation.trace import StepRecord, Trace
from rlsim.workload.batches import Batch, Generated
from rlsim.simulation.world import Draws, World
from rlsim.workload.acceptance import Acceptance

PROMPT = 10


@dataclass(frozen=True)
class FixedCosts:
    """Phases of fixed length; an engine iteration takes ``iteration_s`` whatever its batch, prefill is free by default.

    A response of n tokens thus takes (n - 1) iterations. The defaults are sums of powers of two: times are exact.
    trained: token counts of every batch that was priced.
    """

    iteration_s: float = 0.25
    prefill_token_s: float = 0.0
    slots: int = 4096
    data_s: float = 1.0
    prepare_s: float = 2.0
    refit_s: float = 0.5
    wake_s: float = 0.125
    logprob_s: float = 3.0
    train_s: float = 4.0
    trained: list[FloatArray] = field(default_factory=list)

    @cached_property
    def iteration(self) -> IterationTable:
        """The same for all replicas."""
        step = np.full(self.slots + 1, self.iteration_s)
        step[0] = 0.0
        grid = np.array([0.0, 1e6])
        prefill = np.tile(self.prefill_token_s * grid, (2, 1))
        counts = np.array([0.0, float(self.slots)])
        return IterationTable(
            step, 1000.0, np.zeros((self.slots + 1, 2)), grid, counts, prefill, 1, 1_000_000, self.slots, 1e12
        )

    @property
    def trainer_s(self) -> float:
        """What the trainer does with a batch."""
        return self.data_s + self.logprob_s + self.train_s

    def data(self, samples: int) -> PhaseCost:
        return PhaseCost(self.data_s)

    def prepare(self) -> PhaseCost:
        return PhaseCost(self.prepare_s)

    def wake(self) -> PhaseCost:
        return PhaseCost(self.wake_s)

    def refit(self) -> PhaseCost:
        return PhaseCost(self.refit_s)

    def logprob(self, total_tokens: FloatArray) -> PhaseCost:
        return PhaseCost(self.logprob_s)

    def train(self, total_tokens: FloatArray) -> PhaseCost:
        self.trained.append(total_tokens)
        return PhaseCost(self.train_s)


def world_of(
    costs: FixedCosts,
    *overrides: str,
    lag: int = 0,
    prompts: int = 4,
    size: int = 2,
    tokens: int = 401,
    replicas: int = 2,
    lengths: dict[int, list[int]] | None = None,
) -> World:
    """A small loop, synchronous at lag 0. lengths: response tokens of the samples of some steps in place of ``tokens``.

    Without rounding by polls (poll_s=0), 12 steps, no warm-up; ``overrides`` come last.
    """
    keys: dict[str, Any] = {
        "workload.prompts_per_step": prompts,
        "workload.generations_per_prompt": size,
        "workload.prompt_tokens": f"{{kind: constant, tokens: {PROMPT}}}",
        "workload.response_tokens": f"{{kind: constant, tokens: {tokens}}}",
        "trainer.global_batch_samples": "null",
        "loop.mode": "async" if lag else "sync",
        "loop.policy_lag": lag,
        "loop.poll_s": 0,
        "simulation.steps": 12,
        "simulation.warmup_steps": 0,
    }
    scenario = load_scenario("qwen8b_async_lag1", [*(f"{key}={value}" for key, value in keys.items()), *overrides])
    draws = Draws(scenario, 0)
    for step, responses in (lengths or {}).items():
        count = len(responses)
        batch = Batch(np.full(count, PROMPT), np.asarray(responses), np.arange(count) // size)
        draws._rollouts[step] = (Generated(batch, np.ones(count, dtype=np.bool_)),)
    return World(scenario, costs, replicas, Acceptance(np.zeros(0)), draws)


def run(world: World) -> Trace:
    """A detailed trace of the loop."""
    trace = Trace(detailed=True)
    run_loop(world, trace)
    return trace


def steps(costs: FixedCosts, *overrides: str, **keys: Any) -> list[StepRecord]:
    """Steps of :func:`world_of`."""
    return run(world_of(costs, *overrides, **keys)).steps
