"""Weights handed from one process to another on the same GPU by CUDA IPC handles, as a colocated trainer and engine do.

The holder exports a handle for each tensor, or packs all tensors into one bucket and exports that; the other process
opens them, copies what they name into tensors of its own, and answers when its device is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from bench import isolated
from bench.cases import Case
from bench.measurements import Facts, Measurement, Sample
from bench.recording import checked
from bench.timing import Call, StopRule, measure_host
from bench.weights import pack, unpack, weight_tensors
from bench.workbench import UnsupportedError

LIMIT_S = 30.0
"""Most seconds for all cases, the start of the other process included."""
Handle = tuple[Any, tuple[Any, ...]]
"""How the other process makes the tensor again: a function and its arguments."""


def measure_ipc(
    cases: Sequence[Case], device: torch.device, rule: StopRule, limit_s: float = LIMIT_S
) -> Iterator[Measurement]:
    """Records of the hand-overs, as they come. Raises UnsupportedError where the device or its driver has no handles,
    where the other process fails, and where the time is used up.
    """
    if device.type != "cuda":
        raise UnsupportedError("a CPU has no CUDA IPC")
    with isolated.serving(receiver, (str(device),), limit_s) as ask:
        for case in cases:
            try:
                ask(case)
                yield checked(case, hand_over(case, device, ask, rule), Facts())
                torch.cuda.ipc_collect()
            except RuntimeError as error:
                raise UnsupportedError(str(error).splitlines()[0]) from error


def hand_over(case: Case, device: torch.device, ask: isolated.Ask, rule: StopRule) -> Sample:
    """Seconds from exported handles to the other process's answer that its copies are made."""
    sources = weight_tensors(case, device)
    packs = case.text("path") == "bucket"
    bucket = torch.cat(sources)

    def call() -> None:
        if packs:
            pack(sources, bucket)
        handles = [reductions.reduce_tensor(tensor) for tensor in ([bucket] if packs else sources)]
        _settle(device)
        ask(handles)

    calls: list[Call] = [call]
    return measure_host(calls, device, rule)


def receiver(device_name: str) -> isolated.Ask:
    """Answers a case by making room for its weights, and handles by copying what they name there."""
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    held: list[Tensor] = []

    def answer(message: Case | list[Handle]) -> None:
        if isinstance(message, Case):
            held[:] = weight_tensors(message, device)
            return
        opened = [make(*arguments) for make, arguments in message]
        if len(opened) < len(held):
            unpack(opened[0], held)
        else:
            for target, source in zip(held, opened, strict=True):
                target.copy_(source)
        _settle(device)

    return answer


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
