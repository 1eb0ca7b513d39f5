"""A stack measured whole: engine iterations, micro-batches and hand-over of one engine and trainer on one device.

A module of its own: cost models of engine and trainer take it, and calibration makes it.
"""

from collections.abc import Iterator, Sequence

from pydantic import Field

from rlsim.schema.base import Name, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Strict
from rlsim.schema.speculation import Method

IterationPoint = tuple[Method, NonNegativeInt, PositiveInt, NonNegativeFloat, PositiveFloat]
"""Method, drafted tokens, decoding sequences, mean context in tokens, seconds."""
PrefillPoint = tuple[PositiveInt, PositiveFloat]
"""Prompt tokens of an iteration that prefills and decodes nothing, seconds."""
PassPoint = tuple[PositiveInt, PositiveInt, PositiveFloat]
"""Samples of a micro-batch, tokens of each with their padding, seconds."""


class MeasuredStack(Strict):
    """Takes the place of operators, host terms, fitted terms and groups: times as the stack itself showed them."""

    name: Name
    """Name of the stack."""
    source: Name
    """Machine, software and date of the measurements."""
    model: Name
    """Model card that was run; a scenario of another model cannot use them."""
    iterations: tuple[IterationPoint, ...] = Field(min_length=1, max_length=20_000)
    """Engine iterations: method (none without drafts), drafted tokens, decoding sequences, mean context in tokens,
    seconds. Every draft length has all sizes and contexts; lengths in between are interpolated."""
    prefill: tuple[PrefillPoint, ...] = Field(min_length=1, max_length=2000)
    """Iterations that prefill alone: prompt tokens, seconds."""
    logprob: tuple[PassPoint, ...] = Field(min_length=1, max_length=2000)
    """Log-prob passes over a micro-batch: samples, tokens of each, seconds."""
    update: tuple[PassPoint, ...] = Field(min_length=1, max_length=2000)
    """Forward and backward passes over a micro-batch: samples, tokens of each, seconds."""
    optimizer_s: NonNegativeFloat
    """Seconds of an optimizer step."""
    hand_over_s: NonNegativeFloat
    """Seconds of a hand-over of the weights to the engine."""
    error: float = Field(ge=0, le=2)
    """Standard deviation of ln(step / prediction) on this machine."""

    def __hash__(self) -> int:
        """Equal stacks have equal points."""
        return hash((self.name, self.source, self.iterations, self.update))

    def _problems(self) -> Iterator[str]:
        grids: dict[tuple[str, int], list[tuple[float, ...]]] = {}
        for method, drafted, sequences, context, _ in self.iterations:
            if (method == "none") != (drafted == 0):
                yield f"iterations: method {method} cannot have {drafted} drafted tokens"
            grids.setdefault((method, drafted), []).append((sequences, context))
        for (name, drafted), points in grids.items():
            _check_grid(points, f"iterations: {name} {drafted}", "number of sequences at every context")
        for key in ("logprob", "update"):
            _check_grid([point[:2] for point in getattr(self, key)], key, "number of samples at every length")


def _check_grid(points: Sequence[tuple[float, ...]], name: str, each: str) -> None:
    first, second = ({point[place] for point in points} for place in (0, 1))
    if len(points) != len(set(points)) or len(points) != len(first) * len(second):
        raise ValueError(f"{name} needs every {each} once")
