"""Pictures and the table of docs/trust.md: errors in the joint fit and of what was left out of it, side by side.

``python -m research.leaving_out [FOLDER]`` draws left_out_iterations.png, ..._training.png, ..._transfers.png and
..._steps.png into FOLDER (default docs) and writes the ten worst groups into trust.md there, with the reasons of
research/left_out_reasons.yaml. Everything comes from the shipped evidence (``rlsim validate cross`` scores the same).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from research.markdown import signed, table
from rlsim.evidence.cross import GROUPINGS, Fit
from rlsim.evidence.hierarchy import Design, solve
from rlsim.evidence.left_out import software
from rlsim.files.yaml import read_yaml
from rlsim.projection.uncertainty.evidence import Evidence, load_evidence
from rlsim.report.figures.style import BACKGROUND, DPI, GREY, INK, LINE_COLORS, heading, picture_style, save_picture
from rlsim.report.format import NAMES, percent
from rlsim.units import BoolArray, FloatArray

PICTURES = {"iteration": "iterations", "training": "training", "transfer": "transfers", "step": "steps"}
"""Kinds of measured times and the ends of their pictures' names."""
KNOWN = "in the fit"
OWN = ("engine setup", "rollout of run", "training of run", "transfer of run", "draft length", "speculation")
"""Families whose members one layout has for itself: no other scenario is predicted with them, nor is a row here."""
LEAST_ROWS, LISTED = 3, 10
"""Rows of a group that is listed at least, and groups that are."""
REASONS = Path(__file__).with_name("left_out_reasons.yaml")
UNKNOWN = "not known"
BEGIN, END = "<!-- worst groups: written by python -m research.leaving_out -->", "<!-- end of worst groups -->"
TICKS = (0.4, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5)
MOST_DOTS = 120
WITHOUT = {
    "release": "without its release", "device": "without its GPU", "model": "without its model",
    "framework": "without its engine\nor framework", "newest": "without all newest\nreleases",
    "runs": "without a tenth of all",
}  # fmt: skip
"""What was left out, beside a strip."""


@dataclass(frozen=True)
class Errors:
    """ln(predicted / measured) of every row, by what was left out of its fit (KNOWN: nothing); NaN without a group."""

    rows: tuple[Evidence, ...]
    of: Mapping[str, FloatArray]

    def kind(self, kind: str) -> dict[str, FloatArray]:
        """Errors of the rows of a kind, without groupings that have none."""
        mine = np.array([row.kind == kind for row in self.rows])
        found = {name: values[mine & ~np.isnan(values)] for name, values in self.of.items()}
        return {name: values for name, values in found.items() if values.size}


@dataclass(frozen=True)
class WorstGroup:
    """Rows of one kind, software, model, device and precision or method: their number and median errors as shares."""

    name: str
    rows: int
    known: float
    left_out: float


def errors_of(fit: Fit) -> Errors:
    """Errors in the fit, and with each grouping's groups left out in turn."""
    design, every = fit.design, np.ones(len(fit.rows), dtype=bool)
    shared = np.array([family not in OWN for family in design.families_of])
    of = {KNOWN: _middle(fit, every, every, shared) - design.log_error}
    for grouping in GROUPINGS:
        names, middle = fit.names(grouping), np.full(len(fit.rows), np.nan)
        for name in sorted(set(names.tolist()) - {""}):
            left_out = names == name
            middle[left_out] = _middle(fit, ~left_out, left_out, shared)
        of[grouping] = middle - design.log_error
    return Errors(tuple(fit.rows), of)


def _middle(fit: Fit, used: BoolArray, wanted: BoolArray, shared: BoolArray) -> FloatArray:
    """Expected ln(measured / predicted) of the rows ``wanted`` by the rows ``used`` and the columns ``shared``."""
    design: Design = fit.design
    mean = np.where(design.informed(used), solve(design, fit.spreads, fit.weights, used).mean, design.middle)
    return np.asarray(design.matrix[wanted][:, shared] @ mean[shared])


def worst_groups(errors: Errors) -> list[WorstGroup]:
    """The groups of rows with the largest median error where their model was left out."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(errors.rows):
        if row.kind in PICTURES:
            places[_name(row)].append(place)
    found = []
    for name, mine in places.items():
        left_out = errors.of["model"][mine]
        if len(mine) >= LEAST_ROWS and not np.isnan(left_out).any():
            found.append(WorstGroup(name, len(mine), _share(errors.of[KNOWN][mine]), _share(left_out)))
    return sorted(found, key=lambda group: -abs(np.log1p(group.left_out)))[:LISTED]


def _name(row: Evidence) -> str:
    about = row.about
    what = [software(row), *(str(about.get(key, "")) for key in ("model", "device"))]
    how = str(about.get("precision") or about.get("method") or "")
    return f"{row.kind}: {', '.join(part for part in (*what, how) if part)}".lower()


def _share(errors: FloatArray) -> float:
    return float(np.expm1(np.median(errors)))


def worst_table(groups: list[WorstGroup], reasons: Mapping[str, str]) -> str:
    """The Markdown table of ``groups``, with what is known of each."""
    rows = [
        (group.name, str(group.rows), signed(100 * group.known), signed(100 * group.left_out),
         reasons.get(group.name, UNKNOWN).strip())
        for group in groups
    ]  # fmt: skip
    return table(("group", "rows", "median error in the fit", "its model left out", "why"), rows)


def spread_picture(kind: str, errors: Mapping[str, FloatArray]) -> Figure:
    """Strips and boxes of predicted over measured of one kind of time: in the fit, and each grouping left out."""
    names, height = list(errors), 1.55 + 0.52 * len(errors)
    figure = Figure(figsize=(8.6, height), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0.2, 0.62 / height, 0.58, 1 - 1.45 / height))
    told = "dots: some of the times; box: half of them, bar: median, line: 90 %; what lies beyond stands at the edge"
    title = NAMES["times"][kind]
    heading(figure, f"{title[0].upper()}{title[1:]}: in the fit and left out of it", told)
    axes.axvspan(0.9, 1.1, color=BACKGROUND, linewidth=0)
    axes.axvline(1.0, color=GREY, linewidth=0.8)
    axes.set(xscale="log", xlim=(TICKS[0], TICKS[-1]), ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel("predicted / measured (grey: within 10 %)", fontsize=9)
    for place, name in enumerate(names):
        _strip(axes, place, errors[name], LINE_COLORS[0] if name == KNOWN else LINE_COLORS[1])
    axes.set_yticks(range(len(names)), [_title(name, errors[name].size) for name in names], fontsize=9)
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="x", labelsize=8)
    return figure


def _title(name: str, rows: int) -> str:
    return f"{name if name == KNOWN else WITHOUT[name]}\n({rows:,} times)"


def _strip(axes: Axes, place: int, errors: FloatArray, color: str) -> None:
    """One row: dots, box and the two figures that stand in the texts."""
    low, high = np.log(TICKS[0] * 1.02), np.log(TICKS[-1] / 1.02)
    rng = np.random.default_rng(0)
    dots = errors if errors.size <= MOST_DOTS else rng.choice(errors, MOST_DOTS, replace=False)
    jitter = rng.uniform(-0.3, 0.3, dots.size)
    axes.scatter(np.exp(np.clip(dots, low, high)), place + jitter, s=5, color=color, alpha=0.3, linewidths=0, zorder=2)
    ends = np.exp(np.clip(np.quantile(errors, (0.05, 0.25, 0.5, 0.75, 0.95)), low, high))
    axes.plot(ends[[0, 4]], [place, place], color=INK, linewidth=1.0, zorder=3)
    axes.barh(place, ends[3] - ends[1], 0.42, ends[1], facecolor="none", edgecolor=INK, linewidth=1.1, zorder=4)
    axes.plot([ends[2], ends[2]], [place - 0.21, place + 0.21], color=INK, linewidth=2.0, zorder=5)
    size = np.abs(np.expm1(errors))
    told = f"median {percent(float(np.median(size)), 1)}, p90 {percent(float(np.quantile(size, 0.9)), 0)}"
    axes.text(1.02, place, told, transform=axes.get_yaxis_transform(), va="center", fontsize=9)


def with_table(text: str, written: str) -> str:
    """``text`` with ``written`` between the marks of the table; ValueError without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the table: {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"


def main(folder: Path) -> None:
    errors = errors_of(Fit.of(load_evidence()))
    page = folder / "trust.md"
    text = with_table(page.read_text("utf-8"), worst_table(worst_groups(errors), read_yaml(REASONS)))
    with picture_style():
        for kind, name in PICTURES.items():
            save_picture(spread_picture(kind, errors.kind(kind)), folder / f"left_out_{name}.png")
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
