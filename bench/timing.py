"""How a time is measured: warm-up, device events, CUDA-graph replay, a stop criterion on spread, throttling noticed.

A measurement times one *pass*: a list of calls that do the same work on different buffers. With buffers that together
exceed the cache, every call finds its data cold; with one buffer it finds it hot.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from bench.measurements import Sample

Call = Callable[[], object]
Mode = Literal["graph", "eager"]

_THROTTLE_RATIO = {"cuda": 1.2, "cpu": 1.5}
"""Slowdown of the reference product that counts as throttling; ordinary swings of a GPU under its power limit stay
below.
"""
_COOLING_S, _COOLING_BUDGET_S = 0.5, 10.0
"""Pause before a throttled case is measured again, and the most that all pauses of a run may take together."""
_PASS_SECONDS = 2e-4
"""Least duration of a timed pass; device events resolve about half a microsecond."""
_PASS_LIMIT = 256


@dataclass(frozen=True)
class StopRule:
    """When to stop: after ``min_repeats`` passes once the spread is at most ``target_spread``, or after
    ``max_seconds``.
    """

    min_repeats: int = 7
    max_repeats: int = 200
    target_spread: float = 0.01
    max_seconds: float = 0.5


def summarise(seconds: Sequence[float]) -> Sample:
    """Sample of the per-call seconds of several passes."""
    ordered = sorted(seconds)
    median = statistics.median(ordered)
    quartile = len(ordered) // 4
    spread = (ordered[-1 - quartile] - ordered[quartile]) / 2 / median if median > 0 else float("inf")
    tail = len(ordered) // 20
    return Sample(median, ordered[tail], ordered[-1 - tail], len(ordered), spread)


def measure(calls: Sequence[Call], device: torch.device, mode: Mode, rule: StopRule) -> Sample:
    """Time one call of ``calls``. ``graph`` captures the pass and times its replay (on a CPU it is timed as it is)."""
    calls = list(calls)
    if device.type != "cuda":
        return _repeat(lambda: _host_seconds(_run(calls)), len(calls), rule)
    first = _first_seconds(calls)
    calls = calls * max(1, min(_PASS_LIMIT // len(calls), round(_PASS_SECONDS / first)))
    run = capture(calls) if mode == "graph" else _run(calls)
    run()
    torch.cuda.synchronize(device)
    return _repeat(lambda: _device_seconds(run), len(calls), rule)


def measure_host(calls: Sequence[Call], device: torch.device, rule: StopRule) -> Sample:
    """Host seconds of one call: the device is idle before a pass and not waited for inside it."""
    calls = list(calls)

    def pass_seconds() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return _host_seconds(_run(calls))

    pass_seconds()
    return _repeat(pass_seconds, len(calls), rule)


def measure_long(calls: Sequence[Call], device: torch.device, rule: StopRule) -> Sample:
    """Seconds of one call that takes far longer than a look at the host's clock; it has run before."""
    run = _run(list(calls))

    def pass_seconds() -> float:
        def waited() -> None:
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return _host_seconds(waited)

    return _repeat(pass_seconds, len(calls), rule)


def capture(calls: Sequence[Call], pool: Any = None) -> Call:
    """Replay function of a CUDA graph of the calls in order; they must have run once before. Graphs that share a
    ``pool`` of memory (``torch.cuda.graph_pool_handle()``) may hand nothing on to each other in it.

    torch.cuda.graph would collect garbage and empty the allocator's cache at each capture, which takes longer than most
    cases; here the collector only stands still while the stream is captured.
    """
    graph = torch.cuda.CUDAGraph()
    capture_into(graph, calls, pool)
    replay: Call = graph.replay
    return replay


def capture_into(graph: Any, calls: Sequence[Call], pool: Any = None) -> None:
    """Capture the calls in order into ``graph``, as :func:`capture` does."""
    stream = _side_stream(torch.cuda.current_device())
    torch.cuda.synchronize()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(*([] if pool is None else [pool]))
            try:
                for call in calls:
                    call()
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()


def _run(calls: Sequence[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def _first_seconds(calls: Sequence[Call]) -> float:
    """Rough seconds per call after warm-up on a side stream, as capture requires."""
    with _beside():
        for call in calls:
            call()
        seconds = _device_seconds(_run(calls)) / len(calls)
    return max(seconds, 1e-7)


def warm_up(calls: Sequence[Call]) -> None:
    """Run the calls once where a capture will run them, on the side stream, as capture requires."""
    with _beside():
        for call in calls:
            call()


@contextlib.contextmanager
def _beside() -> Iterator[None]:
    """What is inside runs on the side stream, after what was enqueued before and before what follows."""
    stream = _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@functools.cache
def _side_stream(_device_index: int) -> Any:
    """One stream per device for all warm-ups: blocks that the allocator caches for it are used again."""
    return torch.cuda.Stream()


def _device_seconds(run: Call) -> float:
    """Seconds of the second of two runs: the first keeps the device busy while the host enqueues the events and the
    second.
    """
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _host_seconds(run: Call) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _repeat(pass_seconds: Callable[[], float], calls: int, rule: StopRule) -> Sample:
    """Passes until the criterion of ``rule`` holds; the first is warm-up."""
    started = time.perf_counter()
    pass_seconds()
    seconds: list[float] = []
    while True:
        seconds.append(pass_seconds() / calls)
        late = time.perf_counter() - started >= rule.max_seconds
        if len(seconds) < rule.min_repeats and not (late and len(seconds) >= 3):
            continue
        sample = summarise(seconds)
        if late or sample.spread <= rule.target_spread or len(seconds) >= rule.max_repeats:
            return sample


class Watch:
    """A reference matrix product timed beside the cases: tells whether the device runs slower than at its best so
    far.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.best, self.cooling_left_s = device, float("inf"), _COOLING_BUDGET_S
        size = 4096 if device.type == "cuda" else 512
        left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
        self._product: Call = lambda: torch.mm(left, right)
        self.slowed()

    def slowed(self) -> bool:
        """Time the reference product; True where it exceeds its best by the device's throttling ratio."""
        rule = StopRule(min_repeats=3, max_repeats=5, max_seconds=0.05)
        seconds = measure([self._product], self.device, "eager", rule).seconds_low
        self.best = min(self.best, seconds)
        return seconds > _THROTTLE_RATIO[self.device.type] * self.best

    def mark(self, sample: Sample) -> Sample:
        """``sample`` with its throttled flag set by a look at the device now."""
        return replace(sample, throttled=self.slowed())

    def cool_down(self) -> bool:
        """Pause and return True, or return False where the pauses of this run are used up."""
        if self.cooling_left_s < _COOLING_S:
            return False
        self.cooling_left_s -= _COOLING_S
        time.sleep(_COOLING_S)
        return True
