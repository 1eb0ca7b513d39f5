"""What a whole run meets besides its steps: growing lengths, validation, checkpoints, failures. Off by default; and
the CPU nodes that it has beside its cluster."""

import math
from collections.abc import Iterator
from itertools import pairwise

from pydantic import Field

from rlsim.schema.base import Strict

Points = tuple[tuple[int, float], ...]
"""(step, value): linear in between, constant outside. Steps count from 0, those trained before."""


class Validation(Strict):
    """Validation between training steps, while the trainer waits."""

    every_steps: int = Field(ge=1, le=10_000_000)
    """Validate after every n-th step."""
    seconds: float | None = Field(None, ge=0, le=1e7)
    """Time of one validation, as measured."""
    samples: int | None = Field(None, ge=1, le=10_000_000)
    """Or: samples that it generates, with the lengths and the acceptance of its step, all submitted at once to the
    generating GPUs."""

    def _problems(self) -> Iterator[str]:
        if (self.seconds is None) == (self.samples is None):
            yield "validation needs either seconds or samples"


class Checkpoint(Strict):
    """The trainer's state on storage: what a run goes back to."""

    every_steps: int = Field(ge=1, le=10_000_000)
    """Write one after every n-th step."""
    seconds: float | None = Field(None, ge=0, le=1e6)
    """Time to write one, as measured."""
    bytes_per_s: float | None = Field(None, gt=0, le=1e15)
    """Or: rate of the storage for the whole state, which is BF16 weights and the optimizer's bytes."""
    blocking_share: float = Field(1.0, ge=0, le=1)
    """Share of the writing for which training stops; the rest goes on beside the next steps (asynchronous checkpoints),
    and the next checkpoint waits for its end."""

    def _problems(self) -> Iterator[str]:
        if (self.seconds is None) == (self.bytes_per_s is None):
            yield "checkpoint needs either seconds or bytes_per_s"


class Faults(Strict):
    """Failures of GPUs and of all that each of them needs, independent and at a constant rate."""

    gpu_hours_between: float = Field(gt=0, le=1e12)
    """Mean GPU hours between failures. Llama 3: 419 in 54 days of 16,384 H100, one in 50,700 (arXiv:2407.21783)."""
    restart_s: float = Field(600.0, ge=0, le=1e6)
    """From a failure of a training GPU until all train again from the last checkpoint. Assumption; more than 90 %
    effective time with 466 interruptions (arXiv:2407.21783) leaves 1,000 s with what is done again."""
    replica_restart_s: float = Field(180.0, ge=0, le=1e6)
    """From a failure of a generating GPU until its replica serves again; the others go on. Assumption."""
    keep_tokens: bool = False
    """A lost replica's requests keep their tokens and are prefilled again; false: they start anew."""


class Stalls(Strict):
    """Weight publications that hang until a timeout or a retry."""

    probability: float = Field(ge=0, le=1)
    """Of a stall in a step."""
    seconds: float = Field(ge=0, le=1e6)
    """That a stall adds."""


class SlowNodes(Strict):
    """Nodes that are slower for a while: clocks, a bad link, a neighbour."""

    share: float = Field(ge=0, le=1)
    """Share of the time in which a node is slow; drawn for every step."""
    factor: float = Field(ge=1, le=100)
    """Factor on the time of whatever runs on a slow node."""


class RunConditions(Strict):
    """What a run meets. Whatever is not given does not happen."""

    response_growth: Points = Field((), max_length=10_000)
    """Points [step, factor]: scale of the response lengths, before they are cut at the cap, over the steps trained
    before; linear in between, constant outside."""
    turns_growth: Points = Field((), max_length=10_000)
    """Points [step, factor]: scale of the turns of agents, before they are cut at max_turns, in the same way."""
    validation: Validation | None = None
    """Validation every n steps."""
    checkpoint: Checkpoint | None = None
    """Checkpoints every n steps."""
    faults: Faults | None = None
    """Failures; they need checkpoints."""
    stalls: Stalls | None = None
    """Stalls of the weight publication."""
    slow_nodes: SlowNodes | None = None
    """Slow nodes."""

    def _problems(self) -> Iterator[str]:
        for key in ("response_growth", "turns_growth"):
            steps = [step for step, _ in getattr(self, key)]
            if any(step < 0 for step in steps) or any(b <= a for a, b in pairwise(steps)):
                yield f"{key} needs steps from 0 on that increase strictly"
            if any(not 0.001 <= factor <= 1000 for _, factor in getattr(self, key)):
                yield f"{key} needs factors in 0.001..1000"
        if self.faults is not None and self.checkpoint is None:
            yield "faults need run.checkpoint: without one the first failure would undo the whole run"


class Nodes(Strict):
    """CPU nodes beside the cluster that hold the sandboxes of trajectories, each from its start to its last turn."""

    count: int = Field(ge=1, le=1_000_000)
    """CPU nodes."""
    places: int | None = Field(None, ge=1, le=100_000)
    """Sandboxes that a node holds at once. Default: what its cores and its memory hold."""
    cores: float | None = Field(None, gt=0, le=100_000)
    """CPU cores of a node, in place of places."""
    memory_bytes: float | None = Field(None, gt=0, le=1e15)
    """Memory of a node, in place of places."""
    sandbox_cores: float | None = Field(None, gt=0, le=100_000)
    """Cores that a sandbox reserves; less than one where they share."""
    sandbox_memory_bytes: float | None = Field(None, gt=0, le=1e15)
    """Memory that a sandbox reserves."""
    price_per_hour_usd: float = Field(0.0, ge=0, le=1e6)
    """Price of a node for an hour; in the USD of a step, for as long as it lasts. Default: nobody pays for them."""

    @property
    def sandboxes_each(self) -> int:
        """Sandboxes that a node holds at once."""
        reserved = ((self.cores, self.sandbox_cores), (self.memory_bytes, self.sandbox_memory_bytes))
        # A share of a sandbox is none; the tolerance is for quotients such as 6.4 / 0.1, which binary numbers miss.
        held = (math.floor(has / takes * (1 + 1e-9)) for has, takes in reserved if has and takes)
        return self.places or min(held, default=0)

    @property
    def sandboxes(self) -> int:
        """Sandboxes on all nodes."""
        return self.count * self.sandboxes_each

    @property
    def hourly_usd(self) -> float:
        """Price of all nodes for an hour."""
        return self.count * self.price_per_hour_usd

    def _problems(self) -> Iterator[str]:
        for name in ("cores", "memory_bytes"):
            if (getattr(self, name) is None) != (getattr(self, f"sandbox_{name}") is None):
                yield f"{name} and sandbox_{name} need each other"
                return
        if (self.places is None) == (self.cores is None and self.memory_bytes is None):
            yield "give places, or cores or memory_bytes, by which they follow"
        elif not 1 <= self.sandboxes_each <= 100_000:
            yield f"a node holds {self.sandboxes_each:,} sandboxes by its cores and memory; 1 to 100,000 are needed"
