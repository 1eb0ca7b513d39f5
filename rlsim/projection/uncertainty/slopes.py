"""How a scenario's phases answer to every fitted term: derivatives of their logarithms, without simulating again.

Engine iterations are priced anew at the batches and contexts that the simulation saw; trainer and transfer in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.hosts import HostOverheads, rollout_host
from rlsim.costs.engine.prices import EngineInputs, decode_points_of_hosts_s
from rlsim.costs.interface import EngineCounters
from rlsim.costs.overheads import Overheads, overheads_after
from rlsim.costs.prices import PriceInputs, trained_batch
from rlsim.costs.trainer.layout import TrainedBatch
from rlsim.costs.trainer.training import TrainerInputs, step_cost
from rlsim.costs.transfer.job import WeightTransfer
from rlsim.parameters.sets import SETS, Fitted
from rlsim.parameters.terms import Term, fitted_of, moved, terms_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.schema.base import Strict
from rlsim.schema.scenario import Scenario
from rlsim.tables.operators import OperatorTables
from rlsim.units import FloatArray

STEP = 0.05
"""Deviation of the finite differences."""
POINTS = 16
"""Batches at which iterations are priced again: the iterations of a rollout, in so many parts of equal number."""
LAUNCH_SPREAD = 0.42
"""Launches beyond the captured graphs: a factor of two at 90 %. Published figures of launched operators lie between 5
and 14 us on x86 hosts and between 20 and 37 us on Grace."""
LAUNCH = Term("assumed/eager launches", LAUNCH_SPREAD)
ASSUMED = (LAUNCH,)
"""Terms of no fitted set."""
PHASES = ("generation_s", "logprob_s", "train_s", "transfer_s")

Slopes = Mapping[str, float]
"""Derivative of a logarithm by the name of the term; terms that change nothing are left out."""


class PhaseSlopes(Struct, frozen=True):
    """Slopes of each phase. transfer: of the preparation of a synchronous step, or of an asynchronous refit."""

    generation: Slopes
    logprob: Slopes
    train: Slopes
    transfer: Slopes


def all_terms(fitted: Fitted) -> tuple[Term, ...]:
    """Terms of the sets, and those of none."""
    return (*terms_of(fitted), *ASSUMED)


def phase_slopes(run: SimulatedVariant) -> PhaseSlopes:
    """Slopes of the phases of a simulated scenario around the sets that it uses."""
    inputs = run.inputs
    shared = _Shared.of(run, _moves(fitted_of(run.scenario)))
    drafting = run.scenario.speculation
    hosts = _hosts(shared, drafting.active and drafting.method, inputs.overheads.engine.factor)
    generation = engine_slopes(inputs.engine, run.counters, hosts)
    launched = run.prices.engine.launch_share(run.counters)
    generation = {**generation, **({LAUNCH.name: launched} if launched > 0 else {})}
    if run.scenario.loop.rollouts_alone:  # no trainer, whose layout need not fit the GPUs, and no transfer
        return PhaseSlopes(generation, {}, {}, {})
    logprob, train = _trainer(inputs.trainer, trained_batch(run.first_step), shared)
    transfer = _transfer(shared) if run.scenario.simulation.measured_stack is None else {}
    return PhaseSlopes(generation, logprob, train, transfer)


class _Moves(Struct, frozen=True, eq=False):
    """Fitted sets, and the same with each of their terms moved by STEP, by its name."""

    fitted: Fitted
    after: Mapping[str, Fitted]


@lru_cache(maxsize=8)
def _moves(fitted: Fitted) -> _Moves:
    # The terms that a posterior moves are known by its columns: no need to read where their fits began.
    posterior = fitted.posterior
    names = [term.name for term in terms_of(fitted)] if posterior is None else posterior.columns[: posterior.terms]
    terms = [name for name in names if _set(name) in SETS]
    return _Moves(fitted, {name: moved(fitted, {name: STEP}) for name in terms})


class _Shared(Struct, frozen=True, eq=False):
    """What of a scenario the slopes of trainer and transfer depend on: cells of a sweep that differ in work alone, or
    in what they draft without training it, share them."""

    sections: tuple[Strict | None, ...]
    moves: _Moves
    tables: OperatorTables | None
    scenario: Scenario

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.sections, self.moves, self.tables

    @classmethod
    def of(cls, run: SimulatedVariant, moves: _Moves) -> _Shared:
        scenario = run.scenario
        named = scenario.model, scenario.hardware, scenario.training_hardware, scenario.cluster, scenario.trainer
        trained = scenario.speculation if scenario.speculation.trained_online else None
        parts = *named, scenario.engine, scenario.loop, scenario.stack, trained
        return cls(parts, moves, run.inputs.tables, scenario)


@lru_cache(maxsize=64)
def _hosts(shared: _Shared, drafting: str | bool, factor: float) -> dict[str, HostOverheads]:
    """Host terms of the engine with each term moved; drafting: all that they know of it. factor: of the groups, which
    stays."""
    moves = _moved(shared, ("engines", "steps"))
    return {name: rollout_host(shared.scenario, after.steps, after.engines, factor) for name, after in moves}


def _changed(shared: _Shared, sets: Sequence[str]) -> dict[str, Overheads]:
    """Overheads with each term of some sets moved."""
    scenario = shared.scenario
    now = PriceInputs(scenario, shared.tables).overheads
    return {name: overheads_after(now, scenario, after, _set(name)) for name, after in _moved(shared, sets)}


def _moved(shared: _Shared, sets: Sequence[str]) -> Iterator[tuple[str, Fitted]]:
    """Terms of some sets, and all sets with each of them moved."""
    return ((name, after) for name, after in shared.moves.after.items() if _set(name) in sets)


def _set(term: str) -> str:
    """Name of the set that a term belongs to."""
    return term.partition("/")[0]


def engine_slopes(inputs: EngineInputs, counters: EngineCounters, hosts: Mapping[str, HostOverheads]) -> Slopes:
    """Slopes of the time of the counted iterations. hosts: host terms of the engine with each term moved by STEP."""
    sequences, contexts, counts = points_of(counters)
    if not len(counts):
        return {}
    base_s, changes_s = point_changes_s(inputs, sequences, contexts, hosts)
    whole_s = float(counts @ base_s) + counters.prefill_s
    found = {name: float(counts @ change) / whole_s for name, change in changes_s.items()}
    return {name: slope for name, slope in found.items() if slope}


def point_changes_s(
    inputs: EngineInputs, sequences: FloatArray, contexts: FloatArray, hosts: Mapping[str, HostOverheads]
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Seconds of an iteration at each point, and by term its derivative there.

    hosts: host terms of the engine with each term moved by STEP. The iteration is linear in few host values, so that it
    is priced once for each of them and not for each of many terms.
    """
    now, moves = inputs.host, dict[str, tuple[HostOverheads, float]]()
    for name in HostOverheads.__struct_fields__:
        if any(getattr(host, name) != getattr(now, name) for host in hosts.values()):
            # A term of 0 needs a step as well: a tenth of a microsecond.
            step = max(0.05 * getattr(now, name), 1e-7)
            moves[name] = replace(now, **{name: getattr(now, name) + step}), step
    found_s = decode_points_of_hosts_s(inputs, [now, *(host for host, _ in moves.values())], sequences, contexts)
    base_s = found_s[0]
    by_field = {
        name: (after_s - base_s) / step for (name, (_, step)), after_s in zip(moves.items(), found_s[1:], strict=True)
    }
    out = {}
    for name, host in hosts.items():
        change = sum(
            (slope * (getattr(host, field) - getattr(now, field)) for field, slope in by_field.items()),
            np.zeros(len(base_s)),
        )
        if change.any():
            out[name] = change / STEP
    return base_s, out


def points_of(counters: EngineCounters) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Batches, contexts and numbers of iterations that stand for those that were counted."""
    counts, contexts = np.asarray(counters.iterations_at), np.asarray(counters.context_at)
    # From 1 on: at place 0 no sequence decodes.
    used = np.flatnonzero(counts[1:] > 0) + 1
    if not len(used):
        return np.zeros(0), np.zeros(0), np.zeros(0)
    # Parts of equally many iterations: long tails of small batches get as many points as they take iterations.
    place = np.minimum((np.cumsum(counts[used]) / counts[used].sum() * POINTS).astype(int), POINTS - 1)
    weights = np.bincount(place, counts[used], POINTS)
    filled = weights > 0
    batches = np.bincount(place, counts[used] * used, POINTS)[filled] / weights[filled]
    means = np.bincount(place, contexts[used], POINTS)[filled] / weights[filled]
    # Whole sequences and at least one token of context, which logarithms of the tables need.
    return np.round(batches), np.maximum(means, 1.0), np.asarray(weights[filled], dtype=np.float64)


@lru_cache(maxsize=64)
def _trainer(inputs: TrainerInputs, batch: TrainedBatch, shared: _Shared) -> tuple[Slopes, Slopes]:
    """Slopes of log-prob passes and of the update."""
    base = step_cost(inputs, batch)
    logprob: dict[str, float] = {}
    train: dict[str, float] = {}
    for name, changed in _changed(shared, ("training", "steps")).items():
        if not changed.training.read_otherwise(inputs.overheads, inputs.model, inputs.trainer):
            continue
        after = step_cost(replace(inputs, overheads=changed.training), batch)
        for out, before, then in ((logprob, base.logprob, after.logprob), (train, base.train, after.train)):
            if then.seconds != before.seconds:
                out[name] = float(np.log(then.seconds / before.seconds)) / STEP
    return logprob, train


@lru_cache(maxsize=64)
def _transfer(shared: _Shared) -> Slopes:
    scenario, now = shared.scenario, PriceInputs(shared.scenario, shared.tables).transfers

    def seconds(transfer: WeightTransfer) -> float:
        prepared = scenario.loop.mode == "sync" or scenario.cluster.colocated  # what a step waits for
        return (transfer.prepare() if prepared else transfer.transfer()).seconds

    base, out = seconds(now), dict[str, float]()
    for name, overheads in _changed(shared, ("transfers", "steps")).items():
        mine, others = now.overheads, overheads
        if (mine.refit, mine.handover_tensor_s) == (others.refit, others.handover_tensor_s):
            continue
        after = seconds(now.under(overheads))
        if after != base:
            out[name] = float(np.log(after / base)) / STEP
    return out
