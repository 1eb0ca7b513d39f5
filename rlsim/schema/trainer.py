"""The trainer: parallel layout, batching, recomputation, optimizer and the passes before the update."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlsim.schema.base import Strict
from rlsim.schema.stack import Dispatcher, RankBalance, Stack


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
