"""rlsim watch beside the real loop: a delay that begins within the run is found while the loop still runs."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlsim
from bench.loop import together
from bench.loop.events import EventLog
from bench.loop.settings import LoopSettings
from rlsim.attribution.check import check
from rlsim.readers.logs.source import Source
from rlsim.readers.logs.watching import Watcher
from rlsim.results.watch import Moved, WatchLine

STEPS, SLOW_FROM, DELAY_S = 27, 21, 0.3
ENVIRONMENT_S = 0.15
"""Of every step from the first on: beside it the pauses of a machine that others share are small."""
SETTINGS = LoopSettings("watched", "loop-tiny", prompt_tokens=4, prompts=2, samples=2, steps=STEPS, warmup_steps=0,
                        quantiles=(0.0, 1.0), response_tokens=(16.0, 16.0), threads=1)  # fmt: skip


class Job:
    """A loop that reports each of its steps, as a framework's driver would, and whoever watches it."""

    def __init__(self, file: Path) -> None:
        self.file, self.step, self.lines = file, 0, list[WatchLine]()
        self.source, self.watcher = Source(str(file)), Watcher(None, check, every=STEPS)

    def done(self, events: list[dict[str, Any]], step: int, seconds: float) -> None:
        """The end of a step: its record is written, and what was written is read."""
        phases = {one["phase"]: one["seconds"] for one in events if one.get("step") == step and "phase" in one}
        phases["refit_s"] = phases.pop("prepare_s")  # of the hand-over, what tables of rlsim call it
        self.step = step + 1
        assert rlsim.live_report({"step_s": seconds, **phases}, self.step, self.file)
        if (log := self.source.read()) is not None:
            self.lines += self.watcher.lines(log)

    def slowed(self, function: Callable[..., Any], seconds: float, first: int = 1) -> Callable[..., Any]:
        """The function, with a delay from the step ``first`` on."""

        def slower(*given: Any) -> Any:
            if self.step + 1 >= first:
                time.sleep(seconds)
            return function(*given)

        return slower


def moved_in(function: str, phase: str, file: Path) -> tuple[WatchLine, Moved] | None:
    """The first alarm of a loop whose ``function`` is slow from SLOW_FROM on that names ``phase``; None of none."""
    job = Job(file)

    class Reporting(EventLog):
        def add(self, kind: str, start_s: float, seconds: float, **facts: Any) -> None:
            super().add(kind, start_s, seconds, **facts)
            if kind == "step":
                job.done(self.events, facts["step"], seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "EventLog", Reporting)
        patch.setattr(together, "requests_of", job.slowed(together.requests_of, ENVIRONMENT_S))
        patch.setattr(together, function, job.slowed(getattr(together, function), DELAY_S, SLOW_FROM))
        together.run_together(SETTINGS, lambda line: None)
    found = ((line, one) for line in job.lines if line.alarm for one in line.moved if one.quantity == phase)
    return next(found, None)


@pytest.mark.parametrize(("function", "phase"), [("rewards_of", "data"), ("hand_over", "refit")])
def test_a_delay_of_a_real_loop_is_found_while_it_runs(function: str, phase: str, tmp_path: Path) -> None:
    found = moved_in(function, phase, tmp_path / "job.jsonl")
    assert found is not None
    alarm, moved = found
    assert abs(moved.since - SLOW_FROM) <= 1 and alarm.step <= SLOW_FROM + 4 < STEPS
    assert 0.4 * DELAY_S <= moved.after - moved.before <= 2 * DELAY_S
