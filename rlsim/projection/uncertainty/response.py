"""How the time of a step follows when its phases take another factor of their time.

Synchronous steps add their phases up. An asynchronous step takes about the longer of what the trainer needs and what
generation needs, and somewhat more where both are near each other: with T the trainer's chain and G what a step takes
where generation sets the pace, the p-norm (T^m + G^m)^(1/m). G is linear in the time of the engines' iterations: in
part it waits for the trainer's publications all the same. T and two steps, as it is and with slower engines, come from
simulations, and G from these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.projection.scale import on_enough_work, pools_of, simulate_pool
from rlsim.projection.variant import SimulatedVariant, seconds_of
from rlsim.schema.base import changed
from rlsim.schema.scenario import MAX_SIMULATED_STEPS
from rlsim.simulation.trace import StepRecord, Trace
from rlsim.units import FloatArray
from rlsim.workload.draw import DrawnWorkload

EXPONENT = 8.0
"""m of the p-norm. Stragglers make a step wait for generation now and then before it is the longer one; simulated steps
of the shipped asynchronous scenarios lie within some 10 % of this (tests/uncertainty/test_response.py)."""
LEAST_WAITING = 1.02
"""Least step over the trainer's chain that shows generation; below it stragglers are all that is waited for."""
SLOWED, SLOWED_STEPS = 2.0, 4
"""Factor on generation in the further replication that shows its own time where the trainer hides it, and its measured
steps at least: beside the same ones as they are few tell how much longer they take."""
CHAIN = ("data_s", "logprob_s", "train_s", "refit_s")
"""Phases of an asynchronous trainer, one after the other."""


class Factors(Struct, frozen=True, eq=False):
    """Factors of the phases' times, arrays of draws or single numbers.

    transfer: of the preparation of a synchronous step, of the refit of an asynchronous one.
    """

    generation: FloatArray
    logprob: FloatArray
    train: FloatArray
    transfer: FloatArray


class StepResponse(Struct, frozen=True):
    """Mean seconds of a step's phases and how they make up its time.

    fixed_s: what no factor moves. generation_ratio: of an asynchronous step, the time of its iterations over the
    trainer's chain; None for a synchronous one. waiting_ratio: what generation waits for besides, over the chain.
    overlapped_s: of log-probs and update, beside generation in a synchronous step that streams. rewards_s: of rewards
    and environments, within generation.
    """

    generation_s: float
    logprob_s: float
    train_s: float
    transfer_s: float
    fixed_s: float
    generation_ratio: float | None = None
    waiting_ratio: float = 0.0
    overlapped_s: float = 0.0
    rewards_s: float = 0.0

    def trainer_s(self, factors: Factors) -> FloatArray:
        """The trainer's chain, or the whole of a synchronous step but its generation."""
        moved = self.logprob_s * factors.logprob + self.train_s * factors.train + self.transfer_s * factors.transfer
        return np.asarray(self.fixed_s + moved, dtype=np.float64)

    def seconds(self, factors: Factors) -> FloatArray:
        """Seconds of the step."""
        chain = self.trainer_s(factors)
        if self.generation_ratio is None:
            hidden_s = self._overlapped_s(factors) if self.overlapped_s else 0.0
            return np.asarray(chain + self.generation_s * factors.generation - hidden_s, dtype=np.float64)
        base = self.fixed_s + self.logprob_s + self.train_s + self.transfer_s
        generation = self.waiting_ratio * chain + self.generation_ratio * base * factors.generation
        # The larger one in front of the root: its eighth power alone overflows or loses digits where steps are long.
        longer, shorter = np.maximum(chain, generation), np.minimum(chain, generation)
        return np.asarray(longer * (1 + (shorter / longer) ** EXPONENT) ** (1 / EXPONENT), dtype=np.float64)

    def _overlapped_s(self, factors: Factors) -> FloatArray:
        """Seconds of the trainer's work beside generation, as if the sample that it waits for last stayed the same."""
        moved = self.logprob_s * factors.logprob + self.train_s * factors.train
        return np.asarray(self.overlapped_s * moved / (self.logprob_s + self.train_s), dtype=np.float64)

    @property
    def shares(self) -> dict[str, float]:
        """Derivatives of the step's logarithm by those of generation, log-prob, train and transfer."""
        whole, out, step = float(self.seconds(_ones())), {}, 1e-3
        for name in ("generation", "logprob", "train", "transfer"):
            more = float(self.seconds(replace(_ones(), **{name: np.array(1 + step)})))
            out[name] = math.log(more / whole) / math.log1p(step)
        return out


def _ones() -> Factors:
    one = np.array(1.0)
    return Factors(one, one, one, one)


def step_response(run: SimulatedVariant) -> StepResponse:
    """The response of a simulated scenario."""
    steps, mean, rewards_s = run.every_step, run.phases_s, run.rewards_s
    if run.scenario.workload.agent is not None:  # no error of the engine's model moves what an environment takes
        idle_s = run.agents.environment_idle_s + run.agents.judge_idle_s
        rewards_s += idle_s / run.prices.replicas / len(steps)
    if run.scenario.loop.mode == "sync":
        overlapped_s = float(np.mean([step.overlapped_s for step in steps]))
        awaited_s = mean["exposed_generation_s"] + overlapped_s  # the sample that is waited for last
        engine_s = max(0.0, awaited_s - rewards_s)
        fixed_s = mean["data_s"] + awaited_s - engine_s
        moved = (engine_s, mean["logprob_s"], mean["train_s"], mean["prepare_s"], fixed_s)
        return StepResponse(*moved, overlapped_s=overlapped_s, rewards_s=rewards_s)
    chain_s = sum(mean[name] for name in CHAIN)
    step_s = float(np.mean(np.concatenate(run.values(seconds_of("step")))))
    iterations, waiting = _generation_ratios(run, step_s / chain_s)
    return StepResponse(
        mean["generation_s"], mean["logprob_s"], mean["train_s"], mean["refit_s"], mean["data_s"], iterations, waiting
    )


def _generation_ratios(run: SimulatedVariant, step_ratio: float) -> tuple[float, float]:
    """Generation's own time over the trainer's chain, of its iterations and of what it waits for besides.

    step_ratio: simulated step over that chain. Where the trainer sets the pace, the pool is as busy as its lag allows
    and hides how long generation would take: then the slower one alone shows it, as if nothing were waited for.
    """
    slowed = _generation_alone(max(LEAST_WAITING, step_ratio * _slower(run, SLOWED)))
    now = _generation_alone(step_ratio) if step_ratio >= LEAST_WAITING else 0.0
    # Two points of a line; the second bound keeps what is waited for besides from being negative.
    iterations = min((slowed - now) / (SLOWED - 1), slowed / SLOWED)
    return iterations, slowed - SLOWED * iterations


def _generation_alone(step_ratio: float) -> float:
    """Generation over the trainer's chain from the step over that chain."""
    return float((step_ratio**EXPONENT - 1) ** (1 / EXPONENT))


def _slower(run: SimulatedVariant, factor: float) -> float:
    """What generation slowed by ``factor`` makes of the step over the trainer's chain, on equal work: the first steps
    of the first replication; all of them where pools stand for more, whose number goes by them."""
    scenario, prices = run.scenario, run.prices
    few = max(SLOWED_STEPS, scenario.cycle_steps) if pools_of(scenario) == 1 else MAX_SIMULATED_STEPS
    steps = min(len(scenario.measured_steps), few)
    scenario = changed(scenario, simulation=changed(scenario.simulation, steps=steps))
    names = ("step_s", "attention_s", "prefill_s", "prefill_context_s")
    # Iterations alone: what generation waits for besides does not slow down with its engines.
    scaled = {name: getattr(prices.iteration, name) * factor for name in names}
    slowed = replace(prices, iteration=replace(prices.iteration, **scaled))

    def again(work: DrawnWorkload) -> Trace:
        return simulate_pool(scenario, work, slowed, Trace(tokens=False))

    found = on_enough_work(scenario, 0, run.draft_plan, run.stretch, again).steps[scenario.measured_steps.start :]
    return _over_chain(found) / _over_chain(run.steps[0][:steps])


def _over_chain(steps: Sequence[StepRecord]) -> float:
    """Steps over the trainer's chain in them."""
    return sum(step.seconds for step in steps) / sum(step.phases[name] for step in steps for name in CHAIN)
