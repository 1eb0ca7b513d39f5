"""The answer to a scenario in a terminal: in full, in five lines, and on one screen."""

from collections.abc import Mapping, Sequence

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import RULE, Cell, Row, Table, cell, cells, table
from rlsim.report.text import findings, support
from rlsim.results import Interval, MemoryUse, PhasePart, Projection, Variant
from rlsim.units import GIB, SECONDS_PER_HOUR

BAR_CELLS = 24
_PLAIN_REMARK = "Baseline and candidate are the same: set speculation.method and speculation.draft_length to compare."


def render(projection: Projection, style: Style = DEFAULT_STYLE) -> str:
    """The answer in full as text: verdict, times, memory, bottlenecks, provenance, support, statistics,
    assumptions, warnings."""
    seeded = f"seed {projection.seed}, digest {projection.digest}"
    about = f"{projection.scenario}: {projection.model}, {projection.order}, {seeded}"
    return sections(
        style.opening(findings.headline(projection), projection.question, about),
        times_lines(projection, style),
        _memory(projection, style),
        support.bottleneck_lines(projection, style),
        support.provenance_lines(projection.provenance, style),
        support.support_lines(projection.support, style),
        [] if projection.order == "supervised" else _statistics(projection, style),
        support.efficiency_lines(projection, style),
        style.numbered("Assumptions", projection.assumptions),
        style.numbered("Warnings", projection.warnings),
    )


def render_brief(projection: Projection, style: Style = DEFAULT_STYLE) -> str:
    """The verdict in at most five lines of 100 columns: answer, step and cost, where to look, what it rests on."""
    steps = " -> ".join(fmt.seconds(arm.step_s.mean) for arm in projection.variants.values())
    warned = f"; warnings: {len(projection.warnings)}" if projection.warnings else ""
    sentences = (
        f"A step takes {steps} and {_costs(projection)}.",
        findings.look_here_first(projection),
        f"{projection.scenario}: {_rests(projection)}{warned}.",
    )
    return sections([*style.opening(findings.headline(projection)), *style.paragraphs(sentences, "")])


def times_lines(projection: Projection, style: Style) -> list[str]:
    """Lines of the table of phases, step, throughput and cost, and remarks below it: phases of both sides and their
    speedups, equal ones in one row; one side's shares where nothing is drafted."""
    arms = projection.variants
    rows: list[Row] = []
    if projection.asynchronous:
        busy = [arm.phases.generation_s for arm in arms.values()]
        rows.append(_phase_row(projection, "generation_s", busy, _decimals(projection)))
    rates = {
        "tokens/s/GPU": [arm.tokens_per_s_per_gpu for arm in arms.values()],
        "USD/step": [cost_usd(projection, arm.step_s) for arm in arms.values()],
    }
    rows += [Row((*cells(label, values), "")) for label, values in rates.items()]
    price = fmt.price_remark([projection.price_per_gpu_hour_usd], projection.price_source)
    return [*times_table(projection, style, rows), *style.paragraphs([price, *_remarks(projection)])]


def _decimals(projection: Projection) -> int:
    return fmt.decimals_for(max(arm.step_s.mean for arm in projection.variants.values()))


def times_table(projection: Projection, style: Style, below: Sequence[Row] = ()) -> list[str]:
    """Lines of the table of phases that differ between the sides and of the step, ``below`` it further rows, and phases
    that are the same in both."""
    arms = projection.variants
    decimals = _decimals(projection)
    phases = _phases(projection)
    same = {
        phase: values
        for phase, values in phases.items()
        # Equal as printed: digits that nobody sees make no difference.
        if len({fmt.fixed(value.mean, decimals) for value in values}) < len(arms)
    }
    rows = [_phase_row(projection, phase, values, decimals) for phase, values in phases.items() if phase not in same]
    if same:
        # A refit inside the preparation is in its sum already.
        added = [values for phase, values in same.items() if not _inside(projection, phase)]
        sums = [sum(values[i].mean for values in added) for i in range(len(arms))]
        rows.append(Row(("same in both", *(fmt.fixed(total, decimals) for total in sums), "")))
    rows += [RULE, _phase_row(projection, "step", [arm.step_s for arm in arms.values()], decimals), *below]
    heads = ("", *arms, "speedup") if len(arms) == 2 else ("", "mean", "of step")
    times = Table("Time per step", "seconds, mean [90 % interval]", heads, rows)
    return [*times.lines(style), *style.paragraphs([_same(projection, same, decimals)] if same else [])]


def cost_usd(projection: Projection, seconds: Interval) -> Interval:
    """Price in USD of all GPUs, busy or not, for ``seconds``."""
    return seconds.times(projection.num_gpus * projection.price_per_gpu_hour_usd / SECONDS_PER_HOUR)


def _phases(projection: Projection) -> dict[str, list[Interval]]:
    """Phases of the step in each side shown; the refit of a synchronous one after the phase that it is part of."""
    arms = projection.variants.values()
    columns = [findings.step_phases(arm, projection.asynchronous) for arm in arms]
    found = {}
    for phase in dict.fromkeys(name for column in columns for name in column):
        if phase == "other":
            found[phase] = [Interval(*[column.get(phase, 0.0)] * 3) for column in columns]
        elif any(column[phase] for column in columns):
            found[phase] = [arm.phases[phase] for arm in arms]
        if phase == "prepare_s" and projection.order == "synchronous":
            found["refit_s"] = [arm.phases.refit_s for arm in arms]
    return found


def _inside(projection: Projection, phase: str) -> str:
    """Prefix of a phase that is part of the phase above it; empty for others."""
    return "of which " if phase == "refit_s" and not projection.asynchronous else ""


def _phase_row(projection: Projection, phase: str, values: Sequence[Interval], decimals: int) -> Row:
    label = "step" if phase == "step" else fmt.phase_label(phase, projection.asynchronous)
    inside = _inside(projection, phase)
    shown: list[Cell | str] = [f"{inside and '  '}{inside}{label}", *(cell(value, decimals) for value in values)]
    before, after = values[0].mean, values[-1].mean
    if len(values) == 1:
        return Row((*shown, fmt.percent(after / projection.candidate.step_s.mean)))
    speedups = {"step": projection.end_to_end_speedup, "generation_s": projection.rollout_speedup}
    # Of these two the draws are paired, so that their speed-ups have intervals.
    if phase in speedups:
        return Row((*shown, cell(speedups[phase], 2, "x")), strong=True)
    if phase == "exposed_generation_s":
        # A ratio of a wait that nearly vanished says nothing.
        return Row((*shown, f"{'saves' if before >= after else 'adds'} {fmt.seconds(abs(before - after))}"))
    return Row((*shown, fmt.ratio(before, after)))


def _same(projection: Projection, phases: Mapping[str, Sequence[Interval]], decimals: int) -> str:
    """The phases behind the row of what is the same in both."""
    out = ""
    for phase, values in phases.items():
        text = f"{fmt.phase_label(phase, projection.asynchronous)} {fmt.fixed(values[0].mean, decimals)}"
        inside = _inside(projection, phase)
        out += f" ({inside}{text})" if inside else f", {text}"
    return f"same in both: {out.removeprefix(', ')} s"


def _remarks(projection: Projection) -> list[str]:
    """Remarks: which side sets the pace of an asynchronous step, ages of its samples, how to get a comparison."""
    arms = projection.variants
    remarks = [] if len(arms) == 2 or projection.order == "supervised" else [_PLAIN_REMARK]
    if projection.asynchronous:
        remarks += [(f"{name}: " if len(arms) == 2 else "") + _pace(arm) for name, arm in arms.items()]
        remarks += _of_sides("age of consumed samples", {name: _ages(arm) for name, arm in arms.items()})
    return remarks + _of_sides("generated tokens", {name: _tokens(arm) for name, arm in arms.items()})


def _of_sides(what: str, texts_by_side: Mapping[str, str]) -> list[str]:
    """A remark for each side that has a text; a single one where the sides have the same."""
    same = len(set(texts_by_side.values())) == 1
    texts = [f"{what}{'' if same else f' ({name})'}: {text}" for name, text in texts_by_side.items() if text]
    return texts[:1] if same else texts


def _pace(arm: Variant) -> str:
    share = fmt.percent(findings.waiting_share(arm))
    if findings.trainer_sets_pace(arm):
        return f"the trainer sets the pace: it waits {share} of the step for generation"
    return f"generation sets the pace: the trainer waits {share} of the step for it"


def _tokens(arm: Variant) -> str:
    """Shares of the response tokens that were not trained on, by reason; empty where all were."""
    ledger = arm.ledger
    if ledger is None or not ledger.generated:
        return ""
    shares = {what: getattr(ledger, name) / ledger.generated for name, what in fmt.NAMES["lost"].items()}
    return ", ".join(f"{fmt.percent(share)} {what}" for what, share in shares.items() if share > 0)


def _ages(arm: Variant) -> str:
    """Ages of samples, and the mean one of the weights behind their tokens."""
    shares = [(age, fmt.percent(share)) for age, share in sorted(arm.staleness.items()) if share > 0]
    samples = ", ".join(f"{age} {'step' if age == 1 else 'steps'} {share}" for age, share in shares)
    mean = sum(age * share for age, share in arm.token_ages.items())
    return f"{samples}; of their tokens {mean:.1f} in the mean" if arm.token_ages else samples


def _memory(projection: Projection, style: Style) -> list[str]:
    before, memory = projection.baseline.memory, projection.candidate.memory
    name = max(map(len, memory))
    lines = [style.bold("Memory per GPU") + style.dim("  GiB in the fullest phase")]
    for pool, use in memory.items():
        lines += _pool(f"  {pool:<{name}}   ", use, before[pool], style)
    return lines


def _pool(label: str, use: MemoryUse, before: MemoryUse, style: Style) -> list[str]:
    share = use.total_bytes / use.available_bytes
    filled = min(BAR_CELLS, round(BAR_CELLS * share))
    bar = style.readable("█" * filled + "░" * (BAR_CELLS - filled))
    total = f"{fmt.gibibytes(use.total_bytes)} of {fmt.gibibytes(use.available_bytes)} GiB ({fmt.percent(share)})"
    # Below that both print alike.
    if abs(before.total_bytes - use.total_bytes) > GIB / 20:
        total += f", baseline {fmt.gibibytes(before.total_bytes)} GiB"
    ranked = sorted(use.parts_bytes.items(), key=lambda part: -part[1])
    parts = ", ".join(f"{part} {fmt.gibibytes(size)}" for part, size in ranked if size > 0)
    return [*style.wrapped(f"{bar}   {total}", label), *style.wrapped(parts, " " * len(label))]


def statistics_cells(projection: Projection) -> list[tuple[str, str, list[str]]]:
    """Name, unit and number on each side of what the engines did; no number where it has no meaning."""
    sides = [dict(arm.statistics.items()) for arm in projection.variants.values()]
    return [
        (text, unit, [fmt.number(side[name] * (100 if unit == "%" else 1)) if name in side else "" for side in sides])
        for name, (text, unit) in fmt.NAMES["statistics"].items()
    ]


def _statistics(projection: Projection, style: Style) -> list[str]:
    """Lines of the engines' statistics: those that differ as a table, equal ones in a sentence."""
    arms = projection.variants
    rows, same = [], []
    for text, unit, values in statistics_cells(projection):
        shown = list(filter(None, values))
        if len(shown) == 2 and len(set(shown)) == 1:
            same.append(f"{text} {shown[0]}{unit and f' {unit}'}")
        elif shown:
            rows.append((f"{text}{unit and f' ({unit})'}", *shown))
    heads = ("", *arms) if len(arms) == 2 else ("", "")
    shared = style.wrapped(f"same in both: {', '.join(same)}", "  ") if same else []
    return [style.bold("Engine statistics"), *table(heads, rows, style), *shared]


MOST_PHASES, MOST_PARTS, LEAST_SHARE = 3, 3, 0.08
"""Phases and parts of each that are named; none below this share of the step, or of its phase."""
SURE = 0.995
"""Probability of memory beyond which its last digits say nothing."""
MOST_LINES = 40
"""Of the whole answer, at 100 columns: warnings beyond it are counted."""
_MORE = "--full: assumptions, parts, what the interval leans on. --out DIR: picture, timeline and files."


def render_answer(projection: Projection, style: Style = DEFAULT_STYLE) -> str:
    """The answer in at most 40 lines of 100 columns."""
    gpus = f"{projection.num_gpus:,} {projection.hardware}"
    about = f"{projection.scenario}: {projection.model} on {gpus}, {projection.order}"
    rates = " -> ".join(fmt.number(arm.tokens_per_s_per_gpu.mean) for arm in projection.variants.values())
    price = f"a step {_costs(projection)}; {rates} tokens/s/GPU"
    sure = [f"Its seconds are {_rests(projection)}; {len(projection.assumptions)} assumptions."]
    if projection.support is not None:
        sure.insert(0, support.nearest_step(projection.support))
    if projection.tuned_step_s is not None:
        sure.insert(0, fmt.beside_tuned(projection.tuned_step_s, projection.candidate.step_s))
    body = [
        style.opening(findings.headline(projection), about),
        [*times_table(projection, style), *style.paragraphs(_beside(projection))],
        [style.bold("What bounds it"), *_bounds(projection, style), *_try_first(projection, style)],
        [style.bold("Memory and price"), *style.paragraphs([held_text(projection.candidate.memory), price])],
        [style.bold("How sure"), *style.paragraphs(sure)],
    ]
    more = [*map(style.dim, style.wrapped(_MORE))]
    # Warnings get what is left of the screen; how many lines the rest takes is known only once it is wrapped.
    left = MOST_LINES - sections(*body, more).count("\n") - 1
    return sections(*body, _warnings(projection, style, left), more)


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
    """The move that was tried for the answer, and the command that ranks all of them."""
    found = projection.try_first
    if found is None:
        return style.wrapped("What would shorten it: rlsim improve.", "  ", 4)
    step = f"{found.step_s.mean:.4g} s [{found.step_s.low:.4g}, {found.step_s.high:.4g}]"
    text = f"Try first: {found.title} ({' '.join(found.changes)}): a step of {step}; rlsim improve ranks all moves."
    return style.wrapped(text, "  ", 4)


def _fits(use: MemoryUse) -> str:
    # Nothing is sure of what rests on a few dozen measurements.
    return "" if use.fits is None else f", fits {fmt.percent(use.fits) if use.fits < SURE else '>99 %'}"


def held_text(memory: Mapping[str, MemoryUse]) -> str:
    """Sentence with the bytes of a GPU by pool, and the probability that each fits."""
    pools = [
        f"{fmt.gibibytes(use.total_bytes)} of {fmt.gibibytes(use.available_bytes)} GiB ({pool}{_fits(use)})"
        for pool, use in memory.items()
    ]
    return f"a GPU holds {', '.join(pools)}"


def _costs(projection: Projection) -> str:
    """Text of the cost of a step in USD on each side, and the price behind it."""
    costs = " -> ".join(fmt.fixed(cost_usd(projection, arm.step_s).mean, 2) for arm in projection.variants.values())
    each = f"{projection.price_per_gpu_hour_usd:.2f} per GPU and hour ({projection.price_source})"
    return f"costs {costs} USD at {each}"


def _rests(projection: Projection) -> str:
    """Shares of the seconds that are measured, modelled and assumed, as text."""
    return ", ".join(f"{fmt.percent(getattr(projection.provenance, kind))} {kind}" for kind in support.ROOTS)


def _warnings(projection: Projection, style: Style, most_lines: int) -> list[str]:
    """As many as fit; the others are counted."""
    found = projection.warnings
    # Tried from all of them down, since a warning may take several lines.
    for shown in range(len(found), -1, -1):
        rest = [f"{len(found) - shown} more (--full)"] if shown < len(found) else []
        lines = style.numbered("Warnings", [*found[:shown], *rest])
        if len(lines) <= most_lines:
            return lines
    return style.wrapped(f"Warnings: {len(found)} (--full)")
