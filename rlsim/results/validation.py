"""Predicted beside measured, as data: what validation.json, published.json and cross.json hold (docs/contracts.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from rlsim.results.answer import Answer
from rlsim.results.record import Interval, Loose, Rounded, rounded

Detail = str | bool | int | Rounded | None
SPREAD_KEYS = ("measured", "predicted", "low", "high")
ROW_KEYS = ("id", "group", *SPREAD_KEYS[:2], "unit", *SPREAD_KEYS[2:], "covered", "skipped", "reason", "details")
STEP_KEYS = (
    "id", "group", "measured_s", "predicted_s", "error_pct", "low_s", "high_s", "measured", "predicted", "unit",
    "low", "high", "covered", "skipped", "reason", "phases",
)  # fmt: skip
"""Keys of a row in their order; those of a measured RL step also name seconds and per cent."""
TABLE_KEYS = ("kind", "rows", "score", "groups", "cuts", "skipped", "remarks")
STEP_TABLE_KEYS = (
    "kind", "rows", "median_abs_error_pct", "p90_abs_error_pct", "interval_coverage", "skipped", "score", "groups",
)  # fmt: skip


class _Compared(Loose):
    """A record with predicted, measured and error_pct = 100 (predicted / measured - 1), filled in where not given.

    It is None where either of them is missing or 0.
    """

    @model_validator(mode="before")
    @classmethod
    def _error(cls, given: Any) -> Any:
        # The value of a file stays: computed from rounded numbers it would differ in the last digits.
        if not isinstance(given, dict) or given.get("error_pct") is not None:
            return given
        predicted, measured = given.get("predicted"), given.get("measured")
        # A published figure has an interval, a row a number.
        mean = getattr(predicted, "mean", predicted)
        return {**given, "error_pct": 100 * (mean / measured - 1) if mean and measured else None}


class PhaseError(_Compared):
    """Predicted seconds of one phase of a step; measured: seconds where they were published."""

    predicted: Rounded
    measured: float | None = None
    error_pct: Rounded | None = None


class ComparedRow(_Compared):
    """One measured value beside its prediction with a 90 % interval, all in ``unit``, or the reason why it is skipped.

    group: what it is scored together with. details: what its kind of table says further, by name. cuts: further sets of
    rows that it is scored in. phases: of a measured RL step, by contract name; None of other kinds.
    """

    id: str
    group: str = ""
    unit: str = "s"
    measured: Rounded | None = None
    predicted: Rounded | None = None
    low: Rounded | None = None
    high: Rounded | None = None
    skipped: str | None = None
    details: dict[str, Detail] = Field(default_factory=dict)
    cuts: tuple[str, ...] = Field((), exclude=True)
    phases: dict[str, PhaseError] | None = None
    error_pct: Rounded | None = None

    @property
    def error(self) -> float | None:
        """predicted / measured - 1 as a share; None for a skipped row."""
        return self.predicted / self.measured - 1 if self.predicted is not None and self.measured else None

    @property
    def half_width(self) -> float | None:
        """Factor that the interval reaches either way, sqrt(high / low)."""
        return float(np.sqrt(self.high / self.low)) if self.low and self.high else None

    @property
    def covered(self) -> bool | None:
        """Whether the interval holds the measured value; None for a skipped row."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high

    @model_serializer(mode="wrap")
    def _by_contract(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found = handler(self) | {"covered": self.covered, "reason": self.skipped}
        if self.phases is None:
            return {key: found[key] for key in ROW_KEYS}
        found |= {f"{key}_s": found[key] for key in SPREAD_KEYS}
        return {key: found[key] for key in STEP_KEYS}


class Errors(Loose):
    """Errors of ``n`` values as shares of the measured ones; None where nothing was compared.

    median_abs_error, p90_abs_error: quantiles (linear between order statistics) of |predicted / measured - 1|. bias:
    median of predicted / measured - 1.
    """

    n: int
    median_abs_error: Rounded | None = None
    p90_abs_error: Rounded | None = None
    bias: Rounded | None = None


class Score(Errors):
    """Errors of ``n`` rows. coverage: share of rows whose measured value lies inside its 90 % interval.

    half_width: median factor that these intervals reach either way, sqrt(high / low); coverage says nothing without it.
    """

    coverage: Rounded | None = None
    half_width: Rounded | None = None

    @classmethod
    def of(cls, rows: Iterable[ComparedRow]) -> Score:
        """Score of all ``rows`` that were predicted."""
        # Skipped rows have no error; a measured 0 has none either.
        known = [row for row in rows if row.error is not None]
        widths = [row.half_width for row in known if row.half_width is not None]
        covered = sum(bool(row.covered) for row in known) / len(known) if known else None
        score = cls.of_errors([row.error or 0.0 for row in known])
        return score.model_copy(
            update={"coverage": covered, "half_width": float(np.median(widths)) if widths else None}
        )

    @classmethod
    def of_errors(cls, errors: Sequence[float]) -> Score:
        """Score of signed errors as shares."""
        if not errors:
            return cls(n=0)
        median, p90 = (float(np.quantile(np.abs(errors), level)) for level in (0.5, 0.9))
        return cls(n=len(errors), median_abs_error=median, p90_abs_error=p90, bias=float(np.median(errors)))


class SpeculationPair(Loose):
    """Speed-up of a speculating row over its plain partner: time per output token without over with speculation."""

    id: str
    plain_id: str
    group: str
    batch: float | None
    measured: Rounded
    predicted: Rounded


class SpeculationPairs(Errors):
    """All pairs of a table. clear: pairs whose measured speed-up is not near 1; right_sign_share: share of these that
    are predicted on their side of 1."""

    clear: int = 0
    right_sign_share: Rounded | None = None
    pairs: tuple[SpeculationPair, ...] = ()


class DraftLengths(Loose):
    """Which draft length pays most, of every series with several: regret is how much slower, as a share, the length
    that is predicted best was measured to be than the one that was measured best; mean over series, and how many are
    right. clear: rows whose measured speed-up is not near 1; right_sign_share: of these, predicted on their side."""

    series: int
    regret: Rounded | None = None
    right: int = 0
    clear: int = 0
    right_sign_share: Rounded | None = None


class Validation(Answer, Loose):
    """All rows of a table in its order with their scores: of all, by group, and by further sets of rows (cuts).

    remarks: assumptions and what else holds for the whole table. digest: first 16 hex digits of the SHA-256 of all
    cells. ttft, speculation_pairs: of a table of engine iterations. draft_lengths: of one of speculation.
    """

    rows_in = "rows"
    kind: str
    table: str = Field("", exclude=True)
    digest: str = Field("", exclude=True)
    rows: tuple[ComparedRow, ...]
    score: Score
    groups: dict[str, Score]
    cuts: dict[str, Score] = Field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    speculation_pairs: SpeculationPairs | None = None
    ttft: Score | None = None
    draft_lengths: DraftLengths | None = None

    @classmethod
    def of(cls, kind: str, rows: Sequence[ComparedRow], **fields: Any) -> Validation:
        """The validation of ``rows`` with its scores; groups largest first, cuts by name."""
        groups: dict[str, list[ComparedRow]] = defaultdict(list)
        cuts: dict[str, list[ComparedRow]] = defaultdict(list)
        for row in rows:
            if row.error is not None:
                groups[row.group].append(row)
                for name in row.cuts:
                    cuts[name].append(row)
        # The name decides ties: the order of the file must not depend on that of the rows.
        largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        scores = {
            "score": Score.of(rows),
            "groups": {name: Score.of(members) for name, members in largest},
            "cuts": {name: Score.of(cuts[name]) for name in sorted(cuts)},
        }
        return cls(kind=kind, rows=tuple(rows), **scores, **fields)

    @cached_property
    def scored(self) -> tuple[ComparedRow, ...]:
        """Rows that were predicted."""
        return tuple(row for row in self.rows if row.error is not None)

    @property
    def skipped(self) -> int:
        """Number of rows that were not predicted."""
        return len(self.rows) - len(self.scored)

    @model_serializer(mode="wrap")
    def _by_contract(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found = handler(self) | {"skipped": self.skipped}
        if self.kind == "steps":
            for name in ("median_abs_error", "p90_abs_error"):
                error = getattr(self.score, name)
                found[f"{name}_pct"] = None if error is None else rounded(100 * error)
            found["interval_coverage"] = found["score"]["coverage"]
            return {key: found[key] for key in STEP_TABLE_KEYS}
        of_kind = {"iterations": ("speculation_pairs", "ttft"), "speculation": ("draft_lengths",)}
        further = of_kind.get(self.kind, ())
        return {key: found[key] for key in (*TABLE_KEYS, *further)}


class PublishedFigure(_Compared):
    """One published figure beside its prediction; group: the table it stands in; unit: s, or x for a ratio."""

    group: str
    label: str
    unit: str
    measured: float
    predicted: Interval
    error_pct: Rounded | None = None


class CrossScore(Loose):
    """Scores of the left-out rows of one kind against their predictive distributions.

    median_error: of |predicted / measured - 1|, a share. coverage: shares inside the 50, 80 and 90 % intervals.
    width: median of half the 90 % interval over the prediction. crps, interval_score: means over the rows in
    logarithms, of the 90 % interval; single_*: the same with one log-normal factor around the same predictions.
    """

    grouping: str
    kind: str
    n: int
    groups: int
    median_error: Rounded
    coverage: tuple[Rounded, Rounded, Rounded]
    width: Rounded
    crps: Rounded
    interval_score: Rounded
    single_coverage: Rounded
    single_crps: Rounded
    single_interval_score: Rounded


class OwnRowsScore(Loose):
    """Median of |predicted / measured - 1| over the other runs of a left-out group, before and after two of its rows.

    grouping: what is left out; groups: how many had runs enough; n: predictions behind the medians.
    """

    grouping: str
    kind: str
    groups: int
    n: int
    before: Rounded
    after: Rounded


class Ranks(Loose):
    """Shares of the draws below each left-out measured time, of one grouping and kind; uniform where all is well."""

    grouping: str
    kind: str
    values: tuple[float, ...]


class CrossValidation(Answer, Loose):
    """Scores by grouping and kind, the ranks behind them, and what two measured rows of a left-out group are worth."""

    rows_in = "scores"
    schema_name: str = Field("rlsim.cross/1", alias="schema")
    scores: tuple[CrossScore, ...]
    own_rows: tuple[OwnRowsScore, ...]
    ranks: tuple[Ranks, ...] = Field((), exclude=True)


class Published(Answer, Loose):
    """Everything published beside its prediction.

    digest: first 16 hex digits of the SHA-256 of the published tables. iterations to phases: tables that do not come
    with rlsim, where given. cross: of left-out groups, where asked for. refits_left_out: reasons by id. sweeps: always
    empty, a key of earlier releases.
    """

    rows_in = "compared"
    steps: Validation
    digest: str
    compared: tuple[PublishedFigure, ...]
    sweeps: tuple[Mapping[str, Any], ...] = ()
    iterations: Validation | None = None
    training: Validation | None = None
    transfers: Validation | None = None
    phases: Validation | None = None
    cross: CrossValidation | None = None
    refits_left_out: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _steps_of_file(cls, given: Any) -> Any:
        # published.json holds the keys of the steps beside its own, as earlier releases wrote it.
        return given if "steps" in given else {**given, "steps": given}

    @model_serializer(mode="wrap")
    def _by_contract(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found = handler(self)
        return {**found.pop("steps"), **found}
