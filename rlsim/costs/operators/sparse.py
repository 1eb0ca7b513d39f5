"""Seconds of sparse latent attention (DeepSeek-V3.2, arXiv 2512.02556): an indexer ranks what is cached.

Whole blocks were measured, indexer included; elsewhere a block is its products, a roofline of the scores and latent
attention to the tokens that rank highest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlsim.costs.operators import recurrent, work
from rlsim.costs.operators.latent import BASE_CONTEXT, LatentBlock, Variant
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.costs.operators.work import Matrix, Number, Work
from rlsim.schema.model import ModelCard
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import OperatorTables, SparseShape
from rlsim.units import FloatArray

MEASURED_BLOCKS = ((7168, 1536, 512, 64, 128, 128, 64, 128, 2048), (6144, 2048, 512, 64, 192, 256, 32, 128, 2048))
"""DeepSeek-V3.2 and GLM-5, whose blocks were measured: hidden size, query rank, KV rank, rotary, other and value width
of a head; heads, head width and ranked tokens of the indexer."""


@dataclass(frozen=True)
class SparseBlock(LatentBlock):
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

    def _holds(self, tables: OperatorTables, module: bool) -> bool:
        return module and super()._holds(tables, module)

    def _matrices(self) -> list[Matrix]:
        own = work.attention_matrices(self.card, self.tensor_parallel)
        return [*own, *(recurrent.indexer_matrices(self.card) if self.indexer else ())]

    def _module(self, tables: OperatorTables, batch: FloatArray, context: FloatArray) -> TableTime | None:
        return tables.sparse_decode_s(self._shape, batch, context) if self._as_measured else None

    def _prompt_module(self, tables: OperatorTables, batch: FloatArray, tokens: FloatArray) -> TableTime | None:
        return tables.sparse_prefill_s(self._shape, batch, tokens)

    def _attended(self, context: FloatArray) -> FloatArray:
        sparse = self.card.sparse_attention
        return context if sparse is None else np.minimum(context, float(sparse.top_k_tokens))

    def _attention_work(self, batch: FloatArray, context: FloatArray) -> Work:
        attended = super()._attention_work(batch, self._attended(context))
        if not self.indexer:
            return attended
        scores = recurrent.index_scores(batch, context, self.card)
        return Work(attended.flops + scores.flops, attended.bytes + scores.bytes)

    def _above_base(self, tables: OperatorTables, batch: FloatArray, context: FloatArray) -> TableTime | None:
        """As of any latent block, up to the longest context that was measured at such a batch.

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
        kept = self._attended(prompt_tokens)
        return kept - kept * kept / (2.0 * prompt_tokens)

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
