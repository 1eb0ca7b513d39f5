"""The space a plan is looked for in: pools of GPUs, engines on them, trainers on them, each valid by itself.

A plan is a pool (GPUs, policy lag, split), an engine (parallel layout and drafting) on its generating GPUs and a
trainer layout on its training GPUs. The three meet only in sums and maxima of their times, so that each pair is looked
at once instead of every combination.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rlsim.costs.memory import engine_memory, trainer_memory
from rlsim.errors import Infeasible, InputError
from rlsim.planning.variation import split_gpus, varied
from rlsim.schema.scenario import Scenario

Assignment = dict[str, str]

ENGINE_TENSOR = (1, 2, 4, 8, 16, 32)
TRAINER_TENSOR = (1, 2, 4, 8)
TRAINER_PIPELINE = (1, 2, 4, 8, 16)
TRAINER_CONTEXT = (1, 2, 4, 8)
TRAINER_EXPERT = (1, 2, 4, 8, 16, 32, 64)
DRAFT_LENGTHS = tuple(range(8))
SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)
"""Powers of two are what models and nodes divide by; drafts beyond 7 and splits beyond a quarter seldom pay."""

_NO_TRAINER = {f"trainer.{name}_parallel": "1" for name in ("tensor", "pipeline", "context", "expert")}
_NO_ENGINE = {f"engine.{name}_parallel": "1" for name in ("tensor", "pipeline", "expert", "attention_data")}


@dataclass(frozen=True)
class Rejected:
    """A part of a plan that cannot run: what was needed of what is there, in ``unit`` (0 where it is no amount)."""

    assignment: Assignment
    reason: str
    needed: float = 0.0
    available: float = 0.0
    unit: str = ""

    @classmethod
    def by(cls, assignment: Assignment, error: Infeasible) -> Rejected:
        """What ``error`` says of a part."""
        return cls(assignment, error.reason, error.needed, error.available, error.unit)

    @property
    def excess(self) -> float:
        """Needed over available; infinite where it is no amount."""
        return self.needed / self.available if self.available > 0 else float("inf")


@dataclass(frozen=True)
class Pool:
    """GPUs, policy lag and split, as overrides of the scenario."""

    gpus: int
    lag: int
    generation: int
    training: int
    assignment: Assignment

    @property
    def group(self) -> tuple[int, int]:
        """Plans of one group compete for the same place in the answer: same GPUs, same staleness."""
        return self.gpus, self.lag


@dataclass
class Space:
    """Valid parts by pool, and what was left out. same_domain: TP and EP groups stay within one NVLink domain."""

    pools: list[Pool]
    engines: dict[int, list[Assignment]] = field(default_factory=dict)
    trainers: dict[int, list[Assignment]] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    considered: int = 0

    @property
    def configurations(self) -> int:
        """Valid combinations of pool, engine and trainer."""
        return sum(len(self.engines[i]) * len(self.trainers[i]) for i in range(len(self.pools)))


@dataclass(frozen=True)
class Limits:
    """Constraints on the parts of a plan. memory_headroom: share of device memory that must stay free."""

    sizes: tuple[int, ...]
    lags: tuple[int, ...]
    memory_headroom: float = 0.0
    same_domain: bool = True
    draft_lengths: tuple[int, ...] | None = None
    shares: tuple[float, ...] = SHARES
    methods: tuple[Assignment, ...] = ()


def build_space(scenario: Scenario, limits: Limits) -> Space:
    """Enumerate pools, and the engines and trainers that are valid and fit on them."""
    space = Space(list(_pools(scenario, limits)))
    for number, pool in enumerate(space.pools):
        engines = [
            layout | drafting
            for layout in _engine_layouts(scenario, limits, pool.generation)
            for drafting in _draftings(scenario, limits)
        ]
        trainers = list(_trainer_layouts(scenario, limits, pool.training))
        space.considered += len(engines) * len(trainers)
        space.engines[number] = [a for a in engines if _engine_fits(scenario, pool, a, limits, space)]
        space.trainers[number] = [a for a in trainers if _trainer_fits(scenario, pool, a, limits, space)]
    return space


def _pools(scenario: Scenario, limits: Limits) -> Iterator[Pool]:
    for gpus, lag in itertools.product(limits.sizes, limits.lags):
        if lag == 0:
            yield Pool(gpus, 0, gpus, gpus, {"cluster.num_gpus": str(gpus), "lag": "0"})
            continue
        seen: set[int] = set()
        for share in sorted({*limits.shares, *_own_share(scenario, gpus)}):
            generation = split_gpus(gpus, share, 1, 1) if gpus > 1 else 0
            if generation in seen or not 0 < generation < gpus:
                continue
            seen.add(generation)
            split = {"cluster.generation_gpus": str(generation), "cluster.training_gpus": str(gpus - generation)}
            yield Pool(
                gpus, lag, generation, gpus - generation, {"cluster.num_gpus": str(gpus), "lag": str(lag), **split}
            )


def _own_share(scenario: Scenario, gpus: int) -> tuple[float, ...]:
    cluster = scenario.cluster
    return () if cluster.colocated or gpus != cluster.num_gpus else (cluster.generation / cluster.num_gpus,)


def _engine_layouts(scenario: Scenario, limits: Limits, gpus: int) -> Iterator[Assignment]:
    engine, moe = scenario.engine, scenario.model.moe
    domain = int(scenario.hardware.nvlink_domain_gpus)
    own = (engine.tensor_parallel, engine.pipeline_parallel, engine.expert_parallel)
    found = {own} if not limits.same_domain or engine.tensor_parallel <= domain else set()
    for tp in ENGINE_TENSOR:
        if tp <= gpus and (tp <= domain or not limits.same_domain):
            found |= {(tp, engine.pipeline_parallel, ep) for ep in ({1, tp} if moe is not None else {1})}
    for tp, pp, ep in sorted(found):
        data = engine.attention_data_parallel if tp % engine.attention_data_parallel == 0 else 1
        yield {
            "engine.tensor_parallel": str(tp),
            "engine.pipeline_parallel": str(pp),
            "engine.expert_parallel": str(ep),
            "engine.attention_data_parallel": str(data),
        }


def _draftings(scenario: Scenario, limits: Limits) -> list[Assignment]:
    """No speculation, the scenario's own drafter at every draft length, and further methods as given."""
    lengths = DRAFT_LENGTHS if limits.draft_lengths is None else limits.draft_lengths
    out: list[Assignment] = [{"k": "0"}]
    if scenario.speculation.active:
        out += [{"k": str(k)} for k in lengths if k > 0]
    return out + [method | {"speculation.draft_length": str(k)} for method in limits.methods for k in lengths if k > 0]


def _trainer_layouts(scenario: Scenario, limits: Limits, gpus: int) -> Iterator[Assignment]:
    trainer, moe = scenario.trainer, scenario.model.moe
    domain = int(scenario.hardware.nvlink_domain_gpus) if limits.same_domain else gpus
    own = (
        trainer.tensor_parallel,
        trainer.pipeline_parallel,
        trainer.context_parallel,
        trainer.expert_parallel,
    )
    found = {own} if max(own[0], own[3]) <= domain else set()
    pipelines = TRAINER_PIPELINE if trainer.backend == "megatron" else (1,)
    experts = TRAINER_EXPERT if moe is not None and trainer.backend == "megatron" else (1,)
    for tp, pp, cp, ep in itertools.product(TRAINER_TENSOR, pipelines, TRAINER_CONTEXT, experts):
        if gpus % (tp * pp * cp) == 0 and max(tp, ep) <= domain:
            found.add((tp, pp, cp, ep))
    for sizes in sorted(found):
        names = ("tensor", "pipeline", "context", "expert")
        yield {f"trainer.{name}_parallel": str(size) for name, size in zip(names, sizes, strict=True)}


def _engine_fits(scenario: Scenario, pool: Pool, engine: Mapping[str, str], limits: Limits, space: Space) -> bool:
    try:
        candidate = varied(scenario, {**pool.assignment, **_NO_TRAINER, **engine})
        memory = engine_memory(candidate)
    except Infeasible as error:
        space.rejected.append(Rejected.by(dict(engine), error))
        return False
    except InputError as error:
        space.rejected.append(Rejected(dict(engine), str(error)))
        return False
    return _headroom(sum(memory.parts.values()), candidate, limits, dict(engine), space)


def _trainer_fits(scenario: Scenario, pool: Pool, trainer: Mapping[str, str], limits: Limits, space: Space) -> bool:
    try:
        candidate = varied(scenario, {**pool.assignment, **_NO_ENGINE, **trainer})
        used = sum(trainer_memory(candidate).values())
    except Infeasible as error:
        space.rejected.append(Rejected.by(dict(trainer), error))
        return False
    except InputError as error:
        space.rejected.append(Rejected(dict(trainer), str(error)))
        return False
    return _headroom(used, candidate, limits, dict(trainer), space)


def _headroom(used: float, scenario: Scenario, limits: Limits, part: Assignment, space: Space) -> bool:
    allowed = scenario.hardware.memory_bytes.value * (1 - limits.memory_headroom)
    if used <= allowed:
        return True
    reason = f"leaves less than {limits.memory_headroom:.0%} of device memory free"
    space.rejected.append(Rejected(part, reason, used, allowed, "bytes"))
    return False


def nearest_miss(rejected: Sequence[Rejected]) -> Rejected | None:
    """The part that came closest to fitting; among parts that are no amount, the first."""
    return min(rejected, key=lambda item: item.excess, default=None)


def drafter_of(text: str) -> Assignment:
    """Overrides for ``METHOD:FIRST[:DECAY]``: a drafter by the conditional acceptance of its first position and the
    ratio from one position to the next (default the schema's). Raises InputError."""
    method, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError as error:
        raise InputError(f"--drafter {text}: FIRST and DECAY must be numbers") from error
    if not method or len(values) not in (1, 2):
        raise InputError(f"--drafter '{text}' is not METHOD:FIRST[:DECAY], such as mtp:0.85:0.97")
    out = {
        "speculation.method": method,
        "speculation.acceptance_length": "null",
        "speculation.position_acceptance": "null",
        "speculation.draft": "null",
        "speculation.first_acceptance": str(values[0]),
    }
    return out | ({"speculation.acceptance_decay": str(values[1])} if len(values) == 2 else {})
