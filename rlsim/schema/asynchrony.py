"""How RL frameworks run generation beside training: what differs between them, and each of them as a set of rules.

Read in their sources: NeMo-RL v0.7 (``async_utils``), verl fully_async (commit 1dda039b9,
``trigger_parameter_sync_step``, ``staleness_threshold``) and its V1 trainers, SkyRL a9564572e, slime 624b824a8
(``train_async.py``, ``fully_async``), AReaL 4aef98d8d, ROLL 8eb27cc2, OpenRLHF 3c3be623, prime-rl 559b44772.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Style = Literal[
    "nemo_rl", "verl", "verl_v1", "skyrl", "slime", "slime_fully_async", "areal", "roll", "openrlhf",
    "openrlhf_partial", "prime_rl",
]  # fmt: skip
AtUpdate = Literal["keep", "recompute", "restart", "drain"]
"""What becomes of running requests at an update of the weights: they keep their KV cache; prefill what they have again;
are aborted and start from their prompts; or are waited for."""
Unit = Literal["group", "sample", "batch"]
"""What starts and is handed over as one: a prompt's samples; each sample by itself; all groups of a step."""
Membership = Literal["target", "first_done"]
"""Which groups a step trains on: those that started for it, however late the last is; or those that are done first."""
Stale = Literal["train", "drop", "cancel"]
"""Groups beyond the greatest age: trained on all the same; dropped when their turn comes; aborted in flight as well."""

SETTLING_ROUNDS = 2
"""Times that all batches under way are replaced before steps count. Simulated for all styles: the steps after it are
within 4 % of a long run at lags 1 and 2. At lag 4 a trainer hardly faster than its generator still lives on what was
generated before the first step, by up to 8 %."""
OBSERVED_STEPS = 6
"""Fewest measured steps of a lagged loop: whole periods of 2 (stragglers alternate) and of 3 (restarts at lag 1)."""


@dataclass(frozen=True)
class Asynchrony:
    """What a lagged loop does, once style and stated keys are put together.

    batches_ahead: batches (of all steps between two updates) that may have started beyond those that the trainer has
    taken and the one that it takes next. at_take: they start when a batch is taken, not when weights are published.
    max_in_flight: batches in flight at once; None: no limit of its own. max_age: versions between start and training.
    resubmit_s: time after an update before aborted requests run again. overlap: generation goes on while training does.
    """

    batches_ahead: float
    membership: Membership = "first_done"
    unit: Unit = "group"
    at_update: AtUpdate = "keep"
    update_every: int = 1
    at_take: bool = False
    max_in_flight: float | None = None
    max_age: int | None = None
    stale: Stale = "train"
    resubmit_s: float = 0.0
    overlap: bool = True

    @property
    def pace(self) -> float:
        """Batches that may have started beyond those taken: the next one and those ahead of it."""
        return self.update_every * (1.0 + self.batches_ahead)

    @property
    def settling_steps(self) -> int:
        """First steps that still hold the start-up: until all batches under way at once were replaced, and again."""
        return SETTLING_ROUNDS * math.ceil(self.pace - 1e-9)

    @property
    def cycle_steps(self) -> int:
        """Steps after which what happens repeats: the batches between two updates, of as many versions as overlap."""
        return self.update_every * max(1, int(self.batches_ahead + 1e-9))


@dataclass(frozen=True)
class StyleRules:
    """A framework's defaults. unlimited: it bounds requests in flight and not the batches ahead."""

    description: str
    membership: Membership = "first_done"
    unit: Unit = "group"
    at_update: AtUpdate = "keep"
    at_take: bool = False
    limits_in_flight: bool = False
    max_age: int | None = None
    stale: Stale = "train"
    resubmit_s: float = 0.0
    policy_logprobs: bool | None = None
    unlimited: bool = False


AREAL_POLL_S = 0.25
"""Mean wait of a client that looks for its aborted request every 0.5 s (AReaL 4aef98d8d)."""
UNLIMITED_BATCHES_AHEAD = 16.0
"""Batches that a loop without a limit may get ahead of its trainer before it waits. Assumption: real ones end at the
memory of their queue."""

STYLES: dict[Style, StyleRules] = {
    "nemo_rl": StyleRules(
        "prompt groups belong to a step from their start, and its trainer waits for the last of them; requests keep "
        "their KV cache over an update; as many batches in flight as steps of lag",
        membership="target",
        limits_in_flight=True,
    ),
    "verl": StyleRules(
        "fully_async with partial rollouts: requests are aborted at an update, their prefixes dropped, and go on from "
        "the tokens they have; whichever prompts are done are trained on, with the engine's log-probs",
        at_update="recompute",
        policy_logprobs=False,
    ),
    "verl_v1": StyleRules(
        "requests are aborted at an update and go on from the tokens they have; groups older than 8 versions are "
        "dropped",
        at_update="recompute",
        max_age=8,
        stale="drop",
    ),
    "skyrl": StyleRules("requests pause and keep their KV cache; the first groups done are trained on, however old"),
    "slime": StyleRules(
        "train_async: one batch ahead, whose end is awaited before the weights move",
        membership="target",
        unit="batch",
        at_update="drain",
        limits_in_flight=True,
    ),
    "slime_fully_async": StyleRules(
        "a pool of groups is always in flight; at an update they are aborted and start again from their prompts",
        at_update="restart",
        unlimited=True,
    ),
    "areal": StyleRules(
        "samples by themselves; requests are aborted at an update and submitted again with the tokens they have",
        unit="sample",
        at_update="recompute",
        resubmit_s=AREAL_POLL_S,
    ),
    "roll": StyleRules("requests are aborted at an update and start again from their prompts", at_update="restart"),
    "openrlhf": StyleRules(
        "a queue of whole batches; generation and the broadcast of weights exclude each other",
        membership="target",
        unit="batch",
        at_update="drain",
        at_take=True,
    ),
    "openrlhf_partial": StyleRules(
        "a queue of whole batches; requests pause while weights are broadcast",
        membership="target",
        unit="batch",
        at_update="recompute",
        at_take=True,
    ),
    "prime_rl": StyleRules(
        "requests pause and keep their KV cache; groups older than 8 versions are cancelled, in flight or queued",
        max_age=8,
        stale="cancel",
    ),
}
