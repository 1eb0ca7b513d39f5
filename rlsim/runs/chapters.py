"""Chapters of a run: consecutive steps that are simulated together, so that memory stays bounded and what is finished
can be stored.

What a step meets depends on seed, replication and step alone. A chapter of an asynchronous run that does not begin it
begins some steps earlier, with an empty pool on the same work, and forgets them. The pool is full again after two or
three steps, but how far apart the batches in flight are settles over hundreds: single steps are in another order than
without a seam, their sum is the same within 0.2 % (docs/runs.md). Chapters are therefore as long as memory allows.

How a step answers to the model's error, and what engines do, comes from blocks within chapters.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from rlsim.costs.engine.draft_policy import tokens_factor
from rlsim.costs.engine.prices import engine_prices
from rlsim.costs.prices import PriceInputs
from rlsim.costs.trainer.layout import train_layout
from rlsim.projection.assumptions import assumptions_of, warnings_of
from rlsim.projection.idle import idle_of
from rlsim.projection.uncertainty.predictive import prediction_of
from rlsim.projection.uncertainty.response import StepResponse
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.results.projection import PHASES
from rlsim.results.run import STATES
from rlsim.schema.base import changed, replaced
from rlsim.schema.loop import Loop
from rlsim.schema.model import parameter_counts
from rlsim.schema.run import Checkpoint, RunConditions, Validation
from rlsim.schema.scenario import Scenario
from rlsim.simulation.pool import Fleet
from rlsim.simulation.rollout import rollout
from rlsim.simulation.trace import StepRecord
from rlsim.units import BYTES_PER_ELEMENT
from rlsim.workload.acceptance_steps import acceptance_at
from rlsim.workload.batches import at_cap, draw_batch, draw_iterations
from rlsim.workload.draw import DrawnStep, DrawnWorkload, Stretch, steps_per_lag_cycle
from rlsim.workload.lengths import Place


class _Steps(Struct, frozen=True):
    """Steps first to stop - 1 of a run, from 0."""

    first: int
    stop: int

    @property
    def steps(self) -> int:
        """Number of them."""
        return self.stop - self.first


class BlockRecord(_Steps, frozen=True):
    """Steps of a run for which one simulation stands.

    response: how a step answers to its phases, as a mapping. step_factors, generation_factors: draws of the model's
    error, over the simulated times. mean_batch, mean_context_tokens: of decode iterations. redo_s: seconds of a replica
    for what it loses when it fails. work_share: of all GPU seconds of a step in which no GPU waits, as blame has it.
    """

    response: Mapping[str, Any]
    step_factors: Sequence[float]
    generation_factors: Sequence[float]
    mean_batch: float
    mean_context_tokens: float
    redo_s: float
    work_share: float = 1.0

    @property
    def step_response(self) -> StepResponse:
        """Seconds of a step as a function of its phases."""
        return StepResponse(**self.response)


def block_of(variant: SimulatedVariant, first: int, stop: int) -> BlockRecord:
    """The block that a simulation stands for."""
    predicted = prediction_of(variant)
    return BlockRecord(
        first=first,
        stop=stop,
        response=asdict(predicted.response),
        step_factors=predicted.step_factor.tolist(),
        generation_factors=predicted.factor("generation_s", variant.phases_s["generation_s"]).tolist(),
        mean_batch=variant.counters.mean_batch,
        mean_context_tokens=variant.counters.mean_context_tokens,
        redo_s=redo_s(variant),
        work_share=1.0 - sum(one.share for one in idle_of(variant)),
    )


def redo_s(variant: SimulatedVariant) -> float:
    """Seconds of a replica for what is lost when one fails: the requests that it decodes, with the tokens they have.

    Their context is prefilled again at the rate of the simulated prefills; tokens that nobody stored are decoded again
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
    # The mean context is over iterations and may be shorter than the mean prompt where short prompts decode long.
    prompt = min(context, float(sum(each.sum() for each in prompts) / sum(each.size for each in prompts)))
    decode_s = sum(step.phases.generation_s for step in steps) * variant.prices.replicas / max(1.0, generated)
    return running * (prompt * prefill_s + (context - prompt) * decode_s)


CHAPTER_SAMPLES = 2**22
"""Samples of an asynchronous chapter and replication: some 1.5 GB."""
CHAPTER_STEPS = 1024
"""Most steps of an asynchronous chapter."""
BLOCK_STEPS = 128
"""Steps for which one block stands; a synchronous chapter is one block."""
FORGOTTEN_STEPS = 64
"""Steps that an asynchronous chapter forgets at its beginning."""
PROBE_STEPS, PROBE_CYCLES = 24, 3
"""Steps simulated apart in the middle of an asynchronous block, after so many cycles."""
SIMULATED = tuple(name for name in STATES if name not in ("mean_batch", "mean_context_tokens"))
"""What a step was like, as far as it is simulated step by step."""


class Chapter(_Steps, frozen=True):
    """Steps of a run that count. forgotten: steps simulated before them for their state alone."""

    forgotten: int


class ChapterRecord(Struct, frozen=True):
    """Results of a chapter. values: step_s, phases, SIMULATED and validation_s of each replication and step.

    tokens: entries of the ledger of its steps, whole cycles, mean over replications; None for agents. ages: samples
    trained on by age, all replications.
    """

    values: Mapping[str, Sequence[Sequence[float]]]
    tokens: Sequence[float] | None
    ages: Mapping[str, int]
    blocks: Sequence[BlockRecord]
    assumptions: Sequence[str]
    warnings: Sequence[str]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ChapterRecord:
        """The record of a journal's entry."""
        return cls(**{**row, "blocks": [BlockRecord(**block) for block in row["blocks"]]})


def chapters_of(scenario: Scenario, steps: int, chapter_steps: int | None = None) -> tuple[Chapter, ...]:
    """The chapters of a run. chapter_steps: their size, in place of the one that memory allows."""
    cycle, forgotten = steps_per_lag_cycle(scenario), 0
    fitting, most = CHAPTER_SAMPLES // scenario.workload.samples_per_step, BLOCK_STEPS
    if scenario.loop.mode == "async":
        # Whole cycles, so that a chapter's batches start in the rhythm of the run's.
        forgotten, most = _whole_cycles(FORGOTTEN_STEPS, cycle), CHAPTER_STEPS
    size = _whole_cycles(chapter_steps or max(1, min(most, fitting)), cycle)
    # The first chapter has nothing before it to forget, an early one less than the rest.
    return tuple(Chapter(first, min(first + size, steps), min(first, forgotten)) for first in range(0, steps, size))


def _whole_cycles(steps: int, cycle: int) -> int:
    """``steps`` rounded up to whole cycles."""
    return -(-steps // cycle) * cycle


def simulate_chapter(scenario: Scenario, chapter: Chapter) -> ChapterRecord:
    """Draw, price and simulate the steps of a chapter, every replication.

    Raises Infeasible where the scenario cannot run and InputError where it makes no sense.
    """
    run = scenario.run or RunConditions()
    stretch = Stretch(chapter.first - chapter.forgotten, run.response_growth, run.turns_growth)
    counted = slice(chapter.forgotten, chapter.forgotten + chapter.steps)
    lengths: list[list[tuple[float, float]]] = []

    def see(done: int, work: DrawnWorkload) -> None:
        # Taken on the way: the work of a replication is not held once it is simulated.
        lengths.append([_lengths(scenario, step) for step in work.steps[counted]])

    part = _counting(scenario, chapter.steps, chapter.forgotten)
    variant = simulate_variant(part, stretch=stretch, see=see)
    factor = tokens_factor(variant.prices.engine, variant.counters)
    rows = [
        [_values(step, length, factor) for step, length in zip(trace.steps[counted], lengths[number], strict=True)]
        for number, trace in enumerate(variant.traces)
    ]
    values = {name: [[row[name] for row in each] for each in rows] for name in ("step_s", *PHASES, *SIMULATED)}
    values["validation_s"] = validation_seconds(scenario, range(chapter.first, chapter.stop), stretch)
    blocks, probe = _blocks(scenario, chapter, variant)
    ages: Counter[str] = Counter()
    for trace in variant.traces:
        for step in trace.steps[counted]:
            ages.update({str(age): count for age, count in step.staleness.items()})
    return ChapterRecord(values, _tokens(variant), dict(ages), blocks, assumptions_of(probe), warnings_of(probe))


def _tokens(variant: SimulatedVariant) -> list[float] | None:
    ledgers = [trace.ledger for trace in variant.traces if trace.ledger is not None]
    if not ledgers:
        return None
    return list(dataclasses.astuple(functools.reduce(operator.add, ledgers).scaled(1.0 / len(ledgers))))


def _counting(scenario: Scenario, steps: int, forgotten: int) -> Scenario:
    amounts = {"steps": steps, "warmup_steps": forgotten}  # as many as a run has, which a scenario may not state
    return replaced(scenario, {"simulation": replaced(scenario.simulation, amounts)})


def _blocks(
    scenario: Scenario, chapter: Chapter, variant: SimulatedVariant
) -> tuple[list[BlockRecord], SimulatedVariant]:
    """The blocks of a chapter, and the simulation behind the last one.

    A synchronous chapter is one block. Of an asynchronous one a few steps in the middle of each block are simulated
    apart, as a projection would: the draws of its error cost a second, slower simulation of the same steps.
    """
    if scenario.loop.mode == "sync":
        return [block_of(variant, chapter.first, chapter.stop)], variant
    cycle = steps_per_lag_cycle(scenario)
    blocks, probe = [], variant
    forgotten = max(_whole_cycles(math.ceil(scenario.loop.asynchrony.pace), cycle), PROBE_CYCLES * cycle)
    part = _counting(scenario, PROBE_STEPS, forgotten)
    for first in range(chapter.first, chapter.stop, BLOCK_STEPS):
        stop = min(first + BLOCK_STEPS, chapter.stop)
        # In the middle: lengths and acceptance may drift over a run, and the block takes the mean of its steps.
        begin = max(0, (first + stop - PROBE_STEPS) // 2 - forgotten)
        probe = simulate_variant(part, stretch=replace(variant.stretch, first=begin))
        blocks.append(block_of(probe, first, stop))
    return blocks, probe


def _lengths(scenario: Scenario, step: DrawnStep) -> tuple[float, float]:
    """Mean response and share of sequences at the cap of the generated samples."""
    cut = np.concatenate([at_cap(scenario.workload, one.batch) for one in step.rollouts])
    responses = np.concatenate([one.batch.response_tokens for one in step.rollouts])
    return float(responses.mean()), float(np.mean(cut))


def _values(step: StepRecord, lengths: tuple[float, float], factor: float) -> dict[str, float]:
    """factor: tokens of an iteration of the engine over those of a reference iteration."""
    ages = step.staleness
    return {
        "step_s": step.seconds,
        **dict(step.phases.items()),
        "acceptance_length": factor * step.tokens_per_verification,
        "response_tokens": lengths[0],
        "truncated_share": lengths[1],
        "staleness": sum(age * count for age, count in ages.items()) / sum(ages.values()),
        "oldest": float(max(ages)),
        "samples": float(step.samples),
        "generated_tokens": step.generated_tokens,
        "trained_tokens": step.total_tokens,
    }


VALIDATION_NUMBER = 1_000_000
"""Number of the rollout whose random numbers a validation draws: beyond those of any step."""


def due(every_steps: int, step: int) -> bool:
    """Whether something that happens after every n-th step happens after ``step``, from 0."""
    return (step + 1) % every_steps == 0


def validation_seconds(scenario: Scenario, steps: Sequence[int], stretch: Stretch) -> list[list[float]]:
    """Seconds of the validation after each of ``steps``, by replication; 0 where there is none."""
    validation = scenario.run.validation if scenario.run is not None else None
    replications = range(scenario.replications)
    if validation is None:
        return [[0.0] * len(steps) for _ in replications]
    if validation.samples is None:
        assert validation.seconds is not None
        stated = [validation.seconds if due(validation.every_steps, step) else 0.0 for step in steps]
        return [stated for _ in replications]
    return _generated(scenario, validation, validation.samples, steps, stretch)


def _generated(
    scenario: Scenario, validation: Validation, samples: int, steps: Sequence[int], stretch: Stretch
) -> list[list[float]]:
    """The time from the first request to the last reward, on all replicas, with the weights already there."""
    # A step of its own: so many prompts of one sample each, on the same engine.
    counts = {"prompts_per_step": samples, "generations_per_prompt": 1, "generated_batch_factor": 1.0}
    workload = changed(scenario.workload, **counts, usable_group_share=1.0, tail_batching=None)
    # The number of validated samples need not be a multiple of what the trainer asks for.
    trainer = changed(scenario.trainer, global_batch_samples=None)
    engine, seed = scenario.engine, scenario.simulation.seed
    replicas = scenario.replicas
    priced = changed(workload, prompts_per_step=max(samples, replicas))  # some may have nothing to validate
    alone = changed(scenario, workload=priced, loop=Loop(), trainer=trainer)
    table = engine_prices(PriceInputs(alone).engine).table

    def seconds(step: int, replication: int) -> float:
        if not due(validation.every_steps, step):
            return 0.0
        batch = draw_batch(workload, Place(seed, step, replication, VALIDATION_NUMBER), stretch.scales(step))
        acceptance = acceptance_at(scenario.speculation, step)
        iterations = draw_iterations(batch, acceptance, Place(seed, step, replication, VALIDATION_NUMBER))
        found = rollout(batch, iterations, Fleet(replicas, engine.dispatch, table, engine.prefix_caching))
        return float(found.seconds + workload.environment_s)

    return [[seconds(step, number) for step in steps] for number in range(scenario.replications)]


def checkpoint_seconds(scenario: Scenario, checkpoint: Checkpoint) -> float:
    """Time to write the trainer's state once."""
    if checkpoint.seconds is not None:
        return checkpoint.seconds
    assert checkpoint.bytes_per_s is not None
    return state_bytes(scenario) / checkpoint.bytes_per_s


def state_bytes(scenario: Scenario) -> float:
    """BF16 weights and optimizer state of what is trained (LoRA: of the adapters alone); twice with a value model."""
    trainer = scenario.trainer
    share = train_layout(trainer, scenario.model, scenario.cluster.training).trained_share
    each = BYTES_PER_ELEMENT["bf16"] + trainer.optimizer_bytes_per_parameter
    return math.prod((parameter_counts(scenario.model).total, share, each, 2 if trainer.critic else 1))
