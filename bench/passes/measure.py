"""What a pass of a trainer takes: log-probs, forward and backward of an update, its optimizer, and offloaded states.

The passes are those of verl's FSDP actor (volcengine/verl b178a3cd5, workers/actor/dp_actor.py): log-probs come with
the entropy of every token, an update has none, every layer is recomputed, attention is torch's fused one. Batches are
whole sequences of one length, as if packed without a gap.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn

from bench.passes.models import random_model

LOGPROB, UPDATE, OPTIMIZER = "logprob", "update", "optimizer"
_REPEATS, _MOST_S = 5, 3.0
_LEARNING_RATE = 1e-6
_MAX_NORM = 1.0


@dataclass(frozen=True)
class Shape:
    """A model and the batch that a pass is over. sequences: of ``tokens`` tokens each; experts: as transformers names
    the way to multiply them, empty without experts; lora_rank, liger: of bench.passes.models.random_model."""

    model: str
    layers: int
    sequences: int
    tokens: int
    fsdp: bool = False
    experts: str = ""
    lora_rank: int = 0
    liger: bool = False


@dataclass(frozen=True)
class Measured:
    """A pass, its median seconds over repeats and their spread (half range over median), and device memory in bytes:
    at rest, most allocated and most reserved. ``failed`` says why there are none."""

    kind: str
    shape: Shape
    seconds: float | None = None
    spread: float | None = None
    resident_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    failed: str | None = None

    def record(self) -> dict[str, object]:
        """As a line of JSON holds it."""
        return {**asdict(self), "shape": asdict(self.shape)}


def passes(shapes: list[Shape], device: torch.device) -> Iterator[Measured]:
    """Every pass over every shape; shapes that share a model, in order, share its weights."""
    model, built = None, None
    for shape in shapes:
        wanted = (shape.model, shape.layers, shape.experts, shape.fsdp, device, shape.lora_rank, shape.liger)
        if wanted != built:
            model = None
            _empty(device)
            model, built = random_model(*wanted), wanted
        assert model is not None
        yield from _passes(model, shape, device)


def _passes(model: nn.Module, shape: Shape, device: torch.device) -> Iterator[Measured]:
    vocabulary = model.config.vocab_size
    tokens = torch.randint(vocabulary, (shape.sequences, shape.tokens), device=device)
    for kind, run in ((LOGPROB, lambda: _logprob(model, tokens)), (UPDATE, lambda: _update(model, tokens))):
        yield _measured(kind, shape, run, device)
        model.zero_grad(set_to_none=True)
    if shape.fsdp:
        yield _optimizer(model, tokens, shape, device)
        model.zero_grad(set_to_none=True)


def _forward(model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [B x T, V] in BF16 and the token that follows each [B x T], the first following the last."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=tokens, use_cache=False).logits
    return logits.flatten(0, 1), tokens.roll(-1, 1).flatten()


def _logprob(model: nn.Module, tokens: Tensor) -> None:
    with torch.no_grad():
        logits, labels = _forward(model, tokens)
        logits.div_(1.0)  # the temperature
        F.cross_entropy(logits, labels, reduction="none")
        probabilities = F.softmax(logits, -1)
        torch.logsumexp(logits, -1) - (probabilities * logits).sum(-1)


def _update(model: nn.Module, tokens: Tensor) -> None:
    logits, labels = _forward(model, tokens)
    logprobs = -F.cross_entropy(logits / 1.0, labels, reduction="none")
    (logprobs - logprobs.detach()).exp().mean().neg().backward()


def _optimizer(model: nn.Module, tokens: Tensor, shape: Shape, device: torch.device) -> Measured:
    """Norm of the gradients, AdamW on FP32 weights and both moments, as torch does it by default."""
    try:
        _update(model, tokens)
        optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)

        def step() -> None:
            nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
            optimizer.step()

        step()
    except torch.OutOfMemoryError as error:
        return _failed(OPTIMIZER, shape, error)
    return _measured(OPTIMIZER, shape, step, device)


def _measured(kind: str, shape: Shape, run: Callable[[], None], device: torch.device) -> Measured:
    """The median of up to five repeats, after one that warms up and one that is measured for memory alone."""
    try:
        run()
        _empty(device)
        resident = _reset_peak(device)
        run()
        peak = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if resident is not None else None
        seconds: list[float] = []
        while len(seconds) < _REPEATS and (len(seconds) < 2 or sum(seconds) < _MOST_S):
            seconds.append(_seconds(run, device))
    except torch.OutOfMemoryError as error:
        return _failed(kind, shape, error)
    median = statistics.median(seconds)
    spread = (max(seconds) - min(seconds)) / 2 / median
    return Measured(kind, shape, median, spread, resident, *(peak or (None, None)))


def _failed(kind: str, shape: Shape, error: Exception) -> Measured:
    return Measured(kind, shape, failed=str(error).split("\n")[0][:120])


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _empty(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _reset_peak(device: torch.device) -> int | None:
    """Device bytes allocated now, from which peaks count; None without a GPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def offloads(device: torch.device, tensor_bytes: int, tensors: int) -> dict[str, float]:
    """Bytes per second of offloading ``tensors`` tensors of FP32 values to the host and back, as ``Tensor.to`` does it
    (pageable memory, made anew each time) and through pinned buffers that stay."""
    states = [torch.zeros(tensor_bytes // 4, device=device) for _ in range(tensors)]
    pinned = [torch.zeros(tensor_bytes // 4, pin_memory=device.type == "cuda") for _ in range(tensors)]
    total = float(tensor_bytes * tensors)
    away: list[Tensor] = []

    def offload() -> None:
        away.clear()
        away.extend(one.to("cpu", non_blocking=True) for one in states)

    def reload() -> list[Tensor]:
        return [one.to(device, non_blocking=True) for one in away]

    def to_pinned() -> None:
        for here, there in zip(states, pinned, strict=True):
            there.copy_(here, non_blocking=True)

    def from_pinned() -> None:
        for here, there in zip(states, pinned, strict=True):
            here.copy_(there, non_blocking=True)

    runs = {"offload": offload, "reload": reload, "offload_pinned": to_pinned, "reload_pinned": from_pinned}
    for run in runs.values():
        run()
    return {
        f"{name}_bytes_per_s": total / statistics.median(_seconds(run, device) for _ in range(3))
        for name, run in runs.items()
    }
