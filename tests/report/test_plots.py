"""The picture: it is one, it differs where the answer differs, nothing in it overlaps or falls off the page."""

from itertools import combinations

import matplotlib
import matplotlib.image
import numpy as np
import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.report.figures import phases as phases_plot
from rlsim.report.figures.phases import phases_figure
from rlsim.report.figures.style import DPI, PHASE_COLORS, save_picture, text_color
from rlsim.report.text.findings import headline
from rlsim.results import Curve


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
    shown, values = phases_plot._in_view(Curve("running", times, times), None)
    assert len(shown) <= 2 * phases_plot.MOST_POINTS
    assert (shown[0], shown[-1], values[-1]) == (0.0, 10.0, 10.0)
    shown, values = phases_plot._in_view(Curve("running", (0.0, 4.0, 9.0), (5.0, 3.0, 1.0)), (2.0, 8.0))
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
