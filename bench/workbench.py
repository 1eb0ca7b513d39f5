"""What the operators of one run share: device, cache size, the usable attention kernels, weights that are kept
between cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.attention import usable_kernels
from bench.cases import CPU_CACHE_BYTES, ModelDims
from bench.measurements import Facts
from bench.speculation import DraftHead, Target, random_draft_head, random_target
from bench.timing import Call, Mode, StopRule, measure

_COLD_FACTOR = 2
_MOST_COPIES = 64
_CHOICE = StopRule(min_repeats=3, max_repeats=5, max_seconds=0.02)


class UnsupportedError(Exception):
    """The device or this torch cannot run a case; the text says why. Recorded, not raised to the user."""


@dataclass(frozen=True)
class Prepared:
    """Calls to time (equal work on different buffers), how to time them, and facts measured on the way.

    long: a call takes so long that each is timed alone, by the host's clock between two waits for the device.
    """

    calls: Sequence[Call]
    mode: Mode = "graph"
    facts: Facts = field(default_factory=Facts)
    host_only: bool = False
    long: bool = False


@dataclass
class Workbench:
    """State of one run on one device; everything here is a cache and can be rebuilt."""

    device: torch.device
    models: Mapping[str, ModelDims] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def cache_bytes(self) -> int:
        """Last-level cache of the device."""
        if self.device.type != "cuda":
            return CPU_CACHE_BYTES
        return int(getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 0)) or 64 * 2**20

    def random(self, *shape: int) -> Tensor:
        """Gaussian tensor of the working type."""
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def copies(self, set_bytes: float) -> int:
        """How many sets of buffers of ``set_bytes`` make a pass that finds each of them out of the cache."""
        return max(1, min(_MOST_COPIES, -(-_COLD_FACTOR * self.cache_bytes // max(1, int(set_bytes)))))

    def keep(self, slot: str, key: str, make: Callable[[], Any]) -> Any:
        """The object of ``slot`` where its key is the same, else a new one in its place (the old is freed first)."""
        held = self.memory.get(slot)
        if held is None or held[0] != key:
            self.memory.pop(slot, None)
            del held
            self.memory[slot] = (key, make())
        return self.memory[slot][1]

    def model(self, name: str, layers: int) -> tuple[Target, DraftHead]:
        """Random target with ``layers`` layers and its draft head."""

        def make() -> tuple[Target, DraftHead]:
            dims = self.models[name].with_layers(layers)
            return random_target(dims, self.device, self.dtype), random_draft_head(dims, self.device, self.dtype)

        made: tuple[Target, DraftHead] = self.keep("model", f"{name}/{layers}", make)
        return made

    def kernels(self, dims: ModelDims) -> list[str]:
        """Attention kernels that are right on this device for these heads."""
        key = f"kernels {dims.heads}/{dims.kv_heads}/{dims.head_dim}"
        if key not in self.memory:
            self.memory[key] = usable_kernels(self.device, self.dtype, dims.heads, dims.kv_heads, dims.head_dim)
        found: list[str] = self.memory[key]
        if not found:
            raise UnsupportedError(
                f"no attention kernel works for {dims.heads} heads of {dims.head_dim} on this device"
            )
        return found

    def fastest(self, dims: ModelDims, shape: tuple[int, int, int], make: Callable[[str], Call]) -> str:
        """Fastest usable kernel for ``shape`` (batch, queries, context); ``make`` builds the attention call of a
        kernel.
        """
        names = self.kernels(dims)
        if len(names) == 1:
            return names[0]
        key = f"fastest {dims.heads}/{dims.kv_heads}/{dims.head_dim} {shape}"
        if key not in self.memory:
            seconds = {name: measure([make(name)], self.device, "graph", _CHOICE).seconds_median for name in names}
            self.memory[key] = min(seconds, key=lambda name: seconds[name])
        return str(self.memory[key])
