"""What is generated in one RL step: how many samples, how long, in which groups."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlsim.schema.base import Strict


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
        if len(self.quantiles) != len(self.tokens):
            raise ValueError(
                f"quantiles has {len(self.quantiles)} entries and tokens {len(self.tokens)}; they must agree"
            )
        if self.quantiles[0] != 0 or self.quantiles[-1] != 1:
            raise ValueError("quantiles must start at 0 and end at 1")
        if any(b <= a for a, b in zip(self.quantiles, self.quantiles[1:], strict=False)):
            raise ValueError("quantiles must increase strictly")
        if self.tokens[0] < 0 or any(b < a for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            raise ValueError("tokens must be non-negative and must not decrease")
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


class Workload(Strict):
    """The rollout batch of one RL step."""

    prompts_per_step: int = Field(ge=1, le=10_000_000, description="Prompts in one step (prompt groups).")
    generations_per_prompt: int = Field(ge=1, le=100_000, description="Samples generated for each prompt (group size).")
    prompt_tokens: Length = Field(
        default=ConstantLength(tokens=107), description="Prompt length. Default: OpenMathInstruct-2 with its template."
    )
    response_tokens: Length = Field(description="Generated length per sample, without the prompt.")
    max_sequence_tokens: int = Field(
        ge=2, le=10_000_000, description="Cap on prompt plus response; longer responses are truncated here."
    )
    group_correlation: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="Share of the variance of log length common to the samples of a prompt. Unpublished; assumed.",
    )
    generated_batch_factor: float = Field(
        default=1.0,
        ge=1,
        le=100,
        description="Prompts generated per prompt trained on (dynamic sampling as in DAPO throws groups away).",
    )
    usable_group_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of prompt groups whose samples differ in reward. Below 1 a step repeats its rollout with "
        "new prompts until prompts_per_step groups are usable (dynamic sampling as in DAPO; synchronous loops).",
    )
    max_rollouts_per_step: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="Rollouts after which dynamic sampling gives up (NeMo-RL: grpo.dynamic_sampling_max_gen_batches).",
    )
    environment_s: float = Field(
        default=0.0, ge=0, le=1e6, description="Time from the last token of a sample to its reward, in seconds."
    )

    @property
    def samples_per_step(self) -> int:
        """Samples trained on in one step."""
        return self.prompts_per_step * self.generations_per_prompt

    @model_validator(mode="after")
    def _bounds(self) -> Workload:
        if self.samples_per_step * self.generated_batch_factor > 20_000_000:
            raise ValueError("prompts_per_step x generations_per_prompt must not exceed 20,000,000 samples")
        most = self.usable_group_share * self.generated_batch_factor * self.max_rollouts_per_step
        if most < 1:
            raise ValueError(
                f"usable_group_share x generated_batch_factor x max_rollouts_per_step ({most:.3g}) must be at least 1: "
                "fewer prompt groups would be usable than prompts_per_step"
            )
        if isinstance(self.prompt_tokens, ConstantLength) and self.prompt_tokens.tokens >= self.max_sequence_tokens:
            raise ValueError(
                f"prompt_tokens ({self.prompt_tokens.tokens}) must be below "
                f"max_sequence_tokens ({self.max_sequence_tokens})"
            )
        return self
