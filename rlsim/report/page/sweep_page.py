"""What the page says of a sweep: heat maps over two axes, intervals over one, every cell."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import TABLE_BYTES
from rlsim.report import format as fmt
from rlsim.report.page.charts import Words, forest
from rlsim.report.page.folder import needed_file
from rlsim.report.page.markup import Markup, joined, tag
from rlsim.report.page.page import KeyFigure, Part, Section, numbered, table
from rlsim.report.page.plots import heat_map
from rlsim.report.page.reading import parsed_interval, parsed_number, read_csv
from rlsim.results import Interval

Line = dict[str, str]
STEP = ("step_s", "step_low_s", "step_high_s")
SPEEDUP = ("end_to_end_speedup", "end_to_end_speedup_low", "end_to_end_speedup_high")
MAPS = (
    ("end_to_end_speedup", "Step, speed-up by speculation", 1.0, False),
    ("rollout_speedup", "Rollout, speed-up by speculation", 1.0, False),
    ("step_s", "Step time (s)", None, True),
)
"""Column, heading, value without tint, and whether less is better."""
MOST_VALUES, MOST_CELLS, FEW_CELLS = 40, 24, 10
"""Values along an axis of a heat map; rows of the chart of intervals, alone and beside heat maps."""


def sweep_part(folder: Path, notes: list[str]) -> Part:
    """The sweep in ``folder``."""
    lines = read_csv(needed_file(folder, "results.csv"), TABLE_BYTES)
    heads = list(lines[0]) if lines else []
    if "status" not in heads or "step_s" not in heads or not heads.index("status"):
        raise InputError("results.csv: is no sweep of rlsim: it needs columns of axes, then status, and step_s")
    axes = heads[: heads.index("status")]
    done = [line for line in lines if line["status"] == "ok" and parsed_number(line["step_s"]) is not None]
    if not done:
        raise InputError("results.csv: holds no cell that could run")
    best = min(done, key=lambda line: parsed_number(line["step_s"]) or 0.0)
    took = parsed_interval(best, STEP) or Interval(0.0, 0.0, 0.0)
    where = ", ".join(f"{axis} = {best[axis]}" for axis in axes)
    figures = [
        KeyFigure("Shortest step", fmt.seconds(took.mean), f"{fmt.seconds(took.low)} to {fmt.seconds(took.high)}"),
        KeyFigure("Cells", f"{len(lines):,}", f"{len(lines) - len(done):,} cannot run"),
    ]
    gain = parsed_interval(best, SPEEDUP)
    if gain is not None:
        figures.insert(
            1, KeyFigure("Its speed-up by speculation", f"{gain.mean:.2f}x", f"{gain.low:.2f}x to {gain.high:.2f}x")
        )
    maps = _heat_maps(axes, done)
    sections = [
        Section(
            "sweep-cells", "Cells", joined((*maps, _intervals(axes, done, lines, FEW_CELLS if maps else MOST_CELLS)))
        ),
        *_reasons(lines),
    ]
    names = " and ".join(axis.rpartition(".")[2] for axis in axes)
    headline = f"Of {len(lines):,} cells the shortest step takes {fmt.seconds(took.mean)}, at {where}."
    return Part("sweep", f"Sweep over {names}", headline, figures, sections)


def _heat_maps(axes: Sequence[str], done: Sequence[Line]) -> list[Markup]:
    """Maps over the first two axes that vary; further ones are fixed as in the first cell."""
    varied = [axis for axis in axes if len({line[axis] for line in done}) > 1]
    if len(varied) < 2:
        return []
    x, y, *others = sorted(varied, key=lambda axis: -len({line[axis] for line in done}))
    if len({line[y] for line in done}) < len({line[x] for line in done}):
        x, y = y, x
    rows = [line for line in done if all(line[axis] == done[0][axis] for axis in others)]
    across, up = (_values(rows, axis)[:MOST_VALUES] for axis in (x, y))
    fixed = "".join(f"; {axis} = {done[0][axis]}" for axis in others)
    maps = []
    for column, title, middle, smaller in MAPS:
        values = {
            (across.index(line[x]), up.index(line[y])): value
            for line in rows
            if line[x] in across and line[y] in up and (value := parsed_number(line.get(column, ""))) is not None
        }
        if values:
            told = f"{title} over {x} (columns) and {y} (rows){fixed}. Bluer is better, redder worse; · cannot run."
            corner = y.rpartition(".")[2].replace("_", " ")
            made = heat_map(told, across, up, values, corner, middle=middle, smaller_is_better=smaller)
            maps.append(tag("figure", tag("figcaption", title), made))
    return maps


def _values(rows: Sequence[Line], axis: str) -> list[str]:
    """Values of an axis, numbers in their order, else as they come."""
    found = list(dict.fromkeys(line[axis] for line in rows))
    numbers = [parsed_number(value) for value in found]
    if any(number is None for number in numbers):
        return found
    return [value for _, value in sorted(zip(numbers, found, strict=True), key=lambda pair: pair[0] or 0.0)]


def _intervals(axes: Sequence[str], done: Sequence[Line], lines: Sequence[Line], most: int) -> Markup:
    named = [(", ".join(f"{axis.rpartition('.')[2]} {line[axis]}" for axis in axes), line) for line in done]
    timed = [(name, value) for name, line in named if (value := parsed_interval(line, STEP)) is not None]
    if len(timed) > most:
        timed = sorted(timed, key=lambda each: each[1].mean)[:most]
    rows = [(name, fmt.seconds(value.mean), value) for name, value in timed]
    words = Words(
        "sweep-steps",
        "Step time of the cells" if len(done) <= most else f"Step time of the {most} fastest cells",
        f"{len(rows)} cells from {min(r[2].mean for r in rows):.1f} to {max(r[2].mean for r in rows):.1f} s.",
        "Seconds, mean and 90 % interval.",
    )
    columns = [*axes, "status", "limit", "step_s", "rollout_speedup", "end_to_end_speedup", "cost_per_step_usd"]
    shown = [name for name in columns if name in lines[0]]
    cells = [[_printed(line[name]) for name in shown] for line in lines]
    text = len(list(itertools.takewhile(lambda name: name not in STEP, shown)))
    return forest(words, rows, table(shown, cells, "Every cell; results.csv has all columns.", text), unit="s")


def _printed(text: str) -> str:
    number = parsed_number(text)
    return text[:80] if number is None else fmt.number(number)


def _reasons(lines: Sequence[Line]) -> list[Section]:
    reasons = [line.get("reason", "")[:300] for line in lines if line["status"] != "ok"]
    entries = [f"{count:,} {'cell' if count == 1 else 'cells'}: {reason}" for reason, count in Counter(reasons).items()]
    return [Section("sweep-reasons", "Cells that cannot run", numbered(entries))] if entries else []
