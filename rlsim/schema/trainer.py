"""The trainer: parallel layout, batching, recomputation, optimizer and the passes before the update."""

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


class Trainer(Strict):
    """Data parallelism takes what tensor x context x pipeline parallelism leaves of the training GPUs."""

    stack: Stack | None = Field(
        default=None,
        description="Software of the trainer where it is not that of the scenario's stack: a name of "
        "calibration/stacks, a path, or inline.",
    )
    backend: Literal["megatron", "fsdp"] = Field(default="megatron", description="Megatron-Core, or FSDP2 (DTensor).")
    tensor_parallel: int = Field(
        default=1, ge=1, le=1024, description="GPUs that share every layer (with sequence parallelism)."
    )
    pipeline_parallel: int = Field(default=1, ge=1, le=512, description="Stages of layers, 1F1B schedule.")
    virtual_stages: int = Field(
        default=1,
        ge=1,
        le=128,
        description="Pieces of the model on each stage (interleaved pipeline): the bubble shrinks as many times.",
    )
    context_parallel: int = Field(default=1, ge=1, le=1024, description="GPUs that share every sequence.")
    expert_parallel: int = Field(default=1, ge=1, le=4096, description="GPUs over which experts are spread.")
    precision: Literal["bf16", "fp8", "nvfp4"] = Field(
        default="bf16", description="Precision of the matrix products; fp8 with any scaling (MXFP8 too)."
    )
    lora_rank: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Train adapters of this rank beside every matrix of a layer; the weights stay frozen.",
    )
    global_batch_samples: int | None = Field(
        default=None, ge=1, description="Samples per optimizer step; default the whole step's batch."
    )
    epochs: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Passes over a step's batch, each with all its optimizer steps (PPO epochs).",
    )
    critic: bool = Field(
        default=False,
        description="PPO: a value model of the policy's size and layout on the training GPUs, with a pass over the "
        "batch before the update and an update of its own.",
    )
    sequence_packing: bool = Field(
        default=True, description="Pack samples into micro-batches; false pads each to the cap."
    )
    micro_batch_tokens: int | None = Field(
        default=None, ge=1, description="Capacity of a packed training micro-batch; default max_sequence_tokens."
    )
    logprob_micro_batch_tokens: int | None = Field(
        default=None, ge=1, description="Capacity of a packed log-prob micro-batch; default micro_batch_tokens."
    )
    micro_batch_samples: int = Field(default=1, ge=1, le=65536, description="Samples per micro-batch without packing.")
    recompute: Literal["none", "selective", "full"] = Field(
        default="none", description="Activations recomputed in the backward pass: none, attention only, whole layers."
    )
    mtp_layers: int = Field(
        default=0,
        ge=0,
        le=8,
        description="Depths of multi-token prediction that an update trains beside the model, each with a loss of its "
        "own; a layer that is used several times counts as often.",
    )
    optimizer: Literal["adam", "muon"] = Field(default="adam", description="Optimizer.")
    optimizer_bytes_per_parameter: float = Field(
        default=12.0, gt=0, le=32, description="FP32 master weight and moments; 8 with a precision-aware optimizer."
    )
    policy_logprobs: bool | None = Field(
        default=None,
        description="Recompute the policy's log-probs before training; default: unless the stack's recipes do without "
        "them where one update follows each rollout.",
    )
    reference_logprobs: bool = Field(default=True, description="Log-probs of the reference policy (KL penalty).")
    offload: bool = Field(
        default=True,
        description="Colocated only: optimizer, gradients and weights go to host memory during the rollout.",
    )
    cuda_graphs: bool | None = Field(
        default=None, description="Attention, router and dispatch run as CUDA graphs; default: as in the stack."
    )
    moe_dispatcher: Dispatcher | None = Field(
        default=None, description="How tokens reach the GPUs of their experts; default: as in the stack."
    )
    fused_grouped_mlp: bool | None = Field(
        default=None, description="Expert products in MXFP8 as one fused kernel; default: as in the stack."
    )
    tensor_overlap: bool | None = Field(
        default=None, description="Tensor-parallel exchange beside the products; default: as in the stack."
    )
    exchange_overlap: bool | None = Field(
        default=None,
        description="Expert exchange beside the computation of another micro-batch; default: as in the stack.",
    )
    fused_adapters: bool | None = Field(
        default=None, description="LoRA adapters within the kernels of their matrices; default: as in the stack."
    )
    gradient_overlap: bool | None = Field(
        default=None, description="Gradient exchange beside the computation; default: as in the stack."
    )
    rank_balance: RankBalance | None = Field(
        default=None,
        description="How packed samples reach data-parallel ranks, of which the busiest sets the pace. bins: an update "
        "is packed as a whole, its bins dealt to the ranks in turn; tokens: its samples are dealt by work, equally "
        "many to each rank; samples: equally many in their order. Default: as in the stack.",
    )
    host_launch_s: float = Field(
        default=8e-6, ge=0, le=0.01, description="Host time per kernel launched by the training framework. Assumption."
    )
    device_efficiency: float | None = Field(
        default=None,
        gt=0,
        le=2,
        description="Speed of the framework's products over that of the operator tables, which hold the quantisation "
        "of activations (so it may exceed 1); attention and elementwise kernels move with it. Default: fitted.",
    )
    moe_device_efficiency: float | None = Field(
        default=None, gt=0, le=2, description="The same of expert layers; default: device_efficiency, else fitted."
    )
    moe_host_layer_s: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least host time of one MoE layer's forward pass (many small expert kernels); default: fitted.",
    )
