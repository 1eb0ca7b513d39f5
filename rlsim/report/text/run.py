"""A run in a terminal, and clusters for a model."""

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import RULE, Cell, Cells, Row, Table, cell, cells
from rlsim.results import Interval
from rlsim.results.planning import DeviceSize, Sizing
from rlsim.results.run import Loss, Run, RunSide
from rlsim.units import JOULES_PER_KWH, SECONDS_PER_HOUR

DAY_S = 86400.0
LABELS: dict[str, str] = fmt.NAMES["causes"]
COUNTED = ("validation", "checkpoints", "stalls", "replica_faults", "restarts")
"""Causes that happen a number of times."""
NO_LOSS = Loss(seconds=Interval(0.0, 0.0, 0.0), events=0.0)
NOTES = {
    "exposed (s)": "exposed: generation that the trainer waits for",
    "response": "response: tokens",
    "cut": "cut: share of sequences at the cap",
    "batch": "batch: sequences of a replica's decode iteration",
    "age": "age: of the consumed samples, in steps",
}
"""What a column of a run's course holds."""
ABSENT = {"supervised": {"exposed (s)", "acceptance", "batch", "age"}, "rollouts alone": {"exposed (s)", "age"}}
"""Columns without a meaning, by what is left of a step."""


def render(run: Run, style: Style = DEFAULT_STYLE) -> str:
    """The answer in full as text: headline, totals, how the steps evolve, what was lost, assumptions, warnings."""
    about = (
        f"{run.scenario}: {run.model}, {fmt.counted(run.num_gpus, 'GPU')}, {run.order}, seed {run.seed}, replications "
        f"{run.replications}, digest {run.digest}"
    )
    notes = [fmt.price_remark([run.price_per_gpu_hour_usd], run.price_source)]
    notes += [_sampling(name, side, run.order) for name, side in run.sides.items()]
    return sections(
        style.opening(headline(run), run.question, about),
        [*totals_table(run).lines(style), *style.paragraphs(notes)],
        [*course_table(run).lines(style), *style.wrapped(course_note(run), "  ")],
        ledger_table(run).lines(style) if causes_of(run) != ["steps"] else [],
        style.numbered("Assumptions", run.assumptions),
        style.numbered("Warnings", run.warnings),
    )


def headline(run: Run) -> str:
    """Sentence with the duration of a run, and its speed-up over the run without speculation."""
    unit_s, unit = unit_of(run)
    took = f"{run.num_steps:,} {'step takes' if run.num_steps == 1 else 'steps take'} "
    took += f"{_scaled(run.candidate.seconds, unit_s)} {unit}"
    if run.baseline is None or run.speedup is None:
        return f"{took}."
    return f"{took} in place of {_scaled(run.baseline.seconds, unit_s)} {unit}: {fmt.times(run.speedup)}."


def unit_of(run: Run) -> tuple[float, str]:
    """The unit in seconds that the durations of a run read best in, and its name."""
    longest_s = max(side.seconds.mean for side in run.sides.values())
    # Of the longer side, so that both stand in one unit.
    if longest_s >= 3 * DAY_S:
        return DAY_S, "days"
    return (SECONDS_PER_HOUR, "hours") if longest_s >= 2 * SECONDS_PER_HOUR else (1.0, "s")


def _scaled(value: Interval, unit: float) -> str:
    decimals = fmt.decimals_for(value.mean / unit, digits=2)
    mean, low, high = (fmt.fixed(each / unit, decimals) for each in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"


def totals_table(run: Run) -> Table:
    """Time, cost, energy and tokens of the whole run."""
    sides = list(run.sides.values())
    unit_s, unit = unit_of(run)
    rows: list[Cells] = [
        cells(f"time ({unit})", [side.seconds.over(unit_s) for side in sides]),
        cells("cost (USD)", [side.cost_usd for side in sides]),
        cells("energy, at most (kWh)", [side.energy_at_most_j.over(JOULES_PER_KWH) for side in sides]),
        ("GPU seconds at work", *(fmt.percent(side.busy_share) for side in sides)),
        (
            "samples" if run.order == "rollouts alone" else "samples trained on",
            *(f"{side.samples:,}" for side in sides),
        ),
    ]
    if run.order != "supervised":
        rows.append(("tokens generated (billion)", *(fmt.number(side.generated_tokens / 1e9) for side in sides)))
    if run.order != "rollouts alone":
        rows.append(("tokens trained on (billion)", *(fmt.number(side.trained_tokens / 1e9) for side in sides)))
    return Table("Whole run", "mean [90 % interval]", ("", *run.sides) if len(sides) > 1 else ("", ""), rows)


def _sampling(name: str, side: RunSide, order: str) -> str:
    """Text of the spread that comes from the drawn work, apart from the model's error."""
    what = order if order in ABSENT else name
    steps = f"{what}: undisturbed steps differ by {fmt.seconds(side.sampling.step_deviation_s)} (standard deviation)"
    if side.sampling.run_error_s is None:
        return f"{steps}; one run was simulated (--replications tells how much runs differ)"
    error = fmt.seconds(side.sampling.run_error_s)
    return f"{steps}; the mean run is certain to {error} (standard error over replications)"


COLUMNS = ("steps", "step (s)", "exposed (s)", "acceptance", "response", "cut", "batch", "age", "tokens/s/GPU")
"""Columns of a run's course."""


def _columns(run: Run) -> tuple[str, ...]:
    return tuple(head for head in COLUMNS if head not in ABSENT.get(run.order, ()))


def course_note(run: Run) -> str:
    """What the columns of a run's course hold."""
    return "; ".join(("means", *(NOTES[head] for head in _columns(run) if head in NOTES)))


def course_table(run: Run) -> Table:
    """Table of means over consecutive parts of the run, with a row for each part."""
    heads = _columns(run)
    rows: list[Row] = []
    for name, side in run.sides.items():
        if len(run.sides) > 1:
            rows += [RULE] if rows else []
            rows.append(Row((name, *[""] * (len(heads) - 1)), strong=True))
        decimals = fmt.decimals_for(max(part.step_s.mean for part in side.parts))
        for part in side.parts:
            shown: dict[str, Cell | str] = {
                "steps": f"{part.first:,} to {part.last:,}",
                "step (s)": cell(part.step_s, decimals),
                "exposed (s)": fmt.fixed(part.exposed_generation_s, decimals),
                "acceptance": f"{part.acceptance_length:.2f}",
                "response": f"{part.response_tokens:,.0f}",
                "cut": fmt.percent(part.truncated_share),
                "batch": fmt.number(part.mean_batch),
                "age": f"{part.staleness:.2f}",
                "tokens/s/GPU": fmt.number(part.tokens_per_s_per_gpu),
            }
            rows.append(Row([shown[head] for head in heads]))
    return Table("How the steps evolve", "mean [90 % interval]", heads, rows)


def causes_of(run: Run) -> list[str]:
    """Causes that take seconds of the run on any side, in the order of the table."""
    return [cause for cause in LABELS if any(cause in side.ledger for side in run.sides.values())]


def ledger_table(run: Run) -> Table:
    """Table of the duration of the run by cause, with shares and counts."""
    (unit_s, unit), sides = unit_of(run), run.sides.values()
    decimals = 2 if unit_s > 1 else 0
    rows = []
    for cause in causes_of(run):
        row: list[Cell | str] = [LABELS[cause]]
        for side in sides:
            loss = side.ledger.get(cause, NO_LOSS)
            count = f"{loss.events:,.0f}" if cause in side.ledger and cause in COUNTED else ""
            share = fmt.percent(loss.seconds.mean / side.seconds.mean, 1)
            row += [cell(loss.seconds.over(unit_s), decimals), share, count]
        rows.append(Row(row))
    total = [text for side in sides for text in (fmt.fixed(side.seconds.mean / unit_s, decimals), "", "")]
    rows += [RULE, Row(("run", *total), strong=True)]
    names = list(run.sides) if len(sides) > 1 else [unit]
    heads = ("", *(head for name in names for head in (name, "share", "times")))
    return Table("Where the time goes", f"{unit}, mean [90 % interval of such runs]", heads, rows)


def render_size(sizing: Sizing, style: Style = DEFAULT_STYLE) -> str:
    """The recommendation, and for each device its clusters."""
    return sections(
        style.opening(recommendation(sizing), task_words(sizing)),
        style.paragraphs(sizing.verdict),
        # False sorts before True: the recommended device comes first.
        *(_device(one, style) for one in sorted(sizing.devices, key=lambda one: one.device != sizing.best)),
        style.paragraphs(assumed_words(sizing), "- "),
    )


def task_words(sizing: Sizing) -> str:
    """Text of the task that the clusters are sized for: model, batch, lengths."""
    trained = "all weights" if sizing.lora_rank is None else f"LoRA of rank {sizing.lora_rank}"
    prompts, samples = sizing.batch
    length = f"mean response {sizing.response_tokens:,} tokens"
    if sizing.turns > 1:
        length = f"mean trajectory {sizing.response_tokens:,} tokens in {sizing.turns:.3g} turns"
    cap = f"cap {sizing.max_sequence_tokens:,}"
    return f"{sizing.model}, {trained}; {prompts} prompts x {samples} samples, {length}, {cap}"


def assumed_words(sizing: Sizing) -> tuple[str, ...]:
    """Assumptions of a sizing, prices included."""
    prices = ", ".join(f"{one.device} {one.price}" for one in sizing.devices)
    return *sizing.assumptions, f"prices: {prices} (hardware.price_per_gpu_hour_usd)"


def unanswered(sizing: Sizing) -> str:
    """Why there is no cluster to take, in a few words."""
    if not any(one.sizes for one in sizing.devices):
        return "nothing fits"
    limit = "deadline" if sizing.deadline_s is not None else "budget"
    return f"no size keeps to the {limit} ({sizing.held})"


def recommendation(sizing: Sizing) -> str:
    """One sentence: which cluster to take and why."""
    one = next((one for one in sizing.devices if one.device == sizing.best), None)
    chosen = None if one is None else one.at(one.chosen)
    if one is None or chosen is None:
        reasons = "; ".join(f"{each.device}: {each.reason}" for each in sizing.devices)
        return f"{unanswered(sizing).capitalize()}: {reasons}."
    why = "the knee: beyond it a doubling of GPUs brings less than 1.4x"
    if sizing.deadline_s is not None:
        why = f"the cheapest that keeps to {sizing.deadline_s:g} s with 90 %"
    elif sizing.budget_usd is not None:
        why = f"the fastest within {sizing.budget_usd:g} USD a step"
    elif len(sizing.devices) > 1:
        why = "the cheapest step of all devices at their knees"
    step = f"{chosen.step_s.mean:.1f} s [{chosen.step_s.low:.1f}, {chosen.step_s.high:.1f}]"
    return f"Take {chosen.gpus:,} {one.device}: {step} and {fmt.fixed(chosen.usd_per_step, 2)} USD a step ({why})."


def _device(one: DeviceSize, style: Style) -> list[str]:
    lines = clusters_table(one).lines(style) if one.sizes else [style.bold(one.device)]
    return [*lines, *style.paragraphs([text for text in (one.reason, share_words(one)) if text])]


def clusters_table(one: DeviceSize) -> Table:
    """The clusters of a device, the fewest GPUs first."""
    note = "" if one.least is None else f"fits from {one.least:,} GPU{'s' if one.least > 1 else ''}"
    note += "; not measured" if one.backing else ""
    marks, rows = ((one.least, "least"), (one.knee, "knee"), (one.chosen, "take this")), []
    for size in one.sizes:
        named = ", ".join(word for gpus, word in marks if gpus == size.gpus)
        used = fmt.percent(max(size.generation_share, size.training_share))
        gain = "" if size.speedup is None else f"{size.speedup:.2f}x"
        cost = fmt.fixed(size.usd_per_step, 2)
        shown = f"{size.gpus:,}", named, size.layout, used, cost, gain, cell(size.step_s, 1)
        rows.append(Row(shown, strong=size.gpus == one.chosen))
    heads = ("GPUs", "", "layout", "memory", "USD/step", "over half", "step (s)")
    return Table(one.device, note, heads, rows, "><<>>>>")


def share_words(one: DeviceSize) -> str:
    """Text of the memory shares that the engine may and must take; empty where nothing fits."""
    share = one.memory_share
    if share is None:
        return ""
    return (
        f"engine.gpu_memory_utilization: at most {share.safe:.2f} while the trainer's weights lie beside the engine, "
        f"{share.after_offload:.2f} where the cache is taken after they are gone, at least {share.least:.2f} "
        f"(sure by {fmt.percent(share.fit_probability)})"
    )
