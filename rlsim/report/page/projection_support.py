"""What a projection rests on: shares of measurements, the nearest measured runs, what its interval comes from."""

from __future__ import annotations

from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart, stacked
from rlsim.report.page.markup import Markup, joined, tag
from rlsim.report.page.page import Section, table
from rlsim.report.text.support import LABELS, nearest_step, shown_sources
from rlsim.results import Projection, Provenance
from rlsim.results.support import Support

ROOTS = ("measured", "modelled", "assumed")


def evidence_section(data: Projection) -> Section:
    """Provenance, the nearest measured runs, and what the interval comes from."""
    shown = [_provenance(data.provenance)]
    if data.support is not None:
        shown = [tag("p", nearest_step(data.support)), *shown, _nearest(data.support), _sources(data.support)]
    return Section("projection-evidence", "Evidence", joined(shown))


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


def _nearest(support: Support) -> Markup:
    rows = [
        (
            LABELS.get(nearest.kind, nearest.kind),
            run.id,
            "; ".join(f"{each.feature}: {each.asked} asked, {each.measured} measured" for each in run.differences),
            fmt.percent(nearest.share),
        )
        for nearest in support.nearest
        for run in nearest.runs
    ]
    heads = ("kind", "measured run", "differs in", "share of the step")
    return table(heads, rows, "The nearest measured runs and what they differ in.", 3)


def _sources(support: Support) -> Markup:
    sources = sorted(support.sources, key=lambda one: -one.share)
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
        "projection-sources",
        "What the interval comes from",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Shares of the variance of the step's logarithm; dotted: no measurement says anything of it.",
    )
    numbers = table(
        ("source", "what settles it", "command", "share"),
        [(one.source, one.settle, tag("code", one.command), fmt.percent(one.share, 1)) for one in sources],
        "Sources of the interval.",
        3,
    )
    ways = dict.fromkeys((one.settle, one.command) for one in shown_sources(support))
    shown = [tag("p", f"To settle it: {settle}: ", tag("code", command)) for settle, command in ways]
    return joined((bar_chart(words, rows, Scale(0, 100 * sources[0].share or 1.0), numbers, unit="%"), *shown[:3]))
