"""Seconds of an operation with what they rest on, and how such times add up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from rlsim.costs.interface import Bound
from rlsim.costs.operators.work import Number
from rlsim.units import FloatArray


# not frozen: made by the hundred thousand, and a frozen one takes twice as long to make
class OperatorTime(Struct):
    """Seconds (array) of an operation, whether each rests on a measurement, and what bounds it."""

    seconds: FloatArray
    measured: FloatArray
    bound: Bound

    def __add__(self, other: OperatorTime) -> OperatorTime:
        seconds = self.seconds + other.seconds
        known = self.seconds * self.measured + other.seconds * other.measured
        share = np.where(seconds > 0, known / np.maximum(seconds, 1e-300), 1.0)
        longer = self if self.seconds.sum() >= other.seconds.sum() else other
        return OperatorTime(seconds, share, longer.bound)

    def repeated(self, factor: float) -> OperatorTime:
        """The operation repeated ``factor`` times."""
        return OperatorTime(self.seconds * factor, self.measured, self.bound)

    def deviating(self, factor: Number) -> OperatorTime:
        """Times a fitted factor, or one of each; what it adds is modelled."""
        return OperatorTime(self.seconds * factor, self.measured / np.maximum(1.0, factor), self.bound)

    def shortened_by(self, seconds: float, least_s: float) -> OperatorTime:
        """Less ``seconds``, yet not under ``least_s``, or what it takes where that is less."""
        shorter = np.maximum(self.seconds - seconds, np.minimum(self.seconds, least_s))
        return OperatorTime(shorter, self.measured, self.bound) if seconds > 0 else self

    def unmeasured(self) -> OperatorTime:
        """This time as not measured: its seconds were measured on something else."""
        return OperatorTime(self.seconds, np.zeros_like(self.measured), self.bound)

    def scaled_by(self, ratio: FloatArray) -> OperatorTime:
        """Times a modelled ratio: what it changes is no longer a measurement."""
        return OperatorTime(self.seconds * ratio, np.where(ratio == 1.0, self.measured, 0.0), self.bound)


def ratio_or_one(seconds: FloatArray, others: FloatArray) -> FloatArray:
    """Ratio of seconds, 1 where ``others`` take none: what takes no time takes none however it is scaled."""
    whole = np.ones(np.broadcast_shapes(seconds.shape, others.shape))
    return np.divide(seconds, others, out=whole, where=others > 0)


def modelled(seconds: ArrayLike, bound: Bound) -> OperatorTime:
    """A time without a measurement behind it."""
    values = np.asarray(seconds, dtype=np.float64)
    return OperatorTime(values, np.zeros_like(values), bound)


def beside(one: OperatorTime, other: OperatorTime) -> OperatorTime:
    """Two operations at the same time: the longer of the two, where they do not get in each other's way."""
    longer = one.seconds >= other.seconds
    return OperatorTime(
        np.where(longer, one.seconds, other.seconds), np.where(longer, one.measured, other.measured), one.bound
    )


def mean_layer(times: Sequence[tuple[int, OperatorTime]]) -> OperatorTime:
    """Mean over layers of several kinds, from (layers, time of one) of each; the bound is that of the longest kind."""
    (_, first), *others = times
    total = sum(layers for layers, _ in times)
    # Written as the first kind and what others differ by, so that equal kinds leave it exactly as it is.
    seconds = first.seconds + sum((n / total * (t.seconds - first.seconds) for n, t in others), np.zeros(()))
    weights = [n / total * t.seconds / np.maximum(seconds, 1e-300) for n, t in others]
    differ = (w * (t.measured - first.measured) for w, (_, t) in zip(weights, others, strict=True))
    longest = max(times, key=lambda kind: kind[0] * float(np.sum(kind[1].seconds)))[1]
    return OperatorTime(seconds, first.measured + sum(differ, np.zeros(())), longest.bound)


def zero(like: ArrayLike) -> OperatorTime:
    """No time, shaped like ``like``."""
    shape = np.shape(np.asarray(like))
    return OperatorTime(np.zeros(shape), np.ones(shape), "none")
