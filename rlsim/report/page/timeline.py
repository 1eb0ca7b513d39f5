"""timeline.json of a projection: lanes of trainer and replicas, and how many sequences run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import TABLE_BYTES
from rlsim.report.format import PHASE_LABELS
from rlsim.report.page.folder import file_in
from rlsim.report.page.reading import Node, read_json
from rlsim.results.record import LARGEST

TICK_S = 2e-6
"""Files hold whole microseconds: what ends or begins within two of a bound lies beside it."""
SHOWN_STEPS = 4
"""Steps of the trainer in view; earlier ones repeat the pattern."""
TRAINER = "trainer"
RUNNING = "running sequences"
MICROSECONDS_PER_S = 1e6
PHASE_OF = {name.removesuffix("_s"): name for name in PHASE_LABELS}


@dataclass(frozen=True)
class LaneSpan:
    """phase: a contract name without ``_s``; times in seconds."""

    phase: str
    step: int
    start_s: float
    end_s: float


@dataclass
class Lanes:
    """One arm. lanes: spans by the name of their row; running: (seconds, sequences) of the engines together."""

    name: str = ""
    lanes: dict[str, list[LaneSpan]] = field(default_factory=dict)
    running: list[tuple[float, float]] = field(default_factory=list)

    @property
    def window(self) -> tuple[float, float]:
        """From the start of the trainer's first shown step to the end of its last one, in seconds."""
        spans = self.lanes.get(TRAINER) or [span for lane in self.lanes.values() for span in lane]
        steps = sorted({span.step for span in spans})[-SHOWN_STEPS:]
        inside = [span for span in spans if span.step in steps]
        return min(span.start_s for span in inside), max(span.end_s for span in inside)

    def shown(self) -> dict[str, list[LaneSpan]]:
        """Spans in view by lane, the trainer first, times from the start of the window; lanes without any left out."""
        start, end = self.window
        found = {
            name: [
                LaneSpan(span.phase, span.step, max(span.start_s, start) - start, min(span.end_s, end) - start)
                for span in spans
                if span.end_s > start + TICK_S and span.start_s < end - TICK_S
            ]
            for name, spans in self.lanes.items()
        }
        ordered = sorted(found, key=lambda name: name != TRAINER)
        return {name: found[name] for name in ordered if found[name]}

    def running_shown(self) -> tuple[list[float], list[float]]:
        """Seconds from the start of the window, and running sequences; both empty where nothing was counted."""
        start, end = self.window
        points = sorted(self.running)
        before = [value for time, value in points if time <= start][-1:]
        inside = [(time - start, value) for time, value in points if start < time <= end]
        kept = [*((0.0, value) for value in before), *inside]
        if kept:
            kept.append((end - start, kept[-1][1]))
        return [time for time, _ in kept], [value for _, value in kept]


def read_timeline(folder: Path, notes: list[str]) -> Sequence[Lanes]:
    """Arms of timeline.json in its order; none where it is missing or wrong, which ``notes`` then tells."""
    try:
        path = file_in(folder, "timeline.json")
        if path is None:
            return ()
        events = read_json(path, TABLE_BYTES).at("traceEvents").raw_list()
        return _arms([_Event(event, i) for i, event in enumerate(events)])
    except InputError as error:
        notes.append(str(error))
        return ()


class _Event:
    """An event of the file. Its methods raise InputError naming its place."""

    def __init__(self, event: Any, index: int) -> None:
        if not isinstance(event, dict):
            raise InputError(f"timeline.json: traceEvents[{index}] must be a mapping")
        self.event: Mapping[str, Any] = event
        self.index = index

    def number(self, key: str, within: Mapping[str, Any] | None = None) -> float:
        value = (self.event if within is None else within).get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
            raise InputError(f"timeline.json: traceEvents[{self.index}]: '{key}' must be a finite number")
        return float(value)

    @property
    def args(self) -> Mapping[str, Any]:
        found = self.event.get("args")
        return found if isinstance(found, dict) else {}

    @property
    def process(self) -> float:
        return self.number("pid")

    @property
    def thread(self) -> tuple[float, float]:
        return self.number("pid"), self.number("tid")


def _arms(events: Sequence[_Event]) -> Sequence[Lanes]:
    arms: dict[float, Lanes] = {}
    names: dict[tuple[float, float], str] = {}
    for event in events:
        kind, name = event.event.get("ph"), event.event.get("name")
        arm = arms.setdefault(event.process, Lanes())
        if kind == "M" and name in ("process_name", "thread_name"):
            told = Node(event.args.get("name"), "timeline.json", f"traceEvents[{event.index}].args.name").text()
            if name == "process_name":
                arm.name = shortened(told)
            else:
                names[event.thread] = shortened(told)
        elif kind == "X":
            lane = names.get(event.thread, "lane")
            arm.lanes.setdefault(lane, []).append(_span(event))
        elif kind == "C" and name == RUNNING:
            arm.running.append((event.number("ts") / MICROSECONDS_PER_S, event.number("value", event.args)))
    return [arm for arm in arms.values() if arm.lanes]


def _span(event: _Event) -> LaneSpan:
    start_s = event.number("ts") / MICROSECONDS_PER_S
    end_s = start_s + max(0.0, event.number("dur")) / MICROSECONDS_PER_S
    category = event.event.get("cat")
    phase = category if isinstance(category, str) and category in PHASE_OF else "other"
    step = event.args.get("step")
    return LaneSpan(phase, int(event.number("step", event.args)) if step is not None else 0, start_s, end_s)
