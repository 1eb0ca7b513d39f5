"""What the trainer takes for the batch of a step: a pure function of exactly what it depends on."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from rlsim.costs.engine.draft import trained_draft
from rlsim.costs.interface import Part, PhaseCost, StepCost
from rlsim.costs.operators.device import Device
from rlsim.costs.overheads import TrainingOverheads
from rlsim.costs.trainer import layout
from rlsim.costs.trainer.layout import Bins, MicroBatches
from rlsim.costs.trainer.training import LM_HEAD, LOSS, TrainingCosts
from rlsim.costs.transfer.job import WeightTransfer
from rlsim.schema.base import changed
from rlsim.schema.drafter import draft_parameters
from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import RankBalance, Trainer
from rlsim.units import FloatArray

LOGPROB_BYTES, UPDATE_BYTES, COLLECTED_BYTES = 40, 60, 30
"""Bytes that a driver hands over for each position of the padded batch before log-probs, before the update, and where
an asynchronous trainer collects it: integers and masks of 8 bytes, advantages and log-probs of 4 (counted in verl's
batch of 2025-10; verl/single_controller/base/decorator.py:220-240)."""
STEPS_KEPT = 1024
"""Prices of steps kept per process, each with the lengths of its batch."""

TRAINERS_KEPT = 16
"""Trainers of which the layers of pipeline stages are kept, which log-prob passes and updates share."""


@dataclass(frozen=True)
class TrainedBatch:
    """Lengths that a step trains on, and how many samples were generated for it; equal by content.

    total_tokens: prompt plus response of each trained sample.
    """

    total_tokens: FloatArray = field(compare=False)
    generated_samples: int
    digest: bytes = b""

    @classmethod
    def of(cls, total_tokens: FloatArray, generated_samples: int) -> TrainedBatch:
        """The batch with the digest of its lengths."""
        return cls(total_tokens, generated_samples, hashlib.blake2b(total_tokens.tobytes(), digest_size=16).digest())


@dataclass(frozen=True)
class TrainerInputs:
    """Everything that the trainer's work on a given batch depends on; equal inputs have equal prices.

    logprob_passes: forward passes before the update. draft_training_share: FLOP of a drafter's own training over the
    policy's. The swaps move weights of the reference or of the value model in and out around their passes.
    """

    model: ModelCard
    device: Device
    trainer: Trainer
    gpus: int
    overheads: TrainingOverheads
    max_sequence_tokens: int
    logprob_passes: int
    draft_training_share: float = 0.0
    reference_swap_s: float = 0.0
    critic_pass_swap_s: float = 0.0
    critic_update_swap_s: float = 0.0
    driver_sample_s: float = 0.0
    driver_bytes_per_s: float | None = None
    collected: bool = False


def trainer_inputs(
    scenario: Scenario, device: Device, overheads: TrainingOverheads, transfers: WeightTransfer
) -> TrainerInputs:
    """What the trainer of ``scenario`` depends on."""
    trainer = scenario.trainer
    if trainer.sequence_packing and not scenario.sequence_packing:
        trainer = changed(trainer, sequence_packing=False)
    # A draft head's own pass, mean over steps; MTP layers that trainer.mtp_layers prices are a loss of the policy's.
    draft, drafting = trained_draft(scenario), 0.0
    if draft is not None and not (draft.kind == "mtp" and trainer.mtp_layers):
        drafting = draft_parameters(draft, scenario.model) / parameter_counts(scenario.model).active
    return TrainerInputs(
        scenario.model, device, trainer, scenario.cluster.training, overheads, scenario.workload.max_sequence_tokens,
        logprob_passes=int(scenario.policy_logprobs) + int(scenario.trainer.reference_logprobs),
        draft_training_share=drafting / scenario.speculation.online_interval_steps,
        reference_swap_s=transfers.reference_swap_s(),
        critic_pass_swap_s=transfers.critic_swap_s(update=False),
        critic_update_swap_s=transfers.critic_swap_s(update=True),
        driver_sample_s=scenario.loop.driver_sample_s,
        driver_bytes_per_s=scenario.driver_bytes_per_s,
        collected=scenario.loop.mode == "async",
    )  # fmt: skip


@lru_cache(maxsize=STEPS_KEPT)
@np.errstate(invalid="raise", divide="raise")
def step_cost(inputs: TrainerInputs, batch: TrainedBatch) -> StepCost:
    """Driver work, log-prob passes and all optimizer steps for one batch; the last few are kept."""
    driver_s = batch.generated_samples * inputs.driver_sample_s
    collected = [_handed_over(inputs, batch, COLLECTED_BYTES)] if inputs.collected else []
    return StepCost(
        data=PhaseCost.of([Part("driver", driver_s, "host", "assumed"), *collected]),
        logprob=_logprob(inputs, batch).deviating(inputs.overheads.factor),
        train=train_cost(inputs, batch),
    )


@lru_cache(maxsize=TRAINERS_KEPT)
@np.errstate(invalid="raise", divide="raise")
def train_cost(inputs: TrainerInputs, batch: TrainedBatch) -> PhaseCost:
    """The optimizer steps alone; a search asks for them before the rest."""
    trainer, samples, training = inputs.trainer, len(batch.total_tokens), _training(inputs)
    steps = max(1, math.ceil(samples / (trainer.global_batch_samples or samples)))
    capacity = trainer.micro_batch_tokens or inputs.max_sequence_tokens
    balance, ranks = inputs.overheads.features.rank_balance, training.layout.data_parallel
    cost = training.step(_packed(trainer, balance, ranks, batch, capacity, steps))
    drafter = Part("draft training", cost.seconds * inputs.draft_training_share, "compute")
    once = PhaseCost.of((*cost.parts, drafter))
    parts = [*once.repeated(trainer.epochs).parts, _handed_over(inputs, batch, UPDATE_BYTES)]
    if trainer.critic:
        parts += _critic("value update", cost.repeated(trainer.epochs), inputs.critic_update_swap_s)
    return PhaseCost.of(parts).deviating(inputs.overheads.factor)


@lru_cache(maxsize=TRAINERS_KEPT)
def _training(inputs: TrainerInputs) -> TrainingCosts:
    return TrainingCosts(inputs.model, inputs.trainer, inputs.device, inputs.overheads, inputs.gpus)


def _logprob(inputs: TrainerInputs, batch: TrainedBatch) -> PhaseCost:
    """Log-prob passes of the policy and of the reference, with the swap of weights around the latter."""
    trainer, training = inputs.trainer, _training(inputs)
    capacity = trainer.logprob_micro_batch_tokens or trainer.micro_batch_tokens or inputs.max_sequence_tokens
    balance, ranks = inputs.overheads.features.rank_balance, training.layout.data_parallel
    once = training.forward(_packed(trainer, balance, ranks, batch, capacity, 1))
    parts = list(once.repeated(inputs.logprob_passes).parts)
    if inputs.logprob_passes:
        parts.append(_handed_over(inputs, batch, LOGPROB_BYTES))
    if trainer.critic:
        parts += _critic("value pass", once, inputs.critic_pass_swap_s)
    if trainer.reference_logprobs:
        parts.append(Part("reference swap", inputs.reference_swap_s, "host link"))
    return PhaseCost.of(parts)


def _handed_over(inputs: TrainerInputs, batch: TrainedBatch, bytes_per_position: float) -> Part:
    """A driver's work on the padded batch, where it all goes through one."""
    positions = len(batch.total_tokens) * inputs.max_sequence_tokens
    rate = inputs.driver_bytes_per_s
    return Part("padded batch", 0.0 if rate is None else positions * bytes_per_position / rate, "host", "assumed")


def _critic(name: str, cost: PhaseCost, swap_s: float) -> list[Part]:
    """The policy's pass or update without its LM head (a value is one number), and the swap around it."""
    bare = [part for part in cost.parts if part.name not in (LM_HEAD, LOSS)]
    longest = max(bare, key=lambda part: part.seconds)
    whole = Part(name, sum(part.seconds for part in bare), longest.bound)
    return [whole, Part("value model swap", swap_s, "host link")]


def _packed(
    trainer: Trainer, balance: RankBalance, ranks: int, batch: TrainedBatch, capacity: int, steps: int
) -> MicroBatches:
    cp = trainer.context_parallel
    multiple = trainer.tensor_parallel * (2 * cp if cp > 1 else 1)
    if not trainer.sequence_packing:
        lengths = layout.padded(batch.total_tokens, multiple)
        return layout.padded_samples(lengths, ranks, steps, trainer.micro_batch_samples)
    if balance == "bins":
        return layout.dealt_bins(_bins(batch, capacity, steps, multiple), ranks)
    return _dealt(batch, (ranks, cp), steps, multiple, capacity, balance)


@lru_cache(maxsize=STEPS_KEPT)
def _dealt(
    batch: TrainedBatch, ranks: tuple[int, int], steps: int, multiple: int, capacity: int, balance: RankBalance
) -> MicroBatches:
    """Found once for all trainers that deal alike: searches price thousands of layouts on one batch."""
    return layout.dealt_samples(layout.padded(batch.total_tokens, multiple), ranks, steps, capacity, balance)


@lru_cache(maxsize=STEPS_KEPT)
def _bins(batch: TrainedBatch, capacity: int, steps: int, multiple: int) -> tuple[Bins, ...]:
    return layout.bins_by_step(batch.total_tokens, capacity, steps, multiple)
