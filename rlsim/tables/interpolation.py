"""Interpolation of measured latencies in the logarithm of every size.

A latency table is a grid over one or more sizes (tokens, batch, context, message bytes...). Between nodes the
logarithm of the latency is linear in the logarithm of each size: continuous, positive, and monotone wherever the nodes
are. Outside the nodes the model is stated, never silent: below the smallest size the latency stays (a launch costs what
it costs), above the largest the efficiency stays (seconds grow with the work), and both are marked as not measured.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, reduce
from itertools import product
from operator import mul
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from rlsim.units import BoolArray, FloatArray, distinct

NODE_TOLERANCE = 1e-9
"""Distance in log size below which a point counts as on a node (floating-point noise of the logarithm)."""
MOST_FIXED = 256
"""Parts of a grid, each at one value of its first size, that are cached."""
LOOKUPS_KEPT, SIZES_KEPT = 16, 1025
"""Cached look-ups of a grid, of at most so many sizes each: draft lengths, layouts and variants ask for much the same
ones. All get the same arrays, into which nobody writes."""

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


def remembered(known: dict[Key, Found], most: int, key: Key, find: Callable[[], Found]) -> Found:
    """What was found for ``key`` before, else now; all is forgotten where it becomes more than ``most``.

    ``lru_cache`` would keep order of use, which costs more than most of what is looked up here.
    """
    found = known.get(key)
    if found is None:
        if len(known) >= most:
            known.clear()
        found = known[key] = find()
    return found


# not frozen: made by the hundred thousand, and a frozen one takes twice as long to make
class TableTime(Struct):
    """Seconds of one operation and whether they rest on measured nodes alone, in the broadcast shape of the sizes."""

    seconds: FloatArray
    measured: BoolArray

    def scaled(self, factor: float) -> TableTime:
        """The same latency times a modelled factor: no longer a measurement."""
        return TableTime(self.seconds * factor, np.zeros_like(self.measured))


class Grid(Struct, frozen=True, dict=True):
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
        """Seconds at ``sizes`` (one array per axis, broadcast against each other; all must be positive).

        Leading sizes that are single numbers fix a part of the grid, which is cached: a matrix asks for its n and k at
        every number of rows.
        """
        free, last = 0, len(sizes) - 1
        while free < last and (isinstance(sizes[free], int | float) or not np.ndim(sizes[free])):
            free += 1
        grid = reduce(Grid._at, map(float, sizes[:free]), self)  # type: ignore[arg-type]
        rest = [np.asarray(size, dtype=np.float64) for size in sizes[free:]]
        most = max(one.size for one in rest)
        # One size on one axis is found faster than a key for it is made.
        if most > SIZES_KEPT or most == len(rest) == 1 or any(one.ndim > 1 for one in rest):
            return grid._looked_up(*rest)
        key = tuple((one.tobytes(), one.shape) for one in rest)
        return remembered(grid._lookups, LOOKUPS_KEPT, key, lambda: grid._looked_up(*rest))

    def _looked_up(self, *sizes: FloatArray) -> TableTime:
        return self._along(*sizes) if len(sizes) == 1 else self._over(*sizes)

    def _at(self, size: float) -> Grid:
        """The grid over the other axes where the first one is at ``size``."""

        def found() -> Grid:
            place = _placed(self._first_axis, float(np.log(size)))
            log_s, measured = _between(place, self.growth[0], self.log_s, self.measured)
            return Grid(self.axes[1:], log_s, measured, self.growth[1:])

        return remembered(self._fixed, MOST_FIXED, size, found)

    def _along(self, size: FloatArray) -> TableTime:
        """Seconds over a grid of one axis. A single size takes plain numbers, ten times as fast as arrays of one."""
        if size.size == 1:
            seconds, known = self._single(float(np.log(size.item())))
            return TableTime(np.full(size.shape, seconds), np.full(size.shape, known))
        place = _place(self.axes[0], np.log(size))
        log_s, measured = _between(place, self.growth[0], self.log_s, self.measured)
        return TableTime(np.exp(log_s), measured)

    def _single(self, x: float) -> tuple[float, bool]:
        """Seconds at one log size, and whether it is measured; the arithmetic of :meth:`_along`."""
        low, high, share, beyond, inside = _placed(self._first_axis, x)
        log_s, measured = self._nodes
        # Term by term as _between adds, so that both agree to the last bit.
        value = (1.0 - share) * log_s[low] + share * log_s[high] + self.growth[0] * beyond
        known_low = measured[low] or 1.0 - share < NODE_TOLERANCE
        known_high = measured[high] or share < NODE_TOLERANCE
        return float(np.exp(value)), known_low and known_high and inside

    def _over(self, *sizes: FloatArray) -> TableTime:
        """Seconds over several axes: every size is placed in its own shape, and only what is read is broadcast."""
        if all(size.size == 1 for size in sizes):
            seconds, known = self._single_over([float(np.log(size.item())) for size in sizes])
            shape = np.broadcast_shapes(*(size.shape for size in sizes))
            return TableTime(np.full(shape, seconds), np.full(shape, known))
        places = [_place(axis, np.log(size)) for axis, size in zip(self.axes, sizes, strict=True)]
        log_s, measured = np.zeros(()), np.ones((), dtype=bool)
        for (*_, beyond, inside), growth in zip(places, self.growth, strict=True):
            log_s = log_s + growth * beyond
            measured = measured & inside
        for corner in product((0, 1), repeat=len(places)):
            index = tuple(place[side] for place, side in zip(places, corner, strict=True))
            shares = (share if side else 1.0 - share for (_, _, share, _, _), side in zip(places, corner, strict=True))
            weight = reduce(np.multiply, shares)
            log_s = log_s + weight * self.log_s[index]
            measured = measured & (self.measured[index] | (weight < NODE_TOLERANCE))
        return TableTime(np.exp(log_s), measured)

    def _single_over(self, logs: list[float]) -> tuple[float, bool]:
        """The arithmetic of :meth:`_over` with plain numbers, in a third of its time."""
        places = [_placed(axis, x) for axis, x in zip(self._axes, logs, strict=True)]
        log_s, known = 0.0, True
        for (*_, beyond, inside), growth in zip(places, self.growth, strict=True):
            log_s += growth * beyond
            known = known and inside
        for corner in product((False, True), repeat=len(places)):
            sides = list(zip(places, corner, strict=True))
            node = tuple(high if above else low for (low, high, *_), above in sides)
            weight = reduce(mul, (share if above else 1.0 - share for (_, _, share, *_), above in sides))
            log_s += weight * float(self.log_s[node])
            known = known and (weight < NODE_TOLERANCE or bool(self.measured[node]))
        return float(np.exp(log_s)), known

    @cached_property
    def _axes(self) -> list[list[float]]:
        return [list(axis.tolist()) for axis in self.axes]

    @cached_property
    def _fixed(self) -> dict[float, Grid]:
        return {}

    @cached_property
    def _lookups(self) -> dict[tuple[tuple[bytes, tuple[int, ...]], ...], TableTime]:
        return {}

    @cached_property
    def _first_axis(self) -> list[float]:
        return list(self.axes[0].tolist())

    @cached_property
    def _nodes(self) -> tuple[list[Any], list[Any]]:
        """Log seconds and what is measured, as plain numbers."""
        return self.log_s.tolist(), self.measured.tolist()


Placed = tuple[NDArray[np.intp], NDArray[np.intp], FloatArray, FloatArray, BoolArray]
"""Nodes below and above, share of the way between them, log distance beyond the last, whether inside."""


def _placed(axis: list[float], x: float) -> tuple[int, int, float, float, bool]:
    """:func:`_place` of one number, without the cost of arrays."""
    clipped = min(max(x, axis[0]), axis[-1])
    low = min(bisect_right(axis, clipped) - 1, max(len(axis) - 2, 0))
    high = min(low + 1, len(axis) - 1)
    step = axis[high] - axis[low]
    share = (clipped - axis[low]) / step if step > 0 else 0.0
    return low, high, share, max(x - axis[-1], 0.0), abs(x - clipped) < NODE_TOLERANCE


def _place(axis: FloatArray, x: FloatArray) -> Placed:
    clipped = np.minimum(np.maximum(x, axis[0]), axis[-1])
    further, inside = np.maximum(x - axis[-1], 0.0), np.abs(x - clipped) < NODE_TOLERANCE
    # A size with one node has no interval; only what lies beyond it changes the time.
    if len(axis) == 1:
        low = np.zeros(clipped.shape, dtype=np.intp)
        return low, low, clipped - axis[0], further, inside
    low = np.minimum(axis.searchsorted(clipped, "right") - 1, len(axis) - 2)
    below = axis[low]
    return low, low + 1, (clipped - below) / (axis[low + 1] - below), further, inside


def _between(
    place: Placed | tuple[int, int, float, float, bool], growth: float, log_s: FloatArray, measured: BoolArray
) -> tuple[FloatArray, BoolArray]:
    """Log seconds at a place of the first axis, and what of them is measured."""
    low, high, share, beyond, inside = place
    known_low = measured[low] | (1.0 - share < NODE_TOLERANCE)
    known = known_low & (measured[high] | (share < NODE_TOLERANCE)) & inside
    return (1.0 - share) * log_s[low] + share * log_s[high] + growth * beyond, known


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
    values = [distinct(column) for column in sizes]
    if substitute is not None:
        nodes = [np.rint(np.exp(axis)).astype(np.int64) for axis in substitute.axes]
        # Nodes of both, so that the substitute's rows count beyond the largest measured size too.
        values = [distinct(np.concatenate([mine, other])) for mine, other in zip(values, nodes, strict=True)]
    axes = tuple(np.log(value.astype(np.float64)) for value in values)
    log_s = np.full([len(axis) for axis in axes], np.nan)
    log_s[tuple(np.searchsorted(value, column) for value, column in zip(values, sizes, strict=True))] = np.log(
        seconds.astype(np.float64)
    )
    measured = ~np.isnan(log_s)
    if substitute is not None and not measured.all():
        _fill_from(substitute, values, log_s, measured)
    # The last size first, in which the latency is best known (TableLayout).
    for axis, exponent in reversed(list(enumerate(growth))):
        lines = np.moveaxis(log_s, axis, -1)
        if np.isnan(lines).any():
            _fill_lines(lines, axes[axis], exponent)
    return Grid(axes, log_s, measured, tuple(growth))


def _fill_from(grid: Grid, values: list[NDArray[np.int64]], log_s: FloatArray, measured: BoolArray) -> None:
    """Fill the holes of ``log_s`` from another grid, clipped to the measured sizes beside them on the last axis."""
    mesh = np.meshgrid(*(value.astype(np.float64) for value in values), indexing="ij")
    other = np.log(grid.lookup(*mesh).seconds)
    # More work takes no less time: a filled hole stays between the measured nodes beside it.
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
