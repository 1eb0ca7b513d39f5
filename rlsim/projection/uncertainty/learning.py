"""Measured times as evidence on top of a posterior; nothing is fitted again.

The posterior is normal (mean m, covariance P over terms and known groups); groups that it does not know enter with the
spread of their family. With H the derivatives of the new rows and R the variances of their errors,

    K = P H' (H P H' + R)^-1,    m' = m + K (y - H m),    P' = P - K H P,

where errors and new groups are Student's t, taken as normals of random precision as in the joint fit
(:mod:`rlsim.evidence.hierarchy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.linalg import cho_factor, cho_solve, cholesky

from rlsim.costs.operators.groups import family_of
from rlsim.parameters.posterior import NONE, Posterior
from rlsim.parameters.sets import Fitted
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence, Kind
from rlsim.projection.uncertainty.features import about
from rlsim.projection.uncertainty.predictive import UNMEASURED_SPREAD
from rlsim.projection.uncertainty.response import StepResponse, step_response
from rlsim.projection.uncertainty.slopes import PhaseSlopes, Slopes, phase_slopes
from rlsim.projection.variant import SimulatedVariant, seconds_of
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

ROUNDS = 12
JITTER = 1e-10
"""Added to the diagonal of a covariance, in squares of a logarithm, against rounding."""


class Prior(Struct, frozen=True, eq=False):
    """Normal known columns (mean, covariance), then new ones: Student's t around ``new_mean`` with scales ``new``.

    degrees: of freedom of the errors of rows and of new columns.
    """

    mean: FloatArray
    covariance: FloatArray
    new_mean: FloatArray
    new: FloatArray
    degrees: tuple[float, float]


def conditioned(
    prior: Prior, matrix: FloatArray, log_error: FloatArray, scales: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean, shape (columns,), and covariance of all columns given rows ``log_error = matrix @ columns + error``.

    matrix: shape (rows, known + new columns). scales: of each row's error.
    """
    known, rows, news = len(prior.mean), np.ones(len(log_error)), np.ones(len(prior.new))
    start = np.concatenate([prior.mean, prior.new_mean])
    mean, covariance = start, np.zeros((len(start), len(start)))
    for _ in range(ROUNDS):
        # Known columns keep their covariance; new ones are independent of them and of each other.
        whole = np.zeros((len(start), len(start)))
        whole[:known, :known] = prior.covariance
        whole[range(known, len(start)), range(known, len(start))] = prior.new**2 / news
        crossed = whole @ matrix.T
        # A system of as many unknowns as rows, of which a user has few; the covariance of all columns is not inverted.
        factor = cho_factor(matrix @ crossed + np.diag(scales**2 / rows + JITTER), lower=True)
        mean = start + crossed @ cho_solve(factor, log_error - matrix @ start)
        after = whole - crossed @ cho_solve(factor, crossed.T)
        # Rounding leaves it a little asymmetric.
        covariance = (after + after.T) / 2
        misses = (log_error - matrix @ mean) ** 2 + np.einsum("ij,ij->i", matrix @ covariance, matrix)
        squares = (mean - start)[known:] ** 2 + np.diag(covariance)[known:]
        # Student's t as a normal of random precision: outlying rows, and new groups far out, count less in the next
        # round.
        rows = (prior.degrees[0] + 1) / (prior.degrees[0] + misses / scales**2)
        news = (prior.degrees[1] + 1) / (prior.degrees[1] + squares / prior.new**2)
    return mean, covariance


def updated(
    posterior: Posterior,
    rows: Sequence[Evidence],
    name: str,
    about: Mapping[str, object],
    errors: Sequence[float] | None = None,
) -> Posterior:
    """``posterior`` with ``rows``, linearised around the sets as it moves them, as further evidence.

    errors: scale of each row's own error, in logarithms; default that of a published time of its kind.
    """
    groups = dict.fromkeys(group for row in rows for group in row.groups if posterior.place(group) is None)
    columns = (*posterior.columns, *groups)
    place = {column: number for number, column in enumerate(columns)}
    matrix = np.zeros((len(rows), len(columns)))
    for at, row in enumerate(rows):
        for column, value in (*row.slopes.items(), *row.groups.items()):
            matrix[at, place[column]] += value
    # Slopes stand around the moved terms: what the posterior says of a term is already in the prediction.
    shifts = np.zeros(len(columns))
    shifts[: posterior.terms] = posterior.mean[: posterior.terms]
    prior = Prior(
        posterior.mean - shifts[: len(posterior.mean)],
        posterior.factor @ posterior.factor.T,
        np.array([posterior.mean_of(group) for group in groups]),
        np.array([posterior.spreads.get(family_of(group), UNMEASURED_SPREAD) for group in groups]),
        (posterior.degrees, posterior.group_degrees),
    )
    scales = np.array([posterior.errors[row.kind] for row in rows] if errors is None else errors)
    mean, covariance = conditioned(prior, matrix, np.array([row.surprise for row in rows]), scales)
    counts = Counter(group for row in rows for group in row.groups)
    return replace(
        posterior,
        name=name,
        columns=columns,
        # Back from deviations around the moved terms to deviations around the sets.
        mean=mean + shifts,
        factor=cholesky(covariance + JITTER * np.eye(len(columns)), lower=True),
        rows={column: posterior.rows.get(column, 0) + counts[column] for column in columns[posterior.terms :]},
        fit={**posterior.fit, **about},
        description=f"{posterior.name} with {len(rows)} further measured times (docs/uncertainty.md).",
    )


def with_sets(scenario: Scenario, sets: Fitted) -> Scenario:
    """The scenario with its fitted sets stated, without a posterior."""
    simulation = dict(scenario.simulation) | {
        "parameters": sets.steps,
        "engine_parameters": sets.engines,
        "training_parameters": sets.training,
        "transfer_parameters": sets.transfers,
        "posterior": NONE,
    }
    return Scenario.model_validate({**dict(scenario), "simulation": simulation})


def simulated_evidence(
    name: str,
    run: SimulatedVariant,
    measured: Mapping[Kind, float],
    by_phase: Mapping[str, Sequence[str]],
    centre: Callable[[list[float]], Any] = np.mean,
    priced_with: Posterior | None = None,
) -> list[Evidence]:
    """Evidence of one measured step: the whole and its phases. by_phase: groups of each phase.

    centre: of the simulated steps, as the measured times are one of theirs. priced_with: the posterior whose group
    deviations are in the simulated seconds; what it says of the groups is then added back to the log error, so that
    rows are around the moved terms alone, whatever they were simulated with.
    """
    scenario, response, slopes = run.scenario, step_response(run), phase_slopes(run)
    transfer = "prepare_s" if scenario.loop.mode == "sync" else "refit_s"
    names = {"generation": "generation_s", "logprob": "logprob_s", "train": "train_s", "refit": transfer}
    # Moved by a control as answers are: one run has one prediction.
    values = {kind: np.concatenate(run.values(seconds_of(phase))) for kind, phase in (*names.items(), ("step", "step"))}
    predicted = {kind: float(centre(found.tolist())) for kind, found in values.items()}
    ran = about(scenario, "step")
    out = []
    for kind, seconds in measured.items():
        if predicted[kind] <= 0:
            continue
        row_slopes, groups = _combined(kind, response, slopes, by_phase)
        log_error = float(np.log(seconds / predicted[kind]))
        if priced_with is not None:
            log_error += sum(share * priced_with.mean_of(group) for group, share in groups.items())
        out.append(Evidence(kind, name, log_error, row_slopes, groups, {**ran, MEASURED_S: seconds}))
    return out


def _combined(
    kind: Kind, response: StepResponse, slopes: PhaseSlopes, groups: Mapping[str, Sequence[str]]
) -> tuple[Slopes, dict[str, float]]:
    """Slopes and coefficients of a phase, or of the step by what each phase is of it."""
    phase = "transfer" if kind == "refit" else kind
    shares = response.shares if kind == "step" else {phase: 1.0}
    terms: dict[str, float] = {}
    coefficients: dict[str, float] = {}
    for name, share in shares.items():
        for term, slope in getattr(slopes, name).items():
            terms[term] = terms.get(term, 0.0) + share * slope
        for group in groups[name]:
            coefficients[group] = coefficients.get(group, 0.0) + share
    return terms, coefficients
