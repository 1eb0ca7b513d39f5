"""Seconds of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in an engine: whole blocks or their kernels.

Engines were measured in two ways: as one module with its projections, or as the attention kernel alone, to which matrix
products come. The engines of one device share kernel libraries, so a layout takes whatever was measured fastest there.

Of sparse latent attention (DeepSeek-V3.2, arXiv 2512.02556), where an indexer ranks what is cached, whole blocks were
measured, indexer included; elsewhere a block is its products, a roofline of the scores and latent attention to the
tokens that rank highest.
"""

from functools import lru_cache

import numpy as np
from msgspec import Struct

from rlsim.costs.operators import recurrent, work
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.costs.operators.work import Matrix, Number, Work
from rlsim.schema.model import ModelCard
from rlsim.tables import files
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import OperatorTables, SparseShape
from rlsim.units import BYTES_PER_ELEMENT, FloatArray

BASE_CONTEXT = 2.0
"""Smallest context of the measured module: what it takes there counts as its projections."""
REFERENCE_BATCH, REFERENCE_CONTEXT = np.array([1.0, 16.0, 128.0]), np.array([1024.0, 8192.0])
"""Where the measured variants of one layout are compared."""
MEASURED_SHAPE = (7168, 1536, 512, 64, 128, 128)
"""Widths of the blocks that were measured as modules (DeepSeek-V3; Kimi-K2 with fewer heads). A block of another shape
has other projections, so its kernel alone serves."""

Variant = tuple[OperatorTables | None, bool]
"""Tables, and whether they hold the block as a module (else as a kernel)."""


class LatentBlock(Struct, frozen=True):
    """One MLA block on one of ``tensor_parallel`` GPUs; precision: of its projections."""

    operators: Operators
    card: ModelCard
    tensor_parallel: int
    precision: str
    kv_precision: str

    @property
    def heads(self) -> int:
        """Query heads of one GPU."""
        return self.card.num_heads // self.tensor_parallel

    @property
    def _widths(self) -> tuple[int | None, ...]:
        """Hidden size, query rank, KV rank, rotary, other and value width of a head; empty without latents."""
        mla = self.card.mla
        if mla is None:
            return ()
        heads = mla.qk_rope_head_dim, mla.qk_nope_head_dim, mla.v_head_dim
        return (self.card.hidden_size, mla.q_lora_rank, mla.kv_lora_rank, *heads)

    @property
    def _as_measured(self) -> bool:
        """Whether modules were measured for this shape."""
        return self._widths == MEASURED_SHAPE

    def projections(self, tokens: FloatArray) -> OperatorTime:
        """Projections of ``tokens`` tokens of one layer at decode."""
        return self._unless_borrowed(self._projections(self._variant, tokens))

    def attention(self, batch: FloatArray, context: FloatArray) -> OperatorTime:
        """Attention of one query of each of ``batch`` sequences over ``context`` cached tokens of one layer."""
        return self._unless_borrowed(self._attention(self._variant, batch, context))

    @property
    def _variant(self) -> Variant:
        """The fastest measured variant; the engine's own kernel, with a roofline in its place, where none was."""
        return _fastest_variant(self) or (self.operators.tables, False)

    def _unless_borrowed(self, timed: OperatorTime) -> OperatorTime:
        """Not measured where the variant is another engine's."""
        return timed if self._variant[0] is self.operators.tables else timed.unmeasured()

    def variants(self) -> list[Variant]:
        """Measured variants of this layout: as a module, else as a kernel, of each engine of the device."""
        every = (self.operators.tables, *self.operators.siblings)
        known = [(tables, module) for tables in every if tables is not None for module in (True, False)]
        return [(tables, module) for tables, module in known if self._holds(tables, module)]

    def _holds(self, tables: OperatorTables, module: bool) -> bool:
        one = np.ones(1)
        return (self._module(tables, one, BASE_CONTEXT * one) if module else self._kernel(tables, one, one)) is not None

    def _kernel(self, tables: OperatorTables, batch: FloatArray, context: FloatArray) -> TableTime | None:
        return tables.at(files.MLA_DECODE_KERNEL, (self.kv_precision,), self.heads, context, batch)

    def reference_s(self, variant: Variant) -> float:
        """Sum of the logarithms of the seconds of a variant at the points of comparison."""
        batch, context = (grid.ravel() for grid in np.meshgrid(REFERENCE_BATCH, REFERENCE_CONTEXT))
        whole = self._projections(variant, batch).seconds + self._attention(variant, batch, context).seconds
        # Logarithms, so that large batches do not decide alone which variant is the faster.
        return float(np.sum(np.log(whole)))

    def _projections(self, variant: Variant, tokens: FloatArray) -> OperatorTime:
        tables, module = variant
        if tables is None or not module:
            return self.operators.gemms(tokens, self._matrices(), self.precision)
        look = self._module(tables, tokens, np.full_like(tokens, BASE_CONTEXT))
        amount = self._projection_work(tokens, BYTES_PER_ELEMENT[self.precision])
        return self.operators.timed(look, amount, self.precision, "gemm")

    def _attention(self, variant: Variant, batch: FloatArray, context: FloatArray) -> OperatorTime:
        (tables, module), look = variant, None
        if tables is not None and module:
            look = self._above_base(tables, batch, context)
        elif tables is not None:
            look = self._kernel(tables, batch, context)
        return self.operators.timed(look, self._attention_work(batch, context), "bf16", "decode_attention")

    def _above_base(self, tables: OperatorTables, batch: FloatArray, context: FloatArray) -> TableTime | None:
        """What a module takes over ``context`` beyond its least context, which counts as its projections."""
        longer, start = (self._module(tables, batch, c) for c in (context, np.full_like(context, BASE_CONTEXT)))
        if longer is None or start is None:
            return None
        # Noise of two measurements may leave a little less than nothing.
        return TableTime(np.maximum(longer.seconds - start.seconds, 0.0), longer.measured)

    def _matrices(self) -> list[Matrix]:
        return work.attention_matrices(self.card, self.tensor_parallel)

    def _projection_work(self, tokens: FloatArray, weight_bytes: float) -> Work:
        each = [work.gemm(tokens, matrix.n, matrix.k, weight_bytes) for matrix in self._matrices()]
        return Work(np.sum([one.flops for one in each], axis=0), np.sum([one.bytes for one in each], axis=0))

    def _attention_work(self, batch: FloatArray, context: FloatArray) -> Work:
        kv_bytes = BYTES_PER_ELEMENT[self.kv_precision]
        return work.latent_attention(batch, context, self.card, self.tensor_parallel, kv_bytes)

    def _module(self, tables: OperatorTables, batch: FloatArray, context: FloatArray) -> TableTime | None:
        if not self._as_measured:
            return None
        return tables.mla_decode_s(self.heads, self.precision, self.kv_precision, batch, context)

    def prefill(self, tokens: FloatArray, prompt_tokens: Number) -> OperatorTime | None:
        """One block, projections included, on ``tokens`` tokens of prompts of ``prompt_tokens``; None where no such
        module was measured.

        Part of a prompt takes what a prompt of that length takes, and computes its attention to half of the rest.
        """
        operators, card, mla = self.operators, self.card, self.card.mla
        length = np.minimum(tokens, prompt_tokens)
        batch = np.maximum(tokens / prompt_tokens, 1.0)
        tables = operators.tables if self._as_measured else None
        look = None if tables is None else self._prompt_module(tables, batch, length)
        if look is None or mla is None:
            return None
        flops = self._projection_work(tokens, 1.0).flops
        module = operators.timed(look, Work(flops, np.zeros_like(flops)), self.precision, "gemm")
        width = (card.head_dim + mla.v_head_dim) / 2
        keys = self._mean_keys(np.broadcast_to(prompt_tokens, length.shape)) - self._mean_keys(length)
        earlier = work.causal_attention_flops(2.0 * tokens * keys, self.heads, width)
        return module + modelled(operators.attention_compute_s(earlier), "compute")

    def _prompt_module(self, tables: OperatorTables, batch: FloatArray, tokens: FloatArray) -> TableTime | None:
        return tables.mla_prefill_s(self.heads, self.precision, self.kv_precision, batch, tokens)

    def _mean_keys(self, prompt_tokens: FloatArray) -> FloatArray:
        """Keys that a token of a prompt of so many tokens attends to in the mean."""
        return prompt_tokens / 2.0


@lru_cache(maxsize=256)
def _fastest_variant(block: LatentBlock) -> Variant | None:
    """The fastest measured variant of a layout; None where nothing of it was measured."""
    return min(block.variants(), key=block.reference_s, default=None)


MEASURED_BLOCKS = ((7168, 1536, 512, 64, 128, 128, 64, 128, 2048), (6144, 2048, 512, 64, 192, 256, 32, 128, 2048))
"""DeepSeek-V3.2 and GLM-5, whose blocks were measured: hidden size, query rank, KV rank, rotary, other and value width
of a head; heads, head width and ranked tokens of the indexer."""


class SparseBlock(LatentBlock, frozen=True):
    """A latent block with (``indexer``) or without a ranking of its own."""

    indexer: bool = True

    @property
    def _as_measured(self) -> bool:
        sparse = self.card.sparse_attention
        if sparse is None:
            return False
        ranked = (sparse.index_heads, sparse.index_head_dim, sparse.top_k_tokens)
        return (*self._widths, *ranked) in MEASURED_BLOCKS

    @property
    def _shape(self) -> SparseShape:
        return SparseShape(self.card.hidden_size, self.indexer, self.heads, self.precision, self.kv_precision)

    def variants(self) -> list[Variant]:
        """The block of the engine; those of others where it was not measured.

        Unlike dense ones these blocks are of each engine's making: one takes two to three times another's time.
        """
        own = self.operators.tables
        return [(own, True)] if own is not None and self._holds(own, True) else super().variants()

    def _holds(self, tables: OperatorTables, module: bool) -> bool:
        return module and super()._holds(tables, module)

    def _matrices(self) -> list[Matrix]:
        own = work.attention_matrices(self.card, self.tensor_parallel)
        ranking = recurrent.indexer_matrices(self.card)
        return own + (ranking if self.indexer else recurrent.entry_matrices(self.card, False))

    def _module(self, tables: OperatorTables, batch: FloatArray, context: FloatArray) -> TableTime | None:
        return tables.sparse_decode_s(self._shape, batch, context) if self._as_measured else None

    def _prompt_module(self, tables: OperatorTables, batch: FloatArray, tokens: FloatArray) -> TableTime | None:
        return tables.sparse_prefill_s(self._shape, batch, tokens)

    def _attended(self, context: FloatArray) -> FloatArray:
        sparse = self.card.sparse_attention
        return context if sparse is None else sparse.attended(self.indexer, context)

    def _attention_work(self, batch: FloatArray, context: FloatArray) -> Work:
        attended = super()._attention_work(batch, self._attended(context))
        if not self.indexer:
            return attended
        scores = recurrent.index_scores(batch, context, self.card)
        return Work(attended.flops + scores.flops, attended.bytes + scores.bytes)

    def _above_base(self, tables: OperatorTables, batch: FloatArray, context: FloatArray) -> TableTime | None:
        """Time of a module beyond its least context, measured up to the longest context of such a batch.

        Beyond it the efficiency of the attention stays, not that of the whole block, whose products do not grow.
        """
        reach = tables.sparse_reach_tokens(self._shape) if self._as_measured else 0
        if not reach:
            return None
        whole_batch = 2.0 ** np.ceil(np.log2(np.maximum(batch, 1.0)))
        longest = np.maximum(2.0 ** np.floor(np.log2(np.maximum(reach / whole_batch, 1.0))), BASE_CONTEXT)
        inside = np.minimum(context, longest)
        found = super()._above_base(tables, batch, inside)
        if found is None:
            return None
        here, there = (
            self.operators.roofline(self._attention_work(batch, c), "fp8", "decode_attention").seconds
            for c in (context, inside)
        )
        return TableTime(found.seconds * here / there, found.measured & (inside == context))

    def _attention(self, variant: Variant, batch: FloatArray, context: FloatArray) -> OperatorTime:
        if variant[0] is not None and variant[1]:
            return super()._attention(variant, batch, context)
        attended = super()._attention(variant, batch, self._attended(context)).unmeasured()
        if not self.indexer:
            return attended
        return attended + self.operators.roofline(recurrent.index_scores(batch, context, self.card), "fp8")

    def _mean_keys(self, prompt_tokens: FloatArray) -> FloatArray:
        """All before it until there are more than the ranking keeps."""
        attended = self._attended(prompt_tokens)
        return attended - attended * attended / (2.0 * prompt_tokens)

    def prefill(self, tokens: FloatArray, prompt_tokens: Number) -> OperatorTime | None:
        """As of any latent block; the indexer scores all that earlier parts of a prompt cached, a roofline in FP8."""
        module = super().prefill(tokens, prompt_tokens)
        if module is None or not self.indexer:
            return module
        earlier = (prompt_tokens - np.minimum(tokens, prompt_tokens)) / 2.0
        flops = recurrent.index_scores(tokens, earlier, self.card).flops
        seconds = self.operators.roofline(Work(flops, np.zeros_like(flops)), "fp8").seconds
        return module + modelled(np.where(flops > 0, seconds, 0.0), "compute")


def prompt_scores(operators: Operators, card: ModelCard, batch: FloatArray, prompt_tokens: FloatArray) -> OperatorTime:
    """Scores of the indexers over ``batch`` whole prompts, forward: the mean layer's time, a roofline in FP8."""
    sparse = card.sparse_attention
    if sparse is None:
        raise ValueError(f"{card.name} has no indexer")
    share = card.num_index_layers / card.num_attention_layers
    # Every query meets half of the prompt; keys of a prompt are read once for a tile of queries, not for each.
    scores = recurrent.index_scores(batch * prompt_tokens / 2.0, prompt_tokens, card)
    moved = batch * prompt_tokens * sparse.key_bytes
    return operators.roofline(Work(scores.flops, np.asarray(moved, dtype=np.float64)), "fp8").repeated(share)
