"""Models of random weights as transformers builds them, cut to a few layers, plain or under FSDP2."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig

_POSITIONS = 65536
MODULES = "modules"
"""Experts as modules of their own, a loop over them: transformers before 5."""
_COLUMNS = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
    "tie_word_embeddings",
)  # fmt: skip


def _shape(*values: int, **further: Any) -> dict[str, Any]:
    """Words of a configuration: ``values`` of the columns, and what its kind has besides."""
    return {**dict(zip(_COLUMNS, values, strict=True)), **further}


_EXPERTS = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
_TINY = (64, 4, 2, 16, 128, 512, False)
_TINY_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
_TINY_HEADS = {
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 4, "linear_num_value_heads": 4,
}  # fmt: skip
MODELS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "qwen2.5-0.5b": (Qwen2Config, _shape(896, 14, 2, 64, 4864, 151936, True)),
    "qwen3-1.7b": (Qwen3Config, _shape(2048, 16, 8, 128, 6144, 151936, True)),
    "qwen3-8b": (Qwen3Config, _shape(4096, 32, 8, 128, 12288, 151936, False)),
    "qwen2.5-32b": (Qwen2Config, _shape(5120, 40, 8, 128, 27648, 152064, False)),
    "qwen3-30b-a3b": (Qwen3MoeConfig, _shape(2048, 32, 4, 128, 6144, 151936, False, **_EXPERTS)),
    "qwen3.5-9b": (Qwen3_5TextConfig, _shape(4096, 16, 4, 256, 12288, 248320, False)),
    "tiny-dense": (Qwen3Config, _shape(*_TINY)),
    "tiny-experts": (Qwen3MoeConfig, _shape(*_TINY, **_TINY_EXPERTS)),
    "tiny-linear": (Qwen3_5TextConfig, _shape(*_TINY, **_TINY_HEADS)),
}
"""Configuration class and shape by the name of rlsim's model card, with which a test compares them."""


def random_model(
    name: str, layers: int, experts: str, fsdp: bool, device: torch.device, lora_rank: int = 0, liger: bool = False
) -> nn.Module:
    """The model ``name`` with ``layers`` layers and random weights on ``device``, in training mode with recomputation
    of every layer: BF16, or with ``fsdp`` FP32 weights that FSDP2 casts to BF16 as it gathers them.

    experts: how transformers multiplies experts: "grouped_mm", "eager" for a loop over parts of one tensor, or MODULES.
    lora_rank: of PEFT's adapters beside every matrix, which then are all that is trained; liger: with Liger's kernels
    for norms, rotations and activations.
    """
    kind, shape = MODELS[name]
    config = kind(num_hidden_layers=layers, max_position_embeddings=_POSITIONS, use_cache=False, **shape)
    config._attn_implementation = "sdpa"
    precision = torch.float32 if fsdp else torch.bfloat16
    options = {"experts_implementation": experts} if experts not in ("", MODULES) else {}
    with torch.device(device):
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=precision, **options)
        if experts == MODULES:
            for layer in model.model.layers:
                layer.mlp.experts = _ExpertModules(config).to(precision)
    if liger:
        from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model)  # as verl's workers do
    if lora_rank:
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(r=lora_rank, lora_alpha=lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, adapters)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return _sharded(model, device) if fsdp else model


def _layers(model: nn.Module) -> nn.ModuleList:
    """Decoder layers, of a model or of the one that PEFT wraps."""
    return next(part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) > 0)


def _sharded(model: nn.Module, device: torch.device) -> nn.Module:
    """FSDP2 with one shard a layer, on a mesh of this device alone: gathers and reductions are their copies."""
    from torch.distributed import init_process_group, is_initialized
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29511")
        init_process_group("nccl" if device.type == "cuda" else "gloo", rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


class _ExpertModules(nn.Module):  # type: ignore[misc]
    """Routed experts, a gated feed-forward each, visited in turn (transformers 4.51, Qwen3MoeSparseMoeBlock)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gates, self.ups, self.downs = (
            nn.ModuleList(nn.Linear(*shape, bias=False) for _ in range(config.num_experts))
            for shape in (
                (config.hidden_size, config.moe_intermediate_size), (config.hidden_size, config.moe_intermediate_size),
                (config.moe_intermediate_size, config.hidden_size),
            )
        )  # fmt: skip

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Sum of the experts ``chosen`` [T, K] of hidden states [T, H], by ``weights`` [T, K]."""
        out = torch.zeros_like(hidden)
        places = F.one_hot(chosen, len(self.gates)).permute(2, 1, 0)
        for expert in places.sum((1, 2)).nonzero().flatten().tolist():
            rank, token = torch.where(places[expert])
            part = hidden[token]
            inner = F.silu(self.gates[expert](part)) * self.ups[expert](part)
            out.index_add_(0, token, (self.downs[expert](inner) * weights[token, rank, None]).to(out.dtype))
        return out
