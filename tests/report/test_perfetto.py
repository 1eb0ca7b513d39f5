"""The timeline: valid trace events whose slices never cross within a thread."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.report.timeline import lanes, timeline_json
from rlsim.results import Span


def events_of(projection):
    return json.loads(timeline_json(projection))["traceEvents"]


def test_every_event_has_what_the_format_asks(projection):
    for event in events_of(projection):
        assert event["ph"] in {"M", "X", "C"}
        assert {"name", "pid", "tid", "args"} <= event.keys()
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert set(event["args"]) == {"step", "detail"}


def test_processes_and_threads_are_named(answer):
    events = events_of(answer("async"))
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {1: "baseline: autoregressive", 2: "candidate: EAGLE-3, k=3, acceptance length 2.77"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(threads.values()) >= {"trainer", "generator"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(threads)


def test_no_span_is_lost_and_times_are_microseconds(answer):
    made = answer("sync")
    slices = [e for e in events_of(made) if e["ph"] == "X" and e["pid"] == 2]
    assert len(slices) == len(made.candidate.spans)
    train = next(e for e in slices if e["cat"] == "train")
    span = next(s for s in made.candidate.spans if s.phase == "train_s")
    assert train["ts"] == pytest.approx(span.start_s * 1e6, abs=1e-3)
    assert train["dur"] == pytest.approx((span.end_s - span.start_s) * 1e6, abs=2e-3)


def test_counters_follow_the_curves(answer):
    made = answer("sync")
    counters = [e for e in events_of(made) if e["ph"] == "C" and e["pid"] == 1]
    assert [e["args"]["value"] for e in counters] == list(made.baseline.curves[0].values)
    assert {e["name"] for e in counters} == {"running sequences"}


def test_slices_of_a_thread_nest_or_follow_each_other(projection):
    threads = defaultdict(list)
    for event in events_of(projection):
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(
                (round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
            )
    assert not any(crossing(slices) for slices in threads.values())


def crossing(slices):
    """Whether two intervals overlap without one holding the other."""
    return any(a[0] < b[0] < a[1] < b[1] for a in slices for b in slices)


def test_refit_nests_in_prepare_but_batches_of_two_steps_get_two_rows():
    prepare, refit = Span("trainer", "prepare", 0, 0.0, 9.0), Span("trainer", "refit", 0, 2.0, 5.0)
    assert [lane.spans for lane in lanes([refit, prepare])] == [(prepare, refit)]
    first, second = Span("generator", "generation", 0, 0.0, 9.0), Span("generator", "generation", 1, 2.0, 5.0)
    assert [lane.name for lane in lanes([first, second])] == ["generator", "generator (2)"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.sampled_from(["p", "q"]),
            st.integers(0, 2),
            st.integers(0, 20),
            st.integers(1, 9),
        )
    )
)
def test_lanes_keep_every_span_and_never_cross(drawn):
    spans = [
        Span(actor, phase, step, float(start), float(start + length)) for actor, phase, step, start, length in drawn
    ]
    rows = lanes(spans)
    assert sorted(map(repr, spans)) == sorted(repr(span) for row in rows for span in row.spans)
    assert all(span.actor == row.actor for row in rows for span in row.spans)
    assert not any(crossing([(s.start_s, s.end_s) for s in row.spans]) for row in rows)
