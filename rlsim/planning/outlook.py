"""What the common draws say of plans: how they turn out, which beats which, and with what probability limits hold.

All plans are drawn together (``predictive``): what two of them share moves both alike, so that
their order is much surer than their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlsim.planning.objective import P90
from rlsim.projection.uncertainty.predictive import around
from rlsim.results import Interval
from rlsim.units import FloatArray


@dataclass(frozen=True)
class Outlook:
    """How a plan turns out over the common draws.

    p90_s: seconds that 90 % of its steps do not exceed. expected_regret: mean share by which it falls behind the best
    contestant of each draw, by the measure of the objective. beats_current: probability that it beats the scenario as
    it is, by the same; None where that cannot run.
    """

    p90_s: float
    expected_regret: float
    beats_current: float | None

    def columns(self) -> dict[str, float | None]:
        """Columns of tables and JSON."""
        return {
            "step_p90_s": self.p90_s, "expected_regret": self.expected_regret, "beats_current": self.beats_current
        }  # fmt: skip


@dataclass(frozen=True)
class Against:
    """A plan against a rival over the common draws.

    wins: share of draws in which the plan is better by the measure of the objective, equal ones counting half. ratio:
    the rival's measure (seconds of a step, or its cost or energy) over the plan's, with its 90 % interval.
    """

    rival: str
    wins: float
    ratio: Interval

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"rival": self.rival, "wins": self.wins, "ratio": self.ratio.as_dict()}


@dataclass(frozen=True)
class Kept:
    """A constraint and how the best plan keeps it.

    limit, value: the most that is allowed and what the plan takes in the mean, in ``unit``. probability: that it is
    kept; 1 where it holds by construction, None where no measurement says.
    """

    constraint: str
    limit: float
    value: float
    unit: str
    probability: float | None


def p90(draws: FloatArray) -> float:
    """What 90 % of the draws do not exceed."""
    return quantile(draws, P90)


def quantile(draws: FloatArray, share: float) -> float:
    """The least draw that ``share`` of all draws do not exceed."""
    return float(np.quantile(draws, share, method="inverted_cdf"))


def probability(draws: FloatArray, longest: float) -> float:
    """Share of draws up to ``longest``."""
    return float(np.mean(draws <= longest))


def wins(own: FloatArray, rival: FloatArray) -> float:
    """Share of draws in which ``own`` is the smaller one; equal ones count half."""
    return float(np.mean((own < rival) + 0.5 * (own == rival)))


def against(name: str, own: tuple[float, FloatArray], rival: tuple[float, FloatArray]) -> Against:
    """A plan against the rival ``name``; of each its mean and its draws."""
    mean = rival[0] / own[0]
    return Against(name, wins(own[1], rival[1]), around(mean, rival[1] / own[1] / mean))


def expected_regrets(contestants: Sequence[FloatArray]) -> list[float]:
    """Mean share by which each contestant falls behind the least of all of them in each draw."""
    every = np.stack(contestants)
    return [float(value) for value in np.mean(every / every.min(axis=0), axis=1) - 1.0]
