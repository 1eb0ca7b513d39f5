"""The rollout engine: continuous batching over a KV cache, temperature sampling, drafts and their verification.

Rules of rlsim's replica (rlsim/simulation/replica.py) with chunked_prefill false and prefix_caching false: an iteration
that can admit whole prompts does so and decodes nothing; it emits their first token. Others decode every sequence once.
The end of a sequence is forced at its length.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bench.loop.drafts import DraftModel, NGram
from bench.loop.policy import CachedModel
from bench.loop.settings import LoopSettings
from bench.rejection import Draft, sampling_probabilities, verify
from bench.speculation import Target


@dataclass
class Request:
    """One sample: its number in the run, its prompt, and the length of its response; what it has so far."""

    sample: int
    prompt: NDArray[np.int64]
    response_tokens: int
    emitted: int = 0
    iterations: int = 0


@dataclass(frozen=True)
class Iteration:
    """One iteration: when it began (monotonic clock), how long it took, CPU time in it, sequences that it decoded at
    which mean context, prompt tokens that it prefilled, tokens accepted of each sequence, samples that it finished."""

    start_s: float
    seconds: float
    cpu_s: float
    decoding: int
    context_tokens: float
    prefill_tokens: int
    accepted: tuple[int, ...]
    finished: tuple[Request, ...]


class Engine:
    """Rows of the cache hold the running sequences without gaps; one that ends gives its row to the last one."""

    def __init__(self, policy: Target, settings: LoopSettings, capacity: int) -> None:
        self.settings, rows = settings, settings.running
        self.cached = CachedModel(policy, rows, capacity)
        self.drafter: DraftModel | NGram | None = None
        if settings.queries > 1:
            model = settings.drafter == "model"
            self.drafter = DraftModel(policy, rows, capacity, settings.temperature) if model else NGram()
        self.history = torch.zeros(rows, capacity, dtype=torch.long)
        self.lengths = torch.zeros(rows, dtype=torch.long)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.generator = torch.Generator().manual_seed(settings.seed + 1)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue samples."""
        self.waiting.extend(requests)

    def iterate(self) -> Iteration | None:
        """One iteration; None where nothing runs or waits."""
        start_s, cpu_s = time.monotonic(), time.process_time()
        with torch.no_grad():
            if self.waiting and len(self.running) < self.settings.running:
                return self._prefill(start_s, cpu_s)
            if not self.running:
                return None
            decoding, lengths = len(self.running), self.lengths[: len(self.running)]
            context = float(lengths.sum()) / decoding
            accepted = self._decode(decoding)
            finished = self._leave()
        return Iteration(start_s, *_since(start_s, cpu_s), decoding, context, 0, accepted, finished)

    def tokens_of(self, request: Request) -> NDArray[np.int64]:
        """Prompt and response of a sample that has just finished."""
        return self._ended[request.sample]

    def _prefill(self, start_s: float, cpu_s: float) -> Iteration:
        """Admit whole prompts while slots and token budget last."""
        settings, first, tokens = self.settings, len(self.running), 0
        while self.waiting and len(self.running) < settings.running:
            need = len(self.waiting[0].prompt)
            if tokens and tokens + need > settings.budget_tokens:
                break
            tokens += need
            self.running.append(self.waiting.popleft())
        rows = slice(first, len(self.running))
        prompts = torch.from_numpy(np.stack([one.prompt for one in self.running[rows]]))
        length = prompts.shape[1]
        start = torch.zeros(prompts.shape[0], dtype=torch.long)
        hidden = self.cached.forward(prompts, start, rows, length)
        if self.drafter is not None:
            self.drafter.prefill(prompts, rows)
        target = sampling_probabilities(self.cached.logits(hidden[:, -1:]), settings.temperature)
        emitted, _ = verify(target, Draft(prompts[:, :0]), self.generator)
        self.history[rows, :length] = prompts
        self.history[rows, length] = emitted[:, 0]
        self.lengths[rows] = length
        for one in self.running[rows]:
            one.emitted = 1
        finished = self._leave()
        return Iteration(start_s, *_since(start_s, cpu_s), 0, 0.0, tokens, (), finished)

    def _decode(self, n: int) -> tuple[int, ...]:
        """Draft, verify, and take what was accepted, at most to each sequence's end."""
        settings, lengths, history = self.settings, self.lengths[:n], self.history[:n]
        k = settings.queries - 1
        last = history.gather(1, lengths[:, None])
        draft = Draft(last[:, :0])
        if self.drafter is not None:
            draft = self.drafter.propose(history, lengths, k, self.generator)
        fed = torch.cat([last, draft.tokens], 1)
        hidden = self.cached.forward(fed, lengths, slice(0, n), int(lengths.max()) + k + 1)
        target = sampling_probabilities(self.cached.logits(hidden), settings.temperature)
        tokens, count = verify(target, draft, self.generator)
        # Slots behind the accepted tokens hold rejected ones until they are written over; nothing looks there.
        history.scatter_(1, lengths[:, None] + 1 + torch.arange(k + 1), tokens)
        accepted = tuple(count.tolist())
        left = torch.tensor([one.response_tokens - one.emitted for one in self.running])
        lengths.add_(torch.minimum(count, left))
        for one, more in zip(self.running, accepted, strict=True):
            one.emitted = min(one.response_tokens, one.emitted + more)
            one.iterations += 1
        return accepted

    def _leave(self) -> tuple[Request, ...]:
        """Take out the sequences that have all their tokens."""
        self._ended: dict[int, NDArray[np.int64]] = {}
        finished = [one for one in self.running if one.emitted >= one.response_tokens]
        for one in finished:
            row, final = self.running.index(one), len(self.running) - 1
            total = len(one.prompt) + one.response_tokens
            self._ended[one.sample] = self.history[row, :total].numpy().copy()
            if row != final:
                slots = int(self.lengths[final]) + 1
                self.history[row, :slots] = self.history[final, :slots]
                self.lengths[row] = self.lengths[final]
                for model in (self.cached, self.drafter):
                    if model is not None:
                        model.move(final, row, slots)
                self.running[row] = self.running[final]
            self.running.pop()
        return tuple(finished)


def _since(start_s: float, cpu_s: float) -> tuple[float, float]:
    return time.monotonic() - start_s, time.process_time() - cpu_s
