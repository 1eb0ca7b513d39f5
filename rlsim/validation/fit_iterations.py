"""Fit of the host and graph terms of engines to measured iterations, by family and release.

Each family has an overlap of neighbouring kernels, a host time per iteration and one per sequence; each release a host
time of its own, drawn towards that of the family. All values are positive: they are fitted in their logarithm with a
wide normal prior around where the fit starts, so that none ends on a bound. What prefill adds to the time per output
token of a closed loop is simulated once, at the start, and again to report the errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import least_squares

from rlsim.costs.engine.prices import EngineInputs, decode_points_s
from rlsim.costs.overheads import HostOverheads
from rlsim.errors import InputError
from rlsim.parameters.sets import load_engine_parameters, shipped
from rlsim.parameters.terms import ENGINE_RELEASE_SPREAD, ENGINE_VALUE_SPREAD, ENGINE_VALUES, START
from rlsim.schema.engine_parameters import EngineFamily, EngineParameters, IterationFit, ReleaseHost, version_order
from rlsim.units import FloatArray
from rlsim.validation.halves import TableRecords
from rlsim.validation.iteration_points import EngineSetup, Load, engine_setup, inputs_of, load_of
from rlsim.validation.iterations import validate_iterations
from rlsim.validation.measured import MeasuredRow, MeasuredTable
from rlsim.validation.scores import robust_deviation
from rlsim.validation.table import TableRow, read_table
from rlsim.validation.validate import table_digest

OVERLAPS_S = (0.0, 0.5e-6, 1e-6, 2e-6, 4e-6)
"""Overlaps at which iterations are priced; between them seconds are taken as linear."""
HOP_S = 1e-5
PRIOR_WEIGHT = 0.15
"""Error of a row (share of its time) against which a prior of one deviation counts as much as one row."""
SOFT = 0.1
"""Relative errors beyond this count less and less (soft L1)."""
FEWEST_ROWS, FEWEST_KINDS = 8, 2
"""Rows, and pairs of model and GPU, that a release needs for a host time of its own: with one pair its error would be
that of the model."""
NOT_A_LOAD = 0.5
"""A row that takes less than this share of what its kernels alone take was measured under another load than it says."""


@dataclass(frozen=True)
class Points:
    """Measured iterations as arrays over rows.

    device_s: shape (overlaps, rows), one iteration without host time. hop_s: seconds that HOP_S adds. added_s: what a
    closed loop adds to it. sequences: of one attention copy. speculates: 1 where drafts are verified. per_token: tokens
    that a measured time is shared by. family, release, pair (GPU and engine), kind (model and GPU): names by
    row; "" without a release.
    """

    measured_s: FloatArray
    device_s: FloatArray
    hop_s: FloatArray
    added_s: FloatArray
    sequences: FloatArray
    speculates: FloatArray
    per_token: FloatArray
    family: tuple[str, ...]
    release: tuple[str, ...]
    pair: tuple[str, ...]
    kind: tuple[str, ...]

    def device_at(self, overlap_s: FloatArray) -> FloatArray:
        """Device seconds of each row at an overlap of its own, shape (rows,)."""
        grid = np.array(OVERLAPS_S)
        overlap = np.clip(overlap_s, 0.0, grid[-1])
        below = np.clip(np.searchsorted(grid, overlap, side="right") - 1, 0, len(grid) - 2)
        share = (overlap - grid[below]) / (grid[below + 1] - grid[below])
        rows = np.arange(len(self.measured_s))
        return np.asarray(self.device_s[below, rows] * (1 - share) + self.device_s[below + 1, rows] * share)


@dataclass(frozen=True)
class IterationFitResult:
    """Fitted parameters, the rows behind them and how they compare afterwards."""

    parameters: EngineParameters
    table: MeasuredTable

    def to_yaml(self) -> str:
        """The file that ``simulation.engine_parameters`` can name."""
        return yaml.safe_dump(self.parameters.model_dump(mode="json"), sort_keys=False, width=110)


class _Problem:
    """Values in their logarithm: three of each family, one of the network, one of each measured release."""

    def __init__(self, points: Points, start: EngineParameters) -> None:
        self.points, self.start = points, start
        self.families: list[str] = [one.engine for one in start.families]
        counts = Counter((f, r) for f, r in zip(points.family, points.release, strict=True) if r)
        told = zip(points.family, points.release, points.kind, strict=True)
        kinds = Counter((family, release) for family, release, _ in dict.fromkeys(told))
        known = (key for key, rows in counts.items() if rows >= FEWEST_ROWS and kinds[key] >= FEWEST_KINDS)
        self.releases = sorted(known, key=_release_order)
        self.counts = counts
        self._family = np.array([self.families.index(name) for name in points.family])
        places = {key: place for place, key in enumerate(self.releases)}
        keys = zip(points.family, points.release, strict=True)
        self._release = np.array([places.get(key, len(self.releases)) for key in keys])
        values = [[getattr(one, name) for name in ENGINE_VALUES] for one in start.families]
        self.x0 = np.log([*np.ravel(values), start.network_hop_s, *([1.0] * len(self.releases))])
        spreads = [ENGINE_VALUE_SPREAD] * (len(self.x0) - len(self.releases)) + [ENGINE_RELEASE_SPREAD] * len(
            self.releases
        )
        self._prior = PRIOR_WEIGHT / np.array(spreads)

    def split(self, x: FloatArray) -> tuple[FloatArray, float, FloatArray]:
        """(values by family, network hop, factors of releases and 1 for rows without one)."""
        n = len(self.families) * len(ENGINE_VALUES)
        families = np.exp(x[:n]).reshape(len(self.families), -1)
        return families, float(np.exp(x[n])), np.append(np.exp(x[n + 1 :]), 1.0)

    def predicted_s(self, x: FloatArray) -> FloatArray:
        """Seconds of every row."""
        families, hop, releases = self.split(x)
        overlap, iteration, sequence, drafting, drafting_sequence = families[self._family].T
        p = self.points
        device = p.device_at(overlap) + p.hop_s * hop / HOP_S
        host = iteration * releases[self._release] + sequence * p.sequences
        host += p.speculates * (drafting + drafting_sequence * p.sequences)
        return np.asarray((device + host) / p.per_token + p.added_s, dtype=np.float64)

    def residuals(self, x: FloatArray) -> FloatArray:
        """ln(predicted / measured) of every row."""
        return np.asarray(np.log(self.predicted_s(x) / self.points.measured_s))

    def solve(self, used: np.ndarray) -> FloatArray:
        """Values that fit the rows of the mask ``used`` best."""

        def loss(x: FloatArray) -> FloatArray:
            return np.concatenate([self.residuals(x)[used], self._prior * (x - self.x0)])

        return np.asarray(least_squares(loss, self.x0, loss="soft_l1", f_scale=SOFT).x)

    def held_out(self) -> FloatArray:
        """Residuals of every row with values fitted without its pair of GPU and engine."""
        pairs, out = np.array(self.points.pair), np.zeros(len(self.points.measured_s))
        for pair in dict.fromkeys(self.points.pair):
            out[pairs == pair] = self.residuals(self.solve(pairs != pair))[pairs == pair]
        return out


def fit_iterations(
    path: Path, name: str | None = None, tell: Callable[[str], None] = lambda line: None
) -> IterationFitResult:
    """Fit engine parameters to the table of iterations at ``path`` and score them.

    Rows that were measured under another load than they say are not fitted. Raises InputError where the file is no such
    table.
    """
    records = read_table(path, ("engine", "model", "gpu", "precision", "tpot_ms", "isl", "osl"))
    start = load_engine_parameters(START)
    digest = table_digest(records)
    table = TableRecords(path.name, digest, records)
    first = validate_iterations(table, start)
    points = _points(records, first, start, tell)
    problem = _Problem(points, start)
    tell(f"{len(points.measured_s)} rows, {len(problem.x0)} values")
    x = problem.solve(np.ones(len(points.measured_s), dtype=bool))
    held = problem.held_out()
    fitted = _parameters(problem, x, held, digest, path.name, name or "serving")
    return IterationFitResult(fitted, validate_iterations(table, fitted))


def _points(
    records: Sequence[TableRow], first: MeasuredTable, start: EngineParameters, tell: Callable[[str], None]
) -> Points:
    chosen: list[tuple[MeasuredRow, EngineSetup, Load]] = []
    for row, record in zip(first.rows, records, strict=True):
        if row.predicted is None:
            continue
        load = load_of(record.cells)
        chosen.append((row, engine_setup(record.cells, load), load))
    if not chosen:
        raise InputError(f"{first.table}: no row can be priced")
    kept = [
        one
        for one in chosen
        if one[0].measured is not None and one[0].measured > NOT_A_LOAD * _step_ms(one[0]) / _tokens(one[0])
    ]
    groups: dict[EngineSetup, list[int]] = {}
    for place, (_, setup, _) in enumerate(kept):
        groups.setdefault(setup, []).append(place)
    grid = [HostOverheads(0.0, 0.0, overlap_s) for overlap_s in OVERLAPS_S]
    device_s, hop_s = np.zeros((len(grid), len(kept))), np.zeros(len(kept))
    for done, (setup, places) in enumerate(groups.items()):
        inputs = inputs_of(setup, replace(shipped(), engines=start))
        n = np.maximum(np.array([kept[place][2].batch for place in places]), 1.0)
        context = np.array([kept[place][2].context_tokens for place in places])
        for level, host in enumerate(grid):
            device_s[level, places] = decode_points_s(_with_host(inputs, host), n, context)
        if setup.gpus > int(inputs.device.profile.nvlink_domain_gpus):
            far = _with_host(inputs, HostOverheads(0.0, 0.0, 0.0, HOP_S))
            hop_s[places] = decode_points_s(far, n, context) - device_s[0, places]
        if done % 100 == 0:
            tell(f"priced {done} of {len(groups)} engines")
    return Points(
        np.array([1e-3 * float(row.measured or 0.0) for row, _, _ in kept]),
        device_s,
        hop_s,
        np.array([1e-3 * (float(row.predicted or 0.0) - _step_ms(row) / _tokens(row)) for row, _, _ in kept]),
        np.array([np.ceil(load.batch / setup.attention_data_parallel) for _, setup, load in kept]),
        np.array([float(setup.draft_length > 0) for _, setup, _ in kept]),
        np.array([_tokens(row) for row, _, _ in kept]),
        tuple(setup.engine for _, setup, _ in kept),
        tuple(_series(setup.version) for _, setup, _ in kept),
        tuple(f"{setup.device} {setup.engine}" for _, setup, _ in kept),
        tuple(f"{setup.model} {setup.device}" for _, setup, _ in kept),
    )


def _with_host(inputs: EngineInputs, host: HostOverheads) -> EngineInputs:
    return replace(inputs, host=host)


def _step_ms(row: MeasuredRow) -> float:
    return float(row.details["step_predicted_ms"] or 0.0)


def _tokens(row: MeasuredRow) -> float:
    """Tokens of a sequence that a measured time stands for: 1 of a step, or the acceptance length."""
    return 1.0 if row.details["measured_step"] else float(row.details["acceptance_length"] or 1.0)


def _series(version: str | None) -> str:
    """A release without its corrections and candidates: 0.5.10 of 0.5.10.post1."""
    return "" if version is None else ".".join(str(number) for number in version_order(version)[:3])


def _release_order(key: tuple[str, str]) -> tuple[str, tuple[int, ...]]:
    return key[0], version_order(key[1])


def _parameters(
    problem: _Problem, x: FloatArray, held: FloatArray, digest: str, table: str, name: str
) -> EngineParameters:
    """The parameters, rounded to what they are worth, with the record of the fit."""
    families, hop, releases = problem.split(x)
    names, error = np.array(problem.points.family), np.abs(np.expm1(problem.residuals(x)))
    found = []
    for start, values in zip(problem.start.families, families.tolist(), strict=True):
        of_engine, drafts = names == start.engine, problem.points.speculates > 0
        iteration = values[ENGINE_VALUES.index("iteration_s")]
        known = [
            ReleaseHost(version=version, iteration_s=_rounded(iteration * factor), rows=problem.counts[family, version])
            for (family, version), factor in zip(problem.releases, releases[:-1].tolist(), strict=True)
            if family == start.engine
        ]
        found.append(
            EngineFamily(
                engine=start.engine,
                rows=int((of_engine & ~drafts).sum()),
                drafting_rows=int((of_engine & drafts).sum()),
                **{name: _rounded(value) for name, value in zip(ENGINE_VALUES, values, strict=True)},
                releases=tuple(known),
                error=_rounded(robust_deviation(held[of_engine])) if of_engine.any() else start.error,
            )
        )
    return EngineParameters(
        name=name,
        description=f"Fitted to measured iterations of {table}, starting from {problem.start.name}.",
        fit=IterationFit(
            command=f"rlsim calibrate --from-iterations {table}",
            rows=len(error),
            data_digest=digest,
            median_error=_rounded(float(np.median(error))),
            p90_error=_rounded(float(np.quantile(error, 0.9))),
            held_out_median_error=_rounded(float(np.median(np.abs(np.expm1(held))))),
        ),
        network_hop_s=_rounded(hop),
        families=tuple(found),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
