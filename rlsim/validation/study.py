"""The published study of speculative decoding in RL (arXiv 2604.26779): its cells beside ours.

Batch and lengths of the study are unpublished; the scenarios qwen8b_rl_zero, qwen8b_rl_think and qwen8b_async_lag1
state what was assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlsim.files.reading import data_folder
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.results import Interval, Projection
from rlsim.validation.table import read_table
from rlsim.validation.validate import quantile_abs

NGRAM_DRAFT_LENGTH = 5
"""k of the study's n-gram runs is unpublished; 5 is the value of vLLM's own examples. Assumption."""
PHASES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "step_s")


@dataclass(frozen=True)
class PublishedFigure:
    """One published figure beside ours; ``group`` is the table it stands in, ``unit`` s or x (a ratio)."""

    group: str
    label: str
    unit: str
    measured: float
    predicted: Interval

    @property
    def error_pct(self) -> float:
        """100 (predicted / measured - 1)."""
        return 100 * (self.predicted.mean / self.measured - 1)

    @property
    def covered(self) -> bool:
        """Whether the published figure lies inside the 90 % interval."""
        return self.predicted.low <= self.measured <= self.predicted.high

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "group": self.group,
            "label": self.label,
            "unit": self.unit,
            "measured": self.measured,
            "predicted": self.predicted.as_dict(),
            "error_pct": float(f"{self.error_pct:.9g}"),
        }


def published_table(name: str) -> Path:
    """A table of published figures that comes with rlsim."""
    return data_folder("calibration") / "published" / name


def study(
    seed: int = 0, replications: int = 4, tick: Callable[[], object] = lambda: None
) -> tuple[PublishedFigure, ...]:
    """Every figure of the study: generation speedups, step times by phase, the asynchronous pair.

    tick: called after each simulation.
    """

    @cache
    def answer(scenario: str, *overrides: str) -> Projection:
        own = (f"simulation.seed={seed}", f"simulation.replications={replications}")
        found = project(load_scenario(scenario, [*own, *overrides]))
        tick()
        return found

    return (*_speedups(answer), *_step_times(answer), *_asynchronous(answer))


Answer = Callable[..., Projection]


def _speedups(answer: Answer) -> list[PublishedFigure]:
    out = []
    for record in read_table(published_table("study_speculation.csv"), ("workload", "generation_speedup")):
        cell = record.cells
        projection = answer(f"qwen8b_{cell['workload']}", *_overrides(cell))
        k = cell["draft_length"] or f"{NGRAM_DRAFT_LENGTH} (assumed)"
        online = ", trained online" if cell["online_training"] == "true" else ""
        label = (
            f"{cell['workload']}: {cell['method']} {cell['draft']}{online}, k={k}, length {cell['acceptance_length']}"
        )
        measured = float(cell["generation_speedup"])
        out.append(
            PublishedFigure(f"generation speedup, {cell['table']}", label, "x", measured, projection.rollout_speedup)
        )
    return out


def _overrides(cell: Mapping[str, str]) -> list[str]:
    length = cell["draft_length"] or str(NGRAM_DRAFT_LENGTH)
    return [
        f"speculation.method={cell['method']}",
        f"speculation.draft_length={length}",
        f"speculation.acceptance_length={cell['acceptance_length']}",
        f"speculation.online_training={cell['online_training']}",
    ]


def _step_times(answer: Answer) -> list[PublishedFigure]:
    out = []
    for record in read_table(published_table("study_step_times.csv"), ("workload", "method", *PHASES)):
        cell = record.cells
        projection = answer(f"qwen8b_{cell['workload']}")
        arm = projection.baseline if cell["method"] == "none" else projection.candidate
        for phase in PHASES:
            found = arm.step_s if phase == "step_s" else arm.phases[phase]
            label = f"{cell['workload']} {cell['method']}: {phase.removesuffix('_s')}"
            out.append(PublishedFigure("step times", label, "s", float(cell[phase]), found))
    return out


def _asynchronous(answer: Answer) -> list[PublishedFigure]:
    out = []
    for record in read_table(published_table("study_async.csv"), ("method", "exposed_generation_s", "step_s")):
        cell = record.cells
        projection = answer("qwen8b_async_lag1")
        arm = projection.baseline if cell["method"] == "none" else projection.candidate
        pairs = {
            "step": (arm.step_s, "step_s"),
            "exposed generation": (arm.phases["exposed_generation_s"], "exposed_generation_s"),
        }
        for name, (found, column) in pairs.items():
            out.append(
                PublishedFigure("asynchronous, lag 1", f"{cell['method']}: {name}", "s", float(cell[column]), found)
            )
    return out


def median_error(cells: tuple[PublishedFigure, ...], group: str) -> float | None:
    """Median absolute error in per cent of the groups that start with ``group``."""
    return quantile_abs([cell.error_pct for cell in cells if cell.group.startswith(group)], 0.5)
