"""Timing: statistics, stop criterion and throttling, with a clock that the test drives."""

import gc
import math
from contextlib import nullcontext

import pytest
import torch

from bench import timing
from bench.timing import StopRule, Watch, measure, summarise

CPU = torch.device("cpu")


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


def test_a_steady_call_stops_at_the_least_number_of_repeats(clock: Clock) -> None:
    sample = measure([spend(clock, [0.01])], CPU, "eager", StopRule(min_repeats=7, max_seconds=10.0))
    assert sample.repeats == 7
    assert math.isclose(sample.seconds_median, 0.01)
    assert sample.spread < 1e-9


def test_the_first_pass_is_warm_up(clock: Clock) -> None:
    sample = measure([spend(clock, [5.0, 0.01])], CPU, "eager", StopRule(max_seconds=60.0))
    assert math.isclose(sample.seconds_high, 0.01)


def test_a_noisy_call_ends_at_the_time_bound(clock: Clock) -> None:
    noisy = spend(clock, [0.01, *[0.01, 0.05] * 500])
    sample = measure([noisy], CPU, "eager", StopRule(max_repeats=10_000, max_seconds=1.0))
    assert clock.now == pytest.approx(1.0, abs=0.06)
    assert sample.spread > 0.1


def test_seconds_are_per_call_of_the_pass(clock: Clock) -> None:
    sample = measure([spend(clock, [0.01])] * 4, CPU, "eager", StopRule(max_seconds=10.0))
    assert math.isclose(sample.seconds_median, 0.01)


def test_watch_notices_a_slowed_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = [1.0]
    monkeypatch.setattr(timing, "measure", lambda *_: summarise([pace[0]]))
    watch = Watch(CPU)
    assert not watch.slowed()
    pace[0] = 2.0
    assert watch.slowed()
    assert watch.mark(summarise([1.0])).throttled
    pace[0] = 1.0
    assert not watch.mark(summarise([1.0])).throttled


class FakeDevice:
    """Stands for torch.cuda: kernels take the device time that a call asks for, launches take host time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device_s, self.recording, self.graphs = 0.0, None, 0
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = fake.device_s

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: "Event") -> float:
                return (end.at - self.at) * 1e3

        class Graph:
            def capture_begin(self) -> None:
                fake.recording = 0.0

            def capture_end(self) -> None:
                self.seconds, fake.recording = fake.recording, None
                fake.graphs += 1

            def replay(self) -> None:
                fake.device_s += self.seconds

        class Stream:
            def wait_stream(self, _: object) -> None:
                pass

        def nothing(*_: object) -> None:
            pass

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "synchronize", nothing)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "current_stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(timing, "_side_stream", lambda _: Stream())

    def kernel(self, seconds: float, gap_s: float = 0.0) -> timing.Call:
        """Kernel of ``seconds`` that eagerly leaves the device idle for ``gap_s``."""

        def call() -> None:
            if self.recording is None:
                self.device_s += seconds + gap_s
            else:
                self.recording += seconds

        return call


def test_graph_replay_is_timed_without_the_gaps_of_eager_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice(monkeypatch)
    calls = [fake.kernel(2e-6, gap_s=5e-6)] * 3
    cuda = torch.device("cuda")
    assert measure(calls, cuda, "graph", StopRule()).seconds_median == pytest.approx(2e-6)
    assert fake.graphs == 1
    assert measure(calls, cuda, "eager", StopRule()).seconds_median == pytest.approx(7e-6)


def test_a_failed_capture_ends_the_capture_and_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice(monkeypatch)

    def refuse() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        timing.capture([refuse])
    assert fake.recording is None
    assert gc.isenabled()


def test_pauses_for_cooling_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "measure", lambda *_: summarise([1.0]))
    slept: list[float] = []
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    watch = Watch(CPU)
    while watch.cool_down():
        assert len(slept) < 1000
    assert 1.0 <= sum(slept) <= 10.0
