"""What a sizing holds: clusters of each device that train a model; the least, the sensible and the cheapest of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rlsim.results.answer import Answer, flat, frame_of
from rlsim.results.record import Interval, Record, Rounded, Rounded6

if TYPE_CHECKING:
    from pandas import DataFrame


class ClusterSize(Record):
    """A cluster in the layout that is fastest on it, synchronous and colocated.

    step_p90_s: what its step keeps to with 90 %. speedup: over half the GPUs; None of the first. layout: in words;
    changes: overrides of a scenario of ``rlsim new``. generation_share, training_share: of a GPU's memory in use.
    """

    gpus: int
    step_s: Interval
    step_p90_s: Rounded
    usd_per_step: Rounded
    speedup: Rounded6 | None
    layout: str
    changes: dict[str, int | str]
    generation_share: Rounded6
    training_share: Rounded6


class MemoryShare(Record):
    """Shares of a GPU that a colocated engine may and must take (engine.gpu_memory_utilization).

    safe: beside a trainer whose weights still lie there, as at a hand-over of weights. after_offload: beside what a
    trainer leaves when all it can offload is gone; an engine that takes its cache only then may have so much. least:
    what weights and one longest sequence need. headroom: left free beside all of it.
    """

    safe: Rounded6
    after_offload: Rounded6
    least: Rounded6
    headroom: Rounded6


class DeviceSize(Record):
    """A device. least: the fewest GPUs that fit, None where none do (``reason``). knee: the last doubling of GPUs
    that still shortens the step enough. chosen: within the deadline or the budget, else the knee; None where nothing
    keeps to them. memory_share: at ``chosen``.
    """

    device: str
    usd_per_gpu_hour: Rounded
    least: int | None
    knee: int | None
    chosen: int | None
    sizes: tuple[ClusterSize, ...]
    memory_share: MemoryShare | None
    reason: str = ""

    def at(self, gpus: int | None) -> ClusterSize | None:
        """The cluster of so many GPUs."""
        return next((one for one in self.sizes if one.gpus == gpus), None)


class Sizing(Answer):
    """Clusters for a model by device. best: the device to take; None where nothing keeps to what was asked.

    deadline_s: longest step; budget_usd: highest price of one.
    """

    schema_: Literal["rlsim.size/1"] = Field(default="rlsim.size/1", alias="schema")
    model: str
    batch: tuple[int, int]
    response_tokens: int
    max_sequence_tokens: int
    lora_rank: int | None
    deadline_s: Rounded | None
    budget_usd: Rounded | None
    devices: tuple[DeviceSize, ...]
    best: str | None
    assumptions: tuple[str, ...]

    def to_frame(self) -> DataFrame:
        """The clusters of every device as a pandas table."""
        return frame_of([{"device": one.device, **flat(size)} for one in self.devices for size in one.sizes])
