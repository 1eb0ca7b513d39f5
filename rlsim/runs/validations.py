"""Validation and checkpoints: what they take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlsim.costs.engine.prices import engine_prices
from rlsim.costs.prices import PriceInputs
from rlsim.costs.trainer.layout import train_layout
from rlsim.schema.base import changed
from rlsim.schema.loop import Loop
from rlsim.schema.model import parameter_counts
from rlsim.schema.run import Checkpoint, Validation
from rlsim.schema.scenario import Scenario
from rlsim.simulation.pool import Fleet
from rlsim.simulation.rollout import rollout
from rlsim.units import BYTES_PER_ELEMENT
from rlsim.workload.acceptance_steps import acceptance_at
from rlsim.workload.batches import draw_batch, draw_iterations
from rlsim.workload.draw import Stretch
from rlsim.workload.lengths import Place

VALIDATION_NUMBER = 1_000_000
"""Number of the rollout whose random numbers a validation draws: beyond those of any step."""


def due(every_steps: int, step: int) -> bool:
    """Whether something that happens after every n-th step happens after ``step``, from 0."""
    return (step + 1) % every_steps == 0


def validation_seconds(scenario: Scenario, steps: Sequence[int], stretch: Stretch) -> list[list[float]]:
    """Seconds of the validation after each of ``steps``, by replication; 0 where there is none."""
    validation = scenario.run.validation if scenario.run is not None else None
    replications = range(scenario.simulation.replications)
    if validation is None:
        return [[0.0] * len(steps) for _ in replications]
    if validation.samples is None:
        stated = [validation.seconds or 0.0 if due(validation.every_steps, step) else 0.0 for step in steps]
        return [stated for _ in replications]
    return _generated(scenario, validation, validation.samples, steps, stretch)


def _generated(
    scenario: Scenario, validation: Validation, samples: int, steps: Sequence[int], stretch: Stretch
) -> list[list[float]]:
    """The time from the first request to the last reward, on all replicas, with the weights already there."""
    # A step of its own: so many prompts of one sample each, on the same engine.
    counts = {"prompts_per_step": samples, "generations_per_prompt": 1, "generated_batch_factor": 1.0}
    workload = changed(scenario.workload, **counts, usable_group_share=1.0, tail_batching=None)
    trainer = changed(scenario.trainer, global_batch_samples=None)
    alone = changed(scenario, workload=workload, loop=Loop(), trainer=trainer)
    table = engine_prices(PriceInputs(alone).engine).table
    engine, seed = scenario.engine, scenario.simulation.seed
    replicas = scenario.cluster.generation // engine.gpus_per_replica

    def seconds(step: int, replication: int) -> float:
        if not due(validation.every_steps, step):
            return 0.0
        scale = stretch.response_scale(step)
        batch = draw_batch(workload, Place(seed, step, replication, VALIDATION_NUMBER), scale)
        acceptance = acceptance_at(scenario.speculation, step)
        iterations = draw_iterations(batch, acceptance, Place(seed, step, replication, VALIDATION_NUMBER))
        found = rollout(batch, iterations, Fleet(replicas, engine.dispatch, table, engine.prefix_caching))
        return float(found.seconds + workload.environment_s)

    return [[seconds(step, number) for step in steps] for number in range(scenario.simulation.replications)]


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
