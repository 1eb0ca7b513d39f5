"""From tables of every kind to one posterior of all fitted terms and group deviations (:mod:`hierarchy`).

The fitted sets are where the joint fit starts. Predictions are linearised around them, the posterior's mean moves
them, and the predictions are linearised again around the moved sets. Terms of training steps have an optimum of their
own (:mod:`trained_terms`) and stay there. At the end no term moves without being priced: the last linearisation is that
of the posterior's mean, and its real errors are held against what the linear model claimed of them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from rlsim.costs.operators.groups import family_of
from rlsim.errors import InputError
from rlsim.evidence import Kind, hierarchy
from rlsim.evidence.compare import validated
from rlsim.evidence.left_out import with_new_scales
from rlsim.evidence.structure import compared_times, step_s_of, step_times, tokens_of, was_predicted
from rlsim.evidence.tables import Table, kind_of
from rlsim.evidence.transfers import each_once
from rlsim.parameters.posterior import Posterior, shipped_order
from rlsim.parameters.sets import Fitted, set_digest, shipped
from rlsim.parameters.terms import moved, term_family
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence, EvidenceTable
from rlsim.projection.uncertainty.slopes import ASSUMED, all_terms
from rlsim.results.record import rounded
from rlsim.results.validation import ComparedRow

Tables = Mapping[Kind, Sequence[Table]]
Progress = Callable[[str], object]
NOT_A_LOAD = 0.5
"""A row that takes less than this share of what its kernels alone take was measured under another load than it says."""

ROUNDS = 4
"""Moves of the terms."""
HELD = (
    "training/", "engines/", "steps/host/", "steps/sequence_s", "steps/in_process", "steps/executor_s",
    "steps/node_executor_s", "steps/host_cpu_factors",
)  # fmt: skip
"""Beginnings of the names of terms that stay where their sets have them. Those of training steps and of engines lie at
an optimum of their own, which no group has a part in. What RL frameworks add to a rollout's host is known from totals
of steps alone, which do not tell it from the trainer's host: moving both, either may take what the other lacks."""
ALLOWED, SLACK = 1.1, 0.002
"""Real median error over the linear model's, and what it may exceed that by besides."""
ALONE = ("engine setup", "rollout of run", "training of run", "transfer of run")
"""Families whose groups no other scenario can belong to; the posterior holds their spread only."""
SPECULATION = ("speculation", "draft length")
"""Families of what a speculating rollout misses beyond the same rollout without speculation: in equal parts whatever it
drafts, and of its draft length alone (an assumption: measured speed-ups do not tell them apart)."""
DIGITS = 5
_UNMOVED = {term.name for term in ASSUMED}
"""Terms of no set: nothing can be moved by them."""


@dataclass(frozen=True)
class JointFit:
    """Result of the joint fit of all tables. evidence: every row linearised around the posterior's mean."""

    posterior: Posterior
    evidence: EvidenceTable
    spreads: hierarchy.Spreads

    @property
    def members(self) -> Counter[str]:
        """Number of groups or terms of each family."""
        groups = {group for row in self.evidence.rows for group in row.groups}
        return Counter(map(family_of, groups)) + Counter(term_family(term.name) for term in self.evidence.terms)


def read_tables(paths: Sequence[Path]) -> Tables:
    """The tables at ``paths`` by kind; raises InputError for a kind that is no evidence."""
    out: dict[Kind, list[Table]] = {}
    for path in paths:
        kind = kind_of(path)
        if kind not in (Kind.STEPS, Kind.ITERATIONS, Kind.TRAINING, Kind.TRANSFERS):
            raise InputError(f"{path.name}: a table of {kind} is no evidence of the joint fit")
        out.setdefault(kind, []).append(Table.read(path))
    return out


def fit_jointly(paths: Sequence[Path], progress: Progress = lambda line: None) -> JointFit:
    """Fit all terms and groups to the tables at ``paths``.

    Raises InputError where a table holds nothing of use, or where the predictions are worse than the linear model of
    them claims.
    """
    tables, sets = read_tables(paths), shipped()
    terms, shifts = all_terms(sets), dict[str, float]()
    fixed = np.array([term.name in _UNMOVED or term.name.startswith(HELD) for term in terms])
    claimed: Mapping[str, float] = {}
    for number in range(ROUNDS + 1):
        last = number == ROUNDS
        rows = all_evidence(tables, moved(sets, shifts), progress)
        # Centres of terms as seen from the moved sets.
        centred = tuple(replace(term, centre=term.centre - shifts.get(term.name, 0.0)) for term in terms)
        design = hierarchy.Design.of(rows, centred, moved(sets, shifts))
        spreads, weights = hierarchy.fit_spreads(design, progress=progress)
        # The last linearisation moves no term, so that every stored mean has been priced; groups are still solved for.
        held = np.concatenate([np.where(fixed | last, 0.0, np.nan), np.full(len(design.families), np.nan)])
        found = hierarchy.solve(design, spreads, weights, held=held)
        spreads = with_new_scales(design, spreads, weights, rows) if last else spreads
        change = float(np.abs(found.mean[: len(terms)]).max())
        progress(f"linearised {number + 1} times: {len(rows)} rows, largest move {change:.2f}")
        errors = _median_errors(design, found)
        if last:
            _must_hold(errors, claimed)
        claimed = errors
        moves = zip((term.name for term in terms), found.mean[: len(terms)].tolist(), strict=True)
        # Rounded before they are priced: the stored shifts are exactly those that were.
        shifts = shifts if last else {name: round(shifts.get(name, 0.0) + z, DIGITS) for name, z in moves}
    digests = {name: set_digest(one) for name, one in sets.sets.items()}
    evidence = EvidenceTable(tuple(rows), centred, shifts, digests)
    posterior = _posterior(evidence, design, found, spreads, sets.steps.speedup_error)
    read = {
        table.name: table.digest for path in paths for of in tables.values() for table in of if table.name == path.name
    }
    fit = {
        "command": "rlsim calibrate fit", "rows": dict(Counter(row.kind for row in rows)), "tables": read,
        "median_errors": {kind: rounded(error, 4) for kind, error in claimed.items()},
    }  # fmt: skip
    return JointFit(replace(posterior, fit=fit), evidence, spreads)


def _median_errors(design: hierarchy.Design, found: hierarchy.Solution) -> dict[str, float]:
    """Median size of what is left of the measured times of each kind, in logarithms."""
    left, kinds = np.abs(design.log_error - design.matrix @ found.mean), np.array(design.kinds)
    return {kind: float(np.median(left[kinds == kind])) for kind in dict.fromkeys(design.kinds)}


def _must_hold(real: Mapping[str, float], claimed: Mapping[str, float]) -> None:
    """Raise InputError where real median errors exceed what a linear model claimed of them."""
    for kind, error in real.items():
        # Of each phase there are too few rows for a stable median.
        if kind in claimed and kind not in hierarchy.PHASES and error > ALLOWED * claimed[kind] + SLACK:
            raise InputError(
                f"the fit does not hold: times of kind {kind} are off by {100 * error:.1f} % in the median, where the "
                f"linear model claims {100 * claimed[kind]:.1f} %; no posterior is written"
            )


def all_evidence(tables: Tables, sets: Fitted, progress: Progress = lambda line: None) -> list[Evidence]:
    """Evidence of every table around ``sets``; iterations under another load than they say are left out."""
    out: list[Evidence] = []
    for kind, found in tables.items():
        usable = _as_it_says if kind is Kind.ITERATIONS else was_predicted
        if kind is Kind.TRANSFERS:  # each measurement once, none that any of the tables objects to
            compared = each_once([row for table in found for row in validated(kind, table, sets).rows])
            every = [record for table in found for record in table.rows]
            known = [record for row, record in zip(compared, every, strict=True) if row.error is not None]
            found = [Table("transfers", known)]
        for table in found:
            if kind is Kind.STEPS:
                out += step_times(table, sets)[0]
            else:
                out += compared_times(kind, validated(kind, table, sets).rows, table, sets, usable)[0]
        progress(f"{kind}: {len(out)} measured times so far")
    if not out:
        raise InputError("no row of the tables can be simulated")
    return counted_once(out)


def _as_it_says(row: ComparedRow) -> bool:
    if row.predicted is None or row.measured is None:
        return False
    return row.measured >= NOT_A_LOAD * 1e3 * step_s_of(row) / tokens_of(row)


def counted_once(rows: Sequence[Evidence]) -> list[Evidence]:
    """``rows`` without the weight transfers of measured steps that a table of transfers holds too: of the same model on
    the same device, as long.
    """

    def name(row: Evidence) -> tuple[str, str, str]:
        return str(row.about["model"]), str(row.about["device"]).lower().split("_")[0], str(row.about[MEASURED_S])

    held = {name(row) for row in rows if row.kind == "transfer"}
    return [row for row in rows if row.kind != "refit" or name(row) not in held]


def _posterior(
    evidence: EvidenceTable,
    design: hierarchy.Design,
    found: hierarchy.Solution,
    spreads: hierarchy.Spreads,
    speculation: float,
) -> Posterior:
    """The posterior of the terms and of all groups that another scenario can belong to."""
    places = [
        place for place, column in enumerate(design.columns) if place < design.terms or family_of(column) not in ALONE
    ]
    # Dropping rows and columns of a covariance marginalises; of its inverse it would condition.
    covariance = found.covariance()[np.ix_(places, places)]
    shifts = np.array([evidence.shifts.get(column, 0.0) for column in design.columns])
    counts = Counter(group for row in evidence.rows for group in row.groups)
    columns = tuple(design.columns[place] for place in places)
    return Posterior(
        name="joint",
        description="All fitted terms and group deviations given all measured times (docs/uncertainty.md).",
        digests=evidence.digests,
        columns=columns,
        mean=(shifts + found.mean)[places],
        factor=np.asarray(np.linalg.cholesky(covariance), dtype=np.float64),
        terms=design.terms,
        spreads={
            **{family: rounded(spreads.of_new(family), 4) for family in spreads.families},
            # Variances of the parts add up to that of the speed-up.
            **dict.fromkeys(SPECULATION, rounded(speculation / np.sqrt(len(SPECULATION)), 4)),
        },
        errors={kind: rounded(value, 4) for kind, value in spreads.errors.items()},
        degrees=hierarchy.DEGREES,
        group_degrees=hierarchy.GROUP_DEGREES,
        rows={column: counts[column] for column in columns[design.terms :]},
        fit={},
        device_order=shipped_order(),
    )
