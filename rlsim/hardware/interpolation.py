"""Interpolation of measured latencies in the logarithm of every size.

A latency table is a grid over one or more sizes (tokens, batch, context, message bytes...). Between nodes the
logarithm of the latency is linear in the logarithm of each size: continuous, positive, and monotone wherever the nodes
are. Outside the nodes the model is stated, never silent: below the smallest size the latency stays (a launch costs what
it costs), above the largest the efficiency stays (seconds grow with the work), and both are marked as not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

NODE_TOLERANCE = 1e-9
"""Distance in log size below which a point counts as on a node (floating-point noise of the logarithm)."""


@dataclass(frozen=True)
class TableTime:
    """Seconds of one operation and whether they rest on measured nodes alone, in the broadcast shape of the sizes."""

    seconds: FloatArray
    measured: BoolArray

    def scaled(self, factor: float) -> TableTime:
        """The same latency times a modelled factor: no longer a measurement."""
        return TableTime(self.seconds * factor, np.zeros_like(self.measured))


@dataclass(frozen=True)
class Grid:
    """Latency over the tensor product of ``axes``.

    axes: ascending log sizes, one array per size. log_s: log seconds, shape = lengths of the axes, without holes.
    measured: same shape, False where a hole was filled. growth: per size the exponent with which seconds grow beyond
    the largest node (1 for work linear in the size, 2 for attention over a prompt).
    """

    axes: tuple[FloatArray, ...]
    log_s: FloatArray
    measured: BoolArray
    growth: tuple[float, ...]

    def lookup(self, *sizes: ArrayLike) -> TableTime:
        """Seconds at ``sizes`` (one array per axis, broadcast against each other; all must be positive)."""
        logs = np.broadcast_arrays(*(np.log(np.asarray(size, dtype=np.float64)) for size in sizes))
        places = [_place(axis, x) for axis, x in zip(self.axes, logs, strict=True)]
        log_s = np.zeros(logs[0].shape)
        measured = np.ones(logs[0].shape, dtype=bool)
        for (_, _, beyond, inside), growth in zip(places, self.growth, strict=True):
            log_s += growth * beyond
            measured &= inside
        for corner in product((0, 1), repeat=len(places)):
            sides = list(zip(places, corner, self.axes, strict=True))
            index = tuple(np.minimum(low + side, len(axis) - 1) for (low, *_), side, axis in sides)
            weight = np.prod([share if side else 1.0 - share for (_, share, *_), side, _ in sides], axis=0)
            log_s += weight * self.log_s[index]
            measured &= self.measured[index] | (weight < NODE_TOLERANCE)
        return TableTime(np.asarray(np.exp(log_s)), np.asarray(measured))


def _place(axis: FloatArray, x: FloatArray) -> tuple[NDArray[np.intp], FloatArray, FloatArray, BoolArray]:
    """Index of the node below, share of the way to the next, log distance beyond the last, whether inside."""
    clipped = np.clip(x, axis[0], axis[-1])
    low = np.clip(np.searchsorted(axis, clipped, side="right") - 1, 0, max(len(axis) - 2, 0))
    step = axis[np.minimum(low + 1, len(axis) - 1)] - axis[low]
    fraction = np.divide(clipped - axis[low], step, out=np.zeros_like(clipped), where=step > 0)
    inside = np.abs(x - clipped) < NODE_TOLERANCE
    return low, fraction, np.maximum(x - axis[-1], 0.0), inside


def build_grid(
    sizes: Sequence[NDArray[np.int64]],
    seconds: NDArray[np.floating],
    growth: Sequence[float],
    substitute: Grid | None = None,
) -> Grid:
    """Grid from rows in long form, its holes filled and marked as not measured.

    sizes: one column per axis. growth: see Grid. Holes are filled from ``substitute`` (a grid over the same sizes, for
    instance of a sibling precision; its nodes become nodes here) or else axis by axis, the last first: between known
    nodes by interpolation, before the first by its latency, beyond the last with ``growth``.
    """
    values = [np.unique(column) for column in sizes]
    if substitute is not None:
        nodes = [np.rint(np.exp(axis)).astype(np.int64) for axis in substitute.axes]
        values = [np.union1d(mine, other) for mine, other in zip(values, nodes, strict=True)]
    axes = tuple(np.log(value.astype(np.float64)) for value in values)
    log_s = np.full([len(axis) for axis in axes], np.nan)
    log_s[tuple(np.searchsorted(value, column) for value, column in zip(values, sizes, strict=True))] = np.log(
        seconds.astype(np.float64)
    )
    measured = ~np.isnan(log_s)
    if substitute is not None and not measured.all():
        _fill_from(substitute, values, log_s, measured)
    for axis, exponent in reversed(list(enumerate(growth))):
        lines = np.moveaxis(log_s, axis, -1)
        if np.isnan(lines).any():
            _fill_lines(lines, axes[axis], exponent)
    return Grid(axes, log_s, measured, tuple(growth))


def _fill_from(grid: Grid, values: list[NDArray[np.int64]], log_s: FloatArray, measured: BoolArray) -> None:
    """Fill the holes of ``log_s`` from another grid, kept between the measured sizes around them on the last axis."""
    mesh = np.meshgrid(*(value.astype(np.float64) for value in values), indexing="ij")
    other = np.log(grid.lookup(*mesh).seconds)
    ceiling = np.where(measured, log_s, np.inf)
    ceiling = np.minimum.accumulate(ceiling[..., ::-1], axis=-1)[..., ::-1]
    floor = np.maximum.accumulate(np.where(measured, log_s, -np.inf), axis=-1)
    np.copyto(log_s, np.clip(other, floor, ceiling), where=~measured)


def _fill_lines(lines: FloatArray, x: FloatArray, exponent: float) -> None:
    """Fill the holes of every line along the last axis that has at least one known node, in place."""
    known = ~np.isnan(lines)
    for place in np.argwhere(known.any(-1) & ~known.all(-1)):
        line, here = lines[tuple(place)], known[tuple(place)]
        at, value = x[here], line[here]
        filled = np.interp(x, at, value) + exponent * np.maximum(x - at[-1], 0.0)
        np.copyto(line, filled, where=~here)
