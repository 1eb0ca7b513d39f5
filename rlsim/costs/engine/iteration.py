"""One engine iteration: decode or verification of n sequences, with or without prefill, prepared as a table.

t(n, c, q) = device(n (k+1) + q tokens) + attention(n, c) + draft(n) + host(n); captured graphs pad to the next
captured size, iterations beyond the largest launch every kernel from the host.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from rlsim.costs.engine.device_times import DRAFT_LAUNCHES, EAGER_PART, DeviceTimes, PrefillTimes
from rlsim.costs.engine.draft import Drafting
from rlsim.costs.engine.hosts import HostOverheads
from rlsim.costs.engine.layers import Components, total
from rlsim.costs.interface import Bound, EngineCounters, IterationTable, Part
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.costs.operators.work import Number
from rlsim.schema.engine import Engine
from rlsim.units import BoolArray, FloatArray, IntArray


class PolicyChoice(Struct, frozen=True, eq=False):
    """What an engine drafts at each number of live sequences; arrays of shape (N + 1,).

    low, high, share: a request drafts ``low`` tokens, a share of them ``high``. most: of any request, which its draft
    passes run for. repeats: iterations of the engine in one of those that the simulation counts.
    """

    low: IntArray
    high: IntArray
    share: FloatArray
    most: IntArray
    repeats: FloatArray

    @property
    def drafted(self) -> FloatArray:
        """Drafted tokens of a request, mean."""
        return self.low + self.share


class IterationCosts(Struct, frozen=True):
    """Costs of engine iterations of one replica.

    components: seconds by part for n = 0..N decoding sequences (context-free), which add up to ``table.step_s``;
    attention: by part of the context-dependent table. eager: for n = 0..N, whether the iteration exceeds the captured
    graphs. prefill_measured: measured share of the time of a prefill chunk, over ``table.prefill_grid_tokens``.
    captured_tokens: of the largest graph of an attention copy. choice: of draft lengths by the live batch; the table is
    then one of reference iterations (:mod:`rlsim.costs.engine.draft_policy`).
    """

    table: IterationTable
    components: Components
    attention: Components
    eager: BoolArray
    prefill_measured: FloatArray
    prefill_bound: Bound
    captured_tokens: int
    choice: PolicyChoice | None = None

    def parts(self, counters: EngineCounters) -> tuple[Part, ...]:
        """Seconds by part of the iterations that ``counters`` hold; mixed iterations give their prefill a part."""
        counts = np.zeros(len(self.table.step_s))
        counts[: len(counters.iterations_at)] = counters.iterations_at[: len(counts)]
        contexts = np.zeros_like(counts)
        contexts[: len(counters.context_at)] = counters.context_at[: len(counts)]
        columns = contexts / np.maximum(counts, 1.0) / self.table.context_step_tokens
        below = np.clip(columns.astype(np.int64), 0, self.table.attention_s.shape[1] - 2)
        weight, rows = columns - below, np.arange(len(counts))
        out = [_part(name, t, counts * t.seconds, t.measured) for name, t in self.components.items()]
        for name, t in self.attention.items():
            seconds = counts * (t.seconds[rows, below] * (1 - weight) + t.seconds[rows, below + 1] * weight)
            out.append(_part(name, t, seconds, t.measured[rows, below]))
        chunk = counters.prefill_tokens / max(1, counters.prefill_iterations)
        measured = float(np.interp(chunk, self.table.prefill_grid_tokens, self.prefill_measured))
        out.append(Part("prefill", counters.prefill_s, self.prefill_bound, "modelled", measured))
        return tuple(part for part in out if part.seconds > 0)

    def launch_share(self, counters: EngineCounters) -> float:
        """Share of the time of the counted iterations that waits for launches beyond the captured graphs."""
        parts = self.parts(counters)
        busy_s = sum(part.seconds for part in parts)
        return sum(part.seconds for part in parts if part.name == EAGER_PART) / busy_s if busy_s > 0 else 0.0

    def eager_share(self, iterations_at: Sequence[float]) -> float:
        """Share of iterations (by number of decoding sequences) beyond the largest captured graph."""
        counts = np.asarray(iterations_at[: len(self.eager)], dtype=np.float64)
        return float(counts[self.eager[: len(counts)]].sum() / max(1.0, counts.sum()))


def _part(name: str, timed: OperatorTime, seconds: FloatArray, measured: FloatArray) -> Part:
    total_s = float(np.sum(seconds))
    share = float(np.sum(seconds * measured)) / total_s if total_s > 0 else 0.0
    return Part(name, total_s, timed.bound, "assumed" if timed.bound == "launch" else "modelled", share)


def build_iteration(
    drafting: Drafting, device: DeviceTimes, prefill: PrefillTimes, kv_capacity_tokens: float
) -> IterationCosts:
    """Prepare the iteration table of one replica for as many decoding sequences as its device's times are of."""
    engine, host, queries = drafting.layers.engine, drafting.layers.host, drafting.queries
    max_sequences = len(device.eager) - 1
    # Row 0 is priced as one sequence and set to nothing afterwards: tables have no entry for no tokens.
    n = np.maximum(np.arange(max_sequences + 1, dtype=np.float64), 1.0)
    waited_s = _host_s(engine, drafting.speculation.active, host, n, total(device.components))
    components = _times(device.components, host.factors(device.compute_bound))
    components |= _times({"host": modelled(waited_s, "host")}, host.factor)
    attention = _times(device.attention, host.factor)
    added_s = prefill.added_s(engine, host)
    for waited in (components[name] for name in (DRAFT_LAUNCHES, EAGER_PART) if name in components):
        # Inside the graphs, launches that decoding waits for hide behind a prefill as behind any other work.
        hidden_s = np.where(device.eager, 0.0, waited.seconds)[prefill.counts.astype(int)] * (prefill.counts > 0)
        added_s = np.maximum(added_s - hidden_s[:, None], 0.0)
    table = IterationTable(
        _no_work_is_free(total(components)), device.step, _no_work_is_free(total(attention)),
        prefill.grid, prefill.counts, added_s, tokens_per_sequence=queries,
        max_batched_tokens=max(engine.budget_tokens, max_sequences * queries),
        max_running_sequences=engine.most_running, kv_capacity_tokens=kv_capacity_tokens,
        chunked_prefill=engine.mixes_prefill, prefill_context_s=device.behind_s * max(1.0, host.factor),
    )  # fmt: skip
    # What a deviation above 1 adds to prompts was not measured (rule: no factor moves a second into "measured").
    captured, backed = drafting.layers.captured_tokens(queries), prefill.measured / max(1.0, host.factor)
    return IterationCosts(table, components, attention, device.eager, backed, prefill.bound, captured_tokens=captured)


class DevicePoints(NamedTuple):
    """Device seconds of iterations that decode ``sequences``: without their context, and of the context alone; how far
    they are bound by compute. All of shape (points,)."""

    sequences: FloatArray
    plain_s: FloatArray
    cached_s: FloatArray
    compute_bound: FloatArray


def decode_s(engine: Engine, drafts: bool, points: DevicePoints, host: HostOverheads) -> FloatArray:
    """Seconds of one iteration at each of ``points`` under a host that agrees in what their kernels know of it:
    overlap_s, network_hop_s and layers_s. drafts: whether it speculates."""
    waited_s = _host_s(engine, drafts, host, points.sequences, points.plain_s)
    return host.factors(points.compute_bound) * points.plain_s + (waited_s + points.cached_s) * host.factor


def _times(components: Components, factor: Number) -> Components:
    if np.all(factor == 1.0):
        return components
    return {name: timed.deviating(factor) for name, timed in components.items()}


def _host_s(engine: Engine, drafts: bool, host: HostOverheads, n: FloatArray, device_s: FloatArray) -> FloatArray:
    """Host seconds that an iteration waits for. device_s: its kernels, those over contexts left out."""
    # Every attention copy has a scheduler of its own for its share of the sequences.
    return host.seconds(np.ceil(n / engine.attention_data_parallel), drafts, device_s)


def _no_work_is_free(seconds: FloatArray) -> FloatArray:
    out = np.array(seconds, dtype=np.float64)
    out[0] = 0.0
    return out
