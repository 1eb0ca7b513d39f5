"""The trainer: parallel layout, batching, recomputation, optimizer and the passes before the update."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rlsim.schema.base import Strict
from rlsim.schema.engine_parameters import EngineName

Dispatcher = Literal["alltoall", "deepep", "hybridep"]
"""How tokens reach the GPUs of their experts: NCCL all-to-all of every copy; DeepEP and HybridEP send one copy to each
GPU, and across domains one to each domain."""
RankBalance = Literal["bins", "tokens", "gpu_tokens", "samples"]
"""How packed samples reach data-parallel ranks. bins: every update is packed as a whole and its bins are dealt to the
ranks in turn (NeMo-RL). tokens: an update's samples are dealt by work, equally many to each rank (nearly verl's rule
since 2025-10-23, 62221fa13). gpu_tokens: a step's samples are dealt to every GPU by tokens, equally many and in their
order; a rank of several GPUs holds their shares in a row and cuts its updates from them (verl before:
ray_trainer.py:905-917 and dp_actor.py:386-388 at b25bb7d4f), so that the updates of a step are not even.
samples: equally many in their order, whatever their lengths."""


def _graphs(given: Any) -> Any:
    return {True: "modules", False: "none"}[given] if isinstance(given, bool) else given


CudaGraphs = Annotated[Literal["none", "modules", "iteration"], BeforeValidator(_graphs)]
"""What is replayed as CUDA graphs. modules: router and preparation of the dispatch, with or without the attention;
iteration: the whole forward and backward pass, so that no host launches anything (Megatron-Core's scopes attn,
moe_router, moe_preprocess and full_iteration). True is modules, False none."""
GradientPrecision = Literal["fp32", "bf16"]
RecomputeModule = Literal["core_attn", "layernorm", "mlp", "moe", "moe_act"]
PipelineBalance = Literal["auto", "layers", "head"]
"""How layers are dealt to pipeline stages. layers: equally many to each, and the LM head to the last one besides.
head: embedding, MTP layers and LM head take the place of layers (account_for_*_in_pipeline_split and pipeline layouts
of Megatron-Core). auto: head where the layers do not divide by the stages."""


class StackFeatures(Strict):
    """What the trainer of a stack does; each can be stated in ``trainer`` instead."""

    cuda_graphs: CudaGraphs = "none"
    """What is replayed as CUDA graphs: nothing, router and dispatch preparation (modules), or the whole iteration."""
    moe_dispatcher: Dispatcher = "alltoall"
    """How tokens reach their experts."""
    fused_grouped_mlp: bool = False
    """Expert products in MXFP8 run as one fused kernel instead of one by one."""
    token_drop: bool = False
    """Experts take a fixed number of tokens and drop the others: static shapes, for which no host waits."""
    expert_imbalance: float = Field(1.6, ge=1, le=1024)
    """Tokens that reach the busiest expert-parallel rank over those of the mean one; 1 where routing is forced to be
    even, as in tuned pretraining. Default: one number for four pairs of forced and real routing of Qwen3-235B-A22B on
    256 H100 with EP8, whose measured ratios of step times from 1.25 at 16,384 tokens to 1.09 at 131,072 it meets within
    1 % (Megatron-Core, page of 2026-05)."""
    neighbouring_experts: bool = False
    """The experts of a token follow each other, so that they lie on few GPUs: the balanced test gates of AutoModel and
    torchtitan deal experts in turn. Else they are drawn evenly, as learnt and randomly forced routing does."""
    fp8_attention: bool = False
    """Attention runs in FP8."""
    flash_attention_2: bool | None = None
    """Attention runs by FlashAttention-2, whose instructions are those of an A100 on every device since, instead of
    kernels made for the device; default: with backend fsdp, whose trainers take models of Hugging Face with it (verl
    b178a3cd5, workers/fsdp_workers.py:331; OpenRLHF 3c3be623, cli/train_ppo_ray.py:660; SkyRL a9564572e,
    model_wrapper.py:87; NeMo-RL 7ea279abf, models/automodel/setup.py:332)."""
    bf16_layer_share: float = Field(0.0, ge=0, le=1)
    """Share of the layers whose products stay in BF16 (Megatron's ``num_layers_at_start_in_bf16`` and ``_at_end_``)."""
    bf16_projections: bool = False
    """Projections of attention, and into and out of the latent space of experts, stay in BF16 in all layers."""
    fused_cross_entropy: bool = False
    """Loss and log-probs run as one fused kernel over the logits in BF16."""
    gradient_precision: GradientPrecision = "fp32"
    """Precision in which gradients are reduced and Megatron's buffer holds them."""
    frozen_precision: GradientPrecision = "bf16"
    """Precision in which FSDP's ranks hold weights that an adapter (LoRA) leaves frozen."""
    logits_bytes: float | None = Field(None, gt=0, le=64)
    """Bytes that the backward pass holds for each logit; none: as the backend does."""
    logits_chunk_vocabulary: int | None = Field(None, ge=1)
    """Of logits that exist in chunks of tokens, the part of the vocabulary that exists at once; none: all of it."""
    fp32_expert_outputs: bool = False
    """Experts' outputs are weighed in FP32, copies that wait for the gradient of the router's weights."""
    fp8_parameter_gather: bool = False
    """Parameters whose products run in FP8 are gathered in FP8."""
    pipeline_balance: PipelineBalance = "auto"
    """How layers are dealt to pipeline stages: equally (layers), or so that LM head and MTP layers take the place of
    layers (head); auto: head where they do not divide."""
    tensor_overlap: bool = False
    """Gathers and scatters of tensor parallelism run beside the products."""
    exchange_overlap: bool = False
    """Dispatch and combine of experts run beside the computation of another micro-batch."""
    fused_adapters: bool = True
    """LoRA adapters run within the kernels of their matrices instead of beside them."""
    gradient_overlap: bool = True
    """Gradients are reduced and parameters gathered beside the computation."""
    rank_balance: RankBalance = "bins"
    """How packed samples reach data-parallel ranks. bins: an update is packed as a whole and its bins dealt in turn;
    tokens: its samples are dealt by work, equally many to each rank; samples: equally many in their order."""


class FsdpTerms(Strict):
    """An FSDP trainer around a model of Hugging Face, whose kernels no framework fused.

    Defaults are fitted by ``python -m research.passes`` to passes of transformers 5.17 measured on one H200
    (calibration/own/h200_sxm/passes.jsonl); the script prints what they leave. What users' runs take beyond them is
    fitted as their deviation.
    """

    speed: float = Field(1.03, gt=0, le=2)
    """Speed of products over that of operator tables, in log-probs and updates alike."""
    attention_flops_per_s: float = Field(4.6e14, gt=0, le=1e16)
    """Rate that FlashAttention-2 reaches at most, whatever a newer device could."""
    elementwise_passes: float = Field(6.7, ge=1, le=64)
    """Bytes of norms, rotations, activations and residuals, each a chain of kernels, over those of one fused kernel."""
    logits_bytes: float = Field(41.0, gt=0, le=256)
    """Bytes that log-probs and entropy of a log-prob pass move for a logit; the loss of an update and its gradient move
    about as many."""
    layer_launches: float = Field(220.0, ge=0, le=10000)
    """Host time of a layer's forward pass in launches (trainer.host_launch_s): modules, autocast and hooks included."""
    grouped_launches: float = Field(230.0, ge=0, le=10000)
    """The same of a MoE layer whose experts run as one grouped product."""
    expert_launches: float = Field(38.0, ge=0, le=10000)
    """What each expert adds where they run one after the other."""
    optimizer_bytes: float = Field(101.0, gt=0, le=1000)
    """Bytes that AdamW moves for a parameter of a rank's shard as torch makes it by default, a kernel for each term,
    with the norm of the gradients; FP32 weights, gradients and moments."""
    pass_fixed_s: float = Field(0.0, ge=0, le=60)
    """Time of a pass over the batch besides, log-probs and updates alike: micro-batches are built, results gathered,
    the cache emptied."""
    logprob_batches: float = Field(1.0, ge=1, le=64)
    """Micro-batches of an update that one of a log-prob pass holds, where a scenario states none: nothing of a forward
    pass stays for a backward one."""


class Stack(Strict):
    """One stack of published software: its trainer, its rollout engine and how its launcher places jobs."""

    name: str = Field(min_length=1)
    """Framework and release, such as nemo_rl-0.7."""
    description: str
    """What the stack is."""
    framework: str = Field(min_length=1)
    """Training framework, as the fitted parameters name it."""
    release: str | None = None
    """Release of the framework; none: the newest measured one."""
    measured: bool = True
    """Steps of it or of an older release were measured; false: read in its sources, and taken where it is named."""
    engine: EngineName | None = None
    """Rollout engine; none: a trainer alone."""
    engine_version: str | None = None
    """Its release."""
    placement: Literal["aligned", "scattered"] = "aligned"
    """aligned: groups of GPUs are placed within NVLink domains; scattered: they may straddle them."""
    whole_nodes: bool = False
    """Pools of a split cluster of several nodes are whole nodes; its launcher stops otherwise."""
    even_batches: bool = False
    """Data-parallel ranks have equally many samples of an update; its trainer stops otherwise."""
    features: StackFeatures = StackFeatures()
    """What the trainer does."""
    rack_features: StackFeatures | None = None
    """What it does instead where NVLink joins several nodes (NVL72)."""
    driver_bytes_per_s: float | None = Field(None, gt=0, le=1e12)
    """Rate at which its one driver hands the padded batch of a step to the ranks; none: it does not."""
    policy_logprobs: bool = True
    """Recipes recompute the policy's log-probs before an update that is on-policy."""
    engine_adapters: Literal["never", "fsdp", "always"] = "never"
    """With which trainer backends the rollout engine applies adapters (LoRA) itself; else they are merged into the
    weights that it is sent."""
    adapter_transfer: Literal["weights", "colocated", "adapters"] = "weights"
    """What a hand-over moves where the engine applies an adapter: all weights, the adapter alone, or the adapter alone
    on GPUs that both share, where FSDP's ranks gather all weights for it nevertheless (verl)."""
    offload_in_phases: bool = False
    """Where both share their GPUs, optimizer and weights of the trainer come and go within log-probs and updates, from
    pinned memory, and not around the rollout."""
    tuned: bool = True
    """Its measured runs are recipes of its makers on networks as their profiles say; false: runs of users, whose
    deviation from tuned ones, and whose networks, are in calibration/users."""
    fsdp: FsdpTerms | None = None
    """How its FSDP trainer runs the models of Hugging Face; none: as NeMo-RL's DTensor policy."""
    sources: tuple[str, ...] = ()
    """Where each of these is published."""

    def trainer_features(self, rack: bool) -> StackFeatures:
        """Features on a device; rack: NVLink joins several of its nodes."""
        return self.rack_features if rack and self.rack_features is not None else self.features


class Trainer(Strict):
    """Data parallelism takes what tensor x context x pipeline parallelism leaves of the training GPUs."""

    stack: Stack | None = None
    """Software of the trainer where it is not that of the scenario's stack: a name of calibration/stacks, a path, or
    inline."""
    backend: Literal["megatron", "fsdp"] = "megatron"
    """Megatron-Core, or FSDP2 (DTensor)."""
    tensor_parallel: int = Field(1, ge=1, le=1024)
    """GPUs that share every layer (with sequence parallelism)."""
    pipeline_parallel: int = Field(1, ge=1, le=512)
    """Stages of layers, 1F1B schedule."""
    virtual_stages: int = Field(1, ge=1, le=128)
    """Pieces of the model on each stage (interleaved pipeline): the bubble shrinks as many times."""
    context_parallel: int = Field(1, ge=1, le=1024)
    """GPUs that share every sequence."""
    expert_parallel: int = Field(1, ge=1, le=4096)
    """GPUs over which experts are spread."""
    expert_tensor_parallel: int = Field(1, ge=1, le=1024)
    """GPUs that share every expert, of Megatron-Core; they gather its tokens and add up what they make of them.
    Megatron-Core's own default is tensor_parallel (model_parallel_config.py:506), most recipes set 1."""
    sequence_parallel: bool = True
    """Tensor-parallel ranks share the tokens between products too; memory alone counts its lack."""
    zero_stage: Literal[0, 1, 2, 3] | None = None
    """What data-parallel ranks share, for memory alone: nothing (0, plain DDP), the optimizer's state (1), gradients
    too (2), weights too (3). Default: 3 of backend fsdp, 1 of Megatron-Core (its distributed optimizer)."""
    precision: Literal["bf16", "fp8", "nvfp4"] = "bf16"
    """Precision of the matrix products; fp8 with any scaling (MXFP8 too)."""
    lora_rank: int | None = Field(None, ge=1, le=4096)
    """Train adapters of this rank beside every matrix of a layer; the weights stay frozen."""
    global_batch_samples: int | None = Field(None, ge=1)
    """Samples per optimizer step; default the whole step's batch."""
    epochs: int = Field(1, ge=1, le=1000)
    """Passes over a step's batch, each with all its optimizer steps (PPO epochs)."""
    critic: bool = False
    """PPO: a value model of the policy's size and layout on the training GPUs, with a pass over the batch before the
    update and an update of its own."""
    sequence_packing: bool = True
    """Pack samples into micro-batches; false pads each to the longest of the batch."""
    micro_batch_tokens: int | None = Field(None, ge=1)
    """Capacity of a packed training micro-batch; default max_sequence_tokens."""
    logprob_micro_batch_tokens: int | None = Field(None, ge=1)
    """Capacity of a packed log-prob micro-batch; default micro_batch_tokens."""
    micro_batch_samples: int = Field(1, ge=1, le=65536)
    """Samples per micro-batch without packing."""
    logprob_micro_batch_samples: int | None = Field(None, ge=1, le=65536)
    """Samples per log-prob micro-batch without packing; default micro_batch_samples."""
    local_batch_samples: int | None = Field(None, ge=1)
    """Samples of a rank after which its pipeline drains, without packing (NeMo AutoModel's
    step_scheduler.local_batch_size at 822effa16); default: those of an optimizer step."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations recomputed in the backward pass: none, attention only, whole layers."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """Modules that selective recomputation computes again, of Megatron-Core's recompute_modules; time counts the
    attention, memory all of them."""
    fused_kernels: bool = False
    """Norms, rotations and activations of a model of Hugging Face are one kernel each (Liger kernels); of other
    trainers the framework says it."""
    mtp_layers: int = Field(0, ge=0, le=8)
    """Depths of multi-token prediction that an update trains beside the model, each with a loss of its own; a layer
    that is used several times counts as often."""
    optimizer: Literal["adam", "muon"] = "adam"
    """Optimizer."""
    optimizer_bytes_per_parameter: float = Field(12.0, gt=0, le=32)
    """FP32 master weight and moments; 8 with a precision-aware optimizer."""
    activations_on_host: bool = False
    """Inputs of recomputed layers wait in host memory for the backward pass; memory alone counts it."""
    optimizer_on_host: bool = False
    """Master weights and moments stay in host memory; a colocated trainer need not offload them."""
    optimizer_step: Literal["host", "device"] = "host"
    """Of optimizer_on_host. host: gradients come there, the CPU steps, weights go back (Megatron-Core's CPU offload in
    turn, FSDP2's offload policy); device: the state comes to the GPU for the step and goes back (prime-rl
    optim_cpu_offload, trainer/optim/state_offload.py:50-67 at 559b44772)."""
    frozen_vision: bool = False
    """Whether the vision tower of a model that sees is not trained (its forward pass stays)."""
    expert_products: Literal["grouped", "loop"] | None = None
    """How an FSDP trainer of the models of Hugging Face runs the experts of a layer: as one grouped product
    (transformers 5, experts_implementation grouped_mm) or one after the other (eager, and transformers 4). Default:
    grouped."""
    host_memory_bytes_per_s: float | None = Field(None, gt=0, le=1e13)
    """Rate at which the host steps, in bytes of state, gradients and weights, for each GPU. Default: half the memory
    bandwidth of its node over its GPUs, 614 GB/s of two sockets with eight DDR5-4800 channels, 512 GB/s of each Grace.
    Assumption."""
    logits_bytes: float | None = Field(None, gt=0, le=64)
    """Bytes that the backward pass holds for each logit: 4 where the loss takes BF16 ones in place, 10 of BF16 ones
    with an FP32 copy and its gradient, 14 where a softmax stays besides. Default: as in the stack, else 10 of
    FSDP, and of Megatron-Core's vocabulary-parallel loss 8, fused 6 (core/tensor_parallel/cross_entropy.py)."""
    logits_chunk_tokens: int | None = Field(None, ge=1)
    """Tokens whose logits exist at once where head and loss run in chunks; default: those of a micro-batch."""
    logits_chunk_vocabulary: int | None = Field(None, ge=1)
    """Of chunks of logits, the part of the vocabulary that exists at once; default: as in the stack, else all of it."""
    policy_logprobs: bool | None = None
    """Recompute the policy's log-probs before training; default: unless the stack's recipes do without them where one
    update follows each rollout."""
    reference_logprobs: bool = True
    """Log-probs of the reference policy (KL penalty)."""
    offload: bool = True
    """Colocated only: optimizer, gradients and weights go to host memory during the rollout."""
    cuda_graphs: CudaGraphs | None = None
    """What is replayed as CUDA graphs: none, modules (router and dispatch preparation, with or without attention), or
    iteration (whole passes: no host launches anything); default: as in the stack."""
    moe_dispatcher: Dispatcher | None = None
    """How tokens reach the GPUs of their experts; default: as in the stack."""
    fused_grouped_mlp: bool | None = None
    """Expert products in MXFP8 as one fused kernel; default: as in the stack."""
    token_drop: bool | None = None
    """Experts take a fixed number of tokens and drop the others; default: as in the stack."""
    expert_imbalance: float | None = Field(None, ge=1, le=1024)
    """Tokens that reach the busiest expert-parallel rank over those of the mean one, whose experts, permutation and
    exchange all others wait for; 1: routing forced to be even. Default: as in the stack, 1.6 in all that ship."""
    neighbouring_experts: bool | None = None
    """The experts of a token follow each other, as a balanced test gate deals them; default: as in the stack."""
    fp8_attention: bool | None = None
    """Attention in FP8; default: as in the stack."""
    flash_attention_2: bool | None = None
    """Attention by FlashAttention-2 instead of kernels made for the device; default: as in the stack, else with
    backend fsdp."""
    bf16_layer_share: float | None = Field(None, ge=0, le=1)
    """Share of the layers whose products stay in BF16; default: as in the stack."""
    bf16_projections: bool | None = None
    """Projections of attention and of latent experts in BF16; default: as in the stack."""
    fused_cross_entropy: bool | None = None
    """Loss and log-probs as one fused kernel; default: as in the stack."""
    gradient_precision: GradientPrecision | None = None
    """Precision in which gradients are reduced and Megatron's buffer holds them; default: as in the stack."""
    frozen_precision: GradientPrecision | None = None
    """Precision in which FSDP's ranks hold weights that an adapter leaves frozen; default: as in the stack."""
    fp32_expert_outputs: bool | None = None
    """Experts' outputs are weighed in FP32 and kept for the gradient of the router's weights; default: as in the
    stack."""
    fp8_parameter_gather: bool | None = None
    """Parameters of products in FP8 gathered in FP8; default: as in the stack."""
    pipeline_balance: PipelineBalance | None = None
    """How layers are dealt to pipeline stages: layers (equally, the LM head besides), head (LM head and MTP layers take
    the place of layers), or auto (head where layers do not divide by stages); default: as in the stack."""
    tensor_overlap: bool | None = None
    """Tensor-parallel exchange beside the products; default: as in the stack."""
    exchange_overlap: bool | None = None
    """Expert exchange beside the computation of another micro-batch; default: as in the stack."""
    fused_adapters: bool | None = None
    """LoRA adapters within the kernels of their matrices; default: as in the stack."""
    gradient_overlap: bool | None = None
    """Gradient exchange beside the computation; default: as in the stack."""
    rank_balance: RankBalance | None = None
    """How packed samples reach data-parallel ranks, of which the busiest sets the pace. bins: an update is packed as a
    whole, its bins dealt to the ranks in turn; tokens: its samples are dealt by work, equally many to each rank;
    samples: equally many in their order. Default: as in the stack."""
    host_launch_s: float = Field(8e-6, ge=0, le=0.01)
    """Host time per kernel launched by the training framework. Assumption."""
    device_efficiency: float | None = Field(None, gt=0, le=2)
    """Speed of the framework's products over that of the operator tables, which hold the quantisation of activations
    (so it may exceed 1); attention and elementwise kernels move with it. Default: fitted."""
    moe_device_efficiency: float | None = Field(None, gt=0, le=2)
    """The same of expert layers; default: device_efficiency, else fitted."""
    moe_host_layer_s: float | None = Field(None, ge=0, le=1)
    """Least host time of one MoE layer's forward pass (many small expert kernels); default: fitted."""
