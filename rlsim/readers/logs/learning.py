"""What a log's steps teach of a scenario: its phases as evidence on top of a posterior, a row for each.

Busy seconds of a generation beside training stand in no log. Where its trainer waits for samples the rollout sets the
pace, and how much slower than predicted it generates is what makes the simulated trainer wait as long: the deviation of
this layout's rollout, found by simulation, since the wait begins only where generation takes longer than training.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.optimize import brentq

from rlsim.costs.operators.groups import family_of, phase_groups
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import vary
from rlsim.parameters.posterior import SUFFIX, Posterior
from rlsim.parameters.terms import fitted_of
from rlsim.projection.precision import precise
from rlsim.projection.summary import contract_name
from rlsim.projection.uncertainty.evidence import Evidence, Kind
from rlsim.projection.uncertainty.inputs import layout_spreads
from rlsim.projection.uncertainty.learning import simulated_evidence, updated
from rlsim.projection.uncertainty.predictive import UNMEASURED_SPREAD, posterior_of
from rlsim.projection.uncertainty.sources import origin_of
from rlsim.projection.uncertainty.user_inputs import OWN_LOG, layout_groups
from rlsim.projection.variant import SimulatedVariant, seconds_of, simulate_variant, so_many
from rlsim.readers.logs.reading import WAITS
from rlsim.readers.logs.steady import Steady
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

TOLD = 0.005
"""Least share of a time that a source is named for."""
KINDS: tuple[Kind, ...] = ("step", "generation", "logprob", "train", "refit")
"""Phases that are evidence; generation of an asynchronous run by what its trainer waits."""
ROUNDS = 3
"""Times that a run is learnt again from where it was moved to."""
FASTEST, SLOWEST = -1.0, 2.0
"""Logarithms of generation's seconds over those predicted, between which it is looked for: 0.37 to 7.4 times."""
NEAR = 0.02
"""Of a logarithm of seconds, to which generation is found and up to which slopes hold."""


@dataclass(frozen=True)
class Explained:
    """How one phase's prediction follows its measurement, in logarithms.

    surprise: ln(measured / predicted before). by_source: change of the prediction by what each source moved, largest
    first. left: what stays between measured and predicted.
    """

    surprise: float
    by_source: tuple[tuple[str, float], ...]

    @property
    def left(self) -> float:
        """ln(measured / predicted after)."""
        return self.surprise - sum(change for _, change in self.by_source)


class _Taken(Struct, frozen=True):
    """Rows of evidence, the error of each, and by how much the simulated run misses it, in logarithms."""

    rows: Sequence[Evidence]
    errors: Sequence[float]
    misses: Sequence[float]
    steps: int

    def learnt(self, before: Posterior, name: str, spreads: Mapping[str, float]) -> Posterior:
        """The posterior ``before`` with these rows. spreads: of families of groups that a user's layout may have."""
        told = {"own_rows": len(self.rows), OWN_LOG: name, "own_steps": self.steps}
        wide = replace(before, spreads={**before.spreads, **spreads})
        return replace(updated(wide, self.rows, name, told, self.errors), spreads=before.spreads)


def _spreads(run: SimulatedVariant, before: Posterior) -> dict[str, float]:
    """Spreads of the families of this layout's groups, with all that a user's run leaves open beyond other layouts."""
    open_, found = layout_spreads(run), dict[str, float]()
    for phase, group in layout_groups(run.scenario).items():
        family = family_of(group)
        spread = math.hypot(before.spreads.get(family, UNMEASURED_SPREAD), open_.get(phase, 0.0))
        found[family] = max(found.get(family, 0.0), spread)
    return found


def values_of(run: SimulatedVariant, quantity: str, span: int = 1) -> FloatArray:
    """Simulated seconds of what logs call ``quantity`` in every measured step, or their mean over each ``span`` steps,
    as a log of records that hold as many tells it."""
    name = contract_name(quantity, run.scenario.loop.mode)
    found = [step.seconds if name == "step" else step.phases[name] for step in run.every_step]
    return _over(np.array(found), span)


def predicted_of(run: SimulatedVariant, quantity: str, span: int = 1) -> float:
    """Median of :func:`values_of` in seconds, of steps moved by a control of their drawn work as means of answers are:
    one run has one prediction, in its evidence and in every table."""
    return _middle_s(run, contract_name(quantity, run.scenario.loop.mode), span)


def _middle_s(run: SimulatedVariant, phase: str, span: int) -> float:
    """Median of a phase's moved steps in seconds."""
    return float(np.median(_over(np.concatenate(run.values(seconds_of(phase))), span)))


def _over(values: FloatArray, span: int) -> FloatArray:
    """Means over each ``span`` values that follow one another; over all where there are fewer."""
    size = min(span, values.size)
    return np.asarray(values[: values.size // size * size].reshape(-1, size).mean(axis=1))


def learn_run(run: SimulatedVariant, steady: Steady, name: str) -> tuple[Posterior, dict[str, Explained]]:
    """The posterior of the simulated ``run`` with the measured phases as evidence, and what that changed of each.

    Slopes hold near where they were taken: where the run with what was learnt is further from its measurements than
    they say, it is learnt again from there (an iterated Kalman filter), ROUNDS times at most. Raises InputError where
    the scenario names fitted sets of its own, which no posterior moves, or no phase is evidence.
    """
    scenario = run.scenario
    if fitted_of(scenario).posterior is None:
        raise InputError(
            f"scenario '{scenario.name}': a run moves the posterior, and its simulation.posterior or another set in "
            "simulation is its own; leave them out"
        )
    before = posterior_of(scenario)
    first = found = _taken(run, steady, name, before, before)
    if not first.rows:
        raise InputError(f"{name}: none of its phases is one that scenario '{scenario.name}' has")
    spreads, left = _spreads(run, before), dict[Kind, float]()
    after = found.learnt(before, name, spreads)
    with tempfile.TemporaryDirectory(prefix="rlsim-") as folder:
        for number in range(ROUNDS):
            own = after.at(Path(folder) / f"{number}{SUFFIX}")
            moved = precise(simulate_variant(vary(scenario, own)))
            now = _taken(moved, steady, name, before, after)
            told = {row.kind: row.surprise - sum(_changes(row, before, after).values()) for row in found.rows}
            missed = {row.kind: miss for row, miss in zip(now.rows, now.misses, strict=True)}
            if missed.keys() != told.keys() or all(abs(missed[kind]) <= abs(told[kind]) + NEAR for kind in told):
                break
            found, after, left = now, now.learnt(before, name, spreads), missed
    surprises = {row.kind: miss for row, miss in zip(first.rows, first.misses, strict=True)}
    return after, {
        row.kind: _explained(row, surprises[row.kind], scenario, before, after, left.get(row.kind))
        for row in found.rows
        if row.kind in surprises
    }


def _taken(run: SimulatedVariant, steady: Steady, name: str, before: Posterior, at: Posterior) -> _Taken:
    """The evidence of the steps around ``run``, which is simulated with the posterior ``at``."""
    scenario, span = run.scenario, steady.span
    measured: dict[Kind, float] = {}
    for kind in KINDS:
        found = steady.found.get(kind)
        if found is not None and found.median > 0 and (kind != "generation" or scenario.loop.mode == "sync"):
            measured[kind] = found.median
    own = {kind: steady.found[kind].error(values_of(run, kind, span)) for kind in measured}
    if (wait := waited(scenario, steady, at)) is not None:
        measured["generation"] = _middle_s(run, "generation_s", span) * math.exp(wait.slower)
        own["generation"] = wait.error
        # A step is its phases: what it waits counts once.
        if "train" in measured:
            measured.pop("step", None)

    def centre(values: Sequence[float]) -> float:
        return float(np.median(_over(np.array(values), span)))

    rows = simulated_evidence(name, run, measured, phase_groups(scenario), centre, at)
    misses = [row.surprise - sum(share * at.mean_of(group) for group, share in row.groups.items()) for row in rows]
    # Rows are around the terms as ``before`` has them.
    moved = {term: at.mean_of(term) - before.mean_of(term) for row in rows for term in row.slopes}
    moves = [sum(slope * moved[term] for term, slope in row.slopes.items()) for row in rows]
    # The error of a published time of its kind, although no rounding is in a log: it also holds what the model misses
    # of this one batch and layout, which another batch of the same run does not share.
    errors = [math.hypot(before.errors[row.kind], own[row.kind]) for row in rows]
    counts = [one.count for kind, one in steady.found.items() if kind in (*measured, "exposed_generation")]
    rows = [replace(row, surprise=row.surprise + move) for row, move in zip(rows, moves, strict=True)]
    return _Taken(rows, errors, misses, max(counts, default=0))


def _changes(row: Evidence, before: Posterior, after: Posterior) -> dict[str, float]:
    """Change of the logarithm of a row's seconds by each term and group; groups from none, as its surprise is."""
    terms = {name: slope * (after.mean_of(name) - before.mean_of(name)) for name, slope in row.slopes.items()}
    return terms | {name: share * after.mean_of(name) for name, share in row.groups.items()}


def _explained(
    row: Evidence, surprise: float, scenario: Scenario, before: Posterior, after: Posterior, left: float | None
) -> Explained:
    """Changes of one phase's prediction, added up by the source that each term and group belongs to. left: as
    simulated, where slopes do not tell it; the changes then share what was explained."""
    changes: dict[str, float] = {}
    for name, slope in (*row.slopes.items(), *row.groups.items()):
        change = slope * (after.mean_of(name) - before.mean_of(name))
        if change:
            source = origin_of(name, scenario, before).text
            changes[source] = changes.get(source, 0.0) + change
    total = sum(changes.values())
    scale = 1.0 if left is None or not total else (surprise - left) / total
    told = sorted(changes.items(), key=lambda entry: -abs(entry[1]))
    return Explained(surprise, tuple((source, scale * change) for source, change in told))


class Waited(Struct, frozen=True):
    """slower: logarithm of generation's seconds over those predicted; error: what the steps of the log leave open of
    it."""

    slower: float
    error: float


def waited(scenario: Scenario, steady: Steady, before: Posterior) -> Waited | None:
    """How much slower than predicted a run of ``scenario`` generates, by the wait of its trainer; None where that says
    nothing: it hardly waits, waits for environments, or nothing within the bounds makes it wait so."""
    step, exposed = steady.found.get("step"), steady.found.get("exposed_generation")
    work = scenario.workload
    if scenario.loop.mode != "async" or step is None or exposed is None or exposed.mean < WAITS * step.mean:
        return None
    group = layout_groups(scenario).get("generation")
    if group is None or work.agent is not None or work.environment_s:
        return None
    with tempfile.TemporaryDirectory(prefix="rlsim-") as folder:
        excess = _excess(scenario, before, group, exposed.mean, Path(folder))
        try:
            if excess(FASTEST) > 0 or excess(SLOWEST) < 0:
                return None
            slower = float(brentq(excess, FASTEST, SLOWEST, xtol=NEAR))
            ends = excess(slower - 0.1), excess(slower + 0.1)
        except Infeasible:
            return None
    # Seconds of the wait by the logarithm of generation's.
    slope = (ends[1] - ends[0]) / 0.2
    spread = (exposed.high - exposed.low) / 2 / exposed.count**0.5
    return Waited(slower, spread / slope) if slope > 0 else None


def _excess(
    scenario: Scenario, before: Posterior, group: str, wanted_s: float, folder: Path
) -> Callable[[float], float]:
    """Seconds that the simulated trainer waits beyond ``wanted_s``, by the logarithm of generation's time."""
    known: dict[float, float] = {}

    def excess(slower: float) -> float:
        if slower not in known:
            own = _deviating(before, group, slower).at(folder / f"{len(known)}{SUFFIX}")
            one = vary(scenario, {**so_many(scenario, 1), **own})
            steps = simulate_variant(one, tokens=False).every_step
            known[slower] = float(np.mean([step.phases["exposed_generation_s"] for step in steps])) - wanted_s
        return known[slower]

    return excess


def _deviating(posterior: Posterior, group: str, by: float) -> Posterior:
    """``posterior`` with the mean of ``group`` moved by ``by``."""
    place, mean = posterior.place(group), posterior.mean_of(group) + by
    if place is not None:
        means = posterior.mean.copy()
        means[place] = mean
        return replace(posterior, mean=means)
    size = len(posterior.columns)
    factor = np.zeros((size + 1, size + 1))
    factor[:size, :size], factor[size, size] = posterior.factor, NEAR
    return replace(
        posterior, columns=(*posterior.columns, group), mean=np.append(posterior.mean, mean), factor=factor,
        rows={**posterior.rows, group: 1},
    )  # fmt: skip
