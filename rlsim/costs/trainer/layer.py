"""One layer of the trainer, forward and backward, part by part.

Forward = soft maximum of computation + exposed communication and of the host floor. Backward: the products of both
gradients, twice the elementwise traffic, 2.5 times the attention, the communication mirrored.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

from msgspec import Struct

from rlsim.costs.engine.layers import ELEMENTWISE_KERNELS, UNCOMPILED_LAUNCHES
from rlsim.costs.interface import Bound, Part
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.device import Device
from rlsim.costs.operators.time import OperatorTime
from rlsim.costs.operators.work import Matrix, newton_schulz_flops
from rlsim.costs.overheads import TrainingOverheads
from rlsim.costs.trainer.layout import (
    MicroBatches,
    TrainLayout,
    dense_matrices,
    expert_matrices,
    stage_layers,
    stage_shapes,
)
from rlsim.costs.trainer.work import LayerSplit, LayerWork, TrainedLayer, layer_work
from rlsim.schema.architecture import WHOLE_LAYER, LayerShape
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard
from rlsim.schema.trainer import Trainer
from rlsim.units import BYTES_PER_ELEMENT

MIXER_LAUNCHES = 11
"""Launches of the mixer, of UNCOMPILED_LAUNCHES in all."""
ALONE = LayerShape("none", True)
"""A feed-forward block that is a layer."""
ELEMENTWISE_BACKWARD = 2.0
"""Bytes of elementwise kernels backward over forward: gradients beside the activations."""
HOST_BACKWARD = 2.0
"""Kernels launched backward over forward: two products for each one."""
RING_BACKWARD = 2.0
"""Context-parallel traffic backward over forward: keys and values, and their gradients, go round."""
FLOOR_POWER = 6.0
"""Power of the soft maximum of device and host: launches come unevenly, so that near the floor each waits for the other
now and then (1.12 times the larger where both are equal). Assumption; fits have a derivative on both sides."""
IMBALANCE = "rank imbalance"
LAUNCHES_PER_LAYER_FACTOR = 1.2
"""Kernels that a training framework launches per layer over an eager engine's. Assumption."""


class LayerTime(Struct, frozen=True):
    """Times of one layer on one rank for one micro-batch; communication is what computation does not hide.

    device, device_backward: parts of both passes without communication and host. recomputed: see Trainer.recompute.
    floor_s: least host time of the forward pass.
    """

    device: tuple[Part, ...]
    device_backward: tuple[Part, ...]
    communication_s: float
    communication_backward_s: float
    floor_s: float

    def forward(self) -> tuple[Part, ...]:
        """Parts of the forward pass; ``host floor`` is what the device waits for its host."""
        return _with_floor(self.device, self.communication_s, self.floor_s)

    def backward(self) -> tuple[Part, ...]:
        """Parts of the backward pass without recomputation."""
        return _with_floor(self.device_backward, self.communication_backward_s, HOST_BACKWARD * self.floor_s)

    def recomputed(self, recompute: str) -> tuple[Part, ...]:
        """What the backward pass computes again: nothing, the attention (selective), or the layer (full)."""
        attention = tuple(part for part in self.device if part.name == "attention")
        return {"none": (), "selective": attention, "full": self.forward()}[recompute]


def _with_floor(device: tuple[Part, ...], communication_s: float, floor_s: float) -> tuple[Part, ...]:
    parts = (*device, Part("communication", communication_s, "network"))
    # The host launches ahead of the device: it costs only what exceeds the device's own time.
    busy_s = sum(part.seconds for part in parts)
    return (*parts, Part("host floor", soft_maximum(busy_s, floor_s) - busy_s, "host"))


def soft_maximum(first: float, second: float) -> float:
    """(a^6 + b^6)^(1/6): the larger of two times where they differ, and 12 % more where they are equal.

    >>> round(soft_maximum(1.0, 1.0), 3), soft_maximum(2.0, 0.0)
    (1.122, 2.0)
    """
    low, high = sorted((first, second))
    return high * (1.0 + (low / high) ** FLOOR_POWER) ** (1.0 / FLOOR_POWER) if high > 0 else 0.0


class TrainingLayers(Struct, frozen=True, dict=True):
    """Layers of the trained model under one parallel layout."""

    card: ModelCard
    trainer: Trainer
    device: Device
    overheads: TrainingOverheads

    @cached_property
    def _split(self) -> LayerSplit:
        return LayerSplit.of(self.trainer, self.overheads.features)

    def layer(
        self, batch: MicroBatches, moe_layer: bool, shape: LayerShape = WHOLE_LAYER, backward: bool = True
    ) -> LayerTime:
        """One layer over one micro-batch; a mixer without a feed-forward block counts as its model's layers do.

        backward: with its backward pass, without which that of the answer is empty.
        """
        raw = layer_work(TrainedLayer(self.card, self._split, self.device, batch, shape, moe_layer and shape.ffn))
        speed = self.overheads.speed(moe_layer)
        device = self._pass(raw, speed, False)
        # One micro-batch's exchange runs beside another's opposite pass: both passes have the mean of both beside them.
        opposite = self._pass(raw, speed, True) if backward or raw.exchange_s else ()
        around_s = self._exchange_s(raw, sum(part.seconds for part in (*device, *opposite)) / 2)
        return LayerTime(
            device=device,
            device_backward=opposite,
            communication_s=around_s + self._communication_s(raw, device, False),
            communication_backward_s=around_s + self._communication_s(raw, opposite, True) if opposite else 0.0,
            floor_s=self.floor_s(moe_layer, shape),
        )

    def _pass(self, raw: LayerWork, speed: float, backward: bool) -> tuple[Part, ...]:
        """Parts of a pass at ``speed`` over tuned pretraining. Frozen weights (LoRA) need the gradients of their inputs
        alone.

        Tables hold products in the forward orientation: backward the shapes are theirs, but nothing counts as measured.
        """
        own = self.overheads
        frozen, router_s = self.trainer.lora_rank is not None, raw.router_s
        products, experts, wide, wide_experts = (
            one.timed(backward, frozen) for one in (raw.products, raw.experts, raw.wide, raw.wide_experts)
        )
        attended, small = 1.0, 1.0
        if backward:
            attended, small = raw.attention_backward, ELEMENTWISE_BACKWARD
            # Gradients of inputs and of weights, a product each; of frozen weights the former alone.
            router_s = router_s if frozen else 2 * router_s
        dense = at_efficiency("products", products, own.dense_efficiency * speed)
        wide_s = float(wide.seconds[0]) / own.wide_efficiency
        parts = [dense.lasting(dense.seconds + (router_s + wide_s) / speed, dense.measured)]
        if raw.local_experts:
            # The only expert of a rank is a product like any other.
            efficiency = own.grouped_efficiency if raw.local_experts > 1 else own.dense_efficiency
            grouped = at_efficiency("experts", experts, efficiency * speed)
            wide_s = float(wide_experts.seconds[0]) / (own.wide_grouped_efficiency * speed)
            parts.append(grouped.lasting(grouped.seconds + wide_s, grouped.measured))
        attended *= own.context_attention if self.trainer.context_parallel > 1 else 1.0
        attention = at_efficiency("attention", raw.attention.repeated(attended), speed * own.attention_speed)
        slowest_s = attended * raw.attention_flops / own.attention_flops_per_s
        activated = 0.0 if own.features.fused_grouped_mlp else raw.expert_bytes
        adapted = 0.0 if own.features.fused_adapters else raw.adapter_bytes
        swept = raw.elementwise_bytes + activated + raw.biased_bytes
        moved = swept * own.elementwise_passes + adapted * own.adapter_passes + raw.routed_bytes * own.permute_passes
        parts += (
            attention.lasting(max(attention.seconds, slowest_s), attention.measured),
            self._moved("quantisation", raw.quantised[backward] * own.quantise_bytes, speed),
            self._moved("elementwise", small * moved, speed, ELEMENTWISE_KERNELS),
        )
        return tuple(part.lasting(part.seconds, 0.0) for part in parts) if backward else tuple(parts)

    def _moved(self, name: str, moved_bytes: float, speed: float, kernels: float = 1.0) -> Part:
        if moved_bytes <= 0:
            return Part(name, 0.0, "memory")
        return at_efficiency(name, self.device.operators.stream([moved_bytes], kernels), speed)

    def _exchange_s(self, raw: LayerWork, beside_s: float) -> float:
        """What of dispatch and combine of a pass is not hidden beside ``beside_s`` seconds of computation."""
        own = self.overheads
        return own.exposed_s(own.exchange_factor * raw.exchange_s, beside_s, own.features.exchange_overlap)

    def _communication_s(self, raw: LayerWork, device: tuple[Part, ...], backward: bool) -> float:
        """What of the tensor and context exchange of a pass is not hidden.

        Backward, a product waits for the gathered gradients of its outputs. Its inputs, of which only a shard is held,
        are gathered again beside the product with the weights, the gradients of the inputs scattered beside that of the
        weights, overlap or not (Megatron-Core's LinearWithGradAccumulationAndAsyncCommunication, TransformerEngine's
        linear layers).
        """
        own, gather_s, scatter_s = self.overheads, raw.gather_s, raw.scatter_s
        seconds = {part.name: part.seconds for part in device}
        awaited_s, beside_s, ring = gather_s + scatter_s, 0.0, 1.0
        if backward:
            awaited_s, beside_s, ring = gather_s, scatter_s, RING_BACKWARD
            if self.trainer.lora_rank is None:
                beside_s += gather_s
        if own.features.tensor_overlap:
            awaited_s, beside_s = 0.0, awaited_s + beside_s
        tensor_s = raw.tensor_pairs * awaited_s + own.exposed_s(raw.tensor_pairs * beside_s, seconds["products"], True)
        return tensor_s + own.exposed_s(ring * raw.ring_s, seconds["attention"], True)

    def floor_s(self, moe_layer: bool, shape: LayerShape) -> float:
        """Least host time of a layer; a MoE layer launches the kernels of every expert on its rank."""
        moe = self.card.moe
        if moe_layer and shape.ffn and moe is not None:
            return self.overheads.moe_floor_s(moe.num_experts / self.trainer.expert_parallel, moe.matrices)
        if self.overheads.features.cuda_graphs == "iteration":
            return 0.0
        if self.overheads.fsdp is not None:
            return self.overheads.fsdp.layer_launches * self.trainer.host_launch_s * self.overheads.launch_factor
        launches = {WHOLE_LAYER: UNCOMPILED_LAUNCHES, ALONE: UNCOMPILED_LAUNCHES - MIXER_LAUNCHES}
        count = launches.get(shape, UNCOMPILED_LAUNCHES if shape.ffn else MIXER_LAUNCHES)
        return count * LAUNCHES_PER_LAYER_FACTOR * self.trainer.host_launch_s * self.overheads.launch_factor

    @cached_property
    def stages(self) -> tuple[tuple[tuple[bool, LayerShape, float], ...], tuple[float, float]]:
        """Kinds of layers of pipeline stages, and their shares in a middle and in the last one."""
        balance = self.overheads.features.pipeline_balance
        shapes = stage_shapes(self.card, self.trainer.pipeline_parallel)
        return shapes, stage_layers(self.card, self.trainer, balance)

    def stage_floor_s(self, backward: bool) -> float:
        """Least host time of a middle pipeline stage, forward or in both passes."""
        kinds, (share, _) = self.stages
        once_s = sum(share * count * self.floor_s(moe_layer, shape) for moe_layer, shape, count in kinds)
        return once_s * (1.0 + HOST_BACKWARD if backward else 1.0)


def at_efficiency(name: str, timed: OperatorTime, efficiency: float) -> Part:
    """A table's time stretched by the efficiency that training reaches: what is added is modelled, not measured."""
    measured = float(timed.measured[0]) * min(1.0, efficiency)
    return Part(name, float(timed.seconds[0]) / efficiency, timed.bound, "modelled", measured)


def of_mean_rank(parts: Iterable[Part], balance: float) -> Iterator[Part]:
    """Parts of the busiest rank as those of the mean one, and what the others wait for it.

    Host work is the same on all ranks: they run equally many micro-batches.
    """
    idle_s = 0.0
    for part in parts:
        own_s = part.seconds if part.bound == "host" else part.seconds * balance
        idle_s += part.seconds - own_s
        yield part.lasting(own_s, part.measured)
    yield Part(IMBALANCE, idle_s, "schedule")


def times(factor: float, parts: Iterable[Part]) -> tuple[Part, ...]:
    """Each part so often."""
    return tuple(part.lasting(factor * part.seconds, part.measured) for part in parts)


HOST_MEMORY_BYTES_PER_S = (512e9, 614.4e9)
"""Peak of a Grace with LPDDR5X (NVIDIA Grace CPU whitepaper: up to 512 GB/s), and of two sockets with eight channels of
DDR5-4800 each (Intel Xeon 8480C, as in a DGX H100)."""
HOST_MEMORY_SHARE = 0.5
"""Share of it that an optimizer reaches on the host. Assumption."""
GPUS_PER_GRACE = 2
"""GB200 and GB300."""


def host_step_bytes_per_s(trainer: Trainer, profile: HardwareProfile) -> float:
    """Rate at which the host steps an optimizer for one GPU, as stated, else by its kind."""
    grace, x86 = (bandwidth * HOST_MEMORY_SHARE for bandwidth in HOST_MEMORY_BYTES_PER_S)
    kind = grace / GPUS_PER_GRACE if "grace" in profile.host_cpu.lower() else x86 / profile.gpus_per_node.value
    return trainer.host_memory_bytes_per_s or kind


GATHERED_BYTES, SHARD_BYTES = 4, 6
"""Bytes of copies for a gathered BF16 value (read and written), and for a rank's FP32 one that is cast before."""
FLATTENED_BYTES, ACCUMULATED_BYTES = 6, 12
"""The same of a BF16 gradient that is written as FP32, and of a rank's share that is added to the one it holds."""


class TrainingUpdate(Struct, frozen=True, dict=True):
    """What follows the backward pass, and what FSDP gathers before each pass."""

    card: ModelCard
    trainer: Trainer
    layout: TrainLayout
    device: Device
    overheads: TrainingOverheads

    @property
    def _gathered(self) -> float:
        """Bytes of a gathered parameter: of BF16, or of FP8 where its products run in FP8 and the stack does so."""
        in_fp8 = self.overheads.features.fp8_parameter_gather and self.trainer.precision == "fp8"
        return BYTES_PER_ELEMENT["fp8" if in_fp8 else "bf16"]

    def gathering_s(self, stage_s: float, backward: bool) -> float:
        """FSDP gathers every layer's weights for each pass and scatters its gradients beside a stage's computation."""
        if self.trainer.backend != "fsdp":
            return 0.0
        total, at_line_rate = self._gathers_s[backward]
        return self.overheads.exposed_s(total, stage_s, True, at_line_rate)

    @property
    def set_up(self) -> Part:
        """What an FSDP trainer takes for a phase beside its passes."""
        fsdp = self.overheads.fsdp
        return Part("pass set-up", 0.0 if fsdp is None else fsdp.pass_fixed_s, "host")

    def copying_s(self, backward: bool) -> float:
        """Copies around FSDP's collectives of one pass: a rank casts its shard, takes gathered weights apart, and
        flattens gradients (torch.distributed.fsdp, _fsdp_collectives.py). They are kernels between those of layers."""
        if self.overheads.fsdp is None:
            return 0.0
        moved = 0.0
        for elements, trained, shards, _ in self.layout.groups(self.trainer):
            gathered = elements * (GATHERED_BYTES + SHARD_BYTES / shards)
            reduced = trained * (FLATTENED_BYTES + ACCUMULATED_BYTES / shards)
            moved += 2 * gathered + reduced if backward else gathered
        return float(self.device.operators.stream(moved).seconds)

    @cached_property
    def _gathers_s(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of FSDP's collectives forward and backward, each as it is and at line rate, whatever the batch."""
        fabrics = self.device.fabric, self.device.fabric.at_line_rate
        return tuple(tuple(self._collected_s(one, backward) for one in fabrics) for backward in (False, True))

    def _collected_s(self, fabric: Collectives, backward: bool) -> float:
        # A model of Hugging Face has its gradients reduced in FP32 (MixedPrecision.reduce_dtype), of every micro-batch.
        own = self.overheads.features.gradient_precision if self.overheads.fsdp is not None else "bf16"
        gradient, total = BYTES_PER_ELEMENT[own], 0.0
        for elements, trained, shards, stride in self.layout.groups(self.trainer):
            gather = float(fabric.collective("all_gather", shards, elements * self._gathered, stride).seconds)
            scatter = float(fabric.collective("reduce_scatter", shards, trained * gradient, stride).seconds)
            total += 2 * gather + scatter if backward else gather
        return total

    def exchange_s(self, forward_s: float, backward_s: float) -> float:
        """Gradients scattered beside the last backward pass, weights gathered beside the next forward pass."""
        if self.trainer.backend == "fsdp":
            return 0.0
        scatter, gather = self._exchanged_s
        exposed, overlapped = self.overheads.exposed_s, self.overheads.features.gradient_overlap
        return exposed(scatter, backward_s, overlapped) + exposed(gather, forward_s, overlapped)

    @cached_property
    def _exchanged_s(self) -> tuple[float, float]:
        """Seconds of scattering all gradients and of gathering all weights, whatever the batch."""
        fabric, gradient = self.device.fabric, BYTES_PER_ELEMENT[self.overheads.features.gradient_precision]
        scatter = gather = 0.0
        for _, trained, shards, stride in self.layout.groups(self.trainer):
            scatter += float(fabric.collective("reduce_scatter", shards, trained * gradient, stride).seconds)
            gather += float(fabric.collective("all_gather", shards, trained * self._gathered, stride).seconds)
        return scatter, gather

    @property
    def optimizer_s(self) -> float:
        """One optimizer step on one rank's shard: state read and written once, gradients read, weights written."""
        trainer, parameters = self.trainer, self.layout.optimizer_parameters
        handed = parameters * (BYTES_PER_ELEMENT["fp32"] + BYTES_PER_ELEMENT["bf16"])
        # Read and written: moments and FP32 weights all change in every step.
        state = 2 * parameters * trainer.optimizer_bytes_per_parameter
        if trainer.optimizer_on_host and trainer.optimizer_step == "host":
            host_bytes_per_s = host_step_bytes_per_s(trainer, self.device.fabric.profile)
            # Gradients go to the host and weights come back; the state never leaves it.
            seconds = (state + handed) / host_bytes_per_s + float(self.device.fabric.host_copy(handed).seconds)
        else:
            fsdp = self.overheads.fsdp
            moved = state + handed if fsdp is None else fsdp.optimizer_bytes * parameters
            seconds = float(self.device.operators.stream(moved).seconds)
            seconds += float(self.device.fabric.host_copy(state).seconds) if trainer.optimizer_on_host else 0.0
        return seconds + self.orthogonalisation_s() if trainer.optimizer == "muon" else seconds

    @property
    def optimizer_bound(self) -> Bound:
        """What limits it."""
        bounds: dict[str, Bound] = {"host": "host", "device": "host link"}
        return bounds[self.trainer.optimizer_step] if self.trainer.optimizer_on_host else "memory"

    def orthogonalisation_s(self) -> float:
        """Muon: Newton-Schulz on whole matrices, spread over the data-parallel ranks matrix by matrix.

        A matrix that tensor parallelism divides is gathered in BF16 by every rank of the group, and each of them
        orthogonalises it whole (the duplicated mode of Megatron-Core); an expert lies whole on its rank. Embedding and
        LM head stay with Adam.
        """
        operators, tp = self.device.operators, self.trainer.tensor_parallel
        compute, _ = operators.efficiency("bf16")
        flops = gathered = 0.0
        for matrices, count, shards, divided in self._matrices():
            flops += count / shards * sum(newton_schulz_flops(one) for one in matrices)
            gathered += divided * count / shards * sum(one.elements for one in matrices) * BYTES_PER_ELEMENT["bf16"]
        wire_s = float(self.device.fabric.collective("all_gather", tp, gathered).seconds)
        return flops / (operators.profile.flops("bf16") * compute) + wire_s

    def _matrices(self) -> list[tuple[list[Matrix], float, int, bool]]:
        """Whole matrices of one pipeline stage: those of a layer, layers, ranks that share them, divided by TP."""
        card, layout, stages = self.card, self.layout, self.trainer.pipeline_parallel
        out = [
            (matrices, layers / stages, layout.dense_shards, self.trainer.tensor_parallel > 1)
            for matrices, layers in dense_matrices(card)
        ]
        if card.moe is not None:
            held = card.num_moe_layers / stages * card.moe.num_experts / self.trainer.expert_parallel
            # Expert parallelism keeps experts whole, so that nothing of them is gathered but where GPUs share them.
            out.append((expert_matrices(card), held, layout.expert_shards, self.trainer.expert_tensor_parallel > 1))
        return out
