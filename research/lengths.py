"""The mean response of runs that publish none, fitted to what their trainers took; everything else is predicted.

``python -m research.lengths PHASES.csv`` takes the rows of verl's DAPO runs (Qwen2.5-Math-7B on H20, at
three sizes colocated and fully asynchronous) and the scenario ``verl_dapo_7b``, whose keys hold for all of them but
cluster and order of phases. The mean minimises the squares of the seconds of log-probs and training over the
colocated rows. It prints the mean and every run beside its prediction, and then the asynchronous runs with a mean of
their own, fitted to their training alone: these took about half of the GPU-seconds of training for as many samples.
Nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.optimize import minimize_scalar

from rlsim.errors import InputError, RlsimError
from rlsim.evidence.tables import Row, measured_value, read_table
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.results import Variant
from rlsim.schema.scenario import Scenario

SCENARIO = "verl_dapo_7b"
MEAN_KEY = "workload.response_tokens.mean_tokens"
LEAST_TOKENS, MOST_TOKENS, TOLERANCE_TOKENS = 200.0, 12_000.0, 10.0
COLUMNS = ("framework", "model", "placement", "num_gpus", "prompts_per_step", "total_step_s", "train_s")
STEPS = 2
"""Synchronous steps simulated for one trial."""


@dataclass(frozen=True)
class MeasuredRun:
    """A row: seconds of its phases, None where not line. updates: our steps in one of its."""

    name: str
    gpus: int
    colocated: bool
    step_s: float
    train_s: float
    logprob_s: float | None

    def scenario(self, base: Scenario) -> Scenario:
        """``base`` at this size, in this order."""
        if not self.colocated:
            half = self.gpus // 2
            cluster = {"num_gpus": self.gpus, "generation_gpus": half, "training_gpus": half}
            return vary(base, {f"cluster.{key}": value for key, value in cluster.items()})
        together = {"cluster.num_gpus": self.gpus, "cluster.generation_gpus": None, "cluster.training_gpus": None}
        loop = {"loop.mode": "sync", "loop.staleness_fraction": None, "loop.update_every": 1}
        prompts = base.workload.prompts_per_step * base.loop.update_every
        keys = {"workload.prompts_per_step": prompts, "engine.dispatch": "static"}
        return vary(base, {**together, **loop, **keys, "simulation.steps": STEPS, "simulation.warmup_steps": 0})

    def updates(self, base: Scenario) -> int:
        """Steps of ``base`` in one of this run."""
        return 1 if self.colocated else base.loop.update_every


def measured_runs(path: Path) -> list[MeasuredRun]:
    """The rows of verl's runs. Raises InputError where the table holds none."""
    found = [
        MeasuredRun(
            record.cells["id"],
            int(record.cells["num_gpus"]),
            record.cells["placement"].startswith("colocated"),
            _seconds(record.cells, "total_step_s"),
            _seconds(record.cells, "train_s"),
            measured_value(record.cells, "old_logprob_s"),
        )
        for record in read_table(path, COLUMNS)
        if record.cells["framework"] == "verl" and record.cells["model"] == "Qwen2.5-Math-7B"
    ]
    if not any(run.colocated for run in found):
        raise InputError(f"{path.name}: no colocated run of verl with Qwen2.5-Math-7B")
    return found


def _seconds(cells: Row, column: str) -> float:
    value = measured_value(cells, column)
    if value is None:
        raise InputError(f"{cells['id']}: {column} is missing")
    return value


def fitted_mean(runs: Sequence[MeasuredRun], base: Scenario) -> float:
    """Mean response in tokens with the least squares of the trainer's seconds over ``runs``."""

    def squares(tokens: float) -> float:
        total = 0.0
        for run in runs:
            phases, times = _simulated(run, base, tokens).phases, run.updates(base)
            total += (times * phases.train_s.mean - run.train_s) ** 2
            if run.logprob_s is not None:
                total += (times * phases.logprob_s.mean - run.logprob_s) ** 2
        return total

    bounds = (LEAST_TOKENS, MOST_TOKENS)
    return float(minimize_scalar(squares, bounds=bounds, method="bounded", options={"xatol": TOLERANCE_TOKENS}).x)


def _simulated(run: MeasuredRun, base: Scenario, tokens: float) -> Variant:
    return project(vary(run.scenario(base), {MEAN_KEY: tokens})).candidate


def compared(runs: Sequence[MeasuredRun], base: Scenario, tokens: float) -> list[str]:
    """A line for each run, and one for each pair of a size."""
    lines = [f"{'run':22} {'step':>7} {'pred.':>7} {'error':>6}   {'train':>7} {'pred.':>7}   log-prob, pred."]
    steps: dict[tuple[int, bool], tuple[float, float]] = {}
    for run in runs:
        found, times = _simulated(run, base, tokens), run.updates(base)
        step_s, train_s = times * found.step_s.mean, times * found.phases.train_s.mean
        steps[run.gpus, run.colocated] = run.step_s, step_s
        line = f"{run.name:22} {run.step_s:7.1f} {step_s:7.1f} {step_s / run.step_s - 1:+6.0%}"
        line += f"   {run.train_s:7.1f} {train_s:7.1f}"
        if run.logprob_s is not None:
            line += f"   {run.logprob_s:.1f}, {found.phases.logprob_s.mean:.1f}"
        lines.append(line)
    for gpus in sorted({gpus for gpus, _ in steps}):
        if {(gpus, True), (gpus, False)} <= set(steps):
            theirs, ours = (steps[gpus, True][i] / steps[gpus, False][i] for i in (0, 1))
            lines.append(f"{gpus} GPUs: asynchronous {theirs:.2f}x measured, {ours:.2f}x predicted")
    return lines


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="PHASES.csv")
    base = load_scenario(SCENARIO)
    try:
        runs = measured_runs(parser.parse_args().table)
        tokens = fitted_mean([run for run in runs if run.colocated], base)
        print(f"{MEAN_KEY}={tokens:.0f}")
        print("\n".join(compared(runs, base, tokens)))
        apart = [run for run in runs if not run.colocated]
        if apart:
            tokens = fitted_mean(apart, base)
            print(f"\n{MEAN_KEY}={tokens:.0f} fitted to the asynchronous runs alone")
            print("\n".join(compared(apart, base, tokens)))
    except RlsimError as error:
        sys.exit(f"lengths: {error}")


if __name__ == "__main__":
    main()
