"""Timing: statistics, stop criterion and throttling, with a clock that the test drives."""

import gc
import math

import pytest
import torch
from virtual_gpu import DISPATCH_S, virtual_gpu

from bench import timing
from bench.timing import StopRule, Watch, measure, summarise

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Clock:
    """perf_counter that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", clock.perf_counter)
    return clock


def spend(clock: Clock, durations: list[float]) -> timing.Call:
    """Call that takes the next of ``durations``, and the last for ever."""
    queue = list(durations)

    def call() -> None:
        clock.now += queue.pop(0) if len(queue) > 1 else queue[0]

    return call


def test_median_quantiles_and_spread() -> None:
    sample = summarise([float(i) for i in range(1, 101)])
    assert sample.seconds_median == 50.5
    assert (sample.seconds_low, sample.seconds_high) == (6.0, 95.0)
    assert math.isclose(sample.spread, (75 - 26) / 2 / 50.5)


def test_repeats_after_the_warm_up_end_when_steady_or_at_the_time_bound(clock: Clock) -> None:
    noisy = spend(clock, [0.01, *[0.01, 0.05] * 500])
    sample = measure([noisy], CPU, "eager", StopRule(max_repeats=10_000, max_seconds=1.0))
    assert clock.now == pytest.approx(1.0, abs=0.06)
    assert sample.spread > 0.1
    sample = measure([spend(clock, [0.01])], CPU, "eager", StopRule(min_repeats=7, max_seconds=10.0))
    assert sample.repeats == 7
    assert math.isclose(sample.seconds_median, 0.01)
    assert sample.spread < 1e-9
    sample = measure([spend(clock, [5.0, 0.01])], CPU, "eager", StopRule(max_seconds=60.0))
    assert math.isclose(sample.seconds_high, 0.01)


def test_watch_notices_a_slowed_device_and_limits_its_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = [1.0]
    monkeypatch.setattr(timing, "measure", lambda *_: summarise([pace[0]]))
    watch = Watch(CPU)
    assert not watch.slowed()
    pace[0] = 2.0
    assert watch.slowed()
    assert watch.mark(summarise([1.0])).throttled
    pace[0] = 1.0
    assert not watch.mark(summarise([1.0])).throttled
    slept: list[float] = []
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    watch = Watch(CPU)
    while watch.cool_down():
        assert len(slept) < 1000
    assert 1.0 <= sum(slept) <= 10.0


def test_graph_replay_has_no_gaps_of_launches_and_a_failed_capture_ends() -> None:
    """Kernels of 2 us whose launches take 4 us; the replay of 16 takes less than they do."""
    with virtual_gpu() as gpu:
        calls = [lambda: gpu.clock.enqueue(2e-6)] * 16
        assert measure(calls, GPU, "graph", StopRule()).seconds_median == pytest.approx(2e-6)
        assert measure(calls, GPU, "eager", StopRule()).seconds_median == pytest.approx(DISPATCH_S)
    with virtual_gpu() as gpu:
        with pytest.raises(RuntimeError, match="capturing"):
            timing.capture([gpu.clock.wait])
        assert gpu.clock.capturing is None
    assert gc.isenabled()
