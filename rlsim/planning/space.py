"""The space a plan is looked for in: splits of the GPUs, engines on them, trainers on them, each valid by itself.

A plan is a split (GPUs, policy lag, pools), an engine (parallel layout and drafting) on its generating GPUs and a
trainer layout on its training GPUs. They meet only in sums and maxima of their times, so each pair is looked at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import ClassVar, TypeVar

from msgspec import Struct, field
from msgspec.structs import asdict
from pydantic import ValidationError

from rlsim.costs.memory import check_fits, part_fits, surely
from rlsim.costs.pools import alone
from rlsim.costs.stack_terms import fsdp_terms
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides, pool_unit, split_gpus
from rlsim.report.format import percent
from rlsim.schema.base import changed, replaced
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Trainer

ENGINE_TENSOR, ENGINE_STAGES = (1, 2, 4, 8, 16, 32), (2, 4)
TRAINER_TENSOR, TRAINER_CONTEXT = (1, 2, 4, 8), (1, 2, 4, 8)
TRAINER_PIPELINE, TRAINER_EXPERT = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64)
LETTERS = {"tensor": "TP", "pipeline": "PP", "context": "CP", "expert": "EP", "attention_data": "DPA"}
DRAFT_LENGTHS = tuple(range(8))
SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)
"""Powers of two are what models and nodes divide by; drafts beyond 7 and splits beyond a quarter seldom pay."""
FAR = 4.0
"""Times the memory that is there (surely needed of it) beyond which no spread makes an even chance. Convention."""
PREFILL_SHARES = (0.125, 0.25, 0.5)
"""Of the generating GPUs those that prefill alone, where a scenario has such engines (engine.prefill)."""
OWN_LAG = -1
"""In place of a lag: as far ahead as the scenario's own loop runs by another key or by its style."""


def own_lag(scenario: Scenario) -> int:
    """Whole steps of lag of a scenario, OWN_LAG where something else says how far ahead its loop runs."""
    return OWN_LAG if scenario.loop.mode == "async" and not scenario.loop.lag else scenario.loop.lag


class GpuSplit(Struct, frozen=True):
    """GPUs of a cluster, policy lag, and the GPUs that generate and train (all of them for both at lag 0)."""

    gpus: int
    lag: int
    generation: int
    training: int

    @property
    def group(self) -> tuple[int, int]:
        """Plans of one group compete for the same place in the answer: same GPUs, same staleness."""
        return self.gpus, self.lag

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        lag = {} if self.lag == OWN_LAG else {"lag": self.lag}
        size: Overrides = {"cluster.num_gpus": self.gpus, **lag}
        if self.lag == 0:
            return size
        return {**size, "cluster.generation_gpus": self.generation, "cluster.training_gpus": self.training}

    def __str__(self) -> str:
        if self.lag == 0:
            return f"{self.gpus} GPUs, sync"
        ahead = "own lag" if self.lag == OWN_LAG else f"lag {self.lag}"
        return f"{self.gpus} GPUs, {ahead}, {self.generation}+{self.training}"


class _Sizes(Struct, frozen=True, order=True):
    """Parallel sizes of a section of the scenario."""

    section: ClassVar[str]

    @property
    def sizes(self) -> dict[str, int]:
        """Keys of the section."""
        return {f"{name}_parallel": size for name, size in asdict(self).items()}

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        return {f"{self.section}.{name}": size for name, size in self.sizes.items()}

    def __str__(self) -> str:
        return " ".join(f"{LETTERS[name]}{size}" for name, size in asdict(self).items() if size != 1) or "TP1"


class EngineLayout(_Sizes, frozen=True, order=True):
    """Parallel sizes of one engine replica."""

    section = "engine"
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    attention_data: int = 1


class TrainerLayout(_Sizes, frozen=True, order=True):
    """Parallel sizes of the trainer; data parallelism takes the rest of its GPUs."""

    section = "trainer"
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    @property
    def shards(self) -> int:
        """GPUs that one copy of the model is divided among."""
        return self.tensor * self.pipeline * self.context

    def of(self, trainer: Trainer) -> Trainer:
        """``trainer`` with this layout, whose sizes fit by themselves."""
        return replaced(trainer, self.sizes)

    def applied(self, scenario: Scenario) -> Scenario:
        """``scenario`` with this layout, checked as :func:`rlsim.vary` does but faster. Raises InputError."""
        try:
            return replaced(scenario, {"trainer": self.of(scenario.trainer)}).fits_together()
        except ValueError:
            return vary(scenario, self.overrides())  # whose message names what is wrong


class Engine(Struct, frozen=True):
    """An engine replica's layout, its drafted tokens per verification and GPUs that prefill alone, 0 for none."""

    layout: EngineLayout
    draft_length: int
    prefill_gpus: int = 0

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        alone: Overrides = {"engine.prefill.gpus": self.prefill_gpus} if self.prefill_gpus else {}
        return {**self.layout.overrides(), **alone, "k": self.draft_length}

    def applied(self, scenario: Scenario) -> Scenario:
        """``scenario`` with this engine; a draft length that engines share is checked once. Raises InputError."""
        try:
            drafting = _drafting(scenario, self.draft_length)
            alone = drafting.engine.prefill and changed(drafting.engine.prefill, gpus=self.prefill_gpus)
            return changed(drafting, engine=changed(drafting.engine, **self.layout.sizes, prefill=alone))
        except (InputError, ValidationError):
            return vary(scenario, self.overrides())

    @property
    def drafting(self) -> str:
        """``k=5`` or ``no speculation``."""
        return f"k={self.draft_length}" if self.draft_length else "no speculation"


@lru_cache(maxsize=64)
def _drafting(scenario: Scenario, draft_length: int) -> Scenario:
    return vary(scenario, {"k": draft_length})


class Layout(Struct, frozen=True):
    """A whole plan: split of the GPUs, engine, trainer."""

    split: GpuSplit
    engine: Engine
    trainer: TrainerLayout

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        return {**self.split.overrides(), **self.engine.overrides(), **self.trainer.overrides()}

    def __str__(self) -> str:
        """``512 GPUs, lag 1, 256+256, engine TP8 EP8, k=5, trainer TP2 PP4 CP2 EP16``."""
        alone = f", {self.engine.prefill_gpus} GPUs prefill" if self.engine.prefill_gpus else ""
        return f"{self.split}, engine {self.engine.layout}{alone}, {self.engine.drafting}, trainer {self.trainer}"


class InfeasiblePart(Struct, frozen=True):
    """A part of a plan that cannot run: what was needed of what is there, in ``unit`` (0 where it is no amount).

    fits: probability that its memory suffices all the same, on so many ``gpus``."""

    overrides: Overrides
    reason: str
    needed: float = 0.0
    available: float = 0.0
    unit: str = ""
    fits: float = 0.0
    gpus: int = 0

    @classmethod
    def by(cls, overrides: Overrides, error: Exception, fits: float = 0.0, gpus: int = 0) -> InfeasiblePart:
        """What ``error`` says of a part."""
        if isinstance(error, Infeasible):
            return cls(overrides, error.reason, error.needed, error.available, error.unit, fits, gpus)
        return cls(overrides, str(error))

    @property
    def of_trainer(self) -> bool:
        """Whether it is a trainer's layout."""
        return all(key.startswith("trainer.") for key in self.overrides)

    @property
    def text(self) -> str:
        """The reason, and how probably memory suffices where it does more likely than not."""
        likely = f"; it fits with {percent(self.fits)}, which --risk {1 - self.fits:.2f} takes"
        return f"{self.reason}{likely if self.fits >= 0.5 else ''}"

    @property
    def excess(self) -> float:
        """Needed over available; infinite, and so no near miss, where it is no amount."""
        return self.needed / self.available if self.available > 0 else float("inf")


class Space(Struct):
    """Valid parts by number of the split, and what was left out."""

    splits: list[GpuSplit]
    engines: dict[int, list[Engine]] = field(default_factory=dict)
    trainers: dict[int, list[TrainerLayout]] = field(default_factory=dict)
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


class SearchLimits(Struct, frozen=True):
    """Where a plan is looked for. draft_lengths: drafted tokens of the scenario's drafter, default DRAFT_LENGTHS.
    shares: of the GPUs that generate where pools are split."""

    sizes: tuple[int, ...]
    lags: tuple[int, ...]
    draft_lengths: tuple[int, ...] | None = None
    shares: tuple[float, ...] = SHARES


def build_space(scenario: Scenario, limits: SearchLimits) -> Space:
    """Enumerate splits, and the engines and trainers that are valid and fit on them."""
    space, scenario = Space(list(_splits(scenario, limits))), surely(scenario)
    # No speculation, and the scenario's own drafter at every draft length.
    own = scenario.speculation.draft_length
    lengths = sorted({*DRAFT_LENGTHS, own}) if limits.draft_lengths is None else limits.draft_lengths
    drafted = [0, *(k for k in lengths if k > 0 and scenario.speculation.active)]
    for number, split in enumerate(space.splits):
        _fill(space, number, scenario, split, drafted)
    some_engine, some_trainer = any(space.engines.values()), any(space.trainers.values())
    if some_engine != some_trainer:
        # Where no engine fits anywhere, the trainers that do not are no near miss; and the other way round.
        space.rejected = [part for part in space.rejected if part.of_trainer == some_engine]
    return space


def _fill(space: Space, number: int, scenario: Scenario, split: GpuSplit, drafted: Sequence[int]) -> None:
    """Put the engines and trainers of a split into ``space``."""
    engines = partial(_engines, scenario, drafted, split.generation)
    trainers = partial(_trainer_layouts, scenario, split.training)
    space.engines[number], space.trainers[number] = [], []
    domain = int(scenario.hardware.nvlink_domain_gpus)
    try:
        plain = on_split(scenario, split, TrainerLayout())
        # Models beside the policy's may have layouts of their own on the trainer's GPUs.
        for pool in plain.pools:
            alone(plain, pool)
    except InputError as error:
        space.considered += len(engines(domain)) * len(trainers(domain))
        parts: list[Engine | TrainerLayout] = [*engines(domain), *trainers(domain)]
        space.rejected += [InfeasiblePart.by(part.overrides(), error) for part in parts]
        return
    space.engines[number], looked = _offered(engines, (domain, split.generation), [plain], space)
    # Asleep, the least engine that fits leaves least on shared GPUs, and the widest least on their hosts.
    least = min(space.engines[number], key=lambda one: one.layout, default=None)
    widest = max(space.engines[number], key=lambda one: one.layout.tensor * one.layout.pipeline, default=None)
    ends = dict.fromkeys(end for end in (least, widest if plain.shares_gpus else None) if end is not None)
    beside = [end.applied(plain) for end in ends] or [plain]
    space.trainers[number], of_trainers = _offered(trainers, (domain, split.training), beside, space)
    space.considered += looked * of_trainers


Part = TypeVar("Part", Engine, TrainerLayout)


def _offered(
    layouts: Callable[[int], list[Part]], reaches: Sequence[int], beside: Sequence[Scenario], space: Space
) -> tuple[list[Part], int]:
    """Parts that fit, beside some of several engines where none does beside all, and how many were looked at: groups
    that talk all the time reach over an NVLink domain, further where nothing fits within it, as of recipes of the
    largest models."""
    looked, fitting = list[Part](), list[Part]()
    for reach in reaches:
        if not fitting:
            new = {part: _fitting(beside, part, space) for part in layouts(reach) if part not in looked}
            # One trainer is chosen for all engines of a split.
            fitting = [part for part, places in new.items() if places and places == max(new.values())]
            looked += new
    return fitting, len(looked)


def on_split(scenario: Scenario, split: GpuSplit, trainer: TrainerLayout) -> Scenario:
    """``scenario`` on a split with a plain engine, from which every engine is one section away. Raises InputError."""
    prefill = scenario.engine.prefill
    least: Overrides = {} if prefill is None else {"engine.prefill.gpus": prefill.tensor_parallel or 1}
    return vary(scenario, {**split.overrides(), **EngineLayout().overrides(), **least, **trainer.overrides()})


def _splits(scenario: Scenario, limits: SearchLimits) -> Iterator[GpuSplit]:
    cluster = scenario.cluster
    for gpus, lag in itertools.product(limits.sizes, limits.lags):
        free = gpus - cluster.reference_gpus - cluster.pool_gpus
        if lag == 0:
            yield GpuSplit(gpus, 0, max(1, free), max(1, free))
            continue
        # A split that was stated for another number of GPUs says nothing of this one.
        own = [] if cluster.colocated or gpus != cluster.num_gpus else [cluster.generation / free]
        shares = sorted({*limits.shares, *own}) if free > 1 else []
        unit = pool_unit(scenario, free)
        for generation in dict.fromkeys(split_gpus(free, share, unit, unit) for share in shares):
            if 0 < generation < free:
                yield GpuSplit(gpus, lag, generation, free - generation)


def _engines(scenario: Scenario, drafted: Sequence[int], gpus: int, reach: int) -> list[Engine]:
    """Engines on ``gpus`` GPUs with each draft length, the scenario's own layout however unusual. Beyond an NVLink
    domain, within ``reach`` GPUs, models go by stages of a pipeline, experts by tensor and expert parallelism too."""
    engine, moe, domain = scenario.engine, scenario.model.moe, int(scenario.hardware.nvlink_domain_gpus)
    own, stages = engine.pipeline_parallel, ENGINE_STAGES if reach > domain else ()
    found = {(engine.tensor_parallel, own, engine.expert_parallel)}
    for tp, pp in itertools.product(ENGINE_TENSOR, {own, *stages}):
        if tp <= min(gpus, domain if moe is None or pp != own else reach):
            found |= {(tp, pp, ep) for ep in ({1, tp} if moe is not None else {1})}
    data = engine.attention_data_parallel
    # Attention copies must divide the tensor-parallel group (schema/engine.py).
    layouts = [EngineLayout(tp, pp, ep, data if tp % data == 0 else 1) for tp, pp, ep in sorted(found)]
    return [Engine(one, k, apart) for one in layouts for apart in _prefill_gpus(scenario, gpus, one) for k in drafted]


def _prefill_gpus(scenario: Scenario, gpus: int, layout: EngineLayout) -> list[int]:
    """Of ``gpus`` GPUs those that may prefill alone beside engines of a layout, which divide the rest; 0 where a
    scenario has no such engines."""
    prefill = scenario.engine.prefill
    if prefill is None:
        return [0]
    each, replica = (prefill.tensor_parallel or layout.tensor) * layout.pipeline, layout.tensor * layout.pipeline
    shares = (max(1, round(share * gpus / each)) * each for share in PREFILL_SHARES)
    return sorted(own for own in {prefill.gpus, *shares} if own < gpus and (gpus - own) % replica == 0)


def _trainer_layouts(scenario: Scenario, gpus: int, reach: int) -> list[TrainerLayout]:
    """Layouts on ``gpus`` GPUs, the scenario's own and those with tensor parallelism within an NVLink domain and expert
    parallelism within ``reach`` GPUs."""
    trainer, moe = scenario.trainer, scenario.model.moe
    sizes = trainer.tensor_parallel, trainer.pipeline_parallel, trainer.context_parallel, trainer.expert_parallel
    domain, found = int(scenario.hardware.nvlink_domain_gpus), {TrainerLayout(*sizes)}
    # FSDP2 splits weights over the data-parallel ranks: no stages and no experts apart; around models of Hugging Face
    # no products either (verl b178a3cd5 workers/config/engine.py, SkyRL a9564572e train/config/config.py: sequences).
    pipelines = TRAINER_PIPELINE if trainer.backend == "megatron" else (1,)
    experts = TRAINER_EXPERT if moe is not None and trainer.backend == "megatron" else (1,)
    tensors = TRAINER_TENSOR if fsdp_terms(scenario) is None else (trainer.tensor_parallel,)
    for tp, pp, cp, ep in itertools.product(tensors, pipelines, TRAINER_CONTEXT, experts):
        if gpus % (tp * pp * cp) == 0 and tp <= domain and ep <= reach:
            found.add(TrainerLayout(tp, pp, cp, ep))
    return sorted(found)


def _fitting(beside: Sequence[Scenario], part: Engine | TrainerLayout, space: Space) -> int:
    """How many of the scenarios are valid and fit with a part in place of its plain layout."""
    refused = [one for one in (_refusal(plain, part) for plain in beside) if one is not None]
    if len(refused) == len(beside):
        space.rejected.append(min(refused, key=lambda one: one.excess))
    return len(beside) - len(refused)


def _refusal(plain: Scenario, part: Engine | TrainerLayout) -> InfeasiblePart | None:
    """Why the scenario with one part in place of a plain layout is not valid or does not fit; None where it does."""
    engine, candidate, fits = isinstance(part, Engine), plain, 0.0
    try:
        candidate = part.applied(plain)
        # A trainer beside every engine alike: all take the same share of a GPU.
        check_fits(candidate, engine=engine, trainer=not engine)
    except (Infeasible, InputError) as error:
        # What needs FAR times the memory fits with no probability that anybody shows (half and more).
        if isinstance(error, Infeasible) and error.unit == "bytes" and error.needed < FAR * error.available:
            fits = part_fits(candidate, engine)
        gpus = candidate.cluster.generation if engine else candidate.cluster.training
        return InfeasiblePart.by(part.overrides(), error, fits, gpus)
    return None
