"""What the logs of a run of agents do not say, fitted to its steps.

``python -m research.agents STEPS.csv`` fits environment times to the median and the spread of exposed generation, and
the least host time of an expert layer of the trainer to the median of training; the scenario's other keys stay. Rows of
other batches or seeds than those named are predictions afterwards. The answer is printed as overrides; nothing is
written.

Simplex search (Nelder and Mead, Computer Journal 7, 1965) from the scenario's own values, on draws of one seed that all
trials share; the same file, scenario and seed give the same answer.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from rlsim.costs.prices import ScenarioPrices, price
from rlsim.errors import InputError, RlsimError
from rlsim.evidence.phases import SUMMARISED, seconds_of, spread
from rlsim.evidence.tables import Row, read_table
from rlsim.loading.scenario import load_scenario, vary
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import QuantileTime
from rlsim.simulation.run import simulate
from rlsim.workload.draw import draw

TIME_KEY = "workload.agent.environment_s"
"""Fitted to exposed generation: an inverse distribution function of four points, most prompts and a few slow ones."""
JUMP = 0.01
"""Share of the quantiles over which ordinary times pass into slow ones."""


@dataclass(frozen=True)
class Environment:
    """What is fitted of environment times: ordinary ones from (1 - width) to (1 + width) of ``ordinary_s``, a share
    ``slow`` of them from ``factor`` to ``most`` times that.
    """

    ordinary_s: float
    width: float
    slow: float
    factor: float
    most: float

    @classmethod
    def of(cls, scenario: Scenario) -> Environment:
        """Those of a scenario. Raises InputError where its times are no such quantiles."""
        time = None if scenario.workload.agent is None else scenario.workload.agent.environment_s
        if not isinstance(time, QuantileTime) or len(time.seconds) != 4 or time.seconds[1] <= 0:
            raise InputError(f"{TIME_KEY}: the scenario to fit needs four quantiles there")
        low, high, factor, most = time.seconds
        middle = (low + high) / 2
        return cls(middle, (high - low) / (high + low), 1 - time.quantiles[2], factor / middle, most / middle)

    @classmethod
    def at(cls, point: Sequence[float]) -> Environment:
        """At a point of the search, which knows no bounds."""
        ordinary, width, slow, factor, more = point
        factor = 1.0 + math.exp(factor)
        slow = min(math.exp(slow), 0.5)
        return cls(math.exp(ordinary), 1 / (1 + math.exp(-width)), slow, factor, factor * (1 + math.exp(more)))

    @property
    def point(self) -> list[float]:
        """Where the search is at these values."""
        width = min(max(self.width, 1e-3), 1 - 1e-3)
        logs = [math.log(self.ordinary_s), math.log(width / (1 - width)), math.log(max(self.slow, 1e-3))]
        return [*logs, math.log(max(self.factor - 1, 1e-3)), math.log(max(self.most / self.factor - 1, 1e-3))]

    @property
    def override(self) -> str:
        """The scenario's key with these values."""
        shares = (1 - self.width, 1 + self.width, max(self.factor, 1 + self.width), max(self.most, 1 + self.width))
        seconds = ", ".join(f"{share * self.ordinary_s:.4g}" for share in shares)
        quantiles = f"0, {1 - self.slow - JUMP:.4g}, {1 - self.slow:.4g}, 1"
        return f"{TIME_KEY}={{kind: quantiles, quantiles: [{quantiles}], seconds: [{seconds}]}}"


HOST_KEY = "trainer.moe_host_layer_s"
"""Fitted to policy training."""
MEDIAN_WEIGHT, SPREAD_WEIGHT, LOW_WEIGHT = 1 / 0.15, 1 / 0.25, 1 / 0.4
"""Inverse relative errors at which the median, the spread and the 10th percentile of exposed generation count alike."""
STEPS, WARMUP = 128, 2
"""Steps simulated for one trial; the first of them are the start-up."""


@dataclass(frozen=True)
class Measured:
    """Measured seconds of the steps of one batch."""

    prompts: int
    exposed_s: tuple[float, ...]
    train_s: tuple[float, ...]


def measured_runs(path: Path, batches: Sequence[int], seeds: Sequence[int]) -> list[Measured]:
    """Steps of a table by batch. Raises InputError where one of the batches has none."""
    out = []
    for samples in batches:
        rows = [
            record.cells
            for record in read_table(path, ("gbs_samples", "seed_index", "prompts_per_step", *SUMMARISED.values()))
            if not record.problem and not record.cells.get("flag", "") and record.cells["gbs_samples"] == str(samples)
        ]
        rows = [cells for cells in rows if int(cells["seed_index"]) in seeds]
        if not rows:
            raise InputError(f"{path.name}: no steps of batch {samples} and seeds {', '.join(map(str, seeds))}")
        out.append(Measured(int(rows[0]["prompts_per_step"]), _of(rows, "exposed_generation"), _of(rows, "train")))
    return out


def _of(rows: Sequence[Row], phase: str) -> tuple[float, ...]:
    return tuple(seconds_of(rows, SUMMARISED[phase]))


def of_batch(scenario: Scenario, run: Measured) -> Scenario:
    """The scenario at the batch of a measured run, with the steps of a trial."""
    return vary(
        scenario,
        f"workload.prompts_per_step={run.prompts}",
        f"simulation.steps={STEPS}",
        f"simulation.warmup_steps={WARMUP}",
        "simulation.replications=1",
    )


def fit_host_s(scenario: Scenario, runs: Sequence[Measured]) -> float:
    """Least host time of an expert layer's forward pass with which training has the measured medians, in seconds.

    Training is linear in it where it binds: two prices tell the line, least squares of relative errors the place.
    """
    prices = []
    for host_s in (0.02, 0.03):
        varied = [of_batch(vary(scenario, f"{HOST_KEY}={host_s}"), run) for run in runs]
        prices.append([price(one, draw(one, 0)).steps[WARMUP].train.seconds for one in varied])
    low, high = np.array(prices)
    measured = np.array([np.median(run.train_s) for run in runs])
    slope, offset = (high - low) / 0.01 / measured, (low - (high - low) / 0.01 * 0.02) / measured
    return float((slope * (1 - offset)).sum() / (slope * slope).sum())


class AgentFit:
    """Relative errors of exposed generation as a function of environment times.

    Prices are those of the scenario's own trajectories: what is fitted moves the trainer's work little.
    """

    def __init__(self, scenario: Scenario, runs: Sequence[Measured]) -> None:
        self.scenario, self.runs = scenario, runs
        self._prices: list[ScenarioPrices] = []
        for run in runs:
            varied = of_batch(scenario, run)
            self._prices.append(price(varied, draw(varied, 0)))

    def varied(self, point: Sequence[float]) -> Scenario:
        """The scenario with the environment at a point of the search."""
        return vary(self.scenario, Environment.at(point).override)

    def exposed_s(self, scenario: Scenario) -> list[list[float]]:
        """Exposed generation of every simulated step, by run."""
        out = []
        for run, prices in zip(self.runs, self._prices, strict=True):
            varied = of_batch(scenario, run)
            trace = simulate(varied, draw(varied, 0), prices)
            out.append([step.phases.exposed_generation_s for step in trace.steps[WARMUP:]])
        return out

    def loss(self, point: Sequence[float]) -> float:
        """Sum of squared weighted relative errors of medians, spreads and 10th percentiles."""
        total = 0.0
        for run, drawn in zip(self.runs, self.exposed_s(self.varied(point)), strict=True):
            for of, weight in ((np.median, MEDIAN_WEIGHT), (spread, SPREAD_WEIGHT), (_low, LOW_WEIGHT)):
                measured = float(of(run.exposed_s))
                scale = max(measured, 0.1 * float(np.median(run.exposed_s)), 1e-3)  # a percentile may be 0
                total += (weight * (float(of(drawn)) - measured) / scale) ** 2
        return total


def _low(values: Sequence[float]) -> float:
    return float(np.percentile(values, 10))


def fit(scenario: Scenario, runs: Sequence[Measured], trials: int) -> tuple[Scenario, AgentFit]:
    """The scenario with fitted values, and what they were fitted with."""
    scenario = vary(scenario, f"{HOST_KEY}={fit_host_s(scenario, runs):.4g}")
    problem, start = AgentFit(scenario, runs), Environment.of(scenario).point
    simplex = np.array([start, *(np.add(start, 0.25 * np.eye(len(start))[i]) for i in range(len(start)))])
    found = minimize(problem.loss, start, method="Nelder-Mead", options={"maxfev": trials, "initial_simplex": simplex})
    return problem.varied(found.x), problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, and print overrides and how near they come. Exit status 2 for what cannot be fitted."""
    parser = argparse.ArgumentParser(prog="python -m research.agents", description="Fit agents to steps.")
    parser.add_argument("table", type=Path, help="measured steps with their phases")
    parser.add_argument("--scenario", default="mlperf_grpo", help="scenario to start from")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512], help="batches fitted to")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds fitted to")
    parser.add_argument("--trials", type=int, default=150, help="simulations of every batch")
    given = parser.parse_args(arguments)
    try:
        runs = measured_runs(given.table, given.batches, given.seeds)
        fitted, problem = fit(load_scenario(given.scenario), runs, given.trials)
    except RlsimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"--set {HOST_KEY}={fitted.trainer.moe_host_layer_s:g}")
    print(f"--set '{Environment.of(fitted).override}'")
    for run, drawn in zip(runs, problem.exposed_s(fitted), strict=True):
        shown = ", ".join(
            f"{name} {of(drawn):.0f} s (measured {of(run.exposed_s):.0f})"
            for name, of in (("median", np.median), ("p10 to p90", spread))
        )
        print(f"{run.prompts} prompts: exposed generation {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
