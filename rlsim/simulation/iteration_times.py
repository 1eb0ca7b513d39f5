"""Time of engine iterations, one by one and summed in closed form over a segment of equal membership.

Over a segment of m iterations with n sequences the mean context runs c_0, c_0 + g, ..., c_0 + (m - 1) g. Attention A_n
is piecewise linear in context, so with its antiderivative F_n

    sum of A_n(c_i) = [F_n(c_0 + (m - 1/2) g) - F_n(c_0 - g/2)] / g,

exact wherever each interval c_i +- g/2 lies between two knots: a linear function has its mean at the midpoint. An
interval with a knot inside is off by at most g/8 times the change of slope there.
"""

from bisect import bisect_right
from functools import cached_property
from typing import Any

import numpy as np

from rlsim.costs.interface import IterationTable
from rlsim.units import FloatArray

Row = tuple[list[float], list[float]]


_BOUNDLESS = 1e15
"""KV cache in tokens that stands for no limit."""


class IterationTimes:
    """An IterationTable with its antiderivatives.

    max_sequences: sequences that can decode at once: max_running_sequences, within the token budget and the table.
    step_s, attention, integral: by decoding sequences, the latter two also by knot of context; inverse_knot: knots per
    token. context, context_integral: of prefill behind a context by knot, in seconds per knot. kernel_view: the same as
    the C kernel sees it, once that has asked.
    """

    kernel_view: Any = None

    def __init__(self, table: IterationTable) -> None:
        self.table = table
        self.tokens_per_sequence = table.tokens_per_sequence
        self.max_batched_tokens = table.max_batched_tokens
        self.kv_capacity_tokens = min(table.kv_capacity_tokens, _BOUNDLESS)
        self.chunked_prefill = table.chunked_prefill
        self.max_sequences = max(
            1,
            min(
                table.max_running_sequences,
                table.max_batched_tokens // table.tokens_per_sequence,
                table.step_s.size - 1,
            ),
        )
        self.step_s = np.ascontiguousarray(table.step_s, dtype=np.float64)
        self.step: list[float] = self.step_s.tolist()
        self.inverse_knot = 1.0 / table.context_step_tokens
        attention = np.ascontiguousarray(table.attention_s, dtype=np.float64)
        # Interpolation needs two knots: a table of one is level.
        self.attention = np.repeat(attention, 2, axis=1) if attention.shape[1] == 1 else attention
        half = 0.5 * (self.attention[:, 1:] + self.attention[:, :-1])
        self.integral = np.concatenate((np.zeros((half.shape[0], 1)), np.cumsum(half, axis=1)), axis=1)
        self.context, self.context_integral = _behind(table, self.attention.shape[1])
        self._context_row: Row = self.context.tolist(), self.context_integral.tolist()
        self._rows: dict[int, Row] = {}
        self._prefill_rows: dict[int, list[float]] = {}
        self.grid_tokens = np.ascontiguousarray(table.prefill_grid_tokens, dtype=np.float64)
        self._grid: list[float] = self.grid_tokens.tolist()

    @cached_property  # the kernel reads it by its address, so that it has to stay
    def prefill_table(self) -> FloatArray:
        """Seconds that prefill tokens add, shape (max_sequences + 1, grid): rows by decoding sequences."""
        table, n = self.table, np.arange(self.max_sequences + 1)
        columns = np.asarray(table.prefill_s).T
        return np.column_stack([np.interp(n, table.prefill_sequences, column) for column in columns])

    def decode(self, n: int, mean_context: float) -> float:
        """Seconds of one iteration with ``n`` > 0 decoding sequences at a mean context in tokens."""
        attention, _ = self._rows.get(n) or self._attention_row(n)
        x = mean_context * self.inverse_knot
        # Beyond the last knot the last piece goes on, so that contexts longer than the table cost more.
        i = min(int(x), len(attention) - 2)
        return self.step[n] + attention[i] + (x - i) * (attention[i + 1] - attention[i])

    def segment(self, n: int, mean_context: float, growth: float, iterations: int) -> float:
        """Seconds of ``iterations`` iterations with ``n`` sequences whose mean context grows by ``growth`` in each."""
        # The antiderivative is written out at both ends: this runs once or more for each event of a replica, and takes
        # half the time of two calls of a helper, a fortieth of NumPy's on single numbers.
        attention, integral = self._rows.get(n) or self._attention_row(n)
        last = len(attention) - 2
        inverse = self.inverse_knot
        x = (mean_context - 0.5 * growth) * inverse
        i = int(x) if x > 0 else 0
        if i > last:
            i = last
        t = x - i
        a = attention[i]
        lower = integral[i] + t * (a + 0.5 * t * (attention[i + 1] - a))
        x += iterations * growth * inverse
        i = int(x) if x > 0 else 0
        if i > last:
            i = last
        t = x - i
        a = attention[i]
        upper = integral[i] + t * (a + 0.5 * t * (attention[i + 1] - a))
        return iterations * self.step[n] + (upper - lower) / (growth * inverse)

    def iterations_until(
        self, time_s: float, n: int, mean_context: float, growth: float, most: tuple[int, float]
    ) -> tuple[int, float]:
        """Fewest iterations of a :meth:`segment` that take ``time_s`` or more, and their seconds.

        most: iterations known to take at least that long, and their seconds. Interpolates, tries the neighbour, then
        halves: four evaluations or so, as the sum is nearly linear.
        """
        low, low_s, (high, high_s), middle, trial = 0, 0.0, most, 0, 0
        # Three kinds of trial in turn. Interpolation lands within one of the answer where the sum is nearly linear; its
        # neighbour on the other side then closes the bracket; halving bounds the trials where the sum bends.
        while high - low > 1:
            if trial % 3 == 0:
                middle = low + int((time_s - low_s) / (high_s - low_s) * (high - low))
            elif trial % 3 == 1:
                middle = high - 1 if middle == high else low + 1
            else:
                middle = (low + high) // 2
            middle = min(max(middle, low + 1), high - 1)
            middle_s = self.segment(n, mean_context, growth, middle)
            if middle_s >= time_s:
                high, high_s = middle, middle_s
            else:
                low, low_s = middle, middle_s
            trial += 1
        return high, high_s

    def prefill(self, n: int, tokens: float) -> float:
        """Seconds that ``tokens`` prefill tokens add to an iteration with ``n`` decoding sequences."""
        row = self._prefill_rows.get(n) or self._prefill_row(n)
        grid = self._grid
        if len(grid) == 1 or tokens <= grid[0]:
            return row[0]
        i = min(bisect_right(grid, tokens), len(grid) - 1) - 1
        return row[i] + (row[i + 1] - row[i]) * (tokens - grid[i]) / (grid[i + 1] - grid[i])

    def behind(self, tokens: int) -> float:
        """Seconds that the first ``tokens`` tokens of a sequence take to prefill beyond those of :meth:`prefill`.

        A chunk takes the difference of its ends.
        """
        context, integral = self._context_row
        x = tokens * self.inverse_knot
        i = min(int(x), len(context) - 2)
        t = x - i
        a = context[i]
        return integral[i] + t * (a + 0.5 * t * (context[i + 1] - a))

    def chunk(self, need: int, taken: int, budget: int) -> int:
        """Tokens of a prefill that fit an iteration: any share of it when chunked, else all or nothing."""
        if self.chunked_prefill:
            return min(need, budget - taken)
        return need if not taken or taken + need <= budget else 0

    def _attention_row(self, n: int) -> Row:
        row = (self.attention[n].tolist(), self.integral[n].tolist())
        self._rows[n] = row
        return row

    def _prefill_row(self, n: int) -> list[float]:
        row: list[float] = self.prefill_table[n].tolist()
        self._prefill_rows[n] = row
        return row


def _behind(table: IterationTable, knots: int) -> tuple[FloatArray, FloatArray]:
    """Seconds per knot that prefill behind a context adds at ``knots`` knots, and their integral from 0."""
    given = np.asarray(table.prefill_context_s, dtype=np.float64) * table.context_step_tokens
    slope = given[-1] - given[-2]
    values = np.concatenate((given, given[-1] + slope * np.arange(1, knots - given.size + 1)))[:knots]
    integral = np.concatenate(([0.0], np.cumsum(0.5 * (values[1:] + values[:-1]))))
    return values, integral


_KEPT = 16
_prepared: dict[int, IterationTimes] = {}


def prepare(table: IterationTable) -> IterationTimes:
    """IterationTimes of a table, prepared once and cached for the last few tables."""
    timing = _prepared.get(id(table))
    if timing is None or timing.table is not table:
        while len(_prepared) >= _KEPT:
            del _prepared[next(iter(_prepared))]
        timing = _prepared[id(table)] = IterationTimes(table)
    return timing
