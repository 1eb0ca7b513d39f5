"""What runs when in a projection: lanes of trainer and replicas, and the tail of the rollout."""

from __future__ import annotations

from collections.abc import Sequence

from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart
from rlsim.report.page.markup import Markup, joined
from rlsim.report.page.page import Section, table
from rlsim.report.page.plots import Line, line_plot
from rlsim.report.page.timeline import PHASE_OF, SHOWN_STEPS, Lanes, LaneSpan
from rlsim.results import Projection

MOST_LANES = 10
"""Rows of an arm, the trainer first."""
MOST_SPANS = 150
"""Spans of a row; the longest are kept."""
TAIL = (0.5, 0.25, 0.1, 0.05, 0.01)
"""Shares of the rollout's sequences whose time the table of the tail tells."""


def timeline_sections(data: Projection, arms: Sequence[Lanes]) -> list[Section]:
    """Timeline and tail of the shown arms; nothing without a timeline."""
    shown = [arm for arm in arms if arm.name.startswith("candidate") or "baseline" in data.variants]
    if not shown:
        return []
    longest = max(end - start for start, end in (arm.window for arm in shown))
    charts = [_lanes(arm, i, longest, data) for i, arm in enumerate(shown)]
    running = [(arm, *arm.running_shown()) for arm in shown]
    running = [(arm, xs, ys) for arm, xs, ys in running if len(xs) > 1]
    if running:
        charts.append(_tail(running, data))
    return [Section("projection-timeline", "Timeline", joined(charts))]


def _lanes(arm: Lanes, number: int, longest_s: float, data: Projection) -> Markup:
    lanes = arm.shown()
    rows: list[Row] = []
    cells: list[tuple[str, ...]] = []
    phases: dict[str, str] = {}
    for name, spans in list(lanes.items())[:MOST_LANES]:
        longest = sorted(spans, key=lambda span: span.start_s - span.end_s)[:MOST_SPANS]
        rows.append(Row(name, "", [Bar([_segment(span, data) for span in sorted(longest, key=lambda s: s.start_s)])]))
        phases |= {span.phase: _label(span, data) for span in longest}
        cells += [
            (name, _label(span, data), str(span.step), f"{span.start_s:.2f}", f"{span.end_s:.2f}") for span in longest
        ]
    more = f" {len(lanes) - MOST_LANES} more rows are in timeline.json." if len(lanes) > MOST_LANES else ""
    words = Words(
        f"projection-lanes-{number}",
        arm.name,
        f"What trainer and generator do over the last steps: {len(rows)} rows, {len(cells)} spans.",
        f"Seconds over the last steps, at most {SHOWN_STEPS}; the number in a span is the step it works for.{more}",
    )
    numbers = table(("row", "phase", "step", "start (s)", "end (s)"), cells, "Spans in view.", 2)
    return bar_chart(words, rows, Scale(0, longest_s or 1.0), numbers, keys=phases, unit="s")


def _label(span: LaneSpan, data: Projection) -> str:
    return fmt.phase_label(PHASE_OF[span.phase], data.asynchronous) if span.phase != "other" else "other"


def _segment(span: LaneSpan, data: Projection) -> Segment:
    title = f"{_label(span, data)}, step {span.step}: {fmt.seconds(span.end_s - span.start_s)}"
    return Segment(span.start_s, span.end_s, span.phase, title, str(span.step))


def _tail(running: Sequence[tuple[Lanes, list[float], list[float]]], data: Projection) -> Markup:
    lines = [
        Line(arm.name.split(":")[0], "baseline" if arm.name.startswith("baseline") else "candidate", xs, ys, i, True)
        for i, (arm, xs, ys) in enumerate(sorted(running, key=lambda each: each[0].name.startswith("baseline")))
    ]
    rows = [(line.name, *(_left_at(line, share) for share in TAIL)) for line in lines]
    heads = ("", *(f"{fmt.percent(share)} left" for share in TAIL))
    numbers = table(heads, rows, "Seconds into the window when so many of the most running sequences are left.")
    words = Words(
        "projection-tail",
        "Sequences that run: the tail of the lengths",
        "; ".join(f"{line.name}: at most {fmt.number(max(line.y))} sequences" for line in lines),
        "A rollout ends with its longest responses: where the curve is low, GPUs wait for few sequences."
        if not data.asynchronous
        else "A batch ends with its longest responses; batches in flight at once fill each other's tails.",
    )
    return line_plot(words, lines, numbers, "s", "sequences running on all replicas")


def _left_at(line: Line, share: float) -> str:
    """When the curve last falls below ``share`` of its peak for good; a dash where it does not."""
    bound = share * max(line.y)
    above = [i for i, value in enumerate(line.y) if value > bound]
    if not above or above[-1] + 1 >= len(line.x):
        return "-"
    return f"{line.x[above[-1] + 1]:.1f} s"
