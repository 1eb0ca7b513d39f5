"""Seconds of single operations on a device: measured tables first, a roofline with measured efficiency beyond them.

Of a time measured on another profile the part that its roofline explains is scaled, the rest stays, and it counts as
modelled.
What imported tables lack (attention of several queries, sampling, rejection, host) is None unless tables of ``rlsim
calibrate`` hold it (:mod:`rlsim.costs.operators.device`).
"""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from rlsim.costs.interface import Bound
from rlsim.costs.operators import work
from rlsim.costs.operators.time import OperatorTime, mean_layer, modelled, ratio_or_one, zero
from rlsim.costs.operators.work import Matrix, Work
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard
from rlsim.tables import files
from rlsim.tables.interpolation import TableTime, remembered
from rlsim.tables.operators import ExpertShape, Heads, OperatorTables
from rlsim.units import BYTES_PER_ELEMENT, MICROSECOND, FloatArray

KERNEL_FLOOR_S = 2.5 * MICROSECOND
"""Least device time of a kernel inside a replayed graph. Assumption; the smallest table entries are 4 to 10 us."""
PRODUCTS_KEPT, ROWS_KEPT = 65_536, 64
"""Cached matrix products, of at most so many rows each: the same one is asked for under each host, by each pass and by
most layouts of a plan."""
ATTENTION_KEPT = 16
"""Cached times of attention over a KV cache: draft lengths of one engine ask for the same batches and contexts."""
DEFAULT_COMPUTE, DEFAULT_MEMORY = 0.7, 0.8
"""Shares of datasheet FLOP/s and bandwidth where a device has no tables at all. Assumption."""
Key = tuple[object, ...]
Operation = Literal["gemm", "decode_attention", "prefill_attention", "moe"]


class TableSource(Struct, frozen=True):
    """Tables and the profile of the device that they were measured on; transferred: not the projected device."""

    tables: OperatorTables
    device: HardwareProfile
    transferred: bool = False


class Operators:
    """Operation times of one hardware profile. reference: the profile that ``tables`` were measured on.

    siblings: tables of the same device and other engines. stands_in: ``tables`` are of another engine; nothing counts
    as measured. lent: tables of ``rlsim calibrate`` for what ``tables`` lack. sources: both, in the order of asking.
    """

    def __init__(
        self,
        profile: HardwareProfile,
        tables: OperatorTables | None,
        reference: HardwareProfile | None = None,
        lent: TableSource | None = None,
        siblings: tuple[OperatorTables, ...] = (),
        stands_in: bool = False,
    ) -> None:
        self.stands_in = stands_in
        self.profile, self.tables, self.reference = profile, tables, reference or profile
        self.siblings = siblings if tables is not None else ()
        self._measured_here = self.profile == self.reference
        self._products: dict[Key, OperatorTime] = {}
        self._attention: dict[Key, OperatorTime] = {}
        self._shares: dict[tuple[str, Operation], tuple[float, float]] = {}
        self.bandwidth = profile.memory_bandwidth_bytes_per_s.value
        # Tables of the engine before those of rlsim calibrate, which only fill gaps.
        own = None if tables is None else TableSource(tables, self.reference)
        self.sources = tuple(source for source in (own, lent) if source is not None)

    def host_s(self, name: str) -> float | None:
        """Host seconds measured on exactly this profile; None where it was not, or where the user changed it."""
        here = (source.tables.host_s(name) for source in self.sources if source.device == self.profile)
        return next((seconds for seconds in here if seconds is not None), None)

    def efficiency(self, precision: str, operation: Operation = "gemm") -> tuple[float, float]:
        """Measured shares of (datasheet FLOP/s, memory bandwidth) that an operation reaches.

        What was not fitted of the operation is taken from matrix products, of the precision or else of BF16.
        """
        if (precision, operation) not in self._shares:
            self._shares[precision, operation] = self._fitted_shares(precision, operation)
        return self._shares[precision, operation]

    def _fitted_shares(self, precision: str, operation: Operation) -> tuple[float, float]:
        if self.tables is None:
            return DEFAULT_COMPUTE, DEFAULT_MEMORY
        candidates = ((operation, precision), (operation, "bf16"), ("gemm", precision), ("gemm", "bf16"))
        fits = [fit for fit in (self.tables.fitted_efficiency(*key) for key in candidates) if fit is not None]
        # The first fit that has the number: an operation's own may lack one of both.
        compute = next((fit.compute_median for fit in fits if fit.compute_median), DEFAULT_COMPUTE)
        memory = next((fit.memory_median for fit in fits if fit.memory_median), DEFAULT_MEMORY)
        return compute, memory

    def bound_of(self, amount: Work, precision: str) -> Bound:
        """Whether computation or memory limits most of ``amount``."""
        compute = _total(amount.flops) / self.profile.flops(_rate(precision))
        return "compute" if compute > _total(amount.bytes) / self.bandwidth else "memory"

    def roofline(self, amount: Work, precision: str, operation: Operation = "gemm") -> OperatorTime:
        """max(FLOP / rate, bytes / bandwidth) at measured efficiency, never under the kernel floor."""
        return modelled(self._roof_s(self.profile, amount, precision, operation), self.bound_of(amount, precision))

    def _roof_s(self, profile: HardwareProfile, amount: Work, precision: str, operation: Operation) -> FloatArray:
        compute, memory = self.efficiency(precision, operation)
        computed = amount.flops / (profile.flops(_rate(precision)) * compute)
        moved = amount.bytes / (profile.memory_bandwidth_bytes_per_s.value * memory)
        return np.asarray(np.maximum(np.maximum(computed, moved), KERNEL_FLOOR_S), dtype=np.float64)

    def transferred(self, timed: OperatorTime, amount: Work, precision: str) -> OperatorTime:
        """A time measured on the reference profile, carried over to this one."""
        if self._measured_here:
            return timed
        return timed.scaled_by(self._carried(timed.seconds, self.reference, amount, precision))

    def _carried(self, seconds: FloatArray, there: HardwareProfile, amount: Work, precision: str) -> FloatArray:
        """How much longer than on the device ``there`` a kernel takes here, which took ``seconds`` there.

        What it takes beyond FLOP / rate and bytes / bandwidth (launch, tiles that are not full, cold caches) stays as
        it is, and where it takes less than that it keeps its share. Over the 17,000 BF16 products that vLLM's tables of
        two devices have in common, H100 to H200, that misses memory-bound ones by 3 % in the median, the ratio of both
        rooflines by 25 %; H100 to B200 11 and 49 %, and compute-bound ones alike (12 and 13 %).
        """
        ideal_here, ideal_there = (
            np.maximum(
                amount.flops / device.flops(_rate(precision)), amount.bytes / device.memory_bandwidth_bytes_per_s.value
            )
            for device in (self.profile, there)
        )
        beyond = np.maximum(seconds - ideal_there, 0.0)
        carried = np.minimum(ratio_or_one(seconds, ideal_there), 1.0) * ideal_here + beyond
        return ratio_or_one(carried, seconds)

    def _measured(self, look: Callable[[OperatorTables], TableTime | None], amount: Work) -> OperatorTime | None:
        """BF16 operation from the first source that holds it, carried over where that is another device."""
        for source in self.sources:
            found = look(source.tables)
            if found is None:
                continue
            timed = OperatorTime(found.seconds, found.measured.astype(np.float64), self.bound_of(amount, "bf16"))
            if source.device == self.profile:
                return timed
            ratio = self._carried(timed.seconds, source.device, amount, "bf16")
            return modelled(timed.seconds * ratio, timed.bound) if source.transferred else timed.scaled_by(ratio)
        return None

    def verify_attention(
        self, heads: Heads, batch: FloatArray, context: FloatArray, queries: int
    ) -> OperatorTime | None:
        """``queries`` positions per sequence over ``context`` tokens, the first position included (GQA only).

        One query's time, as the engine's kernel takes it, times how much longer the same measured kernel took for
        several than for one; on another device times how much that ratio of the rooflines differs there.
        """
        alone = work.over_cache(heads, batch, context)
        for source in self.sources:
            several = source.tables.verify_attention_s(heads, queries, batch, context)
            single = source.tables.verify_attention_s(heads, 1, batch, context)
            if several is None or single is None:
                continue
            once = self.decode_attention(heads, batch, context)
            ratio = several.seconds / single.seconds
            if source.device == self.profile:
                known = np.where(several.measured & single.measured, once.measured, 0.0)
                return OperatorTime(once.seconds * ratio, known, once.bound)
            together = Work(alone.flops * queries, alone.bytes)
            # How much longer several queries take than one by the roofline of either device.
            here, there = (
                self._roof_s(profile, together, "bf16", "decode_attention")
                / self._roof_s(profile, alone, "bf16", "decode_attention")
                for profile in (self.profile, source.device)
            )
            return modelled(once.seconds * ratio * here / there, once.bound)
        return None

    def sampling(self, rows: FloatArray, vocabulary: int) -> OperatorTime | None:
        """Softmax and draw on ``rows`` rows of logits."""
        amount = work.rows_of_fp32(rows, vocabulary)
        softmax = self._measured(lambda t: t.sampling_s("softmax", vocabulary, rows), amount)
        drawn = self._measured(lambda t: t.sampling_s("draw", vocabulary, rows), amount)
        return None if softmax is None or drawn is None else softmax + drawn

    def elementwise(self, op: str, tokens: FloatArray, width: int) -> OperatorTime | None:
        """One elementwise kernel on ``width`` values of each token (see the table of that name)."""
        amount = Work(np.zeros_like(tokens), tokens * width * BYTES_PER_ELEMENT["bf16"])
        return self._measured(lambda t: t.elementwise_s(op, width, tokens), amount)

    def rejection(
        self, sequences: FloatArray, queries: int, vocabulary: int, draft_vocabulary: int
    ) -> OperatorTime | None:
        """Softmax of all verified positions, acceptance test and draw of the token after it."""
        amount = work.rows_of_fp32(sequences * queries, vocabulary)
        softmax = self._measured(lambda t: t.sampling_s("softmax", vocabulary, sequences * queries), amount)
        tested = self._measured(lambda t: t.rejection_s(vocabulary, draft_vocabulary, queries, sequences), amount)
        return None if softmax is None or tested is None else softmax + tested

    def timed(self, look: TableTime | None, amount: Work, precision: str, operation: Operation) -> OperatorTime:
        """A measured time on the projected device, or the roofline of ``amount`` where ``look`` is None."""
        if look is None:
            return self.roofline(amount, precision, operation)
        known = np.zeros_like(look.seconds) if self.stands_in else look.measured.astype(np.float64)
        found = OperatorTime(look.seconds, known, self.bound_of(amount, precision))
        return self.transferred(found, amount, precision)

    def gemm(self, tokens: ArrayLike, matrix: Matrix, precision: str) -> OperatorTime:
        """Matrix product of ``tokens`` rows with one weight matrix."""
        rows = np.asarray(tokens, dtype=np.float64)
        if rows.size > ROWS_KEPT:
            return self._gemm(rows, matrix, precision)
        key = (rows.tobytes(), rows.shape, matrix.n, matrix.k, precision)
        return remembered(self._products, PRODUCTS_KEPT, key, lambda: self._gemm(rows, matrix, precision))

    def _gemm(self, rows: FloatArray, matrix: Matrix, precision: str) -> OperatorTime:
        if precision == "int4":
            return self._unpacked(rows, matrix)
        amount = work.gemm(rows, matrix.n, matrix.k, BYTES_PER_ELEMENT[_rate(precision)])
        look = self._fastest(lambda tables: _product(tables, precision, rows, matrix), precision)
        return self.timed(look, amount, precision, "gemm")

    def _unpacked(self, rows: FloatArray, matrix: Matrix) -> OperatorTime:
        """A product with weights in INT4 that are unpacked to BF16: that of BF16 less the time of what is not read.

        No table has it; beside TensorRT-LLM's on an A100 (3,192 rows of aiconfigurator-core 0.12 with weights beyond
        20 MB) it is 14 % too short in the median, 20 % off.
        """
        stored = (work.gemm(rows, matrix.n, matrix.k, BYTES_PER_ELEMENT[one]) for one in ("bf16", "int4"))
        wide, packed = (self.roofline(amount, "bf16") for amount in stored)
        seconds = self.gemm(rows, matrix, "bf16").seconds - (wide.seconds - packed.seconds)
        return modelled(np.maximum(seconds, packed.seconds), packed.bound)

    def _fastest(self, look: Callable[[OperatorTables], TableTime | None], precision: str) -> TableTime | None:
        """What the engine's own tables hold, or where faster those of another engine of the device (not measured then).

        Quantised products exist in several libraries that all engines link; a collection through one engine's default
        backend says less of the engine than of that default. BF16 products are cuBLAS's everywhere.
        """
        if precision == "bf16":
            return None if self.tables is None else look(self.tables)
        best: TableTime | None = None
        for found in self.on_this_device(look):
            if best is None:
                best = found
                continue
            faster = found.seconds < best.seconds
            best = TableTime(np.where(faster, found.seconds, best.seconds), np.where(faster, False, best.measured))
        return best

    def on_this_device(self, look: Callable[[OperatorTables], TableTime | None]) -> Iterator[TableTime]:
        """What the engine's own tables hold, then those of the device's other engines, which is not measured."""
        own = None if self.tables is None else look(self.tables)
        if own is not None:
            yield own
        yield from (found.scaled(1.0) for found in map(look, self.siblings) if found is not None)

    def gemms(self, tokens: ArrayLike, matrices: list[Matrix], precision: str) -> OperatorTime:
        """Several products one after the other."""
        total = zero(tokens)
        for matrix in matrices:
            total = total + self.gemm(tokens, matrix, precision)
        return total

    def stream(self, moved_bytes: ArrayLike, kernels: float = 1.0) -> OperatorTime:
        """Elementwise kernels: memory traffic at the measured share of bandwidth, never under the kernel floor."""
        _, memory = self.efficiency("bf16")
        seconds = np.asarray(moved_bytes, dtype=np.float64) / (self.bandwidth * memory)
        return modelled(np.maximum(seconds, kernels * KERNEL_FLOOR_S), "memory")

    def attention_compute_s(self, flops: FloatArray) -> FloatArray:
        """Seconds of attention FLOP at the efficiency that prefill attention reaches."""
        compute, _ = self.efficiency("bf16", "prefill_attention")
        return np.asarray(flops / (self.profile.flops("bf16") * compute), dtype=np.float64)

    def decode_attention(self, heads: Heads, batch: ArrayLike, context: ArrayLike) -> OperatorTime:
        """One query per sequence of ``batch`` sequences at mean context; without projections (GQA only)."""

        def find() -> OperatorTime:
            look = None if self.tables is None else self.tables.decode_attention_s(heads, batch, context)
            return self.timed(look, work.over_cache(heads, batch, context), "bf16", "decode_attention")

        key = heads, *((values.tobytes(), values.shape) for values in map(np.asarray, (batch, context)))
        return remembered(self._attention, ATTENTION_KEPT, key, find)

    def prefill_attention(
        self, card: ModelCard, tensor_parallel: int, batch: ArrayLike, prompt_tokens: ArrayLike
    ) -> OperatorTime:
        """Causal attention of ``batch`` prompts of equal length, forward, without projections: the mean layer's time.

        A windowed layer takes what as many tokens take in prompts of as many pairs (:func:`work.windowed_prompts`),
        and never longer than one without a window.
        """
        b, p = np.broadcast_arrays(np.asarray(batch, dtype=np.float64), np.asarray(prompt_tokens, dtype=np.float64))
        whole, times = self._causal_attention(card, tensor_parallel, b, p), []
        for layers, window in card.prompt_kinds:
            count, length = work.windowed_prompts(b, p, window)
            timed = self._causal_attention(card, tensor_parallel, count, length) if window else whole
            seconds, known = np.minimum(timed.seconds, whole.seconds), np.where(length == p, timed.measured, 0.0)
            times.append((layers, OperatorTime(seconds, known, timed.bound)))
        return mean_layer(times)

    def _causal_attention(
        self, card: ModelCard, tensor_parallel: int, batch: FloatArray, prompt_tokens: FloatArray
    ) -> OperatorTime:
        """Causal attention of one layer without a window."""
        amount = work.prefill_attention(batch, prompt_tokens, card, tensor_parallel)
        own, look = work.heads_of(card, tensor_parallel), None
        if self.tables is not None and card.mla is None:
            look = self.tables.prefill_attention_s(own, batch, prompt_tokens)
        elif self.tables is not None:
            look = self.tables.at(files.MLA_PREFILL_KERNEL, ("bf16",), own.heads, prompt_tokens, batch)
        return self.timed(look, amount, "bf16", "prefill_attention")

    def experts(
        self, tokens: FloatArray, shape: ExpertShape, matrices: int, balance: str, own: bool = False
    ) -> OperatorTime:
        """Routed experts of one layer; own: by the engine's own kernels, where measured. matrices: of an expert.

        Where the table lacks the layout or precision, the ratio measured / roofline of the nearest measured one carries
        over to the wanted roofline; such times count as modelled. FP8 takes block-scaled rows as they are, as engines
        serve checkpoints that come in them.
        """
        precision, amount = shape.precision, work.grouped_experts(tokens, shape, matrices)
        look = self._moe_lookup(tokens, shape, balance, own)
        if look is not None:
            return self.timed(look, amount, precision, "moe")
        # What a roofline misses (launches, part-filled tiles, routing skew) is much the same for layouts of like work.
        for near in work.nearest_layouts(shape):
            # As many tokens for each expert as there are here: of other experts that takes other tokens.
            alike = tokens * (shape.top_k / shape.experts / (near.top_k / near.experts))
            look = self._moe_lookup(alike, near, balance, own)
            if look is not None:
                same_rate = _rate(near.precision) == _rate(precision)
                roof = self.roofline(amount, near.precision if same_rate else precision, "moe")
                near_work = work.grouped_experts(alike, near, matrices)
                ratio = look.seconds / self._roof_s(self.reference, near_work, near.precision, "moe")
                return modelled(np.maximum(roof.seconds * ratio, KERNEL_FLOOR_S), roof.bound)
        return self.roofline(amount, precision, "moe")

    def _moe_lookup(self, tokens: FloatArray, shape: ExpertShape, balance: str, own: bool) -> TableTime | None:
        def look(tables: OperatorTables) -> TableTime | None:
            # Routing skew was not collected for every layout; even routing was.
            return tables.moe_s(shape, balance, tokens) or tables.moe_s(shape, "balanced", tokens)

        mine = look(self.tables) if own and self.tables is not None else None
        return self._fastest(look, shape.precision) if mine is None else mine


def _product(tables: OperatorTables, precision: str, rows: FloatArray, matrix: Matrix) -> TableTime | None:
    """A measured matrix product; FP8 less the search for the scales of its activations, with which it was measured.

    Checkpoints with one scale per tensor hold those of the activations too.
    """
    look = tables.gemm_s(precision, rows, matrix.n, matrix.k)
    search = tables.dynamic_scale_s(rows, matrix.k) if precision == "fp8" else None
    if look is None or search is None:
        return look
    return TableTime(np.maximum(look.seconds - search.seconds, KERNEL_FLOOR_S), look.measured & search.measured)


def _total(values: FloatArray) -> float:
    return float(values.item() if values.size == 1 else values.sum())


def _rate(precision: str) -> str:
    # Scales do not change the rate of the tensor cores.
    return "fp8" if precision == "fp8_block" else precision
