"""A sensitivity in a terminal."""

from __future__ import annotations

import shlex

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import Table, cell
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
    share = fmt.percent(sensitivity.regret_s / step.mean, 1)
    choice = (
        f"Choosing {sensitivity.chosen} now costs {sensitivity.regret_s:.2g} s a step ({share}) against always knowing "
        "better: the expected regret that measurements can save."
    )
    return sections(
        style.wrapped(head),
        [*_choices(sensitivity).lines(style), *style.wrapped(choice, "  ")],
        _sources(sensitivity, style),
        [style.bold("How"), *_settling(sensitivity, style)],
        _inputs(sensitivity).lines(style),
    )


def _choices(sensitivity: Sensitivity) -> Table:
    rows = [
        (
            *(one.name, cell(one.step_s, 1), fmt.percent(one.best)),
            fmt.percent(one.regret_s / sensitivity.step_s.mean, 1),
            _saved(one.saved_s, sensitivity),
        )
        for one in sorted(sensitivity.alternatives, key=lambda one: one.regret_s)
    ]
    heads = ("", "step (s)", "fastest", "regret", "saved by a run")
    return Table("Alternatives", "regret in % of the step; share of it that one measured step saves", heads, rows)


def _sources(sensitivity: Sensitivity, style: Style) -> list[str]:
    ways, regret_s = _ways(sensitivity), sensitivity.regret_s
    rows = [
        (
            f"{one.source}{' (assumed)' if one.assumed else ''}",
            fmt.percent(one.share),
            fmt.signed_percent(one.narrowed - 1),
            _saved(one.saved_s, sensitivity),
            str(ways.index((one.settle, one.command)) + 1),
        )
        for one in sensitivity.sources
        if one.share >= LEAST_SHARE or (regret_s and one.saved_s / regret_s >= LEAST_SAVED)
    ]
    heads = ("", "of the variance", "interval if known", "regret saved", "by")
    note = "shares of the variance and of the regret of choosing now"
    return Table("What to measure next", note, heads, rows).lines(style)


def _ways(sensitivity: Sensitivity) -> list[tuple[str, str]]:
    """What to do and the command that takes it in, each once, in the order of what it saves."""
    return list(dict.fromkeys((one.settle, one.command) for one in sensitivity.sources))


def _settling(sensitivity: Sensitivity, style: Style) -> list[str]:
    ways = [f"{settle}: {command}" for settle, command in _ways(sensitivity)]
    best = max(sensitivity.alternatives, key=lambda one: one.saved_s)
    if best.changes and best.saved_s > 0:
        settings = " ".join(f"--set {shlex.quote(change)}" for change in best.changes)
        ways.append(f"time one step of {best.name} instead ({settings}), the most telling run: {STEPS_COMMAND}")
    return [line for number, way in enumerate(ways, start=1) for line in style.wrapped(way, f"  {number}. ")]


def _inputs(sensitivity: Sensitivity) -> Table:
    rows = [
        (
            *(one.key, f"{one.low:.4g}", f"{one.high:.4g}"),
            *(fmt.signed_percent(moved, 1) for moved in (one.at_low, one.at_high)),
            *(_saved(one.saved_s, sensitivity), one.reason),
        )
        for one in sensitivity.inputs
    ]
    heads = ("", "low", "high", "at low", "at high", "regret", "what it is")
    return Table("What the scenario states", "no part of the interval; step at both ends", heads, rows, "<>>>>><")


def _saved(seconds: float, sensitivity: Sensitivity) -> str:
    """A saved regret as a share of that of choosing now; ``-`` where there is next to none."""
    whole = sensitivity.regret_s
    return fmt.percent(seconds / whole) if whole > 1e-4 * sensitivity.step_s.mean else "-"
