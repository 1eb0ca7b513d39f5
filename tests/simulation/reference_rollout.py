"""A token-by-token replica: every engine iteration on its own, slow and simple, written apart from the fast one.

Same rules as ``rlsim.simulation.replica`` (see its docstring), same costs, no closed form: per iteration it lists what
each resident sequence holds, evicts, prefills, admits, adds one iteration to every decoding sequence and looks the time
up.
"""

import math
from dataclasses import dataclass

import numpy as np

from rlsim.costs.interface import IterationTable
from rlsim.simulation.requests import Request


@dataclass(eq=False)
class Progress:
    """progress: decode iterations done; emitted: has its first token; to_prefill: 0 while decoding."""

    sample: Request
    arrival_s: float
    progress: int = 0
    emitted: bool = False
    to_prefill: int = 0


def behind_seconds(table: IterationTable, start: int, chunk: int) -> float:
    """Seconds of a chunk behind ``start`` tokens, token by token: a linear function has its mean in the middle."""
    knots = np.arange(len(table.prefill_context_s)) * table.context_step_tokens
    middles = start + np.arange(chunk) + 0.5
    slope = (table.prefill_context_s[-1] - table.prefill_context_s[-2]) / table.context_step_tokens
    beyond = slope * np.maximum(middles - knots[-1], 0.0)
    return float(np.sum(np.interp(middles, knots, table.prefill_context_s) + beyond))


def iteration_seconds(table: IterationTable, n: int, mean_context: float, prefill: int) -> float:
    """Seconds of one iteration straight from the table's definition."""
    seconds = float(table.step_s[n])
    if n:
        knots = np.arange(table.attention_s.shape[1]) * table.context_step_tokens
        row = table.attention_s[n]
        if mean_context > knots[-1]:
            slope = (row[-1] - row[-2]) / table.context_step_tokens
            seconds += float(row[-1] + slope * (mean_context - knots[-1]))
        else:
            seconds += float(np.interp(mean_context, knots, row))
    if prefill:
        grid = table.prefill_grid_tokens
        row = np.array([np.interp(n, table.prefill_sequences, column) for column in table.prefill_s.T])
        if prefill > grid[-1]:
            slope = (row[-1] - row[-2]) / (grid[-1] - grid[-2])
            seconds += float(row[-1] + slope * (prefill - grid[-1]))
        else:
            seconds += float(np.interp(prefill, grid, row))
    return seconds


class ReferenceReplica:
    """run() returns {sample id: finish time}. interrupts: (time, pause, recompute)."""

    def __init__(self, table: IterationTable, prefix_caching: bool = True) -> None:
        self.table, self.sharing = table, prefix_caching
        self.waiting: list[Progress] = []
        self.running: list[Progress] = []
        self.now = 0.0
        self.iterations = self.preemptions = self.prefilled = 0
        self.peak_kv = 0.0
        self.interrupts: list[tuple[float, float, bool]] = []
        self.finish: dict[int, float] = {}

    def submit(self, time_s: float, samples: list[Request]) -> None:
        self.waiting += [Progress(sample, time_s) for sample in samples]

    def growth(self, request: Progress) -> float:
        total = request.sample.iterations
        return (request.sample.response_tokens - 1) / total if total else 0.0

    def own_kv(self, request: Progress) -> float:
        """Tokens held beyond the prompt: generated, being prefilled again, and those of one iteration."""
        again = 1 if request.to_prefill and request.emitted else 0
        return (request.progress + again) * self.growth(request) + self.table.tokens_per_sequence

    def kv(self, running: list[Progress]) -> float:
        own = sum(self.own_kv(r) for r in running)
        if self.sharing:
            return own + sum({r.sample.group: r.sample.prompt_tokens for r in running}.values())
        return own + sum(r.sample.prompt_tokens for r in running)

    def prefill_need(self, request: Progress, others: list[Progress]) -> int:
        generated = math.ceil(request.progress * self.growth(request)) + 1 if request.emitted else 0
        if self.sharing and any(r.sample.group == request.sample.group for r in others):
            return max(1, generated)
        return request.sample.prompt_tokens + generated

    def slots(self) -> int:
        return min(self.table.max_running_sequences, self.table.max_batched_tokens // self.table.tokens_per_sequence)

    def interrupt(self) -> None:
        while self.interrupts:
            due = self.now
            if not self.running:
                due = max(due, self.waiting[0].arrival_s)
            time_s, pause_s, recompute = self.interrupts[0]
            if time_s > due:
                return
            del self.interrupts[0]
            # A recomputation delays those who were aborted for it; where nobody was, nobody is late.
            self.now = max(self.now, time_s) + (pause_s if self.running or not recompute else 0.0)
            if recompute:
                for i, request in enumerate(self.running):
                    request.to_prefill = self.prefill_need(request, self.running[:i])

    def run(self) -> dict[int, float]:
        while self.waiting or self.running:
            self.step()
        return self.finish

    def take(self, request: Progress, taken: int, budget: int) -> int:
        if self.table.chunked_prefill:
            return min(request.to_prefill, budget - taken)
        return request.to_prefill if taken == 0 or taken + request.to_prefill <= budget else 0

    def step(self) -> None:
        table = self.table
        self.interrupt()
        if not self.running:
            self.now = max(self.now, self.waiting[0].arrival_s)
        evicted = False
        while self.kv(self.running) > table.kv_capacity_tokens:
            request = self.running.pop()
            request.to_prefill = 0
            self.waiting.insert(0, request)
            self.preemptions += 1
            evicted = True
        decoding = [r for r in self.running if not r.to_prefill]
        budget = table.max_batched_tokens - table.tokens_per_sequence * len(decoding)
        if not table.chunked_prefill:
            budget = table.max_batched_tokens
        chunks: list[tuple[Progress, int]] = []
        taken, stuck = 0, False
        for request in [r for r in self.running if r.to_prefill]:
            chunk = self.take(request, taken, budget)
            stuck = stuck or chunk < request.to_prefill
            if not chunk:
                break
            chunks.append((request, chunk))
            taken += chunk
        while self.waiting and not evicted and not stuck and len(self.running) < self.slots():
            request = self.waiting[0]
            if request.arrival_s > self.now:
                break
            request.to_prefill = self.prefill_need(request, self.running)
            chunk = self.take(request, taken, budget)
            if not chunk or self.kv([*self.running, request]) > table.kv_capacity_tokens:
                request.to_prefill = 0
                break
            self.running.append(self.waiting.pop(0))
            chunks.append((request, chunk))
            taken += chunk
        if chunks and not table.chunked_prefill:
            decoding = []
        self.execute(decoding, chunks, taken)

    def execute(self, decoding: list[Progress], chunks: list[tuple[Progress, int]], taken: int) -> None:
        for request, chunk in chunks:
            generated = math.ceil(request.progress * self.growth(request)) + 1 if request.emitted else 0
            end = request.sample.prompt_tokens + generated
            self.now += behind_seconds(self.table, end - request.to_prefill, chunk)
        self.peak_kv = max(self.peak_kv, self.kv(self.running))
        contexts = [r.sample.prompt_tokens + r.progress * self.growth(r) for r in decoding]
        mean = sum(contexts) / len(contexts) if contexts else 0.0
        self.now += iteration_seconds(self.table, len(decoding), mean, taken)
        self.iterations += 1
        self.prefilled += taken
        for request in decoding:
            request.progress += 1
        for request, chunk in chunks:
            request.to_prefill -= chunk
            if not request.to_prefill:
                request.progress += request.emitted
                request.emitted = True
        for request in [*decoding, *(r for r, _ in chunks if not r.to_prefill)]:
            if request.progress >= request.sample.iterations:
                self.running.remove(request)
                self.finish[request.sample.id] = self.now
