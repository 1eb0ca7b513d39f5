"""Train step and log-prob passes: layers through the pipeline, LM head, gradients and optimizer.

1F1B pipeline: m x slowest stage + (PP - 1) x a middle one (Narayanan et al., arXiv 2104.04473, 2.2). The last stage has
the LM head, and as many layers fewer as the layout says.
"""

import math
from functools import cached_property, lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.draft import trained_draft
from rlsim.costs.interface import Part, PhaseCost, StepCost
from rlsim.costs.measured import measured_passes, measured_update, stack_of
from rlsim.costs.operators.device import Device
from rlsim.costs.operators.work import Matrix
from rlsim.costs.overheads import TrainingOverheads
from rlsim.costs.stack_terms import with_logprob_batches
from rlsim.costs.trainer.critic import critic_parts
from rlsim.costs.trainer.driver import COLLECTED_BYTES, LOGPROB_BYTES, PADDED_BATCH, UPDATE_BYTES, handed_over
from rlsim.costs.trainer.layer import TrainingLayers, TrainingUpdate, at_efficiency, of_mean_rank, times
from rlsim.costs.trainer.layout import MicroBatches, TrainedBatch, TrainLayout, micro_batch_of, train_layout
from rlsim.costs.trainer.work import passes
from rlsim.costs.transfer.job import WeightTransfer
from rlsim.costs.vision import seeing, tower_s, update_passes
from rlsim.schema.base import changed
from rlsim.schema.drafter import met_draft_parameters
from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.schema.parameters import MeasuredStack
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Trainer
from rlsim.units import BYTES_PER_ELEMENT

LOSS_BACKWARD = 2.0
"""Bytes that a loss moves backward over forward."""
MTP_LAYERS = "MTP layers"
MTP_INPUTS = 2
"""Hidden state and embedding, which an MTP layer joins."""
REFERENCE_POOL = "reference pool"
LM_HEAD, LOSS, PHASE_SWAP = "LM head", "loss", "weights and optimizer in and out"


class TrainingCosts(Struct, frozen=True, dict=True):
    """The trainer's compute on its GPUs. value: of a value model, which has neither LM head nor MTP layers."""

    card: ModelCard
    trainer: Trainer
    device: Device
    overheads: TrainingOverheads
    gpus: int
    measured: MeasuredStack | None = None
    value: bool = False

    @cached_property
    def layout(self) -> TrainLayout:
        """Parallel layout and parameters per rank."""
        return train_layout(self.trainer, self.card, self.gpus)

    @cached_property
    def layers(self) -> TrainingLayers:
        """Times of single layers in log-prob passes."""
        return TrainingLayers(self.card, self.trainer, self.device, self.overheads)

    @cached_property
    def _update_layers(self) -> TrainingLayers:
        """Times of single layers in updates."""
        return replace(self.layers, overheads=self.overheads.of_update)

    @cached_property
    def update(self) -> TrainingUpdate:
        """Gradients and optimizer."""
        return TrainingUpdate(self.card, self.trainer, self.layout, self.device, self.overheads)

    def head(self, batch: MicroBatches, backward: bool = False) -> tuple[Part, Part]:
        """(LM head, loss or log-probs) of one micro-batch; backward: of that pass. Log-probs and update ask for one."""
        found = self._heads.get((batch, backward))
        if found is None:
            found = self._heads[batch, backward] = self._head(batch, backward)
        return found

    @cached_property
    def _heads(self) -> dict[tuple[MicroBatches, bool], tuple[Part, Part]]:
        return {}

    def _head(self, batch: MicroBatches, backward: bool) -> tuple[Part, Part]:
        """Adapters leave the head frozen."""
        operators, own = self.device.operators, self.overheads
        tokens = batch.tokens / self.trainer.context_parallel
        # Rounded up: a vocabulary is padded until it divides.
        shard = -(-self.card.vocab_size // self.trainer.tensor_parallel)
        found = passes(self.device, [Matrix("lm_head", shard, self.card.hidden_size)], tokens, "bf16")
        product = found.forward
        if backward:
            product = found.inputs if self.trainer.lora_rank is not None else found.inputs + found.weights
        apart = LOSS_BACKWARD if own.fsdp is None else 0.0
        share = (apart if backward else 1.0) / (1.0 + apart)
        loss = operators.stream(np.array([tokens * shard * own.logits_bytes * share]))
        # One large product of cuBLAS: what slows the many kernels of a stack's layers does not concern it.
        timed = at_efficiency(LM_HEAD, product, own.wide_efficiency)
        return (
            timed.lasting(timed.seconds, 0.0 if backward else timed.measured),
            Part(LOSS, float(loss.seconds[0]), loss.bound),
        )

    def _stage(self, batch: MicroBatches, backward: bool, last: bool = False) -> PhaseCost:
        """The layers of a middle or of the last pipeline stage on one micro-batch.

        Log-probs, update and exchange ask for the same one.
        """
        if (batch, backward, last) not in self._stages:
            layers = self._update_layers if backward else self.layers
            kinds: list[tuple[float, tuple[Part, ...]]] = []
            shapes, shares = self.layers.stages
            for moe_layer, shape, count in shapes:
                layer = layers.layer(batch, moe_layer, shape, backward)
                further = layer.backward() + layer.recomputed(self.trainer.recompute) if backward else ()
                kinds.append((count, layer.forward() + further))
            costs = {
                share: PhaseCost.of([part for count, once in kinds for part in times(share * count, once)])
                for share in dict.fromkeys(shares)
            }
            for at_end, share in zip((False, True), shares, strict=True):
                self._stages[batch, backward, at_end] = costs[share]
        return self._stages[batch, backward, last]

    @cached_property
    def _stages(self) -> dict[tuple[MicroBatches, bool, bool], PhaseCost]:
        return {}

    def _mtp(self, batch: MicroBatches) -> tuple[Part, ...]:
        """Depths of multi-token prediction on one micro-batch, forward and backward, on the last stage.

        A depth is a projection of [hidden state, embedding], one layer of attention and experts (or an FFN), and the LM
        head with its loss once more (DeepSeek-V3, arXiv 2412.19437 section 2.2).
        """
        card, trainer, depths = self.card, self.trainer, self.trainer.mtp_layers
        if not depths:
            return ()
        layer = self._update_layers.layer(batch, card.moe is not None)
        tokens = batch.tokens / trainer.context_parallel
        fusion = Matrix("fusion", card.hidden_size // trainer.tensor_parallel, MTP_INPUTS * card.hidden_size)
        product = passes(self.device, [fusion], tokens, trainer.precision)
        whole, efficiency = product.forward + product.inputs + product.weights, self.overheads.dense_efficiency
        joined = at_efficiency("products", whole, efficiency * self.overheads.of_update.speed(False))
        own = (*layer.forward(), *layer.backward(), *layer.recomputed(trainer.recompute), joined)
        seconds = depths * sum(part.seconds for part in (*own, *self.head(batch), *self.head(batch, backward=True)))
        return (Part(MTP_LAYERS, seconds, max(own, key=lambda part: part.seconds).bound),)

    def forward(self, batch: MicroBatches) -> PhaseCost:
        """One log-prob pass over the whole step's samples."""
        if self.measured is not None:
            return PhaseCost.of([measured_passes("log-prob passes", self.measured.logprob, batch)])
        return PhaseCost.of((*self._passes(batch, backward=False).parts, self.update.set_up))

    def _passes(self, batch: MicroBatches, backward: bool) -> PhaseCost:
        """All micro-batches through the pipeline, with its bubbles."""
        middle, micro_batches = self._stage(batch, backward), batch.steps * batch.count
        bubble_s = batch.steps * self._bubble_stages(batch) * middle.seconds
        gathered_s = micro_batches * self.update.gathering_s(middle.seconds, backward)
        parts = (
            *of_mean_rank(times(micro_batches, self._busiest_stage(batch, backward)), batch.balance),
            Part("pipeline bubble", bubble_s, "schedule"),
            Part("stage transfers", micro_batches * self._sends_s(batch, backward), "network"),
            Part("parameter gathering", gathered_s, "network"),
            Part("parameter copies", micro_batches * self.update.copying_s(backward), "memory"),
        )
        return PhaseCost.of(parts)

    def _bubble_stages(self, batch: MicroBatches) -> float:
        """Bubbles of an optimizer step in slots of a stage: PP - 1 each time that the pipeline drains.

        With V virtual stages a GPU holds V pieces of the model and a bubble shrinks to 1 / V (2.3 of the paper).
        """
        trainer, drains = self.trainer, 1
        if trainer.local_batch_samples is not None and not trainer.sequence_packing:
            drains = max(1, math.ceil(batch.count * trainer.micro_batch_samples / trainer.local_batch_samples - 1e-9))
        return drains * (trainer.pipeline_parallel - 1) / trainer.virtual_stages

    def _busiest_stage(self, batch: MicroBatches, backward: bool) -> tuple[Part, ...]:
        """Parts of the pipeline stage that sets the pace: a middle one, or the last with LM head and MTP layers."""
        own: tuple[Part, ...] = () if self.value else self.head(batch)
        if backward and not self.value:
            own += (*self.head(batch, backward=True), *self._mtp(batch))
        last = (*self._stage(batch, backward, last=True).parts, *own)
        middle = self._stage(batch, backward)
        if sum(part.seconds for part in last) >= middle.seconds:
            return last
        return (*middle.parts, *times(0.0, own))  # at no time where a middle stage is busier (docs/model.md, 4)

    def _sends_s(self, batch: MicroBatches, backward: bool) -> float:
        """Activations to the next stage and gradients back, for which a schedule without virtual stages waits."""
        trainer = self.trainer
        if trainer.pipeline_parallel == 1 or trainer.virtual_stages > 1:
            return 0.0
        tokens = batch.tokens / trainer.context_parallel / trainer.tensor_parallel
        sent_bytes = (2.0 if backward else 1.0) * tokens * self.card.hidden_size * BYTES_PER_ELEMENT["bf16"]
        # Neighbouring stages lie a stage's GPUs apart, in another domain where one stage fills it.
        across = self.gpus / trainer.pipeline_parallel >= self.device.fabric.domain
        return float(self.device.fabric.broadcast(sent_bytes, across).seconds)

    def floor_s(self, batch: MicroBatches, backward: bool) -> float:
        """Least seconds of all passes of :meth:`step`, or of :meth:`forward`: what the host launches for a middle stage
        at the least, whatever its device does."""
        stages = batch.steps * (batch.count + self._bubble_stages(batch))
        return stages * self.layers.stage_floor_s(backward) if self.measured is None else 0.0

    def stages_s(self, batch: MicroBatches) -> float:
        """Least seconds of :meth:`step`: what the layers of a middle stage take, and bubbles."""
        stages = batch.steps * (batch.count + self._bubble_stages(batch))
        return stages * self._stage(batch, backward=True).seconds if self.measured is None else 0.0

    def step(self, batch: MicroBatches) -> PhaseCost:
        """Forward, backward, gradient synchronisation and optimizer over all optimizer steps."""
        if self.measured is not None:
            return measured_update(self.measured, batch)
        passes = self._passes(batch, backward=True)
        forward_s = self._stage(batch, backward=False).seconds / self.overheads.update_speed
        # The update's stage holds its forward pass too, at the update's own speed.
        backward_s = self._stage(batch, backward=True).seconds - forward_s
        parts = (
            *passes.parts,
            Part("gradient exchange", batch.steps * self.update.exchange_s(forward_s, backward_s), "network"),
            Part("optimizer", batch.steps * self.update.optimizer_s, self.update.optimizer_bound),
            Part("step synchronisation", batch.steps * self.overheads.step_fixed_s, "host"),
            self.update.set_up,
        )
        return PhaseCost.of(parts)


STEPS_KEPT = 1024
"""Prices of steps cached per process, each with the lengths of its batch."""
UPDATES_KEPT = 16
"""Updates cached: a search asks for them before the rest of a step."""


class TrainerInputs(Struct, frozen=True, dict=True):
    """Everything that the trainer's work on a given batch depends on; equal inputs have equal prices.

    logprob_passes: forward passes before the update on its own GPUs. reference_gpus: those of a reference pass beside
    them; 0 where there is none. streaming: both take samples as they are done. vision_s: of a vision tower over the
    images of a sample, forward; vision_passes: such passes that an update takes.
    draft_training_share: FLOP of a drafter's own training over the policy's. The swaps move weights of the reference or
    of the value model in and out around their passes.
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
    pass_swap_s: float = 0.0
    update_swap_s: float = 0.0
    driver_sample_s: float = 0.0
    driver_bytes_per_s: float | None = None
    batch_reward_s: float = 0.0
    measured: MeasuredStack | None = None
    reference_gpus: int = 0
    streaming: bool = False
    vision_s: float = 0.0
    vision_passes: float = 0.0

    @cached_property
    def costs(self) -> TrainingCosts:
        """The trainer's compute; log-prob passes and updates share layers of pipeline stages."""
        return TrainingCosts(self.model, self.trainer, self.device, self.overheads, self.gpus, self.measured)

    @cached_property
    def value_costs(self) -> TrainingCosts:
        """The compute of a value model in the policy's layout."""
        return replace(self.costs, value=True)


def trainer_inputs(
    scenario: Scenario, device: Device, overheads: TrainingOverheads, transfers: WeightTransfer
) -> TrainerInputs:
    """Inputs of the prices of the trainer of ``scenario``."""
    trainer, apart = scenario.trainer, scenario.cluster.reference_gpus
    if trainer.sequence_packing and not scenario.sequence_packing:
        trainer = changed(trainer, sequence_packing=False)
    trainer = with_logprob_batches(scenario, trainer)
    # A draft head's own pass, mean over steps; MTP layers that trainer.mtp_layers prices are a loss of the policy's.
    draft, drafting = trained_draft(scenario), 0.0
    if draft is not None and not (draft.kind == "mtp" and trainer.mtp_layers):
        drafting = met_draft_parameters(draft, scenario.model) / parameter_counts(scenario.model).active
    return TrainerInputs(
        scenario.model, device, trainer, scenario.cluster.training, overheads, scenario.workload.max_sequence_tokens,
        logprob_passes=int(scenario.policy_logprobs) + int(scenario.trainer.reference_logprobs and not apart),
        draft_training_share=drafting / scenario.speculation.online_interval_steps,
        reference_swap_s=0.0 if apart else transfers.reference_swap_s(),
        critic_pass_swap_s=transfers.critic_swap_s(update=False),
        critic_update_swap_s=transfers.critic_swap_s(update=True),
        pass_swap_s=transfers.phase_swap_s(update=False),
        update_swap_s=transfers.phase_swap_s(update=True),
        driver_sample_s=0.0 if scenario.loop.supervised else scenario.loop.driver_sample_s,
        driver_bytes_per_s=scenario.driver_bytes_per_s,
        batch_reward_s=scenario.workload.batch_reward_s,
        measured=stack_of(scenario),
        reference_gpus=apart,
        streaming=scenario.loop.streaming,
        vision_s=tower_s(scenario, device.operators, trainer.tensor_parallel),
        vision_passes=update_passes(scenario),
    )  # fmt: skip


@lru_cache(maxsize=STEPS_KEPT)
@np.errstate(invalid="raise", divide="raise")
def step_cost(inputs: TrainerInputs, batch: TrainedBatch) -> StepCost:
    """Driver work, log-prob passes and all optimizer steps for one batch; the last few are cached."""
    driver_s = batch.generated_samples * inputs.driver_sample_s
    reward = Part("reward", inputs.batch_reward_s, "host", "assumed")
    collected = handed_over(positions_of(inputs, batch), inputs.driver_bytes_per_s, COLLECTED_BYTES)
    return StepCost(
        data=PhaseCost.of([Part("driver", driver_s, "host", "assumed"), reward, collected]),
        logprob=_deviating(inputs, _logprob(inputs, batch), inputs.overheads.logprob_factor),
        train=train_cost(inputs, batch),
        reference_s=_reference_s(inputs, batch) * inputs.overheads.factor * inputs.overheads.logprob_factor,
    )


@lru_cache(maxsize=UPDATES_KEPT)
@np.errstate(invalid="raise", divide="raise")
def train_cost(inputs: TrainerInputs, batch: TrainedBatch) -> PhaseCost:
    """The optimizer steps alone; a search asks for them before the rest."""
    trainer = inputs.trainer
    seen_s = len(batch.total_tokens) / inputs.costs.layout.data_parallel * inputs.vision_s * inputs.vision_passes
    cost = seeing(inputs.costs.step(batches_of(inputs, batch, update=True)), seen_s)
    drafter = Part("draft training", cost.seconds * inputs.draft_training_share, "compute")
    once = PhaseCost.of((*cost.parts, drafter))
    parts = [
        *once.repeated(trainer.epochs).parts,
        handed_over(positions_of(inputs, batch), inputs.driver_bytes_per_s, UPDATE_BYTES),
        Part(PHASE_SWAP, inputs.update_swap_s, "host link"),
    ]
    if trainer.critic:
        value = inputs.value_costs.step(batches_of(inputs, batch, update=True)).repeated(trainer.epochs)
        parts += critic_parts("value update", value, inputs.critic_update_swap_s)
    return _deviating(inputs, PhaseCost.of(parts))


def _deviating(inputs: TrainerInputs, cost: PhaseCost, further: float = 1.0) -> PhaseCost:
    """``cost`` as its families take it; deviations of users' FSDP stacks were seen where no link binds."""
    return cost.deviating(inputs.overheads.factor * further, networks=inputs.overheads.fsdp is None)


def batches_of(inputs: TrainerInputs, batch: TrainedBatch, update: bool) -> MicroBatches:
    """Micro-batches of all optimizer steps, or of a log-prob pass."""
    trainer, samples, steps = inputs.trainer, len(batch.total_tokens), 1
    capacity = micro_batch_of(trainer, inputs.max_sequence_tokens, update, trainer.sequence_packing)
    if update:
        steps = max(1, math.ceil(samples / (trainer.global_batch_samples or samples)))
    balance, ranks = inputs.overheads.features.rank_balance, inputs.costs.layout.data_parallel
    return batch.packed(trainer, balance, ranks, capacity, steps)


def _logprob(inputs: TrainerInputs, batch: TrainedBatch) -> PhaseCost:
    """Log-prob passes of the policy and of the reference, with the swap of weights around the latter."""
    trainer, once = inputs.trainer, logprob_pass(inputs, batch)
    parts = list(once.repeated(inputs.logprob_passes).parts)
    if inputs.logprob_passes or inputs.reference_gpus:
        parts += (
            handed_over(positions_of(inputs, batch), inputs.driver_bytes_per_s, LOGPROB_BYTES),
            Part(PHASE_SWAP, inputs.pass_swap_s, "host link"),
        )
    if trainer.critic:
        value = inputs.value_costs.forward(batches_of(inputs, batch, update=False))
        parts += critic_parts("value pass", value, inputs.critic_pass_swap_s)
    if trainer.reference_logprobs:
        parts.append(Part("reference swap", inputs.reference_swap_s, "host link"))
    if inputs.reference_gpus and not inputs.streaming:
        own_s = sum(part.seconds for part in parts if part.name != PADDED_BATCH)
        # Only what the pool takes beyond the policy's own passes is waited for.
        parts.append(Part(REFERENCE_POOL, max(0.0, _reference_s(inputs, batch) - own_s), "schedule"))
    return PhaseCost.of(parts)


def _reference_s(inputs: TrainerInputs, batch: TrainedBatch) -> float:
    """The pass of a reference pool; 0 without."""
    gpus = inputs.reference_gpus
    return logprob_pass(replace(inputs, gpus=gpus), batch).seconds if gpus else 0.0


def positions_of(inputs: TrainerInputs, batch: TrainedBatch) -> int:
    """Positions of the batch, padded to the longest sequence that there may be."""
    return len(batch.total_tokens) * inputs.max_sequence_tokens


def logprob_pass(inputs: TrainerInputs, batch: TrainedBatch) -> PhaseCost:
    """One log-prob pass."""
    cost = inputs.costs.forward(batches_of(inputs, batch, update=False))
    return seeing(cost, len(batch.total_tokens) / inputs.costs.layout.data_parallel * inputs.vision_s)
