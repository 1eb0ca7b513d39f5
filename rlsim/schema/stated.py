"""What a scenario has beside the policy: models of other sizes, what its author assumed, what is not simulated."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from rlsim.schema.base import Strict
from rlsim.schema.engine import Precision
from rlsim.schema.model import ModelCard

RESPONSE, PROMPT, ACCEPTANCE = "workload.response_tokens", "workload.prompt_tokens", "speculation.first_acceptance"
"""Keys whose value a scenario may guess."""


class Assumption(Strict):
    """A sentence of the scenario's author; in a file a plain text stands for one without keys."""

    text: str = Field(min_length=1, max_length=2000)
    """What is assumed, and why."""
    keys: tuple[str, ...] = ()
    """Scenario keys that it speaks of; it falls when one of them is overridden."""

    log_spread: float | None = Field(None, gt=0, le=3)
    """The value of the first key is a guess: standard deviation of its logarithm (of an acceptance: of its odds).
    Intervals then hold it, and the verdict names it."""

    def _problems(self) -> Iterator[str]:
        if self.log_spread is not None and (not self.keys or self.keys[0] not in (RESPONSE, PROMPT, ACCEPTANCE)):
            yield f"log_spread needs keys that begin with one of {RESPONSE}, {PROMPT}, {ACCEPTANCE}"

    @model_validator(mode="before")
    @classmethod
    def _plain_text(cls, data: object) -> object:
        return {"text": data} if isinstance(data, str) else data


class Missing(Strict):
    """A part of the real run that this scenario does not hold."""

    part: str = Field(min_length=1, max_length=400)
    """Its name, such as the teacher Qwen3-32B on 4 further GPUs."""
    step: Literal["longer", "shorter", "either"] = "longer"
    """What the real step is for it: longer, shorter, or either way."""
    keys: tuple[str, ...] = ()
    """Scenario keys that would simulate it; it falls when one of them is overridden."""
    belongs_to: tuple[str, ...] = ()
    """Scenario keys whose values have it, such as model; it falls with them too."""

    @property
    def text(self) -> str:
        """A clause with the direction in which it moves the answer."""
        moved = "may be longer or shorter" if self.step == "either" else f"is {self.step}"
        stated = f"; state {', '.join(self.keys)}" if self.keys else ""
        return f"without {self.part}: the real step {moved}{stated}"


class Pool(Strict):
    """A model of its own size that reads every sample of a step once: a teacher's log-probs, rewards, judgements.

    It begins when its samples are generated. On GPUs of its own a teacher works beside the trainer's log-prob passes,
    and in a lagged loop every pool beside the step before.
    """

    name: str = Field(min_length=1, max_length=60)
    """What it is called in answers."""
    role: Literal["teacher", "reward_model", "judge"]
    """teacher: log-probs of every token, which the update needs; reward_model: a value of each sample; judge: it
    generates a text about each sample."""
    model: ModelCard
    """Model card: a name, a path, or inline."""
    gpus: int = Field(0, ge=0, le=1_000_000)
    """Its own GPUs, of cluster.pool_gpus. 0: it takes turns with the trainer on the trainer's GPUs, and its weights are
    swapped in and out."""
    runs_on: Literal["engine", "trainer"] = "engine"
    """engine: an inference engine like that of the rollouts, of tensor_parallel GPUs each; trainer: forward passes of
    the trainer's software in the layout below."""
    tensor_parallel: int = Field(1, ge=1, le=1024)
    """GPUs that share every layer."""
    pipeline_parallel: int = Field(1, ge=1, le=128)
    """Consecutive stages of layers."""
    context_parallel: int = Field(1, ge=1, le=128)
    """GPUs that share a sequence, of a trainer."""
    expert_parallel: int = Field(1, ge=1, le=1024)
    """GPUs over which whole experts are spread."""
    weight_precision: Precision = "bf16"
    """Precision of an engine's weights, as of engine.weight_precision."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of the memory that an engine may take. Default: as of engine.gpu_memory_utilization."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of a step's samples that it reads, where several pools divide them."""
    read_tokens: int = Field(0, ge=0, le=1_000_000)
    """Tokens that it reads of each sample beside prompt and response, such as a rubric."""
    generated_tokens: int = Field(0, ge=0, le=1_000_000)
    """Tokens that it generates for each sample."""

    @property
    def gpus_per_replica(self) -> int:
        """GPUs that hold its weights once."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    def _problems(self) -> Iterator[str]:
        if self.role == "judge" and not self.generated_tokens:
            yield "a judge generates: give generated_tokens, the mean length of its judgements"
        if self.generated_tokens and (self.role != "judge" or self.runs_on == "trainer"):
            yield "generated_tokens are of a judge on an engine; give role judge and runs_on engine"
        if self.runs_on == "engine" and self.context_parallel > 1:
            yield "context_parallel is of runs_on trainer; an engine has tensor_parallel and pipeline_parallel"
        if self.gpus % self.gpus_per_replica:
            yield f"its layout ({self.gpus_per_replica} GPUs) must divide gpus ({self.gpus})"
