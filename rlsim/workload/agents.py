"""The turns of a step's trajectories, drawn from a seed alone, failed attempts included.

The first turn of the first attempt is the response that :func:`~rlsim.workload.batches.draw_batch` draws without
agents. Every further purpose has a stream of its own, so that no key moves what another one draws.
"""

import math
from collections.abc import Iterator

import numpy as np
from msgspec import Struct, field

from rlsim.schema.workload import Agent, ConstantTurns, QuantileTurns, Workload
from rlsim.units import BoolArray, FloatArray, IntArray
from rlsim.workload.file_cache import cached_with_files
from rlsim.workload.lengths import (
    LengthDistribution,
    Place,
    solve_distribution,
    solve_time,
    solve_turns,
    whole_tokens,
)

# Purposes below are those of batches.py.
_FIRST_PURPOSE = 16
_COUNTS, _GROUP_COUNTS, _TURNS, _OBSERVATIONS, _TIMES, _OWN_TIMES, _GROUP_TIMES, _FAILURES, _JUDGE, _OWN_TURNS = range(
    _FIRST_PURPOSE, _FIRST_PURPOSE + 10
)
_STARTS, _CALLS = range(_FIRST_PURPOSE + 10, _FIRST_PURPOSE + 12)
_NO_CAP = 10_000_000


class Turns(Struct, frozen=True, eq=False):
    """Turns of a rollout's trajectories one after the other, each trajectory's attempts in order.

    first: number of the first turn of each trajectory and, last, of all turns, shape (samples + 1,). The others have
    one entry per turn. history_tokens: context beyond the prompt when it begins, 0 where an attempt begins.
    response_tokens: generated. environment_s: the environment works after it, 0 after the last turn of a trajectory.
    judge_s: of each trajectory, shape (samples,). calls: times that the environment works, None for once each.
    start_s: of the sandbox of each trajectory, None where none takes time.
    """

    first: IntArray
    history_tokens: IntArray
    response_tokens: IntArray
    environment_s: FloatArray
    judge_s: FloatArray
    calls: IntArray | None = None
    start_s: FloatArray | None = None

    @property
    def count(self) -> int:
        """All turns."""
        return int(self.response_tokens.size)

    @property
    def single(self) -> bool:
        """Whether every trajectory has one turn alone."""
        return self.count == self.first.size - 1


_Turn = tuple[IntArray, IntArray, IntArray, IntArray, FloatArray, IntArray]
"""Some turns of an attempt, turn by turn: number in it, trajectory, and as of :class:`Turns` history, response,
environment and calls."""
_BLOCK = 2**13
"""Turns drawn at once, which a core's cache holds: of more, contexts that are full draw many in vain."""


def mean_turns(agent: Agent | None) -> float:
    """Turns of a trajectory in the mean; 1 of a response without an agent."""
    turns = agent and agent.turns
    if isinstance(turns, QuantileTurns):
        return float(np.interp((np.arange(64) + 0.5) / 64, turns.quantiles, turns.turns).mean())
    return turns.turns if isinstance(turns, ConstantTurns) else turns.mean_turns if turns else 1.0


class _Draw(Struct):
    """What the draws of one rollout share. shared: normal score of each trajectory's prompt for its lengths."""

    workload: Workload
    agent: Agent
    place: Place
    prompt: IntArray
    group: IntArray
    shared: FloatArray
    turn_lengths: LengthDistribution
    turns_scale: float = 1.0
    out: list[_Turn] = field(default_factory=list)

    def stream(self, purpose: int, attempt: int = 0) -> np.random.Generator:
        """A stream of its own for each purpose and attempt."""
        return _stream(self.place, purpose, attempt)

    def normals(self, purpose: int, attempt: int = 0) -> FloatArray:
        """One normal score a trajectory."""
        return self.stream(purpose, attempt).standard_normal(self.group.size)

    def of_groups(self, purpose: int, with_lengths: float) -> FloatArray:
        """One normal score a prompt, for each of its trajectories. with_lengths: its correlation with ``shared``."""
        own = self.stream(purpose).standard_normal(int(self.group[-1]) + 1)[self.group]
        return with_lengths * self.shared + math.sqrt(1 - with_lengths**2) * own


@cached_with_files(64)
def _distributions(agent: Agent) -> tuple[LengthDistribution, ...]:
    """Distributions of turns, observations, environment times and the judge's times; of files as they are now."""
    judge = () if agent.judge is None else (solve_time(agent.judge.trajectory_s),)
    observations = solve_distribution(agent.observation_tokens, np.array([float(_NO_CAP)]), "observation")
    return solve_turns(agent.turns, agent.max_turns), observations, solve_time(agent.environment_s), *judge


def draw_turns(
    workload: Workload,
    place: Place,
    trajectories: tuple[IntArray, IntArray],
    scores: tuple[FloatArray, FloatArray],
    turn_lengths: LengthDistribution,
    turns_scale: float = 1.0,
) -> tuple[Turns, IntArray]:
    """The turns of a rollout, and each trajectory's tokens beyond its prompt that are trained on.

    trajectories: tokens of the prompt and group of each. scores: normal scores of prompts and of first turns.
    turns_scale: factor on the turns that a trajectory wants, before they are cut at max_turns. A trajectory also ends
    where its context reaches max_sequence_tokens. Raises ValueError without agents.
    """
    agent, (prompt, group) = workload.agent, trajectories
    if agent is None:
        raise ValueError("a workload without agents has no turns")
    draw = _Draw(workload, agent, place, prompt, group, scores[0], turn_lengths, turns_scale)
    trained = np.zeros(prompt.size, dtype=np.int64)
    open_ = np.ones(prompt.size, dtype=np.bool_)
    failing = draw.stream(_FAILURES)
    for attempt in range(agent.max_attempts if agent.failure_share else 1):
        # For all trajectories, whether they are still open or not: one that ends moves no draw of another.
        chance, at = failing.random(prompt.size), failing.random(prompt.size)
        # The last attempt never fails (schema/workload.py).
        fails = open_ & (chance < agent.failure_share) & (attempt + 1 < agent.max_attempts)
        tokens = _attempt(draw, attempt, open_, np.where(fails, at, -1.0), scores[1] if attempt == 0 else None)
        trained = np.where(open_, tokens, trained)
        open_ = fails
        if not open_.any():
            break
    return _laid_out(draw), trained


class _Paces(Struct, frozen=True):
    """How long environments take: what all turns of each trajectory share of the score of their times, the scale of
    each turn's own, the stream of these and that of failing calls."""

    shared: FloatArray
    own: float
    stream: np.random.Generator
    failing: np.random.Generator

    def next_s(self, agent: Agent, shape: tuple[int, int]) -> FloatArray:
        """Seconds of the next turns, shape (turns, trajectories)."""
        seconds = _distributions(agent)[2].at(self.shared + self.own * self.stream.standard_normal(shape))
        return seconds if agent.turn_timeout_s is None else np.minimum(seconds, agent.turn_timeout_s)

    def next_calls(self, agent: Agent, shape: tuple[int, int]) -> IntArray:
        """Calls of the next turns, of that shape: each fails and is made again with the same chance."""
        if not agent.call_failure_share:
            return np.ones(shape, dtype=np.int64)
        # Geometric: more than n of them are made with the n-th power of the chance; 1 - u is above 0.
        failed = np.log(1.0 - self.failing.random(shape)) / math.log(agent.call_failure_share)
        return np.minimum(1 + failed.astype(np.int64), agent.call_attempts)


def _course(draw: _Draw, attempt: int) -> tuple[IntArray, _Paces]:
    """Turns that the trajectories of an attempt have where their contexts do not end them, and their environments."""
    agent = draw.agent
    rho = draw.workload.group_correlation
    turns_rho = rho if agent.turns_group_correlation is None else agent.turns_group_correlation
    hard = math.sqrt(turns_rho) * draw.of_groups(_GROUP_COUNTS, agent.turns_length_correlation)
    score = hard + math.sqrt(1 - turns_rho) * draw.normals(_COUNTS, attempt)
    slow_prompts = draw.of_groups(_GROUP_TIMES, agent.environment_length_correlation)
    own_pace = math.sqrt(agent.environment_trajectory_correlation) * draw.normals(_OWN_TIMES, attempt)
    pace = math.sqrt(agent.environment_group_correlation) * slow_prompts + own_pace
    rest = math.sqrt(1 - agent.environment_group_correlation - agent.environment_trajectory_correlation)
    turns = _distributions(agent)[0]
    if draw.turns_scale != 1.0:
        turns = turns.scaled(draw.turns_scale)
    wanted = whole_tokens(turns.at(score), agent.max_turns)
    return wanted, _Paces(pace, rest, draw.stream(_TIMES, attempt), draw.stream(_CALLS, attempt))


def longest_environment_s(workload: Workload, place: Place, group: IntArray, shared: FloatArray) -> float:
    """Most seconds that a trajectory of a rollout spends with environments in its first attempt, were no context full:
    what :func:`draw_turns` draws, without the rest of it. group, shared: of each trajectory, as for that. Raises
    ValueError without agents."""
    if (agent := workload.agent) is None:
        raise ValueError("a workload without agents has no turns")
    draw = _Draw(workload, agent, place, np.zeros_like(group), group, shared, LengthDistribution())
    wanted, paces = _course(draw, 0)
    spent_s = np.zeros(group.size)
    for numbers in _blocks(int(wanted.max()) - 1, group.size):
        # None after the last turn.
        shape = numbers.size, group.size
        worked_s = paces.next_s(agent, shape) * paces.next_calls(agent, shape)
        spent_s += np.where(numbers + 1 < wanted, worked_s, 0.0).sum(axis=0)
    return float(spent_s.max())


def _blocks(turns: int, trajectories: int) -> Iterator[IntArray]:
    """Numbers of turns that are drawn at once, each of shape (turns, 1)."""
    size = max(1, _BLOCK // trajectories)
    return (np.arange(first, min(first + size, turns))[:, None] for first in range(0, turns, size))


def _attempt(draw: _Draw, attempt: int, open_: BoolArray, fails_at: FloatArray, first: FloatArray | None) -> IntArray:
    """Draw one attempt of the trajectories ``open_``; their tokens beyond the prompt at its end.

    fails_at: place in the attempt after which it fails, as a share of its turns, or -1. first: scores of first turns.
    """
    agent, cap = draw.agent, draw.workload.max_sequence_tokens
    rho, own_rho = draw.workload.group_correlation, agent.response_trajectory_correlation
    observations, wanted, paces = _distributions(agent)[1], *_course(draw, attempt)
    length, seen = draw.stream(_TURNS, attempt), draw.stream(_OBSERVATIONS, attempt)
    level = math.sqrt(rho) * draw.shared + math.sqrt(own_rho) * draw.normals(_OWN_TURNS, attempt)
    history, done, tokens = (np.zeros(draw.group.size, dtype=np.int64) for _ in range(3))
    turns = list[_Turn]()
    for numbers in _blocks(int(wanted[open_].max()), draw.group.size):
        # Scores are drawn for all trajectories at every turn: one that ends moves no draw of another.
        shape = numbers.size, draw.group.size
        given = [first] if first is not None and not numbers[0] else []
        own = np.vstack([*given, length.standard_normal((shape[0] - len(given), shape[1]))])
        wished = draw.turn_lengths.at(level + math.sqrt(1 - rho - own_rho) * own)
        wished_tokens = whole_tokens(wished, draw.workload.max_response_tokens or cap)
        answer = np.maximum(np.rint(observations.at(seen.standard_normal(shape))), 1).astype(np.int64)
        seconds = paces.next_s(agent, shape)
        before = np.vstack([history, wished_tokens + answer])
        for row in range(1, len(before)):  # numpy's own sum along this axis takes many times as long
            before[row] += before[row - 1]
        before, history = before[:-1], before[-1]
        # A response that the cap cuts is the last one: what follows begins at the cap or beyond.
        alive = open_ & (numbers < wanted) & (draw.prompt + before < cap)
        response = np.minimum(wished_tokens, cap - draw.prompt - before)
        place = np.flatnonzero(alive)  # of the turns of these, one number after the other
        number, index = np.divmod(place, shape[1])
        taken = [each.ravel()[place] for each in (before, response, seconds, paces.next_calls(agent, shape))]
        turns.append((numbers[0, 0] + number, index, *taken))
        tokens = np.where(alive, before + response, tokens).max(axis=0)
        done += np.count_nonzero(alive, axis=0)
        if not alive[-1].any():
            break
    _cut(draw, turns, fails_at, done)
    return tokens


def _cut(draw: _Draw, turns: list[_Turn], fails_at: FloatArray, done: IntArray) -> None:
    """Keep the turns of an attempt up to where it fails; nothing waits for the environment after a last turn. done:
    turns of each trajectory."""
    last = np.where(fails_at >= 0, np.floor(fails_at * done), done - 1).astype(np.int64)
    for number, index, history, response, seconds, calls in turns:
        reached = last[index] >= number
        ends = (last[index] == number) & (fails_at[index] < 0)
        seconds = np.where(ends, 0.0, seconds)
        tokens = history[reached], response[reached]
        draw.out.append((number[reached], index[reached], *tokens, seconds[reached], calls[reached]))


def _laid_out(draw: _Draw) -> Turns:
    """All turns, trajectory by trajectory; those of one trajectory were drawn in their order."""
    _, index, history, response, seconds, calls = (np.concatenate(column) for column in zip(*draw.out, strict=True))
    # Stable: turns of a trajectory stay in the order in which they were drawn.
    order = np.argsort(index, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(index, minlength=draw.group.size))))
    agent, place, size = draw.agent, draw.place, draw.group.size
    made = calls[order] if agent.call_failure_share else None
    columns = first.astype(np.int64), history[order], response[order], seconds[order]
    return Turns(*columns, judged_s(agent, place, size), made, started_s(agent, place, size))


def started_s(agent: Agent, place: Place, trajectories: int) -> FloatArray | None:
    """Seconds that the sandbox of each trajectory takes to start; None where none takes any."""
    if not agent.starts:
        return None
    return solve_time(agent.start_s).at(_stream(place, _STARTS).standard_normal(trajectories))


def judged_s(agent: Agent, place: Place, trajectories: int) -> FloatArray:
    """Seconds that the judge takes for each trajectory; 0 without one."""
    if agent.judge is None:
        return np.zeros(trajectories)
    return _distributions(agent)[3].at(_stream(place, _JUDGE).standard_normal(trajectories))


def _stream(place: Place, purpose: int, attempt: int = 0) -> np.random.Generator:
    """A stream of its own for each purpose and attempt."""
    seed, step, replication, number = place
    return np.random.default_rng(np.array([seed, replication, step, purpose, number, attempt], dtype=np.uint32))
