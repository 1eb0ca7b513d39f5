"""What one run of the loop does, and the lengths that it meets (standard library and numpy only)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bench import BenchError
from bench.cases import ModelDims

Drafter = Literal["none", "model", "ngram"]
Placement = Literal["shared", "split"]
PLACEMENTS, DRAFTERS, DEVICES = ("shared", "split"), ("none", "model", "ngram"), ("cpu", "cuda")
MODELS: Mapping[str, ModelDims] = {
    # Shapes of Qwen2.5-0.5B (config.json of its model card), with a head of its own and no bias.
    "loop-0.5b": ModelDims(hidden=896, heads=14, kv_heads=2, head_dim=64, width=4864, vocabulary=151936, layers=24),
    "loop-5m": ModelDims(hidden=256, heads=4, kv_heads=2, head_dim=64, width=896, vocabulary=512, layers=6),
    "loop-tiny": ModelDims(hidden=32, heads=2, kv_heads=1, head_dim=16, width=64, vocabulary=64, layers=2),
}
"""Policies by name: the first one is for a GPU, the last one for tests."""
DRAFT_LAYERS = 1
"""Layers of the draft model: the first ones of the policy, as a model of their own."""
MOST_DRAFTED = 7
QUANTILES, RESPONSES = (0.0, 0.5, 0.9, 1.0), (32.0, 80.0, 128.0, 176.0)
"""Response lengths: points of the inverse distribution function, linear in between."""


@dataclass(frozen=True)
class LoopSettings:
    """One configuration of the loop.

    prompts, samples: groups of a step and responses of each. running: sequences that the engine decodes at once.
    budget_tokens: most prompt tokens of an iteration that prefills. placement: shared, one process that takes turns on
    all cores, or split, generator and trainer as processes with a core each. lag: of a split loop, as loop.policy_lag.
    micro_batch: samples. lengths: response tokens of every sample, by step; by default drawn from the inverse
    distribution at ``quantiles``. learning_rate: so small that drafts are accepted
    as often in the last step as in the first. threads: of a shared loop; 0 takes all cores. device: cpu, or cuda, on
    which a split loop has two processes that share one GPU.
    """

    name: str = "loop"
    model: str = "loop-5m"
    prompts: int = 4
    samples: int = 4
    steps: int = 3
    warmup_steps: int = 1
    running: int = 16
    budget_tokens: int = 1024
    drafter: Drafter = "none"
    draft_length: int = 0
    placement: Placement = "shared"
    lag: int = 0
    micro_batch: int = 4
    prompt_tokens: int = 24
    quantiles: tuple[float, ...] = QUANTILES
    response_tokens: tuple[float, ...] = RESPONSES
    lengths: tuple[tuple[int, ...], ...] = ()
    policy_logprobs: bool = True
    temperature: float = 1.0
    learning_rate: float = 1e-7
    threads: int = 0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        least = {"prompts": 1, "samples": 2, "steps": 1, "warmup_steps": 0, "running": 1, "micro_batch": 1,
                 "prompt_tokens": 2, "lag": 0, "draft_length": 0, "threads": 0, "seed": 0}  # fmt: skip
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise BenchError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        known_values = {"model": MODELS, "drafter": DRAFTERS, "placement": PLACEMENTS, "device": DEVICES}
        for name, known in known_values.items():
            if getattr(self, name) not in known:
                raise BenchError(f"{name} must be one of {', '.join(known)}; got '{str(getattr(self, name))[:40]}'")
        if self.draft_length > MOST_DRAFTED:
            raise BenchError(f"draft_length must be at most {MOST_DRAFTED}, got {self.draft_length}")
        if self.lag and self.placement != "split":
            raise BenchError(f"lag {self.lag} needs placement split")
        if self.budget_tokens < self.prompt_tokens:
            raise BenchError(f"budget_tokens {self.budget_tokens} must hold a prompt of {self.prompt_tokens} tokens")
        self._check_lengths()

    def _check_lengths(self) -> None:
        quantiles, tokens = self.quantiles, self.response_tokens
        ordered = all(a < b for a, b in pairwise(quantiles))
        if len(quantiles) != len(tokens) or len(tokens) < 2 or (quantiles[0], quantiles[-1]) != (0, 1) or not ordered:
            raise BenchError("quantiles must rise from 0 to 1, with one of response_tokens for each")
        if min(tokens) < 1 or list(tokens) != sorted(tokens):
            raise BenchError("response_tokens must be at least 1 and must not decrease")
        if self.lengths and (
            len(self.lengths) < self.generated_steps
            or any(len(step) != self.batch or min(step) < 1 for step in self.lengths)
        ):
            raise BenchError(f"lengths needs {self.generated_steps} steps of {self.batch} lengths of at least 1")

    @property
    def dims(self) -> ModelDims:
        """Dimensions of the policy."""
        return MODELS[self.model]

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.prompts * self.samples

    @property
    def queries(self) -> int:
        """Positions of a verification; 1 without drafts."""
        return 1 if self.drafter == "none" else self.draft_length + 1

    @property
    def trained_steps(self) -> int:
        """Steps of the trainer, warm-up and measured ones."""
        return self.warmup_steps + self.steps

    @property
    def generated_steps(self) -> int:
        """Steps whose groups may start: those ahead of the last trained one as well."""
        return self.trained_steps + self.lag

    def response_lengths(self) -> NDArray[np.int64]:
        """Response tokens of every sample, shape (generated steps, batch): as stated, else drawn by the seed."""
        if self.lengths:
            return np.array(self.lengths[: self.generated_steps], dtype=np.int64)
        uniform = np.random.default_rng([self.seed, 1]).random((self.generated_steps, self.batch))
        return np.rint(np.interp(uniform, self.quantiles, self.response_tokens)).astype(np.int64)

    def prompts_of(self, step: int) -> NDArray[np.int64]:
        """Random prompts of a step, shape (prompts, prompt_tokens)."""
        rng = np.random.default_rng([self.seed, 2, step])
        return rng.integers(0, self.dims.vocabulary, (self.prompts, self.prompt_tokens))

    @property
    def capacity(self) -> int:
        """Cache slots that the longest sequence needs, drafted tokens included."""
        return self.prompt_tokens + int(self.response_lengths().max()) + self.queries


ON_GPU = LoopSettings(
    model="loop-0.5b", device="cuda", prompts=4, samples=8, running=32, budget_tokens=4096, micro_batch=8,
    prompt_tokens=64, response_tokens=(32.0, 128.0, 320.0, 512.0), learning_rate=1e-10,
)  # fmt: skip
"""A loop that keeps a GPU busy for seconds. Adam moves half a billion weights all one way: at a rate of 1e-7 three
steps take a draft's acceptance from 0.56 to 0.01."""


def base_settings(device: str) -> LoopSettings:
    """What configurations on ``device`` have in common."""
    return ON_GPU if device == "cuda" else LoopSettings()


def settings_from(content: Mapping[str, Any]) -> LoopSettings:
    """Settings of a JSON object. BenchError for a key that there is none of, or a value of another type."""
    known = {one.name: one for one in fields(LoopSettings)}
    unknown = next((key for key in content if key not in known), None)
    if unknown is not None:
        raise BenchError(f"'{str(unknown)[:40]}' is no setting of the loop; there are {', '.join(known)}")
    try:
        return LoopSettings(**{key: _value(value, known[key].default) for key, value in content.items()})
    except (TypeError, ValueError) as error:
        raise BenchError(f"a setting of the loop has no value of its type: {str(error)[:80]}") from error


def _value(given: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        return tuple(tuple(int(one) for one in part) if isinstance(part, list) else float(part) for part in given)
    if isinstance(default, float) and isinstance(given, int):
        return float(given)
    if type(given) is not type(default):
        raise TypeError(f"{str(given)[:30]!r} where {type(default).__name__} is wanted")
    return given


@dataclass
class Samples:
    """A step's samples for the trainer: tokens [batch, longest], lengths of prompts and responses, rewards [batch]."""

    tokens: NDArray[np.int64]
    prompt_tokens: int
    responses: NDArray[np.int64]
    rewards: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
