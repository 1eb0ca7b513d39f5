"""Metrics of a run as they are read, a number by metric and step; and which metrics of a framework are which phase.

NeMo-RL 0.7 names its timers ``timing/train/*`` (nemo_rl/algorithms/grpo.py), verl ``timing_s/*``
(verl/trainer/ppo/ray_trainer.py), MLPerf's GRPO reference and tables of rlsim by their columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import lists_beside

MOST_METRICS = 20_000
MOST_VALUES = 20_000_000
"""Metrics and values that are kept; a run of a thousand metrics and ten thousand steps has half as many."""
DEEPEST = 8
"""Nested mappings that are taken as parts of a name."""


class Scalars:
    """Values by metric and step; a step that is told again, as after a restart, counts as told last.

    where: the log, for messages.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.values: dict[str, dict[int, float]] = {}
        self._count = 0

    def add(self, name: str, step: float, value: float) -> None:
        """One value. Raises InputError for a step that is no number of at least 0, and for more than is kept."""
        if not math.isfinite(step) or not 0 <= step < 2**53:
            raise InputError(
                f"{self.where}: a step must be a number of at least 0; got {step:g} of '{shortened(name)}'"
            )
        by_step = self.values.setdefault(name, {})
        by_step[int(step)] = value
        self._count += 1
        if self._count > MOST_VALUES or len(self.values) > MOST_METRICS:
            raise InputError(f"{self.where}: more than {MOST_METRICS:,} metrics or {MOST_VALUES:,} values")

    def add_all(self, step: float, record: Mapping[str, Any]) -> None:
        """Every number of a record, also of nested ones, whose names are joined by a slash."""
        for name, value in flattened(record):
            self.add(name, step, value)


def flattened(record: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, float]]:
    """(name, number) of a record; texts that are no numbers, lists and empty cells are left out."""
    out = []
    for name, value in record.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            out += flattened(value, f"{prefix}{name}/", depth + 1)
        elif (found := number_of(value)) is not None:
            out.append((f"{prefix}{name}", found))
    return out


def number_of(value: object) -> float | None:
    """The number that a cell of a log holds; None where it holds none. NaN and infinities are numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.inf if isinstance(value, int) else None


Quantity = Literal[
    "step", "data", "generation", "exposed_generation", "logprob", "train", "refit",
    "prompt_tokens", "response_tokens", "acceptance_length",
]  # fmt: skip
PHASES: tuple[Quantity, ...] = ("step", "generation", "exposed_generation", "logprob", "train", "refit", "data")
FACTS: tuple[Quantity, ...] = ("prompt_tokens", "response_tokens", "acceptance_length")
NAMINGS: Sequence[Sequence[str]] = lists_beside(__file__)["namings"]
"""A quantity and the metrics of a step that add up to it, in order of preference: the first whose first metric is there
tells the quantity."""


def found_namings(metrics: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The metrics of a log that make up each quantity; those of seconds may end in ``_s``."""
    seconds = {name.removesuffix("_s"): name for name in metrics if name.endswith("_time_s")}
    present = {name: name for name in metrics} | seconds
    out: dict[str, tuple[str, ...]] = {}
    for quantity, *names in NAMINGS:
        if names[0] in present and quantity not in out:
            out[quantity] = tuple(dict.fromkeys(present[name] for name in names if name in present))
    return out
