"""The answer to a scenario in a terminal."""

from __future__ import annotations

import itertools

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.report.text import findings
from rlsim.report.text.bottlenecks import bottleneck_lines, provenance_lines
from rlsim.report.text.support import support_lines
from rlsim.report.text.times import cost_usd, times_lines
from rlsim.results import EngineStatistics, Label, MemoryUse, Projection
from rlsim.units import GIB

BAR_CELLS = 24


def render(projection: Projection, style: Style = DEFAULT_STYLE) -> str:
    """The whole answer as text: verdict, times, memory, bottlenecks, provenance, support, statistics,
    assumptions, warnings."""
    sections = [
        _head(projection, style),
        times_lines(projection, style),
        _memory(projection, style),
        bottleneck_lines(projection, style),
        provenance_lines(projection.provenance, style),
        support_lines(projection.support, style),
        _statistics(projection, style),
        style.numbered("Assumptions", projection.assumptions),
        style.numbered("Warnings", projection.warnings),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def render_brief(projection: Projection, style: Style = DEFAULT_STYLE) -> str:
    """The verdict in at most five lines of 100 columns: answer, step and cost, where to look, what it rests on."""
    arms, shares, count = projection.variants.values(), projection.provenance, len(projection.warnings)
    steps = " -> ".join(fmt.seconds(arm.step_s.mean) for arm in arms)
    costs = " -> ".join(f"{cost_usd(projection, arm.step_s).mean:,.2f}" for arm in arms)
    price = f"{projection.price_per_gpu_hour_usd:.2f} per GPU and hour ({projection.price_source})"
    rests = ", ".join(f"{fmt.percent(getattr(shares, kind))} {kind}" for kind in ("measured", "modelled", "assumed"))
    sentences = [
        findings.headline(projection),
        f"A step takes {steps} and costs {costs} USD at {price}.",
        findings.look_here_first(projection),
        f"{projection.scenario}: {rests}{f'; warnings: {count}' if count else ''}.",
    ]
    first, *others = [style.wrapped(sentence) for sentence in sentences]
    return "\n".join([*map(style.bold, first), *itertools.chain(*others)]) + "\n"


def _head(projection: Projection, style: Style) -> list[str]:
    mode = "asynchronous" if projection.asynchronous else "synchronous"
    about = f"{projection.scenario}: {projection.model}, {mode}, seed {projection.seed}, digest {projection.digest}"
    lines = [style.bold(line) for line in style.wrapped(findings.headline(projection))]
    return lines + [style.dim(line) for text in (projection.question, about) for line in style.wrapped(text)]


def _memory(projection: Projection, style: Style) -> list[str]:
    before, memory = projection.baseline.memory, projection.candidate.memory
    name = max(map(len, memory))
    lines = [style.bold("Memory per GPU") + style.dim("  GiB in the fullest phase")]
    for pool, use in memory.items():
        lines += _pool(f"  {pool:<{name}}   ", use, before[pool], style)
    return lines


def _pool(label: str, use: MemoryUse, before: MemoryUse, style: Style) -> list[str]:
    share = use.total_bytes / use.available_bytes
    filled = min(BAR_CELLS, round(BAR_CELLS * share))
    bar = style.readable("█" * filled + "░" * (BAR_CELLS - filled))
    total = f"{fmt.gibibytes(use.total_bytes)} of {fmt.gibibytes(use.available_bytes)} GiB ({fmt.percent(share)})"
    if abs(before.total_bytes - use.total_bytes) > GIB / 20:
        total += f", baseline {fmt.gibibytes(before.total_bytes)} GiB"
    ranked = sorted(use.parts_bytes.items(), key=lambda part: -part[1])
    parts = ", ".join(f"{part} {fmt.gibibytes(size)}" for part, size in ranked if size > 0)
    return [*style.wrapped(f"{bar}   {total}", label), *style.wrapped(parts, " " * len(label))]


def _statistics(projection: Projection, style: Style) -> list[str]:
    """What the engines did: what differs side by side, what is the same in one sentence."""
    arms = projection.variants
    values = [dict(arm.statistics.items()) for arm in arms.values()]
    rows, same = [], []
    for name, label in EngineStatistics.labels().items():
        shown = [_statistic(label, column[name]) for column in values if name in column]
        if len(shown) == 2 and len(set(shown)) == 1:
            same.append(f"{label.text} {shown[0]}{label.unit and f' {label.unit}'}")
        elif shown:
            rows.append((f"{label.text}{label.unit and f' ({label.unit})'}", *shown))
    heads = ("", *arms) if len(arms) == 2 else ("", "")
    shared = style.wrapped(f"same in both: {', '.join(same)}", "  ") if same else []
    return [style.bold("Engine statistics"), *table(heads, rows, style), *shared]


def _statistic(label: Label, value: float) -> str:
    return fmt.number(100 * value) if label.unit == "%" else fmt.number(value)
