"""What the page says of a projection."""

from __future__ import annotations

from pathlib import Path

from rlsim.report import format as fmt
from rlsim.report.figures.bars import Bar, BarRow, bars_figure, intervals_figure
from rlsim.report.figures.phases import step_figure, timeline_figure
from rlsim.report.figures.style import GREY, LINE_COLORS
from rlsim.report.folder import read_projection
from rlsim.report.page.parts import (
    Block,
    Part,
    Section,
    Table,
    Text,
    assumptions_section,
    picture,
    speedup,
    table,
    timed,
)
from rlsim.report.text import findings
from rlsim.report.text.support import LABELS, nearest_step, shown_sources
from rlsim.results import PHASES, EngineStatistics, Interval, Projection
from rlsim.results.projection import Support
from rlsim.units import GIB

MOST_PARTS, MOST_SOURCES, MOST_AGES = 12, 8, 12
ROOTS = {"measured": LINE_COLORS[2], "modelled": LINE_COLORS[0], "assumed": LINE_COLORS[4]}
COLORS = {"baseline": GREY, "candidate": LINE_COLORS[0], "autoregressive": LINE_COLORS[0]}
LEDGER = {
    "consumed": ("trained on", LINE_COLORS[2]),
    "in_flight": ("still in flight", LINE_COLORS[0]),
    "stale": ("dropped for their age", LINE_COLORS[1]),
    "discarded": ("of groups no step could use", LINE_COLORS[4]),
    "regenerated": ("lost to restarts", LINE_COLORS[3]),
}


def projection_part(folder: Path, notes: list[str]) -> Part:
    """The projection in ``folder``; ``notes`` takes what had to be left out."""
    data = read_projection(folder, notes)
    where = f"{data.num_gpus:,} {data.hardware}" if data.num_gpus and data.hardware else ""
    sections = [
        Section("projection-step", "The step", _step(data)),
        *_timeline(data),
        Section("projection-bounds", "What bounds it", _bounds(data)),
        Section("projection-memory", "Memory", [_pool(data, pool) for pool in data.candidate.memory]),
        Section("projection-samples", "Samples and tokens", _samples(data)),
        Section("projection-evidence", "Evidence", _evidence(data)),
        *assumptions_section("projection", data.assumptions, data.warnings),
    ]
    mode = "asynchronous" if data.asynchronous else "synchronous"
    about = ", ".join(filter(None, (data.model, mode, f"seed {data.seed}", f"digest {data.digest}")))
    place = f"on {where}" if where else "in this scenario"
    headline = findings.verdict_on(data.candidate, data.rollout_speedup, data.end_to_end_speedup, place)
    look = _look_here(data)
    figures = [timed("A step takes", data.candidate.step_s)]
    if data.candidate.speculates:
        figures.append(speedup("Step, speed-up", data.end_to_end_speedup))
        figures.append(speedup("Rollout, speed-up", data.rollout_speedup))
    rate = data.candidate.tokens_per_s_per_gpu
    figures.append(
        ("Tokens per second and GPU", fmt.number(rate.mean), f"{fmt.number(rate.low)} to {fmt.number(rate.high)}")
    )
    if data.support is not None:
        figures.append(("Step lies within", fmt.percent(data.support.half_width), "either way (90 %)"))
    lines = [line for line in (data.question, look, about) if line]
    return Part("projection", data.scenario, headline, figures, sections, lines)


def _look_here(data: Projection) -> str:
    """Where to look first; nothing where the file names no part of a phase."""
    try:
        return findings.look_here_first(data)
    except StopIteration:
        return ""


def _step(data: Projection) -> list[Block]:
    arms = data.variants
    added = {name for arm in arms.values() for name in findings.step_phases(arm, data.asynchronous)}
    rows: list[list[str | Interval]] = [["step", *(arm.step_s for arm in arms.values())]]
    for phase in PHASES:
        label = fmt.phase_label(phase, data.asynchronous) + ("" if phase in added else " (not added)")
        rows.append([label, *(arm.phases[phase] for arm in arms.values())])
    deviations = [fmt.number(arm.sampling.step_deviation_s) for arm in arms.values()]
    rows.append(["standard deviation from step to step", *deviations])
    numbers = table(("seconds", *arms), rows, "Seconds per step, mean and 90 % interval.")
    words = (
        "Where a step's time goes",
        "Phases of the step one after the other; whiskers are 90 % intervals of the step.",
    )
    blocks: list[Block] = [picture("projection-phases", words, lambda: step_figure(data), numbers)]
    if data.candidate.speculates:
        found = {"Rollout": data.rollout_speedup, "Step": data.end_to_end_speedup}
        shown = [(name, fmt.times(value), value) for name, value in found.items()]
        words = (
            "Speed-up by speculation",
            "Baseline over candidate on the same drawn work, mean and 90 % interval; dashed: no change.",
        )
        numbers = table(("", "speed-up"), list(found.items()), "Speed-ups, 90 % intervals.")
        blocks.append(picture("projection-speedups", words, lambda: intervals_figure(shown, "speed-up", 1.0), numbers))
    return blocks


def _timeline(data: Projection) -> list[Section]:
    arms = data.variants.values()
    if not all(arm.spans and arm.curves for arm in arms):
        return []
    tail = (
        "A batch ends with its longest responses; batches in flight at once fill each other's tails."
        if data.asynchronous
        else "A rollout ends with its longest responses: where the curve is low, GPUs wait for few sequences."
    )
    words = "What runs when, and the tail of the lengths", f"Sequences that run on all replicas. {tail}"
    rows = [
        (
            name,
            span.actor,
            fmt.phase_label(span.phase, data.asynchronous),
            str(span.step),
            f"{span.start_s:.2f}",
            f"{span.end_s:.2f}",
        )
        for name, arm in data.variants.items()
        for span in arm.spans
    ]
    numbers = table(("", "row", "phase", "step", "start (s)", "end (s)"), rows, "Spans in view.", 3)
    return [
        Section(
            "projection-timeline",
            "Timeline",
            [picture("projection-lanes", words, lambda: timeline_figure(data), numbers)],
        )
    ]


def _bounds(data: Projection) -> list[Block]:
    parts = sorted((part for part in data.candidate.parts if part.seconds > 0), key=lambda part: -part.seconds)
    if not parts:
        return [Text("The file names no parts of the phases.", dim=True)]
    labels = [fmt.phase_label(part.phase, data.asynchronous) if part.phase in PHASES else part.phase for part in parts]
    before = {(part.phase, part.name): part.seconds for part in data.baseline.parts}
    two = len(data.variants) > 1
    cells = [
        (label, part.name, part.bound, part.label)
        + ((fmt.seconds(before.get((part.phase, part.name), 0.0)),) if two else ())
        + (fmt.seconds(part.seconds),)
        for label, part in zip(labels, parts, strict=True)
    ]
    numbers = table(
        ("phase", "part", "bound by", "rests on", *data.variants), cells, "Parts of the phases, seconds per step.", 4
    )
    rows = [
        BarRow(
            f"{label}: {part.name}",
            f"{fmt.seconds(part.seconds)}, bound by {part.bound}, {part.label}",
            [Bar([(0.0, part.seconds, ROOTS.get(part.label, GREY))])],
        )
        for label, part in list(zip(labels, parts, strict=True))[:MOST_PARTS]
    ]
    key = {color: root for root, color in ROOTS.items() if any(part.label == root for part in parts[:MOST_PARTS])}
    words = (
        "The largest parts of all phases",
        "Seconds per step of the candidate; colours: what most of the seconds rest on.",
    )
    return [picture("projection-parts", words, lambda: bars_figure(rows, "seconds", key), numbers), _statistics(data)]


def _statistics(data: Projection) -> Table:
    sides = [dict(arm.statistics.items()) for arm in data.variants.values()]
    rows = [
        (
            f"{label.text} ({label.unit})" if label.unit else label.text,
            *(fmt.number((100 if label.unit == "%" else 1) * side[name]) if name in side else "-" for side in sides),
        )
        for name, label in EngineStatistics.labels().items()
        if any(name in side for side in sides)
    ]
    made = table(("", *data.variants), rows, "Mean over the simulated steps.")
    return Table(made.heads, made.rows, made.caption, summary="What the engines did")


def _pool(data: Projection, pool: str) -> Block:
    uses = {side: arm.memory[pool] for side, arm in data.variants.items() if pool in arm.memory}
    largest = {name: size for use in uses.values() for name, size in use.parts_bytes.items() if size > 0}
    order = sorted(largest, key=lambda name: -largest[name])
    colors = {name: LINE_COLORS[i] if i < len(LINE_COLORS) - 1 else GREY for i, name in enumerate(order)}
    rows = []
    for side, use in uses.items():
        text = f"{fmt.gibibytes(use.total_bytes)} of {fmt.gibibytes(use.available_bytes)} GiB"
        sizes = [(use.parts_bytes.get(name, 0.0) / GIB, colors[name]) for name in order]
        rows.append(BarRow(side, text, [Bar(_stacked(sizes), limit=use.available_bytes / GIB)]))
    key: dict[str, str] = {}
    for name, color in colors.items():
        key[color] = f"{key[color]}, {name}" if color in key else name
    cells = [[name, *(fmt.gibibytes(use.parts_bytes.get(name, 0.0)) for use in uses.values())] for name in order]
    cells += [
        [name, *(fmt.gibibytes(getattr(use, f"{name}_bytes")) for use in uses.values())]
        for name in ("total", "available")
    ]
    words = f"{pool.capitalize()}: memory of a GPU", "GiB in the fullest phase; the line is what there is."
    numbers = table(("GiB", *uses), cells, "Memory per GPU by what holds it.")
    identity = f"projection-memory-{list(data.candidate.memory).index(pool)}"
    return picture(identity, words, lambda: bars_figure(rows, "GiB", key), numbers)


def _stacked(sizes: list[tuple[float, str]]) -> list[tuple[float, float, str]]:
    areas, start = [], 0.0
    for size, color in sizes:
        if size > 0:
            areas.append((start, start + size, color))
            start += size
    return areas


def _samples(data: Projection) -> list[Block]:
    arms = data.variants
    ages = sorted({age for arm in arms.values() for age in arm.staleness})
    blocks: list[Block] = []
    if ages:
        rows = [
            BarRow(
                f"{age} version{'' if age == 1 else 's'} old",
                " → ".join(fmt.percent(arm.staleness.get(age, 0.0)) for arm in arms.values()),
                [Bar([(0.0, 100 * arm.staleness.get(age, 0.0), COLORS[side])]) for side, arm in arms.items()],
            )
            for age in ages[:MOST_AGES]
        ]
        cells = [(f"{age}", *(fmt.percent(arm.staleness.get(age, 0.0), 1) for arm in arms.values())) for age in ages]
        numbers = table(("age", *arms), cells, "Share of consumed samples by age in versions.")
        words = "Age of the samples trained on", "Share of consumed samples by age in versions of the weights."
        key = {COLORS[side]: side for side in arms}
        blocks.append(picture("projection-staleness", words, lambda: bars_figure(rows, "%", key), numbers))
    return [*blocks, *_ledger(data)]


def _ledger(data: Projection) -> list[Block]:
    ledgers = {side: arm.ledger for side, arm in data.variants.items() if arm.ledger is not None}
    if not ledgers:
        return []
    rows = [
        BarRow(
            side,
            f"{fmt.number(ledger.generated / 1e6)} million generated",
            [Bar(_stacked([(getattr(ledger, name) / 1e6, color) for name, (_, color) in LEDGER.items()]))],
        )
        for side, ledger in ledgers.items()
    ]
    names = {"generated": "generated", **{name: words for name, (words, _) in LEDGER.items()}}
    cells = [
        (words, *(f"{getattr(ledger, name):,.0f}" for ledger in ledgers.values())) for name, words in names.items()
    ]
    numbers = table(("tokens per step", *ledgers), cells, "Response tokens per step by where they went.")
    key = {
        color: words
        for name, (words, color) in LEDGER.items()
        if any(getattr(one, name) > 0 for one in ledgers.values())
    }
    words = "Where response tokens went", "Millions of response tokens per step."
    return [picture("projection-tokens", words, lambda: bars_figure(rows, "million tokens", key), numbers)]


def _evidence(data: Projection) -> list[Block]:
    shares = [(root, getattr(data.provenance, root)) for root in ROOTS]
    areas = _stacked([(100 * share, ROOTS[root]) for root, share in shares])
    key = {ROOTS[root]: f"{root} {fmt.percent(share)}" for root, share in shares}
    numbers = table(
        ("rests on", "share"), [(root, fmt.percent(share, 1)) for root, share in shares], "Shares of the seconds."
    )
    words = "What the candidate's seconds rest on", "Shares of all seconds, all phases together."
    rows = [BarRow("all phases", "", [Bar(areas)])]
    blocks: list[Block] = [picture("projection-provenance", words, lambda: bars_figure(rows, "%", key), numbers)]
    if data.support is None:
        return blocks
    return [Text(nearest_step(data.support)), *blocks, *_support(data.support)]


def _support(support: Support) -> list[Block]:
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
    blocks: list[Block] = [table(heads, rows, "The nearest measured runs and what they differ in.", 3)]
    sources = sorted(support.sources, key=lambda one: -one.share)
    if not sources:
        return blocks
    bars = [
        BarRow(
            one.source,
            fmt.percent(one.share) + (", assumed" if one.assumed else ""),
            [Bar([(0.0, 100 * one.share, ROOTS["assumed" if one.assumed else "modelled"])])],
        )
        for one in sources[:MOST_SOURCES]
    ]
    cells = [(one.source, one.settle, one.command, fmt.percent(one.share, 1)) for one in sources]
    numbers = table(("source", "what settles it", "command", "share"), cells, "Sources of the interval.", 3)
    words = "What the interval comes from", "Shares of the variance of the step's logarithm."
    ways = dict.fromkeys((one.settle, one.command) for one in shown_sources(support))
    return [
        *blocks,
        picture("projection-sources", words, lambda: bars_figure(bars, "% of the variance"), numbers),
        *(Text(f"To settle it: {settle}:", code=command) for settle, command in list(ways)[:3]),
    ]
