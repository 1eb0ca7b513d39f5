"""What the page says of a projection."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart, forest, stacked, together
from rlsim.report.page.markup import Markup, joined, tag
from rlsim.report.page.page import KeyFigure, Part, Section, assumptions_section, details, table
from rlsim.report.page.projection_data import read_projection, where
from rlsim.report.page.projection_support import evidence_section
from rlsim.report.page.projection_time import timeline_sections
from rlsim.report.page.timeline import read_timeline
from rlsim.report.text import findings
from rlsim.results import PHASES, EngineStatistics, Interval, Projection, Variant
from rlsim.units import GIB

MEMORY_TONES = ("series0", "series1", "series2", "series3", "series4", "series5")
MOST_BOUNDS = 12
"""Parts of phases that the chart shows; the table has all."""


def projection_part(folder: Path, notes: list[str]) -> Part:
    """The projection in ``folder``; ``notes`` takes what had to be left out."""
    data = read_projection(folder, notes)
    place = f"on {where(data)}" if where(data) else "in this scenario"
    sections = [
        Section("projection-step", "The step", _step(data)),
        *timeline_sections(data, read_timeline(folder, notes)),
        Section("projection-bounds", "What bounds it", _bounds(data)),
        Section("projection-memory", "Memory", _memory(data)),
        Section("projection-samples", "Samples and tokens", _samples(data)),
        evidence_section(data),
        *assumptions_section("projection", data.assumptions, data.warnings),
    ]
    mode = "asynchronous" if data.asynchronous else "synchronous"
    about = ", ".join(filter(None, (data.model, mode, f"seed {data.seed}", f"digest {data.digest}")))
    headline = findings.verdict_on(data.candidate, data.rollout_speedup, data.end_to_end_speedup, place)
    lines = [line for line in (data.question, _look_here(data), about) if line]
    return Part("projection", data.scenario, headline, _figures(data), sections, lines)


def _look_here(data: Projection) -> str:
    """Where to look first; nothing where no part is told."""
    try:
        return findings.longest_part(data.candidate, data.asynchronous)
    except StopIteration:
        return ""


def _figures(data: Projection) -> list[KeyFigure]:
    arm = data.candidate
    figures = [_timed("A step takes", arm.step_s)]
    if arm.speculates:
        figures.append(_speedup("Step, speed-up", data.end_to_end_speedup))
        figures.append(_speedup("Rollout, speed-up", data.rollout_speedup))
    rate = arm.tokens_per_s_per_gpu
    ends = f"{fmt.number(round(rate.low))} to {fmt.number(round(rate.high))}"
    figures.append(KeyFigure("Tokens per second and GPU", fmt.number(round(rate.mean)), ends))
    if data.support is not None:
        figures.append(KeyFigure("Step known within", fmt.percent(data.support.half_width), "either way (90 %)"))
    return figures


def _timed(name: str, value: Interval) -> KeyFigure:
    return KeyFigure(name, fmt.seconds(value.mean), f"{fmt.seconds(value.low)} to {fmt.seconds(value.high)}")


def _speedup(name: str, value: Interval) -> KeyFigure:
    return KeyFigure(name, f"{value.mean:.2f}x", f"{value.low:.2f}x to {value.high:.2f}x")


def _step(data: Projection) -> Markup:
    charts = [_waterfall(data)]
    if data.candidate.speculates:
        quantities = {"Rollout": data.rollout_speedup, "Step": data.end_to_end_speedup}
        rows = [(name, fmt.times(value), value) for name, value in quantities.items()]
        words = Words(
            "projection-speedups",
            "Speed-up by speculation",
            "; ".join(f"{name} {value}" for name, value, _ in rows),
            "Baseline over candidate on the same drawn work, mean and 90 % interval; the dashed line is no change.",
        )
        numbers = table(("", "speed-up"), [(name, value) for name, _, value in rows], "Speed-ups, 90 % intervals.")
        charts.append(forest(words, rows, numbers, rule=1.0))
    return joined(charts)


def _waterfall(data: Projection) -> Markup:
    """Every phase begins where the one before it ended, in each side."""
    arms = data.variants
    phases = {name: findings.step_phases(arm, data.asynchronous) for name, arm in arms.items()}
    names = [
        name for name in dict.fromkeys(key for found in phases.values() for key in found)
        if any(abs(found.get(name, 0.0)) > 0 for found in phases.values())
    ]  # fmt: skip
    scale = Scale(0.0, max(_reach(arm, phases[name].values()) for name, arm in arms.items()))
    at = dict.fromkeys(arms, 0.0)
    rows = []
    for name in names:
        bars = []
        for side in arms:
            length = phases[side].get(name, 0.0)
            tone = name.removesuffix("_s") if side != "baseline" else "baseline"
            label = fmt.phase_label(name, data.asynchronous)
            title = f"{side}, {label}: {fmt.seconds(length)}"
            bars.append(Bar([Segment(at[side], at[side] + length, tone, title)]))
            at[side] += length
        shown = " → ".join(fmt.seconds(phases[side].get(name, 0.0)) for side in arms)
        rows.append(Row(fmt.phase_label(name, data.asynchronous), shown, bars))
    steps = [
        Bar([Segment(0, arm.step_s.mean, "baseline" if side == "baseline" else "candidate", side)], arm.step_s)
        for side, arm in arms.items()
    ]
    rows.append(Row("step", " → ".join(fmt.seconds(arm.step_s.mean) for arm in arms.values()), steps))
    keys = {"baseline": "baseline, without speculation"} if "baseline" in arms else {}
    keys["candidate"] = f"candidate: {fmt.arm_label(data.candidate)}" if keys else "autoregressive"
    words = Words(
        "projection-phases",
        "Where a step's time goes",
        f"Phases of the step one after the other: {'; '.join(f'{row.label} {row.value}' for row in rows)}.",
        "Each phase begins where the one before it ends; whiskers are 90 % intervals of the step. Above: baseline, "
        "below, in the colours of the phases: candidate."
        if len(arms) > 1
        else "Each phase begins where the one before it ends; the whisker is the 90 % interval of the step.",
    )
    return bar_chart(words, rows, scale, _phase_table(data), keys=keys if len(arms) > 1 else None, unit="s")


def _reach(arm: Variant, phases: Iterable[float]) -> float:
    return max(arm.step_s.high, arm.step_s.mean, sum(value for value in phases if value > 0))


def _phase_table(data: Projection) -> Markup:
    arms = data.variants
    shown = {name for arm in arms.values() for name in findings.step_phases(arm, data.asynchronous)} - {"other"}
    rows: list[list[str | Interval | Markup]] = [["step", *(arm.step_s for arm in arms.values())]]
    for phase in PHASES:
        label = fmt.phase_label(phase, data.asynchronous) + ("" if phase in shown else " (not added)")
        rows.append([label, *(arm.phases[phase] for arm in arms.values())])
    rows.append(["standard deviation from step to step", *(_deviation(arm) for arm in arms.values())])
    return table(("seconds", *arms), rows, "Seconds per step, mean and 90 % interval.")


def _deviation(arm: Variant) -> str:
    return fmt.fixed(arm.sampling.step_deviation_s, fmt.decimals_for(arm.sampling.step_deviation_s))


def _bounds(data: Projection) -> Markup:
    parts = sorted((part for part in data.candidate.parts if part.seconds > 0), key=lambda part: -part.seconds)
    shown = parts[:MOST_BOUNDS]
    rows = [
        Row(
            f"{_phase_name(part.phase, data)}: {part.name}",
            fmt.seconds(part.seconds),
            [Bar([Segment(0, part.seconds, _root(part.label), f"{part.name}, {part.bound}, {part.label}")])],
            f"bound by {part.bound}, {part.label}",
        )
        for part in shown
    ]
    before = {(part.phase, part.name): part.seconds for part in data.baseline.parts}
    two = len(data.variants) > 1
    numbers = table(
        ("phase", "part", "bound by", "rests on", *data.variants),
        [
            (
                _phase_name(part.phase, data), part.name, part.bound, part.label,
                *([fmt.seconds(before.get((part.phase, part.name), 0.0))] if two else []), fmt.seconds(part.seconds),
            )
            for part in parts
        ],
        "Parts of the phases, seconds per step.",
        4,
    )  # fmt: skip
    if not shown:
        return tag("p", "The file names no parts of the phases.", class_="dim")
    words = Words(
        "projection-parts",
        f"The {len(shown)} largest parts of all phases" if len(shown) > 1 else "The largest part",
        "; ".join(f"{row.label} {row.value}, {row.remark}" for row in rows),
        "Seconds per step of the candidate; generation of an asynchronous step runs beside the trainer.",
    )
    keys = {name: name for name in ("measured", "modelled", "assumed") if any(_root(p.label) == name for p in shown)}
    return joined((bar_chart(words, rows, Scale(0, shown[0].seconds), numbers, keys=keys, unit="s"), _statistics(data)))


def _phase_name(phase: str, data: Projection) -> str:
    return fmt.phase_label(phase, data.asynchronous) if phase in fmt.PHASE_LABELS else phase


def _root(label: str) -> str:
    return label if label in ("measured", "modelled", "assumed") else "other"


def _statistics(data: Projection) -> Markup:
    sides = [dict(arm.statistics.items()) for arm in data.variants.values()]
    rows = [
        (
            f"{label.text} ({label.unit})" if label.unit else label.text,
            *(fmt.number((100 if label.unit == "%" else 1) * side[name]) if name in side else "-" for side in sides),
        )
        for name, label in EngineStatistics.labels().items()
        if any(name in side for side in sides)
    ]
    return details("What the engines did", table(("", *data.variants), rows, "Mean over the simulated steps."))


def _memory(data: Projection) -> Markup:
    pools = dict.fromkeys(pool for arm in data.variants.values() for pool in arm.memory)
    return together(*(_pool(data, pool, i) for i, pool in enumerate(pools)))


def _pool(data: Projection, pool: str, number: int) -> Markup:
    uses = {side: arm.memory[pool] for side, arm in data.variants.items() if pool in arm.memory}
    largest = {name: size for use in uses.values() for name, size in use.parts_bytes.items() if size > 0}
    order = sorted(largest, key=lambda name: -largest[name])
    tones = {name: MEMORY_TONES[i] if i < len(MEMORY_TONES) - 1 else "other" for i, name in enumerate(order)}
    rows = []
    for side, use in uses.items():
        parts = use.parts_bytes
        sizes = [(tones[name], parts.get(name, 0.0) / GIB, name) for name in order]
        value = f"{fmt.gibibytes(use.total_bytes)} of {fmt.gibibytes(use.available_bytes)} GiB"
        rows.append(Row(side, value, [Bar(stacked(sizes), limit=use.available_bytes / GIB)]))
    most = max(max(use.available_bytes, use.total_bytes) for use in uses.values()) / GIB
    keys: dict[str, str] = {}
    for name, tone in tones.items():
        keys[tone] = f"{keys[tone]}, {name}" if tone in keys else name
    cells = [[name, *(fmt.gibibytes(use.parts_bytes.get(name, 0.0)) for use in uses.values())] for name in order]
    totals = [["total", *(fmt.gibibytes(use.total_bytes) for use in uses.values())]]
    totals += [["available", *(fmt.gibibytes(use.available_bytes) for use in uses.values())]]
    words = Words(
        f"projection-memory-{number}",
        f"{pool.capitalize()}: memory of a GPU",
        f"Fullest phase of {pool}: {'; '.join(f'{row.label} {row.value}' for row in rows)}.",
        "GiB in the fullest phase; the line is what there is.",
    )
    numbers = table(("GiB", *uses), [*cells, *totals], "Memory per GPU by what holds it.")
    return bar_chart(words, rows, Scale(0, most), numbers, keys=keys, unit="GiB")


LEDGER = {
    "consumed": ("measured", "trained on"),
    "in_flight": ("modelled", "still in flight"),
    "stale": ("series1", "dropped for their age"),
    "discarded": ("series4", "of groups no step could use"),
    "regenerated": ("series3", "lost to restarts"),
}


def _samples(data: Projection) -> Markup:
    return together(*(chart for chart in (_staleness(data), _ledger(data)) if chart is not None))


def _staleness(data: Projection) -> Markup | None:
    ages = sorted({age for arm in data.variants.values() for age in arm.staleness})
    if not ages:
        return None
    tone = {"baseline": "baseline"}
    rows = [
        Row(
            f"{age} version{'' if age == 1 else 's'} old",
            " → ".join(fmt.percent(arm.staleness.get(age, 0.0)) for arm in data.variants.values()),
            [
                Bar([Segment(0, 100 * arm.staleness.get(age, 0.0), tone.get(side, "candidate"), side)])
                for side, arm in data.variants.items()
            ],
        )
        for age in ages[:12]
    ]
    words = Words(
        "projection-staleness",
        "Age of the samples trained on",
        "; ".join(f"{row.label}: {row.value}" for row in rows),
        "Share of consumed samples by age in versions of the weights.",
    )
    cells = [
        (f"{age}", *(fmt.percent(arm.staleness.get(age, 0.0), 1) for arm in data.variants.values())) for age in ages
    ]
    numbers = table(("age", *data.variants), cells, "Share of consumed samples by age in versions.")
    return bar_chart(words, rows, Scale(0, 100), numbers, unit="%")


def _ledger(data: Projection) -> Markup | None:
    ledgers = {side: arm.ledger for side, arm in data.variants.items() if arm.ledger is not None}
    if not ledgers:
        return None
    rows = []
    for side, ledger in ledgers.items():
        sizes = [(tone, max(0.0, getattr(ledger, name)) / 1e6, words) for name, (tone, words) in LEDGER.items()]
        rows.append(Row(side, f"{fmt.number(ledger.generated / 1e6)} million generated", [Bar(stacked(sizes))]))
    most = max(sum(max(0.0, getattr(ledger, name)) for name in LEDGER) for ledger in ledgers.values()) / 1e6
    shown = [name for name in LEDGER if any(getattr(ledger, name) > 0 for ledger in ledgers.values())]
    cells = [
        (words, *(f"{getattr(ledger, name):,.0f}" for ledger in ledgers.values()))
        for name, words in [("generated", "generated"), *((name, LEDGER[name][1]) for name in LEDGER)]
    ]
    words = Words(
        "projection-tokens",
        "Where response tokens went",
        "; ".join(f"{row.label}: {row.value}" for row in rows),
        "Millions of response tokens per step.",
    )
    keys = {LEDGER[name][0]: LEDGER[name][1] for name in shown}
    numbers = table(("tokens per step", *ledgers), cells, "Response tokens per step by where they went.")
    return bar_chart(words, rows, Scale(0, most or 1.0), numbers, keys=keys, unit="million")
