"""A blame in a terminal."""

from __future__ import annotations

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import RULE, Cell, Row, table
from rlsim.results.blame import Blame

LEAST_SHARE = 0.0005
"""Of all GPU time; smaller causes are not shown."""


def render_blame(blame: Blame, style: Style = DEFAULT_STYLE) -> str:
    """Idle time by cause, what each removal gains alone and in turn, and tail policies."""
    idle_share = fmt.percent(1.0 - blame.work_share)
    head = f"{blame.scenario}: {blame.step_s:.1f} s a step; its {blame.num_gpus:,} GPUs are idle {idle_share} of it."
    sections = [style.wrapped(head), _idle(blame, style), _removals(blame, style), _what_ifs(blame, style)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _idle(blame: Blame, style: Style) -> list[str]:
    rows: list[Row | list[Cell | str]] = [
        [one.pool, one.cause, f"{one.gpu_s:,.0f}", fmt.percent(one.share, 1)]
        for one in blame.idle
        if one.share >= LEAST_SHARE
    ]
    title = style.bold("Idle GPU time") + style.dim("  GPU-seconds per step; share of all GPU time")
    return [title, *table(["GPUs", "waits for", "GPU-s", "share"], rows, style, "<<>")]


def _removals(blame: Blame, style: Style) -> list[str]:
    rows: list[Row | list[Cell | str]] = [
        [
            one.cause,
            f"{one.step_s:.1f}",
            f"{one.saved_s:+.1f}",
            f"{one.chain_s:+.1f}",
            f"{one.how}; {one.why}" if one.why else one.how,
        ]
        for one in blame.removals
    ]
    total = blame.step_s - blame.left_s
    rows += [
        RULE,
        Row(["all of them", f"{blame.left_s:.1f}", "", f"{total:+.1f}", "what is left is work"], strong=True),
    ]
    title = style.bold("Without it") + style.dim("  step (s) and what it saves alone, and after those above it")
    return [title, *table(["", "step", "alone", "in turn", "how"], rows, style, "<>>><")]


def _what_ifs(blame: Blame, style: Style) -> list[str]:
    if not blame.what_ifs:
        return []
    rows: list[Row | list[Cell | str]] = [
        [
            one.name,
            "-" if one.step_s is None else f"{one.step_s:.1f}",
            "" if one.step_s is None else f"{blame.step_s - one.step_s:+.1f}",
            one.how if one.step_s is not None else one.reason,
        ]
        for one in blame.what_ifs
    ]
    title = style.bold("Policies against the tail") + style.dim("  step (s) and what it saves")
    return [title, *table(["", "step", "saves", "how"], rows, style, "<>><")]
