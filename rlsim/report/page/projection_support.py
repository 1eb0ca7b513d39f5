"""What a projection rests on: shares of evidence, the nearest measurements, what its interval leans on."""

from __future__ import annotations

import math

from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart, stacked
from rlsim.report.page.markup import Markup, joined, tag
from rlsim.report.page.page import Section, details, table
from rlsim.report.page.projection_data import ProjectionData
from rlsim.report.support import LABELS, leanings
from rlsim.results import HalfSupport, Provenance, Support

ROOTS = ("measured", "modelled", "assumed")


def evidence_section(data: ProjectionData) -> Section:
    """Grade, provenance, distances to what was measured, and what the interval leans on."""
    shown = []
    if data.support is not None:
        shown.append(_grade(data.support))
    if data.provenance is not None:
        shown.append(_provenance(data.provenance))
    if data.support is not None:
        shown += [_distances(data.support), _leaning(data.support), _neighbours(data.support)]
    if not shown:
        shown = [tag("p", "The file says nothing of it.", class_="dim")]
    return Section("projection-evidence", "Evidence", joined(shown))


def _grade(support: Support) -> Markup:
    text = (
        f"{support.meaning[:1].upper()}{support.meaning[1:]}. The step lies within {fmt.percent(support.half_width)} "
        f"either way (90 %), and measured runs that differ as much miss each other by {_away(support.distance)}."
    )
    return tag("div", tag("b", support.grade, aria_label=f"Grade {support.grade}"), tag("p", text), class_="grade")


def _away(distance: float) -> str:
    return fmt.percent(math.expm1(distance)) if math.isfinite(distance) else "nobody knows how much"


def _provenance(shares: Provenance) -> Markup:
    sizes = [(root, 100 * getattr(shares, root), f"{root} {fmt.percent(getattr(shares, root))}") for root in ROOTS]
    words = Words(
        "projection-provenance",
        "What the candidate's seconds rest on",
        ", ".join(name for _, _, name in sizes),
        "Shares of all seconds, all phases together.",
    )
    numbers = table(
        ("rests on", "share"), [(root, f"{size:.1f} %") for root, size, _ in sizes], "Shares of the seconds."
    )
    keys = {root: name for root, _, name in sizes}
    return bar_chart(words, [Row("all phases", "", [Bar(stacked(sizes))])], Scale(0, 100), numbers, keys=keys, unit="%")


def _distances(support: Support) -> Markup:
    halves = sorted(support.halves, key=lambda half: half.distance)
    known = [100 * math.expm1(half.distance) for half in halves if math.isfinite(half.distance)]
    rows = [
        Row(
            LABELS.get(half.half, half.half),
            f"{_away(half.distance)} away" if half.nearest else "nothing measured",
            [Bar(_distance_bar(half))],
            _nearest(half),
        )
        for half in halves
    ]
    words = Words(
        "projection-distance",
        "Distance to the nearest measurement",
        "; ".join(f"{row.label}: {row.value}" for row in rows),
        "By how much measured runs that differ as much miss each other, beyond two that do not differ.",
    )
    numbers = table(
        ("kind", "nearest measured run", "share of the step", "away"),
        [
            (
                LABELS.get(half.half, half.half),
                half.nearest[0].id if half.nearest else "nothing",
                fmt.percent(half.share),
                _away(half.distance),
            )
            for half in halves
        ],
        "Nearest measured run of each kind.",
        2,
    )
    return bar_chart(words, rows, Scale(0, max(known, default=1.0) or 1.0), numbers, unit="%")


def _distance_bar(half: HalfSupport) -> list[Segment]:
    if not math.isfinite(half.distance):
        return []
    return [Segment(0, 100 * math.expm1(half.distance), "candidate", half.half)]


def _nearest(half: HalfSupport) -> str:
    return f"{fmt.percent(half.share)} of the step" if half.half != "step" else ""


def _leaning(support: Support) -> Markup:
    sources = sorted(support.leaning, key=lambda one: -one.share)
    if not sources:
        return joined(())
    rows = [
        Row(
            one.source,
            fmt.percent(one.share),
            [Bar([Segment(0, 100 * one.share, "assumed" if one.assumed else "candidate", one.source)])],
            "assumed" if one.assumed else "",
        )
        for one in sources[:8]
    ]
    words = Words(
        "projection-leaning",
        "What the interval leans on",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Shares of the variance of the step's logarithm; dotted: no measurement says anything of it.",
    )
    numbers = table(
        ("source", "what settles it", "command", "share"),
        [(one.source, one.settle, tag("code", one.command), fmt.percent(one.share, 1)) for one in sources],
        "Sources of the interval.",
        3,
    )
    ways = dict.fromkeys((one.settle, one.command) for one in leanings(support))
    told = [tag("p", f"To settle it: {settle}: ", tag("code", command)) for settle, command in ways]
    return joined((bar_chart(words, rows, Scale(0, 100 * sources[0].share or 1.0), numbers, unit="%"), *told[:3]))


def _neighbours(support: Support) -> Markup:
    rows = [
        (
            LABELS.get(half.half, half.half),
            one.id,
            "; ".join(f"{each.feature}: {each.asked} asked, {each.measured} measured" for each in one.differences),
            _away(one.distance),
        )
        for half in support.halves
        for one in half.nearest
    ]
    heads = ("kind", "measured run", "differs in", "away")
    return details("The nearest measured runs and what they differ in", table(heads, rows, "Nearest runs.", 3))
