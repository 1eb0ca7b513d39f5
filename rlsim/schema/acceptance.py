"""How acceptance varies: between samples, along a response, over training steps, and with the way of sampling.

All of these move the logit of the conditional acceptances a_i = P_i / P_(i-1), alike for every position. A common move
already costs later positions more of their cumulative rate: -0.2 takes 1.0, 2.6 and 4.7 % of P_1..P_3 = 0.956, 0.883,
0.795, where a frozen MTP head lost 1.2, 2.6 and 3.5 % (Bebop, figure 2).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from rlsim.schema.base import Strict

MAX_KNOTS = 1000
MAX_LOGIT = 10.0
"""Largest stated move of a logit; 0.5 becomes 0.99995."""


class Variation(Strict):
    """Acceptance that differs between samples and along a response.

    The stated acceptance stays the mean over verifications, as engines log it: all tokens over all verifications. Hard
    samples take more verifications and weigh more in it than in a mean over samples.
    """

    prompt_spread: float = Field(
        default=0.0,
        ge=0,
        le=5,
        description="Standard deviation of the logit of acceptance between prompts. Means of 11 domains of "
        "one drafter have 0.55 (MiniMax-M3 EAGLE-3.1, 2.01 to 3.32 tokens at k=3, vLLM blog of 2026-07-13).",
    )
    sample_spread: float = Field(
        default=0.0, ge=0, le=5, description="The same between the samples of a prompt. Not measured."
    )
    trend_per_1k_tokens: float = Field(
        default=0.0,
        ge=-5,
        le=5,
        description="Move of the logit per 1,000 tokens of a response; -0.002 per 1,000 tokens of input with "
        "EAGLE-3.1 (2.69 tokens at 1K, 2.65 at 32K).",
    )


class Sampling(Strict):
    """How tokens are sampled and drafted, and under which of both the acceptance was stated."""

    temperature: float = Field(default=1.0, ge=0, le=5, description="Of the rollout.")
    stated_temperature: float = Field(default=1.0, ge=0, le=5, description="At which the acceptance was measured.")
    draft: Literal["probabilistic", "greedy"] = Field(
        default="probabilistic",
        description="probabilistic: rejection sampling against the drafter's distribution, accepts 1 - TV(p, q). "
        "greedy: the drafter's likeliest token, accepted with its probability under the target.",
    )
    stated_draft: Literal["probabilistic", "greedy"] = Field(
        default="probabilistic", description="With which the acceptance was measured."
    )
    temperature_logit: float = Field(
        default=-0.18,
        ge=-5,
        le=5,
        description="Move of the logit per unit of temperature: mean of four models (-0.05 to -0.29; EAGLE-3, table 1, "
        "T=0 against T=1, acceptance lengths taken as 1 / (1 - a)).",
    )
    greedy_logit: float = Field(
        default=-0.55,
        ge=-5,
        le=5,
        description="Move of the logit by greedy drafts at temperature 1, in proportion to it below and above: 1.15 "
        "times fewer tokens at k=3, the middle of 1.0 to 1.3 (Bebop); -2.6 on random tokens (vLLM PR 41044).",
    )


class Drift(Strict):
    """Acceptance over the steps of a run; that of step 0 is the stated one.

    A frozen draft and the policy move apart, or towards each other; the policy's entropy moves with them; and online
    training takes back what was lost. All three add up in the logit of acceptance.
    """

    steps: tuple[float, ...] = Field(default=(), description="Training steps at which logit_shift is given, rising.")
    logit_shift: tuple[float, ...] = Field(
        default=(),
        description="Move of the logit at these steps, linear in between and level beyond; positive towards the draft. "
        "python -m research.acceptance fits it to a measured curve.",
    )
    entropy_change_nats: tuple[float, ...] = Field(
        default=(), description="Entropy of the policy at these steps less that of step 0, in nats per token."
    )
    entropy_slope: float = Field(
        default=-1.68,
        ge=-100,
        le=100,
        description="Tokens of acceptance length per nat: -1.68, or -0.06 of a drafter trained on total variation "
        "(Bebop, section 5.1).",
    )
    mismatch_per_100_steps: float = Field(
        default=0.0,
        ge=-100,
        le=100,
        description="Logit that a draft loses in 100 steps of the policy: 0.06 of an MTP head frozen over 350 steps "
        "(Bebop, figure 2); negative where the policy comes towards it.",
    )
    initial_deficit: float = Field(
        default=0.0,
        ge=0,
        le=MAX_LOGIT,
        description="Logit by which the initial draft lies below one trained in domain, which online training takes "
        "back: 0.5 and 0.7 of UltraChat heads beside DAPO ones (2.40 and 2.77, 2.88 and 3.32 tokens at k=3, "
        "arXiv:2604.26779), of which a run with online training took back 0.2.",
    )
    online_recovery: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of all that was lost which one update of the draft takes back (speculation.online_training, "
        "every online_interval_steps). Assumption.",
    )

    @model_validator(mode="after")
    def _curves(self) -> Drift:
        if len(self.steps) > MAX_KNOTS:
            raise ValueError(f"steps holds {len(self.steps):,} values; at most {MAX_KNOTS:,} are taken")
        for name in ("logit_shift", "entropy_change_nats"):
            values = getattr(self, name)
            if values and len(values) != len(self.steps):
                raise ValueError(f"{name} needs one value for each of the {len(self.steps)} steps; got {len(values)}")
            if any(abs(value) > MAX_LOGIT for value in values):
                raise ValueError(f"{name} must lie between {-MAX_LOGIT:g} and {MAX_LOGIT:g}")
        if self.steps and not (self.logit_shift or self.entropy_change_nats):
            raise ValueError("steps needs logit_shift or entropy_change_nats")
        if any(step < 0 for step in self.steps) or any(b <= a for a, b in pairwise(self.steps)):
            raise ValueError("steps must not be negative and must rise")
        return self
