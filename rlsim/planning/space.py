"""The space a plan is looked for in: splits of the GPUs, engines on them, trainers on them, each valid by itself.

A plan is a split (GPUs, policy lag, pools), an engine (parallel layout and drafting) on its generating GPUs and a
trainer layout on its training GPUs. The three meet only in sums and maxima of their times, so that each pair is looked
at once instead of every combination.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlsim.costs.memory import engine_memory, trainer_memory
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides, split_gpus
from rlsim.planning.layouts import Drafter, Drafting, Engine, EngineLayout, GpuSplit, TrainerLayout
from rlsim.projection.uncertainty.nearest import NEAR, distance
from rlsim.report.format import percent
from rlsim.schema.scenario import Scenario

ENGINE_TENSOR = (1, 2, 4, 8, 16, 32)
TRAINER_TENSOR = (1, 2, 4, 8)
TRAINER_PIPELINE = (1, 2, 4, 8, 16)
TRAINER_CONTEXT = (1, 2, 4, 8)
TRAINER_EXPERT = (1, 2, 4, 8, 16, 32, 64)
DRAFT_LENGTHS = tuple(range(8))
SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)
"""Powers of two are what models and nodes divide by; drafts beyond 7 and splits beyond a quarter seldom pay."""


@dataclass(frozen=True)
class InfeasiblePart:
    """A part of a plan that cannot run: what was needed of what is there, in ``unit`` (0 where it is no amount)."""

    overrides: Overrides
    reason: str
    needed: float = 0.0
    available: float = 0.0
    unit: str = ""

    @classmethod
    def by(cls, overrides: Overrides, error: Infeasible | InputError) -> InfeasiblePart:
        """What ``error`` says of a part."""
        if isinstance(error, Infeasible):
            return cls(overrides, error.reason, error.needed, error.available, error.unit)
        return cls(overrides, str(error))

    @property
    def excess(self) -> float:
        """Needed over available; infinite where it is no amount."""
        return self.needed / self.available if self.available > 0 else float("inf")


@dataclass
class Space:
    """Valid parts by number of the split, and what was left out.

    near_trainers: those of ``trainers`` that lie near a measured training step, and the scenario's own.
    """

    splits: list[GpuSplit]
    engines: dict[int, list[Engine]] = field(default_factory=dict)
    trainers: dict[int, list[TrainerLayout]] = field(default_factory=dict)
    near_trainers: dict[int, list[TrainerLayout]] = field(default_factory=dict)
    rejected: list[InfeasiblePart] = field(default_factory=list)
    considered: int = 0

    @property
    def usable(self) -> list[int]:
        """Numbers of the splits on which some engine and some trainer fit."""
        return [number for number in range(len(self.splits)) if self.engines[number] and self.trainers[number]]

    @property
    def configurations(self) -> int:
        """Valid combinations of split, engine and trainer."""
        return sum(len(self.engines[i]) * len(self.trainers[i]) for i in range(len(self.splits)))


@dataclass(frozen=True)
class SearchLimits:
    """Where a plan is looked for. memory_headroom: share of device memory that must stay free. same_domain: TP and EP
    groups stay within one NVLink domain. drafters: further ones beside the scenario's own. near_evidence: only layouts
    that lie near measured runs."""

    sizes: tuple[int, ...]
    lags: tuple[int, ...]
    memory_headroom: float = 0.0
    same_domain: bool = True
    draft_lengths: tuple[int, ...] | None = None
    shares: tuple[float, ...] = SHARES
    drafters: tuple[Drafter, ...] = ()
    near_evidence: bool = False

    def headroom_miss(self, scenario: Scenario, used_bytes: float, overrides: Overrides) -> InfeasiblePart | None:
        """Why ``used_bytes`` of a GPU leave too little of it free; None where they do not."""
        allowed = scenario.hardware.memory_bytes.value * (1 - self.memory_headroom)
        reason = f"leaves less than {percent(self.memory_headroom)} of device memory free"
        return InfeasiblePart(overrides, reason, used_bytes, allowed, "bytes") if used_bytes > allowed else None


def build_space(scenario: Scenario, limits: SearchLimits) -> Space:
    """Enumerate splits, and the engines and trainers that are valid and fit on them."""
    space = Space(list(_splits(scenario, limits)))
    for number, split in enumerate(space.splits):
        engines = [
            Engine(layout, drafting)
            for layout in _engine_layouts(scenario, limits, split.generation)
            for drafting in _draftings(scenario, limits)
        ]
        trainers = _trainer_layouts(scenario, limits, split.training)
        space.considered += len(engines) * len(trainers)
        space.engines[number], space.trainers[number], space.near_trainers[number] = [], [], []
        try:  # with plain layouts, from which every part is one section away
            plain = vary(scenario, {**split.overrides(), **EngineLayout().overrides(), **TrainerLayout().overrides()})
        except InputError as error:
            parts: list[Engine | TrainerLayout] = [*engines, *trainers]
            space.rejected += [InfeasiblePart.by(part.overrides(), error) for part in parts]
            continue
        space.engines[number] += [engine for engine in engines if _fitting(plain, engine, limits, space)]
        for trainer in trainers:
            candidate = _fitting(plain, trainer, limits, space)
            if candidate is None:
                continue
            space.trainers[number].append(trainer)
            if trainer == own_trainer(scenario) or distance(candidate, "training") <= NEAR:
                space.near_trainers[number].append(trainer)
    return space


def _splits(scenario: Scenario, limits: SearchLimits) -> Iterator[GpuSplit]:
    for gpus, lag in itertools.product(limits.sizes, limits.lags):
        if lag == 0:
            yield GpuSplit(gpus, 0, gpus, gpus)
            continue
        shares = sorted({*limits.shares, *_own_share(scenario, gpus)}) if gpus > 1 else []
        for generation in dict.fromkeys(split_gpus(gpus, share, 1, 1) for share in shares):
            if 0 < generation < gpus:
                yield GpuSplit(gpus, lag, generation, gpus - generation)


def _own_share(scenario: Scenario, gpus: int) -> tuple[float, ...]:
    cluster = scenario.cluster
    return () if cluster.colocated or gpus != cluster.num_gpus else (cluster.generation / cluster.num_gpus,)


def _engine_layouts(scenario: Scenario, limits: SearchLimits, gpus: int) -> list[EngineLayout]:
    engine, moe = scenario.engine, scenario.model.moe
    domain = int(scenario.hardware.nvlink_domain_gpus)
    own = (engine.tensor_parallel, engine.pipeline_parallel, engine.expert_parallel)
    found = {own} if not limits.same_domain or engine.tensor_parallel <= domain else set()
    for tp in ENGINE_TENSOR:
        if tp <= gpus and (tp <= domain or not limits.same_domain):
            found |= {(tp, engine.pipeline_parallel, ep) for ep in ({1, tp} if moe is not None else {1})}
    data = engine.attention_data_parallel
    return [EngineLayout(tp, pp, ep, data if tp % data == 0 else 1) for tp, pp, ep in sorted(found)]


def _draftings(scenario: Scenario, limits: SearchLimits) -> list[Drafting]:
    """No speculation, the scenario's own drafter at every draft length, and further drafters as given."""
    lengths = [k for k in (DRAFT_LENGTHS if limits.draft_lengths is None else limits.draft_lengths) if k > 0]
    own: list[Drafter | None] = [None] if scenario.speculation.active else []
    return [Drafting(0), *(Drafting(k, drafter) for drafter in [*own, *limits.drafters] for k in lengths)]


def _trainer_layouts(scenario: Scenario, limits: SearchLimits, gpus: int) -> list[TrainerLayout]:
    trainer, moe, own = scenario.trainer, scenario.model.moe, own_trainer(scenario)
    domain = int(scenario.hardware.nvlink_domain_gpus) if limits.same_domain else gpus
    found = {own} if max(own.tensor, own.expert) <= domain else set()
    pipelines = TRAINER_PIPELINE if trainer.backend == "megatron" else (1,)
    experts = TRAINER_EXPERT if moe is not None and trainer.backend == "megatron" else (1,)
    for tp, pp, cp, ep in itertools.product(TRAINER_TENSOR, pipelines, TRAINER_CONTEXT, experts):
        if gpus % (tp * pp * cp) == 0 and max(tp, ep) <= domain:
            found.add(TrainerLayout(tp, pp, cp, ep))
    return sorted(found)


def own_trainer(scenario: Scenario) -> TrainerLayout:
    """The trainer layout of the scenario as it is."""
    trainer = scenario.trainer
    return TrainerLayout(
        trainer.tensor_parallel, trainer.pipeline_parallel, trainer.context_parallel, trainer.expert_parallel
    )


def _fitting(plain: Scenario, part: Engine | TrainerLayout, limits: SearchLimits, space: Space) -> Scenario | None:
    """The scenario with one part in place of a plain layout, where that is valid and fits."""
    try:
        candidate = vary(plain, part.overrides())
        used = engine_memory(candidate).parts if isinstance(part, Engine) else trainer_memory(candidate)
    except (Infeasible, InputError) as error:
        space.rejected.append(InfeasiblePart.by(part.overrides(), error))
        return None
    miss = limits.headroom_miss(plain, used.total, part.overrides())
    if miss is not None:
        space.rejected.append(miss)
    return candidate if miss is None else None


def nearest_miss(rejected: Sequence[InfeasiblePart]) -> InfeasiblePart | None:
    """The part that came closest to fitting; among parts that are no amount, the first."""
    return min(rejected, key=lambda item: item.excess, default=None)
