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

from rlsim.calibration.cell import Cell
from rlsim.calibration.timing import Call, Sample, summarise
from rlsim.calibration.workbench import UnsupportedError

CPU_RANKS = 2
_PASSES = 11
_CALLS = 4


def default_ranks(device: torch.device) -> int:
    """Ranks of a run: all GPUs of the machine, or two processes on a CPU. 1 means there is nothing to measure."""
    return torch.cuda.device_count() if device.type == "cuda" else CPU_RANKS


def measure_collectives(cells: Sequence[Cell], device: torch.device) -> Iterator[tuple[Cell, Sample]]:
    """Samples of ``cells`` (all with the same number of ranks), as they come; the slowest rank's clock counts."""
    if not cells:
        return
    ranks = cells[0].number("ranks")
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        job = mp.spawn(_worker, (ranks, store, device.type, list(cells), queue), nprocs=ranks, join=False)
        for _ in cells:
            while queue.empty():
                if job.join(timeout=0.01) and queue.empty():
                    raise UnsupportedError("the processes of the collectives ended early")
            index, seconds = queue.get()
            yield cells[index], summarise(seconds)
        while not job.join():
            continue


def _worker(rank: int, ranks: int, store: str, device_type: str, cells: list[Cell], queue: Any) -> None:
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
        for index, cell in enumerate(cells):
            seconds = _time(prepare_collective(cell, ranks, device), device)
            if rank == 0:
                queue.put((index, seconds))
    finally:
        dist.destroy_process_group()


def _loopback() -> str:
    """Name of the loopback interface, so that gloo needs no resolvable host name."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), names[0])


def prepare_collective(cell: Cell, ranks: int, device: torch.device) -> Call:
    """One collective on ``bytes`` of BF16 per rank (fp32 for gloo, which lacks some BF16 reductions)."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    size = max(ranks, cell.number("bytes") // dtype.itemsize // ranks * ranks)
    whole, shard = torch.zeros(size, dtype=dtype, device=device), torch.zeros(size // ranks, dtype=dtype, device=device)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: _either("all_gather_single", "all_gather_into_tensor")(whole, shard),
        "reduce_scatter": lambda: _either("reduce_scatter_single", "reduce_scatter_tensor")(shard, whole),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    return calls[cell.op]


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
