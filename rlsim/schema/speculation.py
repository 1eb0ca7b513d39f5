"""Speculative decoding: who drafts, how many tokens, how many of them survive."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from pydantic import Field, field_validator

from rlsim.schema.base import Precision, Strict
from rlsim.schema.drafter import DraftCard
from rlsim.schema.model import ModelCard

MAX_KNOTS = 1000
MAX_LOGIT = 10.0
"""Largest stated move of a logit; 0.5 becomes 0.99995."""


class Variation(Strict):
    """Acceptance that differs between samples and along a response.

    The stated acceptance stays the mean over verifications, as engines log it: all tokens over all verifications. Hard
    samples take more verifications and weigh more in it than in a mean over samples.
    """

    prompt_spread: float = Field(0.0, ge=0, le=5)
    """Standard deviation of the logit of acceptance between prompts. Means of 11 domains of one drafter have 0.55
    (MiniMax-M3 EAGLE-3.1, 2.01 to 3.32 tokens at k=3, vLLM blog of 2026-07-13)."""
    sample_spread: float = Field(0.0, ge=0, le=5)
    """The same between the samples of a prompt. Not measured."""
    trend_per_1k_tokens: float = Field(0.0, ge=-5, le=5)
    """Move of the logit per 1,000 tokens of a response; -0.002 per 1,000 tokens of input with EAGLE-3.1 (2.69 tokens at
    1K, 2.65 at 32K)."""
    group_gain: float = Field(0.0, ge=0, le=32)
    """suffix: tokens of acceptance length that other samples of the prompt, once they are done, add to the stated one:
    with n of them n / (n + group_half_samples) of it (Seer's grouped drafts, SuffixDecoding)."""
    group_half_samples: float = Field(2.0, gt=0, le=1000)
    """Samples done that bring half of group_gain. Assumption."""


class Sampling(Strict):
    """How tokens are sampled and drafted, and under which of both the acceptance was stated."""

    temperature: float = Field(1.0, ge=0, le=5)
    """Of the rollout."""
    stated_temperature: float = Field(1.0, ge=0, le=5)
    """At which the acceptance was measured."""
    draft: Literal["probabilistic", "greedy"] = "probabilistic"
    """probabilistic: rejection sampling against the drafter's distribution, accepts 1 - TV(p, q). greedy: the drafter's
    likeliest token, accepted with its probability under the target."""
    stated_draft: Literal["probabilistic", "greedy"] = "probabilistic"
    """With which the acceptance was measured."""
    temperature_logit: float = Field(-0.18, ge=-5, le=5)
    """Move of the logit per unit of temperature: mean of four models (-0.05 to -0.29; EAGLE-3, table 1, T=0 against
    T=1, acceptance lengths taken as 1 / (1 - a))."""
    greedy_logit: float = Field(-0.55, ge=-5, le=5)
    """Move of the logit by greedy drafts at temperature 1, in proportion to it below and above: 1.15 times fewer tokens
    at k=3, the middle of 1.0 to 1.3 (Bebop); -2.6 on random tokens (vLLM PR 41044)."""


class Drift(Strict):
    """Acceptance over the steps of a run; that of step 0 is the stated one.

    A frozen draft and the policy move apart, or towards each other; the policy's entropy moves with them; and online
    training takes back what was lost. All three add up in the logit of acceptance.
    """

    steps: tuple[float, ...] = ()
    """Training steps at which logit_shift is given, rising."""
    logit_shift: tuple[float, ...] = ()
    """Move of the logit at these steps, linear in between and level beyond; positive towards the draft. python -m
    research.acceptance fits it to a measured curve."""
    entropy_change_nats: tuple[float, ...] = ()
    """Entropy of the policy at these steps less that of step 0, in nats per token."""
    entropy_slope: float = Field(-1.68, ge=-100, le=100)
    """Tokens of acceptance length per nat: -1.68, or -0.06 of a drafter trained on total variation (Bebop, section
    5.1)."""
    mismatch_per_100_steps: float = Field(0.0, ge=-100, le=100)
    """Logit that a draft loses in 100 steps of the policy: 0.06 of an MTP head frozen over 350 steps (Bebop, figure 2);
    negative where the policy comes towards it."""
    initial_deficit: float = Field(0.0, ge=0, le=MAX_LOGIT)
    """Logit by which the initial draft lies below one trained in domain, which online training takes back: 0.5 and 0.7
    of UltraChat heads beside DAPO ones (2.40 and 2.77, 2.88 and 3.32 tokens at k=3, arXiv:2604.26779), of which a run
    with online training took back 0.2."""
    online_recovery: float = Field(0.5, ge=0, le=1)
    """Share of all that was lost which one update of the draft takes back (speculation.online_training, every
    online_interval_steps). Assumption."""

    def _problems(self) -> Iterator[str]:
        if len(self.steps) > MAX_KNOTS:
            yield f"steps holds {len(self.steps):,} values; at most {MAX_KNOTS:,} are taken"
        for name in ("logit_shift", "entropy_change_nats"):
            values = getattr(self, name)
            if values and len(values) != len(self.steps):
                yield f"{name} needs one value for each of the {len(self.steps)} steps; got {len(values)}"
            if any(abs(value) > MAX_LOGIT for value in values):
                yield f"{name} must lie between {-MAX_LOGIT:g} and {MAX_LOGIT:g}"
        if self.steps and not (self.logit_shift or self.entropy_change_nats):
            yield "steps needs logit_shift or entropy_change_nats"
        if any(step < 0 for step in self.steps) or any(b <= a for a, b in pairwise(self.steps)):
            yield "steps must not be negative and must rise"


Method = Literal["none", "eagle3", "mtp", "draft_model", "dflash", "dspark", "ngram", "suffix"]
DraftGraph = Literal["none", "piecewise", "full", "one"]
Policy = Literal["fixed", "off_above", "by_batch", "per_request", "by_schedule", "adaptive", "budget"]
LOOKUP_METHODS = ("ngram", "suffix")
"""Methods that look tokens up on the host and have no network."""
BLOCK_METHODS = ("dflash", "dspark")
"""Methods that draft a block in one pass, over keys and values that they make of the target's hidden states."""
HEAD_METHODS, HEAD_CONTEXT_TOKENS = ("eagle3", "dflash", "dspark"), 4096
"""Methods whose drafters are trained apart from the model, on sequences of so many tokens."""
ACCEPTANCE_KEYS = ("acceptance_length", "position_acceptance", "first_acceptance")
"""Keys of which one states the acceptance."""
ACCEPTANCE_AT = "acceptance_at_draft_length"


class Speculation(Strict):
    """A chain of ``draft_length`` drafted tokens, or a tree so deep, is verified in one pass."""

    method: Method = "none"
    """none, eagle3, mtp (native head), draft_model, dflash, dspark, ngram or suffix."""
    parallel_drafting: bool = False
    """eagle3, draft_model: all tokens are drafted in one pass (vLLM's key: P-EAGLE, PARD). dflash and dspark always do.
    """
    draft_length: int = Field(0, ge=0, le=32)
    """k: tokens drafted before each verification."""
    acceptance_length: float | None = Field(None, ge=1, le=33)
    """Mean tokens emitted per verification with the bonus token, 1 to k + 1."""
    position_acceptance: tuple[float, ...] | None = None
    """Cumulative acceptance P_1..P_k: share of verifications in which position i was accepted."""
    first_acceptance: float | None = Field(None, ge=0, le=1)
    """Two-parameter form: conditional acceptance of the first position."""
    acceptance_at_draft_length: int | None = Field(None, ge=1, le=32)
    """Draft length at which acceptance_length or position_acceptance was measured; another draft_length keeps the
    acceptance of each position, and further ones go on as acceptance_decay or the last two say. Default draft_length;
    an override of draft_length alone sets it."""
    acceptance_decay: float = Field(0.97, gt=0, le=1)
    """Two-parameter form: a_i = a_1 d^(i-1); also shapes acceptance_length. 0.97-0.985 in domain, 0.91-0.94 off domain.
    """
    tree_width: int = Field(1, ge=1, le=64)
    """Tree drafts: tokens of a sequence that each draft pass after the first goes on from (SGLang's
    speculative_eagle_topk). 1: a chain."""
    verified_positions: int | None = Field(None, ge=2, le=1024)
    """Tree drafts: positions of a verification (SGLang's speculative_num_draft_tokens), of which one path is accepted;
    the stated acceptance is the tree's. Default draft_length + 1, a chain."""
    draft: DraftCard | None = None
    """Dimensions of the draft network; EAGLE-3 heads of known models and MTP heads are looked up."""
    draft_tensor_parallel: int | None = Field(None, ge=1, le=1024)
    """GPUs that share the drafter; null: all of the engine as far as its heads allow. vLLM has 1 or all, and with 1
    every GPU computes the whole."""
    draft_precision: Precision | None = None
    """Weights of the drafter; null: bf16 as published heads have them, of an MTP layer as the model's own."""
    trained_context_tokens: int | None = Field(None, ge=1, le=100_000_000)
    """Longest context that the drafter was trained on, or that the stated acceptance was measured at; null: of heads
    4,096, as the recipes of SpecForge and DeepSpec have it, of a model's own layers and of draft models any."""
    heterogeneous_vocabulary: bool = False
    """draft_model: the engine translates between vocabularies of draft and model (arXiv:2502.05202); vLLM and others
    refuse a draft model with another vocabulary."""
    draft_graph: DraftGraph | None = None
    """Draft passes in CUDA graphs. none: the host launches every kernel (false); piecewise: compiled pieces replay,
    attention does not; full: a graph for each pass after the first; one: a graph for all passes (true). Default as
    engine, release, method and model do (docs/model.md, section 3)."""

    @field_validator("draft_graph", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {True: "one", False: "none"}[value] if isinstance(value, bool) else value

    match_probability: float = Field(1.0, ge=0, le=1)
    """n-gram and suffix: share of iterations in which the lookup proposes anything."""
    lookup_s_per_1k_tokens: float = Field(2.8e-6, ge=0, le=1)
    """n-gram and suffix: host time per sequence and 1,000 tokens of its context. 2.8 ns a token: the search of vLLM
    (v1/spec_decode/ngram_proposer.py @016e8ede) written in C, gcc -O2, on one Xeon core, over 8,000 tokens drawn by
    Zipf's law. Its threads share it from 0.11 on, which is not counted."""
    online_training: bool = False
    """The draft head is trained in the policy's own pass and refitted with it."""
    online_interval_steps: int = Field(1, ge=1, le=100_000)
    """Online training: steps from one update of the draft head to the next."""
    online_packing: bool = False
    """Online training: the trainer still packs sequences. NeMo-RL's draft training cannot (arXiv:2604.26779): every
    sample is then padded."""
    variation: Variation | None = None
    """How acceptance differs between prompts, samples and places of a response."""
    sampling: Sampling | None = None
    """Temperature and way of drafting, where they are not those of the stated acceptance."""
    drift: Drift | None = None
    """How acceptance moves over the steps of a run."""
    policy: Policy = "fixed"
    """Which draft length an iteration has. fixed: draft_length. off_above: none with more than off_above_sequences
    live. by_batch: the best of 0 to draft_length for the live batch. per_request: of every request, by its own
    acceptance and the live batch. What engines do by themselves: by_schedule (vLLM), as schedule says; adaptive
    (SGLang), of its candidates by the live batch the one that its mean of accepted tokens settles on; budget (DSpark in
    vLLM), draft_length tokens are drafted always, and as many verified as pay by each request's acceptance."""
    schedule: tuple[tuple[int, int, int], ...] = ()
    """by_schedule: (fewest live sequences, most, tokens drafted, at most draft_length), rising
    (num_speculative_tokens_per_batch_size)."""
    off_above_sequences: int = Field(32, ge=0, le=1_000_000)
    """off_above: most live sequences of a replica that draft (TLT: 32)."""

    @property
    def active(self) -> bool:
        """Whether anything is drafted at all."""
        return self.method != "none" and self.draft_length > 0

    @property
    def queries(self) -> int:
        """Positions of a verification; 1 where nothing is drafted."""
        return (self.verified_positions or self.draft_length + 1) if self.active else 1

    @property
    def in_one_pass(self) -> bool:
        """Whether all tokens are drafted in one pass."""
        return self.parallel_drafting or self.method in BLOCK_METHODS

    @property
    def reach_tokens(self) -> int | None:
        """Longest context that the stated acceptance speaks of; None: any."""
        own = self.draft is not None and self.draft.kind == "mtp"
        unknown = not self.active or own or self.method not in HEAD_METHODS
        return self.trained_context_tokens or (None if unknown else HEAD_CONTEXT_TOKENS)

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
        if self.policy == "budget":
            return 1  # of sizes in tokens, whatever a request has of them
        return 2 if self.policy == "off_above" else self.draft_length + 1  # drafting, and not

    def _problems(self) -> Iterator[str]:
        given = [name for name in ACCEPTANCE_KEYS if getattr(self, name) is not None]
        if len(given) > 1:
            yield (f"give one of acceptance_length, position_acceptance, first_acceptance; got {' and '.join(given)}")
        # Overrides such as k=0 switch drafts off and leave the acceptance that was stated beside them.
        if not self.active:
            return
        self._check_tree()
        if self.parallel_drafting and self.method not in ("eagle3", "draft_model", *BLOCK_METHODS):
            yield f"parallel_drafting needs method eagle3, draft_model, dflash or dspark; got {self.method}"
        yield from self._check_schedule()
        if self.in_one_pass and self.tree_width > 1:
            yield "tree_width must be 1 where all tokens are drafted in one pass"
        if self.variation is not None and self.variation.group_gain and self.method != "suffix":
            yield "variation.group_gain needs method suffix, which drafts from what the group has generated"
        k = self.acceptance_draft_length
        stated_at = "draft_length" if self.acceptance_at_draft_length is None else ACCEPTANCE_AT
        if not given:
            yield ("acceptance_length (or position_acceptance, or first_acceptance) is needed with draft_length > 0")
        if self.acceptance_length is not None and self.acceptance_length > k + 1:
            yield (
                f"acceptance_length must lie between 1 and {stated_at} + 1 = {k + 1}; got {self.acceptance_length:g}"
            )
        if self.position_acceptance is not None:
            self._check_positions(k, stated_at)

    def _check_schedule(self) -> Iterator[str]:
        if self.policy == "by_schedule" and not self.schedule:
            yield "policy by_schedule needs schedule, such as [[1, 16, 3], [17, 64, 0]]"
        after = 0
        for first, last, length in self.schedule:
            if first > last or first <= after or (after == 0 and first != 1):
                yield f"schedule must begin at 1 sequence and rise without overlaps; got {first} to {last}"
            if length < 0:
                yield f"schedule drafts 0 tokens or more; got {length}"
            after = last
        if self.policy == "budget" and not self.in_one_pass:
            yield "policy budget needs a drafter of one pass (dspark, dflash or parallel_drafting)"

    def _check_tree(self) -> None:
        if self.queries <= self.draft_length:
            raise ValueError(
                f"verified_positions ({self.queries}) must exceed draft_length ({self.draft_length}), the tree's depth"
            )
        if self.tree_width > 1 and self.verified_positions is None:
            raise ValueError("tree_width above 1 needs verified_positions, how many of the tree are verified")
        # A stated acceptance of a tree is of that tree alone: nothing says what a shallower one has.
        if self.verified_positions is not None and self.policy not in ("fixed", "off_above"):
            raise ValueError(f"policy {self.policy} varies the length of a chain: leave verified_positions out")

    def _check_positions(self, k: int, stated_at: str) -> None:
        rates = self.position_acceptance or ()
        if len(rates) != k:
            raise ValueError(f"position_acceptance needs {stated_at} = {k} values; got {len(rates)}")
        if any(not 0 <= p <= 1 for p in rates) or any(b > a for a, b in pairwise(rates)):
            raise ValueError("position_acceptance must lie in 0..1 and must not increase (it is cumulative)")


def check_drafting(speculation: Speculation, model: ModelCard, tensor_parallel: int) -> None:
    """Raise ValueError where a model or an engine of so many GPUs cannot be drafted for as stated."""
    if speculation.method == "mtp" and speculation.active and model.mtp_layers < 1:
        raise ValueError(f"speculation.method mtp needs a native MTP head; {model.name} has none")
    stated = speculation.draft_tensor_parallel
    if speculation.active and stated is not None and tensor_parallel % stated:
        raise ValueError(
            f"speculation.draft_tensor_parallel {stated} does not divide engine.tensor_parallel {tensor_parallel}"
        )
    draft = speculation.draft
    if speculation.method != "draft_model" or not speculation.active:
        return
    if draft is None:
        raise ValueError("speculation.method draft_model needs speculation.draft (the draft model's dimensions)")
    if draft.vocab_size != model.vocab_size and not speculation.heterogeneous_vocabulary:
        raise ValueError(
            f"speculation.draft has a vocabulary of {draft.vocab_size:,} tokens and {model.name} one of "
            f"{model.vocab_size:,}, which engines refuse; give another draft, speculation.draft.vocab_size, or "
            "speculation.heterogeneous_vocabulary true where yours translates between them"
        )
