"""Trajectories of several turns on a pool of replicas: whoever ends a turn leaves its replica's batch, waits for the
environment and comes back with a longer context.

- A trajectory starts in the order of submission, once there is a place for its sandbox (``max_trajectories``,
  ``nodes``). Where sandboxes take time to start, its first turn waits for its own or for one that was started before,
  whichever is ready first. It stays on the replica that its first turn was dispatched to, unless ``session_routing``
  says otherwise.
- After a turn that is not its last the environment works on it, at once where fewer than ``max_environments`` turns are
  being worked on, else first come, first served. A call that fails is made again in the same place. Where a service
  lets ``calls_per_s`` begin, every call takes the next free moment. Then the next turn is submitted.
- An attempt begins with an empty history. A trajectory that is out of time ends with the turn or with the work of the
  environment that is in progress.
- After its last turn a trajectory frees its place; a judge, where there is one, sees it before it counts as finished,
  first come, first served.

What happens at the same time happens in the order in which it was foreseen, and nothing is drawn here.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heappushpop

from rlsim.costs.interface import EngineCounters
from rlsim.schema.workload import Agent
from rlsim.simulation.pool import Finished, GenerationPool
from rlsim.simulation.requests import Request
from rlsim.simulation.trajectories import AgentCounters, AgentTimeline, Trajectories


class _Places:
    """Places of an environment or a judge; ``begin`` puts somebody on one and may do so at once or later."""

    def __init__(self, most: int | None, begin: Callable[[float, int], None]) -> None:
        self._free = math.inf if most is None else most
        self._begin = begin
        self._queue: deque[tuple[float, int]] = deque()
        self.queued_s = 0.0

    def ask(self, time_s: float, trajectory: int) -> None:
        """A place for a trajectory, or one in the queue."""
        if self._free > 0:
            self._free -= 1
            self._begin(time_s, trajectory)
        else:
            self._queue.append((time_s, trajectory))

    def leave(self, time_s: float) -> None:
        """A place is free; who waits longest takes it."""
        if self._queue:
            since_s, trajectory = self._queue.popleft()
            self.queued_s += time_s - since_s
            self._begin(time_s, trajectory)
        else:
            self._free += 1


class AgentPool:
    """A :class:`GenerationPool` to those who submit trajectories and hear of their ends; times in seconds."""

    def __init__(self, pool: GenerationPool, agent: Agent, trajectories: Trajectories, sharing: bool) -> None:
        self._pool, self._agent = pool, agent
        self._keeps = agent.keep_prefix and sharing
        self._requests = trajectories.requests
        self._turn, self._end = trajectories.first[:-1].tolist(), trajectories.first[1:].tolist()
        self._environment_s, self._judge_s = trajectories.environment_s.tolist(), trajectories.judge_s.tolist()
        self._calls = None if trajectories.calls is None else trajectories.calls.tolist()
        self._start_s = None if trajectories.start_s is None else trajectories.start_s.tolist()
        # When each sandbox that nobody has is ready.
        self._ready_s = [0.0] * min(agent.started_sandboxes, len(self._turn))
        self._interval_s = 0.0 if agent.calls_per_s is None else 1.0 / agent.calls_per_s
        self._service_free_s = self._service_queued_s = 0.0
        self._since_s = [0.0] * len(self._turn)
        self._timeout_s = math.inf if agent.trajectory_timeout_s is None else agent.trajectory_timeout_s
        self._replica, self._deadline_s = [0] * len(self._turn), [math.inf] * len(self._turn)
        self._events: list[tuple[float, int, Callable[[float, int], None], int]] = []
        self._foreseen = 0
        self._starts = _Places(agent.sandboxes, self._start)
        self._environments = _Places(agent.max_environments, self._work)
        self._judges = _Places(agent.judge.concurrency if agent.judge else None, self._judge)
        self._started: list[Request] | None = None
        self._finished: Finished = lambda time_s, sample, replica: False
        self._stop = False
        self._counters = AgentCounters()
        self.timeline = AgentTimeline()

    @property
    def counters(self) -> EngineCounters:
        """Counters of the engines so far."""
        return self._pool.counters

    @property
    def agent_counters(self) -> AgentCounters:
        """Counters of trajectories so far, besides generation."""
        counters, replicas = self._counters, self._pool.replicas
        counters.environment_idle_s = sum(replica.absence.environment_s for replica in replicas)
        counters.judge_idle_s = sum(replica.absence.judge_s for replica in replicas)
        counters.reused_tokens = float(sum(replica.cache.reused for replica in replicas))
        counters.loaded_tokens = float(sum(replica.cache.loaded for replica in replicas))
        counters.queued_s = self._environments.queued_s + self._service_queued_s
        counters.judge_queued_s = self._judges.queued_s
        return counters

    @property
    def peak_kv_tokens(self) -> float:
        """Most KV cache that any replica had in use, in tokens."""
        return self._pool.peak_kv_tokens

    def pause(self, time_s: float, duration_s: float) -> None:
        """Stop every replica for ``duration_s``; environments and judge go on."""
        self._pool.pause(time_s, duration_s)

    def recompute_kv(self, time_s: float, delay_s: float = 0.0) -> None:
        """All resident sequences prefill their context again, and so do those that come back."""
        self._pool.recompute_kv(time_s, delay_s)

    def submit(self, time_s: float, samples: Sequence[Request]) -> None:
        """Let trajectories start, those that may at once dispatched together."""
        self._started = []
        for sample in samples:
            self._starts.ask(time_s, sample.id)
        # Together, or dispatchers that count a batch would deal each trajectory as one of its own.
        started, self._started = self._started, None
        if started:
            self._pool.submit(time_s, started)

    def run(self, time_s: float, finished: Finished) -> bool:
        """Run until a time and call ``finished`` at every end of a trajectory; whether one stopped the run.

        What starts at ``time_s`` itself is left for later, as in :meth:`GenerationPool.run`.
        """
        self._finished, self._stop = finished, False
        events = self._events
        while True:
            # Engines run no further than the next event outside, which may submit to them.
            until_s = min(time_s, events[0][0]) if events else time_s
            if not self._pool.run(until_s, self._ended):
                if not events or events[0][0] > time_s:
                    return False
                while events and events[0][0] <= until_s:
                    at_s, _, happens, trajectory = heappop(events)
                    happens(at_s, trajectory)
            if self._stop:
                return True

    def _foresee(self, time_s: float, happens: Callable[[float, int], None], trajectory: int) -> None:
        self._foreseen += 1
        heappush(self._events, (time_s, self._foreseen, happens, trajectory))

    def _start(self, time_s: float, trajectory: int) -> None:
        """A trajectory has a place; one that waited for it starts with the next event, or once its sandbox is ready."""
        self._since_s[trajectory] = time_s
        self.timeline.sandbox.change(time_s, 1)
        if self._start_s is not None:
            begins_s = max(time_s, heappushpop(self._ready_s, time_s + self._start_s[trajectory]))
            self._counters.start_s += begins_s - time_s
            self._foresee(begins_s, self._begin, trajectory)
        elif self._started is None:
            self._foresee(time_s, self._begin, trajectory)
        else:
            self._deadline_s[trajectory] = time_s + self._timeout_s
            self._started.append(self._next(time_s, trajectory))

    def _begin(self, time_s: float, trajectory: int) -> None:
        self._deadline_s[trajectory] = time_s + self._timeout_s
        self._pool.submit(time_s, (self._next(time_s, trajectory),))

    def _next(self, time_s: float, trajectory: int) -> Request:
        """The turn that a trajectory submits now."""
        request: Request = self._requests[self._turn[trajectory]]
        self.timeline.context.change(time_s, request.prompt_tokens + request.history_tokens)
        return request

    def _ended(self, time_s: float, trajectory: int, replica: int) -> bool:
        """A turn has its last token; whether the pool must stop for what follows."""
        self._counters.turns += 1.0
        self._replica[trajectory] = replica
        engine = self._pool.replicas[replica]
        engine.absence.turn_ended(time_s, idle=not engine.outstanding)
        turn, foreseen = self._turn[trajectory], self._foreseen
        self.timeline.context.change(time_s, -self._requests[turn].prompt_tokens - self._requests[turn].history_tokens)
        self._turn[trajectory] = following = turn + 1
        if following == self._end[trajectory] or time_s >= self._deadline_s[trajectory]:
            self._leave(time_s, trajectory)
            return self._stop or self._foreseen > foreseen
        # A first turn follows a failed attempt: it starts from the prompt, and nothing of the context is of use.
        tokens = 0
        if self._keeps and self._requests[following].history_tokens:
            request = self._requests[turn]
            tokens = request.prompt_tokens + request.history_tokens + request.response_tokens - 1
        self._pool.leave(time_s, replica, trajectory, tokens)
        self.timeline.environment.change(time_s, 1)
        self._environments.ask(time_s, trajectory)
        return self._foreseen > foreseen

    def _work(self, time_s: float, trajectory: int) -> None:
        """The environment begins to work after the turn that a trajectory ended."""
        seconds, begins_s = self._environment_s[self._turn[trajectory] - 1], time_s
        deadline_s = self._deadline_s[trajectory]
        if self._interval_s:
            begins_s = max(time_s, self._service_free_s)
            if begins_s <= deadline_s:
                self._service_free_s = begins_s + self._interval_s
        until_s = begins_s + seconds
        if until_s > deadline_s:
            # Where it waited past its deadline, no time is left to work.
            until_s = max(time_s, deadline_s)
            begins_s = min(begins_s, until_s)
            seconds = until_s - begins_s
        self._service_queued_s += begins_s - time_s
        self._counters.environment_s += seconds
        self._counters.calls += 1.0
        self._foresee(until_s, self._answered, trajectory)

    def _answered(self, time_s: float, trajectory: int) -> None:
        if self._calls is not None and time_s < self._deadline_s[trajectory]:
            turn = self._turn[trajectory] - 1
            self._calls[turn] -= 1
            if self._calls[turn]:
                self._work(time_s, trajectory)
                return
        self._environments.leave(time_s)
        self.timeline.environment.change(time_s, -1)
        number = self._replica[trajectory]
        if time_s >= self._deadline_s[trajectory]:
            self._pool.replicas[number].absence.environment(time_s, -1)
            self._leave(time_s, trajectory)
            return
        request = self._next(time_s, trajectory)
        # Another attempt has a deadline of its own.
        if not request.history_tokens:
            self._deadline_s[trajectory] = time_s + self._timeout_s
        self._pool.submit_to(time_s, number, request)

    def _leave(self, time_s: float, trajectory: int) -> None:
        """A trajectory generates no more."""
        turn, end = self._turn[trajectory], self._end[trajectory]
        if turn < end:
            self._counters.timed_out += 1.0
            self._counters.skipped_tokens += sum(one.response_tokens for one in self._requests[turn:end])
        self._counters.sandbox_s += time_s - self._since_s[trajectory]
        self.timeline.sandbox.change(time_s, -1)
        # The judge works beside: who is judged holds no place of a trajectory.
        self._starts.leave(time_s)
        if self._agent.judge is None:
            self._stop |= self._finished(time_s, trajectory, self._replica[trajectory])
            return
        self.timeline.judge.change(time_s, 1)
        self._pool.replicas[self._replica[trajectory]].absence.judge(time_s, 1)
        self._judges.ask(time_s, trajectory)

    def _judge(self, time_s: float, trajectory: int) -> None:
        seconds = self._judge_s[trajectory]
        self._counters.judge_s += seconds
        self._foresee(time_s + seconds, self._judgement, trajectory)

    def _judgement(self, time_s: float, trajectory: int) -> None:
        self._judges.leave(time_s)
        self.timeline.judge.change(time_s, -1)
        self._pool.replicas[self._replica[trajectory]].absence.judge(time_s, -1)
        self._stop |= self._finished(time_s, trajectory, self._replica[trajectory])
