"""Collectives through torch.distributed: NCCL between GPUs, gloo between two CPU processes, so that the path is
tested.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from bench.cases import Case
from bench.measurements import Sample
from bench.timing import Call, capture, summarise
from bench.workbench import UnsupportedError

_PASSES = 11
_CALLS = 4


def measure_collectives(cases: Sequence[Case], device: torch.device) -> Iterator[tuple[Case, Sample]]:
    """Samples of ``cases`` (all of one number of ranks), as they come; the slowest rank's clock counts.

    Raises UnsupportedError where the machine has fewer GPUs than ranks, or where the processes end early.
    """
    ranks, gpus = cases[0].number("ranks"), torch.cuda.device_count()
    if device.type == "cuda" and ranks > gpus:
        raise UnsupportedError(f"{ranks} ranks need {ranks} GPUs; this machine has {gpus}")
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        job = mp.spawn(_worker, (ranks, store, device.type, list(cases), queue), nprocs=ranks, join=False)
        for _ in cases:
            while queue.empty():
                if job.join(timeout=0.01) and queue.empty():
                    raise UnsupportedError("the processes of the collectives ended early")
            index, seconds = queue.get()
            yield cases[index], summarise(seconds)
        while not job.join():
            continue


def _worker(rank: int, ranks: int, store: str, device_type: str, cases: list[Case], queue: Any) -> None:
    if device_type == "cuda":
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    else:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        device = torch.device("cpu")
    backend = "nccl" if device_type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks)
    try:
        for index, case in enumerate(cases):
            seconds = _time(_captured(case, prepare_collective(case, ranks, device)), device)
            if rank == 0:
                queue.put((index, seconds))
    finally:
        dist.destroy_process_group()


def _captured(case: Case, call: Call) -> Call:
    """``call``, or the replay of a graph of it where the case asks for one: the host then launches nothing."""
    if case.text("mode") != "graph":
        return call
    call()
    return capture([call])


def _loopback() -> str:
    """Name of the loopback interface, so that gloo needs no resolvable host name."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), names[0])


def prepare_collective(case: Case, ranks: int, device: torch.device) -> Call:
    """One collective on ``bytes`` of BF16 per rank (fp32 for gloo, which lacks some BF16 reductions)."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    size = max(ranks, case.number("bytes") // dtype.itemsize // ranks * ranks)
    whole, shard = torch.zeros(size, dtype=dtype, device=device), torch.zeros(size // ranks, dtype=dtype, device=device)
    received = torch.empty_like(whole)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: _either("all_gather_single", "all_gather_into_tensor")(whole, shard),
        "reduce_scatter": lambda: _either("reduce_scatter_single", "reduce_scatter_tensor")(shard, whole),
        "all_to_all": lambda: dist.all_to_all_single(received, whole),
    }
    return calls[case.op]


def _either(new: str, old: str) -> Callable[..., object]:
    """torch's function under its new name, or its old one where the installed version has only that."""
    found: Callable[..., object] = getattr(dist, new, None) or getattr(dist, old)
    return found


def _time(call: Call, device: torch.device) -> list[float]:
    """Seconds per call of several passes, each the slowest rank's; every rank does the same number of calls."""
    seconds: list[float] = []
    for _ in range(_PASSES):
        dist.barrier()
        _settle(device)
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        _settle(device)
        slowest: Tensor = torch.tensor([(time.perf_counter() - start) / _CALLS], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds.append(float(slowest.item()))
    return seconds[1:]


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
