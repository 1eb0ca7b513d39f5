"""The rollout engine: continuous batching over a KV cache, temperature sampling, drafts and their verification.

Rules of rlsim's replica (rlsim/simulation/replica.py) with chunked_prefill false and prefix_caching false: an iteration
that can admit whole prompts does so and decodes nothing; it emits their first token. Others decode every sequence once.
The end of a sequence is forced at its length. On a GPU a decoding iteration is one captured graph for each number of
sequences: drafts, verification, sampling and bookkeeping, after which the host waits for the counts of accepted tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bench.loop.drafts import DraftModel, NGram
from bench.loop.policy import CachedModel
from bench.loop.settings import LoopSettings
from bench.rejection import Draft, sampling_probabilities, verify
from bench.speculation import Target
from bench.timing import capture, warm_up

_PLACE = 2
"""Slot of the last token of every sequence while graphs are captured: any that drafters find a token before."""


@dataclass
class Request:
    """One sample: its number in the run, its prompt, and the length of its response; what it has so far."""

    sample: int
    prompt: NDArray[np.int64]
    response_tokens: int
    emitted: int = 0
    iterations: int = 0

    @property
    def tokens(self) -> int:
        """Tokens in the cache: all that there are but the last one."""
        return len(self.prompt) + self.emitted - 1


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
        self.settings, rows, device = settings, settings.running, policy.head.device
        self.device, self.on_gpu = device, device.type == "cuda"
        self.cached = CachedModel(policy, rows, capacity)
        self.drafter: DraftModel | NGram | None = None
        if settings.queries > 1:
            model = settings.drafter == "model"
            self.drafter = DraftModel(policy, rows, capacity, settings.temperature) if model else NGram()
        self.history = torch.zeros(rows, capacity, dtype=torch.long, device=device)
        # By row: slot of the last token, the slot at which its sequence ends, and tokens accepted last.
        self.lengths, self.ends, self.counts = (torch.zeros(rows, dtype=torch.long, device=device) for _ in range(3))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        # Graphs draw from the device's own generator, which a replay advances.
        self.generator = None if self.on_gpu else torch.Generator()
        self.graphs: dict[int, Callable[[], object]] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.on_gpu else None
        self.seed(settings.seed + 1)

    def seed(self, number: int) -> None:
        """Begin the sequence of draws that belongs to a number."""
        if self.generator is None:
            torch.cuda.manual_seed(number)
        else:
            self.generator.manual_seed(number)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue samples."""
        self.waiting.extend(requests)

    def capture(self, sizes: Iterable[int]) -> None:
        """Capture the iterations of so many sequences while none runs; nothing on a CPU."""
        for n in sorted(set(sizes) - set(self.graphs), reverse=True) if self.on_gpu else ():
            self.lengths.fill_(_PLACE)
            self.ends.fill_(_PLACE)

            def step(n: int = n) -> None:
                self._step(n, self.history.shape[1])

            with torch.no_grad():
                warm_up([step])
                self.graphs[n] = capture([step], self.pool)

    def iterate(self) -> Iteration | None:
        """One iteration; None where nothing runs or waits."""
        start_s, cpu_s = time.monotonic(), time.process_time()
        with torch.no_grad():
            if self.waiting and len(self.running) < self.settings.running:
                return self._prefill(start_s, cpu_s)
            if not self.running:
                return None
            decoding = len(self.running)
            context = sum(one.tokens for one in self.running) / decoding
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
        prompts = torch.from_numpy(np.stack([one.prompt for one in self.running[rows]])).to(self.device)
        length = prompts.shape[1]
        start = torch.zeros(prompts.shape[0], dtype=torch.long, device=self.device)
        hidden = self.cached.forward(prompts, start, rows, length)
        if self.drafter is not None:
            self.drafter.prefill(prompts, rows)
        target = sampling_probabilities(self.cached.logits(hidden[:, -1:]), settings.temperature)
        emitted, _ = verify(target, Draft(prompts[:, :0]), self.generator)
        self.history[rows, :length] = prompts
        self.history[rows, length] = emitted[:, 0]
        self.lengths[rows] = length
        ends = [length + one.response_tokens - 1 for one in self.running[rows]]
        self.ends[rows] = torch.tensor(ends, device=self.device)
        for one in self.running[rows]:
            one.emitted = 1
        settle(self.device)
        finished = self._leave()
        return Iteration(start_s, *_since(start_s, cpu_s), 0, 0.0, tokens, (), finished)

    def _decode(self, n: int) -> tuple[int, ...]:
        """Draft, verify, and take what was accepted, at most to each sequence's end."""
        if self.on_gpu:
            self.graphs[n]()
        else:
            self._step(n, int(self.lengths[:n].max()) + self.settings.queries)
        accepted = tuple(self.counts[:n].tolist())
        for one, more in zip(self.running, accepted, strict=True):
            one.emitted = min(one.response_tokens, one.emitted + more)
            one.iterations += 1
        return accepted

    def _step(self, n: int, seen: int) -> None:
        """What the device does of it, in place and without a word to the host."""
        settings, lengths, history = self.settings, self.lengths[:n], self.history[:n]
        k = settings.queries - 1
        last = history.gather(1, lengths[:, None])
        draft = Draft(last[:, :0])
        if self.drafter is not None:
            draft = self.drafter.propose(history, lengths, k, seen, self.generator)
        fed = torch.cat([last, draft.tokens], 1)
        hidden = self.cached.forward(fed, lengths, slice(0, n), seen)
        target = sampling_probabilities(self.cached.logits(hidden), settings.temperature)
        tokens, count = verify(target, draft, self.generator)
        # Slots behind the accepted tokens hold rejected ones until they are written over; nothing looks there.
        history.scatter_(1, lengths[:, None] + 1 + torch.arange(k + 1, device=self.device), tokens)
        self.counts[:n] = count
        lengths.copy_(torch.minimum(lengths + count, self.ends[:n]))

    def _leave(self) -> tuple[Request, ...]:
        """Take out the sequences that have all their tokens."""
        self._ended: dict[int, NDArray[np.int64]] = {}
        finished = [one for one in self.running if one.emitted >= one.response_tokens]
        for one in finished:
            row, final = self.running.index(one), len(self.running) - 1
            total = len(one.prompt) + one.response_tokens
            self._ended[one.sample] = self.history[row, :total].cpu().numpy().copy()
            if row != final:
                slots = self.running[final].tokens + 1
                self.history[row, :slots] = self.history[final, :slots]
                self.lengths[row], self.ends[row] = self.lengths[final], self.ends[final]
                for model in (self.cached, self.drafter):
                    if model is not None:
                        model.move(final, row, slots)
                self.running[row] = self.running[final]
            self.running.pop()
        return tuple(finished)


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _since(start_s: float, cpu_s: float) -> tuple[float, float]:
    return time.monotonic() - start_s, time.process_time() - cpu_s
