"""Checks of measured rows on import: every rejected row has a reason, every tolerance a stated root.

A check is a function of the rows that are left and returns a mask of those to reject. What remains is made monotone in
the sizes by isotonic regression of the log latency, which moves rows only within the noise that the checks allow.
"""

from collections.abc import Callable, Sequence

import numpy as np
from pandas import Series
from scipy.optimize import isotonic_regression

from rlsim.calibration.columns import Columns, Lines, group_ids, lines_along, row_count, take
from rlsim.calibration.lower_bounds import least_time
from rlsim.calibration.package_tables import Sheet
from rlsim.units import BoolArray, FloatArray, IntArray

DATASHEET_MARGIN = 1.05
"""A row may beat the datasheet by so much (clock above the rated one, rounding of the rates)."""
NOISE = 0.3
"""Relative disagreement with neighbouring rows from which a row is wrong rather than noisy.

Of neighbouring m of one BF16 product in the package's tables 4 to 7 % are inverted by more than 10 %; beyond 30 % what
is left are defects (cold start at m = 1, throttled runs).
"""
LOOK_AHEAD = 3
"""Larger sizes whose median a row must not exceed by more than the noise."""
LAUNCH_BOUND_S = 1e-6
"""Roofline time below which a row shows nothing but its launch."""
GRAPH_LAUNCH_S = 20e-6
"""A kernel replayed from a CUDA graph starts within a few microseconds; a floor above this is the host's."""
HOST_PERCENTILE, HOST_MARGIN = 99, 1.2
"""Rows up to the margin above this percentile of the launch-only rows may be host time: they cannot be told apart."""
BULK_S = 50e-6
"""Latency from which work, not launch, decides, so that it cannot grow faster than the work."""
ROUTED = 16
"""Assignments per expert from which the expert with the most decides, and uneven routing cannot be faster than even."""

Check = Callable[[Columns], BoolArray]


def not_positive(table: Columns) -> BoolArray:
    """Rows without a positive finite latency."""
    return np.asarray(~(np.isfinite(table["latency_s"]) & (table["latency_s"] > 0)))


def duplicated(table: Columns, names: Sequence[str]) -> BoolArray:
    """All but the fastest row of each key (an engine that autotunes takes the fastest kernel)."""
    # Stable: of equal times the first row of the file stays.
    order = np.argsort(table["latency_s"], kind="stable")
    mask = np.zeros(row_count(table), dtype=bool)
    mask[order] = Series(group_ids(table, names)[order]).duplicated()
    return mask


def impossible(name: str, table: Columns, sheet: Sheet) -> BoolArray:
    """Mask of the rows that are faster than the datasheet allows for their least work."""
    least = least_time(name, table, sheet)
    # fmax: where the datasheet has no rate of a precision (NaN), bytes alone limit.
    limit = np.fmax(least.compute_s, least.memory_s)
    return np.asarray(table["latency_s"] * DATASHEET_MARGIN < limit)


def curve_with(check: Check, names: Sequence[str]) -> Check:
    """Check that rejects all rows which share ``names`` with a row that ``check`` rejects."""

    def whole_curve(table: Columns) -> BoolArray:
        curves = group_ids(table, names)
        return np.isin(curves, curves[check(table)])

    return whole_curve


def host_bound(name: str, table: Columns, sheet: Sheet) -> BoolArray:
    """Rows near the floor of a kernel whose smallest problems cost more than a graph launch."""
    least = least_time(name, table, sheet)
    # All bytes, cached or not: a row counts as tiny only if nothing of it takes time.
    tiny = np.maximum(least.compute_s, least.moved_s) < LAUNCH_BOUND_S
    mask = np.zeros(row_count(table), dtype=bool)
    kernels = group_ids(table, ("precision", "kernel"))
    for kernel in np.unique(kernels):
        here = kernels == kernel
        if not (here & tiny).any():
            continue
        launches = table["latency_s"][here & tiny]
        if np.median(launches) > GRAPH_LAUNCH_S:
            mask |= here & (table["latency_s"] < HOST_MARGIN * np.percentile(launches, HOST_PERCENTILE))
    return mask


def slower_than_larger(lines: Lines) -> BoolArray:
    """Rows slower than the median of the next larger sizes by more than the noise."""
    values = lines.values
    mask = np.zeros(values.shape, dtype=bool)
    for row in range(len(values)):
        known = np.flatnonzero(~np.isnan(values[row]))
        line = values[row, known]
        for place in range(len(known) - 1):
            # A median, since a single larger size may be the defect.
            ahead = float(np.median(line[place + 1 : place + 1 + LOOK_AHEAD]))
            mask[row, known[place]] = line[place] > (1 + NOISE) * ahead
    return np.asarray(lines.rows(mask))


def faster_growth_than_work(lines: Lines, growth: float) -> BoolArray:
    """Bulk rows slower than the next smaller accepted one by more than the growth of the work and the noise."""
    mask = np.zeros(lines.values.shape, dtype=bool)
    last = np.full(len(lines.values), np.nan)
    last_size = np.full(len(lines.values), np.nan)
    for place, size in enumerate(lines.sizes):
        here = lines.values[:, place]
        mask[:, place] = (last > BULK_S) & (here > (1 + NOISE) * last * (size / last_size) ** growth)
        # A rejected row is no reference: it would let the next one through.
        accepted = ~np.isnan(here) & ~mask[:, place]
        last, last_size = np.where(accepted, here, last), np.where(accepted, size, last_size)
    return np.asarray(lines.rows(mask))


def off_its_neighbours(lines: Lines) -> BoolArray:
    """Rows above the log-log interpolation of their two neighbours, or below both, by more than the noise.

    Below the interpolation alone is no defect: a change of kernel makes a step.
    """
    values, x = np.log(lines.values), np.log(lines.sizes)
    mask = np.zeros(values.shape, dtype=bool)
    if len(x) > 2:
        share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
        between = values[:, :-2] * (1 - share) + values[:, 2:] * share
        least = np.minimum(values[:, :-2], values[:, 2:])
        noise = np.log(1 + NOISE)
        mask[:, 1:-1] = (values[:, 1:-1] > between + noise) | (values[:, 1:-1] < least - noise)
    return np.asarray(lines.rows(mask))


def slower_than_bf16(table: Columns, others: Sequence[str]) -> BoolArray:
    """Kernels of a lower precision that are slower than BF16 of the same shape by more than the noise in most rows."""
    ids = group_ids(table, others)
    bf16 = table["precision"] == "bf16"
    # initial: an empty table has no largest id. NaN where no BF16 row is: such groups are not compared.
    reference = np.full(ids.max(initial=-1) + 1, np.nan)
    reference[ids[bf16]] = table["latency_s"][bf16]
    return _groups_above(group_ids(table, ("precision", "kernel")), table["latency_s"] / reference[ids], 1 + NOISE)


def balanced_slower_than_uneven(table: Columns, others: Sequence[str]) -> BoolArray:
    """Balanced curves under expert parallelism that are slower than power-law ones although no expert is idle.

    A router that keeps its tokens on one rank makes such rows: they mean something else than their label.
    """
    ids = group_ids(table, others)
    uneven = table["distribution"] == "power_law_1.01"
    reference = np.full(ids.max(initial=-1) + 1, np.nan)
    reference[ids[uneven]] = table["latency_s"][uneven]
    ratio = table["latency_s"] / reference[ids]
    compared = (table["tokens"] * table["top_k"] >= ROUTED * table["experts"]) & (table["expert_parallel"] > 1)
    even = table["distribution"] == "balanced"
    # A balanced load is the least possible one; half the noise, since both rows are of one kernel.
    curves = group_ids(table, [name for name in table if name not in ("tokens", "latency_s", "kernel")])
    return np.asarray(even & _groups_above(curves, np.where(compared & even, ratio, np.nan), 1 + NOISE / 2))


def _groups_above(groups: IntArray, ratio: FloatArray, limit: float) -> BoolArray:
    """Rows of the groups whose median ratio exceeds the limit; NaN does not count."""
    # A median: single rows of a sound kernel may be noise.
    medians = Series(ratio).groupby(groups).transform("median")
    return np.asarray(medians > limit)


def monotone(table: Columns, sizes: Sequence[str], others: Sequence[str]) -> FloatArray:
    """Latencies made non-decreasing in every size of ``sizes`` by isotonic regression of their logarithm.

    Several sizes are treated by Dykstra's alternating projections, which converge to the regression on their order.
    """
    log_s = np.log(table["latency_s"])
    view = {**table, "log_s": log_s}
    corrections = [np.zeros_like(log_s) for _ in sizes]
    for _ in range(1 if len(sizes) == 1 else 30):
        before = view["log_s"]
        for axis, size in enumerate(sizes):
            target = view["log_s"] + corrections[axis]
            fixed = _project({**view, "log_s": target}, size, [*others, *(name for name in sizes if name != size)])
            corrections[axis] = target - fixed
            view["log_s"] = fixed
        if np.abs(view["log_s"] - before).max(initial=0.0) < 1e-4:
            break
    # The rounds end before all projections agree; a running maximum takes the rest.
    for size in sizes if len(sizes) > 1 else ():
        lines = lines_along(view, size, [*others, *(name for name in sizes if name != size)], "log_s")
        running = np.fmax.accumulate(lines.values, axis=1)
        view["log_s"] = lines.rows(running)
    return np.asarray(np.exp(view["log_s"]))


def _project(table: Columns, size: str, others: Sequence[str]) -> FloatArray:
    lines = lines_along(table, size, others, "log_s")
    values = lines.values
    for line in values:
        known = ~np.isnan(line)
        # Most lines rise already and would come back as they are.
        if (np.diff(line[known]) < 0).any():
            line[known] = isotonic_regression(line[known]).x
    return np.asarray(lines.rows(values))


def apply_checks(table: Columns, checks: Sequence[tuple[str, Check]]) -> tuple[Columns, dict[str, int]]:
    """Rows that pass every check, in order, and how many each reason rejected."""
    rejected: dict[str, int] = {}
    for reason, check in checks:
        mask = check(table)
        if mask.any():
            rejected[reason] = rejected.get(reason, 0) + int(mask.sum())
            table = take(table, ~mask)
    return table, rejected
