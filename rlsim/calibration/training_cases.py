"""Cases of training with their least work: layers, the optimizer, whole steps of a cut model."""

from bench.cases import TRAINING_STEP, Case, ModelDims
from rlsim.costs.operators import work
from rlsim.units import BYTES_PER_ELEMENT

ELEMENT_BYTES = BYTES_PER_ELEMENT["bf16"]
BACKWARD_WORK = 3.0
"""FLOPs and bytes of forward and backward over those of forward: two products for each one."""
_ADAM_BYTES_PER_PARAMETER = 28.0
"""fp32 parameter, gradient and two moments read; parameter and two moments written."""
_ADAM_FLOPS_PER_PARAMETER = 15.0
"""Multiplications, additions, square root and division of one AdamW update, counted one each."""
_MICRO_BATCHES = 2
"""Passes before an update: the second adds to the gradients of the first."""


def trained_layer(op: str, tokens: int, model: str, dims: ModelDims, mode: str = "eager") -> Case:
    """Forward (``layer_forward``), or that with the backward pass, of one layer over one sequence."""
    forward, moved = _layer_forward(tokens, dims)
    factor = BACKWARD_WORK if op == "layer_forward_backward" else 1.0
    stated = {"mode": mode} if mode != "eager" else {}
    return Case(op, {"tokens": tokens, "model": model, **stated}, factor * forward, factor * moved)


def _layer_forward(tokens: int, dims: ModelDims) -> tuple[float, float]:
    """FLOPs and bytes of one layer's forward pass over one sequence."""
    weights = dims.hidden * (dims.qkv_width + dims.heads * dims.head_dim + 3 * dims.width * (dims.top_k or 1))
    flops = 2.0 * tokens * weights + float(work.causal_attention_flops(tokens**2, dims.heads, dims.head_dim))
    return flops, weights * ELEMENT_BYTES + 8.0 * tokens * dims.hidden * ELEMENT_BYTES


def optimizer_step(parameters: int) -> Case:
    """One AdamW step on FP32 parameters."""
    amounts = _ADAM_FLOPS_PER_PARAMETER * parameters, _ADAM_BYTES_PER_PARAMETER * parameters
    return Case("optimizer_step", {"parameters": parameters}, *amounts)


def training_step(
    model: str, dims: ModelDims, tokens: int, recompute: str, samples: int = 1, micro_batches: int = _MICRO_BATCHES
) -> Case:
    """One optimizer step of the model with ``dims.layers`` layers. recompute: ``none`` or ``full``, whole layers."""
    forward, moved = _layer_forward(tokens, dims)
    head = dims.vocabulary * dims.hidden
    passes = BACKWARD_WORK + (recompute == "full")
    flops = samples * (passes * dims.layers * forward + BACKWARD_WORK * 2.0 * tokens * head)
    logits = 3.0 * 4.0 * samples * tokens * dims.vocabulary
    bytes_ = passes * dims.layers * moved + BACKWARD_WORK * head * ELEMENT_BYTES + logits
    parameters = trained_parameters(dims)
    sizes = {"layers": dims.layers, "samples": samples, "tokens": tokens, "micro_batches": micro_batches}
    return Case(
        TRAINING_STEP,
        {"model": model, **sizes, "recompute": recompute},
        micro_batches * flops + _ADAM_FLOPS_PER_PARAMETER * parameters,
        micro_batches * bytes_ + (_ADAM_BYTES_PER_PARAMETER + ELEMENT_BYTES) * parameters,
    )


def trained_parameters(dims: ModelDims) -> float:
    """Matrices of all layers, all experts and routers included, embedding and LM head."""
    feed_forward = 3 * dims.width * max(1, dims.experts) + dims.experts
    layer = dims.hidden * (dims.qkv_width + dims.heads * dims.head_dim + feed_forward)
    return float(dims.layers * layer + 2 * dims.vocabulary * dims.hidden)
