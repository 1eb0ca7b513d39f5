"""A headroom ladder in a terminal."""

from __future__ import annotations

from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import Table
from rlsim.results.headroom import Headroom, Rung


def render_headroom(found: Headroom, style: Style = DEFAULT_STYLE) -> str:
    """The sentence, the ladder, and who can climb each rung."""
    return sections(
        style.opening(headroom_words(found), f"{found.model} on {found.num_gpus:,} {found.hardware}, {found.scenario}"),
        ladder_table(found).lines(style),
        [line for one in found.rungs[1:] for line in style.wrapped(rung_words(one), "- ")],
    )


def headroom_words(found: Headroom) -> str:
    """How far the step is from the last rung, and the rung that saves most."""
    last, most = found.rungs[-1], max(found.rungs, key=lambda one: one.saved_s)
    return (
        f"A step of {found.step_s:.1f} s stands {found.ratio(last):.1f}x above the roofline ({last.step_s:.1f} s); "
        f"the longest rung, {most.saved_s:.1f} s, is '{most.name}'."
    )


def ladder_table(found: Headroom) -> Table:
    """A row for each rung."""
    rows = [
        (one.name, f"{one.step_s:.1f}", f"{-one.saved_s:+.1f}" if one.saved_s else "", f"{found.ratio(one):.2f}x",
         f"{one.generation_s:.1f}", one.who)
        for one in found.rungs
    ]  # fmt: skip
    heads = ("with all rungs above", "step (s)", "saves", "faster", "generation", "who can")
    return Table("Headroom", "each simulated on the same drawn work", heads, rows, "<>>>><")


def rung_words(one: Rung) -> str:
    """How a rung is climbed, and by which keys."""
    keys = f"; in the scenario: {', '.join(one.changes)}" if one.changes else ""
    return f"{one.name}: {one.how}{keys}{f' ({one.why})' if one.why else ''}"
