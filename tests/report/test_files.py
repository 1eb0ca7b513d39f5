"""The files of --out, and the keys of projection.json."""

import json
from collections import defaultdict
from itertools import combinations

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.costs.prices import PriceInputs
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.report.figures import phases as phases_plot
from rlsim.report.figures.occupancy import occupancy_figure
from rlsim.report.figures.phases import phases_figure
from rlsim.report.figures.style import DPI, PHASE_COLORS, save_picture, text_color
from rlsim.report.folder import write_out
from rlsim.report.text.findings import headline
from rlsim.report.timeline import lanes, timeline_json
from rlsim.results import Curve, Span

NAMES = ["projection.json", "memory.png", "phases.png", "timeline.json", "scenario.yaml"]
SUPERVISED = (
    *("loop.supervised=true", "simulation.replications=1", "workload.generations_per_prompt=1"),
    *("speculation.method=none", "speculation.draft_length=0", "trainer.global_batch_samples=null"),
    *("trainer.policy_logprobs=null", "trainer.reference_logprobs=false"),
)
INTERVAL = {"mean", "low", "high"}
PHASES = {"data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s", "exposed_generation_s"}
ARM = {*("method", "draft_length", "acceptance_length", "step_s", "phases", "tokens_per_s_per_gpu", "memory",
         "memory_phases", "bounds"),
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
        *("provenance", "support", "measured_efficiency", "assumptions", "warnings", "try_first"),
        *("tuned_step_s", "missing"),
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
        assert all(
            use.keys() == {"parts_bytes", "total_bytes", "available_bytes", "fits"} for use in arm["memory"].values()
        )


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
    spans = [Span(actor, phase, step, float(start), float(start + length))
             for actor, phase, step, start, length in drawn]  # fmt: skip
    rows = lanes(spans)
    assert sorted(map(repr, spans)) == sorted(repr(span) for row in rows for span in row.spans)
    assert all(span.actor == row.actor for row in rows for span in row.spans)
    assert not any(crossing([(s.start_s, s.end_s) for s in row.spans]) for row in rows)


def pixels(projection, tmp_path):
    path = tmp_path / "phases.png"
    save_picture(phases_figure(projection), path)
    return matplotlib.image.imread(path)


def share_of(image, color):
    """Share of pixels that have ``color`` (#rrggbb)."""
    wanted = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return float(np.mean(np.all(np.abs(image[..., :3] - wanted) < 0.01, axis=-1)))


def page_of(projection):
    """The figure before it is written, drawn."""
    figure = phases_figure(projection)
    figure.canvas.draw()
    return figure


def test_the_picture_has_content_and_says_scenario_candidate_and_what_bars_are(projection, tmp_path):
    image = pixels(projection, tmp_path)
    assert image.shape[1] == phases_plot.WIDTH_IN * DPI
    assert image.shape[0] > 500
    assert share_of(image, "#ffffff") > 0.4
    assert sum(share_of(image, color) for color in PHASE_COLORS.values()) > 0.02
    figure = page_of(projection)
    texts = [text.get_text().replace("\n", " ") for text in figure.findobj(matplotlib.text.Text)]
    assert f"{projection.scenario}: {headline(projection)}" in texts
    told = " ".join(texts)
    assert "whisker: 90 % interval" in told
    assert ("generation is busy for" in told) is projection.asynchronous
    assert ("first step of the first replication alone" in told) is not projection.asynchronous


@pytest.mark.parametrize("samples", [8, 16, 17])
def test_sequences_are_counted_in_whole_ones_at_equal_steps(samples):
    few = [f"workload.prompts_per_step={samples}", "workload.generations_per_prompt=1", "simulation.replications=1"]
    made = project(load_scenario("quickstart", [*few, "trainer.global_batch_samples=null"]))
    curves = page_of(made).axes[-1]
    shown = [int(label.get_text()) for label in curves.get_yticklabels()]
    assert shown == list(curves.get_yticks())
    assert len(set(np.diff(shown))) == 1


def test_a_bar_of_a_supervised_step_is_an_update():
    made = project(load_scenario("quickstart", SUPERVISED))
    assert [label.get_text() for label in page_of(made).axes[0].get_yticklabels()] == ["update"]


def test_bars_have_their_lengths_and_the_same_bytes_whatever_the_style(answer, tmp_path):
    made = answer("sync")
    bars = page_of(made).axes[0]
    drawn = sorted(patch.get_width() for patch in bars.patches if patch.get_facecolor()[3] == 1)
    phases = [arm.phases[name].mean for arm in (made.baseline, made.candidate) for name in PHASE_NAMES]
    assert drawn == pytest.approx(sorted(phases))
    whiskers = [(line[0][0], line[1][0]) for bar in bars.collections for line in bar.get_segments()]
    expected = [(arm.step_s.low, arm.step_s.high) for arm in (made.baseline, made.candidate)]
    assert np.array(whiskers) == pytest.approx(np.array(expected))
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    save_picture(phases_figure(answer("sync")), first)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        save_picture(phases_figure(answer("sync")), second)
        assert matplotlib.rcParams["font.size"] == 30
    assert first.read_bytes() == second.read_bytes()
    assert b"Date" not in first.read_bytes()[:400]


PHASE_NAMES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s")


def test_no_text_overlaps_another_or_leaves_the_page(projection):
    figure = page_of(projection)
    hidden = undrawn_tick_labels(figure)
    texts = [t for t in figure.findobj(matplotlib.text.Text) if t.get_text().strip() and t not in hidden]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_visible()]
    assert len(boxes) > 15
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height, text
    assert not [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if overlap(first, second) > 1.0]


def undrawn_tick_labels(figure):
    """Ticks outside the limits of an axis keep text objects that are never drawn."""
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        hidden |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    return hidden


def overlap(first, second):
    """Pixels by which two boxes overlap in the direction in which they overlap less."""
    wide = min(first.x1, second.x1) - max(first.x0, second.x0)
    high = min(first.y1, second.y1) - max(first.y0, second.y0)
    return min(wide, high)


def test_a_long_curve_is_thinned_keeps_its_ends_and_in_a_window_its_values():
    times = tuple(np.linspace(0.0, 10.0, 50_000))
    shown, values = phases_plot.in_view(Curve("running", times, times), None)
    assert len(shown) <= 2 * phases_plot.MOST_POINTS
    assert (shown[0], shown[-1], values[-1]) == (0.0, 10.0, 10.0)
    shown, values = phases_plot.in_view(Curve("running", (0.0, 4.0, 9.0), (5.0, 3.0, 1.0)), (2.0, 8.0))
    assert (list(shown), list(values)) == ([0.0, 2.0, 6.0], [5.0, 3.0, 3.0])


@pytest.mark.parametrize("fill", sorted(PHASE_COLORS.values()))
def test_text_on_bars_has_contrast(fill):
    """At least 4.5 to 1, as WCAG 2.1 asks of text."""

    def luminance(color):
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(color)]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted([luminance(fill), luminance(text_color(fill))])
    assert (high + 0.05) / (low + 0.05) >= 4.5


AGENT = (
    "workload.prompts_per_step=4", "workload.generations_per_prompt=4", "trainer.global_batch_samples=null",
    "simulation.replications=1",
    "workload.agent={turns: {kind: constant, turns: 3}, environment_s: {kind: constant, seconds: 2.0}, "
    "judge: {gpus: 1, concurrency: 2, trajectory_s: {kind: constant, seconds: 1.0}}}",
)  # fmt: skip


@pytest.mark.parametrize("name", ["quickstart", "qwen8b_async_lag1"])
def test_environments_and_judge_of_agents_have_curves_of_their_own(name):
    figure = page_of(project(load_scenario(name, AGENT)))
    curves = figure.axes[-1]
    told = [text.get_text() for text in curves.get_legend().get_texts()]
    assert told.count("with the environment") == told.count("with the judge") == 1
    assert curves.get_ylabel() == "trajectories"
    assert "Trajectories under way" in [text.get_text() for text in figure.texts]


def test_what_agents_occupy_is_drawn_and_of_others_nothing() -> None:
    few = ["workload.prompts_per_step=4", "trainer.global_batch_samples=null", "simulation.replications=1"]
    agent = "workload.agent={turns: {kind: constant, turns: 3}, max_trajectories: 40}"
    keys = ["speculation.method=none", "engine.dispatch=round_robin", agent]
    assert occupancy_figure(project(load_scenario("quickstart", few))) is None
    figure = occupancy_figure(project(load_scenario("quickstart", [*few, *keys])))
    assert figure is not None
    turns, sandboxes, contexts = ([np.asarray(line.get_ydata()) for line in axes.lines] for axes in figure.axes)
    assert sandboxes[0].max() == 40 >= turns[0].max() > 0
    assert all(values[0].min() == 0 == values[0][-1] for values in (turns, sandboxes, contexts))
    prices = PriceInputs(load_scenario("quickstart", [*few, *keys])).before_work
    held = prices.replicas * prices.iteration.kv_capacity_tokens
    assert contexts[1] * 1e6 == pytest.approx(held)  # the dashed line
