"""Fit of the few global parameters that no operator table holds, to measured RL steps.

Least squares on ln(predicted / measured) of step times and, where published, of phases (at half weight): Gauss-Newton
with bounds, soft-L1 weights and a weak pull towards the starting values, so that what the data do not tell stays where
microbenchmarks and reading of the frameworks put it. Scored by leaving out whole groups of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from rlsim.parameters.posterior import NONE
from rlsim.projection.variant import simulate_variant
from rlsim.results import PHASES, StepPhases
from rlsim.schema.parameters import GlobalParameters
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

PHASE_WEIGHT = 0.5
"""Weight of a published phase against a step time."""
SOFT_RESIDUAL = 0.15
"""Residuals beyond this count less and less (soft L1), so that a few anomalous runs do not bend the parameters."""
PRIOR_WEIGHT = 0.05
"""Pull towards the start per relative change of a parameter."""
RELATIVE_STEP = 0.05
"""Step of the finite differences."""


@dataclass(frozen=True)
class Parameter:
    """One fitted number: where it lives in GlobalParameters, the scale on which it may change, and its bounds.

    path: dotted; ``engine_hosts.0.10.0`` stands for the iteration_s of that release.
    """

    path: str
    scale: float
    low: float
    high: float


PARAMETERS = (
    Parameter("engine_hosts.0.10.0", 2e-3, 0.0, 0.02),
    Parameter("engine_hosts.0.11.2", 2e-3, 0.0, 0.02),
    Parameter("engine_hosts.0.17.1", 2e-3, 0.0, 0.02),
    Parameter("sequence_s", 2e-5, 0.0, 2e-4),
    Parameter("in_process_iteration_s", 1e-3, 0.0, 0.01),
    Parameter("in_process_sequence_s", 2e-5, 0.0, 2e-4),
    Parameter("executor_s", 1.5e-3, 0.0, 0.01),
    Parameter("node_executor_s", 3e-3, 0.0, 0.02),
    Parameter("host_cpu_factors.Grace", 0.4, 0.8, 3.0),
    Parameter("dense_efficiency", 0.15, 0.3, 1.0),
    Parameter("moe_efficiency", 0.15, 0.3, 1.0),
    Parameter("fsdp_efficiency", 0.15, 0.3, 1.0),
    Parameter("moe_host_layer_s", 1e-3, 5e-4, 0.02),
    Parameter("colocated_tensor_s", 3e-4, 0.0, 3e-3),
)
"""What is fitted. The others of GlobalParameters stay at their stated values."""


@dataclass(frozen=True)
class Observation:
    """A measured time: the scenario's number, the quantity (step_s or a phase) and its weight."""

    scenario: int
    quantity: str
    measured_s: float
    weight: float


@dataclass(frozen=True)
class Fit:
    """Parameters, and ln(predicted / measured) of the step times with them, one per scenario."""

    parameters: GlobalParameters
    residuals: FloatArray


@dataclass(frozen=True)
class MeanTimes:
    """Seconds of a simulated run, means over its measured steps."""

    step_s: float
    phases: StepPhases[float]

    def of(self, quantity: str) -> float:
        """The step, or the phase of that name."""
        return self.step_s if quantity == "step_s" else self.phases[quantity]


Mapper = Callable[
    [Callable[[tuple[Scenario, GlobalParameters]], MeanTimes], Iterable[tuple[Scenario, GlobalParameters]]],
    Iterable[MeanTimes],
]


def simulate(task: tuple[Scenario, GlobalParameters]) -> MeanTimes:
    """Mean step and phases of one scenario under fitted parameters, all replications.

    Without a posterior: it starts from what is fitted here.
    """
    scenario, fitted = task
    simulation = scenario.simulation.model_copy(update={"parameters": fitted, "posterior": NONE})
    replications = simulate_variant(scenario.model_copy(update={"simulation": simulation})).steps
    steps = [step for replication in replications for step in replication]
    means = {name: float(np.mean([step.phases[name] for step in steps])) for name in PHASES}
    return MeanTimes(float(np.mean([step.seconds for step in steps])), StepPhases(**means))


def get_value(fitted: GlobalParameters, path: str) -> float:
    """The number at ``path``."""
    head, _, rest = path.partition(".")
    if head == "engine_hosts":
        return next(host.iteration_s for host in fitted.engine_hosts if host.version == rest)
    value = getattr(fitted, head)
    return float(value[rest] if rest else value)


def with_values(fitted: GlobalParameters, parameters: Sequence[Parameter], values: FloatArray) -> GlobalParameters:
    """``fitted`` with other numbers."""
    document = fitted.model_dump()
    for parameter, value in zip(parameters, values.tolist(), strict=True):
        head, _, rest = parameter.path.partition(".")
        if head == "engine_hosts":
            for host in document[head]:
                if host["version"] == rest:
                    host["iteration_s"] = value
        elif rest:
            document[head][rest] = value
        else:
            document[head] = value
    return GlobalParameters.model_validate(document)


class StepFitProblem:
    """Scenarios and observations to fit."""

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        observations: Sequence[Observation],
        start: GlobalParameters,
        parameters: Sequence[Parameter] = PARAMETERS,
        mapper: Mapper = map,
    ) -> None:
        self.scenarios, self.observations, self.start = scenarios, observations, start
        self.parameters, self._map = parameters, mapper
        self.x0 = np.array([get_value(start, p.path) for p in parameters])
        self.scale = np.array([p.scale for p in parameters])
        self.measured = np.array([o.measured_s for o in observations])
        self.weight = np.array([o.weight for o in observations])

    def residuals(self, x: FloatArray) -> FloatArray:
        """ln(predicted / measured) of every observation."""
        return self._residuals([x])[0]

    def _residuals(self, points: Sequence[FloatArray]) -> list[FloatArray]:
        fitted = [with_values(self.start, self.parameters, x) for x in points]
        tasks = [(scenario, f) for f in fitted for scenario in self.scenarios]
        results = list(self._map(simulate, tasks))
        out, count = [], len(self.scenarios)
        for i in range(len(points)):
            mine = results[i * count : (i + 1) * count]
            predicted = np.array([mine[o.scenario].of(o.quantity) for o in self.observations])
            out.append(np.log(np.maximum(predicted, 1e-6) / self.measured))
        return out

    def linearised(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Residuals at ``x`` and their derivatives in units of ``scale``, by finite differences."""
        highs = np.array([p.high for p in self.parameters])
        steps = np.where(x + RELATIVE_STEP * 2 * self.scale <= highs, 1.0, -1.0) * RELATIVE_STEP * 2
        moved = [x + np.eye(len(x))[i] * steps[i] * self.scale for i in range(len(x))]
        base, *others = self._residuals([x, *moved])
        return base, np.stack([(other - base) / step for other, step in zip(others, steps, strict=True)], axis=1)

    def solve_linear(self, x: FloatArray, base: FloatArray, slope: FloatArray, rows: NDArray[np.bool_]) -> FloatArray:
        """Best parameters of the linearised problem on ``rows``: iteratively reweighted, bounded, with the prior."""
        lows, highs = np.array([p.low for p in self.parameters]), np.array([p.high for p in self.parameters])
        low, high = (lows - x) / self.scale, (highs - x) / self.scale
        prior = PRIOR_WEIGHT * np.eye(len(x))
        pull = -PRIOR_WEIGHT * (x - self.x0) / self.scale
        move = np.zeros(len(x))
        # Soft L1 as weighted least squares: each residual weighs the root of the loss's slope over the residual, taken
        # at the last solution. The weights settle within a few rounds; ten are certain and cost nothing beside a run.
        for _ in range(10):
            soft = (1 + ((base + slope @ move) / SOFT_RESIDUAL) ** 2) ** -0.25
            w = (self.weight * soft)[rows]
            matrix = np.vstack([slope[rows] * w[:, None], prior])
            target = np.concatenate([-base[rows] * w, pull])
            move = lsq_linear(matrix, target, bounds=(np.minimum(low, -1e-9), np.maximum(high, 1e-9))).x
        # The bounds themselves: x + low * scale may round to just below them.
        found: FloatArray = np.clip(x + move * self.scale, lows, highs)
        return found

    def loss(self, residuals: FloatArray, x: FloatArray) -> float:
        """Soft-L1 loss with the prior."""
        z = (self.weight * residuals / SOFT_RESIDUAL) ** 2
        prior = (PRIOR_WEIGHT * (x - self.x0) / self.scale) ** 2
        return float(np.sum(2 * SOFT_RESIDUAL**2 * (np.sqrt(1 + z) - 1)) + np.sum(prior))

    def fit(
        self, rounds: int = 3, tell: Callable[[str], object] = lambda line: None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gauss-Newton from the start; (parameters, residuals and slope there)."""
        x, everything = self.x0.copy(), np.ones(len(self.observations), dtype=np.bool_)
        base, slope = self.linearised(x)
        for number in range(rounds):
            trial = self.solve_linear(x, base, slope, everything)
            if self.loss(self.residuals(trial), trial) >= self.loss(base, x) - 1e-6:
                break
            x = trial
            base, slope = self.linearised(x)
            tell(f"round {number + 1}: loss {self.loss(base, x):.4f}")
        return x, base, slope

    def held_out(self, x: FloatArray, base: FloatArray, slope: FloatArray, groups: Sequence[str]) -> FloatArray:
        """Residuals of step times with parameters fitted without each row's group (one name per scenario)."""
        names = np.array([groups[o.scenario] for o in self.observations])
        out = np.zeros(len(self.scenarios))
        for group in sorted(set(groups)):
            trial = self.solve_linear(x, base, slope, names != group)
            found = self.residuals(trial)
            for value, o in zip(found, self.observations, strict=True):
                if groups[o.scenario] == group and o.quantity == "step_s":
                    out[o.scenario] = value
        return out


def process_map() -> ProcessPoolExecutor:
    """Workers for a fit, one per core."""
    return ProcessPoolExecutor(max_workers=os.cpu_count() or 1)
