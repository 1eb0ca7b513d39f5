"""The files of --out, and the keys of projection.json."""

import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.report.folder import write_out
from rlsim.report.timeline import lanes, timeline_json
from rlsim.results import Span

NAMES = ["projection.json", "phases.png", "timeline.json", "scenario.yaml"]
INTERVAL = {"mean", "low", "high"}
PHASES = {"data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s", "exposed_generation_s"}
ARM = {*("method", "draft_length", "acceptance_length", "step_s", "phases", "tokens_per_s_per_gpu", "memory", "bounds"),
       *("staleness", "token_ages", "tokens", "sampling", "facts", "efficiency")}  # fmt: skip
FACTS = {
    *("replicas", "decode_iterations", "mean_batch", "mean_context_tokens", "eager_share", "prefill_iterations"),
    *("prefill_tokens", "preemptions", "peak_kv_tokens", "tokens_per_s", "iterations_per_s", "tokens_per_verification"),
}


def test_the_four_files_hold_spans_counters_and_names(answer, tmp_path):
    made = answer("sync")
    write_out(made, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(NAMES)
    assert (tmp_path / "projection.json").read_text() == made.to_json()
    assert (tmp_path / "scenario.yaml").read_text() == made.resolved_scenario
    assert json.loads((tmp_path / "timeline.json").read_text())["otherData"]["digest"] == made.digest
    assert (tmp_path / "phases.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    events = events_of(answer("async"))
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {1: "baseline: autoregressive", 2: "candidate: EAGLE-3, k=3, acceptance length 2.77"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(threads.values()) >= {"trainer", "generator"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(threads)
    made = answer("sync")
    slices = [e for e in events_of(made) if e["ph"] == "X" and e["pid"] == 2]
    assert len(slices) == len(made.candidate.spans)
    train = next(e for e in slices if e["cat"] == "train")
    span = next(s for s in made.candidate.spans if s.phase == "train_s")
    assert train["ts"] == pytest.approx(span.start_s * 1e6, abs=1e-3)
    assert train["dur"] == pytest.approx((span.end_s - span.start_s) * 1e6, abs=2e-3)
    counters = [e for e in events_of(made) if e["ph"] == "C" and e["pid"] == 1]
    assert [e["args"]["value"] for e in counters] == list(made.baseline.curves[0].values)
    assert {e["name"] for e in counters} == {"running sequences"}


@pytest.mark.parametrize(("case", "more"), [("sync", {"replica_imbalance"}), ("async", set())])
def test_keys_of_the_json_are_the_contract(case, more, answer):
    whole = answer(case).as_dict()
    assert whole.keys() == {
        *("schema", "scenario", "digest", "seed", "baseline", "candidate", "rollout_speedup", "end_to_end_speedup"),
        *("provenance", "support", "measured_efficiency", "assumptions", "warnings"),
    }
    assert whole["provenance"].keys() == {"measured", "modelled", "assumed"}
    assert whole["support"].keys() == {"half_width", "nearest", "sources"}
    for nearest in whole["support"]["nearest"]:
        assert nearest.keys() == {"kind", "share", "runs"}
        assert all(run.keys() == {"id", "differences"} for run in nearest["runs"])
    for source in whole["support"]["sources"]:
        assert source.keys() == {"source", "kind", "share", "assumed", "settle", "command"}
    assert whole["rollout_speedup"].keys() == whole["end_to_end_speedup"].keys() == INTERVAL
    for arm in (whole["baseline"], whole["candidate"]):
        assert (arm.keys(), arm["phases"].keys(), arm["facts"].keys()) == (ARM, PHASES, FACTS | more)
        intervals = (arm["step_s"], arm["acceptance_length"], arm["tokens_per_s_per_gpu"], *arm["phases"].values())
        assert all(value.keys() == INTERVAL for value in intervals)
        assert all(part.keys() == {"phase", "part", "seconds", "bound", "root"} for part in arm["bounds"])
        shares = {"phase", "tokens_per_s_per_gpu", "mfu", "hfu", "bandwidth_use", "peak_flops", "precision"}
        assert all(one.keys() == shares for one in arm["efficiency"])
        assert arm["memory"].keys() == {"generation", "training"}
        assert all(use.keys() == {"parts_bytes", "total_bytes", "available_bytes"} for use in arm["memory"].values())


# --- the timeline -----------------------------------------------------------------------------------------------------


def events_of(projection):
    return json.loads(timeline_json(projection))["traceEvents"]


def test_every_event_has_what_the_format_asks_and_slices_of_a_thread_nest_or_follow_each_other(projection):
    for event in events_of(projection):
        assert event["ph"] in {"M", "X", "C"}
        assert {"name", "pid", "tid", "args"} <= event.keys()
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert set(event["args"]) == {"step", "detail"}
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
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["p", "q"]), st.integers(0, 2), st.integers(0, 20),
                  st.integers(1, 9)),
    ),
)  # fmt: skip
def test_lanes_keep_every_span_and_never_cross(drawn):
    spans = [
        Span(actor, phase, step, float(start), float(start + length)) for actor, phase, step, start, length in drawn
    ]
    rows = lanes(spans)
    assert sorted(map(repr, spans)) == sorted(repr(span) for row in rows for span in row.spans)
    assert all(span.actor == row.actor for row in rows for span in row.spans)
    assert not any(crossing([(s.start_s, s.end_s) for s in row.spans]) for row in rows)
