"""Colours, charts and the browser."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.errors import InputError
from rlsim.report.figures.style import contrast, text_color
from rlsim.report.page.charts import MOST_TICKS, Scale, shown_from
from rlsim.report.page.palette import (
    AREA_CONTRAST,
    DARK,
    LIGHT,
    PATTERNS,
    SOURCES,
    TEXT_CONTRAST,
    TONE_PATTERNS,
    Theme,
    heat,
    tones,
)
from rlsim.report.page.plots import MOST_POINTS, thinned
from rlsim.report.page.reading import TEXT_CHARACTERS, Node, parsed_number
from rlsim.report.page.stylesheet import LABEL_STEPS, stylesheet

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
finite = st.floats(-1e12, 1e12)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#FFFFFF") == contrast("#FFFFFF", "#000000") == 21
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.478, abs=1e-3)  # the usual example of a near miss


@THEMES
def test_text_is_readable_on_everything_it_stands_on(theme: Theme) -> None:
    for ground in (theme.paper, theme.panel):
        for text in (theme.ink, theme.dim, theme.accent):
            assert contrast(text, ground) >= TEXT_CONTRAST
    assert all(contrast(theme.ink, cell) >= TEXT_CONTRAST for cell in heat(theme))
    for color in tones(theme).values():
        assert contrast({"white": "#FFFFFF", "black": "#000000"}[text_color(color)], color) >= TEXT_CONTRAST


@THEMES
def test_areas_and_marks_stand_out_from_the_page(theme: Theme) -> None:
    for color in (*tones(theme).values(), theme.accent, theme.bad):
        assert contrast(color, theme.paper) >= AREA_CONTRAST


@THEMES
def test_colours_of_the_pictures_are_kept_where_they_can_be(theme: Theme) -> None:
    for name, color in tones(theme).items():
        assert (color == SOURCES[name]) == (contrast(SOURCES[name], theme.paper) >= AREA_CONTRAST)


def test_areas_that_meet_in_a_chart_differ_by_pattern() -> None:
    assert set(TONE_PATTERNS) == set(SOURCES) and set(TONE_PATTERNS.values()) <= set(PATTERNS)
    groups = (
        ("exposed_generation", "data", "prepare", "logprob", "train", "refit", "generation"),
        ("measured", "modelled", "assumed"),
        ("baseline", "candidate"),
        tuple(f"series{i}" for i in range(6)),
    )
    for group in groups:
        for first, second in combinations(group, 2):
            assert TONE_PATTERNS[first] != TONE_PATTERNS[second]


def test_both_themes_set_the_same_variables_and_no_rule_uses_another() -> None:
    sheet = stylesheet()
    light, dark = re.findall(r":root\{([^}]*)\}", sheet)
    named = set(re.findall(r"--([\w-]+):", light))
    assert named == set(re.findall(r"--([\w-]+):", dark))
    assert set(re.findall(r"var\(--([\w-]+)\)", sheet)) <= named
    assert "@media print" in sheet and "prefers-color-scheme:dark" in sheet and sheet.count("{") == sheet.count("}")


@given(low=finite, span=st.floats(1e-6, 1e12), value=finite)
def test_places_lie_in_the_chart_and_ticks_between_the_ends(low: float, span: float, value: float) -> None:
    scale = Scale(low, low + span)
    assert 0 <= scale.percent(value) <= 100
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= MOST_TICKS + 1 or scale.high == scale.low or span < 1e-9 * abs(low)
    slack = 1e-6 * max(span, abs(low), 1.0)
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)


@given(low=st.floats(1e-6, 1e6), factor=st.floats(1.001, 1e9))
def test_logarithmic_places_run_from_end_to_end(low: float, factor: float) -> None:
    scale = Scale(low, low * factor, logarithmic=True)
    assert (scale.percent(low), scale.percent(scale.high)) == (0, 100)
    assert scale.percent(math.sqrt(low * scale.high)) == pytest.approx(50, abs=0.1)
    assert len(scale.ticks()) <= MOST_TICKS


@given(st.lists(finite, min_size=1, max_size=3000))
def test_a_thinned_curve_keeps_ends_and_extremes(values: list[float]) -> None:
    points = thinned(range(len(values)), values)
    assert len(points) <= max(MOST_POINTS, 1)
    assert points == sorted(points)
    assert (points[0][0], points[-1][0]) == (0, len(values) - 1)
    assert {min(values), max(values)} <= {value for _, value in points}


def test_labels_are_shown_from_the_width_that_they_need() -> None:
    assert shown_from(LABEL_STEPS[0]) == ""
    assert shown_from(LABEL_STEPS[0] + 1) == f"from{LABEL_STEPS[1]}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, 1e19, True, "3", None, []])
def test_what_is_no_number_in_bounds_is_told_with_its_key(value: object) -> None:
    with pytest.raises(InputError, match=r"file\.json: 'a\.b' must be a number"):
        Node(value, "file.json", "a.b").number()


def test_long_text_ends_in_dots() -> None:
    assert Node("x" * 10_000, "f", "k").text() == "x" * (TEXT_CHARACTERS - 3) + "..."


@pytest.mark.parametrize(
    ("text", "value"), [("1.5", 1.5), ("nan", None), ("1e999", None), ("9" * 5000, None), ("", None)]
)
def test_fields_of_tables_are_numbers_or_nothing(text: str, value: float | None) -> None:
    assert parsed_number(text) == value


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = "<script>document.title='RAN'</script><img src=x onerror=\"document.title='RAN'\">"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("name", ["async", "sweep", "plan", "run", "validation", "blame"])
def test_a_browser_draws_the_page_and_runs_nothing(name: str, copied: Callable[[str], Path], tmp_path: Path) -> None:
    """Even what was smuggled past the escaping must not run: the page's own policy forbids it."""
    from rlsim.report.page.report import write_report

    page = write_report(copied(name), tmp_path / "page.html")
    smuggled = page.read_text(encoding="utf-8").replace("</main>", f"{PROBE}</main>")
    (tmp_path / "smuggled.html").write_text(smuggled, encoding="utf-8")
    picture = tmp_path / "page.png"
    _browse(tmp_path, f"--screenshot={picture}", "--window-size=900,2000", page)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 20_000
    assert "RAN" not in _browse(tmp_path, "--dump-dom", tmp_path / "smuggled.html").split("</title>")[0]
    bare = re.sub(r"<meta http-equiv[^>]*>", "", smuggled)
    (tmp_path / "bare.html").write_text(bare, encoding="utf-8")
    assert "RAN" in _browse(tmp_path, "--dump-dom", tmp_path / "bare.html").split("</title>")[0]


def _browse(home: Path, *words: object) -> str:
    """What Chromium prints."""
    assert BROWSER is not None
    fixed = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home / 'browser'}")
    *options, page = map(str, words)
    done = subprocess.run(
        [BROWSER, *fixed, *options, Path(page).as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout
