"""How RL frameworks run generation beside training: what differs between them, and each of them as a set of rules;
and what loops of one half of a step refuse.

Read in their sources: NeMo-RL v0.7 (``async_utils``), verl fully_async (commit 1dda039b9,
``trigger_parameter_sync_step``, ``staleness_threshold``) and its V1 trainers, SkyRL a9564572e, slime 624b824a8
(``train_async.py``, ``fully_async``), AReaL 4aef98d8d, ROLL 8eb27cc2, OpenRLHF 3c3be623, prime-rl 559b44772.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rlsim.files.yaml import lists_beside
from rlsim.schema.base import Strict

if TYPE_CHECKING:
    from rlsim.schema.scenario import Scenario

Style = Literal[
    "nemo_rl", "nemo_rl_windowed", "nemo_rl_ready_first", "nemo_rl_weight_fifo", "nemo_rl_in_order", "verl", "verl_v1",
    "skyrl", "slime", "slime_fully_async", "vime", "vime_fully_async", "miles", "miles_fully_async", "areal", "roll",
    "openrlhf", "openrlhf_partial", "prime_rl",
]  # fmt: skip
AtUpdate = Literal["keep", "recompute", "restart", "drain"]
"""What becomes of running requests at an update of the weights: they keep their KV cache; prefill what they have again;
are aborted and start from their prompts; or are waited for."""
Unit = Literal["group", "sample", "batch"]
"""What starts and is handed over as one: a prompt's samples; each sample by itself; all groups of a step."""
Membership = Literal["target", "first_done", "oldest_done", "by_version"]
"""Which groups a step trains on: those that started for it, however late the last is; those that are done first; of all
that are done those that started with the oldest weights; or these, with none still running when newer ones count."""
Stale = Literal["train", "drop", "cancel", "wait"]
"""Groups beyond the greatest age: trained on all the same; dropped when their turn comes; aborted in flight as well; or
no step begins while one that has reached it is in flight."""
Limited = Literal["batches", "groups", "samples", "groups_per_engine"]
"""What a limit on what is in flight counts. Fewer groups than a batch never are the limit of "groups"."""

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
    max_in_flight: batches in flight at once; None: no such limit. in_flight: a limit in other units. waiting: groups
    that are done and not taken stop further starts once they are as many as may be in flight. max_age: versions between
    start and training. resubmit_s: time after an update before aborted requests run again. overlap: generation goes on
    while training does.
    """

    batches_ahead: float
    membership: Membership = "first_done"
    unit: Unit = "group"
    at_update: AtUpdate = "keep"
    update_every: int = 1
    at_take: bool = False
    max_in_flight: float | None = None
    in_flight: tuple[int, Limited] | None = None
    waiting: bool = False
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
        return SETTLING_ROUNDS * math.ceil(self.pace - 1e-9)  # 1e-9: see workload.draw.steps_ahead

    @property
    def observed_steps(self) -> int:
        """Steps that are measured where nobody says: about as many as it settles in, since each replication starts up
        anew, and no more, as cycles of a replication share what is in flight. Sixteen batches ahead, three replications
        of three cycles held the long run in 77 % of 48 cases, four of two in 92 %, eight of one in 90 %."""
        return max(OBSERVED_STEPS, self.settling_steps // self.cycle_steps * self.cycle_steps)

    @property
    def cycle_steps(self) -> int:
        """Steps after which what happens repeats: the batches between two updates, of as many versions as overlap."""
        # At least 1: a fraction ahead (verl's staleness_threshold) has no whole version to alternate over.
        return self.update_every * max(1, int(self.batches_ahead + 1e-9))


@dataclass(frozen=True)
class StyleRules:
    """A framework's rules, with the defaults of its own configuration.

    batches_ahead: where a scenario states no lag; None: it bounds requests in flight and not the batches ahead.
    in_flight: what may be in flight at once; 0 batches stand for as many as may be ahead. waiting, max_age, stale: see
    :class:`Asynchrony`; max_age "ahead": the batches ahead, rounded up. policy_logprobs: whether a pass recomputes
    them; "updates": where a step has several updates, a critic or a reference policy; None: as the trainer's stack.
    """

    description: str
    batches_ahead: float | None = 1.0
    membership: Membership = "first_done"
    unit: Unit = "group"
    at_update: AtUpdate = "keep"
    at_take: bool = False
    in_flight: tuple[int, Limited] | None = None
    waiting: bool = False
    max_age: int | Literal["ahead"] | None = None
    stale: Stale = "train"
    resubmit_s: float = 0.0
    policy_logprobs: bool | Literal["updates"] | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing bounds the batches ahead but what is in flight, or its age."""
        return self.batches_ahead is None


UNLIMITED_BATCHES_AHEAD = 16.0
"""Batches that a loop without a limit may get ahead of its trainer before it waits. Assumption: real ones end at the
memory of their queue."""


def _rules(given: Mapping[str, Any]) -> StyleRules:
    # YAML has lists, and a frozen record must be hashable.
    in_flight = given.get("in_flight")
    return StyleRules(**{**given, "in_flight": None if in_flight is None else tuple(in_flight)})


STYLES: Mapping[str, StyleRules] = {
    name: _rules(given) for name, given in lists_beside(__file__, "styles.yaml").items()
}
"""The rules of every framework (styles.yaml)."""


CYCLE_ROUNDS = 24
"""Rounds that a cycle may have beyond its first long one."""


class TailBatching(Strict):
    """Tail batching with over-sampling (RollPacker, arXiv 2509.21009) in a synchronous loop.

    A short round starts more prompts and samples than a step trains on and ends when as many prompts as it needs have
    enough finished samples; what is not done is aborted. Prompts that were not complete are put off; once they fill a
    step, a long round runs them anew from their prompts to the last sample, without a race.
    """

    prompts_factor: float = Field(1.25, ge=1, le=16)
    """Prompts that a short round starts, over prompts_per_step; rounded up. 1: none is put off."""
    samples_factor: float = Field(1.25, ge=1, le=16)
    """Samples that it starts for each prompt, over generations_per_prompt; rounded up. The first of them to finish are
    trained on."""

    @property
    def active(self) -> bool:
        """Whether any round races."""
        return self.prompts_factor > 1 or self.samples_factor > 1


def rounded_up(count: int, factor: float) -> int:
    """``factor`` times as many, rounded up; what rounding of the factor adds does not count."""
    return math.ceil(count * factor - 1e-9)  # 1.1 x 10 is 11.000000000000002 in floats


def rounds_per_cycle(prompts: int, put_off: int) -> int:
    """Rounds after which as many prompts wait as at the start.

    A short round puts ``put_off`` prompts off; the next round is a long one, of ``prompts``, as soon as so many wait.
    Where that takes more than CYCLE_ROUNDS: the rounds after which fewest wait, those of one long round at least.
    """
    if not put_off:
        return 1
    waiting, rounds, best = 0, 0, (prompts, 0)
    while waiting or not rounds:
        short = -(-(prompts - waiting) // put_off)
        long, waiting = divmod(waiting + short * put_off, prompts)
        rounds += short + long
        # Only once there is an answer: a first long round may itself lie beyond the limit.
        if best[1] and rounds > CYCLE_ROUNDS:
            break
        # Fewest waiting first, then fewest rounds.
        best = min(best, (waiting, rounds))
    return best[1]


def check_half(s: "Scenario") -> None:
    """Raise ValueError for what a loop without a rollout, or one without training, cannot have."""
    if s.loop.supervised:
        _supervised(s)
    if s.loop.rollouts_alone:
        _rollouts_alone(s)


def _supervised(s: "Scenario") -> None:
    w, validation = s.workload, None if s.run is None else s.run.validation
    for stated, key in (
        (s.speculation.active, "speculation.method"),
        (w.agent is not None, "workload.agent"),
        (w.racing, "workload.tail_batching"),
        (w.launched_prompts > w.prompts_per_step, "workload.generated_batch_factor"),
        (w.usable_group_share < 1, "workload.usable_group_share"),
        (w.environment_s + w.batch_reward_s > 0, "workload.environment_s and batch_reward_s"),
        (not s.cluster.colocated, "cluster.generation_gpus and training_gpus"),
        (bool(s.trainer.policy_logprobs), "trainer.policy_logprobs"),
        (s.trainer.critic, "trainer.critic"),
        (bool(s.pools), "pools"),
        (validation is not None and validation.samples is not None, "run.validation.samples"),
    ):
        if stated:
            raise ValueError(f"loop.supervised trains on a data set and generates nothing: give no {key}")
    if s.trainer.reference_logprobs and w.generations_per_prompt < 2:
        raise ValueError(
            "loop.supervised with trainer.reference_logprobs is DPO, of pairs: give workload.generations_per_prompt 2, "
            "or trainer.reference_logprobs false for supervised fine-tuning"
        )


def _rollouts_alone(s: "Scenario") -> None:
    for stated, key in (
        (not s.cluster.colocated, "cluster.generation_gpus and training_gpus"),
        (s.cluster.reference_gpus > 0, "cluster.reference_gpus"),
        (bool(s.trainer.policy_logprobs), "trainer.policy_logprobs"),
        (s.trainer.critic, "trainer.critic"),
        (s.speculation.trained_online, "speculation of a draft that is trained online"),
        (any(pool.role == "teacher" or not pool.gpus for pool in s.pools), "pools of teachers or without gpus"),
    ):
        if stated:
            raise ValueError(f"loop.rollouts_alone generates and trains nothing: give no {key}")
