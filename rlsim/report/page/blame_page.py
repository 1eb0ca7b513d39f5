"""What the page says of a blame: idle time by cause, what removals gain, tail policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart
from rlsim.report.page.folder import needed_file
from rlsim.report.page.markup import Markup, tag
from rlsim.report.page.page import KeyFigure, Part, Section, table
from rlsim.results.blame import Blame, Idle, Removal, WhatIf

LEAST_SHARE = 0.005
"""Removals below this share of the step are left out of the waterfall."""


def blame_part(folder: Path, notes: list[str]) -> Part:
    """The blame in ``folder``."""
    blame = Blame.read(needed_file(folder, "blame.json"))
    step_s, idle = fmt.seconds(blame.step_s), fmt.percent(1 - blame.work_share)
    headline = f"A step takes {step_s}; its {blame.num_gpus:,} GPUs are idle {idle} of it."
    figures = [
        KeyFigure("A step takes", step_s),
        KeyFigure("Without any idle cause", fmt.seconds(blame.left_s)),
        KeyFigure("GPUs are idle", idle, "of all GPU time"),
    ]
    if blame.removals:
        largest = max(blame.removals, key=lambda one: one.saved_s)
        figures.append(KeyFigure("Largest gain alone", fmt.seconds(largest.saved_s), largest.cause))
    sections = [
        Section("blame-idle", "Idle GPU time", _idle(blame.idle)),
        Section("blame-removals", "Without its causes", _removals(blame.removals, blame.step_s, blame.left_s)),
        Section("blame-policies", "Policies against the tail", _what_ifs(blame.what_ifs, blame.step_s)),
    ]
    return Part("blame", blame.scenario, headline, figures, sections, [f"digest {blame.digest}"])


def _idle(entries: Sequence[Idle]) -> Markup:
    if not entries:
        return tag("p", "No GPU is idle.", class_="dim")
    rows = [
        Row(
            f"{one.pool}: {one.cause}",
            fmt.percent(one.share, 1),
            [Bar([Segment(0, 100 * one.share, _tone(one.pool), one.cause)])],
        )
        for one in entries
    ]
    words = Words(
        "blame-idle-causes",
        "What GPUs wait for",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Share of all GPU time of a step.",
    )
    numbers = table(
        ("pool", "waits for", "GPU-seconds", "share"),
        [(one.pool, one.cause, f"{one.gpu_s:,.0f}", fmt.percent(one.share, 1)) for one in entries],
        "Idle GPU-seconds per step.",
        2,
    )
    keys = {_tone(one.pool): one.pool for one in entries}
    scale = Scale(0, max(100 * one.share for one in entries))
    return bar_chart(words, rows, scale, numbers, keys=keys, unit="%")


def _tone(pool: str) -> str:
    return {"generation": "generation", "training": "train"}.get(pool, "other")


def _removals(removals: Sequence[Removal], step_s: float, left_s: float) -> Markup:
    rows = [Row("step as it is", fmt.seconds(step_s), [Bar([Segment(0, step_s, "candidate", "step as it is")])])]
    at_s = highest = step_s
    for one in removals:
        if abs(one.chain_s) >= LEAST_SHARE * step_s:
            tone = "measured" if one.chain_s > 0 else "series1"
            bar = Bar([Segment(at_s - one.chain_s, at_s, tone, f"{-one.chain_s:+.2f} s")])
            rows.append(Row(f"without {one.cause}", f"{-one.chain_s:+.1f} s", [bar], one.how))
            at_s -= one.chain_s
            highest = max(highest, at_s)
    rest = f"{at_s - left_s:+.1f} s of smaller causes" if abs(at_s - left_s) >= 0.05 else ""
    rows.append(Row("work", fmt.seconds(left_s), [Bar([Segment(0, left_s, "baseline", "work")])], rest))
    words = Words(
        "blame-waterfall",
        "From the step as it is to one of work alone",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Seconds per step; each cause is taken away after those above it, on the same drawn work.",
    )
    cells = [
        (one.cause, one.how, f"{one.step_s:.2f}", f"{one.saved_s:+.2f}", f"{one.chain_s:+.2f}") for one in removals
    ]
    heads = ("cause", "how", "step (s)", "saves alone (s)", "saves in turn (s)")
    return bar_chart(words, rows, Scale(0, highest), table(heads, cells, "Removals.", 2), unit="s")


def _what_ifs(entries: Sequence[WhatIf], step_s: float) -> Markup:
    rows = [
        (one.name, one.reason, "-", "-")
        if one.step_s is None
        else (one.name, one.how, f"{one.step_s:.2f}", f"{step_s - one.step_s:+.2f}")
        for one in entries
    ]
    if not rows:
        return tag("p", "None was tried.", class_="dim")
    return table(("policy", "how", "step (s)", "saves (s)"), rows, "Tried on the same drawn work.", 2)
