"""A blame in a terminal."""

from __future__ import annotations

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import RULE, Row, Table
from rlsim.results.planning import Blame

LEAST_SHARE = 0.0005
"""Of all GPU time; smaller causes are not shown in a terminal."""


def render_blame(blame: Blame, style: Style = DEFAULT_STYLE) -> str:
    """Idle time by cause, what each removal gains alone and in turn, and tail policies."""
    shown = [idle_table(blame, LEAST_SHARE), removals_table(blame), policies_table(blame)]
    head = f"{blame.scenario}: {blame.step_s:.1f} s a step; {idle_words(blame)}"
    return sections(style.wrapped(head), *(table.lines(style) for table in shown))


def idle_words(blame: Blame) -> str:
    """How many GPUs are idle for how much of a step."""
    return f"its {blame.num_gpus:,} GPUs are idle {fmt.percent(1.0 - blame.work_share)} of it."


def idle_table(blame: Blame, least_share: float = 0.0) -> Table:
    """Idle time by cause, of causes from ``least_share`` of all GPU time on."""
    shown = [one for one in blame.idle if one.share >= least_share]
    rows = [(one.pool, one.cause, f"{one.gpu_s:,.0f}", fmt.percent(one.share, 1)) for one in shown]
    note = "GPU-seconds per step; share of all GPU time"
    return Table("Idle GPU time", note, ("GPUs", "waits for", "GPU-s", "share"), rows, "<<>")


def removals_table(blame: Blame) -> Table:
    """What each removal gains alone and in turn, and what is left without all of them."""
    rows = []
    for one in blame.removals:
        how = "; ".join(filter(None, (one.how, one.why)))
        rows.append((one.cause, *_step(one.step_s, one.saved_s), f"{one.chain_s:+.1f}", how))
    total = f"{blame.step_s - blame.left_s:+.1f}"
    last = Row(("all of them", f"{blame.left_s:.1f}", "", total, "what is left is work"), strong=True)
    note = "step (s) and what it saves alone, and after those above it"
    return Table("Without it", note, ("", "step", "alone", "in turn", "how"), [*rows, RULE, last], "<>>><")


def policies_table(blame: Blame) -> Table:
    """Policies against the tail: what they save, or why they cannot run."""
    rows = [
        (one.name, "-", "", one.reason)
        if one.step_s is None
        else (one.name, *_step(one.step_s, blame.step_s - one.step_s), one.how)
        for one in blame.what_ifs
    ]
    note = "step (s) and what it saves"
    return Table("Policies against the tail", note, ("", "step", "saves", "how"), rows, "<>><")


def _step(step_s: float, saved_s: float) -> tuple[str, str]:
    return f"{step_s:.1f}", f"{saved_s:+.1f}"
