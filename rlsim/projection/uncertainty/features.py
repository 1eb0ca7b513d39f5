"""What two runs can differ in, by kind of measured time, and how much they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rlsim.costs.operators.groups import refit_method, series
from rlsim.files.yaml import lists_beside
from rlsim.loading.overrides import value_at
from rlsim.report.format import number
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantLength, ConstantTurns, Length, LognormalTurns
from rlsim.units import IntArray

FloatArray = NDArray[np.float32]
About = Mapping[str, str | float]
"""What a run ran: names as text, sizes as numbers (``Evidence.about``)."""
RunKind = Literal["iteration", "training", "transfer", "step"]
RUN_KINDS: tuple[RunKind, ...] = ("iteration", "training", "transfer", "step")
"""Kinds of measured times whose runs an answer is set beside."""
OTHER_BOARDS, MAKERS = ("pcie", "nvl"), ("rtx", "tpu")
"""Boards of a chip that are slower than the one its bare name means, and first words that name no chip."""
ZERO = ("draft_length", "lag")
"""Sizes that may be 0."""


class Feature(Struct, frozen=True):
    """One thing that runs differ in. name: key in ``about``; text: as readers call it; of: where a scenario says it.

    Names differ or do not; sizes differ by doublings. within: a name that counts only where that of this key agrees,
    as releases of two engines say nothing of each other. zero: a size that may be 0.
    """

    name: str
    text: str
    of: str = ""
    sized: bool = False
    within: str = ""
    zero: bool = False

    def value(self, about: About) -> str | float:
        """The value of a run for comparison: a name without case, or the logarithm of a size to base 2."""
        given = about.get(self.name, "")
        if self.sized:
            # Sizes that may be 0 are all moved by one, so that their logarithm exists.
            size = float(given or 0.0) + self.zero
            return float(np.log2(size)) if size > 0 else float("nan")
        text = str(given).lower()
        if self.name == "device":
            chip, _, board = text.replace(" ", "_").partition("_")
            return f"{chip}_{board}" if board in OTHER_BOARDS or chip in MAKERS else chip
        if self.name == "release":
            return f"{about.get(self.within, '')} {series(text) if text else ''}"
        return text

    def shown(self, about: About) -> str:
        """The value of a run as it is printed."""
        value = about.get(self.name, "")
        return number(float(value or 0.0)) if self.sized else str(value) or "not told"


def _features(kind: RunKind) -> tuple[Feature, ...]:
    features = lists_beside(__file__)[kind]
    names, software = features["names"], next(iter(features["names"]))
    return (
        *(Feature(name, text, of, within=software if name == "release" else "") for name, (text, of) in names.items()),
        *(Feature(name, text, of, sized=True, zero=name in ZERO) for name, (text, of) in features["sizes"].items()),
    )


FEATURES: Mapping[RunKind, tuple[Feature, ...]] = {kind: _features(kind) for kind in RUN_KINDS}
"""What the runs of each kind differ in."""


class Coded(Struct, frozen=True, eq=False):
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
        # -1: a name that no measured run has differs from all of them.
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
    """What ``scenario`` runs, as rows of a kind say it: of iterations, a replica in the midst of a rollout, full and
    with half of a response done."""
    stated = {one.name: (_stated(scenario, one.of), one.sized) for one in FEATURES[kind]}
    found = {name: float(value) if sized else value or "" for name, (value, sized) in stated.items()}
    return {name: found[name] for name in lists_beside(__file__)[kind].get("order", found)}


def _stated(scenario: Scenario, of: str) -> Any:
    """What a scenario says at a key, or a value of VALUES; None where a section is not there."""
    return VALUES[of](scenario) if of in VALUES else value_at(scenario, of)


def _tokens(length: Length) -> float:
    """Mean length, as far as the scenario states one."""
    return float(length.tokens if isinstance(length, ConstantLength) else length.mean_tokens or 0.0)


def _prompt(scenario: Scenario) -> float:
    return _tokens(scenario.workload.prompt_tokens)


def _response(scenario: Scenario) -> float:
    """Mean length beyond the prompt; that of a trajectory with its observations where there are agents."""
    agent, response = scenario.workload.agent, _tokens(scenario.workload.response_tokens)
    if agent is None:
        return response
    turns = agent.turns
    if isinstance(turns, ConstantTurns):
        count = float(turns.turns)
    elif isinstance(turns, LognormalTurns):
        count = turns.mean_turns
    else:
        # A mean is the integral of the inverse distribution function.
        count = float(np.trapezoid(turns.turns, turns.quantiles))
    return count * response + (count - 1) * _tokens(agent.observation_tokens)


def _running(scenario: Scenario) -> float:
    """Sequences of a full replica."""
    workload = scenario.workload
    waiting = workload.samples_per_step * workload.generated_batch_factor * workload.launch_factor / scenario.replicas
    return min(waiting, scenario.released_engine.most_running)


VALUES: Mapping[str, Callable[[Scenario], str | float]] = {
    "running": _running,
    "context": lambda scenario: _prompt(scenario) + _response(scenario) / 2,
    "sequence": lambda scenario: _prompt(scenario) + _response(scenario),
    "response": _response,
    "drafted": lambda scenario: scenario.speculation.draft_length if scenario.speculation.active else 0,
    "refit_method": refit_method,
    "both_pools": lambda scenario: scenario.cluster.training + scenario.cluster.generation,
}
"""Values that no single key of a scenario holds, by name."""


def run_of(kind: RunKind, row_kind: str, given: About) -> About | None:
    """The run of a measured row as runs of ``kind`` say it; None where it has none.

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
