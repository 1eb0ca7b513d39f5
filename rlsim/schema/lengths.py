"""Length distributions of prompts, responses and observations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlsim.schema.base import Strict


def check_inverse(quantiles: Sequence[float], values: Sequence[float], name: str) -> None:
    """Raise ValueError where points are no inverse distribution function of something that is not negative."""
    if len(quantiles) != len(values):
        raise ValueError(f"quantiles has {len(quantiles)} entries and {name} {len(values)}; they must agree")
    if quantiles[0] != 0 or quantiles[-1] != 1:
        raise ValueError("quantiles must start at 0 and end at 1")
    if any(b <= a for a, b in pairwise(quantiles)):
        raise ValueError("quantiles must increase strictly")
    if values[0] < 0 or any(b < a for a, b in pairwise(values)):
        raise ValueError(f"{name} must be non-negative and must not decrease")


class ConstantLength(Strict):
    """Every length is the same."""

    kind: Literal["constant"] = "constant"
    tokens: int = Field(ge=1, le=10_000_000, description="Length of every sample in tokens.")


class LognormalLength(Strict):
    """Lognormal lengths, truncated at the cap with a point mass there.

    The location is solved so that the mean *after* truncation is ``mean_tokens``, as published means are.
    """

    kind: Literal["lognormal"] = "lognormal"
    mean_tokens: float = Field(ge=1, le=1e7, description="Mean length after truncation at the cap, in tokens.")
    log_sigma: float = Field(
        default=0.6, ge=0, le=3, description="Standard deviation of the logarithm of the untruncated length."
    )


class QuantileLength(Strict):
    """Empirical inverse distribution function, linear between its points."""

    kind: Literal["quantiles"] = "quantiles"
    quantiles: tuple[float, ...] = Field(min_length=2, description="Increasing, from 0 to 1.")
    tokens: tuple[float, ...] = Field(min_length=2, description="Length in tokens at each quantile, non-decreasing.")
    mean_tokens: float | None = Field(
        default=None,
        ge=1,
        le=1e7,
        description="Where given, all lengths are scaled so that the mean after truncation is this.",
    )

    @model_validator(mode="after")
    def _shape(self) -> QuantileLength:
        check_inverse(self.quantiles, self.tokens, "tokens")
        return self


class TraceLength(Strict):
    """Lengths drawn with replacement from a file of served requests."""

    kind: Literal["trace"] = "trace"
    path: str = Field(
        min_length=1,
        description="JSONL or CSV file; formats: Mooncake JSONL, Azure CSV, or one column of output tokens.",
    )
    column: str | None = Field(default=None, description="Column or key with output tokens; guessed for known formats.")
    mean_tokens: float | None = Field(
        default=None,
        ge=1,
        le=1e7,
        description="Where given, all lengths are scaled so that the mean after truncation is this.",
    )


Length = Annotated[ConstantLength | LognormalLength | QuantileLength | TraceLength, Field(discriminator="kind")]
