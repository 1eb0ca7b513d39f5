"""How fast the machine is at this moment: CPU seconds of a fixed small step of the loop.

Clocks, caches and hyper-threads that neighbours share make one machine faster or slower by a third from one minute to
the next, also where no other process shows. Seconds measured at one moment meet those of another through this step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.loop.engine import Engine
from bench.loop.policy import copied, random_policy
from bench.loop.settings import LoopSettings
from bench.loop.together import assembled, requests_of
from bench.loop.training import Trainer

READINGS = 3
Seconds = dict[tuple[Any, ...], list[float]]


class Pace:
    """A step of eight samples in one thread. ``reference_s``: what it took first. A GPU keeps its pace: there a reading
    is always 1."""

    def __init__(self, base: LoopSettings) -> None:
        small: dict[str, Any] = {"response_tokens": (24.0, 24.0), "quantiles": (0.0, 1.0), "lengths": ()}
        plain: dict[str, Any] = {"drafter": "none", "draft_length": 0, "placement": "shared", "lag": 0}
        sized: dict[str, Any] = {"prompts": 1, "samples": 8, "running": 8, "steps": 1, "warmup_steps": 0}
        self.settings = replace(base, name="pace", **small, **plain, **sized)
        self.reference_s = 1.0
        if base.device != "cpu":
            return
        policy = random_policy(base.dims, base.seed)
        self.engine = Engine(policy, self.settings, self.settings.capacity)
        self.trainer = Trainer(copied(policy), self.settings, self.settings.capacity)
        self._step_s()  # the first one finds its memory and its kernels cold
        self.reference_s = self.seconds()

    def seconds(self) -> float:
        """What it takes now, CPU seconds; median of some readings."""
        if self.settings.device != "cpu":
            return self.reference_s
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return statistics.median(self._step_s() for _ in range(READINGS))
        finally:
            torch.set_num_threads(before)

    def evened(self, measure: Callable[[], tuple[Seconds, ...]]) -> tuple[Seconds, ...]:
        """Seconds that ``measure`` finds, at the pace of the reference: read before and after it."""
        before_s = self.seconds()
        found = measure()
        factor = 2.0 * self.reference_s / (before_s + self.seconds())
        return tuple({point: [one * factor for one in many] for point, many in part.items()} for part in found)

    def _step_s(self) -> float:
        start_s = time.process_time()
        tokens: dict[int, NDArray[np.int64]] = {}
        self.engine.submit(requests_of(self.settings, 0))
        while (done := self.engine.iterate()) is not None:
            tokens.update((one.sample, self.engine.tokens_of(one)) for one in done.finished)
        self.trainer.update(assembled(self.settings, 0, tokens), [])
        return time.process_time() - start_s
