"""How RL frameworks run generation beside training: what differs between them, and each of them as a set of rules.

Read in their sources: NeMo-RL v0.7 (``async_utils``), verl fully_async (commit 1dda039b9,
``trigger_parameter_sync_step``, ``staleness_threshold``) and its V1 trainers, SkyRL a9564572e, slime 624b824a8
(``train_async.py``, ``fully_async``), AReaL 4aef98d8d, ROLL 8eb27cc2, OpenRLHF 3c3be623, prime-rl 559b44772.
"""

from __future__ import annotations

import math
from typing import Literal

from rlsim.files.records import dataclass

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
        return SETTLING_ROUNDS * math.ceil(self.pace - 1e-9)

    @property
    def cycle_steps(self) -> int:
        """Steps after which what happens repeats: the batches between two updates, of as many versions as overlap."""
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


AS_AHEAD: tuple[int, Limited] = (0, "batches")
AREAL_POLL_S = 0.25
"""Mean wait of a client that looks for its aborted request every 0.5 s (AReaL 4aef98d8d)."""
UNLIMITED_BATCHES_AHEAD = 16.0
"""Batches that a loop without a limit may get ahead of its trainer before it waits. Assumption: real ones end at the
memory of their queue."""
_SLIME = StyleRules(
    "train_async: one batch ahead, whose end is awaited before the weights move",
    membership="target",
    unit="batch",
    at_update="drain",
    in_flight=AS_AHEAD,
    policy_logprobs="updates",
)
_SLIME_FULLY_ASYNC = StyleRules(
    "a pool of 512 groups an engine is always in flight, and none starts while as many finished ones wait; at an "
    "update requests are aborted and go on from the tokens they have",
    batches_ahead=None,
    at_update="recompute",
    in_flight=(512, "groups_per_engine"),
    waiting=True,
    policy_logprobs="updates",
)
_CONTROLLER = "NeMo-RL's single controller: "

STYLES: dict[Style, StyleRules] = {
    # nemo_rl/algorithms/async_utils/trajectory_collector.py:189-255, 606-702; examples/configs/grpo_math_1B.yaml:56-65.
    "nemo_rl": StyleRules(
        "prompt groups belong to a step from their start, and its trainer waits for the last of them; running requests "
        "are awaited before an update unless loop.in_flight_updates; as many batches in flight as steps of lag",
        membership="target",
        at_update="drain",
        in_flight=AS_AHEAD,
    ),
    # nemo_rl/algorithms/async_utils/staleness_sampler.py:241-480, single_controller.py:455-559.
    "nemo_rl_windowed": StyleRules(
        _CONTROLLER
        + "starts wait for room in a buffer of two batches (max_buffered_rollouts of its recipes) and for no "
        "update; groups older than the window are dropped, in flight or done",
        at_take=True,
        in_flight=(1, "batches"),
        max_age=1,
        stale="cancel",
    ),
    "nemo_rl_ready_first": StyleRules(
        _CONTROLLER + "starts are gated by the lag; the first groups done are trained on, however old",
        in_flight=(1, "batches"),
    ),
    "nemo_rl_weight_fifo": StyleRules(
        _CONTROLLER + "starts are gated by the lag; the groups of the oldest weights are trained on first, all of them",
        membership="by_version",
        in_flight=(1, "batches"),
    ),
    "nemo_rl_in_order": StyleRules(
        _CONTROLLER + "starts are gated by the lag; a step trains on exactly the groups that started for it",
        membership="target",
        in_flight=(1, "batches"),
    ),
    # verl/experimental/fully_async_policy/fully_async_rollouter.py:425-605, config/fully_async_ppo_trainer.yaml:13-98.
    "verl": StyleRules(
        "fully_async with partial rollouts: requests are aborted at an update, their prefixes dropped, and go on from "
        "the tokens they have; at most 16 prompts an engine in flight; whichever prompts are done are trained on, with "
        "the engine's log-probs",
        batches_ahead=0.1,
        at_update="recompute",
        in_flight=(16, "groups_per_engine"),
        policy_logprobs=False,
    ),
    # verl/trainer/ppo/v1/replay_buffer.py:497-537 (a group's span is its age + 1, at most 8).
    "verl_v1": StyleRules(
        "requests are aborted at an update and go on from the tokens they have; finished groups older than 7 versions "
        "are dropped",
        membership="oldest_done",
        at_update="recompute",
        max_age=7,
        stale="drop",
    ),
    # skyrl/train/fully_async_trainer.py:181-187, 353-404, config/config.py:951-956.
    "skyrl": StyleRules(
        "requests pause and keep their KV cache; at most 768 groups in flight; the first groups done are trained on, "
        "however old, with the engine's log-probs",
        batches_ahead=4.0,
        in_flight=(768, "groups"),
        policy_logprobs=False,
    ),
    # slime/train_async.py:35-70, slime/backends/megatron_utils/actor.py:461-476; vime and miles are its forks.
    "slime": _SLIME,
    "vime": _SLIME,
    "miles": _SLIME,
    # slime/rollout/fully_async_rollout.py:58-60, 85-90, 148-206, sglang_rollout.py:154-173, 232-245.
    "slime_fully_async": _SLIME_FULLY_ASYNC,
    "vime_fully_async": _SLIME_FULLY_ASYNC,
    "miles_fully_async": _SLIME_FULLY_ASYNC,
    # areal/infra/staleness_manager.py:99-113, remote_inf_engine.py:70-122, 787-795, api/cli_args.py:2024-2029; lag of
    # examples/agent_workflow/config.yaml:33 and most others.
    "areal": StyleRules(
        "requests are aborted at an update and submitted again with the tokens they have; at most one batch of groups "
        "in flight",
        batches_ahead=2.0,
        membership="oldest_done",
        at_update="recompute",
        in_flight=(1, "batches"),
        resubmit_s=AREAL_POLL_S,
    ),
    # roll/distributed/scheduler/generate_scheduler.py:122-130, 236-248, 349-433; rlvr_pipeline.py:497-523.
    "roll": StyleRules(
        "requests are aborted at an update and go on from the tokens they have; a step takes groups in the order of "
        "the weights that they started with and waits for older ones; those older than the lag are aborted",
        membership="by_version",
        at_update="recompute",
        max_age="ahead",
        stale="cancel",
    ),
    # openrlhf/trainer/ppo_trainer_async.py:20-34, 110-140, 229-297 (async_queue_size 1 is no batch waiting beyond the
    # one that is generated).
    "openrlhf": StyleRules(
        "a queue of whole batches; generation and the broadcast of weights exclude each other",
        batches_ahead=0.0,
        membership="target",
        unit="batch",
        at_update="drain",
        at_take=True,
    ),
    "openrlhf_partial": StyleRules(
        "a queue of whole batches; requests pause and keep their KV cache while weights are broadcast",
        batches_ahead=0.0,
        membership="target",
        unit="batch",
        at_take=True,
    ),
    # src/prime_rl/orchestrator/dispatcher.py:3-24, 243-393, orchestrator.py:101-104, 662-680; trainer/rl/train.py:342.
    "prime_rl": StyleRules(
        "a pool of 1,024 samples is always in flight; requests pause and keep their KV cache; groups older than 8 "
        "versions are cancelled, in flight or queued; training uses the engine's log-probs",
        batches_ahead=None,
        in_flight=(1024, "samples"),
        max_age=8,
        stale="cancel",
        policy_logprobs=False,
    ),
}
