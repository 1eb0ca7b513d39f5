"""What the page says of a plan: the best one, the way to it, its rivals, time against cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import TABLE_BYTES
from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart, forest
from rlsim.report.page.folder import file_in, needed_file
from rlsim.report.page.markup import Markup, joined, tag
from rlsim.report.page.page import KeyFigure, Part, Section, table
from rlsim.report.page.plots import Point, scatter
from rlsim.report.page.reading import Node, parsed_interval, parsed_number, read_csv, read_json
from rlsim.results import Interval

SCHEMA = "rlsim.plan/2"
STEP = ("step_s", "step_low_s", "step_high_s")
COLUMNS = ("step_s", "step_low_s", "step_high_s", "step_p90_s", "cost_per_step_usd", "expected_regret")
MOST_POINTS = 300


def plan_part(folder: Path, notes: list[str]) -> Part:
    """The plan in ``folder``; ``notes`` takes what is wrong with ranked.csv, which the page can do without."""
    root = read_json(needed_file(folder, "plan.json"), TABLE_BYTES)
    root.check_schema(SCHEMA)
    best = root.at("best")
    name, step = best.at("plan").text(), _interval(best)
    measure = root.at("objective").text().replace("_", " ")
    statistic = root.at("statistic").text()
    value = fmt.number(root.at("objective_value").number())
    headline = f"Best by {measure} ({statistic}): {name}. A step takes {fmt.seconds(step.mean)}"
    current = root.get("current")
    if current is not None:
        headline += f" in place of {fmt.seconds(current.at('step_s').number())} as the scenario is"
    figures = [
        KeyFigure("A step takes", fmt.seconds(step.mean), f"{fmt.seconds(step.low)} to {fmt.seconds(step.high)}"),
        KeyFigure(f"{measure.capitalize()}, {statistic}", value),
        KeyFigure("Cost per step", f"{fmt.number(best.at('cost_per_step_usd').number())} USD"),
    ]
    beats = best.number_at("beats_current")
    if beats is not None:
        figures.append(KeyFigure("Beats the scenario as it is", fmt.percent(beats), "of the draws"))
    counts = [f"{root.at(key).integer():,} {key}" for key in ("considered", "configurations", "simulated")]
    about = [f"Limited by {best.text_at('limit')}.", f"Combinations: {', '.join(counts)}."]
    ranked = _ranked(folder, notes)
    sections = [
        Section("plan-way", "The way there", joined((_waterfall(root.at("waterfall").elements()), _constraints(root)))),
        Section("plan-rivals", "Against its rivals", _against(root.at("against").elements())),
        Section("plan-plans", "Plans", joined((_pareto(root, ranked), _near(root.at("near").elements(), ranked)))),
    ]
    return Part("plan", root.at("scenario").text(), f"{headline}.", figures, sections, about)


def _interval(row: Node) -> Interval:
    mean = row.at(STEP[0]).number()
    low, high = (row.number_at(key) for key in STEP[1:])
    return Interval(mean, mean if low is None else low, mean if high is None else high)


def _ranked(folder: Path, notes: list[str]) -> list[dict[str, str]]:
    try:
        path = file_in(folder, "ranked.csv")
        rows = [] if path is None else read_csv(path, TABLE_BYTES)
        return [row for row in rows if "plan" in row and parsed_interval(row, STEP) is not None]
    except InputError as error:
        notes.append(str(error))
        return []


def _waterfall(changes: Sequence[Node]) -> Markup:
    steps = [(one.at("what").text(), one.at("step_s").number()) for one in changes]
    if not steps:
        return joined(())
    rows = [Row(steps[0][0], fmt.seconds(steps[0][1]), [Bar([Segment(0, steps[0][1], "baseline", steps[0][0])])])]
    for (_, before), (what, after) in itertools.pairwise(steps):
        tone = "measured" if after <= before else "series1"
        change = f"{after - before:+.2f} s"
        rows.append(Row(what, change, [Bar([Segment(after, before, tone, change)] if after != before else [])]))
    rows.append(
        Row("best plan", fmt.seconds(steps[-1][1]), [Bar([Segment(0, steps[-1][1], "candidate", "best plan")])])
    )
    words = Words(
        "plan-waterfall",
        "From the scenario as it is to the best plan",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Seconds per step; each change comes on top of those above it.",
    )
    numbers = table(("stage", "step (s)"), [(what, f"{s:.2f}") for what, s in steps], "Step after each stage.")
    return bar_chart(words, rows, Scale(0, max(s for _, s in steps) or 1.0), numbers, unit="s")


def _constraints(root: Node) -> Markup:
    rows = []
    for one in root.at("constraints").elements():
        kept = one.number_at("probability")
        numbers = (fmt.number(one.at(key).number()) for key in ("limit", "value"))
        rows.append(
            (one.at("constraint").text(), one.at("unit").text(), *numbers, "-" if kept is None else fmt.percent(kept))
        )
    if not rows:
        return joined(())
    heads = ("constraint", "unit", "at most", "the plan takes", "kept with probability")
    return joined((tag("h3", "How it keeps the constraints"), table(heads, rows, "Constraints of the best plan.", 2)))


def _against(rivals: Sequence[Node]) -> Markup:
    found = [(one.at("rival").text(), one.at("wins").number(), one.at("ratio").interval()) for one in rivals]
    if not found:
        return tag("p", "It has no rivals.", class_="dim")
    rows = [(name, f"wins {fmt.percent(wins)}", ratio) for name, wins, ratio in found[:40]]
    words = Words(
        "plan-against",
        "How much better it is than each rival",
        "; ".join(f"{name}: {wins}, {fmt.times(ratio)}" for name, wins, ratio in rows),
        "The rival's measure over the plan's, mean and 90 % interval over common draws; the dashed line is a tie.",
    )
    cells = [(name, fmt.percent(wins), ratio) for name, wins, ratio in found]
    return forest(words, rows, table(("rival", "wins", "ratio"), cells, "The best plan against others."), rule=1.0)


def _pareto(root: Node, ranked: Sequence[dict[str, str]]) -> Markup:
    best = root.at("best").at("plan").text()
    front = {row.at("plan").text() for row in root.at("pareto").elements()}
    told = [(row.at("plan").text(), row.at("cost_per_step_usd").number(), _interval(row).mean)
            for key in ("by_group", "near", "pareto") for row in root.at(key).elements()]  # fmt: skip
    for row in ranked[:MOST_POINTS]:
        cost, step = parsed_number(row.get("cost_per_step_usd", "")), parsed_number(row["step_s"])
        if cost is not None and step is not None:
            told.append((row["plan"], cost, step))
    unique = {name: (cost, step) for name, cost, step in told}
    points = [
        Point(
            cost, Interval(step, step, step), f"{name}: {step:.2f} s, {cost:.4g} USD", "" if name in front else "hollow"
        )
        for name, (cost, step) in sorted(unique.items(), key=lambda each: each[0] in front)
    ]
    if best in unique:
        cost, step = unique[best]
        points.append(Point(cost, Interval(step, step, step), f"best: {best}", "best"))
    words = Words(
        "plan-pareto",
        "Step time against cost",
        f"{len(unique)} plans; on the front of step time and cost: {', '.join(sorted(front))[:300]}.",
        "Filled: no plan is both faster and cheaper; ringed: the best by the objective.",
    )
    cells = [(name, f"{step:.2f}", fmt.number(cost)) for name, (cost, step) in unique.items()]
    numbers = table(("plan", "step (s)", "USD per step"), cells, "Plans drawn.")
    return scatter(words, points, numbers, ("USD per step", "step time (s)"))


def _near(near: Sequence[Node], ranked: Sequence[dict[str, str]]) -> Markup:
    shown = [(row.at("plan").text(), _interval(row)) for row in near[:20]]
    if not shown:
        return joined(())
    words = Words(
        "plan-near",
        "The best plan and those nearly as good",
        "; ".join(f"{name}: {fmt.seconds(step.mean)}" for name, step in shown),
        "Seconds per step, mean and 90 % interval.",
    )
    columns = [name for name in COLUMNS if ranked and name in ranked[0]]
    cells = [(row["plan"][:200], *(_printed(row[name]) for name in columns)) for row in ranked]
    numbers = table(("plan", *columns), cells, "Plans by rank; ranked.csv has all columns.")
    return forest(words, [(name, fmt.seconds(step.mean), step) for name, step in shown], numbers, unit="s")


def _printed(text: str) -> str:
    value = parsed_number(text)
    return "-" if value is None else fmt.number(value)
