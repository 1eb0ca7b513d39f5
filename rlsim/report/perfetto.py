"""The timeline as Chrome trace events, which ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from rlsim.report.format import PHASE_LABELS, arm_label
from rlsim.report.lanes import lanes
from rlsim.results import Curve, Projection, Span, Variant

Event = dict[str, Any]


def timeline_json(projection: Projection) -> str:
    """Trace Event Format (JSON object form), times in microseconds.

    One process for each arm, one thread for each row of an actor, complete events (``X``) with step and detail,
    counters (``C``) from the curves. The same projection gives the same bytes.
    """
    events = [
        event
        for pid, (side, arm) in enumerate(
            (("baseline", projection.baseline), ("candidate", projection.candidate)), start=1
        )
        for event in _process(pid, f"{side}: {arm_label(arm)}", arm)
    ]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "scenario": projection.scenario,
            "digest": projection.digest,
            "seed": str(projection.seed),
            "model": projection.model,
            "hardware": f"{projection.num_gpus} {projection.hardware}",
        },
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _process(pid: int, name: str, arm: Variant) -> list[Event]:
    events = [_metadata("process_name", pid, 0, name=name), _metadata("process_sort_index", pid, 0, sort_index=pid)]
    for tid, lane in enumerate(lanes(arm.spans), start=1):
        events.append(_metadata("thread_name", pid, tid, name=lane.name))
        events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
        events.extend(_complete(pid, tid, span) for span in lane.spans)
    for curve in arm.curves:
        events.extend(_counters(pid, curve))
    return events


def _metadata(kind: str, pid: int, tid: int, **args: str | int) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _complete(pid: int, tid: int, span: Span) -> Event:
    start, end = _nanoseconds(span.start_s), _nanoseconds(span.end_s)
    return {
        "name": PHASE_LABELS[span.phase],
        "cat": span.phase.removesuffix("_s"),
        "ph": "X",
        "ts": start / 1000,
        "dur": max(0, end - start) / 1000,
        "pid": pid,
        "tid": tid,
        "args": {"step": span.step, "detail": span.detail},
    }


def _counters(pid: int, curve: Curve) -> list[Event]:
    return [
        {"name": curve.name, "ph": "C", "ts": _nanoseconds(time) / 1000, "pid": pid, "tid": 0, "args": {"value": value}}
        for time, value in zip(curve.times_s, curve.values, strict=True)
    ]


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)
