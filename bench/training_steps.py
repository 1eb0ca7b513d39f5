"""Whole optimizer steps of a cut model: embedding, layers, LM head and loss, backward, AdamW on FP32 weights.

Weights are BF16; the gradients that autograd makes of them are added to FP32 ones as they come, as Megatron-Core does,
and the optimizer holds FP32 weights and both moments.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bench.cases import TRAINING_STEP, Case, ModelDims
from bench.measurements import Facts
from bench.timing import StopRule, measure_long
from bench.training import adam, layer_tensors, require_grouped_products, training_layer
from bench.transformer import LayerWeights, random_layer, random_matrix, rms_norm, rope_table
from bench.workbench import Prepared, Workbench

_BRIEF = StopRule(min_repeats=3, max_repeats=5, max_seconds=0.2)


class TrainedModel:
    """A model of random weights with its gradients and its optimizer."""

    def __init__(self, dims: ModelDims, device: torch.device, dtype: torch.dtype) -> None:
        self.dims = dims
        self.embedding = random_matrix(dims.vocabulary, dims.hidden, device, dtype)
        self.layers = [random_layer(dims, device, dtype) for _ in range(dims.layers)]
        self.norm = torch.ones(dims.hidden, device=device, dtype=dtype)
        self.head = random_matrix(dims.vocabulary, dims.hidden, device, dtype)
        of_layers = [tensor for layer in self.layers for tensor in layer_tensors(layer)]
        self.parameters = [one.requires_grad_() for one in (self.embedding, *of_layers, self.norm, self.head)]
        self.masters = [one.detach().to(torch.float32, copy=True) for one in self.parameters]
        self.gradients = [torch.zeros_like(one) for one in self.masters]
        self.optimizer = adam(self.masters)
        for parameter, master, gradient in zip(self.parameters, self.masters, self.gradients, strict=True):
            master.grad = gradient
            parameter.register_post_accumulate_grad_hook(_collector(gradient))

    def loss(self, tokens: Tensor, recompute: str) -> Tensor:
        """Mean loss of the next tokens of sequences [B, T], the first following the last; logits in FP32 at once."""
        angles = rope_table(tokens.shape[1], self.dims.head_dim, tokens.device)
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = self._layer(x, layer, angles, recompute)
        logits = F.linear(rms_norm(x, self.norm), self.head).flatten(0, -2)
        return F.cross_entropy(logits.float(), tokens.roll(-1, 1).flatten())

    def _layer(self, x: Tensor, layer: LayerWeights, angles: Tensor, recompute: str) -> Tensor:
        if recompute != "full":
            return training_layer(x, layer, self.dims, angles)
        out: Tensor = checkpoint(
            training_layer, x, layer, self.dims, angles, use_reentrant=False, preserve_rng_state=False
        )
        return out

    def update(self) -> None:
        """Optimizer step on the FP32 weights, BF16 weights of them, gradients back to zero."""
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)
            torch._foreach_zero_(self.gradients)


def _collector(gradient: Tensor) -> Callable[[Tensor], None]:
    """Adds what autograd has made of a parameter to its FP32 gradient and lets go of it."""

    def collect(parameter: Tensor) -> None:
        if parameter.grad is not None:
            gradient.add_(parameter.grad)
            parameter.grad = None

    return collect


def _training_step(case: Case, on: Workbench) -> Prepared:
    """One update after ``micro_batches`` passes over ``samples`` sequences of ``tokens`` tokens each."""
    dims = on.models[case.text("model")].with_layers(case.number("layers"))
    require_grouped_products(dims, on.device)
    model, recompute = TrainedModel(dims, on.device, on.dtype), case.text("recompute")
    shape = (case.number("samples"), case.number("tokens"))
    batches = [torch.randint(dims.vocabulary, shape, device=on.device) for _ in range(case.number("micro_batches"))]

    def call() -> None:
        for tokens in batches:
            model.loss(tokens, recompute).backward()
        model.update()

    call()
    update_s = measure_long([model.update], on.device, _BRIEF).seconds_median
    return Prepared([call], mode="eager", facts=Facts(optimizer_s=update_s), long=True)


TRAINING_STEP_OPERATORS: dict[str, Callable[[Case, Workbench], Prepared]] = {TRAINING_STEP: _training_step}
