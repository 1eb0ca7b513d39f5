"""What bounds each phase, and what the seconds rest on."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import Row, table
from rlsim.report.text import findings
from rlsim.results import PhasePart, Projection, Provenance

MOST_PARTS, LEAST_PART_SHARE = 4, 0.08
"""Largest parts shown of a phase, none below this share of it but the first; the others are added up."""
LEAST_PHASE_SHARE = 0.05
"""Phases below this share of all listed time are left out of the table."""
SOURCES = (("measured", "█"), ("modelled", "▓"), ("assumed", "░"))
BAR_CELLS = 40


def bottleneck_lines(projection: Projection, style: Style) -> list[str]:
    """Largest parts of every phase of the candidate, with the same parts' seconds in the baseline."""
    arms = projection.variants
    groups = {name: findings.parts_by_phase(arm) for name, arm in arms.items()}
    *_, shown = groups.values()
    total = sum(part.seconds for parts in shown.values() for part in parts)
    decimals = fmt.decimals_for(max(arm.step_s.mean for arm in arms.values()))
    rows = []
    for phase, parts in shown.items():
        if _seconds(parts) >= LEAST_PHASE_SHARE * total:
            columns = [group.get(phase, []) for group in groups.values()]
            rows += _phase(fmt.phase_label(phase, projection.asynchronous), columns, decimals)
    heads = ("", "bound by", "source", *(arms if len(arms) == 2 else ["mean"]), "share")
    title = style.bold("What bounds each phase") + style.dim("  seconds per step; share of the phase")
    return [title, *table(heads, rows, style, "<<<>"), *style.wrapped(findings.look_here_first(projection), "  ")]


def _phase(label: str, columns: Sequence[Sequence[PhasePart]], decimals: int) -> list[Row]:
    """Rows of one phase: its sum, its largest parts, the sum of the others. columns: its parts in each side shown."""
    parts = columns[-1]
    total = _seconds(parts)
    count = sum(part.seconds >= LEAST_PART_SHARE * total for part in parts[:MOST_PARTS])
    count = len(parts) if len(parts) == count + 1 else max(1, count)
    shown = {part.name for part in parts[:count]}

    def numbers(names: Container[str]) -> list[str]:
        sums = [_seconds([part for part in column if part.name in names]) for column in columns]
        return [fmt.fixed(value, decimals) if value else "-" for value in sums]

    every = {part.name for column in columns for part in column}
    rows = [Row((label, "", "", *numbers(every), ""), strong=True)]
    for part in parts[:count]:
        cells = (*numbers((part.name,)), fmt.percent(part.seconds / total))
        rows.append(Row((f"  {part.name}", part.bound, part.label, *cells)))
    if rest := parts[count:]:
        cells = (*numbers(every - shown), fmt.percent(_seconds(rest) / total))
        rows.append(Row((f"  {len(rest)} smaller parts", "", "", *cells)))
    return rows


def _seconds(parts: Sequence[PhasePart]) -> float:
    return sum(part.seconds for part in parts)


def provenance_lines(provenance: Provenance, style: Style) -> list[str]:
    """One bar: share of the candidate's time resting on measured, modelled and assumed values."""
    shares = [getattr(provenance, name) for name, _ in SOURCES]
    counts = _apportion(shares, BAR_CELLS)
    bar = "".join(glyph * count for (_, glyph), count in zip(SOURCES, counts, strict=True))
    key = "   ".join(
        f"{glyph} {name} {fmt.percent(share)}" for (name, glyph), share in zip(SOURCES, shares, strict=True)
    )
    texts = [f"{bar}   {key}"] if len(bar) + len(key) + 5 <= style.width else [bar, key]
    title = style.bold("Provenance") + style.dim("  what the candidate's seconds rest on, all phases")
    return [title, *(style.readable(f"  {text}") for text in texts)]


def _apportion(shares: Sequence[float], cells: int) -> list[int]:
    """Whole cells by share, adding up to at most ``cells``; whatever is above zero is seen."""
    edges = [round(cells * sum(shares[: i + 1])) for i in range(len(shares))]
    counts = [edge - (edges[i - 1] if i else 0) for i, edge in enumerate(edges)]
    for i, share in enumerate(shares):
        if share > 0 and counts[i] == 0:
            donor = counts.index(max(counts))
            counts[donor] -= 1
            counts[i] += 1
    return counts
