"""verl's six published runs beside their predictions: ``python benchmarks/verl_runs.py [--json] [--fit]``.

Qwen2.5-Math-7B with DAPO on 32, 64 and 128 H20, colocated and fully asynchronous (calibration/published/verl_runs.csv).
One scenario, ``verl_dapo_7b``, holds for all but their cluster and the order of phases, with one mean length, since
none is published. ``--fit`` finds that mean anew: the least squares of ln(predicted / measured) of the six steps.
Colocated on 32 GPUs counts over its first 200 steps: the run slows down to twice as long afterwards, and no length is
told; its phases are those of all 400 steps times the share of these steps.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.optimize import minimize_scalar

from rlsim.evidence.published import published_table
from rlsim.evidence.tables import measured_value, read_table
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.results import Variant
from rlsim.schema.scenario import Scenario

SCENARIO = "verl_dapo_7b"
MEAN_KEY = "workload.response_tokens.mean_tokens"
FIRST_200_STEPS_S = {"colocated_32": 498.9}
"""Mean of steps 1 to 200 from the cumulative times of docs/advance/fully_async.md at 1dda039b9, where a run drifts."""
COLUMNS = {"generation_s": "generation_s", "logprob_s": "old_logprob_s", "train_s": "train_s"}
TIMED = {"generation_s": ("generation_s", "data_s"), "logprob_s": ("logprob_s",), "train_s": ("train_s",)}
"""Our phases in each of theirs: the driver's timer of generation ends when it holds the padded batch."""


@dataclass(frozen=True)
class MeasuredRun:
    """A published run. phases: its seconds by our names."""

    name: str
    gpus: int
    colocated: bool
    step_s: float
    phases: Mapping[str, float]

    def scenario(self, base: Scenario) -> Scenario:
        """``base`` at this size, in this order."""
        if not self.colocated:
            half = self.gpus // 2
            cluster = {"num_gpus": self.gpus, "generation_gpus": half, "training_gpus": half}
            return vary(base, {f"cluster.{key}": value for key, value in cluster.items()})
        together = {"cluster.num_gpus": self.gpus, "cluster.generation_gpus": None, "cluster.training_gpus": None}
        loop = {"loop.mode": "sync", "loop.style": None, "loop.staleness_fraction": None, "loop.update_every": 1}
        prompts = base.workload.prompts_per_step * base.loop.update_every
        keys = {"workload.prompts_per_step": prompts, "engine.dispatch": "static"}
        return vary(base, {**together, **loop, **keys, "simulation.steps": 2, "simulation.warmup_steps": 0})

    def updates(self, base: Scenario) -> int:
        """Steps of ``base`` in one of this run."""
        return 1 if self.colocated else base.loop.update_every


def measured_runs() -> list[MeasuredRun]:
    """The six runs."""
    found = []
    for record in read_table(published_table("verl_runs.csv"), ("id", "placement", "num_gpus", "total_step_s")):
        cells, colocated = record.cells, record.cells["placement"].startswith("colocated")
        name = f"{'colocated' if colocated else 'async'}_{cells['num_gpus']}"
        whole_s = float(cells["total_step_s"])
        step_s = FIRST_200_STEPS_S.get(name, whole_s)
        times = {key: measured_value(cells, column) for key, column in COLUMNS.items()}
        phases = {key: value * step_s / whole_s for key, value in times.items() if value is not None}
        found.append(MeasuredRun(name, int(cells["num_gpus"]), colocated, step_s, phases))
    return found


def predicted(run: MeasuredRun, base: Scenario) -> Variant:
    """The run as rlsim has it; times are those of a step of ``base``."""
    return project(run.scenario(base)).candidate


def fitted_mean(runs: Sequence[MeasuredRun], base: Scenario) -> float:
    """Mean response in tokens with the least squares of the logarithms of steps."""

    def squares(tokens: float) -> float:
        at = vary(base, {MEAN_KEY: tokens})
        found = ((run, run.updates(at) * predicted(run, at).step_s.mean) for run in runs)
        return sum(math.log(step_s / run.step_s) ** 2 for run, step_s in found)

    return float(minimize_scalar(squares, bounds=(200, 4000), method="bounded", options={"xatol": 10}).x)


def compared(runs: Sequence[MeasuredRun], base: Scenario) -> dict[str, dict[str, Any]]:
    """``measured_s``, ``predicted_s`` and ``phases`` with the same, by run; ``speedups`` by GPUs."""
    out: dict[str, dict[str, Any]] = {}
    steps: dict[str, tuple[float, float]] = {}
    for run in runs:
        found, times = predicted(run, base), run.updates(base)
        steps[run.name] = run.step_s, times * found.step_s.mean
        phases = {
            key: {"measured_s": value, "predicted_s": times * sum(found.phases[one].mean for one in TIMED[key])}
            for key, value in run.phases.items()
        }
        out[run.name] = {"measured_s": run.step_s, "predicted_s": steps[run.name][1], "phases": phases}
    ratios = {
        str(gpus): [
            theirs / ours for theirs, ours in zip(steps[f"colocated_{gpus}"], steps[f"async_{gpus}"], strict=True)
        ]
        for gpus in sorted({run.gpus for run in runs})
    }
    out["speedups"] = {gpus: {"measured": ratio[0], "predicted": ratio[1]} for gpus, ratio in ratios.items()}
    return out


def lines(name: str, pairs: Mapping[str, float]) -> str:
    """One quantity, measured and predicted."""
    measured, ours = pairs.values()
    return f"{name:28} {measured:8.2f} {ours:8.2f} {ours / measured - 1:+6.0%}"


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--fit", action="store_true", help="fit the mean length first")
    given = parser.parse_args()
    runs, base = measured_runs(), load_scenario(SCENARIO)
    if given.fit:
        tokens = fitted_mean(runs, base)
        base = vary(base, {MEAN_KEY: tokens})
        print(f"{MEAN_KEY}={tokens:.0f}")
    found = compared(runs, base)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'':28} {'measured':>8} {'ours':>8}")
    for run in runs:
        row = found[run.name]
        print(lines(run.name, {key: row[key] for key in ("measured_s", "predicted_s")}))
        for key, pair in row["phases"].items():
            print(lines(f"  {key}", pair))
    for gpus, pair in found["speedups"].items():
        print(lines(f"asynchronous on {gpus}", pair))


if __name__ == "__main__":
    main()
