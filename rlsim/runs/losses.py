"""What a run loses besides its steps: many histories of the same run, drawn step by step.

Every step has a stream of its own (seed, step) for all histories; history r belongs to replication r, further ones take
the replications in turn. No engine is simulated again: what a failure or a slow node does to a step follows from how
the step answers to its phases (:class:`rlsim.projection.uncertainty.response.StepResponse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rlsim.errors import Infeasible
from rlsim.projection.uncertainty.predictive import unmoved
from rlsim.projection.uncertainty.response import StepResponse
from rlsim.results.run import CAUSES
from rlsim.runs.chapters import BlockRecord, ChapterRecord, checkpoint_seconds, due
from rlsim.schema.run import Checkpoint, Faults, RunConditions
from rlsim.schema.scenario import Scenario
from rlsim.units import SECONDS_PER_HOUR, FloatArray

HISTORIES = 256
"""Histories behind the interval of what chance brings, where anything is left to chance."""
_STREAM = 7_919
"""Separates the random streams of this module from those of the drawn work."""
LOST = tuple(cause for cause in CAUSES if cause != "steps")


class Losses(Struct, frozen=True, eq=False):
    """Seconds that a run loses, by cause, and how often.

    totals: shape (histories,), of whole histories. by_step: shape (steps,), mean over all histories.
    events: mean number over these.
    """

    totals: dict[str, FloatArray]
    by_step: dict[str, FloatArray]
    events: dict[str, float]

    @property
    def histories(self) -> int:
        """Histories drawn."""
        return len(self.totals[LOST[0]])


class Course(Struct, frozen=True, eq=False):
    """The undisturbed steps of a run: values of its chapters, shape (replications, steps) each, and blocks in order."""

    values: Mapping[str, FloatArray]
    blocks: tuple[BlockRecord, ...]

    @classmethod
    def of(cls, chapters: Sequence[ChapterRecord]) -> Course:
        """The chapters, one after the other."""
        parts = {
            name: [np.asarray(one.values[name], dtype=np.float64) for one in chapters] for name in chapters[0].values
        }
        values = {name: np.concatenate(each, axis=1) for name, each in parts.items()}
        return cls(values, tuple(block for one in chapters for block in one.blocks))

    @property
    def plain_s(self) -> FloatArray:
        """Seconds of every undisturbed step."""
        return self.values["step_s"]

    @property
    def replications(self) -> int:
        """Simulated runs."""
        return len(self.plain_s)

    @property
    def mean_s(self) -> FloatArray:
        """Seconds of every undisturbed step, mean over the replications."""
        return np.asarray(self.plain_s.mean(axis=0), dtype=np.float64)

    @property
    def refill_s(self) -> float:
        """Seconds of the first batch beyond a later one: an asynchronous pool is empty at first and after a restart."""
        if self.blocks[0].step_response.generation_ratio is None:
            return 0.0
        exposed_s = self.values["exposed_generation_s"]
        return max(0.0, float(exposed_s[:, 0].mean() - exposed_s[:, 1:].mean())) if self.steps > 1 else 0.0

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.blocks[-1].stop

    def by_step(self) -> list[BlockRecord]:
        """The block of each step."""
        return [block for block in self.blocks for _ in range(block.steps)]


def losses_of(scenario: Scenario, course: Course) -> Losses:
    """Draw what a run loses. Raises Infeasible where failures leave it hardly any progress."""
    conditions = scenario.run or RunConditions()
    random = any(given is not None for given in (conditions.faults, conditions.stalls, conditions.slow_nodes))
    histories = max(course.replications, HISTORIES if random else 1)
    replication = np.arange(histories) % course.replications
    totals = {cause: np.zeros(histories) for cause in LOST}
    by_step = {cause: np.zeros(course.steps) for cause in LOST}
    events = dict.fromkeys(LOST, 0.0)
    history = _History(scenario, conditions, course, histories)
    for step, block in enumerate(course.by_step()):
        # A stream for each step: a cause switched off in one step leaves the draws of later ones as they are.
        rng = np.random.default_rng([scenario.simulation.seed, step, _STREAM])
        found = history.pass_step(step, rng, replication, block)
        for cause, (seconds, count) in found.items():
            totals[cause] += seconds
            by_step[cause][step] = seconds.mean()
            events[cause] += float(count.mean())
    return Losses(totals, by_step, events)


Found = dict[str, tuple[FloatArray, FloatArray]]
"""Seconds and events of a step by cause, shape (histories,) each."""


class _History:
    """State of all histories between two steps: how much work each would lose if it went back."""

    def __init__(self, scenario: Scenario, conditions: RunConditions, course: Course, histories: int) -> None:
        self._scenario, self._conditions, self._course = scenario, conditions, course
        self._none = np.zeros(histories)
        self._replicas_in_all = scenario.replicas
        cluster, faults = scenario.cluster, conditions.faults
        rate = 1.0 / (faults.gpu_hours_between * SECONDS_PER_HOUR) if faults is not None else 0.0
        self._trainer_rate = rate * (cluster.training + cluster.reference_gpus)
        # On shared GPUs a failure stops the trainer, which counts above: not twice.
        self._replica_rate = 0.0 if cluster.colocated else rate * cluster.generation
        self._checkpoints = _Checkpoints.of(scenario, conditions.checkpoint, histories)
        if faults is not None and conditions.checkpoint is not None:
            self._check(faults, conditions.checkpoint)

    def _check(self, faults: Faults, checkpoint: Checkpoint) -> None:
        """Whether a run gets anywhere: a failure must not cost as much time as lies between two of them."""
        between_s = checkpoint.every_steps * float(self._course.plain_s.mean())
        # Half of what lies between two checkpoints is lost in the mean, plus the restart.
        lost_s = faults.restart_s + self._course.refill_s + between_s / 2
        if lost_s * self._trainer_rate >= 1:
            raise Infeasible(
                "failures of the training GPUs undo what is trained between them; write checkpoints more often "
                "(run.checkpoint.every_steps) or restart sooner (run.faults.restart_s)",
                lost_s,
                1.0 / self._trainer_rate,
                "seconds between failures",
            )

    def pass_step(
        self, step: int, rng: np.random.Generator, replication: NDArray[np.int64], block: BlockRecord
    ) -> Found:
        """Seconds and events that a step loses, by cause. replication: of each history."""
        plain_s, response = self._course.plain_s[replication, step], block.step_response
        found: Found = {}
        slow, lost = self._slow(rng, response), self._replicas(rng, step, replication, block)
        if slow is not None:
            longer = plain_s * (slow - 1.0)
            found["slow_nodes"] = (longer, (longer > 0).astype(np.float64))
        if lost is not None:
            found["replica_faults"] = (plain_s * (lost[0] - 1.0), lost[1])
        stalls = self._conditions.stalls
        if stalls is not None:
            hit = (rng.random(plain_s.size) < stalls.probability).astype(np.float64)
            found["stalls"] = (hit * stalls.seconds, hit)
        validation = self._conditions.validation
        if validation is not None and due(validation.every_steps, step):
            found["validation"] = (self._course.values["validation_s"][replication, step], np.ones_like(plain_s))
        # A failure can come in any second of these, wherever the step lost them.
        exposed_s = plain_s + sum((seconds for seconds, _ in found.values()), self._none)
        # Read before the step is passed, which may write a checkpoint: a failure within the step falls back to the
        # older one.
        before_s, waited_s = self._checkpoints.undone_s, self._checkpoints.pass_step(step, exposed_s)
        if waited_s is not None:
            found["checkpoints"] = (waited_s, np.ones_like(plain_s))
            exposed_s = exposed_s + waited_s
        return found | self._restarts(rng, before_s, exposed_s)

    def _slow(self, rng: np.random.Generator, response: StepResponse) -> FloatArray | None:
        """Factor on the step. Training waits for the slowest node, a synchronous rollout for the slowest replica.

        An asynchronous pool loses the slow replicas' share of its rate.
        """
        slow, cluster = self._conditions.slow_nodes, self._scenario.cluster
        if slow is None:
            return None
        scenario = self._scenario
        node, trainer_node = (int(one.gpus_per_node) for one in (scenario.hardware, scenario.training_device))
        # Chance that at least one of the nodes is slow.
        training = 1.0 - (1.0 - slow.share) ** -(-cluster.training // trainer_node)
        trainer = np.where(rng.random(self._none.size) < training, slow.factor, 1.0)
        # What is slow together: a node with all of its replicas, or a replica with all of its nodes.
        together = max(node, scenario.engine.gpus_per_replica)
        parts, nodes = -(-cluster.generation // together), -(-together // node)
        count = rng.binomial(parts, 1.0 - (1.0 - slow.share) ** nodes, self._none.size)
        if response.generation_ratio is None:
            generation = np.where(count > 0, slow.factor, 1.0)
            # On shared GPUs the node that slows the rollout is one of the trainer's.
            generation = trainer if cluster.colocated else generation
        else:
            # A slow part of the pool still makes 1 / factor of its rate.
            generation = 1.0 / (1.0 - count / parts * (1.0 - 1.0 / slow.factor))
        return _factor(response, generation, trainer)

    def _replicas(
        self, rng: np.random.Generator, step: int, replication: NDArray[np.int64], block: BlockRecord
    ) -> tuple[FloatArray, FloatArray] | None:
        """Factor on the step for failures of generating GPUs, and their number.

        While a replica is away the others do its work, and what it was doing is done again: its absence and that, over
        the number of replicas, is generation that the step takes longer. A synchronous pool that is idle loses nothing.
        """
        faults = self._conditions.faults
        if faults is None or not self._replica_rate:
            return None
        asynchronous = block.step_response.generation_ratio is not None
        pace_s = self._course.values["step_s" if asynchronous else "generation_s"][replication, step]
        count = rng.poisson(self._replica_rate * pace_s).astype(np.float64)
        away_s = count * (faults.replica_restart_s + block.redo_s) / self._replicas_in_all
        ones = np.ones_like(pace_s)
        return _factor(block.step_response, 1.0 + away_s / pace_s, ones), count

    def _restarts(self, rng: np.random.Generator, before_s: FloatArray, exposed_s: FloatArray) -> Found:
        """Failures of training GPUs in a step: the restart, and again what was done since the last checkpoint.

        before_s: that work when the step begins. A restart and what is done again may fail as well.
        """
        faults = self._conditions.faults
        if faults is None:
            return {}
        restart_s = faults.restart_s + self._course.refill_s
        restarts, again_s, count = self._none.copy(), self._none.copy(), self._none.copy()
        pending_s, reached_s = exposed_s, before_s + exposed_s * rng.random(exposed_s.size)
        while (failed := rng.poisson(self._trainer_rate * pending_s).astype(np.float64)).any():
            count += failed
            restarts += failed * restart_s
            again_s += failed * reached_s
            pending_s = failed * (restart_s + reached_s)
            # A failure while work is done again comes somewhere within it; the loop ends since what is pending shrinks
            # (_check).
            reached_s = reached_s * rng.random(exposed_s.size)
        return {"restarts": (restarts, count), "steps_again": (again_s, count)}


class _Checkpoints(Struct, eq=False):
    """State of the checkpoints of each history; arrays of shape (histories,).

    undone_s: work since the last complete one, which a failure undoes. fresh_s: since the last one was begun.
    writing_s: what is left of writing it.
    """

    every_steps: int
    blocking_s: float
    beside_s: float
    undone_s: FloatArray
    fresh_s: FloatArray
    writing_s: FloatArray

    @classmethod
    def of(cls, scenario: Scenario, checkpoint: Checkpoint | None, histories: int) -> _Checkpoints:
        """State at the beginning of a run, which counts as stored."""
        zeros = [np.zeros(histories) for _ in range(3)]
        if checkpoint is None:
            return cls(0, 0.0, 0.0, *zeros)
        write_s = checkpoint_seconds(scenario, checkpoint)
        blocking_s = write_s * checkpoint.blocking_share
        return cls(checkpoint.every_steps, blocking_s, write_s - blocking_s, *zeros)

    def pass_step(self, step: int, exposed_s: FloatArray) -> FloatArray | None:
        """Work on for a step; seconds for which training stops for a checkpoint after it, None without one.

        A checkpoint that is written beside the steps counts from the end of the step in which it is complete.
        """
        undone_s, self.fresh_s = self.undone_s + exposed_s, self.fresh_s + exposed_s
        # A checkpoint begins only when the one before is written: what is left of that is waited for.
        left_s, waited_s = np.maximum(0.0, self.writing_s - exposed_s), None
        if self.every_steps and due(self.every_steps, step):
            waited_s = left_s + self.blocking_s
            undone_s, self.fresh_s = self.fresh_s, np.zeros_like(undone_s)
            left_s = np.full_like(undone_s, self.beside_s)
        self.writing_s = left_s
        self.undone_s = np.where(left_s > 0, undone_s, self.fresh_s)
        return waited_s


def _factor(response: StepResponse, generation: FloatArray, trainer: FloatArray) -> FloatArray:
    """Factor on a step whose generation and whose passes of the trainer take theirs."""
    moved = replace(unmoved(), generation=generation, logprob=trainer, train=trainer)
    return response.seconds(moved) / float(response.seconds(unmoved())[0])
