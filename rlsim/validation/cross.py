"""Are 90 % intervals 90 % intervals? Whole groups of measurements are left out of the joint fit in turn and predicted.

A grouping (release, device, model, framework, the newest release of everything, tenths of all runs) splits the shipped
evidence. For each of its groups the posterior of the rest predicts the group's rows; spreads and weights stay those of
the whole fit, whose estimation a single group hardly moves. Scores are those of Gneiting and Raftery 2007
(doi:10.1198/016214506000001437).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rlsim.costs.operators.groups import family_of, series
from rlsim.parameters.sets import Fitted, shipped
from rlsim.projection.uncertainty.evidence import Evidence, EvidenceTable, load_evidence
from rlsim.results.statistics import P90_DEVIATIONS
from rlsim.schema.engine_parameters import version_order
from rlsim.units import BoolArray, FloatArray
from rlsim.validation.hierarchy import DEGREES, GROUP_DEGREES, Design, Spreads, Weights, fit_spreads, solve
from rlsim.validation.own_rows_score import OwnRowsScore, own_rows_score
from rlsim.validation.scores import short

DRAWS = 2000
LEVELS = (0.5, 0.8, 0.9)
SCORED = ("step", "iteration", "training", "transfer")
"""Kinds of measured times that are scored; phases of steps are few."""
FOLDS = 10
NEWEST = {
    "vllm": (0, 17),
    "sglang": (0, 5, 9),
    "trtllm": (1, 3),
    "megatron_bridge": (26, 4),
    "nemo_rl": (0, 7),
}
"""Releases from which on a row counts as the newest of its software: what came out in 2026."""
TITLES = {
    "release": "each release of an engine or framework",
    "device": "each GPU",
    "model": "each model",
    "framework": "each engine or framework",
    "newest": "the newest release of everything, together",
    "runs": "a tenth of all runs",
}


KIND_TITLES = {
    "step": "RL steps",
    "iteration": "engine iterations",
    "training": "training steps",
    "transfer": "weight transfers",
}


@dataclass(frozen=True)
class CrossScore:
    """How the left-out rows of one kind lie in their predictive distributions.

    median_error: of |predicted / measured - 1|, a share. coverage: shares inside the 50, 80 and 90 % intervals.
    width: median of half the 90 % interval over the prediction. crps, interval_score: means over the rows in
    logarithms, of the 90 % interval; single_*: the same with one log-normal factor around the same predictions.
    """

    grouping: str
    kind: str
    n: int
    groups: int
    median_error: float
    coverage: tuple[float, float, float]
    width: float
    crps: float
    interval_score: float
    single_coverage: float
    single_crps: float
    single_interval_score: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {name: short(value) if isinstance(value, float) else value for name, value in asdict(self).items()} | {
            "coverage": [short(value) for value in self.coverage]
        }


@dataclass(frozen=True)
class Ranks:
    """Shares of the draws below each left-out measured time, of one grouping and kind; uniform where all is well."""

    grouping: str
    kind: str
    values: FloatArray


@dataclass(frozen=True)
class CrossValidation:
    """Scores by grouping and kind, the ranks behind them, and what two own rows of a release are worth."""

    scores: tuple[CrossScore, ...]
    ranks: tuple[Ranks, ...]
    own_rows: tuple[OwnRowsScore, ...]

    def to_json(self) -> str:
        """cross.json, the same bytes for the same evidence."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    def as_dict(self) -> dict[str, object]:
        """The contract's form (docs/contracts.md, Validation)."""
        return {
            "schema": "rlsim.cross/1",
            "scores": [score.as_dict() for score in self.scores],
            "own_rows": [score.as_dict() for score in self.own_rows],
        }


def validate_cross(
    table: EvidenceTable | None = None, progress: Callable[[int, int], object] | None = None
) -> CrossValidation:
    """Leave out every group of every grouping of ``table`` (by default the shipped evidence) and score its rows."""
    table = table or load_evidence()
    design = Design.of(table.rows, table.terms)
    spreads, weights = fit_spreads(design)
    single = np.array([single_factor(row, shipped()) for row in table.rows])
    scores, ranks = [], []
    for number, (grouping, key) in enumerate(GROUPINGS.items()):
        names = np.array([key(row) or "" for row in table.rows])
        draws = left_out_draws(design, spreads, weights, names)
        for kind in SCORED:
            chosen = np.flatnonzero((names != "") & (np.array(design.kinds) == kind))
            if len(chosen):
                groups = len(set(names[chosen].tolist()))
                found = _score(grouping, kind, groups, design.surprise[chosen], draws[chosen], single[chosen])
                scores.append(found[0])
                ranks.append(found[1])
        if progress is not None:
            progress(number + 1, len(GROUPINGS) + 1)
    own = [
        own_rows_score(
            grouping,
            table.rows,
            design,
            spreads,
            weights,
            np.array([GROUPINGS[grouping](row) for row in table.rows]),
            kind,
        )
        for grouping in ("release", "framework")
        for kind in SCORED
    ]
    return CrossValidation(tuple(scores), tuple(ranks), tuple(score for score in own if score is not None))


def left_out_draws(design: Design, spreads: Spreads, weights: Weights, names: NDArray[np.str_]) -> FloatArray:
    """Draws of ln(measured / predicted) of every row from the posterior without its group; shape (rows, DRAWS).

    names: the group of each row; those without one stay in every fit and have no draws (NaN).
    """
    out = np.full((len(names), DRAWS), np.nan)
    for name in sorted(set(names.tolist()) - {""}):
        left_out = names == name
        out[left_out] = predictive_draws(design, spreads, weights, ~left_out, left_out)
    return out


def predictive_draws(
    design: Design, spreads: Spreads, weights: Weights, used: BoolArray, wanted: BoolArray
) -> FloatArray:
    """Draws of the rows ``wanted`` from the posterior of the rows ``used``; shape (wanted rows, DRAWS)."""
    found = solve(design, spreads, weights, used)
    matrix = design.matrix[wanted]
    informed = design.informed(used)
    # Columns without rows are new draws from their heavy-tailed population, the others are normal.
    generator = np.random.default_rng(0)
    known = np.where(informed, matrix, 0.0)
    out = (known @ found.mean)[:, None] + np.sqrt(found.variances(known))[:, None] * generator.standard_normal(DRAWS)
    scales, middle = design.new_scales(spreads), design.middle
    for column in np.flatnonzero(~informed & (np.abs(matrix).sum(axis=0) > 0)):
        out += np.outer(matrix[:, column], middle[column] + scales[column] * generator.standard_t(GROUP_DEGREES, DRAWS))
    errors = design.scales(spreads)[wanted]
    return out + errors[:, None] * generator.standard_t(DEGREES, (len(errors), DRAWS))


def _score(
    grouping: str, kind: str, groups: int, surprise: FloatArray, draws: FloatArray, single: FloatArray
) -> tuple[CrossScore, Ranks]:
    middle = np.median(draws, axis=1)
    coverage = []
    low = high = middle
    for level in LEVELS:
        low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=1)
        coverage.append(float(np.mean((surprise >= low) & (surprise <= high))))
    half = P90_DEVIATIONS * single
    ranks = np.mean(draws < surprise[:, None], axis=1)
    normal = middle[:, None] + single[:, None] * np.random.default_rng(0).standard_normal(DRAWS)
    score = CrossScore(
        grouping=grouping,
        kind=kind,
        n=len(surprise),
        groups=groups,
        median_error=float(np.median(np.abs(np.expm1(middle - surprise)))),
        coverage=(coverage[0], coverage[1], coverage[2]),
        width=float(np.median(np.exp((high - low) / 2) - 1)),
        crps=_crps(surprise, draws),
        interval_score=_interval_score(surprise, low, high),
        single_coverage=float(np.mean(np.abs(surprise - middle) <= half)),
        single_crps=_crps(surprise, normal),
        single_interval_score=_interval_score(surprise, middle - half, middle + half),
    )
    return score, Ranks(grouping, kind, ranks)


def _interval_score(values: FloatArray, low: FloatArray, high: FloatArray) -> float:
    """Width of the 90 % intervals and twenty times what lies outside, mean over ``values``."""
    penalty = 2 / (1 - LEVELS[-1])
    return float(np.mean(high - low + penalty * (np.maximum(low - values, 0) + np.maximum(values - high, 0))))


def _crps(values: FloatArray, draws: FloatArray) -> float:
    """Continuous ranked probability score, mean over ``values``; draws: shape (values, draws)."""
    ordered = np.sort(draws, axis=1)
    count = ordered.shape[1]
    ranks = (2 * np.arange(1, count + 1) - count - 1) / count**2
    return float(np.mean(np.mean(np.abs(ordered - values[:, None]), axis=1) - ordered @ ranks))


def single_factor(row: Evidence, sets: Fitted) -> float:
    """Standard deviation of the one log-normal factor that the fit of the row's half gives all of its times."""
    if row.kind == "iteration":
        return sets.engines.family(str(row.about["engine"])).error
    if row.kind == "training":
        return sets.training.error
    if row.kind == "transfer":
        return sets.transfers.error_of(str(row.about["framework"]))
    return sets.steps.step_error


def software(row: Evidence) -> str:
    """Engine or framework of a row."""
    return str(row.about.get("engine") or row.about.get("framework") or "")


def _release(row: Evidence) -> str:
    told = str(row.about.get("release", ""))
    return f"{software(row)} {series(told)}" if told else ""


def _device(row: Evidence) -> str:
    return str(row.about.get("device", "")).split("_")[0].split(" ")[0].lower()


def _newest(row: Evidence) -> str:
    told, name = str(row.about.get("release", "")), software(row)
    return "newest" if told and name in NEWEST and tuple(version_order(told)) >= NEWEST[name] else ""


def _fold(row: Evidence) -> str:
    """A tenth of all runs; the phases of a run and the loads of one engine setup stay together."""
    setup = next((group for group in row.groups if family_of(group) == "engine setup"), row.id)
    return str(int(hashlib.sha256(setup.encode()).hexdigest(), 16) % FOLDS)


GROUPINGS: Mapping[str, Callable[[Evidence], str]] = {
    "release": _release,
    "device": _device,
    "model": lambda row: str(row.about.get("model", "")).lower(),
    "framework": software,
    "newest": _newest,
    "runs": _fold,
}
