"""Speculative decoding: who drafts, how many tokens, how many of them survive."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from rlsim.schema.acceptance import Drift, Sampling, Variation
from rlsim.schema.base import Strict
from rlsim.schema.drafter import DraftCard

Method = Literal["none", "eagle3", "mtp", "draft_model", "ngram", "suffix"]
Policy = Literal["fixed", "off_above", "by_batch", "per_request"]
LOOKUP_METHODS = ("ngram", "suffix")
"""Methods that look tokens up on the host and have no network."""
ACCEPTANCE_KEYS = ("acceptance_length", "position_acceptance", "first_acceptance")
"""Keys of which one states the acceptance."""
ACCEPTANCE_AT = "acceptance_at_draft_length"


class Speculation(Strict):
    """A chain of ``draft_length`` drafted tokens is verified in one pass over draft_length + 1 positions."""

    method: Method = Field(default="none", description="none, eagle3, mtp (native head), draft_model, ngram or suffix.")
    draft_length: int = Field(default=0, ge=0, le=32, description="k: tokens drafted before each verification.")
    acceptance_length: float | None = Field(
        default=None, ge=1, le=33, description="Mean tokens emitted per verification with the bonus token, 1 to k + 1."
    )
    position_acceptance: tuple[float, ...] | None = Field(
        default=None,
        description="Cumulative acceptance P_1..P_k: share of verifications in which position i was accepted.",
    )
    first_acceptance: float | None = Field(
        default=None, ge=0, le=1, description="Two-parameter form: conditional acceptance of the first position."
    )
    acceptance_at_draft_length: int | None = Field(
        default=None,
        ge=1,
        le=32,
        description="Draft length at which acceptance_length or position_acceptance was measured; another draft_length "
        "keeps the acceptance of each position, and further ones go on as acceptance_decay or the last two say. "
        "Default draft_length; an override of draft_length alone sets it.",
    )
    acceptance_decay: float = Field(
        default=0.97,
        gt=0,
        le=1,
        description="Two-parameter form: a_i = a_1 d^(i-1); also shapes acceptance_length. "
        "0.97-0.985 in domain, 0.91-0.94 off domain.",
    )
    draft: DraftCard | None = Field(
        default=None,
        description="Dimensions of the draft network; EAGLE-3 heads of known models and MTP heads are looked up.",
    )
    heterogeneous_vocabulary: bool = Field(
        default=False,
        description="draft_model: the engine translates between vocabularies of draft and model (arXiv:2502.05202); "
        "vLLM and others refuse a draft model with another vocabulary.",
    )
    draft_graph: bool = Field(
        default=True, description="Draft passes replay captured graphs; false launches every kernel from the host."
    )
    match_probability: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="n-gram and suffix: share of iterations in which the lookup proposes anything.",
    )
    lookup_s_per_1k_tokens: float = Field(
        default=3e-5,
        ge=0,
        le=1,
        description="n-gram and suffix: host time per sequence and 1,000 tokens of its context. Assumption.",
    )
    online_training: bool = Field(
        default=False, description="The draft head is trained in the policy's own pass and refitted with it."
    )
    online_interval_steps: int = Field(
        default=1, ge=1, le=100_000, description="Online training: steps from one update of the draft head to the next."
    )
    online_packing: bool = Field(
        default=False,
        description="Online training: the trainer still packs sequences. NeMo-RL's draft training cannot "
        "(arXiv:2604.26779): every sample is then padded.",
    )
    variation: Variation | None = Field(
        default=None, description="How acceptance differs between prompts, samples and places of a response."
    )
    sampling: Sampling | None = Field(
        default=None, description="Temperature and way of drafting, where they are not those of the stated acceptance."
    )
    drift: Drift | None = Field(default=None, description="How acceptance moves over the steps of a run.")
    policy: Policy = Field(
        default="fixed",
        description="Which draft length an iteration has. fixed: draft_length. off_above: none with more than "
        "off_above_sequences live. by_batch: the best of 0 to draft_length for the live batch. per_request: of every "
        "request, by its own acceptance and the live batch.",
    )
    off_above_sequences: int = Field(
        default=32, ge=0, le=1_000_000, description="off_above: most live sequences of a replica that draft (TLT: 32)."
    )

    @property
    def active(self) -> bool:
        """Whether anything is drafted at all."""
        return self.method != "none" and self.draft_length > 0

    @property
    def acceptance_draft_length(self) -> int:
        """Draft length that the stated acceptance speaks of."""
        return self.acceptance_at_draft_length or self.draft_length

    @property
    def trained_online(self) -> bool:
        """Whether the trainer also trains a draft network."""
        return self.active and self.online_training and self.method not in LOOKUP_METHODS

    @property
    def captured_lengths(self) -> int:
        """Draft lengths for which an engine captures graphs: 1, or as many as its policy may choose."""
        if not self.active or self.policy == "fixed":
            return 1
        return 2 if self.policy == "off_above" else self.draft_length + 1

    @model_validator(mode="after")
    def _acceptance(self) -> Speculation:
        given = [name for name in ACCEPTANCE_KEYS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"give one of acceptance_length, position_acceptance, first_acceptance; got {' and '.join(given)}"
            )
        if not self.active:
            return self
        k = self.acceptance_draft_length
        stated_at = "draft_length" if self.acceptance_at_draft_length is None else ACCEPTANCE_AT
        if not given:
            raise ValueError(
                "acceptance_length (or position_acceptance, or first_acceptance) is needed with draft_length > 0"
            )
        if self.acceptance_length is not None and self.acceptance_length > k + 1:
            raise ValueError(
                f"acceptance_length must lie between 1 and {stated_at} + 1 = {k + 1}; got {self.acceptance_length:g}"
            )
        if self.position_acceptance is not None:
            self._check_positions(k, stated_at)
        return self

    def _check_positions(self, k: int, stated_at: str) -> None:
        rates = self.position_acceptance or ()
        if len(rates) != k:
            raise ValueError(f"position_acceptance needs {stated_at} = {k} values; got {len(rates)}")
        if any(not 0 <= p <= 1 for p in rates) or any(b > a for a, b in pairwise(rates)):
            raise ValueError("position_acceptance must lie in 0..1 and must not increase (it is cumulative)")
