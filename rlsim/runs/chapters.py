"""Chapters of a run: consecutive steps that are simulated together, so that memory stays bounded and what is finished
can be kept.

What a step meets depends on seed, replication and step alone. A chapter of an asynchronous run begins some steps
earlier, with an empty pool on the same work, and forgets them: after these the pool is filled as in a run without a
seam, but for what the seam changed in which samples met in an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rlsim.assumptions import assumptions_of, warnings_of
from rlsim.results.run import STATES
from rlsim.results.trace import PHASES
from rlsim.runs.validations import validation_seconds
from rlsim.schema.scenario import Scenario
from rlsim.simulated import SimulatedVariant, simulate_variant
from rlsim.simulation.trace import StepRecord
from rlsim.uncertainty.predictive import prediction_of
from rlsim.uncertainty.response import StepResponse
from rlsim.workload.draw import DrawnStep, DrawnWorkload, Stretch, steps_per_lag_cycle

CHAPTER_SAMPLES = 2**19
"""Samples simulated together: some 150 MB, and a chapter of half a million samples takes about a second."""
CHAPTER_STEPS = 256
"""Most steps of a chapter: a seam costs its forgotten steps, and little is gained by fewer seams."""
FORGOTTEN_CYCLES = 8
"""Cycles of policy_lag steps that a chapter of an asynchronous run forgets at its beginning, and the lag besides."""
SIMULATED = ("step_s", *PHASES, *STATES, "validation_s")
"""What a chapter says of each step, for every replication."""


@dataclass(frozen=True)
class Chapter:
    """Steps first to stop - 1 of a run, from 0; forgotten: steps simulated before them for their state alone."""

    first: int
    stop: int
    forgotten: int

    @property
    def steps(self) -> int:
        """Steps that count."""
        return self.stop - self.first


@dataclass(frozen=True)
class ChapterRecord:
    """What a chapter says.

    values: of SIMULATED, each by replication and step. response: how a step answers to its phases.
    step_factors, generation_factors: draws of the model's error, over the simulated times. redo_s: time of a replica
    for what it loses when it fails. tokens_per_s: of a replica while it generates.
    """

    values: Mapping[str, Sequence[Sequence[float]]]
    response: Mapping[str, Any]
    step_factors: Sequence[float]
    generation_factors: Sequence[float]
    redo_s: float
    assumptions: Sequence[str] = ()
    warnings: Sequence[str] = ()
    replicas: int = field(default=1)

    def as_row(self) -> dict[str, Any]:
        """For the journal; floats survive JSON to the last bit."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ChapterRecord:
        """The record of a journal's entry."""
        return cls(**row)

    @property
    def step_response(self) -> StepResponse:
        """How a step answers to its phases."""
        return StepResponse(**self.response)


def chapters_of(scenario: Scenario, steps: int, chapter_steps: int | None = None) -> tuple[Chapter, ...]:
    """The chapters of a run. chapter_steps: their size, in place of the one that memory allows."""
    cycle = steps_per_lag_cycle(scenario)
    fitting = CHAPTER_SAMPLES // (scenario.workload.samples_per_step * scenario.simulation.replications)
    wanted = chapter_steps or min(CHAPTER_STEPS, max(fitting, 8 * cycle))
    size = -(-wanted // cycle) * cycle
    forgotten = 0
    if scenario.loop.mode == "async":
        # Whole cycles, so that a chapter's batches start in the rhythm of the run's.
        forgotten = -(-(FORGOTTEN_CYCLES * cycle + scenario.loop.policy_lag) // cycle) * cycle
    return tuple(Chapter(first, min(first + size, steps), min(first, forgotten)) for first in range(0, steps, size))


def simulate_chapter(scenario: Scenario, chapter: Chapter) -> ChapterRecord:
    """Draw, price and simulate the steps of a chapter, every replication.

    Raises Infeasible where the scenario cannot run and InputError where it makes no sense.
    """
    counted = {"steps": chapter.steps, "warmup_steps": chapter.forgotten}
    part = scenario.model_copy(update={"simulation": scenario.simulation.model_copy(update=counted)})
    growth = scenario.run.response_growth if scenario.run is not None else ()
    stretch = Stretch(chapter.first - chapter.forgotten, growth)
    kept = slice(chapter.forgotten, chapter.forgotten + chapter.steps)
    lengths: list[list[tuple[float, float]]] = []

    def see(work: DrawnWorkload) -> None:
        lengths.append([_lengths(scenario, step) for step in work.steps[kept]])

    variant = simulate_variant(part, stretch=stretch, see_work=see)
    records = [trace.steps[kept] for trace in variant.traces]
    rows = [
        [_values(step, length, variant) for step, length in zip(each, lengths[number], strict=True)]
        for number, each in enumerate(records)
    ]
    validations = validation_seconds(scenario, range(chapter.first, chapter.stop), stretch)
    predicted = prediction_of(variant)
    return ChapterRecord(
        values={
            **{name: [[row[name] for row in each] for each in rows] for name in (*_TIMED, *STATES)},
            "validation_s": validations,
        },
        response=asdict(predicted.response),
        step_factors=predicted.step_factor.tolist(),
        generation_factors=predicted.factors.generation.tolist(),
        redo_s=_redo_s(scenario, variant),
        assumptions=assumptions_of(variant),
        warnings=warnings_of(variant, whole_run=True),
        replicas=variant.prices.replicas,
    )


_TIMED = ("step_s", *PHASES)


def _lengths(scenario: Scenario, step: DrawnStep) -> tuple[float, float]:
    """Mean response and share of sequences at the cap of the generated samples."""
    totals = np.concatenate([one.batch.total_tokens for one in step.rollouts])
    responses = np.concatenate([one.batch.response_tokens for one in step.rollouts])
    return float(responses.mean()), float(np.mean(totals >= scenario.workload.max_sequence_tokens))


def _values(step: StepRecord, lengths: tuple[float, float], variant: SimulatedVariant) -> dict[str, float]:
    ages = step.staleness
    return {
        "step_s": step.seconds,
        **dict(step.phases.items()),
        "acceptance_length": step.tokens_per_verification,
        "response_tokens": lengths[0],
        "truncated_share": lengths[1],
        "mean_batch": variant.counters.mean_batch,
        "mean_context_tokens": variant.counters.mean_context_tokens,
        "staleness": sum(age * count for age, count in ages.items()) / max(1, sum(ages.values())),
        "oldest": float(max(ages, default=0)),
        "samples": float(step.samples),
        "generated_tokens": step.generated_tokens,
        "trained_tokens": step.total_tokens,
    }


def _redo_s(scenario: Scenario, variant: SimulatedVariant) -> float:
    """Seconds of a replica for what is lost when one fails: the requests that it decodes, half done in the mean.

    Their context is prefilled again at the rate of this chapter's prefills; tokens that nobody kept are decoded again
    at the rate of its decoding.
    """
    counters = variant.counters
    running, context = counters.mean_batch, counters.mean_context_tokens
    prefill_s = counters.prefill_s / max(1, counters.prefill_tokens)
    faults = scenario.run.faults if scenario.run is not None else None
    if faults is not None and faults.keep_tokens:
        return running * context * prefill_s
    steps = [step for each in variant.steps for step in each]
    busy_s = sum(step.phases.generation_s for step in steps) * variant.prices.replicas
    generated = sum(step.generated_tokens for step in steps)
    samples = sum(step.samples for step in steps)
    prompt = max(0.0, (sum(step.total_tokens for step in steps) - generated) / max(1, samples))
    decode_s = busy_s / max(1.0, generated)
    return running * (min(prompt, context) * prefill_s + max(0.0, context - prompt) * decode_s)
