"""Memory of a GPU by what holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from rlsim.results.record import Record, Rounded, Rounded6
from rlsim.units import GIB


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of one GPU by what holds them; None what its pool does not have.

    runtime: buffers of communicators, of a trainer its CUDA context too. context: an engine's. slack: reserved by the
    allocator and not allocated. engine: what a sleeping engine leaves on a trainer's GPU.
    """

    weights: float
    runtime: float
    activations: float
    draft: float | None = None
    graphs: float | None = None
    kv_cache: float | None = None
    gradients: float | None = None
    optimizer: float | None = None
    logits: float | None = None
    critic: float | None = None
    state: float | None = None
    context: float | None = None
    slack: float | None = None
    engine: float | None = None

    def items(self) -> Iterator[tuple[str, float]]:
        """(name, bytes) of every part that the pool has; names as in projection.json."""
        # The name in files has a blank, which a field cannot have.
        names = ((f.name, "KV cache" if f.name == "kv_cache" else f.name) for f in fields(self))
        return ((shown, size) for name, shown in names if (size := getattr(self, name)) is not None)

    @property
    def listed(self) -> str:
        """Every part with its GiB, largest first: ``weights 61.0, activations 5.6 GiB``."""
        largest = sorted(self.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest if size >= 0.05 * GIB) + " GiB"

    @property
    def total(self) -> float:
        """Sum of the parts."""
        sizes = vars(self).values()  # in the order of the fields; asked for each layout of a search
        return float(sum(size for size in sizes if size is not None))


class MemoryUse(Record):
    """Bytes per GPU of one pool in its fullest phase, by what holds them, against what is there.

    fits: probability that it fits.
    """

    parts_bytes: dict[str, Rounded]
    total_bytes: Rounded
    available_bytes: Rounded
    fits: Rounded6 | None = None

    @classmethod
    def of(cls, parts: MemoryParts, available_bytes: float, fits: float) -> MemoryUse:
        """The use of memory in bytes of a GPU that holds ``parts``; fits: probability that it can."""
        held = dict(parts.items())
        return cls(parts_bytes=held, total_bytes=parts.total, available_bytes=available_bytes, fits=fits)
