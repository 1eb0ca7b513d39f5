"""A comparison of two scenarios in a terminal."""

from __future__ import annotations

from typing import Any

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import RULE, Row, Table, cell
from rlsim.report.text.sweep import price_remark
from rlsim.results.compare import Comparison

LONGEST_VALUE = 40


def render_comparison(comparison: Comparison, style: Style = DEFAULT_STYLE) -> str:
    """Differences of the scenarios, phases side by side, and the phase that explains the difference."""
    first, second = comparison.names
    names = (first, second) if first != second else (f"A ({first})", f"B ({second})")
    changed = [(key, _brief(a), _brief(b)) for key, (a, b) in comparison.differences.items()]
    scenario = Table("Scenario", "", ["", *names], changed, "<").lines(style)
    phases = [
        Row(
            (
                _phase_name(change.phase, comparison),
                *(f"{seconds:.1f}" for seconds in (change.before_s, change.after_s)),
                f"{change.after_s - change.before_s:+.1f}",
                "" if change.share is None else fmt.percent(change.share),
            )
        )
        for change in comparison.phases
    ]
    gap = comparison.step_s[1].mean - comparison.step_s[0].mean
    step = Row(("step", *(cell(side, 1) for side in comparison.step_s), f"{gap:+.1f}", ""), strong=True)
    money = Row(("USD per step", *(f"{cost:.2f}" for cost in comparison.cost_per_step_usd), "", ""))
    heads = ["", *names, "difference", "share"]
    times = Table("Time per step", "seconds, mean [90 % interval]", heads, [*phases, RULE, step, money])
    pairing = "on the same drawn work" if comparison.paired else "on different work"
    verdict = [f"Speedup {fmt.times(comparison.speedup)}, {pairing}."]
    if comparison.explained_by is not None:
        verdict.append(f"Most of the difference is {_phase_name(comparison.explained_by, comparison)}.")
    return sections(
        [f"{names[0]} against {names[1]}"],
        scenario or ["The scenarios do not differ."],
        [*times.lines(style), *style.wrapped(price_remark(comparison.price_per_gpu_hour_usd), "  ")],
        verdict,
        style.numbered("Warnings", comparison.warnings),
    )


def _phase_name(phase: str, comparison: Comparison) -> str:
    """Asynchronous steps hold the wait for a generator only, not its busy time."""
    if phase != "generation" or "async" not in comparison.modes:
        return phase
    return "exposed generation" if set(comparison.modes) == {"async"} else "generation (exposed where asynchronous)"


def _brief(value: Any) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
