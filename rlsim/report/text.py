"""The answer in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rlsim.errors import readable
from rlsim.report import words
from rlsim.report.bounds import bounds_lines, provenance_lines
from rlsim.report.columns import Paint
from rlsim.report.times import times_lines
from rlsim.report.words import gibibytes, number, percent
from rlsim.results import Arm, MemoryUse, Projection
from rlsim.units import GIB

BAR_CELLS = 24
FACT_LABELS = {
    "tokens_per_s": "generated tokens per second",
    "iterations_per_s": "iterations per second",
    "peak_kv_tokens": "peak KV cache (tokens)",
    "mean_context_tokens": "mean context (tokens)",
}
"""Facts whose name is no label; of the others the name is one, and the number has no unit."""
ASCII_GLYPHS = str.maketrans({"█": "#", "▓": "+", "░": ".", "─": "-"})


def render(projection: Projection, width: int = 100, color: bool = False, unicode: bool = True) -> str:
    """The answer as text: headline, times, memory, bounds, provenance, facts, assumptions, warnings.

    width: columns to wrap at; the phase table drops its intervals where they do not fit. color: ANSI bold and dim.
    unicode: block characters in bars; false draws them in ASCII, for output streams without UTF-8.
    """
    paint = Paint(color)
    sections = [
        _head(projection, width, paint),
        times_lines(projection, width, paint),
        _memory(projection, width, paint),
        bounds_lines(projection, width, paint),
        provenance_lines(projection, width, paint),
        _facts(projection, paint),
        _numbered("Assumptions", projection.assumptions, width, paint),
        _numbered("Warnings", projection.warnings, width, paint),
    ]
    text = "\n\n".join("\n".join(line.rstrip() for line in section) for section in sections if section) + "\n"
    return text if unicode else text.translate(ASCII_GLYPHS)


def _head(projection: Projection, width: int, paint: Paint) -> list[str]:
    mode = "asynchronous" if words.is_async(projection) else "synchronous"
    about = f"{projection.scenario}: {projection.model}, {mode}, seed {projection.seed}, digest {projection.digest}"
    lines = [paint.bold(line) for line in words.wrapped(words.headline(projection), width)]
    return lines + [
        paint.dim(line) for text in (projection.question, about) for line in textwrap.wrap(readable(text), width)
    ]


def _memory(projection: Projection, width: int, paint: Paint) -> list[str]:
    if not projection.candidate.memory:
        return []
    before = {use.pool: use for use in projection.baseline.memory}
    name = max(len(use.pool) for use in projection.candidate.memory)
    lines = [paint.bold("Memory per GPU") + paint.dim("  GiB in the fullest phase")]
    for use in projection.candidate.memory:
        lines += _pool(use, before.get(use.pool), name, width)
    return lines


def _pool(use: MemoryUse, before: MemoryUse | None, name: int, width: int) -> list[str]:
    share = use.total_bytes / use.available_bytes if use.available_bytes else 0.0
    filled = min(BAR_CELLS, round(BAR_CELLS * share))
    bar = "█" * filled + "░" * (BAR_CELLS - filled)
    amount = f"{gibibytes(use.total_bytes)} of {gibibytes(use.available_bytes)} ({percent(share)})"
    head = f"  {use.pool:<{name}}   {bar}   {amount}"
    if before is not None and abs(before.total_bytes - use.total_bytes) > GIB / 20:
        head += f", baseline {gibibytes(before.total_bytes)}"
    parts = ", ".join(
        f"{words.plain(part)} {gibibytes(size)}"
        for part, size in sorted(use.parts.items(), key=lambda p: -p[1])
        if size > 0
    )
    return [*words.hanging(head.strip(), name + 5, width, "  "), *words.hanging(parts, name + 5, width)]


def _facts(projection: Projection, paint: Paint) -> list[str]:
    baseline, candidate = projection.baseline, projection.candidate
    arms = (baseline, candidate) if words.speculates(candidate) else (candidate,)
    names = list(dict.fromkeys(name for arm in arms for name, _ in arm.statistics.items()))
    if not names:
        return []
    rows = [(FACT_LABELS.get(name) or words.plain(name), *(_fact(arm, name) for arm in arms)) for name in names]
    heads = ("", "baseline", "candidate") if len(arms) == 2 else ("", "")
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = [
        "  " + row[0].ljust(widths[0]) + "".join("   " + c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))
        for row in (heads, *rows)
    ]
    return [paint.bold("Facts"), *([paint.dim(lines[0])] if len(arms) == 2 else []), *lines[1:]]


def _fact(arm: Arm, name: str) -> str:
    value = dict(arm.statistics.items()).get(name)
    if value is None:
        return "-"
    return percent(value) if name.endswith("_share") else number(value)


def _numbered(title: str, entries: Sequence[str], width: int, paint: Paint) -> list[str]:
    lines = [paint.bold(title)] if entries else []
    digits = len(str(len(entries)))
    for index, entry in enumerate(entries, start=1):
        lines += words.hanging(readable(entry), digits + 4, width, f"  {index:>{digits}}. ")
    return lines
