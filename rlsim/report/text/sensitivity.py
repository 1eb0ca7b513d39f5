"""A sensitivity in a terminal."""

from __future__ import annotations

import shlex

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import Cell, cell, table
from rlsim.results.sensitivity import Sensitivity

STEPS_COMMAND = "rlsim calibrate own own_steps.csv"
LEAST_SHARE, LEAST_SAVED = 0.02, 0.02
"""Sources shown: of the variance, or of the regret that knowing them saves."""


def render_sensitivity(sensitivity: Sensitivity, style: Style = DEFAULT_STYLE) -> str:
    """The interval, the choice among alternatives, and what is worth measuring with the command that measures it."""
    step, more = sensitivity.step_s, sensitivity.step_with_inputs_s
    head = (
        f"{sensitivity.scenario}: step {step.mean:.1f} s [{step.low:.1f}, {step.high:.1f}], with its stated inputs "
        f"uncertain as well [{more.low:.1f}, {more.high:.1f}]"
    )
    sections = [style.wrapped(head), _choices(sensitivity, style), _sources(sensitivity, style)]
    sections += [_settling(sensitivity, style), _inputs(sensitivity, style)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _choices(sensitivity: Sensitivity, style: Style) -> list[str]:
    rows: list[list[Cell | str]] = [
        [
            one.name,
            cell(one.step_s, 1),
            fmt.percent(one.best),
            fmt.percent(one.regret_s / sensitivity.step_s.mean, 1),
            _saved(one.saved_s, sensitivity),
        ]
        for one in sorted(sensitivity.alternatives, key=lambda one: one.regret_s)
    ]
    heads = ["", "step (s)", "fastest", "regret", "saved by a run"]
    share = fmt.percent(sensitivity.regret_s / sensitivity.step_s.mean, 1)
    remark = (
        f"Choosing {sensitivity.chosen} now costs {sensitivity.regret_s:.2g} s a step ({share}) against always knowing "
        "better: the expected regret that measurements can save."
    )
    title = style.bold("Alternatives") + style.dim(
        "  regret in % of the step; share of it that one measured step saves"
    )
    return [title, *table(heads, rows, style), *style.wrapped(remark, "  ")]


def _sources(sensitivity: Sensitivity, style: Style) -> list[str]:
    shown = [
        one
        for one in sensitivity.sources
        if one.share >= LEAST_SHARE or (sensitivity.regret_s and one.saved_s / sensitivity.regret_s >= LEAST_SAVED)
    ]
    rows = [
        [
            f"{one.source}{' (assumed)' if one.assumed else ''}",
            fmt.percent(one.share),
            fmt.signed_percent(one.narrowed - 1),
            _saved(one.saved_s, sensitivity),
            str(_ways(sensitivity).index((one.settle, one.command)) + 1),
        ]
        for one in shown
    ]
    heads = ["", "of the variance", "interval if known", "regret saved", "by"]
    title = style.bold("What to measure next") + style.dim("  shares of the variance and of the regret of choosing now")
    return [title, *table(heads, rows, style)]


def _ways(sensitivity: Sensitivity) -> list[tuple[str, str]]:
    """What to do and the command that takes it in, each once, in the order of what it saves."""
    return list(dict.fromkeys((one.settle, one.command) for one in sensitivity.sources))


def _settling(sensitivity: Sensitivity, style: Style) -> list[str]:
    lines = []
    for number, (settle, command) in enumerate(_ways(sensitivity), start=1):
        lines += style.wrapped(f"{settle}: {command}", f"  {number}. ")
    best = max(sensitivity.alternatives, key=lambda one: one.saved_s)
    if best.changes and best.saved_s > 0:
        settings = " ".join(f"--set {shlex.quote(change)}" for change in best.changes)
        way = f"time one step of {best.name} instead ({settings}), the most telling run: {STEPS_COMMAND}"
        lines += style.wrapped(way, f"  {len(_ways(sensitivity)) + 1}. ")
    return [style.bold("How"), *lines]


def _inputs(sensitivity: Sensitivity, style: Style) -> list[str]:
    rows = [
        [
            one.key,
            f"{one.low:.4g}",
            f"{one.high:.4g}",
            fmt.signed_percent(one.at_low, 1),
            fmt.signed_percent(one.at_high, 1),
            _saved(one.saved_s, sensitivity),
            one.reason,
        ]
        for one in sensitivity.inputs
    ]
    if not rows:
        return []
    title = style.bold("What the scenario states") + style.dim("  no part of the interval; step at both ends")
    return [title, *table(["", "low", "high", "at low", "at high", "regret", "what it is"], rows, style, "<>>>>><")]


def _saved(seconds: float, sensitivity: Sensitivity) -> str:
    """A saved regret as a share of that of choosing now; ``-`` where there is next to none."""
    whole = sensitivity.regret_s
    return fmt.percent(seconds / whole) if whole > 1e-4 * sensitivity.step_s.mean else "-"
