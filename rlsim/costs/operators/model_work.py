"""FLOP of a whole model, from the matrices and pairs of its blocks: what trainer, engine and MFU count alike.

2 per weight that a token passes (experts: the chosen ones; embedding look-ups: none) and 4 h d per pair of query and
key, causal (Kaplan et al., arXiv 2001.08361, section 2.1; PaLM, arXiv 2204.02311, appendix B, which also defines MFU).
Norms, biases and the chunk products of recurrent mixers are left out.
"""

import numpy as np

from rlsim.costs.operators import work
from rlsim.costs.operators.recurrent import entry_matrices, indexer_matrices, recurrent_matrices
from rlsim.costs.operators.work import Matrix
from rlsim.schema.model import ModelCard
from rlsim.tables.operators import ExpertShape
from rlsim.units import FloatArray


def head_flops(card: ModelCard) -> float:
    """FLOP of the LM head on one position."""
    return 2.0 * card.vocab_size * card.hidden_size


def token_flops(card: ModelCard) -> float:
    """FLOP of the products that one token passes, LM head included.

    >>> from rlsim.loading.models import load_card
    >>> round(token_flops(load_card("llama-3.1-8b")) / 2e9, 2)  # 8.03 less an embedding of 0.53
    7.5
    """
    counts = card.layer_counts
    attention = _elements(work.attention_matrices(card, 1)) * counts.attention
    indexers = _elements(indexer_matrices(card)) * card.num_index_layers
    indexers += _elements(entry_matrices(card, False)) * (card.num_layers - card.num_index_layers)
    if card.residual_streams > 1:  # the mixing of each of two blocks of a layer
        indexers += 2 * card.num_layers * card.residual_streams**2 * (card.residual_streams + 2) * card.hidden_size
    recurrent = _elements(recurrent_matrices(card, 1)) * (counts.linear + counts.mamba)
    dense = _elements(work.ffn_matrices(card.hidden_size, card.intermediate_size, 1, card.gated_ffn)) * counts.dense
    return 2.0 * (attention + indexers + recurrent + dense) + counts.moe * _expert_flops(card) + head_flops(card)


def _elements(matrices: list[Matrix]) -> float:
    return float(sum(matrix.elements for matrix in matrices))


def _expert_flops(card: ModelCard) -> float:
    """FLOP of one token in one layer of experts: router, those that it chose, and shared ones."""
    moe = card.moe
    if moe is None:
        return 0.0
    shape = ExpertShape("bf16", card.expert_hidden_size, moe.expert_intermediate_size, moe.top_k, moe.num_experts, 1, 1)
    router = Matrix("router", moe.num_experts, card.hidden_size)
    every_token = [router, *work.shared_expert_matrices(card, 1), *work.latent_expert_matrices(card)]
    return 2.0 * _elements(every_token) + float(work.grouped_experts(1, shape, moe.matrices).flops)


def prompts_flops(card: ModelCard, batch: FloatArray, tokens: FloatArray, tensor_parallel: int = 1) -> float:
    """Forward FLOP of attention over ``batch`` whole sequences of ``tokens`` each, all layers, on one of
    ``tensor_parallel`` GPUs. Windowed and sparse layers see no more than they attend to."""
    total = 0.0
    for layers, window in card.prompt_kinds:
        amount = work.prefill_attention(*work.windowed_prompts(batch, tokens, window), card, tensor_parallel)
        total += layers * float(amount.flops.sum())
    return total


def packed_flops(card: ModelCard, tokens: float, squares: float, tensor_parallel: int = 1) -> float:
    """The same of sequences with so many ``tokens`` together, and such a sum of their ``squares``, as equal ones."""
    if tokens <= 0:
        return 0.0
    length = squares / tokens
    return prompts_flops(card, np.array([tokens / length]), np.array([length]), tensor_parallel)


def pair_flops(card: ModelCard, pairs: float) -> float:
    """FLOP of ``pairs`` of query and key in one layer; 4 h d, with latent attention of its mean of both head sizes.

    Not what a decoding kernel computes over latent vectors, which is more: MFU counts the model, not its kernels.
    """
    width = card.head_dim if card.mla is None else (card.head_dim + card.mla.v_head_dim) // 2
    return float(work.decode_attention(pairs, card.num_heads, card.num_kv_heads, width, 0.0).flops)
