"""A run beside its scenario, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlsim.readers.logs.answer import RunAnswer, WhatIf
from rlsim.readers.logs.learning import TOLD, Explained
from rlsim.report.format import percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import Cell, cell, table
from rlsim.report.text.support import EFFICIENCY_HEADS, efficiency_row, measured_words, peak_words
from rlsim.results import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"exposed_generation": "exposed generation", "logprob": "log-prob"}
MOST_SOURCES = 3


def render_run(answer: RunAnswer, style: Style = DEFAULT_STYLE) -> str:
    """The phases measured and predicted, what explains the differences, and the what-ifs."""
    log, steady = answer.log, answer.steady
    dropped = f", {steady.dropped} before them dropped" if steady.dropped else ""
    title = (
        f"{log.where} ({log.form}): steps {steady.first} to {steady.last}{dropped}; scenario {answer.calibrated.name}"
    )
    lines = [*style.wrapped(title), ""]
    for one in answer.taken:
        lines += style.wrapped(f"from the log: {one.text}")
    lines += [""] if answer.taken else []
    heads = ("median of a step, s", "measured", "p10 to p90", "predicted", "with this run", "off")
    lines += [*table(heads, _rows(answer), style, "<>>>>>"), ""]
    for kind, found in answer.explained.items():
        lagged = answer.calibrated.loop.mode == "async" and kind == "generation"
        lines += style.wrapped(_explained("generation, as its trainer waits for it" if lagged else kind, found))
    if answer.efficiency:
        rows = [efficiency_row(_label(one.phase.removesuffix("_s")), one) for one in answer.efficiency]
        lines += ["", *table(EFFICIENCY_HEADS, rows, style)]
        lines += [*style.paragraphs([peak_words(answer.efficiency), *measured_words(answer.measured_efficiency)]), ""]
    for remark in answer.remarks:
        lines += style.wrapped(remark, "- ")
    if answer.what_ifs:
        lines += ["", *_what_ifs(answer.what_ifs, style)]
    return "\n".join(lines)


def _rows(answer: RunAnswer) -> list[Sequence[Cell | str]]:
    out: list[Sequence[Cell | str]] = []
    for line in answer.phases:
        found = line.measured
        spread = f"{found.low:.1f} to {found.high:.1f}"
        off = "" if line.after is None or not found.median else percent(line.after.mean / found.median - 1, 1)
        out.append((_label(line.quantity), f"{found.median:.1f}", spread, _cell(line.before), _cell(line.after), off))
    return out


def _label(quantity: str) -> str:
    return LABELS.get(quantity, quantity)


def _cell(value: Interval | None) -> Cell | str:
    return "-" if value is None else cell(value, 1)


def _explained(kind: str, found: Explained) -> str:
    """What moved the prediction of a phase, by source."""
    named = [(text, change) for text, change in found.by_source if abs(change) >= TOLD][:MOST_SOURCES]
    told = ", ".join(f"{text} ({_share(change)})" for text, change in named) or "no source by as much as 0.5 %"
    left = f"; {_share(found.left)} stays unexplained" if abs(found.left) >= TOLD else ""
    return f"{_label(kind)}, measured {_share(found.surprise)} from predicted: {told}{left}"


def _share(logarithm: float) -> str:
    return f"{100 * math.expm1(logarithm):+.1f} %"


def _faster(speedup: Interval, samples: float) -> str:
    """How much faster than the run a what-if is, by its steps or, of another batch, by its samples."""
    low, mean, high = (samples * value for value in (speedup.low, speedup.mean, speedup.high))
    what = "in steps" if samples == 1 else "in samples"
    return f"{mean:.2f} [{low:.2f}, {high:.2f}] times as fast as this run, {what} per second"


def _what_ifs(what_ifs: Sequence[WhatIf], style: Style) -> list[str]:
    """Phases of each what-if, from the posterior with the run and from the one without it."""
    lines = list[str]()
    for one in what_ifs:
        lines += style.wrapped(f"what if {one.settings}", indent=2)
        if one.reason:
            lines += [*style.wrapped(one.reason, "  "), ""]
            continue
        rows = [(_label(name), cell(one.before[name], 1), cell(value, 1)) for name, value in one.phases.items()]
        lines += table(("median of a step, s", "without this run", "with this run"), rows, style, "<>>")
        if one.speedup is not None:
            lines += style.wrapped(_faster(one.speedup, one.samples), "  ")
        lines.append("")
    return lines


def run_picture(answer: RunAnswer) -> Figure:
    """Seconds of each phase: measured medians with their 10th and 90th percentile, and both predictions."""
    from rlsim.report.figures.bars import beside_figure

    phases = {
        _label(line.quantity): (Interval(found.median, found.low, found.high), line.before, line.after)
        for line, found in ((line, line.measured) for line in answer.phases)
    }
    steady = answer.steady
    title = f"{answer.calibrated.name}: steps {steady.first} to {steady.last} of a run"
    measured = "measured: median, 10 to 90 % of the steps"
    return beside_figure(title, phases, (measured, "predicted, 90 % interval of the median", "predicted with this run"))
