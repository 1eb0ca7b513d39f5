"""Which prompt groups a trainer takes, how many more may start because of that, and which are too old: the rules of a
lagged loop, the same for both implementations of its generator.

Groups are numbered in the order in which they start: ``batch`` of them are generated for each step, of which the first
``usable`` of each are trained on. A trainer whose groups are bound to their step (membership target) takes batch n for
step n. Otherwise it takes the usable groups that are done first (by_version: as long as none with older weights is in
flight), and what is stale or unusable among them goes by the way. Where N batches are trained on between two updates,
groups may start as long as no more than (1 + ahead) N batches have, beyond those taken. That one rule covers a lag in
versions (NeMo-RL, SkyRL, AReaL), a share of stale samples (verl) and a queue (OpenRLHF), which differ in ``ahead`` and
in when it is looked at.
"""

import math
import sys
from typing import Literal

import numpy as np

from rlsim.errors import Infeasible
from rlsim.schema.scenario import Scenario
from rlsim.units import IntArray
from rlsim.workload.draw import DrawnWorkload, TooFewDrawnError

Removed = Literal["consumed", "stale", "discarded", "cancelled"]
REMOVED: tuple[Removed, ...] = ("consumed", "stale", "discarded", "cancelled")
"""What became of groups: trained on; dropped for their age; dropped as unusable; aborted in flight for their age."""


def groups_per_step(scenario: Scenario) -> int:
    """Prompt groups generated for a step, those dropped before training included."""
    return scenario.workload.launched_prompts


def groups_each(scenario: Scenario) -> int:
    """Groups of a prompt: its samples where each is one by itself."""
    return scenario.workload.generations_per_prompt if scenario.loop.asynchrony.unit == "sample" else 1


def most_in_flight(scenario: Scenario) -> int:
    """Groups that may be in flight at once: as stated, else as the style says."""
    rules, stated, each = scenario.loop.asynchrony, scenario.loop.max_in_flight_groups, groups_each(scenario)
    batch = groups_per_step(scenario) * each
    if stated is not None:
        return stated * each
    if rules.max_in_flight is not None:
        return math.ceil(rules.max_in_flight * rules.update_every * batch)
    if rules.in_flight is None:
        return sys.maxsize
    most, unit = rules.in_flight
    if unit == "samples":
        return max(1, most * each // scenario.workload.generations_per_prompt)
    if unit == "groups_per_engine":
        return most * each * scenario.replicas
    # Never fewer than a batch (schema/asynchrony.py, Limited): no step could be filled from them.
    return max(most * each, batch)


class Intake:
    """State of the rules. Groups are samples by themselves where the loop's unit is one.

    batch, usable: groups generated and trained on for a step. size: samples of a group. started_version: of each group,
    -1 before. version: of the weights in use. removed: groups taken, dropped or cancelled. released: groups that may
    have started by now. position: groups in the order of their completion that have been looked at.
    """

    def __init__(self, scenario: Scenario, workload: DrawnWorkload) -> None:
        self.rules = scenario.loop.asynchrony
        section = scenario.workload
        each = groups_each(scenario)
        self.size = section.generations_per_prompt // each
        self.batch = groups_per_step(scenario) * each
        self.usable = section.prompts_per_step * each
        self.steps = len(workload.steps)
        self.started_version = np.full(self.steps * self.batch, -1, dtype=np.int64)
        self._few_drawn = workload.few
        self.version = self.removed = self.position = self.released = 0
        self.removed_groups: dict[Removed, list[IntArray]] = {kind: [] for kind in REMOVED}
        self.pool = most_in_flight(scenario)
        self.max_in_flight = min(self.pool, self.started_version.size)
        self.release()

    @property
    def by_target(self) -> bool:
        """Whether groups belong to a step from their start."""
        return self.rules.membership == "target"

    def takes_all_from(self, oldest: int | None) -> bool:
        """Whether a step takes every group that is done before the next weights, as it is done. oldest: group that
        started first of those that are in flight or have not been looked at; None where there is none."""
        fresh = oldest is None or self.started_version[oldest] >= self.oldest_version
        return bool(self.rules.membership == "first_done" and self.usable == self.batch and fresh)

    def release(self) -> None:
        """Let groups start for what has been taken: when weights are published, or where a queue counts at once."""
        # Mostly a whole number, which floating point may put a hair below.
        self._release(self.removed + math.floor(self.rules.pace * self.batch + 1e-6))

    def replace(self) -> None:
        """Let one more group start in place of one that nobody trains on."""
        self._release(self.released + 1)

    def _release(self, groups: int) -> None:
        drawn = self.started_version.size
        if groups > drawn and self._few_drawn:
            raise TooFewDrawnError
        self.released = min(groups, drawn)

    @property
    def oldest_version(self) -> int:
        """Version with which groups must have started so as not to be dropped or cancelled now."""
        rules = self.rules
        return 0 if rules.stale in ("train", "wait") or rules.max_age is None else self.version - rules.max_age

    def is_awaited(self, group: int) -> bool:
        """Whether no step may begin while this group is in flight, as it would be too old for the next one."""
        rules = self.rules
        if rules.stale != "wait" or rules.max_age is None:
            return False
        return bool(self.started_version[group] <= self.version - rules.max_age)

    def is_wanted(self, group: int) -> bool:
        """Whether a step trains on a group that is done: usable and not too old."""
        return group % self.batch < self.usable and bool(self.started_version[group] >= self.oldest_version)

    def take(self, step: int, done: IntArray) -> IntArray:
        """Take the batch of ``step``; its groups. done: what has been looked at, in the order of completion.

        Where groups are bound to their step, ``done`` is not needed.
        """
        if self.by_target:
            done = step * self.batch + np.arange(self.batch)
        self.position += done.size
        self.removed += done.size
        if self.rules.at_take:
            self.release()
        # Aged by the weights of their start: a group that goes on through an update does not get younger.
        fresh = self.started_version[done] >= self.oldest_version
        # Usable ones are so whatever their lengths: the first of a batch may stand for any.
        usable = done % self.batch < self.usable
        groups: IntArray = done[fresh & usable]
        self.removed_groups["consumed"].append(groups)
        self.removed_groups["stale"].append(done[~fresh])
        self.removed_groups["discarded"].append(done[fresh & ~usable])
        return groups

    def cancel(self, groups: IntArray) -> None:
        """Groups in flight were aborted."""
        self.removed += groups.size
        self.removed_groups["cancelled"].append(groups)

    def in_vain(self, exhausted: bool) -> Exception:
        """The error of a trainer that waits for what nobody generates; exhausted: all groups drawn have started."""
        if not exhausted or self.by_target:
            return RuntimeError("the trainer waits for prompt groups that nobody generates")
        return Infeasible(
            "too many prompt groups are stale before they are trained on; let them grow older (loop.max_age), start "
            "fewer ahead (loop.policy_lag, loop.staleness_fraction) or train on them (loop.stale)",
            self.steps * self.usable,
            sum(groups.size for groups in self.removed_groups["consumed"]),
            "prompt groups",
        )

    def ages(self, groups: IntArray) -> dict[int, int]:
        """Samples of ``groups`` by age, the versions between their start and now."""
        found = np.bincount(self.version - self.started_version[groups])
        return {age: count * self.size for age, count in enumerate(found.tolist()) if count}

    def samples(self, groups: IntArray) -> IntArray:
        """Numbers of the samples of ``groups``."""
        return (groups[:, None] * self.size + np.arange(self.size)).ravel()
