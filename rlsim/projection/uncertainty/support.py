"""What supports an answer: nearest measured runs, what the interval leans on, and a grade of both."""

from __future__ import annotations

import math

from rlsim.projection.uncertainty.features import HALVES
from rlsim.projection.uncertainty.nearest import nearest
from rlsim.projection.uncertainty.predictive import between, kept_with_run, prediction_of
from rlsim.projection.uncertainty.sources import half_shares, mean_shares, sources_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.results import HalfSupport, Leaning, Support

NEIGHBOURS = 3
"""Measured runs that are named of each half."""
GRADES = (
    ("A", 0.10, "much like what was measured: compare layouts and plan on the number"),
    ("B", 0.20, "near what was measured: compare layouts; plan on the interval"),
    ("C", 0.35, "some way from what was measured: trust large differences only"),
)
"""Largest half width and distance of each grade (shares of the step), and what it means. The bounds are assumptions:
10 % is about what repeated runs of one published step differ by, 35 % about what frameworks differ by."""
WORST = ("D", "far from what was measured: an order of magnitude; measure first")


@kept_with_run
def support_of(run: SimulatedVariant) -> Support:
    """What supports the step of a simulated scenario."""
    predicted = prediction_of(run)
    low, high = between(predicted.step_factor)
    half_width = math.sqrt(high / low) - 1
    shares = {**half_shares(mean_shares(predicted)), "step": 1.0}
    halves = []
    for kind in HALVES:
        found = nearest(run.scenario, kind, NEIGHBOURS)
        halves.append(HalfSupport(kind, shares[kind], found[0].distance if found else math.inf, found))
    away = overall_distance(halves)
    grade, meaning = grade_of(half_width, away)
    leaning = tuple(
        Leaning(one.name, one.kind, one.share, one.assumed, one.settle, one.command) for one in sources_of(run)
    )
    return Support(grade, meaning, half_width, away, tuple(halves), leaning)


def overall_distance(halves: list[HalfSupport]) -> float:
    """Distance of the nearest whole step, or of the halves weighted by their shares of the step if that is less."""
    whole = next(half.distance for half in halves if half.half == "step")
    parts = [half for half in halves if half.half != "step" and half.share > 0]
    total = sum(half.share for half in parts)
    weighted = sum(half.share * half.distance for half in parts) / total if total > 0 else math.inf
    return min(whole, weighted)


def grade_of(half_width: float, distance: float) -> tuple[str, str]:
    """Grade of the worse of half the interval and the distance to what was measured, and what it means."""
    worse = max(half_width, distance)
    return next(((grade, meaning) for grade, most, meaning in GRADES if worse <= most), WORST)
