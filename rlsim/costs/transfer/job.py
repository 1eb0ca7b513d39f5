"""Moving weights: what a step's transfer and the offload around it take, for one scenario.

Order and content of a colocated refit are those of NeMo-RL v0.7: offload the optimizer, wake the engine, hand the
weights over, offload them; onload both for the next log-prob and training passes.
"""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.draft import trained_draft
from rlsim.costs.interface import Part, PhaseCost
from rlsim.costs.links import node_link
from rlsim.costs.memory import critic_swapped, weight_bytes
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.groups import refit_method
from rlsim.costs.overheads import Overheads
from rlsim.costs.trainer.layout import TrainLayout, adapter_parameters, train_layout, weight_tensors
from rlsim.costs.transfer.methods import Links, Receiver, Sender, TransferJob, at_line_rate, transfer_parts
from rlsim.schema.drafter import draft_parameters
from rlsim.schema.engine_parameters import TransferValues
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.units import BYTES_PER_ELEMENT


class HostCopies(Struct, frozen=True):
    """Copies of one GPU while the others of its node copy too. pinned: host memory that the device can address.

    line: at the rate of the link, as nothing can be faster.
    """

    values: TransferValues
    links: Links
    pinned: bool
    line: bool = False

    def out_s(self, copied_bytes: float, copies: float) -> float:
        """GPU to host, in ``copies`` tensors."""
        return self._seconds(copied_bytes, copies, 0.0)

    def in_s(self, copied_bytes: float, copies: float) -> float:
        """Host to GPU, in ``copies`` tensors."""
        # Its pages are there already: never slower than the copy out, which must fault them in.
        return self._seconds(copied_bytes, copies, self.values.pageable_in_bytes_per_s)

    def _seconds(self, copied_bytes: float, copies: float, least_pageable: float) -> float:
        values, link = self.values, self.links.host_bytes_per_s
        if self.line:
            return copied_bytes / link
        link = link * values.host_link_share
        if self.pinned:
            return copied_bytes / link
        out = values.pageable_out_grace_bytes_per_s if self.links.grace else values.pageable_out_bytes_per_s
        return copied_bytes / min(max(least_pageable, out), link) + copies * values.copy_s


OPTIMIZER_TENSORS = 3
"""Master weight and two moments of each parameter (Adam)."""


def links_of(profile: HardwareProfile, node_bytes_per_s: float | None = None) -> Links:
    """Line rates of a hardware profile. node_bytes_per_s: of the link that the GPUs of a node share, where it is not
    the profile's: a port then has all of it at most."""
    port = profile.network_bandwidth_bytes_per_s.value
    return Links(
        profile.nvlink_bandwidth_bytes_per_s.value,
        int(profile.nvlink_domain_gpus),
        int(profile.gpus_per_node),
        port if node_bytes_per_s is None else min(port, node_bytes_per_s),
        profile.host_link_bandwidth_bytes_per_s.value,
        grace="grace" in profile.host_cpu.lower(),
        node_bytes_per_s=node_bytes_per_s,
    )


def slower_link(scenario: Scenario) -> HardwareProfile:
    """The kind of GPU with the slower network, of the two between which weights travel."""
    # A transfer is no faster than its slower end.
    return min((scenario.hardware, scenario.training_device), key=lambda one: one.network_bandwidth_bytes_per_s.value)


def expert_share(card: ModelCard) -> float:
    """Share of a model's parameters in routed experts."""
    if card.moe is None:
        return 0.0
    counts = parameter_counts(card)
    return card.num_moe_layers * card.moe.num_experts * counts.expert / counts.total


def sent_tensors(scenario: Scenario) -> float:
    """Weight tensors that the trainer sends; models of Hugging Face whose experts run as one grouped product hold those
    of a layer in one tensor of each kind (transformers 5, modeling_qwen3_moe.py: Qwen3MoeExperts)."""
    trainer, stack = scenario.trainer, scenario.training_stack
    hugging_face = trainer.backend == "fsdp" and stack is not None and stack.fsdp is not None
    grouped = hugging_face and trainer.expert_products != "loop"
    return float(weight_tensors(scenario.model, stacked=grouped))


def job_of(scenario: Scenario) -> TransferJob:
    """The transfer that ``scenario`` makes after each step."""
    loop, cluster, trainer, card = scenario.loop, scenario.cluster, scenario.trainer, scenario.model
    drafted = trained_draft_bytes(scenario)
    full = weight_bytes(card, "bf16") + drafted
    held = weight_bytes(card, scenario.engine.weight_precision) + drafted
    fsdp, gathered, alone = trainer.backend == "fsdp", None, adapter_alone(scenario)
    if alone:
        # Tensors and what is fixed stay: on shared GPUs hand-overs of adapters took as long as of all weights (miles,
        # Qwen3.5-9B: 14 s and 16 s), between pools 0.35 s in place of 2.4 s.
        stack, rank = scenario.training_stack, scenario.released_engine.lora_rank or 0
        gathered = full if fsdp and stack is not None and stack.adapter_transfer == "colocated" else None
        full = held = adapter_parameters(card, rank) * BYTES_PER_ELEMENT["bf16"] + drafted
    dense = trainer.tensor_parallel * trainer.pipeline_parallel
    # One copy of the weights spans whichever group is larger, of dense layers or of experts.
    copy = max(dense, trainer.expert_parallel * trainer.expert_tensor_parallel * trainer.pipeline_parallel)
    master = parameter_counts(card).total * BYTES_PER_ELEMENT["fp32"] / cluster.training
    onload = master if loop.refit_onload and not cluster.colocated else 0.0
    sender = Sender(
        cluster.training, cluster.training if fsdp else min(cluster.training, copy), trainer.expert_parallel,
        trainer.pipeline_parallel, fsdp, loop.refit_full_state, onload,
    )  # fmt: skip
    return TransferJob(
        refit_method(scenario), full, held if loop.refit_precision == "engine" else full, sent_tensors(scenario),
        float(weight_tensors(card, stacked=True)), sender,
        Receiver(cluster.generation, scenario.engine.gpus_per_replica),
        links_of(slower_link(scenario), node_link(scenario).bytes_per_s), expert_share(card),
        loop.refit_changed_share, loop.refit_full_experts,
        loop.refit_precision == "bf16" and scenario.engine.weight_precision != "bf16" and not alone,
        loop.refit_disk_bytes_per_s, scenario.training_device.name == scenario.hardware.name, gathered,
    )  # fmt: skip


def adapter_alone(scenario: Scenario) -> bool:
    """Whether a hand-over moves an adapter that the engine applies, and no other weights."""
    stack = scenario.training_stack
    if stack is None or not scenario.released_engine.lora_rank or not scenario.trainer.lora_rank:
        return False
    return stack.adapter_transfer == "adapters" or (
        stack.adapter_transfer == "colocated" and scenario.cluster.colocated
    )


def trained_draft_bytes(scenario: Scenario) -> float:
    """BF16 bytes of a drafter that is trained online, in the transfer of a step in the mean: every interval's once."""
    draft = trained_draft(scenario)
    whole = 0.0 if draft is None else draft_parameters(draft, scenario.model) * BYTES_PER_ELEMENT["bf16"]
    return whole / scenario.speculation.online_interval_steps


def in_phases(scenario: Scenario) -> bool:
    """Whether the trainer's offload happens within log-probs and updates."""
    stack = scenario.training_stack
    return scenario.shares_gpus and scenario.trainer.offload and stack is not None and stack.offload_in_phases


class WeightTransfer(Struct, frozen=True, dict=True):
    """Transfers of one scenario's weights. counted: what ``job_of`` the scenario says, where it was asked before."""

    scenario: Scenario
    fabric: Collectives
    overheads: Overheads
    counted: TransferJob | None = None

    @cached_property
    def _job(self) -> TransferJob:
        return self.counted or job_of(self.scenario)

    def under(self, overheads: Overheads) -> WeightTransfer:
        """These transfers with other overheads."""
        return replace(self, overheads=overheads, counted=self._job)

    @cached_property
    def _layout(self) -> TrainLayout:
        return train_layout(self.scenario.trainer, self.scenario.model, self.scenario.cluster.training)

    def _copies(self, pinned: bool, line: bool) -> HostCopies:
        return HostCopies(self.overheads.refit.values, links_of(self.fabric.profile), pinned, line)

    def transfer(self) -> PhaseCost:
        """The weight transfer itself (refit_s) in seconds.

        A stated loop.refit_bandwidth_bytes_per_s replaces what the links allow.
        """
        stated, job = self.scenario.loop.refit_bandwidth_bytes_per_s, self._job
        added = Part("hand-over of older releases", job.tensors * self.overheads.handover_tensor_s, "host")
        cost = PhaseCost.of((*transfer_parts(job, self.overheads.refit, stated), added))
        fastest = () if stated else at_line_rate(job, self.overheads.refit)
        return cost.deviating(self.overheads.refit.factor, PhaseCost.of(fastest))

    def prepare(self) -> PhaseCost:
        """Everything around generation on shared GPUs: offload, hand-over, onload; else the transfer."""
        scenario = self.scenario
        transfer = self.transfer()
        if not scenario.cluster.colocated:
            return transfer
        parts = transfer.parts
        if scenario.trainer.offload:
            offload, fastest = (PhaseCost.of(self._offload_parts(line)) for line in (False, True))
            parts += offload.deviating(self.overheads.refit.factor, fastest).parts
        return PhaseCost.of(parts)

    def sleep_between_rollouts(self) -> PhaseCost:
        """Sleep of a colocated engine between two rollouts with the same weights (dynamic sampling in NeMo-RL)."""
        scenario = self.scenario
        if not scenario.cluster.colocated or not scenario.trainer.offload:
            return PhaseCost.of(())
        name = "engine sleep between rollouts"
        sleep, fastest = (
            PhaseCost.of([Part(name, 2 * self._engine_copy_s(line), "host link")]) for line in (False, True)
        )
        return sleep.deviating(self.overheads.refit.factor, fastest)

    def _engine_copy_s(self, line: bool) -> float:
        """One way between GPU and host of an engine GPU's weights; vLLM's sleep keeps them in pinned memory."""
        engine = self.scenario.engine
        held = weight_bytes(self.scenario.model, engine.weight_precision) / engine.gpus_per_replica
        return self._copies(True, line).out_s(held, 0)

    def _offload_parts(self, line: bool) -> tuple[Part, ...]:
        """Optimizer state and policy weights out and in; engine weights to the host for its sleep and back.

        line: at the rate of the links.
        """
        weights, optimizer = self._trainer_bytes()
        held, sharded = self._trainer_copies()
        sharded = sharded if optimizer else 0.0  # what stays in host memory has no tensors to copy
        copies = self._copies(self.scenario.loop.offload_memory == "pinned", line)
        engine = self._engine_copy_s(line)
        if in_phases(self.scenario):
            weights = optimizer = held = sharded = 0.0
        copied = {
            "optimizer offload": copies.out_s(optimizer, sharded),
            "policy weights offload": copies.out_s(weights, held),
            "policy weights onload": copies.in_s(weights, held),
            "optimizer onload": copies.in_s(optimizer, sharded),
            "engine sleep": engine,
            "engine wake": engine,
        }
        calls = Part("sleep and wake calls", self.overheads.refit.values.sleep_wake_s, "host")
        return (*(Part(name, seconds, "host link") for name, seconds in copied.items()), calls)

    def _trainer_bytes(self) -> tuple[float, float]:
        """BF16 weights and optimizer state of one training GPU."""
        trainer, layout = self.scenario.trainer, self._layout
        held = layout.sharded_parameters if trainer.backend == "fsdp" else layout.parameters
        optimizer = 0.0 if trainer.optimizer_on_host else trainer.optimizer_bytes_per_parameter
        return held * BYTES_PER_ELEMENT["bf16"], layout.optimizer_parameters * optimizer

    def _trainer_copies(self) -> tuple[float, float]:
        """Tensors of the weights, and of the optimizer state, that one training GPU holds."""
        trainer, card, layout = self.scenario.trainer, self.scenario.model, self._layout
        stacked = float(weight_tensors(card, stacked=True))
        if trainer.backend == "fsdp":
            return stacked, OPTIMIZER_TENSORS * stacked
        experts = (weight_tensors(card) - stacked) / trainer.expert_parallel
        held = (stacked + experts) / trainer.pipeline_parallel
        dense = stacked / layout.dense_shards + experts / layout.expert_shards
        return held, OPTIMIZER_TENSORS * dense / trainer.pipeline_parallel

    def phase_swap_s(self, update: bool) -> float:
        """Weights of the trainer, for an update its optimizer too, onto its GPUs for a phase and off again, where its
        stack does so within phases."""
        if not in_phases(self.scenario):
            return 0.0
        weights, optimizer = self._trainer_bytes()
        return 2 * self._copies(True, False).out_s(weights + optimizer * update, 0)

    def reference_swap_s(self) -> float:
        """Policy weights out and reference weights in, and back, around the reference pass."""
        # Four ways: policy out, reference in, and back.
        return float(self.fabric.host_copy(4 * self._trainer_bytes()[0]).seconds)

    def critic_swap_s(self, update: bool) -> float:
        """The value model in and out of the GPUs that it shares in turn with the policy: its weights, for an update
        its optimizer too. Zero where both stay resident.
        """
        if not critic_swapped(self.scenario):
            return 0.0
        weights, optimizer = self._trainer_bytes()
        return float(self.fabric.host_copy(2 * (weights + optimizer * update)).seconds)
