"""What would shorten a step, in a terminal: a part asked for alone as it is shown elsewhere, else all in brief."""

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import Table, cell
from rlsim.report.text.attribution import (
    best_technique,
    faster,
    headroom_words,
    idle_words,
    render_blame,
    render_headroom,
    render_techniques,
)
from rlsim.report.text.planning import render_sensitivity
from rlsim.results.check import Improvement
from rlsim.results.planning import Blame, DraftCurve, Sensitivity, Techniques

MOST_MOVES, MOST_EXPLAINED, MOST_CAUSES, MOST_INPUTS = 8, 3, 3, 3
TOLD_GAIN = 1.01
"""Speed-up of the step below which no draft length is said to pay."""


def render_improvement(found: Improvement, style: Style = DEFAULT_STYLE) -> str:
    """Every part that was asked for, the verdict first."""
    moves, idle, ladder, inputs = found.moves, found.idle, found.headroom, found.inputs
    if moves is None or idle is None or ladder is None or inputs is None:
        alone = [
            moves and render_techniques(moves, style), idle and render_blame(idle, style),
            ladder and render_headroom(ladder, style), inputs and render_sensitivity(inputs, style),
        ]  # fmt: skip
        return sections(*(text.splitlines() for text in alone if text))
    return sections(
        style.opening(best_technique(moves)),
        _moves(moves, style),
        [style.bold("Why GPUs are idle"), *_idle(idle, style)],
        [style.bold("How far the ideal is"), *style.wrapped(headroom_words(ladder), "  ")],
        [style.bold("What is worth measuring"), *_inputs(inputs, style)],
        style.wrapped("More of a part: --only techniques, idle, headroom or inputs; every line: --full."),
    )


def _moves(found: Techniques, style: Style) -> list[str]:
    shown = faster(found)
    heads = ["", "step (s)", "speedup", "same update"]
    rows = [
        (one.name, cell(one.step_s, 1), fmt.times(one.speedup), "yes" if one.same_update else "no")
        for one in shown[:MOST_MOVES]
    ]
    lines = Table("Moves", f"step now {fmt.seconds(found.step_s.mean)}", heads, rows).lines(style) if rows else []
    for one in shown[:MOST_EXPLAINED]:
        lines += style.wrapped(f"{one.name} asks for {one.asks}: {' '.join(one.changes)}", "  ", 4)
    more = len(shown) - len(rows)
    less = f"{more} more gain less, " if more else ""
    counts = f"{less}{len(found.techniques) - len(shown)} gain nothing"
    return [*lines, *style.wrapped(f"{counts}, {len(found.left_out)} are not possible here.", "  ")]


def _idle(found: Blame, style: Style) -> list[str]:
    lines = style.wrapped(idle_words(found), "  ")
    for one in sorted(found.removals, key=lambda one: -one.saved_s)[:MOST_CAUSES]:
        if one.saved_s > 0:
            lines += style.wrapped(f"without {one.cause} {fmt.seconds(one.step_s)}: {one.how}", "  ", 4)
    return lines


def _inputs(found: Sensitivity, style: Style) -> list[str]:
    step = found.step_s.mean
    lines = []
    for one in found.sources[:MOST_INPUTS]:
        saved = f"{fmt.percent(one.saved_s / step, 1)} of a step"
        lines += style.wrapped(f"{one.source}: {fmt.percent(one.share)} of the variance, saves {saved}", "  ", 4)
    return lines


def draft_headline(found: DraftCurve) -> str:
    """The best draft length in a sentence, and what else lies within its interval."""
    best, of = found.chosen, f"{found.scenario}, with an assumed drafter" if found.assumed else found.scenario
    if not best.draft_length:
        return f"{of}: no draft length pays; k = 0 is the fastest step"
    gains = f"rollout {fmt.times(best.rollout_speedup)}, step {fmt.times(best.step_speedup)}"
    if best.step_speedup.mean < TOLD_GAIN:
        return f"{of}: no draft length shortens the step by 1 %; k = {best.draft_length} is the best: {gains}"
    return f"{of}: k = {best.draft_length} pays most: {gains}"


def render_draft_curve(found: DraftCurve, style: Style = DEFAULT_STYLE) -> str:
    """Speed-ups by draft length, at which live batches each pays, and what graphs it needs."""
    return sections(
        style.opening(draft_headline(found)),
        *(style.wrapped(note) for note in assumed_drafter(found)),
        draft_table(found).lines(style),
        *(style.wrapped(note) for note in draft_notes(found)),
    )


def assumed_drafter(found: DraftCurve) -> list[str]:
    """Sentence on the drafter of a scenario that has none; empty where it has one."""
    return [f"The scenario drafts nothing; assumed: {found.assumed}."] if found.assumed else []


def draft_table(found: DraftCurve) -> Table:
    """A line for each draft length; the best one is marked."""
    heads = ["", "k", "tokens", "rollout", "step", "pays up to", "of decoding", "outside graphs", "graphs need"]
    rows = [
        (
            "*" if one.draft_length == found.best else "",
            str(one.draft_length),
            f"{one.acceptance_length:.2f}",
            fmt.times(one.rollout_speedup),
            fmt.times(one.step_speedup),
            f"{one.pays_up_to:,} live" if one.pays_up_to else "-",
            fmt.percent(one.pays_share),
            fmt.percent(one.eager_share),
            f"{one.needed_tokens:,} tokens",
        )
        for one in found.lengths
    ]
    title = "pays up to: the largest live batch that gains, and the share of undrafted decoding at such batches"
    return Table("Draft lengths", title, heads, rows)


def draft_notes(found: DraftCurve) -> list[str]:
    """Lengths that cannot run, graphs that would hold the best one, and lengths that do as well."""
    best = found.chosen
    notes = [f"k = {k} cannot run: {reason}" for k, reason in found.left_out.items()]
    if best.eager_share > 0:
        notes.append(
            f"Graphs hold {best.captured_tokens:,} tokens; {found.most_live:,} sequences x {best.draft_length + 1} "
            f"need {best.needed_tokens:,}: engine.max_captured_tokens={best.needed_tokens} (vLLM "
            "cudagraph_capture_sizes, SGLang --cuda-graph-max-bs) keeps every iteration inside."
        )
    rivals = [
        str(one.draft_length)
        for one in found.lengths
        if one is not best and one.step_speedup.mean > 1 and one.step_speedup.mean >= 0.99 * best.step_speedup.mean
    ]
    if rivals:
        notes.append(f"Within 1 % of the step: k = {', '.join(rivals)}.")
    return notes
