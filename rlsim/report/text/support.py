"""What supports the answer, in a terminal: the nearest measured runs, and what the interval comes from."""

from __future__ import annotations

from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import table
from rlsim.results.projection import MeasuredRun, NearestRuns, Support, VarianceSource

LABELS = {"step": "step", "iteration": "engine", "training": "trainer", "transfer": "transfer"}
LEAST_RUNS_SHARE = 0.05
"""Kinds of runs that tell of less than this share of the step are left out."""
MOST_SOURCES, LEAST_SOURCE, LEAST_ASSUMED = 3, 0.10, 0.05
"""Sources shown: the largest, none below the first share; those that nothing was measured of down to the second."""
NAMED_DIFFERENCES, MOST_DIFFERENCES = 3, 2
"""Differences named in the sentence, and in a line of the table."""
LONGEST_ID = 24


def support_lines(support: Support | None, style: Style) -> list[str]:
    """A sentence with the interval and the nearest measured step, the nearest run of each kind, and the sources."""
    if support is None:
        return []
    shown = [runs for runs in support.nearest if runs.kind == "step" or runs.share >= LEAST_RUNS_SHARE]
    rows = [_row(runs) for runs in sorted(shown, key=lambda runs: -runs.share)]
    title = style.bold("Support")
    heads = ("", "share", "nearest measured", "which has")
    table_lines = table(heads, rows, style, "<><<")
    return [title, *style.wrapped(nearest_step(support), "  "), *table_lines, *_sources(support, style)]


def nearest_step(support: Support) -> str:
    """How far to trust the step, in a sentence: its interval, and the nearest measured step with its differences."""
    within = f"The step lies within {fmt.percent(support.half_width)} either way (90 %)"
    runs = next((one.runs for one in support.nearest if one.kind == "step"), ())
    if not runs:
        return f"{within}; no whole step was measured."
    if not runs[0].differences:
        return f"{within}; the measured step {runs[0].id} ran the same."
    differences = runs[0].differences
    names = [one.feature for one in differences[:NAMED_DIFFERENCES]]
    if len(differences) > NAMED_DIFFERENCES:
        names.append(f"{len(differences) - NAMED_DIFFERENCES} more")
    return f"{within}; the nearest measured step, {runs[0].id}, differs in {', '.join(names)}."


def shown_sources(support: Support) -> list[VarianceSource]:
    """The sources worth telling."""
    largest = [one for one in support.sources if one.share >= LEAST_SOURCE][:MOST_SOURCES]
    assumed = [one for one in support.sources if one.assumed and one.share >= LEAST_ASSUMED]
    return [*largest, *(one for one in assumed if one not in largest)]


def _row(nearest: NearestRuns) -> tuple[str, ...]:
    """The nearest run of a kind: what it has where it differs."""
    share = "" if nearest.kind == "step" else fmt.percent(nearest.share)
    label = LABELS.get(nearest.kind, nearest.kind)
    if not nearest.runs:
        return label, share, "nothing", ""
    run = nearest.runs[0]
    name = run.id if len(run.id) <= LONGEST_ID else f"{run.id[: LONGEST_ID - 3]}..."
    return label, share, name, _differences(run)


def _differences(run: MeasuredRun) -> str:
    shown = [f"{one.feature} {one.measured}" for one in run.differences[:MOST_DIFFERENCES]]
    if len(run.differences) > MOST_DIFFERENCES:
        shown.append(f"{len(run.differences) - MOST_DIFFERENCES} more")
    return ", ".join(shown) or "the same"


def _sources(support: Support, style: Style) -> list[str]:
    """What the interval comes from, and what settles most of it."""
    sources = shown_sources(support)
    if not sources:
        return []
    named = (f"{fmt.percent(one.share)} {one.source}{' (assumed)' if one.assumed else ''}" for one in sources)
    ways = dict.fromkeys((one.settle, one.command) for one in sources if one.assumed or one is sources[0])
    settled = " ".join(f"To settle it: {settle} ({command})." for settle, command in ways)
    return style.wrapped(f"Its variance leans on {'; '.join(named)}. {settled}", "  ")
