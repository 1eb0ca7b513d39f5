"""What supports an answer: the measured runs nearest to it, a grade, and what the answer leans on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """What a measured run differs in: what was asked and what was measured. squared: of the distance, in logarithms."""

    feature: str
    asked: str
    measured: str
    squared: float


@dataclass(frozen=True)
class Neighbour:
    """A measured run. id: of its row. distance: standard deviation, in logarithms, of what two measured runs that
    differ as much miss each other by beyond two that do not differ; differences: largest first."""

    id: str
    distance: float
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class HalfSupport:
    """Measurements of one kind. half: iteration, training, transfer or step. share: of the step that they tell of.

    distance: of the nearest run; infinite where none was measured. nearest: runs, nearest first.
    """

    half: str
    share: float
    distance: float
    nearest: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Leaning:
    """A source of the step's interval. share: of the variance of the logarithm of the step, of all sources 1.

    kind: what measures it (launches, iterations, training, transfers, steps). assumed: whether no measurement says
    anything of it. settle: what to measure; command: what takes that in.
    """

    source: str
    kind: str
    share: float
    assumed: bool
    settle: str
    command: str


@dataclass(frozen=True)
class Support:
    """What supports the candidate's step.

    grade: A to D, the worse of those that half_width (half the 90 % interval over the step) and distance give; meaning:
    of the grade. distance: that of the nearest whole step, or of the halves weighted by their shares if that is less.
    """

    grade: str
    meaning: str
    half_width: float
    distance: float
    halves: tuple[HalfSupport, ...]
    leaning: tuple[Leaning, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; numbers have 6 significant digits, an infinite distance is null."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
