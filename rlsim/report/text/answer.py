"""The answer to a scenario on one screen: verdict, times, what bounds them, memory, how sure, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.text import findings
from rlsim.report.text.projection import cost_usd, times_table
from rlsim.report.text.support import ROOTS, nearest_step
from rlsim.results import PhasePart, Projection

MOST_PHASES, MOST_PARTS, LEAST_SHARE = 3, 3, 0.08
"""Phases and parts of each that are named; none below this share of the step, or of its phase."""
MOST_LINES = 40
"""Of the whole answer, at 100 columns: warnings beyond it are counted."""
TRIES: Mapping[str, Mapping[str, str]] = fmt.NAMES["tries"]
_MORE = "--full: assumptions, parts, what the interval leans on. --out DIR: picture, timeline and files."


def render_answer(projection: Projection, style: Style = DEFAULT_STYLE) -> str:
    """The answer in at most 40 lines of 100 columns."""
    mode = "asynchronous" if projection.asynchronous else "synchronous"
    about = f"{projection.scenario}: {projection.model} on {projection.num_gpus:,} {projection.hardware}, {mode}"
    said = [
        style.opening(findings.headline(projection), about),
        [*times_table(projection, style), *style.paragraphs(_beside(projection))],
        [style.bold("What bounds it"), *_bounds(projection, style), *_try_first(projection, style)],
        [style.bold("Memory and price"), *style.paragraphs([_memory(projection), _price(projection)])],
        [style.bold("How sure"), *style.paragraphs(_sure(projection))],
    ]
    more = [*map(style.dim, style.wrapped(_MORE))]
    left = MOST_LINES - sections(*said, more).count("\n") - 1
    return sections(*said, _warnings(projection, style, left), more)


def _beside(projection: Projection) -> list[str]:
    """Generation that runs beside training, which is no part of the sum; who waits for whom."""
    if not projection.asynchronous:
        return []
    arms = list(projection.variants.values())
    busy = " -> ".join(fmt.seconds(arm.phases.generation_s.mean) for arm in arms)
    gain = f", {fmt.times(projection.rollout_speedup)}" if len(arms) == 2 else ""
    waits = " -> ".join(fmt.percent(findings.waiting_share(arm)) for arm in arms)
    pace = "the trainer" if findings.trainer_sets_pace(arms[-1]) else "generation"
    return [f"generation beside it takes {busy}{gain}; {pace} sets the pace: training waits {waits} of the step"]


def _bounds(projection: Projection, style: Style) -> list[str]:
    """The longest phases of the candidate with their largest parts."""
    arm, out = projection.candidate, []
    for phase, parts in list(findings.parts_by_phase(arm).items())[:MOST_PHASES]:
        seconds = arm.phases[phase].mean
        if seconds >= LEAST_SHARE * arm.step_s.mean:
            label = fmt.PHASE_LABELS[phase]
            out += style.wrapped(f"{label} {fmt.seconds(seconds)}: {_named(parts)}", "  ", 4)
    return out


def _named(parts: Sequence[PhasePart]) -> str:
    total = sum(part.seconds for part in parts)
    shown = [part for part in parts[:MOST_PARTS] if part.seconds >= LEAST_SHARE * total] or parts[:1]
    return ", ".join(
        f"{part.name} {fmt.percent(part.seconds / total)}" + (f" ({part.bound})" if part.bound != part.name else "")
        for part in shown
    )


def _try_first(projection: Projection, style: Style) -> list[str]:
    """What could shorten the phase that sets the pace, and the commands that price it."""
    phase, parts = findings.leading_phase(projection)
    known = TRIES.get("train_s" if phase == "logprob_s" else phase, {})
    idea = known.get(parts[0].bound, known.get("any"))
    if phase == "generation_s" and not projection.candidate.speculates:
        idea = f"drafting (speculation.method), {idea}"
    text = f"Try first: {idea} (rlsim techniques prices ideas, rlsim plan layouts)."
    return style.wrapped(text if idea else "Try rlsim techniques for ideas and rlsim plan for layouts.", "  ", 4)


def _memory(projection: Projection) -> str:
    pools = [
        f"{fmt.gibibytes(use.total_bytes)} of {fmt.gibibytes(use.available_bytes)} GiB ({pool})"
        for pool, use in projection.candidate.memory.items()
    ]
    return f"a GPU holds {', '.join(pools)}"


def _price(projection: Projection) -> str:
    arms = projection.variants.values()
    costs = " -> ".join(f"{cost_usd(projection, arm.step_s).mean:,.2f}" for arm in arms)
    rates = " -> ".join(fmt.number(arm.tokens_per_s_per_gpu.mean) for arm in arms)
    each = f"{projection.price_per_gpu_hour_usd:.2f} per GPU and hour ({projection.price_source})"
    return f"a step costs {costs} USD at {each}; {rates} tokens/s/GPU"


def _sure(projection: Projection) -> list[str]:
    """How far to trust it: interval, nearest measured run, what the seconds rest on."""
    shares = projection.provenance
    rests = ", ".join(f"{fmt.percent(getattr(shares, kind))} {kind}" for kind in ROOTS)
    said = f"Its seconds are {rests}; {len(projection.assumptions)} assumptions."
    return [*([] if projection.support is None else [nearest_step(projection.support)]), said]


def _warnings(projection: Projection, style: Style, most_lines: int) -> list[str]:
    """As many as fit; the others are counted."""
    found = projection.warnings
    for shown in range(len(found), -1, -1):
        rest = [f"{len(found) - shown} more (--full)"] if shown < len(found) else []
        lines = style.numbered("Warnings", [*found[:shown], *rest])
        if len(lines) <= most_lines:
            return lines
    return style.wrapped(f"Warnings: {len(found)} (--full)")
