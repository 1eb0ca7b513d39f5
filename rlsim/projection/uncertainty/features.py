"""What two runs can differ in, by kind of measured time, and how much they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlsim.costs.operators.groups import refit_method, series
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantLength, ConstantTurns, Length, LognormalTurns, Workload
from rlsim.units import IntArray

FloatArray = NDArray[np.float32]
About = Mapping[str, str | float]
"""What a run ran: names as text, sizes as numbers (``Evidence.about``)."""
RunKind = Literal["iteration", "training", "transfer", "step"]
RUN_KINDS: tuple[RunKind, ...] = ("iteration", "training", "transfer", "step")
"""Kinds of measured times whose runs an answer is set beside."""


@dataclass(frozen=True)
class Feature:
    """One thing that runs differ in. name: key in ``about``; text: as readers call it.

    Names differ or do not; sizes differ by doublings. within: a name that counts only where that of this key agrees,
    as releases of two engines say nothing of each other. zero: a size that may be 0.
    """

    name: str
    text: str
    sized: bool = False
    within: str = ""
    zero: bool = False

    def value(self, about: About) -> str | float:
        """What a run has of it, so that equal values are equal: names without case, sizes as logarithms to base 2."""
        given = about.get(self.name, "")
        if self.sized:
            size = float(given or 0.0) + self.zero
            return float(np.log2(size)) if size > 0 else float("nan")
        text = str(given).lower()
        if self.name == "device":
            return text.replace(" ", "_").partition("_")[0]
        if self.name == "release":
            return f"{about.get(self.within, '')} {series(text) if text else ''}"
        return text


def _sized(*entries: tuple[str, str]) -> tuple[Feature, ...]:
    return tuple(Feature(name, text, sized=True, zero=name in ("draft_length", "lag")) for name, text in entries)


_ENGINE = (Feature("engine", "engine"), Feature("release", "engine release", within="engine"))
_FRAMEWORK = (Feature("framework", "framework"), Feature("release", "framework release", within="framework"))
_MACHINE = (Feature("model", "model"), Feature("device", "device"))
FEATURES: Mapping[RunKind, tuple[Feature, ...]] = {
    "iteration": (
        *_ENGINE, *_MACHINE, Feature("precision", "precision"),
        *_sized(
            ("gpus", "GPUs of an engine"), ("expert_parallel", "expert parallel"),
            ("attention_data_parallel", "attention copies"), ("batch", "batch"), ("context_tokens", "context"),
            ("draft_length", "draft length"),
        ),
    ),
    "training": (
        *_FRAMEWORK, *_MACHINE, Feature("precision", "precision"),
        *_sized(
            ("gpus", "GPUs"), ("tensor_parallel", "tensor parallel"), ("pipeline_parallel", "pipeline parallel"),
            ("expert_parallel", "expert parallel"), ("sequence_tokens", "sequence length"),
        ),
    ),
    "transfer": (*_FRAMEWORK[:1], Feature("method", "method"), *_MACHINE, *_sized(("gpus", "GPUs"))),
    "step": (
        *_FRAMEWORK, *_MACHINE, Feature("precision", "engine precision"), Feature("train_precision", "precision"),
        *_sized(
            ("gpus", "GPUs"), ("tensor_parallel", "engine tensor parallel"),
            ("engine_expert_parallel", "engine expert parallel"), ("train_tensor_parallel", "trainer tensor parallel"),
            ("train_pipeline_parallel", "trainer pipeline parallel"), ("expert_parallel", "trainer expert parallel"),
            ("samples", "samples of a step"), ("response_tokens", "response length"), ("draft_length", "draft length"),
            ("lag", "policy lag"),
        ),
    ),
}  # fmt: skip
"""What the runs of each kind differ in."""


@dataclass(frozen=True, eq=False)
class Coded:
    """Runs of one kind as coordinates: names as numbers and sizes as logarithms, shape (runs, features)."""

    kind: RunKind
    values: FloatArray
    vocabulary: Mapping[str, int]

    @classmethod
    def of(cls, kind: RunKind, runs: Sequence[About]) -> Coded:
        """The coordinates of ``runs``."""
        vocabulary: dict[str, int] = {}
        values = np.empty((len(runs), len(FEATURES[kind])), dtype=np.float32)
        for row, about in enumerate(runs):
            for column, feature in enumerate(FEATURES[kind]):
                value = feature.value(about)
                values[row, column] = vocabulary.setdefault(value, len(vocabulary)) if isinstance(value, str) else value
        return cls(kind, values, vocabulary)

    def place(self, about: About) -> FloatArray:
        """Coordinates of one more run, shape (features,)."""
        found = (feature.value(about) for feature in FEATURES[self.kind])
        codes = [self.vocabulary.get(value, -1) if isinstance(value, str) else value for value in found]
        return np.array(codes, dtype=np.float32)


def differences(kind: RunKind, first: FloatArray, second: FloatArray) -> FloatArray:
    """How much runs differ in each feature: 1 or 0 in names, doublings in sizes; shape of the coordinates.

    A size that either does not tell counts as equal.
    """
    out: FloatArray = np.nan_to_num(np.abs(first - second))
    features = FEATURES[kind]
    names = [column for column, feature in enumerate(features) if not feature.sized]
    out[..., names] = out[..., names] > 0
    for column, feature in enumerate(features):
        if feature.within:
            whole = next(place for place, other in enumerate(features) if other.name == feature.within)
            out[..., column] *= 1.0 - out[..., whole]
    return out


def about(scenario: Scenario, kind: RunKind) -> dict[str, str | float]:
    """What ``scenario`` runs, as rows of a kind say it."""
    return {"iteration": engine_about, "training": trainer_about, "transfer": transfer_about, "step": step_about}[kind](
        scenario
    )


def _machine(scenario: Scenario) -> dict[str, str | float]:
    return {"model": scenario.model.name, "device": scenario.hardware.name}


def _tokens(length: Length) -> float:
    """Mean length, as far as the scenario states one."""
    return float(length.tokens if isinstance(length, ConstantLength) else length.mean_tokens or 0.0)


def _response(workload: Workload) -> float:
    """Mean length beyond the prompt; that of a trajectory with its observations where there are agents."""
    agent, response = workload.agent, _tokens(workload.response_tokens)
    if agent is None:
        return response
    turns = agent.turns
    if isinstance(turns, ConstantTurns):
        count = float(turns.turns)
    elif isinstance(turns, LognormalTurns):
        count = turns.mean_turns
    else:
        count = float(np.trapezoid(turns.turns, turns.quantiles))
    return count * response + (count - 1) * _tokens(agent.observation_tokens)


def engine_about(scenario: Scenario) -> dict[str, str | float]:
    """A replica in the midst of a rollout: full, with half of a response done."""
    engine, workload = scenario.engine, scenario.workload
    replicas = scenario.cluster.generation / engine.gpus_per_replica
    waiting = workload.samples_per_step * workload.generated_batch_factor / replicas
    context = _tokens(workload.prompt_tokens) + _response(workload) / 2
    return _machine(scenario) | {
        "engine": engine.name, "release": scenario.engine_version or "", "precision": engine.weight_precision,
        "gpus": float(engine.gpus_per_replica), "expert_parallel": float(engine.expert_parallel),
        "attention_data_parallel": float(engine.attention_data_parallel), "context_tokens": context,
        "batch": float(min(waiting, engine.max_running_sequences)), "draft_length": _drafted(scenario),
    }  # fmt: skip


def _drafted(scenario: Scenario) -> float:
    return float(scenario.speculation.draft_length if scenario.speculation.active else 0)


def trainer_about(scenario: Scenario) -> dict[str, str | float]:
    """The trainer."""
    stack, trainer, workload = scenario.training_stack, scenario.trainer, scenario.workload
    return _machine(scenario) | {
        "framework": "" if stack is None else stack.framework,
        "release": "" if stack is None or stack.release is None else stack.release,
        "precision": trainer.precision, "gpus": float(scenario.cluster.training),
        "tensor_parallel": float(trainer.tensor_parallel), "pipeline_parallel": float(trainer.pipeline_parallel),
        "expert_parallel": float(trainer.expert_parallel),
        "sequence_tokens": _tokens(workload.prompt_tokens) + _response(workload),
    }  # fmt: skip


def transfer_about(scenario: Scenario) -> dict[str, str | float]:
    """The weight transfer: the GPUs that send and those that receive."""
    cluster = scenario.cluster
    return _machine(scenario) | {
        "framework": scenario.refit_framework, "method": refit_method(scenario),
        "gpus": float(cluster.training + cluster.generation),
    }  # fmt: skip


def step_about(scenario: Scenario) -> dict[str, str | float]:
    """The whole step."""
    stack, engine, trainer = scenario.stack, scenario.engine, scenario.trainer
    return _machine(scenario) | {
        "framework": "" if stack is None else stack.framework,
        "release": "" if stack is None or stack.release is None else stack.release,
        "gpus": float(scenario.cluster.num_gpus), "lag": scenario.loop.batches_ahead,
        "tensor_parallel": float(engine.tensor_parallel), "engine_expert_parallel": float(engine.expert_parallel),
        "train_tensor_parallel": float(trainer.tensor_parallel),
        "train_pipeline_parallel": float(trainer.pipeline_parallel),
        "expert_parallel": float(trainer.expert_parallel), "precision": engine.weight_precision,
        "train_precision": trainer.precision, "samples": float(scenario.workload.samples_per_step),
        "response_tokens": _response(scenario.workload), "draft_length": _drafted(scenario),
    }  # fmt: skip


def run_of(kind: RunKind, row_kind: str, given: About) -> About | None:
    """The run of a measured row as runs of ``kind`` say it; None where it tells nothing of them.

    Updates of RL steps tell of training; their cluster's GPUs stand for the trainer's.
    """
    if row_kind == kind:
        return given
    if kind != "training" or row_kind != "train":
        return None
    return {
        **given, "precision": given.get("train_precision", ""),
        "tensor_parallel": given.get("train_tensor_parallel", 0.0),
        "pipeline_parallel": given.get("train_pipeline_parallel", 0.0),
        "sequence_tokens": given.get("response_tokens", 0.0),
    }  # fmt: skip


def runs_of(kind: RunKind, rows: Iterable[tuple[str, About]]) -> tuple[IntArray, Coded]:
    """Places and coordinates of the rows (kind, about) that tell of ``kind``."""
    found = [(place, run_of(kind, row_kind, given)) for place, (row_kind, given) in enumerate(rows)]
    found_runs = [(place, run) for place, run in found if run is not None]
    return np.array([place for place, _ in found_runs], dtype=np.int64), Coded.of(kind, [run for _, run in found_runs])
