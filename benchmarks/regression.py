"""Calibrated predictions beside their budgets, exit status 1 where one is exceeded: `python benchmarks/regression.py`.

Every table of measured figures that comes with rlsim is predicted anew and scored by kind and group; so are the runs,
the 8B study and the 235B projections of arXiv 2604.26779. ``benchmarks/budgets.yaml`` says what each figure may be.

    python benchmarks/regression.py [--only NAME...] [--propose]

--propose prints the figures as budgets with a margin, for a new group or after a fit made anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import verl_runs
import yaml

from rlsim.evidence.compare import validate_table
from rlsim.evidence.published import published_table, study
from rlsim.evidence.tables import read_table
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.projection.variant import simulate_variant
from rlsim.results.validation import Score

BUDGETS = Path(__file__).with_name("budgets.yaml")
TABLES = {
    "RL steps": "rl_steps.csv",
    "iterations": "iterations.csv",
    "training": "training_steps.csv",
    "training of users": "training_users.csv",
    "memory": "memory/rows.csv",
    "memory peaks": "memory/peaks.csv",
    "transfers": "refit_more.csv",
    "speculation": "speculation.csv",
}
LEAST_ROWS = 12
"""Groups with fewer rows count in the whole alone."""
MARGINS = {"median": (1.08, 0.2), "p90": (1.1, 0.5), "half_width": (1.05, 0.0), "bias": (1.0, 1.0), "error": (1.0, 1.5)}
"""Factor on the size of a figure and what is added to it, where it is proposed as a budget."""
COVERAGE_SPAN = 3.0
"""What a proposed coverage allows either way, in per cent."""
GROUPS = ("family: ", "device: ", "precision: ", "release: ", "plain, ", "speculative")
"""Beginnings of the sets of rows that have a budget of their own."""

Figures = dict[str, float]


def scored(score: Score) -> Figures:
    """Figures of a score: errors, bias and coverage in per cent, the half width of intervals as a factor."""
    out = {"median": 100 * (score.median_abs_error or 0.0), "p90": 100 * (score.p90_abs_error or 0.0)}
    out["bias"] = 100 * (score.bias or 0.0)
    if score.coverage is not None and score.half_width is not None:
        out |= {"coverage": 100 * score.coverage, "half_width": score.half_width}
    return out


def of_table(name: str) -> Iterator[tuple[str, Figures]]:
    """Figures of all rows of a table and of its larger groups."""
    found = validate_table(published_table(TABLES[name]))
    yield f"{name}: all", scored(found.score)
    if found.ttft is not None and found.ttft.n:
        yield f"{name}: time to the first token", scored(found.ttft)
    if (lengths := found.draft_lengths) is not None:
        yield f"{name}: what the chosen draft length loses", {"error": 100 * (lengths.regret or 0.0)}
        yield f"{name}: wrong signs", {"error": 100 * (1 - (lengths.right_sign_share or 0.0))}
    steps = found.kind == "steps"
    groups = found.groups if steps else found.cuts
    for group, score in sorted(groups.items()):
        if LEAST_ROWS <= score.n < found.score.n and (group.startswith(GROUPS) or steps):
            yield f"{name}: {group}", scored(score)


def of_study() -> Iterator[tuple[str, Figures]]:
    """Figures of the 8B study by its tables."""
    cells = study()
    eagle = [cell for cell in cells if cell.group.startswith("generation speedup") and "eagle3" in cell.label]
    others = [cell for cell in cells if cell.group.startswith("generation speedup") and cell not in eagle]
    times = [cell for cell in cells if cell.group == "step times"]
    for name, members in (("EAGLE-3 speed-ups", eagle), ("n-gram speed-ups", others), ("step times", times)):
        yield f"8B study: {name}", scored(Score.of_errors([(cell.error_pct or 0.0) / 100 for cell in members]))
    for cell in cells:
        if cell.group.startswith("asynchronous") and cell.label.endswith("step"):
            yield f"8B study: asynchronous, {cell.label}", {"error": (cell.error_pct or 0.0)}


def of_projections() -> Iterator[tuple[str, Figures]]:
    """Errors of the projected speed-ups of a closed simulator."""
    for record in read_table(published_table("projections.csv"), ("scenario", "rollout_speedup")):
        cells = record.cells
        scenario = load_scenario(cells["scenario"], cells["overrides"].split())
        found, name = project(scenario), f"235B projections: {scenario.name} k={scenario.speculation.draft_length}"
        name += "" if scenario.speculation.draft_graph else ", drafts as released"
        pairs = {"rollout": found.rollout_speedup, "end_to_end": found.end_to_end_speedup}
        for what, speedup in pairs.items():
            yield f"{name}, {what}", {"error": 100 * (speedup.mean / float(cells[f"{what}_speedup"]) - 1)}


def of_runs() -> Iterator[tuple[str, Figures]]:
    """Errors of the phases of measured runs with a scenario of their own: of the median and the mean of their steps.

    Steps that wait for stragglers now and then have means far above their medians, which say different things.
    """
    for record in read_table(published_table("runs.csv"), ("id", "scenario", "step_median_s")):
        cells = record.cells
        run = simulate_variant(load_scenario(cells["scenario"], cells["overrides"].split()))
        steps = [step for replication in run.steps for step in replication]
        for phase in ("step", "train", "exposed_generation", "refit"):
            drawn = [step.seconds if phase == "step" else step.phases[f"{phase}_s"] for step in steps]
            for name, centre in (("median", np.median), ("mean", np.mean)):
                error = 100 * (float(centre(drawn)) / float(cells[f"{phase}_{name}_s"]) - 1)
                yield f"{cells['id']}: {phase}, {name}", {"error": error}


def of_verl() -> Iterator[tuple[str, Figures]]:
    """Errors of the steps and updates of verl's six runs, under one scenario."""
    base = load_scenario(verl_runs.SCENARIO)
    for run in verl_runs.measured_runs():
        found, times = verl_runs.predicted(run, base), run.updates(base)
        pairs = {"step": (found.step_s, run.step_s), "train": (found.phases["train_s"], run.phases["train_s"])}
        for what, (predicted, measured) in pairs.items():
            yield f"{run.name}: {what}", {"error": 100 * (times * predicted.mean / measured - 1)}


SOURCES: Mapping[str, Callable[[], Iterator[tuple[str, Figures]]]] = {
    **{name: (lambda name=name: of_table(name)) for name in TABLES},  # type: ignore[misc]
    "8B study": of_study,
    "235B projections": of_projections,
    "runs": of_runs,
    "verl": of_verl,
}


def proposed(figures: Figures) -> dict[str, float | list[float]]:
    """Budgets that ``figures`` just keep, with a margin."""
    out: dict[str, float | list[float]] = {}
    for name, value in figures.items():
        if name == "coverage":
            out[name] = [round(value - COVERAGE_SPAN, 1), round(min(value + COVERAGE_SPAN, 100.0), 1)]
        else:
            factor, more = MARGINS[name]
            out[name] = round(abs(value) * factor + more, 2 if name == "half_width" else 1)
    return out


def exceeded(figures: Figures, budget: Mapping[str, float | Sequence[float]]) -> list[str]:
    """What of ``figures`` lies outside of its budget, and figures without one.

    budget: the largest size of each figure, or its least and largest value.
    """
    out = [f"{name} has no budget" for name in figures.keys() - budget.keys()]
    for name, bound in budget.items():
        if name not in figures:
            out.append(f"{name} is not there any more")
            continue
        low, high = bound if isinstance(bound, Sequence) else (-bound, bound)
        if not low <= figures[name] <= high:
            out.append(f"{name} {figures[name]:.2f} is not within {low:g} and {high:g}")
    return sorted(out)


def judged(
    found: Mapping[str, Figures], budgets: Mapping[str, Mapping[str, float]], whole: bool
) -> dict[str, list[str]]:
    """Each name with what is wrong with it. whole: whether a budget without a figure is wrong too."""
    out = {
        name: exceeded(figures, budgets[name]) if name in budgets else ["no budget"] for name, figures in found.items()
    }
    return out | {name: ["is not predicted any more"] for name in budgets if whole and name not in found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every figure beside its budget. Exit status 1 where one is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--propose", action="store_true")
    given = parser.parse_args(arguments)
    found = {name: figures for source in given.only for name, figures in SOURCES[source]()}
    if given.propose:
        for name, figures in found.items():
            print(f"  {json.dumps(name)}: {json.dumps(proposed(figures)).replace(chr(34), '')}")
        return 0
    budgets = yaml.safe_load(BUDGETS.read_text(encoding="utf-8"))["budgets"]
    wrong = judged(found, budgets, len(given.only) == len(SOURCES))
    for name, reasons in wrong.items():
        told = ", ".join(f"{figure} {value:.2f}" for figure, value in found.get(name, {}).items())
        print(f"{'EXCEEDED' if reasons else 'ok':8} {name}: {told}{'  <- ' if reasons else ''}{'; '.join(reasons)}")
    count = sum(bool(reasons) for reasons in wrong.values())
    print(f"{len(wrong)} groups of figures, {count} outside of their budgets (benchmarks/budgets.yaml)")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
