"""Rounds of a scheduler's kind of work in plain Python, timed: ``python host_rounds.py SECONDS``.

Nothing but the standard library is imported, so that processes beside each other start in tenths of a second. One that
runs as a program prints that it is ready, waits for a line, and prints what it measured as JSON.
"""

import json
import sys
import time
from dataclasses import dataclass

SEQUENCES, OUTPUT_TOKENS, BLOCK_TOKENS = 256, 128, 16
"""Running requests of a round, tokens at which one begins again, and tokens of a block of the cache."""
READY = "ready"


class Request:
    """A running request: what a scheduler reads and writes of it."""

    __slots__ = ("blocks", "computed_tokens", "key", "output_tokens", "prompt_tokens")

    def __init__(self, key: str, prompt_tokens: int, output_tokens: int) -> None:
        """A request with so many tokens, of which all are still to be computed."""
        self.key, self.prompt_tokens = key, prompt_tokens
        self.computed_tokens, self.output_tokens = 0, list(range(output_tokens))
        self.blocks: list[int] = []

    @property
    def tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt_tokens + len(self.output_tokens)


class Scheduler:
    """Requests in a batch, blocks of their cache, and what is scheduled for each: lists, dicts, objects, attributes."""

    def __init__(self) -> None:
        """As many requests as a round has, of unequal lengths, so that each round ends as many of them."""
        self.free = list(range(SEQUENCES * 64))
        self.running = [
            Request(f"request-{number}", 64 + number % 37, number % OUTPUT_TOKENS) for number in range(SEQUENCES)
        ]
        self.by_key = {one.key: one for one in self.running}

    def step(self) -> int:
        """Schedule every request, take blocks, hand on a token of each and let the longest begin again; tokens
        scheduled."""
        scheduled, budget = dict[str, int](), 64 * SEQUENCES * BLOCK_TOKENS
        for request in self.running:
            new = min(request.tokens - request.computed_tokens, budget)
            while len(request.blocks) * BLOCK_TOKENS < request.computed_tokens + new:
                request.blocks.append(self.free.pop())
            scheduled[request.key] = new
            budget -= new
        for key, new in scheduled.items():
            request = self.by_key[key]
            request.computed_tokens += new
            request.output_tokens.append((request.computed_tokens * 31 + new) % 32000)
            if len(request.output_tokens) >= OUTPUT_TOKENS:
                self.free.extend(reversed(request.blocks))
                request.blocks, request.output_tokens, request.computed_tokens = [], [], 0
        return sum(scheduled.values())


@dataclass(frozen=True)
class Rounds:
    """What rounds took. p50_s, p99_s: of one. waited_share: of the time, in which the thread had no core."""

    count: int
    p50_s: float
    p99_s: float
    waited_share: float


def measured_rounds(seconds: float) -> Rounds:
    """Rounds for so many seconds, the first tenth as warm-up."""
    scheduler, taken, began = Scheduler(), list[float](), time.perf_counter()
    while time.perf_counter() < began + seconds / 10:
        scheduler.step()
    start, own_start = time.perf_counter(), time.thread_time()
    before = start
    while before < began + seconds:
        scheduler.step()
        now = time.perf_counter()
        taken.append(now - before)
        before = now
    wall_s, own_s = before - start, time.thread_time() - own_start
    return of_times(taken, max(0.0, 1.0 - own_s / wall_s))


def of_times(taken: list[float], waited_share: float) -> Rounds:
    """What single rounds of these seconds amount to; percentiles by nearest rank."""
    ordered = sorted(taken)
    p50_s, p99_s = (ordered[-(-len(ordered) * rank // 100) - 1] for rank in (50, 99))
    return Rounds(len(ordered), p50_s, p99_s, waited_share)


if __name__ == "__main__":
    print(READY, flush=True)
    sys.stdin.readline()
    print(json.dumps(vars(measured_rounds(float(sys.argv[1])))))
