"""The parts of a plan, each able to say which overrides of a scenario put it into effect."""

from __future__ import annotations

from dataclasses import dataclass

from rlsim.errors import InputError
from rlsim.loading.variation import Overrides


@dataclass(frozen=True)
class GpuSplit:
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
        size: Overrides = {"cluster.num_gpus": self.gpus, "lag": self.lag}
        if self.lag == 0:
            return size
        return {**size, "cluster.generation_gpus": self.generation, "cluster.training_gpus": self.training}

    def __str__(self) -> str:
        mode = "sync" if self.lag == 0 else f"lag {self.lag}, {self.generation}+{self.training}"
        return f"{self.gpus} GPUs, {mode}"


@dataclass(frozen=True, order=True)
class EngineLayout:
    """Parallel sizes of one engine replica."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    attention_data: int = 1

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        return {f"engine.{name}_parallel": size for name, size in vars(self).items()}

    def __str__(self) -> str:
        return _sizes(TP=self.tensor, PP=self.pipeline, EP=self.expert, DPA=self.attention_data)


@dataclass(frozen=True, order=True)
class TrainerLayout:
    """Parallel sizes of the trainer; data parallelism takes the rest of its GPUs."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        return {f"trainer.{key}": size for key, size in self.sizes().items()}

    def sizes(self) -> dict[str, int]:
        """By the keys of the trainer's section."""
        return {f"{name}_parallel": size for name, size in vars(self).items()}

    def __str__(self) -> str:
        return _sizes(TP=self.tensor, PP=self.pipeline, CP=self.context, EP=self.expert)


def _sizes(**sizes: int) -> str:
    return " ".join(f"{letters}{size}" for letters, size in sizes.items() if size != 1) or "TP1"


@dataclass(frozen=True)
class Drafter:
    """A drafter by the conditional acceptance of its first position and the ratio from one position to the next (None:
    the schema's default)."""

    method: str
    first_acceptance: float
    acceptance_decay: float | None = None

    @classmethod
    def parse(cls, text: str) -> Drafter:
        """The drafter of ``METHOD:FIRST[:DECAY]``. Raises InputError."""
        method, *numbers = text.split(":")
        if not method or len(numbers) not in (1, 2):
            raise InputError(f"--drafter '{text}' is not METHOD:FIRST[:DECAY], such as mtp:0.85:0.97")
        try:
            return cls(method, *(float(number) for number in numbers))
        except ValueError as error:
            raise InputError(f"--drafter {text}: FIRST and DECAY must be numbers") from error


@dataclass(frozen=True)
class Drafting:
    """Drafted tokens per verification, 0 for none. drafter: None for the scenario's own, at its own acceptance."""

    draft_length: int
    drafter: Drafter | None = None

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        if self.drafter is None:
            return {"k": self.draft_length}
        out: Overrides = {
            "speculation.method": self.drafter.method,
            "speculation.acceptance_length": None,
            "speculation.position_acceptance": None,
            "speculation.draft": None,
            "speculation.first_acceptance": self.drafter.first_acceptance,
            "speculation.draft_length": self.draft_length,
        }
        decay = self.drafter.acceptance_decay
        return out if decay is None else {**out, "speculation.acceptance_decay": decay}

    def __str__(self) -> str:
        if self.draft_length == 0:
            return "no speculation"
        return f"{self.drafter.method + ' ' if self.drafter else ''}k={self.draft_length}"


@dataclass(frozen=True)
class Engine:
    """An engine replica's layout and what it drafts."""

    layout: EngineLayout
    drafting: Drafting

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        return {**self.layout.overrides(), **self.drafting.overrides()}


@dataclass(frozen=True)
class Layout:
    """A whole plan: split of the GPUs, engine, trainer."""

    split: GpuSplit
    engine: Engine
    trainer: TrainerLayout

    @property
    def kind(self) -> tuple[GpuSplit, EngineLayout, str]:
        """Plans of one kind differ in draft length and trainer alone, and what they miss is much the same."""
        drafting = self.engine.drafting
        drafter = "none" if drafting.draft_length == 0 else drafting.drafter.method if drafting.drafter else "own"
        return self.split, self.engine.layout, drafter

    def overrides(self) -> Overrides:
        """Overrides of a scenario."""
        return {**self.split.overrides(), **self.engine.overrides(), **self.trainer.overrides()}

    def __str__(self) -> str:
        """``512 GPUs, lag 1, 256+256, engine TP8 EP8, k=5, trainer TP2 PP4 CP2 EP16``."""
        return f"{self.split}, engine {self.engine.layout}, {self.engine.drafting}, trainer {self.trainer}"
