"""The timeline as Chrome trace events, which ui.perfetto.dev and chrome://tracing open, and read back from them."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import TABLE_BYTES
from rlsim.report.format import PHASE_LABELS, arm_label
from rlsim.results import Curve, Projection, Span, Variant
from rlsim.results.record import Loose, Number

Event = dict[str, Any]
SIDES = ("baseline", "candidate")
MOST_SPANS = 150
"""Spans of an actor that are read back of the last steps; the longest ones."""
SHOWN_STEPS = 4
"""Steps of the trainer in view; earlier ones repeat the pattern."""
TRAINER = "trainer"


def timeline_json(projection: Projection) -> str:
    """Trace Event Format (JSON object form), times in microseconds.

    One process for each arm, one thread for each row of an actor, complete events (``X``) with step and detail,
    counters (``C``) from the curves. The same projection gives the same bytes.
    """
    arms = {side: getattr(projection, side) for side in SIDES}
    processes = [_process(pid, f"{side}: {arm_label(arm)}", arm) for pid, (side, arm) in enumerate(arms.items(), 1)]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "scenario": projection.scenario,
            "digest": projection.digest,
            "seed": str(projection.seed),
            "model": projection.model,
            "hardware": f"{projection.num_gpus} {projection.hardware}",
        },
        "traceEvents": [event for events in processes for event in events],
    }
    # JSON has no NaN: viewers would refuse the file.
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _process(pid: int, name: str, arm: Variant) -> list[Event]:
    events = [_metadata("process_name", pid, 0, name=name), _metadata("process_sort_index", pid, 0, sort_index=pid)]
    for tid, lane in enumerate(lanes(arm.spans), start=1):
        events.append(_metadata("thread_name", pid, tid, name=lane.name))
        events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
        for span in lane.spans:
            # Whole nanoseconds: spans that follow each other must meet exactly, or viewers nest them.
            start, end = _nanoseconds(span.start_s), _nanoseconds(span.end_s)
            kind = {"name": PHASE_LABELS[span.phase], "cat": span.phase.removesuffix("_s"), "ph": "X"}
            when = {"ts": start / 1000, "dur": max(0, end - start) / 1000, "pid": pid, "tid": tid}
            events.append({**kind, **when, "args": {"step": span.step, "detail": span.detail}})
    for curve in arm.curves:
        for time, value in zip(curve.times_s, curve.values, strict=True):
            at = {"ph": "C", "ts": _nanoseconds(time) / 1000, "pid": pid, "tid": 0}
            events.append({"name": curve.name, **at, "args": {"value": value}})
    return events


def _metadata(kind: str, pid: int, tid: int, **args: str | int) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


@dataclass(frozen=True)
class Lane:
    """One row of a timeline: ``spans`` follow each other or nest (refit inside prepare of the same step).

    name: the actor, numbered from its second row on.
    """

    actor: str
    name: str
    spans: tuple[Span, ...]


def lanes(spans: Iterable[Span]) -> list[Lane]:
    """Rows in order of actors' first appearance; batches of one actor that overlap in time get further rows.

    First fit in order of start, so the number of rows of an actor is its greatest overlap.
    """
    by_actor: dict[str, list[Span]] = {}
    for span in spans:
        by_actor.setdefault(span.actor, []).append(span)
    return [
        Lane(actor, actor if number == 1 else f"{actor} ({number})", tuple(row))
        for actor, members in by_actor.items()
        for number, row in enumerate(_non_overlapping(sorted(members, key=lambda s: (s.start_s, -s.end_s))), start=1)
    ]


def _non_overlapping(ordered: list[Span]) -> list[list[Span]]:
    rows: list[tuple[list[Span], list[Span]]] = []  # the spans of a row, and those open at its end
    for span in ordered:
        for row, stack in rows:
            while stack and stack[-1].end_s <= span.start_s:
                stack.pop()
            outer = stack[-1] if stack else None
            # Nested spans need the same step and another phase: batches of an actor that overlap are no parts of each
            # other.
            if outer is None or (span.end_s <= outer.end_s and span.step == outer.step and span.phase != outer.phase):
                row.append(span)
                stack.append(span)
                break
        else:
            rows.append(([span], [span]))
    return [row for row, _ in rows]


# Loose: other programs write further keys into traces.
class _Args(Loose):
    name: str = ""
    step: int = 0
    detail: str = ""
    value: Number = 0.0


class _Event(Loose):
    ph: str
    pid: int
    tid: int = 0
    name: str = ""
    cat: str = ""
    ts: Number = 0.0
    dur: Number = 0.0
    args: _Args = _Args()


class _Document(Loose):
    traceEvents: tuple[_Event, ...]  # noqa: N815 - a key of the format


def read_timeline(path: Path) -> dict[str, dict[str, Any]]:
    """``spans`` of the last steps and ``curves`` of each side in a timeline.json, in seconds.

    Raises InputError naming the file where it is none, or holds no step of a trainer.
    """
    events = _Document.read(path, TABLE_BYTES).traceEvents
    found: dict[str, dict[str, Any]] = {}
    for pid in dict.fromkeys(event.pid for event in events):
        process = [event for event in events if event.pid == pid]
        named = {(event.name, event.tid): shortened(event.args.name) for event in process if event.ph == "M"}
        for (kind, _), name in named.items():
            if kind == "process_name" and (side := name.partition(":")[0]) in SIDES:
                actors = {tid: text.partition(" (")[0] for (what, tid), text in named.items() if what == "thread_name"}
                found[side] = {"spans": _last_spans(process, actors, path), "curves": _curves_of(process)}
    return found


def _last_spans(events: Iterable[_Event], actors: dict[int, str], path: Path) -> tuple[Span, ...]:
    """Spans in the window of the trainer's last steps, the longest of each actor."""
    spans = [
        Span(
            actors.get(event.tid, "lane"),
            f"{event.cat}_s" if f"{event.cat}_s" in PHASE_LABELS else "other",
            event.args.step,
            round(event.ts * 1000) / 1e9,
            round((event.ts + max(0.0, event.dur)) * 1000) / 1e9,
        )
        for event in events
        if event.ph == "X"
    ]
    trainer = [span for span in spans if span.actor == TRAINER]
    if not trainer:
        raise InputError(f"{path.name}: holds no step of a trainer")
    start, end = window_of(trainer)
    shown: dict[str, list[int]] = {}
    # Longest first, so that the limit drops the shortest.
    for i in sorted(range(len(spans)), key=lambda i: spans[i].start_s - spans[i].end_s):
        places = shown.setdefault(spans[i].actor, [])
        if spans[i].end_s > start and spans[i].start_s < end and len(places) < MOST_SPANS:
            places.append(i)
    return tuple(spans[i] for i in sorted(itertools.chain(*shown.values())))


def window_of(trainer: Iterable[Span]) -> tuple[float, float]:
    """From the start of the trainer's first shown step to the end of its last, in seconds."""
    spans = list(trainer)
    steps = sorted({span.step for span in spans})[-SHOWN_STEPS:]
    inside = [span for span in spans if span.step in steps]
    return min(span.start_s for span in inside), max(span.end_s for span in inside)


def _curves_of(events: Iterable[_Event]) -> tuple[Curve, ...]:
    points: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event.ph == "C":
            points.setdefault(shortened(event.name), []).append((event.ts / 1e6, event.args.value))
    return tuple(
        # By time alone and stable: of two values at one moment the later stays last.
        Curve(name, *map(tuple, zip(*sorted(found, key=lambda one: one[0]), strict=True)))
        for name, found in points.items()
    )
