"""What the page says of a whole run: totals, how its steps evolve, where the time goes."""

from __future__ import annotations

from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import TABLE_BYTES
from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart, forest
from rlsim.report.page.folder import needed_file
from rlsim.report.page.markup import Markup, joined
from rlsim.report.page.page import Cell, KeyFigure, Part, Section, assumptions_section, interval_text, table
from rlsim.report.page.plots import Line, line_plot
from rlsim.report.page.projection_data import where, with_scenario
from rlsim.report.text.run import LABELS, unit_of
from rlsim.results import Interval
from rlsim.results.run import Run, RunSide
from rlsim.units import JOULES_PER_KWH

PANELS = (
    ("step_s", "Step time", "seconds, with all that a step lost"),
    ("exposed_generation_s", "Exposed generation", "seconds that the trainer waits"),
    ("response_tokens", "Response length", "tokens, mean of a step"),
    ("acceptance_length", "Acceptance length", "tokens per verification"),
    ("staleness", "Age of the samples", "steps, mean of a step"),
)


def run_part(folder: Path, notes: list[str]) -> Part:
    """The run in ``folder``; ``notes`` takes what had to be left out."""
    run = with_scenario(Run.read(needed_file(folder, "run.json"), TABLE_BYTES), folder, notes)
    sides = {} if run.baseline is None else {"baseline": run.baseline}
    sides["candidate"] = run.candidate
    if min(side.seconds.mean for side in sides.values()) <= 0:
        raise InputError("run.json: 'seconds' must have a mean above 0")
    sections = [
        Section("run-totals", "The run", _totals(sides)),
        Section("run-course", "How the steps evolve", _course(sides)),
        Section("run-time", "Where the time goes", _ledger(sides)),
        *assumptions_section("run", run.assumptions, run.warnings),
    ]
    given = (run.model, where(run), f"seed {run.seed}", f"replications {run.replications}", f"digest {run.digest}")
    headline = _headline(run.num_steps, sides, run.speedup)
    lines = [line for line in (run.question, ", ".join(filter(None, given))) if line]
    return Part("run", run.scenario, headline, _figures(sides, run.speedup), sections, lines)


def _unit(sides: dict[str, RunSide]) -> tuple[float, str]:
    return unit_of(max(side.seconds.mean for side in sides.values()))


def _in(value: Interval, unit: float) -> Interval:
    return Interval(value.mean / unit, value.low / unit, value.high / unit)


def _shown(value: Interval) -> str:
    places = fmt.decimals_for(value.mean) - 1
    return f"{fmt.fixed(value.mean, places)} [{fmt.fixed(value.low, places)}, {fmt.fixed(value.high, places)}]"


def _headline(count: int, sides: dict[str, RunSide], speedup: Interval | None) -> str:
    scale, unit = _unit(sides)
    steps = f"{count:,} {'step takes' if count == 1 else 'steps take'}"
    took = f"{steps} {_shown(_in(sides['candidate'].seconds, scale))} {unit}"
    if speedup is None or "baseline" not in sides:
        return f"{took}."
    return f"{took} in place of {_shown(_in(sides['baseline'].seconds, scale))} {unit}: {fmt.times(speedup)}."


def _figures(sides: dict[str, RunSide], speedup: Interval | None) -> list[KeyFigure]:
    scale, unit = _unit(sides)
    side = sides["candidate"]
    cost, energy = side.cost_usd, side.energy_at_most_j
    figures = [_ranged("The run takes", _in(side.seconds, scale), unit)]
    if speedup is not None:
        ends = f"{speedup.low:.2f}x to {speedup.high:.2f}x"
        figures.append(KeyFigure("Speed-up", f"{speedup.mean:.2f}x", ends))
    return [
        *figures,
        _ranged("Cost", cost, "USD"),
        _ranged("Energy, at most", _in(energy, 1e3 * JOULES_PER_KWH), "MWh"),
        KeyFigure("GPU seconds at work", fmt.percent(side.busy_share)),
    ]


def _ranged(name: str, value: Interval, unit: str) -> KeyFigure:
    places = max(0, fmt.decimals_for(value.mean) - 1)
    low, high = fmt.fixed(value.low, places), fmt.fixed(value.high, places)
    return KeyFigure(name, f"{fmt.fixed(value.mean, places)} {unit}", f"{low} to {high} {unit}")


def _totals(sides: dict[str, RunSide]) -> Markup:
    scale, unit = _unit(sides)
    rows = [
        (name, f"{_shown(_in(side.seconds, scale))} {unit}", _in(side.seconds, scale)) for name, side in sides.items()
    ]
    words = Words(
        "run-duration",
        "Duration of the run",
        "; ".join(f"{name} {shown}" for name, shown, _ in rows),
        "Mean and 90 % interval: the model's error, and what chance brings.",
    )
    numbers = table(
        ("", *sides),
        [
            (f"time ({unit})", *(_in(side.seconds, scale) for side in sides.values())),
            ("cost (USD)", *(side.cost_usd for side in sides.values())),
            *(
                (label, *(fmt.number(getattr(side, key)) for side in sides.values()))
                for key, label in (
                    ("samples", "samples trained on"),
                    ("generated_tokens", "tokens generated"),
                    ("trained_tokens", "tokens trained on"),
                )
            ),
        ],
        "Totals of the run.",
    )
    return forest(words, rows, numbers, unit=unit)


def _course(sides: dict[str, RunSide]) -> Markup:
    charts = []
    for column, title, what in PANELS:
        lines = [
            Line(
                name,
                "baseline" if name == "baseline" else "candidate",
                list(side.steps["step"]),
                list(side.steps[column]),
                dash,
            )
            for dash, (name, side) in enumerate(reversed(sides.items()))
            if column in side.steps
        ]
        values = [value for line in lines for value in line.y]
        if not values or (min(values) == max(values) and column != "step_s"):
            continue
        words = Words(
            f"run-{column.replace('_', '-')}",
            title,
            "; ".join(f"{line.name}: {fmt.number(min(line.y))} to {fmt.number(max(line.y))}" for line in lines),
        )
        least = 1.0 if column == "acceptance_length" else 0.0
        charts.append(line_plot(words, lines, _parts(sides, column, title), "training step", what, least))
    return joined(charts)


def _tone(name: str) -> str:
    return "baseline" if name == "baseline" else "candidate"


def _parts(sides: dict[str, RunSide], column: str, title: str) -> Markup:
    """Means of a column over the parts of the run that the file names."""
    rows = []
    for name, side in sides.items():
        for part in side.parts:
            shown = interval_text(part.step_s) if column == "step_s" else fmt.number(getattr(part, column))
            rows.append((f"{name}, steps {part.first:,} to {part.last:,}", shown))
    return table(("", title.lower()), rows, "Means over parts of the run; steps.csv has every step.")


def _ledger(sides: dict[str, RunSide]) -> Markup:
    scale, unit = _unit(sides)
    found = {name: side.ledger for name, side in sides.items()}
    nothing = Interval(0.0, 0.0, 0.0)
    causes = [cause for cause in LABELS if any(cause in one for one in found.values())]
    rows: list[Row] = []
    cells: list[list[Cell]] = []
    for cause in causes:
        taken = {name: one[cause].seconds if cause in one else nothing for name, one in found.items()}
        bars = [
            Bar(
                [Segment(0, taken[name].mean / scale, _tone(name), name)],
                _in(taken[name], scale),
            )
            for name in sides
        ]
        shares = " → ".join(fmt.percent(taken[name].mean / side.seconds.mean, 1) for name, side in sides.items())
        rows.append(Row(LABELS[cause], shares, bars))
        events = [one[cause].events if cause in one else 0.0 for one in found.values()]
        spent = [interval_text(_in(each, scale)) for each in taken.values()]
        cells.append([LABELS[cause], *spent, *map(fmt.number, events)])
    words = Words(
        "run-ledger",
        "What the seconds of the run go to",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        f"{unit.capitalize()}, mean and 90 % interval of such runs; per cent of the run.",
    )
    most = max((bar.whisker.high for row in rows for bar in row.bars if bar.whisker), default=1.0)
    keys = {"baseline": "baseline", "candidate": "candidate"} if len(sides) > 1 else None
    heads = ("cause", *sides, *(f"{name}, times" for name in sides))
    return bar_chart(words, rows, Scale(0, most or 1.0), table(heads, cells, f"In {unit}."), keys=keys, unit=unit)
