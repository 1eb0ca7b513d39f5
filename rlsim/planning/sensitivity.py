"""What to measure next: which uncertain input moves the step time most (variance-based).

The step time is simulated over a Latin hypercube of the uncertain inputs, all on the same drawn work. A polynomial of
second order is fitted to its logarithm, and Sobol indices of that polynomial are computed with SALib (Saltelli et al.
2010, doi:10.1016/j.cpc.2009.09.018). ``fit`` says how much of the variance the polynomial explains.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsim.errors import InputError
from rlsim.planning.evaluate import step_s_of
from rlsim.planning.execution import executor
from rlsim.planning.results import Contribution, Sensitivity
from rlsim.planning.uncertainty import UncertainInput, drawn_overrides, uncertain_inputs
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario

FloatArray = NDArray[np.float64]

DEFAULT_SAMPLES = 200
SAMPLES_PER_TERM = 2
"""Fewest simulated points per term of the polynomial."""
INTERACTING = 5
"""Inputs of largest effect whose pairwise products belong to the polynomial."""
SOBOL_POINTS = 1024
"""Base points at which the polynomial is evaluated for its indices."""


def sensitivity(
    scenario: Scenario,
    *,
    uncertain: Sequence[str] = (),
    samples: int = DEFAULT_SAMPLES,
    jobs: int | None = 1,
    dask: str | None = None,
) -> Sensitivity:
    """Rank the uncertain inputs of ``scenario`` by what they contribute to the interval of its step time.

    uncertain: ``key=low:high`` each, overriding or adding ranges. samples: simulated points, all on the same drawn
    work. Needs the extra ``plan``. Raises InputError where it is missing and where points cannot be simulated.
    """
    inputs = uncertain_inputs(scenario, uncertain)
    fewest = SAMPLES_PER_TERM * _terms(len(inputs))
    if samples < fewest:
        raise InputError(f"--samples must be at least {fewest} for {len(inputs)} uncertain inputs, got {samples}")
    problem = {"num_vars": len(inputs), "names": [i.key for i in inputs], "bounds": [[0.0, 1.0]] * len(inputs)}
    latin = _salib("SALib.sample.latin")
    points = latin.sample(problem, samples, seed=scenario.simulation.seed)
    steps = _simulated(scenario, inputs, points, jobs, dask)
    known = np.isfinite(steps)
    if known.sum() < fewest:
        raise InputError(f"only {known.sum()} of {samples} points can be simulated; narrow the ranges with --uncertain")
    return _result(scenario, inputs, problem, points[known], steps[known], samples)


def _salib(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError("sensitivity needs the extra 'plan': pip install 'rlsim[plan]'") from error


def _simulated(
    scenario: Scenario, inputs: Sequence[UncertainInput], points: FloatArray, jobs: int | None, dask: str | None
) -> FloatArray:
    tasks = [(scenario, drawn_overrides(scenario, inputs, point)) for point in points]
    steps = np.full(len(tasks), np.nan)
    with ProgressLine("points", len(tasks)) as progress, executor(jobs, dask, len(tasks)) as run:
        for index, step_s in run(step_s_of, tasks):
            steps[index] = step_s
            progress.advance(1)
    return steps


def _result(
    scenario: Scenario,
    inputs: Sequence[UncertainInput],
    problem: dict[str, Any],
    points: FloatArray,
    steps: FloatArray,
    samples: int,
) -> Sensitivity:
    logs = np.log(steps)
    surrogate = fitted_polynomial(points, logs)
    explained = 1.0 - float(np.var(logs - surrogate(points)) / np.var(logs)) if np.var(logs) > 0 else 1.0
    base = _salib("SALib.sample.sobol").sample(problem, SOBOL_POINTS, calc_second_order=False, seed=0)
    found = _salib("SALib.analyze.sobol").analyze(problem, surrogate(base), calc_second_order=False, seed=0)
    contributions = [
        Contribution(
            i.key, i.low, i.high, max(0.0, float(first)), max(0.0, float(total)), _narrowed(float(first)), i.reason
        )
        for i, first, total in zip(inputs, found["S1"], found["ST"], strict=True)
    ]
    low, median, high = np.quantile(steps, [0.05, 0.5, 0.95])
    ranked = tuple(sorted(contributions, key=lambda item: (-item.share, item.key)))
    return Sensitivity(
        scenario.name, ranked, float(low), float(median), float(high), explained, samples, int(samples - len(steps))
    )


def _narrowed(share: float) -> float:
    """Width of the interval without this input over the width with it, for near-normal log step times."""
    return float(np.sqrt(min(1.0, max(0.0, 1.0 - share))))


def _terms(inputs: int) -> int:
    pairs = min(INTERACTING, inputs)
    return 1 + 2 * inputs + pairs * (pairs - 1) // 2


def fitted_polynomial(points: FloatArray, values: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Least-squares polynomial of points in the unit cube, shape (n, inputs): linear and square terms of every input
    and products among the inputs of largest linear effect."""
    centred = points - 0.5
    linear, *_ = np.linalg.lstsq(np.column_stack([np.ones(len(points)), centred]), values, rcond=None)
    strongest = np.argsort(-np.abs(linear[1:]), kind="stable")[:INTERACTING]

    def design(x: FloatArray) -> FloatArray:
        c = x - 0.5
        products = [c[:, i] * c[:, j] for i, j in itertools.combinations(strongest, 2)]
        return np.column_stack([np.ones(len(c)), c, c**2, *products])

    coefficients, *_ = np.linalg.lstsq(design(points), values, rcond=None)
    return lambda x: np.asarray(design(x) @ coefficients, dtype=np.float64)
