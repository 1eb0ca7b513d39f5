"""A GPU that computes nothing and keeps time: what the CUDA paths of the benchmarks do, without a GPU.

Tensors are torch's fake tensors on device ``cuda``: shapes, types, devices and alignment are checked as torch's meta
kernels check them, no memory is taken. Every kernel that reaches the device is charged by its roofline on a simulated
clock, launches and graph replays by fixed costs; host and device run asynchronously as on a real GPU. Waiting for the
device while a stream is captured is an error, as it is there. A last-level cache holds what was touched last. There is
no wave quantisation and no noise: the numbers say nothing about a real GPU, only whether the benchmarks run, whether
predictions count every kernel, and whether operators are measured as hot or cold as they run. torch.compile returns
what it is given, and a process that would be started beside this one answers from here.
"""

import contextlib
import ctypes
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing import reductions
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_FLOPS_PER_S = {torch.bfloat16: 800e12, torch.float8_e4m3fn: 1600e12, torch.float32: 60e12}
_BYTES_PER_S, _CACHED_BYTES_PER_S, LINK_BYTES_PER_S = 4.0e12, 10e12, 50e9
_CACHE_BYTES = 60 * 10**6
KERNEL_S, DISPATCH_S, _REPLAY_S = 2e-6, 4e-6, 8e-6
_PASS_S = 5e-5
"""Least duration of a timed pass: short, since nothing here is noisy, but longer than a replay."""
MEMORY_BYTES = 141 * 10**9
_WHOLE = ("scaled_dot_product_attention", "rms_norm")
"""Composite operators that a GPU runs as one kernel."""
_SPARSE = ("index", "index_put_", "embedding", "gather", "scatter_", "index_select")
"""Operators that touch only the rows they name, not the whole table."""
_CUDA, _META = 1, 14
"""Device types as numbered in c10/core/DeviceType.h."""
_FREE = ("empty", "_unsafe_view", "new_empty", "lift_fresh", "is_pinned", "_local_scalar_dense")


@dataclass
class Clock:
    """Simulated seconds: now on the host, and when the device has done all that was enqueued."""

    host_s: float = 0.0
    device_s: float = 0.0
    capturing: list[float] | None = None

    def enqueue(self, kernel_s: float) -> None:
        """One kernel: into the graph being captured, or onto the device."""
        self.host_s += DISPATCH_S
        if self.capturing is not None:
            self.capturing.append(kernel_s)
        else:
            self.device_s = max(self.device_s, self.host_s) + kernel_s

    def wait(self) -> None:
        if self.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.host_s = max(self.host_s, self.device_s)

    def now(self) -> float:
        """Reading of the host's clock, which takes a moment."""
        self.host_s += 1e-7
        return self.host_s

    def sleep(self, seconds: float) -> None:
        self.host_s += seconds


class Event:
    """torch.cuda.Event on the simulated clock."""

    clock: Clock

    def __init__(self, enable_timing: bool = False) -> None:
        self.at_s = float("nan")

    def record(self) -> None:
        self.at_s = self.clock.device_s = max(self.clock.device_s, self.clock.host_s)

    def synchronize(self) -> None:
        self.clock.host_s = max(self.clock.host_s, self.at_s)

    def elapsed_time(self, later: Self) -> float:
        return (later.at_s - self.at_s) * 1e3


class Graph:
    """torch.cuda.CUDAGraph: the kernels enqueued between begin and end."""

    clock: Clock

    def __init__(self, keep_graph: bool = False) -> None:
        self.kernels, self.seconds = 0, float("nan")

    def capture_begin(self) -> None:
        assert self.clock.capturing is None
        self.clock.capturing = []

    def capture_end(self) -> None:
        kernels, self.clock.capturing = self.clock.capturing, None
        self.kernels, self.seconds = len(kernels or []), sum(kernels or [])

    def replay(self) -> None:
        self.clock.host_s += _REPLAY_S
        self.clock.device_s = max(self.clock.device_s, self.clock.host_s) + self.seconds


@dataclass
class Memory:
    """Bytes of the storages that are alive, and the most that ever were."""

    peak_bytes: int = 0
    _live: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)
    _held_bytes: int = 0

    def held(self) -> int:
        """Bytes that are alive now."""
        self._live = {key: held for key, held in self._live.items() if not held[0].expired()}
        self._held_bytes = sum(held[1] for held in self._live.values())
        return self._held_bytes

    def forget_peak(self) -> None:
        """The peak counts from now."""
        self.peak_bytes = self.held()

    def add(self, tensor: Tensor) -> None:
        """Count the storage of ``tensor`` once."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._live and not self._live[storage._cdata][0].expired():
            return
        self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._held_bytes += storage.nbytes()
        if self._held_bytes > self.peak_bytes:
            self.peak_bytes = max(self.peak_bytes, self.held())


@dataclass
class Cache:
    """Storages by when they were last touched, as many as fit; larger ones pass through."""

    _held: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _held_bytes: int = 0

    def seconds(self, tensor: Tensor, written: bool) -> float:
        """Time to move ``tensor``; what is ``written`` goes to the cache where it fits."""
        key, size = tensor.untyped_storage()._cdata, _bytes(tensor)
        fast = size <= max(self._held.get(key, 0), _CACHE_BYTES if written else 0)
        self._held_bytes -= self._held.pop(key, 0)
        if size <= _CACHE_BYTES:
            self._held[key] = size
            self._held_bytes += size
        while self._held_bytes > _CACHE_BYTES:
            self._held_bytes -= self._held.popitem(last=False)[1]
        return size / (_CACHED_BYTES_PER_S if fast else _BYTES_PER_S)


class VirtualGpu(TorchDispatchMode):
    """Charges each kernel on the clock and runs it on fake tensors."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.memory, self.cache, self.kernels = clock, Memory(), Cache(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func._schema.name.startswith("aten::"):
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name not in _WHOLE and func._can_decompose():
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if name == "_local_scalar_dense":
            self.clock.wait()
            return 0.0
        if name == "bincount":
            self.clock.wait()
            return torch.ones(args[2], dtype=torch.long, device=args[0].device)
        out = func(*args, **kwargs)
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self._charge(func, name, operands, results,
                     kwargs.get("non_blocking") is True or (len(args) > 2 and args[2] is True))  # fmt: skip
        return out

    def _charge(self, func: Any, name: str, operands: list[Tensor], results: list[Tensor], non_blocking: bool) -> None:
        on_device = [tensor for tensor in operands + results if tensor.is_cuda]
        for tensor in on_device:
            self.memory.add(tensor)
        if not on_device or _is_view(func) or name.startswith(_FREE):
            return
        if len(on_device) < len([tensor for tensor in operands + results if tensor.ndim]) and name == "copy_":
            self.clock.enqueue(KERNEL_S + _bytes(results[0]) / LINK_BYTES_PER_S)
            if not non_blocking:
                self.clock.wait()
            return
        self.kernels += 1
        moved_s = sum(self.cache.seconds(tensor, written) for tensor, written in _touched(name, operands, results))
        rate = _FLOPS_PER_S.get(operands[0].dtype if operands else torch.float32, _FLOPS_PER_S[torch.float32])
        self.clock.enqueue(KERNEL_S + max(moved_s, _flops(name, operands, results) / rate))


def _is_view(func: Any) -> bool:
    returned = [each.alias_info for each in func._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _bytes(tensor: Tensor) -> int:
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


def _touched(name: str, operands: list[Tensor], results: list[Tensor]) -> list[tuple[Tensor, bool]]:
    """Tensors that a kernel moves, each once, and whether it only writes them."""
    sparse = name in _SPARSE
    found = {id(tensor): (tensor, False) for tensor in operands[sparse:]}
    if not (sparse and name.endswith("_")):
        for tensor in results:
            found.setdefault(id(tensor), (tensor, True))
    return list(found.values())


def _flops(name: str, operands: list[Tensor], results: list[Tensor]) -> float:
    if name in ("mm", "bmm", "_scaled_mm", "_grouped_mm"):
        return 2.0 * results[0].numel() * operands[0].shape[-1]
    if name == "addmm":
        return 2.0 * results[0].numel() * operands[1].shape[-1]
    if name == "_flash_attention_forward":
        return 4.0 * operands[0].numel() * operands[1].shape[0] / (operands[4].numel() - 1)
    if name == "scaled_dot_product_attention":
        return 4.0 * operands[0].numel() * operands[1].shape[-2]
    return 0.0


class _Stream:
    def wait_stream(self, other: object) -> None:
        """One stream is all there is."""


def _allow_cuda_tensors() -> None:
    """In a build of torch without CUDA, give the device type ``cuda`` the guard of ``meta``, which does nothing.

    torch does the same for fake tensors in a build with CUDA on a machine without a GPU.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 16).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[_CUDA] = guards[_CUDA] or guards[_META]


def _no_backward(out: Tensor, inputs: list[Tensor], upstream: Tensor) -> None:
    """Backward passes are left out: autograd's engine looks for the streams of a real device."""
    assert out.shape == upstream.shape


def _no_backward_of(loss: Tensor) -> None:
    """The same for all weights at once: gradients stay as they are."""
    assert loss.requires_grad and not loss.ndim


def _same_tensor(tensor: Tensor) -> tuple[Any, tuple[Tensor]]:
    """A handle without another process: the tensor itself."""
    return (lambda whole: whole), (tensor,)


@contextlib.contextmanager
def _served_here(make: Any, arguments: tuple[Any, ...], limit_s: float) -> Iterator[Any]:
    """Answers from this process: another one would have no virtual GPU."""
    yield make(*arguments)


@contextlib.contextmanager
def virtual_gpu(capability: tuple[int, int] = (9, 0)) -> Iterator[VirtualGpu]:
    """Everything inside runs as on one GPU of ``capability``."""
    from bench import isolated, launches, operators, recording, run, timing

    clock, fake, host_generator = Clock(), FakeTensorMode(), torch.Generator
    gpu, memory = VirtualGpu(clock), {"total_memory": MEMORY_BYTES, "L2_cache_size": _CACHE_BYTES}
    properties = SimpleNamespace(name="Virtual GPU", multi_processor_count=132, **memory)
    cuda = {"is_available": lambda: True, "device_count": lambda: 1, "set_device": lambda device: None,
            "current_device": lambda: 0, "get_device_properties": lambda device: properties,
            "get_device_capability": lambda device: capability, "synchronize": lambda device=None: clock.wait(),
            "Stream": _Stream, "current_stream": _Stream, "stream": lambda stream: contextlib.nullcontext(),
            "Event": type("Event", (Event,), {"clock": clock}),
            "CUDAGraph": type("CUDAGraph", (Graph,), {"clock": clock}),
            "is_current_stream_capturing": lambda: clock.capturing is not None, "memory_reserved": lambda device: 0,
            "empty_cache": lambda: None, "ipc_collect": lambda: None,
            "memory_allocated": lambda device: gpu.memory.held(),
            "max_memory_allocated": lambda device: gpu.memory.peak_bytes,
            "max_memory_reserved": lambda device: gpu.memory.peak_bytes,
            "reset_peak_memory_stats": lambda device: gpu.memory.forget_peak()}  # fmt: skip
    simulated = SimpleNamespace(perf_counter=clock.now, monotonic=clock.now, sleep=clock.sleep)
    timing._side_stream.cache_clear()
    with contextlib.ExitStack() as stack:
        _allow_cuda_tensors()
        stack.enter_context(fake)
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", lambda *_: None))
        stack.enter_context(mock.patch.object(torch.autograd, "grad", _no_backward))
        stack.enter_context(mock.patch.object(torch.Tensor, "backward", _no_backward_of))
        stack.enter_context(mock.patch.multiple(torch.cuda, **cuda))
        stack.enter_context(mock.patch.object(torch, "Generator", lambda device=None: host_generator()))
        stack.enter_context(mock.patch.object(timing, "time", simulated))
        stack.enter_context(mock.patch.object(run, "time", simulated))
        stack.enter_context(mock.patch.object(recording, "time", simulated))
        stack.enter_context(mock.patch.object(timing, "_PASS_SECONDS", _PASS_S))
        stack.enter_context(mock.patch.object(launches, "graph_nodes", lambda graph: graph.kernels))
        stack.enter_context(mock.patch.object(isolated, "serving", _served_here))
        stack.enter_context(mock.patch.object(reductions, "reduce_tensor", _same_tensor))
        stack.enter_context(mock.patch.object(operators, "missing_for", lambda device: "a virtual GPU has no Triton"))
        stack.enter_context(mock.patch.object(torch.compiler, "reset", lambda: None))
        stack.enter_context(mock.patch.object(torch, "compile", lambda function, **_: function))
        stack.enter_context(gpu)
        yield gpu
    timing._side_stream.cache_clear()
