"""What the page says of a projection."""

from dataclasses import replace

from rlsim.report import format as fmt
from rlsim.report.figures.bars import Bar, BarRow, stacked
from rlsim.report.figures.phases import step_figure, timeline_figure
from rlsim.report.figures.style import GREY, LINE_COLORS, VARIANT_COLORS
from rlsim.report.page.parts import Block, Part, Sections, Text, assumed, picture, ranged, speedup, table
from rlsim.report.table import Table
from rlsim.report.text import findings
from rlsim.report.text.projection import statistics_cells
from rlsim.report.text.support import LABELS, efficiency_table, measured_words, nearest_step, shown_sources
from rlsim.results import PHASES, Interval, Projection
from rlsim.results.projection import Support
from rlsim.units import GIB

MOST_PARTS, MOST_SOURCES, MOST_AGES = 12, 8, 12
ROOTS = {"measured": LINE_COLORS[2], "modelled": LINE_COLORS[0], "assumed": LINE_COLORS[4]}
LEDGER = dict(zip(fmt.NAMES["ledger"], (LINE_COLORS[i] for i in (2, 0, 1, 4, 3)), strict=True))
"""Colours of where tokens went."""
TAILS = {
    True: "A batch ends with its longest responses; batches in flight at once fill each other's tails.",
    False: "A rollout ends with its longest responses: where the curve is low, GPUs wait for few sequences.",
}


def projection_part(data: Projection) -> Part:
    """The projection."""
    arm = data.candidate
    where = f"on {data.num_gpus:,} {data.hardware}" if data.num_gpus and data.hardware else "in this scenario"
    sections: Sections = {
        "projection-step": _step(data),
        "projection-timeline": _timeline(data),
        "projection-bounds": _bounds(data),
        "projection-memory": [_pool(data, pool) for pool in arm.memory],
        "projection-samples": [*_ages(data), *_ages(data, "token_ages"), *_ledger(data)],
        "projection-evidence": _evidence(data),
        "projection-assumptions": assumed(data.assumptions, data.warnings),
    }
    about = ", ".join(filter(None, (data.model, data.order, f"seed {data.seed}", f"digest {data.digest}")))
    headline = findings.headline(data, where)
    figures = [ranged("A step takes", arm.step_s, fmt.seconds)]
    if arm.speculates:
        figures.append(speedup("Step, speed-up", data.end_to_end_speedup))
        figures.append(speedup("Rollout, speed-up", data.rollout_speedup))
    figures.append(ranged("Tokens per second and GPU", arm.tokens_per_s_per_gpu, fmt.number))
    if data.support is not None:
        figures.append(("Step lies within", fmt.percent(data.support.half_width), "either way (90 %)"))
    try:
        look_here = findings.look_here_first(data)
    except StopIteration:  # the file names no part of a phase
        look_here = ""
    return Part("projection", data.scenario, headline, figures, sections, [data.question, look_here, about])


def _step(data: Projection) -> list[Block]:
    arms = data.variants
    added = {name for arm in arms.values() for name in findings.step_phases(arm, data.asynchronous)}
    rows: list[list[str | Interval]] = [["step", *(arm.step_s for arm in arms.values())]]
    alone = data.order == "supervised"  # the phases of a rollout are none of an update alone
    there = [phase for phase in PHASES if not alone or any(arm.phases[phase].mean for arm in arms.values())]
    for phase in there:
        label = fmt.phase_label(phase, data.asynchronous) + ("" if phase in added else " (not added)")
        rows.append([label, *(arm.phases[phase] for arm in arms.values())])
    deviations = [fmt.number(arm.sampling.step_deviation_s) for arm in arms.values()]
    rows.append(["standard deviation from step to step", *deviations])
    key, speedups_key = "projection-phases", "projection-speedups"
    blocks: list[Block] = [picture(key, step_figure(data), table(key, rows, arms))]
    if data.candidate.speculates:
        found = {"Rollout": data.rollout_speedup, "Step": data.end_to_end_speedup}
        bars = [BarRow(name, fmt.times(value), [Bar(value)]) for name, value in found.items()]
        blocks.append(picture(speedups_key, bars, table(speedups_key, found.items())))
    return blocks


def _timeline(data: Projection) -> list[Block]:
    if not all(arm.spans and arm.curves for arm in data.variants.values()):
        return []
    key, tail = "projection-lanes", TAILS[data.asynchronous]
    rows = [
        (
            *(name, span.actor, fmt.phase_label(span.phase, data.asynchronous)),
            *(str(span.step), f"{span.start_s:.2f}", f"{span.end_s:.2f}"),
        )
        for name, arm in data.variants.items()
        for span in arm.spans
    ]
    return [picture(key, timeline_figure(data), table(key, rows), tail=tail)]


def _bounds(data: Projection) -> list[Block]:
    parts = sorted((part for part in data.candidate.parts if part.seconds > 0), key=lambda part: -part.seconds)
    if not parts:
        return [Text("The file names no parts of the phases.")]
    before = {(part.phase, part.name): part.seconds for part in data.baseline.parts}
    cells, bars = [], []
    for part in parts:
        label = fmt.phase_label(part.phase, data.asynchronous) if part.phase in PHASES else part.phase
        # Where nothing is drafted only the candidate is shown.
        sides = [before.get((part.phase, part.name), 0.0), part.seconds][-len(data.variants) :]
        cells.append((label, part.name, part.bound, part.label, *map(fmt.seconds, sides)))
        text = f"{fmt.seconds(part.seconds)}, bound by {part.bound}, {part.label}"
        bars.append(BarRow(f"{label}: {part.name}", text, [Bar.of(part.seconds, ROOTS.get(part.label, GREY))]))
    key = {color: root for root, color in ROOTS.items() if any(part.label == root for part in parts[:MOST_PARTS])}
    numbers = table("projection-parts", cells, data.variants)
    statistics = [
        (f"{text}{unit and f' ({unit})'}", *(value or "-" for value in shown))
        for text, unit, shown in statistics_cells(data)
        if any(shown)
    ]
    engines = Table("What the engines did", "mean over the simulated steps", ("", *data.variants), statistics)
    blocks: list[Block] = [picture("projection-parts", bars[:MOST_PARTS], numbers, key)]
    blocks += [] if data.order == "supervised" else [engines]
    if data.candidate.efficiency:
        blocks.append(efficiency_table(data))
        blocks += [Text(sentence) for sentence in measured_words(data.measured_efficiency)]
    return blocks


def _pool(data: Projection, pool: str) -> Block:
    uses = {side: arm.memory[pool] for side, arm in data.variants.items() if pool in arm.memory}
    largest = {name: size for use in uses.values() for name, size in use.parts_bytes.items() if size > 0}
    order = sorted(largest, key=lambda name: -largest[name])
    colors = {name: LINE_COLORS[i] if i < len(LINE_COLORS) - 1 else GREY for i, name in enumerate(order)}
    bars = []
    for side, use in uses.items():
        text = f"{fmt.gibibytes(use.total_bytes)} of {fmt.gibibytes(use.available_bytes)} GiB"
        held = stacked([(use.parts_bytes.get(name, 0.0) / GIB, colors[name]) for name in order])
        bars.append(BarRow(side, text, [replace(held, limit=use.available_bytes / GIB)]))
    key: dict[str, str] = {}
    for name, color in colors.items():
        # Parts beyond the colours are all grey and share its entry of the key.
        key[color] = f"{key[color]}, {name}" if color in key else name
    sizes = {name: [use.parts_bytes.get(name, 0.0) for use in uses.values()] for name in order}
    sizes |= {name: [getattr(use, f"{name}_bytes") for use in uses.values()] for name in ("total", "available")}
    numbers = table("projection-memory", [(name, *map(fmt.gibibytes, held)) for name, held in sizes.items()], uses)
    place = list(data.candidate.memory).index(pool)
    return picture(f"projection-memory-{place}", bars, numbers, key, pool=pool.capitalize())


def _ages(data: Projection, of: str = "staleness") -> list[Block]:
    """Shares by age in versions of the weights: of samples (staleness) or of tokens (token_ages)."""
    arms = data.variants
    found: dict[str, dict[int, float]] = {side: getattr(arm, of) for side, arm in arms.items()}
    ages = sorted({age for shares in found.values() for age in shares})
    if not ages or data.order in ("supervised", "rollouts alone"):
        return []
    shares = {age: {side: ages_of.get(age, 0.0) for side, ages_of in found.items()} for age in ages}
    bars = [
        BarRow(
            f"{age} version{'' if age == 1 else 's'} old",
            " → ".join(map(fmt.percent, shares[age].values())),
            [Bar.of(100 * share, VARIANT_COLORS[side]) for side, share in shares[age].items()],
        )
        for age in ages[:MOST_AGES]
    ]
    cells = [(f"{age}", *(fmt.percent(share, 1) for share in sides.values())) for age, sides in shares.items()]
    key = f"projection-{of.replace('_', '-')}"
    return [picture(key, bars, table(key, cells, arms), {VARIANT_COLORS[side]: side for side in arms})]


def _ledger(data: Projection) -> list[Block]:
    ledgers = {side: arm.ledger for side, arm in data.variants.items() if arm.ledger is not None}
    if not ledgers:
        return []
    bars: list[BarRow] = []
    colors: dict[str, str] = {}
    names: dict[str, str] = fmt.NAMES["ledger"]
    for side, ledger in ledgers.items():
        went = {name: getattr(ledger, name) / 1e6 for name in names}
        areas = stacked([(size, LEDGER[name]) for name, size in went.items()])
        bars.append(BarRow(side, f"{fmt.number(ledger.generated / 1e6)} million generated", [areas]))
        colors |= {LEDGER[name]: names[name] for name, size in went.items() if size > 0}
    names = {"generated": "generated", **names}
    cells = [(words, *(f"{getattr(one, name):,.0f}" for one in ledgers.values())) for name, words in names.items()]
    return [picture("projection-tokens", bars, table("projection-tokens", cells, ledgers), colors)]


def _evidence(data: Projection) -> list[Block]:
    key, support = "projection-provenance", data.support
    shares = {root: getattr(data.provenance, root) for root in ROOTS}
    bars = [BarRow("all phases", "", [stacked([(100 * share, ROOTS[root]) for root, share in shares.items()])])]
    colors = {ROOTS[root]: f"{root} {fmt.percent(share)}" for root, share in shares.items()}
    numbers = table(key, [(root, fmt.percent(share, 1)) for root, share in shares.items()])
    provenance = picture(key, bars, numbers, colors)
    return [provenance] if support is None else [Text(nearest_step(support)), provenance, *_support(support)]


def _support(support: Support) -> list[Block]:
    runs = [
        (
            LABELS.get(nearest.kind, nearest.kind),
            run.id,
            "; ".join(f"{each.feature} {each.measured}, not {each.asked}" for each in run.differences),
            fmt.percent(nearest.share),
        )
        for nearest in support.nearest
        for run in nearest.runs
        if nearest.share or nearest.kind == "step"  # others measure nothing of it
    ]
    blocks: list[Block] = [table("projection-nearest", runs)]
    sources = sorted(support.sources, key=lambda one: -one.share)
    if not sources:
        return blocks
    bars = []
    for one in sources[:MOST_SOURCES]:
        text = fmt.percent(one.share) + (", assumed" if one.assumed else "")
        color = ROOTS["assumed" if one.assumed else "modelled"]
        bars.append(BarRow(one.source, text, [Bar.of(100 * one.share, color)]))
    cells = [(one.source, one.settle, one.command, fmt.percent(one.share, 1)) for one in sources]
    blocks.append(picture("projection-sources", bars, table("projection-sources", cells)))
    ways = dict.fromkeys((one.settle, one.command) for one in shown_sources(support))
    return [*blocks, *(Text(f"To settle it: {settle}:", code=command) for settle, command in list(ways)[:3])]
