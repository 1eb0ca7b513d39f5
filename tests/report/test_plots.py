"""The picture: it is one, it differs where the answer differs, nothing in it overlaps or falls off the page."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import matplotlib
import matplotlib.image
import numpy as np
import pytest
import sample

from rlsim.report import plots
from rlsim.report.palette import PHASE_COLORS, text_color
from rlsim.report.plots import phases_figure
from rlsim.results import Curve

SAMPLES = [
    sample.sync_sample,
    sample.async_sample,
    sample.plain_sample,
    sample.slower_sample,
    sample.tiny_sample,
    sample.crowded_sample,
]


def pixels(projection, tmp_path):
    path = tmp_path / "phases.png"
    phases_figure(projection, path)
    return matplotlib.image.imread(path)


def share_of(image, color):
    """Share of pixels that have ``color`` (#rrggbb)."""
    wanted = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return float(np.mean(np.all(np.abs(image[..., :3] - wanted) < 0.01, axis=-1)))


@pytest.mark.parametrize("make", SAMPLES)
def test_png_is_a_readable_picture_with_content(make, tmp_path):
    image = pixels(make(), tmp_path)
    assert image.shape[1] == plots.WIDTH_IN * plots.DPI
    assert image.shape[0] > 500
    assert image[..., :3].std() > 0.05
    assert share_of(image, "#ffffff") > 0.4


def test_bars_have_the_length_of_their_phases(tmp_path):
    image = pixels(replace(sample.sync_sample(), baseline=drawn_alone(), candidate=drawn_alone()), tmp_path)
    areas = {name: share_of(image, PHASE_COLORS[name]) for name in ("prepare", "train")}
    assert areas["train"] / areas["prepare"] == pytest.approx(88.7 / 21.5, rel=0.15)


def drawn_alone():
    """An arm without curves, whose only colours are those of bars and key."""
    return replace(sample.sync_arm("eagle3", 1.0, 3, 3.0), curves=())


def test_lanes_are_drawn_only_for_asynchronous_runs(tmp_path):
    made = sample.async_sample()
    with_lanes = pixels(made, tmp_path)
    assert with_lanes.shape[0] > pixels(replace(made, mode="sync"), tmp_path).shape[0]
    assert share_of(with_lanes, PHASE_COLORS["refit"]) > 0.001
    assert share_of(with_lanes, PHASE_COLORS["generation"]) > 0.02


def test_same_projection_same_bytes_whatever_the_users_style(tmp_path):
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    phases_figure(sample.sync_sample(), first)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        phases_figure(sample.sync_sample(), second)
        assert matplotlib.rcParams["font.size"] == 30
    assert first.read_bytes() == second.read_bytes()
    assert b"Date" not in first.read_bytes()[:400]


@pytest.mark.parametrize("make", SAMPLES)
def test_no_text_overlaps_another_or_leaves_the_page(make, tmp_path, monkeypatch):
    pages = []
    monkeypatch.setattr(plots._Page, "save", lambda page, path: pages.append(page))
    phases_figure(make(), tmp_path / "unused.png")
    (page,) = pages
    page.canvas.draw()
    hidden = undrawn_tick_labels(page.figure)
    texts = [t for t in page.figure.findobj(matplotlib.text.Text) if t.get_text().strip() and t not in hidden]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_visible()]
    assert len(boxes) > 15
    for text, box in boxes:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.figure.bbox.width and box.y1 <= page.figure.bbox.height
        assert inside, text
    clashes = [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if overlap(first, second) > 1.0]
    assert not clashes


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


def test_a_long_curve_is_thinned_and_keeps_its_end():
    times = tuple(np.linspace(0.0, 10.0, 50_000))
    shown, values = plots._in_view(Curve("running", times, times), None)
    assert len(shown) <= 2 * plots.MOST_POINTS
    assert (shown[0], shown[-1], values[-1]) == (0.0, 10.0, 10.0)


@pytest.mark.parametrize("fill", sorted(PHASE_COLORS.values()))
def test_text_on_bars_has_contrast(fill):
    """At least 4.5 to 1, as WCAG 2.1 asks of text."""

    def luminance(color):
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(color)]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted([luminance(fill), luminance(text_color(fill))])
    assert (high + 0.05) / (low + 0.05) >= 4.5
