"""From tables of every kind to one posterior of all fitted terms and group deviations (:mod:`hierarchy`).

The fitted sets are where the joint fit starts. Predictions are linearised around them, the posterior's mean moves
them, and the predictions are linearised again around the moved sets until the mean stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlsim.costs.groups import family_of
from rlsim.errors import InputError
from rlsim.hardware.device_order import shipped_order
from rlsim.hardware.parameters import Fitted, set_digest, shipped
from rlsim.hardware.posterior import Posterior
from rlsim.hardware.terms import Term, moved, term_family
from rlsim.report.format import percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.results.record import rounded
from rlsim.uncertainty.evidence import MEASURED_S, Evidence, EvidenceTable
from rlsim.uncertainty.slopes import ASSUMED, all_terms
from rlsim.validation.evidence import (
    iteration_evidence,
    step_evidence,
    training_evidence,
    transfer_evidence,
)
from rlsim.validation.halves import TableRecords
from rlsim.validation.hierarchy import DEGREES, GROUP_DEGREES, Design, Solution, Spreads, calibrated, fit_spreads, solve
from rlsim.validation.kind import Kind
from rlsim.validation.kinds import kind_of
from rlsim.validation.table import read_columns, read_table
from rlsim.validation.transfer_rows import priced_rows
from rlsim.validation.validate import table_digest

ROUNDS = 2
"""Linearisations after the first one."""
ALONE = ("engine setup", "rollout of run", "training of run", "transfer of run")
"""Families whose groups no other scenario can belong to; the posterior holds their spread only."""
SPECULATION = ("speculation", "draft length")
"""Families of what a speculating rollout misses beyond the same rollout without speculation: in equal parts whatever it
drafts, and of its draft length alone (an assumption: measured speed-ups do not tell them apart)."""
DIGITS = 5


@dataclass(frozen=True)
class JointFit:
    """What all tables together say. evidence: every row linearised around the posterior's mean."""

    posterior: Posterior
    evidence: EvidenceTable
    spreads: Spreads

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """Spreads of all families and errors of all kinds, for a terminal."""
        members = Counter(family_of(group) for group in {group for row in self.evidence.rows for group in row.groups})
        members += Counter(term_family(term.name) for term in self.evidence.terms)
        kinds = Counter(str(row.kind) for row in self.evidence.rows)
        spreads = [
            (name, str(members[name]), percent(value, 1)) for name, value in sorted(self.spreads.families.items())
        ]
        errors = [(name, str(kinds[name]), percent(value, 1)) for name, value in sorted(self.spreads.errors.items())]
        return "\n".join(
            [
                f"{len(self.evidence.rows)} measured times, {self.posterior.terms} terms",
                "",
                *table(("groups or terms of", "members", "scale of their deviations"), spreads, style, "<>>"),
                "",
                *table(("time", "rows", "scale of its own error"), errors, style, "<>>"),
            ]
        )


@dataclass(frozen=True)
class Tables:
    """Tables by kind, each with its rows, and the digests of all."""

    by_kind: Mapping[Kind, Sequence[TableRecords]]
    digests: Mapping[str, str]


def read_tables(paths: Sequence[Path]) -> Tables:
    """The tables at ``paths``; raises InputError for a kind that is no evidence."""
    by_kind: dict[Kind, list[TableRecords]] = {}
    digests = {}
    for path in paths:
        kind = kind_of(read_columns(path), path.name)
        if kind not in (Kind.STEPS, Kind.ITERATIONS, Kind.TRAINING, Kind.TRANSFERS):
            raise InputError(f"{path.name}: a table of {kind} is no evidence of the joint fit")
        rows = read_table(path, ())
        digests[path.name] = table_digest(rows)
        by_kind.setdefault(kind, []).append(TableRecords(path.name, digests[path.name], rows))
    return Tables(by_kind, digests)


def fit_jointly(paths: Sequence[Path], tell: Callable[[str], object] = lambda line: None) -> JointFit:
    """Fit all terms and groups to the tables at ``paths``. Raises InputError where a table holds nothing of use."""
    tables, sets = read_tables(paths), shipped()
    terms, shifts = all_terms(sets), dict[str, float]()
    for number in range(ROUNDS + 1):
        here = moved(sets, shifts)
        rows = all_evidence(tables, here, tell)
        design = Design.of(rows, centred(terms, shifts))
        spreads, weights = fit_spreads(design, tell=tell)
        found = solve(design, spreads, weights)
        change = float(np.abs(found.mean[: len(terms)]).max())
        tell(f"linearised {number + 1} times: {len(rows)} rows, largest move {change:.2f}")
        if number < ROUNDS:
            moves = zip((term.name for term in terms), found.mean[: len(terms)].tolist(), strict=True)
            shifts = {name: round(shifts.get(name, 0.0) + z, DIGITS) for name, z in moves if name not in _UNMOVED}
    digests = {name: set_digest(one) for name, one in sets.sets.items()}
    evidence = EvidenceTable(tuple(rows), centred(terms, shifts), shifts, digests)
    posterior = posterior_of(evidence, design, found, spreads, tables.digests, sets.steps.speedup_error)
    return JointFit(posterior, evidence, spreads)


_UNMOVED = tuple(term.name for term in ASSUMED)
"""Terms of no set: nothing can be moved by them before prices are linear in them."""


def all_evidence(tables: Tables, sets: Fitted, tell: Callable[[str], object]) -> list[Evidence]:
    """Evidence of every table around ``sets``."""
    out: list[Evidence] = []
    for kind, found in tables.by_kind.items():
        if kind is Kind.TRANSFERS:
            out += transfer_evidence(priced_rows(found, sets.transfers), sets)
            continue
        of = {Kind.STEPS: step_evidence, Kind.ITERATIONS: iteration_evidence, Kind.TRAINING: training_evidence}[kind]
        for records in found:
            out += of(records, sets)
        tell(f"{kind}: {len(out)} measured times so far")
    if not out:
        raise InputError("no row of the tables can be simulated")
    return counted_once(out)


def counted_once(rows: Sequence[Evidence]) -> list[Evidence]:
    """``rows`` without the weight transfers of measured steps that a table of transfers holds too: of the same model on
    the same device, as long.
    """

    def told(row: Evidence) -> tuple[str, str, str]:
        return str(row.about["model"]), str(row.about["device"]).lower().split("_")[0], str(row.about[MEASURED_S])

    held = {told(row) for row in rows if row.kind == "transfer"}
    return [row for row in rows if row.kind != "refit" or told(row) not in held]


def centred(terms: Sequence[Term], shifts: Mapping[str, float]) -> tuple[Term, ...]:
    """Terms with their centres seen from the moved sets."""
    return tuple(replace(term, centre=term.centre - shifts.get(term.name, 0.0)) for term in terms)


def posterior_of(
    evidence: EvidenceTable,
    design: Design,
    found: Solution,
    spreads: Spreads,
    digests: Mapping[str, str],
    speculation: float,
    name: str = "joint",
) -> Posterior:
    """The posterior of the terms and of all groups that another scenario can belong to."""
    kept = [
        place for place, column in enumerate(design.columns) if place < design.terms or family_of(column) not in ALONE
    ]
    covariance = found.covariance()[np.ix_(kept, kept)]
    shifts = np.array([evidence.shifts.get(column, 0.0) for column in design.columns])
    counts = Counter(group for row in evidence.rows for group in row.groups)
    columns = tuple(design.columns[place] for place in kept)
    kinds = Counter(row.kind for row in evidence.rows)
    return Posterior(
        name=name,
        description="All fitted terms and group deviations given all measured times (docs/uncertainty.md).",
        digests=evidence.digests,
        columns=columns,
        mean=(shifts + found.mean)[kept],
        factor=np.asarray(np.linalg.cholesky(covariance), dtype=np.float64),
        terms=design.terms,
        spreads={
            **{family: rounded(calibrated(family, value), 4) for family, value in spreads.families.items()},
            **dict.fromkeys(SPECULATION, rounded(speculation / np.sqrt(len(SPECULATION)), 4)),
        },
        errors={kind: rounded(value, 4) for kind, value in spreads.errors.items()},
        degrees=DEGREES,
        group_degrees=GROUP_DEGREES,
        rows={column: counts[column] for column in columns[design.terms :]},
        fit={"command": "rlsim calibrate --jointly", "rows": dict(kinds), "tables": dict(digests)},
        device_order=shipped_order(),
    )
