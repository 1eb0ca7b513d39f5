"""The order in which a run measures: every beginning of the list is worth having.

First what every table rests on, then the operators of the main models on a coarse grid that is complete in itself, the
engine steps that check them, training, what takes processes of its own, and at last the rest of all grids and the
further models.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from typing import TypeVar

from bench.cases import COLLECTIVES, TRAINING_STEP, Case, is_isolated

Value = TypeVar("Value")
Point = TypeVar("Point", bound=tuple[int, ...])


class Rank(IntEnum):
    """Groups of cases in the order of their value."""

    BASIS = 0
    OPERATORS = 1
    ENGINE_STEPS = 2
    TRAINED_LAYERS = 3
    TRAINING_STEPS = 4
    BESIDE = 5
    REFINEMENT = 6
    FURTHER_MODELS = 7


_BASIS = {
    "launch_eager", "launch_in_graph", "graph_replay", "device_copy", "host_to_device", "device_to_host",
    "host_enqueue",
}  # fmt: skip
_ENGINE_STEPS = {"decode_iteration", "speculative_step"}
_TRAINED = {"layer_forward", "layer_forward_backward", "optimizer_step"}
_BESIDE = {*COLLECTIVES, "launch_chain", "depth_iteration", "draft_passes", "weight_copy", "host_weight_copy"}
"""Operators that no table of a single GPU takes."""


def rank_of(case: Case, basis: Collection[str], coarse: Collection[str], main: Collection[str]) -> Rank:
    """Group of a case. basis: keys of the products among it; coarse, main: keys of the cases on the coarse grid and on
    the whole grid of the main models.
    """
    if case.op in _BASIS or case.key in basis:
        return Rank.BASIS
    if case.op == TRAINING_STEP:
        return Rank.TRAINING_STEPS
    replayed_layer = case.op in _TRAINED and case.text("mode") == "graph"
    if case.op in _BESIDE or is_isolated(case) or replayed_layer:
        return Rank.BESIDE
    if case.key not in coarse:
        return Rank.REFINEMENT if case.key in main else Rank.FURTHER_MODELS
    if case.op in _ENGINE_STEPS:
        return Rank.ENGINE_STEPS
    return Rank.TRAINED_LAYERS if case.op in _TRAINED else Rank.OPERATORS


def in_order(
    cases: Iterable[Case], basis: Collection[str], coarse: Collection[str], main: Collection[str]
) -> list[Case]:
    """``cases`` by rank; within one as they come, but those that take processes of their own last."""
    return sorted(cases, key=lambda case: (rank_of(case, basis, coarse, main), is_isolated(case)))


def thinned(values: Sequence[Value], most: int) -> tuple[Value, ...]:
    """At most ``most`` of the values, evenly over their places, the first and the last among them.

    >>> thinned((1, 2, 4, 8, 16), 3)
    (1, 4, 16)
    """
    last = len(values) - 1
    if last < most:
        return tuple(values)
    return tuple(values[round(place * last / (most - 1))] for place in range(most))


def thinned_points(points: Sequence[Point], most: Sequence[int]) -> tuple[Point, ...]:
    """The points whose every coordinate is among its values thinned to ``most`` of that coordinate."""
    kept = [set(thinned(sorted({point[place] for point in points}), number)) for place, number in enumerate(most)]
    return tuple(point for point in points if all(one in among for one, among in zip(point, kept, strict=True)))
