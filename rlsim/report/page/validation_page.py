"""What the page says of a validation: predicted beside measured, errors by group, rows that were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlsim.files.reading import TABLE_BYTES
from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart
from rlsim.report.page.folder import needed_file
from rlsim.report.page.markup import Markup, joined, tag
from rlsim.report.page.page import KeyFigure, Part, Section, numbered, table
from rlsim.report.page.plots import Point, scatter
from rlsim.report.page.reading import Node, read_json
from rlsim.results import Interval

MOST_POINTS = 1500
"""Points of the plot; beyond that every n-th row is drawn."""
MOST_GROUPS = 24
REACH = 1e3
"""Ends of intervals are drawn at most this factor away."""


@dataclass(frozen=True)
class _Row:
    id: str
    group: str
    unit: str
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def covered(self) -> bool:
        return self.low <= self.measured <= self.high


def validation_part(folder: Path, notes: list[str]) -> Part:
    """The validation in ``folder``."""
    root = read_json(needed_file(folder, "validation.json"), TABLE_BYTES)
    nodes = root.at("rows").elements()
    rows = [row for node in nodes if (row := _row(node)) is not None]
    kind = root.at("kind").text()
    score = root.at("score")
    number = f"{len(rows):,} of {len(nodes):,} measured values were predicted"
    sections = [
        Section("validation-rows", "Predicted beside measured", _plots(rows)),
        Section("validation-groups", "Errors by group", _groups(root.at("groups"))),
        *_skipped(nodes),
    ]
    median = score.number_at("median_abs_error")
    bias, covered, p90 = (score.number_at(key) for key in ("bias", "coverage", "p90_abs_error"))
    figures = [KeyFigure("Rows predicted", f"{len(rows):,}", f"of {len(nodes):,}")]
    if median is None or bias is None or covered is None or p90 is None:
        return Part("validation", f"Validation: {kind}", f"{number}.", figures, sections)
    figures = [
        KeyFigure("Median error", fmt.percent(median, 1), "of the measured value"),
        KeyFigure("90 % of errors within", fmt.percent(p90, 1)),
        KeyFigure("Bias", fmt.signed_percent(bias, 1), "median of predicted over measured"),
        KeyFigure("Inside their interval", fmt.percent(covered), "of 90 % intervals"),
        *figures,
    ]
    headline = f"{number}, with a median error of {fmt.percent(median, 1)}; {fmt.percent(covered)} lie in the interval."
    remarks = root.get("remarks")
    about = [] if remarks is None else list(remarks.texts())
    return Part("validation", f"Validation: {kind}", headline, figures, sections, about)


def _row(node: Node) -> _Row | None:
    """A row that was predicted; None for one that was left out."""
    values = [node.number_at(key) for key in ("measured", "predicted")]
    measured, predicted = values
    if measured is None or predicted is None or measured <= 0 or predicted <= 0:
        return None
    low, high = node.number_at("low"), node.number_at("high")
    ends = (predicted if low is None else low, predicted if high is None else high)
    return _Row(node.at("id").text(), node.text_at("group"), node.text_at("unit"), measured, predicted, *ends)


def _plots(rows: Sequence[_Row]) -> Markup:
    """A plot for each unit: seconds and tokens do not share an axis."""
    if not rows:
        return tag("p", "No row could be predicted.", class_="dim")
    return joined(_plot(unit, [row for row in rows if row.unit == unit], i) for i, unit in enumerate(_units(rows)))


def _units(rows: Sequence[_Row]) -> list[str]:
    return [unit for unit, _ in Counter(row.unit for row in rows).most_common(4)]


def _plot(unit: str, rows: Sequence[_Row], number: int) -> Markup:
    shown = rows[:: -(-len(rows) // MOST_POINTS)]
    points = [
        Point(
            row.measured,
            Interval(row.predicted, *(min(max(end, row.predicted / REACH), row.predicted * REACH) for end in row.ends)),
            f"{row.id}: predicted {row.predicted:.4g}, measured {row.measured:.4g} {row.unit}",
            "" if row.covered else "hollow",
        )
        for row in shown
    ]
    words = Words(
        f"validation-scatter-{number}",
        f"Predicted over measured, {unit}" if unit else "Predicted over measured",
        f"{len(rows)} rows; {sum(row.covered for row in rows)} lie inside their 90 % interval.",
        "On the dashed line both agree; hollow: the measured value lies outside the 90 % interval. Both axes are "
        "logarithmic.",
    )
    worst = sorted(rows, key=lambda row: -abs(row.error))
    cells = [
        (row.id, row.group, f"{row.measured:.4g}", f"{row.predicted:.4g}", f"{row.low:.4g} to {row.high:.4g}",
         fmt.signed_percent(row.error, 1))
        for row in worst
    ]  # fmt: skip
    heads = ("row", "group", "measured", "predicted", "90 % interval", "error")
    numbers = table(heads, cells, "Rows, the largest errors first; rows.csv has all.", 2)
    return scatter(
        words, points, numbers, (f"measured ({unit})", f"predicted ({unit})"), logarithmic=True, diagonal=True
    )


def _groups(node: Node) -> Markup:
    groups = [group for name, score in node.items() if (group := _group(name, score)) is not None]
    if not groups:
        return tag("p", "There are no groups.", class_="dim")
    groups.sort(key=lambda group: -group.n)
    rows = [
        Row(
            group.name,
            fmt.percent(group.median, 1),
            [Bar([Segment(0, 100 * group.median, "candidate", group.name)], limit=100 * group.p90)],
            f"{group.n:,} {'row' if group.n == 1 else 'rows'}, bias {fmt.signed_percent(group.bias, 1)}",
        )
        for group in groups[:MOST_GROUPS]
    ]
    words = Words(
        "validation-errors",
        "Median error by group",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Per cent of the measured value; the mark is what 90 % of the errors stay below.",
    )
    cells = [
        (
            group.name,
            f"{group.n:,}",
            *(fmt.percent(share, 1) for share in (group.median, group.p90)),
            fmt.signed_percent(group.bias, 1),
            fmt.percent(group.coverage),
        )
        for group in groups
    ]
    heads = ("group", "rows", "median error", "90 % within", "bias", "in the interval")
    most = max(100 * max(group.p90, group.median) for group in groups[:MOST_GROUPS])
    return bar_chart(words, rows, Scale(0, most or 1.0), table(heads, cells, "Scores of the groups."), unit="%")


@dataclass(frozen=True)
class _Group:
    """Errors as shares of the measured values."""

    name: str
    n: int
    median: float
    p90: float
    bias: float
    coverage: float


def _group(name: str, score: Node) -> _Group | None:
    """The score of a group; None where none of its rows was predicted."""
    median, p90, bias, covered = (
        score.number_at(key) for key in ("median_abs_error", "p90_abs_error", "bias", "coverage")
    )
    if median is None or p90 is None or bias is None or covered is None:
        return None
    return _Group(name, score.at("n").integer(), median, p90, bias, covered)


def _skipped(nodes: Sequence[Node]) -> list[Section]:
    reasons = Counter(reason for node in nodes if (reason := node.text_at("skipped")))
    entries = [f"{count:,} {'row' if count == 1 else 'rows'}: {reason}" for reason, count in reasons.most_common()]
    return [Section("validation-skipped", "Rows left out", numbered(entries))] if entries else []
