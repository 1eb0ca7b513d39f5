"""Published memory without its group: what was fitted on all other rows, and how far its rows then lie from it.

Refitted are what engines' logs say of NCCL's buffers and of vLLM's sampler, what PyTorch's allocator leaves unused, and
the spreads (costs/memory.yaml); a term of which no other row says anything stays, as what sources state does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rlsim.costs.engine_memory import engine_activation_bytes
from rlsim.costs.memory import SPREAD, engine_memory, exchanges_tokens
from rlsim.errors import Infeasible
from rlsim.evidence import Kind
from rlsim.evidence.memory.rows import CACHE, MEMORY, PEAKS, counted, engine_of, objection, trainer_of
from rlsim.evidence.rows import named
from rlsim.evidence.tables import Row, SkippedRow, Table
from rlsim.files.reading import data_folder
from rlsim.units import GIB, FloatArray

TABLES = ("rows.csv", "peaks.csv")
GROUPINGS = {"framework": "framework", "model": "model", "device": "gpu"}
"""Columns of what is left out; engines are frameworks here."""
ENGINES, TRAINERS = "memory of engines", "memory of trainers"
LOGGED = ("activation_gib", "non_torch_gib")
"""Parts of an engine that logs name and terms are fitted to."""
TINY = 1e-9
"""Bytes of a logit with which no sampler is the larger."""


@dataclass(frozen=True)
class Known:
    """A published value beside what is counted with all terms as they are, in its unit.

    kind: ENGINES, TRAINERS, or a column of LOGGED. spread: as it ships, GiB of a cache, of a peak its logarithm's;
    unstated: what of it is because nobody states a release or a loss. slack: whether an allocator's is in a peak. Of a
    cache: unit_gib, GiB of its unit; moved_gib, GiB of sampler and NCCL; held_bytes, of all beside the cache; shares
    experts, whether GPUs do.
    """

    kind: str
    cells: Row
    measured: float
    counted: float
    spread: float = 0.0
    unstated: float = 0.0
    slack: bool = False
    unit_gib: float = 1.0
    moved_gib: tuple[float, float] = (0.0, 0.0)
    held_bytes: float = 0.0
    shares_experts: bool = False

    @property
    def away(self) -> float:
        """How far the value lies from what is counted: GiB of a cache, of a peak its logarithm."""
        if self.kind == TRAINERS:
            return float(np.log(self.measured / self.counted))
        return (self.measured - self.counted) * self.unit_gib


@dataclass(frozen=True)
class LeftOut:
    """Rows of one kind: ln(measured / predicted), draws of it, shape (rows, draws), the shipped spread, groups."""

    kind: str
    log_error: FloatArray
    draws: FloatArray
    single: FloatArray
    groups: int


@cache
def known_rows() -> tuple[Known, ...]:
    """Caches, peaks and logged parts of the shipped tables, without those that their flag objects to."""
    out = []
    for name in TABLES:
        table = Table.read(data_folder("calibration") / "published" / "memory" / name, Kind.MEMORY)
        for (_, problem), record in zip(named(table, MEMORY.harmless_flags), table.rows, strict=True):
            if not problem and not objection(record.cells):
                try:
                    out += _known(record.cells)
                except (SkippedRow, Infeasible):
                    continue
    return tuple(out)


def _known(cells: Row) -> list[Known]:
    quantity = cells["measured_quantity"]
    if quantity not in (*CACHE, *PEAKS, *LOGGED):
        return []
    value, measured = counted(cells)[1], float(cells["value"])
    if quantity in PEAKS:
        scenario, spread = trainer_of(cells)
        slack = scenario.trainer.backend == "fsdp" and quantity != "peak_allocated"
        return [Known(TRAINERS, cells, measured, value, spread, _beyond(spread, SPREAD["trainer"]), slack)]
    scenario, parts, spread_bytes = engine_of(cells)
    forward = engine_activation_bytes(scenario.model, scenario.released_engine, TINY)
    sampler_gib = parts.activations / GIB * (parts.activations > forward)
    if quantity in LOGGED:
        # Of a forward pass that is the larger a log says nothing of the sampler.
        return [Known(quantity, cells, measured, value)] if sampler_gib or quantity == "non_torch_gib" else []
    shared, spread = exchanges_tokens(scenario), spread_bytes / GIB
    unstated = _beyond(spread, SPREAD["engine_moe_gib" if shared else "engine_gib"])
    unit_gib = 1.0 if quantity == "kv_gib" else engine_memory(scenario).kv_bytes / GIB / value
    moved = sampler_gib, parts.runtime / GIB
    return [Known(ENGINES, cells, measured, value, spread, unstated, False, unit_gib, moved, parts.total, shared)]


def _beyond(spread: float, alone: float) -> float:
    return math.sqrt(max(0.0, spread**2 - alone**2))


def left_out(grouping: str, draws: int) -> list[LeftOut]:
    """Every group of a grouping left out in turn, by kind."""
    column, rows = GROUPINGS[grouping], known_rows()
    found = []
    for kind in (ENGINES, TRAINERS):
        errors, drawn, single = [], [], []
        mine = [row for row in rows if row.kind == kind]
        for row in mine:
            rest = [one for one in rows if one.cells[column] != row.cells[column]]
            predicted = _predicted(row, rest)
            errors.append(np.log(row.measured / predicted))
            drawn.append(_draws(row, predicted, rest, draws))
            single.append(row.spread if kind == TRAINERS else row.spread / row.unit_gib / predicted)
        groups = {row.cells[column] for row in mine}
        found.append(LeftOut(kind, np.array(errors), np.array(drawn), np.array(single), len(groups)))
    return found


def _ratio(rows: Sequence[Known]) -> float:
    """Median of measured over counted; 1 where there are no rows."""
    return float(np.median([row.measured / row.counted for row in rows])) if rows else 1.0


def _predicted(row: Known, rest: Sequence[Known]) -> float:
    """What is counted with the terms of the other rows."""
    if row.kind == TRAINERS:
        return row.counted * (_ratio([one for one in rest if one.slack]) if row.slack else 1.0)
    # NCCL's buffers are a table by the GPUs that share a tensor: a log speaks of its own number.
    tensor = [one for one in rest if one.cells["tp"] == row.cells["tp"]]
    scales = (
        _ratio([one for one in known if one.kind == name]) for name, known in zip(LOGGED, (rest, tensor), strict=True)
    )
    more_gib = sum(held * (scale - 1) for held, scale in zip(row.moved_gib, scales, strict=True))
    return row.counted - more_gib / row.unit_gib


def _draws(row: Known, predicted: float, rest: Sequence[Known], count: int) -> FloatArray:
    """Draws of ln(value / predicted), of the spread that the other rows have."""
    generator = np.random.default_rng(0)
    others = [one for one in rest if one.kind == row.kind]
    if row.kind == TRAINERS:
        spread = math.hypot(framework_spread(others, row.cells["framework"]), row.unstated)
        return np.asarray(spread * generator.standard_normal(count))
    own, alone = ([one for one in others if one.shares_experts is shared] for shared in (row.shares_experts, False))
    if own:
        # Mechanisms that only shared experts lack come on top of what all lack.
        spread = max(_root_mean_square([one.away for one in found]) for found in (own, alone or own))
    else:  # of what other engines hold, the share that they lie off
        own = others
        spread = _root_mean_square([one.away / one.held_bytes for one in own]) * row.held_bytes
    # So few logs are known that their spread is drawn as well.
    moved = generator.standard_t(len(own), count) * math.hypot(spread, row.unstated) / row.unit_gib / predicted
    return np.asarray(np.log(np.maximum(1e-3, 1 + moved)))


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def framework_spread(rows: Sequence[Known], name: str | None = None) -> float:
    """Root mean square of ln(measured / counted), every framework alike: some publish dozens of one layout. Of one of
    them (``name``) its own, pooled with that of all, which counts as a row of each."""
    away = {one: [row.away for row in rows if row.cells["framework"] == one] for one in sorted(
        {row.cells["framework"] for row in rows})}  # fmt: skip
    alike = _root_mean_square([_root_mean_square(values) for values in away.values()])
    own = away.get(name or "", [])
    return math.sqrt((sum(value**2 for value in own) + len(away) * alike**2) / (len(own) + len(away)))
