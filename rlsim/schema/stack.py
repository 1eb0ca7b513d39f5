"""A generation of software: which framework, engine and features a published stack consists of."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlsim.schema.base import Strict
from rlsim.schema.engine_parameters import EngineName

Dispatcher = Literal["alltoall", "deepep", "hybridep"]
"""How tokens reach the GPUs of their experts: NCCL all-to-all of every copy; DeepEP and HybridEP send one copy to each
GPU, and across domains one to each domain."""
RankBalance = Literal["bins", "tokens", "samples"]
"""How packed samples reach data-parallel ranks. bins: every update is packed as a whole and its bins are dealt to the
ranks in turn (NeMo-RL). tokens: an update's samples are dealt by work, equally many to each rank (assumed of verl).
samples: equally many in their order, whatever their lengths."""


class StackFeatures(Strict):
    """What the trainer of a stack does; each can be stated in ``trainer`` instead."""

    cuda_graphs: bool = Field(
        default=False, description="Attention, router and dispatch preparation are replayed as CUDA graphs."
    )
    moe_dispatcher: Dispatcher = Field(default="alltoall", description="How tokens reach their experts.")
    fused_grouped_mlp: bool = Field(
        default=False, description="Expert products in MXFP8 run as one fused kernel instead of one by one."
    )
    tensor_overlap: bool = Field(
        default=False, description="Gathers and scatters of tensor parallelism run beside the products."
    )
    exchange_overlap: bool = Field(
        default=False, description="Dispatch and combine of experts run beside the computation of another micro-batch."
    )
    fused_adapters: bool = Field(
        default=True, description="LoRA adapters run within the kernels of their matrices instead of beside them."
    )
    gradient_overlap: bool = Field(
        default=True, description="Gradients are reduced and parameters gathered beside the computation."
    )
    rank_balance: RankBalance = Field(
        default="bins",
        description="How packed samples reach data-parallel ranks. bins: an update is packed as a whole and its bins "
        "dealt in turn; tokens: its samples are dealt by work, equally many to each rank; samples: equally many in "
        "their order.",
    )


class Stack(Strict):
    """One stack of published software: its trainer, its rollout engine and how its launcher places jobs."""

    name: str = Field(min_length=1, description="Framework and release, such as nemo_rl-0.7.")
    description: str = Field(description="What the stack is.")
    framework: str = Field(min_length=1, description="Training framework, as the fitted parameters name it.")
    release: str | None = Field(default=None, description="Release of the framework; none: the newest measured one.")
    engine: EngineName | None = Field(default=None, description="Rollout engine; none: a trainer alone.")
    engine_version: str | None = Field(default=None, description="Its release.")
    placement: Literal["aligned", "scattered"] = Field(
        default="aligned",
        description="aligned: groups of GPUs are placed within NVLink domains; scattered: they may straddle them.",
    )
    features: StackFeatures = Field(default=StackFeatures(), description="What the trainer does.")
    rack_features: StackFeatures | None = Field(
        default=None, description="What it does instead where NVLink joins several nodes (NVL72)."
    )
    policy_logprobs: bool = Field(
        default=True, description="Recipes recompute the policy's log-probs before an update that is on-policy."
    )
    sources: tuple[str, ...] = Field(default=(), description="Where each of these is published.")

    def trainer_features(self, rack: bool) -> StackFeatures:
        """Features on a device; rack: NVLink joins several of its nodes."""
        return self.rack_features if rack and self.rack_features is not None else self.features
