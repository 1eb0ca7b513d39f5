"""What no operator table holds, for one scenario: its own values where it states them, fitted ones elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from rlsim.costs.engine.hosts import HostOverheads, rollout_host, stated
from rlsim.costs.operators.groups import phase_groups, refit_method
from rlsim.costs.stack_terms import StackTerms, blackwell, host_s, stack_terms
from rlsim.costs.transfer.methods import TransferTerms
from rlsim.costs.users import user_deviation
from rlsim.parameters.sets import Fitted
from rlsim.schema.base import replaced
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard
from rlsim.schema.parameters import GlobalParameters
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import FsdpTerms, StackFeatures, Trainer

GATED_MATRICES = 3
"""Matrices of a gated expert, whose host time is fitted; one without a gate launches as many fewer kernels."""
HOPPER_JOULES_PER_FLOP = 700 / 989e12
"""Power over peak in BF16 of an H100 SXM (its datasheet)."""
BLACKWELL_FOUR_BITS = 4.0
"""Peak in NVFP4 over BF16 of B200 and GB200 (their datasheets, dense)."""
EXPERT_TERMS = (
    "moe_speed", "grouped_efficiency", "wide_grouped_efficiency", "permute_passes", "exchange_factor",
    "moe_host_layer_s", "expert_host_s",
)  # fmt: skip
"""Terms of :class:`TrainingOverheads` that layers without experts do not read."""


class TrainingOverheads(Struct, frozen=True):
    """What a trainer makes of the times of tables and links; terms as TrainingParameters describes them.

    dense_speed, moe_speed: of the stack's kernels in layers without and with experts over those of tuned pretraining.
    wide_efficiency, wide_grouped_efficiency: of what stays in BF16 beside products of four bits.
    attention_flops_per_s: rate that attention reaches at most.
    grouped_efficiency, permute_passes, quantise_bytes, logits_bytes, attention_speed: with what features of the stack
    and the precision change. moe_host_layer_s, expert_host_s: with graphs, overlap, static shapes and the processor of
    the host. launch_factor: host time of a launch over an x86 host's. update_speed: speed in the passes of an update
    over that in log-prob passes. fsdp: of a trainer around a model of Hugging Face; None of any other.
    adapter_passes: elementwise_passes of adapters that run beside their matrices.
    logprob_factor: deviation of log-prob passes over that of updates, which ``factor`` holds.
    """

    dense_speed: float
    moe_speed: float
    dense_efficiency: float
    grouped_efficiency: float
    wide_efficiency: float
    wide_grouped_efficiency: float
    elementwise_passes: float
    adapter_passes: float
    permute_passes: float
    quantise_bytes: float
    logits_bytes: float
    overlap_cost: float
    exchange_factor: float
    attention_speed: float
    context_attention: float
    moe_host_layer_s: float
    expert_host_s: float
    launch_factor: float
    step_fixed_s: float
    features: StackFeatures
    update_speed: float = 1.0
    factor: float = 1.0
    logprob_factor: float = 1.0
    attention_flops_per_s: float = math.inf
    fsdp: FsdpTerms | None = None

    @property
    def of_update(self) -> TrainingOverheads:
        """Overheads of the passes of an update."""
        dense, moe = self.dense_speed * self.update_speed, self.moe_speed * self.update_speed
        return replace(self, dense_speed=dense, moe_speed=moe, update_speed=1.0)

    def read_otherwise(self, other: TrainingOverheads, card: ModelCard, trainer: Trainer) -> bool:
        """Whether a trainer reads any term that is another in ``other``: most that move are of what it does not do."""
        # Asked for every fitted term: what a trainer cannot read is not priced again.
        unread = (
            *(EXPERT_TERMS if card.moe is None else ()),
            *(("quantise_bytes",) if trainer.precision == "bf16" else ()),
            *(("context_attention",) if trainer.context_parallel == 1 else ()),
        )
        own, others = asdict(self), asdict(other)
        return any(own[name] != others[name] for name in self.__struct_fields__ if name not in unread)

    def speed(self, moe_layer: bool) -> float:
        """Speed of the kernels of a layer over those of tuned pretraining."""
        return self.moe_speed if moe_layer else self.dense_speed

    def moe_floor_s(self, local_experts: float, matrices: int) -> float:
        """Least host time of the forward pass of a MoE layer with so many experts on a rank, of so many matrices."""
        if self.features.cuda_graphs == "iteration":
            return 0.0
        return self.moe_host_layer_s + local_experts * matrices / GATED_MATRICES * self.expert_host_s

    def exposed_s(
        self, communication_s: float, hiding_s: float, overlapped: bool, at_line_rate_s: float = math.inf
    ) -> float:
        """What communication adds to a computation of ``hiding_s`` seconds: all of it, or what does not fit beside it
        and what hiding costs.

        at_line_rate_s: what it takes at the rate of the profile's link. What slows a computation is bytes that move
        beside it, and not that a slow link takes long over them (assumption; every fitted row has the profile's rate).
        """
        if not overlapped:
            return communication_s
        hidden = min(communication_s, hiding_s)
        return communication_s - hidden + self.overlap_cost * min(hidden, at_line_rate_s)


class Overheads(Struct, frozen=True):
    """Host and framework costs; see GlobalParameters for the meaning of each. source: name of the fitted set.

    engine: host and graph terms of the rollout engine. refit: weight transfers.
    handover_tensor_s: see GlobalParameters.colocated_tensor_s.
    tables_error: standard deviation of the logarithm of a time by the self-checks of the tables in use.
    """

    engine: HostOverheads
    training: TrainingOverheads
    refit: TransferTerms
    handover_tensor_s: float
    source: str
    tables_error: float = 0.0


def overheads_of(
    scenario: Scenario, fitted: Fitted, tables_error: float = 0.0, datasheet: tuple[float, float] = (1.0, 1.0)
) -> Overheads:
    """Overheads of ``scenario``: a stated key wins over the fitted value.

    tables_error: of the operator tables in use, by their self-checks (``device.tables_error``). datasheet: factors on
    generation and on training of devices that nobody measured.
    """
    factors = {phase: factor_of(scenario, fitted, phase, groups) for phase, groups in phase_groups(scenario).items()}
    for phase, factor in zip(("generation", "train", "logprob"), (*datasheet, datasheet[1]), strict=True):
        factors[phase] *= factor
    training = training_overheads(scenario, fitted, factors["train"])
    return Overheads(
        rollout_host(scenario, fitted.steps, fitted.engines, factors["generation"]),
        replace(training, logprob_factor=factors["logprob"] / factors["train"]),
        _refit_terms(scenario, fitted, factors["transfer"]),
        _handover_tensor_s(scenario, fitted.steps),
        fitted.steps.name,
        tables_error,
    )


def factor_of(scenario: Scenario, fitted: Fitted, phase: str, groups: Sequence[str]) -> float:
    """Factor on a phase's time: of the groups that it belongs to, and of users' runs where it is one of theirs."""
    own = user_deviation(scenario, phase)
    return fitted.factor(groups) * (1.0 if own is None else math.exp(own.mean))


def overheads_after(now: Overheads, scenario: Scenario, fitted: Fitted, changed: str) -> Overheads:
    """``now`` after one of the sets has become that of ``fitted``: what rests on the others stays as it is.

    changed: name of that set, training, transfers or steps; the groups deviate as before.
    """
    if changed == "transfers":
        return replace(now, refit=_refit_terms(scenario, fitted, now.refit.factor))
    if changed == "training":
        return replace(now, training=_as_now(training_overheads(scenario, fitted, now.training.factor), now))
    return replace(
        now,
        engine=rollout_host(scenario, fitted.steps, fitted.engines, now.engine.factor),
        training=_as_now(training_overheads(scenario, fitted, now.training.factor), now),
        handover_tensor_s=_handover_tensor_s(scenario, fitted.steps),
    )


def _as_now(training: TrainingOverheads, now: Overheads) -> TrainingOverheads:
    """``training`` with the deviation of log-probs that ``now`` has."""
    return replace(training, logprob_factor=now.training.logprob_factor)


def _refit_terms(scenario: Scenario, fitted: Fitted, factor: float) -> TransferTerms:
    loop = scenario.loop
    terms = TransferTerms.of(
        fitted.transfers,
        scenario.refit_framework,
        loop.refit_tensor_s,
        loop.refit_fixed_s,
        refit_method(scenario) == "cuda_ipc",
    )
    return replace(terms, factor=factor)


def _handover_tensor_s(scenario: Scenario, steps: GlobalParameters) -> float:
    """Seconds a tensor that releases with measured steps add; 0 where the user states the time of a tensor."""
    mine = scenario.cluster.colocated and scenario.loop.refit_method in ("auto", "cuda_ipc")
    return steps.colocated_tensor_s if mine and scenario.loop.refit_tensor_s is None else 0.0


def training_overheads(scenario: Scenario, fitted: Fitted, factor: float | None = None) -> TrainingOverheads:
    """What the trainer's stack makes of the times of tables and links; a stated key wins over a fitted value.

    factor: deviation of the groups of the trainer, where it is known already.

    A framework whose training steps were measured alone has its own speed and host time; RL trainers (packed sequences
    of unequal lengths, offload between phases, no graphs) have those of the fit to RL steps.
    """
    trainer, terms, features = scenario.trainer, fitted.training, _able(scenario)
    stack, four_bits = stack_terms(scenario, fitted), trainer.precision == "nvfp4"
    sustained = _sustained(scenario.training_device, terms.power_exponent)
    wide = terms.dense_efficiency * sustained
    four = _four_bit_units(scenario.training_device) if four_bits else 1.0
    efficiency = wide * {"nvfp4": four * terms.nvfp4_gain, "fp8": terms.fp8_gain}.get(trainer.precision, 1.0)
    fused_gain = terms.fused_grouped_gain if features.fused_grouped_mlp else 1.0
    grouped = terms.grouped_efficiency * sustained * fused_gain * stack.grouped_speed
    own_grouped = grouped * {"nvfp4": four * terms.nvfp4_grouped_gain, "fp8": terms.fp8_gain}.get(
        trainer.precision, 1.0
    )
    for_all, of_experts = trainer.device_efficiency, trainer.moe_device_efficiency
    of_experts = for_all if of_experts is None else of_experts
    layer_s, expert_s = host_s(terms, features, trainer.precision)
    found = TrainingOverheads(
        dense_speed=stack.speed if for_all is None else for_all / efficiency,
        moe_speed=stack.speed if of_experts is None else of_experts / efficiency,
        dense_efficiency=efficiency,
        grouped_efficiency=own_grouped,
        wide_efficiency=wide,
        wide_grouped_efficiency=grouped,
        elementwise_passes=terms.elementwise_passes,
        adapter_passes=terms.elementwise_passes,
        permute_passes=terms.permute_passes * (1.0 if features.moe_dispatcher == "alltoall" else terms.flex_permute),
        quantise_bytes=terms.quantise_bytes * (terms.nvfp4_quantise if four_bits else 1.0),
        logits_bytes=terms.logits_bytes if features.fused_cross_entropy else terms.unfused_logits_bytes,
        overlap_cost=terms.overlap_cost,
        exchange_factor=terms.exchange_factor,
        attention_speed=terms.fp8_attention_gain if features.fp8_attention else 1.0,
        attention_flops_per_s=terms.flash_attention_2_flops_per_s if features.flash_attention_2 else math.inf,
        context_attention=terms.context_attention,
        moe_host_layer_s=stated(trainer.moe_host_layer_s, stack.moe_host_layer_s * layer_s),
        expert_host_s=stack.host_factor * expert_s if trainer.moe_host_layer_s is None else 0.0,
        launch_factor=stack.host_factor,
        step_fixed_s=terms.step_fixed_s,
        features=features,
        update_speed=stack.update_speed,
        fsdp=stack.fsdp,
        factor=fitted.factor(phase_groups(scenario)["train"]) if factor is None else factor,
    )
    return found if stack.fsdp is None else _of_hugging_face(found, stack, stack.fsdp, trainer)


def _of_hugging_face(
    found: TrainingOverheads, stack: StackTerms, fsdp: FsdpTerms, trainer: Trainer
) -> TrainingOverheads:
    """``found`` with what an FSDP trainer around a model of Hugging Face differs by; a stated key wins."""
    features = found.features
    if trainer.fused_adapters is None:  # PEFT's run beside their matrices
        features = replaced(features, {"fused_adapters": False})
    # Elementwise kernels take as long whatever the speed of products.
    fused = found.elementwise_passes * found.dense_speed
    elementwise = fused if trainer.fused_kernels else fsdp.elementwise_passes * found.dense_speed
    attended = fsdp.attention_flops_per_s if features.flash_attention_2 else math.inf
    layer_s = stated(trainer.moe_host_layer_s, stack.moe_host_layer_s)
    expert_s = stack.expert_host_s if trainer.moe_host_layer_s is None else 0.0
    return replace(
        found, features=features, elementwise_passes=elementwise, adapter_passes=fused, logits_bytes=fsdp.logits_bytes,
        attention_flops_per_s=attended, moe_host_layer_s=layer_s, expert_host_s=expert_s,
    )  # fmt: skip


def _able(scenario: Scenario) -> StackFeatures:
    """Features of the trainer, but for what its GPUs, precision and model have no kernels for."""
    features, moe = scenario.training_features, scenario.model.moe
    if not (scenario.trainer.precision == "fp8" and blackwell(scenario) and (moe is None or moe.gated)):
        # The kernel is one for MXFP8 and SwiGLU (TransformerEngine: ForwardGroupedMLP_CuTeGEMMSwiGLU_MXFP8).
        return replaced(features, {"fused_grouped_mlp": False})
    return features


def _sustained(profile: HardwareProfile, exponent: float) -> float:
    """Speed of products that run for hours over that of tables, whose kernels run for milliseconds: the power of a GPU
    over its peak, relative to a Hopper's."""
    held_up = profile.power_w.value / profile.flops("bf16") / HOPPER_JOULES_PER_FLOP
    return float(min(1.0, held_up) ** exponent)


def _four_bit_units(profile: HardwareProfile) -> float:
    """Products in NVFP4 over those of a B200's kind, by peaks: half as many more on Blackwell Ultra, which the tables'
    kernels, at a third of its peak, do not use and cuBLAS does."""
    return profile.flops("nvfp4") / profile.flops("bf16") / BLACKWELL_FOUR_BITS if profile.nvfp4_flops else 1.0
