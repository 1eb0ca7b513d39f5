"""Published techniques on a scenario, in a terminal; its page takes the same words."""

from __future__ import annotations

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import Table, cell
from rlsim.results.planning import Technique, Techniques

MOST_EXPLAINED = 6


def render_techniques(found: Techniques, style: Style = DEFAULT_STYLE) -> str:
    """The ranking, what the first ones ask and set, the best pair, and what the scenario cannot take."""
    about = []
    for one in faster(found)[:MOST_EXPLAINED]:
        about += style.wrapped(technique_words(one), "  ")
        about += style.wrapped(f"{' '.join(one.changes)}", "    ")
    return sections(
        style.opening(best_technique(found)),
        techniques_table(found).lines(style),
        ["What they ask and set", *about] if about else [],
        style.numbered("Not possible here", [f"{one.title}: {one.reason}" for one in found.left_out]),
    )


def techniques_table(found: Techniques) -> Table:
    """A row for each technique, the best pair first."""
    heads = ["", "step (s)", "speedup", "same update"]
    rows = [
        (one.name, cell(one.step_s, 1), fmt.times(one.speedup), "yes" if one.same_update else "no")
        for one in found.ranked
    ]
    return Table("Techniques", f"step now {fmt.seconds(found.step_s.mean)}", heads, rows)


def faster(found: Techniques) -> list[Technique]:
    """Those that shorten the step."""
    return [one for one in found.ranked if one.speedup.mean > 1]


def technique_words(one: Technique) -> str:
    """What a technique is, asks and comes from."""
    return f"{one.name}: {one.title}. Asks for {one.asks}. Source: {one.source}."


def best_technique(found: Techniques) -> str:
    """The one that shortens the step most, and the one with the same update."""
    best = found.best_pair or next(iter(found.techniques), None)
    if best is None or best.speedup.mean <= 1:
        return f"No technique shortens the step of {found.scenario}."
    exact = next((one for one in found.techniques if one.same_update and one.speedup.mean > 1), None)
    text = f"{best.title} shortens the step of {found.scenario} most, {fmt.times(best.speedup)}"
    if exact is not None and not best.same_update:
        text += f"; with the same update {exact.title}, {fmt.times(exact.speedup)}"
    return f"{text}."
