"""What happened when: phases of a step, spans and curves of a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Generic, TypeVar

from rlsim.results.record import Rounded

PHASES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s", "exposed_generation_s")
"""Phase names of the contract. Synchronous steps add up data, prepare, generation, logprob and train."""

T = TypeVar("T")


@dataclass(frozen=True)
class StepPhases(Generic[T]):
    """The phases of a step, in seconds or as intervals of seconds; the names are those of the contract.

    Synchronous steps add up data, prepare, generation, log-prob and train; refit is part of prepare. Asynchronous ones
    add up exposed generation, data, log-prob, train and refit; generation is the pool's busy time.
    """

    data_s: T
    prepare_s: T
    generation_s: T
    logprob_s: T
    train_s: T
    refit_s: T
    exposed_generation_s: T

    def __getitem__(self, name: str) -> T:
        """The phase of a contract name, for loops over PHASES."""
        value: T = getattr(self, name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(PHASES)

    def items(self) -> Iterator[tuple[str, T]]:
        """(name, value) of every phase."""
        return ((name, self[name]) for name in PHASES)


@dataclass(frozen=True)
class TokenLedger:
    """Where response tokens went: generated = consumed + stale + discarded + regenerated + in_flight.

    consumed: trained on. stale: dropped before training for their age, in the queue or in flight. discarded: of groups
    that no step could use (dynamic sampling), and of what lost a race (tail batching). regenerated: lost to restarts
    and generated once more. in_flight: what unfinished samples and groups in the queue hold at the end, less what they
    held at the beginning.
    """

    generated: Rounded
    consumed: Rounded
    stale: Rounded
    discarded: Rounded
    regenerated: Rounded
    in_flight: Rounded

    def __add__(self, other: TokenLedger) -> TokenLedger:
        return TokenLedger(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: TokenLedger) -> TokenLedger:
        return TokenLedger(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def scaled(self, factor: float) -> TokenLedger:
        """Every entry times ``factor``."""
        return TokenLedger(*(factor * value for value in astuple(self)))


@dataclass(frozen=True)
class Span:
    """What one actor did when: ``actor`` is a lane of the timeline (trainer, replica 3...), times in seconds."""

    actor: str
    phase: str
    step: int
    start_s: float
    end_s: float
    detail: str = ""


@dataclass(frozen=True)
class Curve:
    """A counter over time for the timeline: ``values[i]`` holds from ``times_s[i]`` to the next time."""

    name: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]
