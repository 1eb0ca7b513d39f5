"""Seconds of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in an engine: whole blocks or their kernels.

Engines were measured in two ways: as one module with its projections, or as the attention kernel alone, to which matrix
products come. The engines of one device share kernel libraries, so a layout takes whatever was measured fastest there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rlsim.costs.operators import work
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.costs.operators.work import Matrix, Number, Work
from rlsim.schema.model import ModelCard
from rlsim.tables import files
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import OperatorTables
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


@dataclass(frozen=True)
class LatentBlock:
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
        return self._told(self._projections(self._variant, tokens))

    def attention(self, batch: FloatArray, context: FloatArray) -> OperatorTime:
        """Attention of one query of each of ``batch`` sequences over ``context`` cached tokens of one layer."""
        return self._told(self._attention(self._variant, batch, context))

    @property
    def _variant(self) -> Variant:
        """The fastest measured variant; the engine's own kernel, with a roofline in its place, where none was."""
        return _fastest_variant(self) or (self.operators.tables, False)

    def _told(self, timed: OperatorTime) -> OperatorTime:
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
