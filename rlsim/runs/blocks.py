"""Blocks of a run: how the steps of a stretch answer to the model's error, and what its engines do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlsim.projection.idle import idle_of
from rlsim.projection.uncertainty.predictive import prediction_of
from rlsim.projection.uncertainty.response import StepResponse
from rlsim.projection.variant import SimulatedVariant


@dataclass(frozen=True)
class BlockRecord:
    """Steps first to stop - 1 of a run, from 0.

    response: how a step answers to its phases, as a mapping. step_factors, generation_factors: draws of the model's
    error, over the simulated times. mean_batch, mean_context_tokens: of decode iterations. redo_s: seconds of a replica
    for what it loses when it fails. work_share: of all GPU seconds of a step in which no GPU waits, as blame has it.
    """

    first: int
    stop: int
    response: Mapping[str, Any]
    step_factors: Sequence[float]
    generation_factors: Sequence[float]
    mean_batch: float
    mean_context_tokens: float
    redo_s: float
    work_share: float = 1.0

    @property
    def steps(self) -> int:
        """Number of its steps."""
        return self.stop - self.first

    @property
    def step_response(self) -> StepResponse:
        """How a step answers to its phases."""
        return StepResponse(**self.response)


def block_of(variant: SimulatedVariant, first: int, stop: int) -> BlockRecord:
    """The block that a simulation stands for."""
    predicted = prediction_of(variant)
    return BlockRecord(
        first=first,
        stop=stop,
        response=asdict(predicted.response),
        step_factors=predicted.step_factor.tolist(),
        generation_factors=predicted.factors.generation.tolist(),
        mean_batch=variant.counters.mean_batch,
        mean_context_tokens=variant.counters.mean_context_tokens,
        redo_s=redo_s(variant),
        work_share=1.0 - sum(one.share for one in idle_of(variant)),
    )


def redo_s(variant: SimulatedVariant) -> float:
    """Seconds of a replica for what is lost when one fails: the requests that it decodes, with the tokens they have.

    Their context is prefilled again at the rate of the simulated prefills; tokens that nobody kept are decoded again
    at the rate of the simulated decoding.
    """
    counters, run = variant.counters, variant.scenario.run
    running, context = counters.mean_batch, counters.mean_context_tokens
    prefill_s = counters.prefill_s / max(1, counters.prefill_tokens)
    if run is not None and run.faults is not None and run.faults.keep_tokens:
        return running * context * prefill_s
    steps = [step for each in variant.steps for step in each]
    generated = sum(step.generated_tokens for step in steps)
    prompts = [one.batch.prompt_tokens for one in variant.first_step.rollouts]
    prompt = min(context, float(sum(each.sum() for each in prompts) / sum(each.size for each in prompts)))
    decode_s = sum(step.phases.generation_s for step in steps) * variant.prices.replicas / max(1.0, generated)
    return running * (prompt * prefill_s + (context - prompt) * decode_s)
