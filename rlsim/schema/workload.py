"""What is generated in one RL step: how many samples, how long, in which groups."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlsim.schema.agent import Agent
from rlsim.schema.base import Strict
from rlsim.schema.lengths import ConstantLength, Length, LognormalLength, QuantileLength, TraceLength

__all__ = ["ConstantLength", "Length", "LognormalLength", "QuantileLength", "TraceLength", "Workload"]


class Workload(Strict):
    """The rollout batch of one RL step."""

    prompts_per_step: int = Field(ge=1, le=10_000_000, description="Prompts in one step (prompt groups).")
    generations_per_prompt: int = Field(ge=1, le=100_000, description="Samples generated for each prompt (group size).")
    prompt_tokens: Length = Field(
        default=ConstantLength(tokens=107), description="Prompt length. Default: OpenMathInstruct-2 with its template."
    )
    response_tokens: Length = Field(
        description="Generated length per sample, without the prompt; with agent: of each turn."
    )
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
    agent: Agent | None = Field(
        default=None, description="Trajectories of several turns with an environment; default: single responses."
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
