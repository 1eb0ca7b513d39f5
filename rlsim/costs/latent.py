"""Seconds of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in an engine: whole blocks or their kernels.

Engines were measured in two ways: as one module with its projections, or as the attention kernel alone, to which matrix
products come. The engines of one device share kernel libraries, so a layout takes whatever was measured fastest there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rlsim.costs import work
from rlsim.costs.operators import Operators, OperatorTime, modelled
from rlsim.costs.work import FloatArray, Work
from rlsim.hardware.interpolation import TableTime
from rlsim.hardware.tables import OperatorTables
from rlsim.schema.model import ModelCard
from rlsim.units import BYTES_PER_ELEMENT

BASE_CONTEXT = 2.0
"""Smallest context of the measured module: what it takes there counts as its projections."""
REFERENCE_BATCH, REFERENCE_CONTEXT = np.array([1.0, 16.0, 128.0]), np.array([1024.0, 8192.0])
"""Where the measured variants of one layout are compared."""


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

    def decode(self, tokens: FloatArray, batch: FloatArray, context: FloatArray) -> tuple[OperatorTime, OperatorTime]:
        """(projections of ``tokens`` tokens, attention of ``batch`` sequences over ``context``) of one layer."""
        operators = self.operators
        if operators.tables is None:
            return self._apart(None, tokens, batch, context)
        best = _fastest_variant(self)
        if best is None:
            return self._apart(operators.tables, tokens, batch, context)
        projections, attention = self._variant(*best, tokens, batch, context)
        if best[0] is operators.tables:
            return projections, attention
        return projections.unmeasured(), attention.unmeasured()

    def variants(self) -> list[tuple[OperatorTables, bool]]:
        """Tables that hold this layout, each with whether as a module (else as a kernel)."""
        operators = self.operators
        own = () if operators.tables is None else (operators.tables,)
        every = [(tables, module) for tables in (*own, *operators.siblings) for module in (True, False)]
        return [variant for variant in every if self._holds(*variant)]

    def _holds(self, tables: OperatorTables, module: bool) -> bool:
        one = np.ones(1)
        if module:
            return self._module(tables, one, BASE_CONTEXT * one) is not None
        return tables.mla_decode_kernel_s(self.heads, self.kv_precision, one, one) is not None

    def reference_s(self, variant: tuple[OperatorTables, bool]) -> float:
        """Sum of the logarithms of the seconds of a variant at the points of comparison."""
        batch, context = (grid.ravel() for grid in np.meshgrid(REFERENCE_BATCH, REFERENCE_CONTEXT))
        projections, attention = self._variant(*variant, batch, batch, context)
        return float(np.sum(np.log(projections.seconds + attention.seconds)))

    def _variant(
        self, tables: OperatorTables, module: bool, tokens: FloatArray, batch: FloatArray, context: FloatArray
    ) -> tuple[OperatorTime, OperatorTime]:
        return self._whole(tables, tokens, batch, context) if module else self._apart(tables, tokens, batch, context)

    def _apart(
        self, tables: OperatorTables | None, tokens: FloatArray, batch: FloatArray, context: FloatArray
    ) -> tuple[OperatorTime, OperatorTime]:
        operators = self.operators
        products = operators.gemms(tokens, work.attention_matrices(self.card, self.tensor_parallel), self.precision)
        kernel = None if tables is None else tables.mla_decode_kernel_s(self.heads, self.kv_precision, batch, context)
        return products, operators.timed(kernel, self._attention_work(batch, context), "bf16", "decode_attention")

    def _whole(
        self, tables: OperatorTables, tokens: FloatArray, batch: FloatArray, context: FloatArray
    ) -> tuple[OperatorTime, OperatorTime]:
        look = self._module(tables, tokens, np.full_like(tokens, BASE_CONTEXT))
        longer = self._module(tables, batch, context)
        start = self._module(tables, batch, np.full_like(context, BASE_CONTEXT))
        if longer is None or start is None:
            raise ValueError("the tables hold no MLA module of this layout")
        above = TableTime(np.maximum(longer.seconds - start.seconds, 0.0), longer.measured)
        each = [
            work.gemm(tokens, m.n, m.k, BYTES_PER_ELEMENT[self.precision])
            for m in work.attention_matrices(self.card, self.tensor_parallel)
        ]
        amount = Work(np.sum([one.flops for one in each], axis=0), np.sum([one.bytes for one in each], axis=0))
        attention = self.operators.timed(above, self._attention_work(batch, context), "bf16", "decode_attention")
        return self.operators.timed(look, amount, self.precision, "gemm"), attention

    def _attention_work(self, batch: FloatArray, context: FloatArray) -> Work:
        return work.latent_attention(
            batch, context, self.card, self.tensor_parallel, BYTES_PER_ELEMENT[self.kv_precision]
        )

    def _module(self, tables: OperatorTables, batch: FloatArray, context: FloatArray) -> TableTime | None:
        return tables.mla_decode_s(self.heads, self.precision, self.kv_precision, batch, context)

    def prefill(self, tokens: FloatArray, prompt_tokens: float) -> OperatorTime | None:
        """One block, projections included, on ``tokens`` tokens of prompts of ``prompt_tokens``; None where no such
        module was measured.

        Part of a prompt takes what a prompt of that length takes, and computes its attention to half of the rest.
        """
        operators, card, mla = self.operators, self.card, self.card.mla
        length = np.minimum(tokens, prompt_tokens)
        batch = np.maximum(tokens / prompt_tokens, 1.0)
        tables = operators.tables
        look = (
            None
            if tables is None
            else tables.mla_prefill_s(self.heads, self.precision, self.kv_precision, batch, length)
        )
        if look is None or mla is None:
            return None
        each = [work.gemm(tokens, m.n, m.k, 1.0) for m in work.attention_matrices(card, self.tensor_parallel)]
        flops = np.sum([one.flops for one in each], axis=0)
        module = operators.timed(look, Work(flops, np.zeros_like(flops)), self.precision, "gemm")
        width = (card.head_dim + mla.v_head_dim) / 2
        earlier = work.causal_attention_flops(tokens * (prompt_tokens - length), self.heads, width)
        return module + modelled(operators.attention_compute_s(earlier), "compute")


@lru_cache(maxsize=256)
def _fastest_variant(block: LatentBlock) -> tuple[OperatorTables, bool] | None:
    """The fastest measured variant of a layout; None where nothing of it was measured."""
    return min(block.variants(), key=block.reference_s, default=None)
