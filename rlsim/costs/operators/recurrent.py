"""Seconds of recurrent mixers without their projections: convolution and state, token by token or over prompts.

The gated delta rule was measured, and the convolution before it. Of Mamba-2 the convolution alone was: its step moves a
state as the delta rule does, and takes that rule's measured time for as many bytes of state; its chunked scan is as far
from its roofline as the delta rule's chunked Triton kernels are from theirs, of as many state elements and tokens.
Neither counts as measured.
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.costs.operators.work import Matrix, Work
from rlsim.schema.architecture import LinearAttentionCard, MambaCard
from rlsim.schema.model import ModelCard
from rlsim.tables import files
from rlsim.tables.files import TableLayout
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import DeltaRule, OperatorTables
from rlsim.units import BYTES_PER_ELEMENT, FloatArray

MEASURED_HEAD = 128
"""Key and value width of the heads that were measured."""
TRITON_ENGINES = ("sglang", "trtllm")
"""Engines whose tables hold flash-linear-attention's chunked Triton kernels, as training runs them (and mamba_ssm's are
alike: states of chunks, their passing on, outputs); vLLM's are one of FlashInfer that has no backward pass."""
LEAST_CHUNK_SHARE = 1.0 / 16.0
"""Prompts shorter than this share of a sequence keep the time of that share. Guards a division; no effect on tokens."""


class RecurrentBlock(Struct, frozen=True):
    """One recurrent mixer on one of ``tensor_parallel`` GPUs."""

    operators: Operators
    card: LinearAttentionCard | MambaCard
    tensor_parallel: int

    def decode(self, sequences: FloatArray, queries: int, copied: bool = False) -> OperatorTime:
        """Convolution and state of ``queries`` tokens of each of ``sequences`` sequences (see recurrent_step).

        copied: the state after the last accepted token is copied back.
        """
        own = np.maximum(sequences, 1.0)
        amount = recurrent_step(own, self.card, self.tensor_parallel)
        state = self._timed(lambda tables: self._step(tables, own), amount)
        if queries > 1:
            several = recurrent_step(own, self.card, self.tensor_parallel, queries)
            moved = several.bytes + (amount.bytes if copied else 0.0)
            state = modelled(state.seconds * moved / amount.bytes, state.bound)
        tail = self._convolution(own * queries, self.card.conv_kernel, files.CONVOLUTION_DECODE, own * queries)
        return state + (tail if queries == 1 else tail.unmeasured())

    def prefill(self, batch: FloatArray, prompt_tokens: FloatArray, training: bool = False) -> OperatorTime:
        """Convolution and state over ``batch`` prompts of ``prompt_tokens`` tokens, forward.

        training: by the kernels that have a backward pass.
        """
        b, p = np.broadcast_arrays(np.asarray(batch, dtype=np.float64), np.asarray(prompt_tokens, dtype=np.float64))
        b, p = np.maximum(b, LEAST_CHUNK_SHARE), np.maximum(p, 1.0)
        rows = self._convolution(b * p, 1, files.CONVOLUTION_PREFILL, p, np.maximum(b, 1.0))
        return self._scan(b, p, training) + rows

    def _convolution(
        self, tokens: FloatArray, tail_tokens: int, layout: TableLayout, *sizes: FloatArray
    ) -> OperatorTime:
        """Short convolution of ``tokens`` tokens, for each of which ``tail_tokens`` are read and written."""
        channels, kernel = convolution_channels(self.card, self.tensor_parallel), self.card.conv_kernel
        values = tokens * channels
        amount = Work(2.0 * values * kernel, 2.0 * values * tail_tokens * VALUE)
        return self._timed(lambda tables: tables.at(layout, (kernel,), channels, *sizes), amount)

    def _scan(self, batch: FloatArray, prompt_tokens: FloatArray, training: bool) -> OperatorTime:
        """The chunked recurrence without the convolution before it."""
        card, tp = self.card, self.tensor_parallel
        amount = recurrent_prompt(batch * prompt_tokens, card, tp)
        if isinstance(card, LinearAttentionCard) and not training:
            return self._timed(lambda tables: self._chunks(tables, batch, prompt_tokens), amount)
        if isinstance(card, LinearAttentionCard):
            return self.operators.timed(self._triton_chunks(batch, prompt_tokens), amount, "bf16", "prefill_attention")
        roof = self.operators.roofline(amount, "bf16", "prefill_attention")
        heads = max(1, round(card.state_elements / MEASURED_HEAD**2))
        kin = LinearAttentionCard(
            num_key_heads=heads, num_value_heads=heads, key_head_dim=MEASURED_HEAD, value_head_dim=MEASURED_HEAD
        )
        found = RecurrentBlock(self.operators, kin, tp)._triton_chunks(batch, prompt_tokens)
        if found is None:
            return roof
        same = recurrent_prompt(batch * prompt_tokens, kin, tp)
        ideal = self.operators.roofline(same, "bf16", "prefill_attention")
        return modelled(roof.seconds * found.seconds / ideal.seconds, roof.bound)

    def _triton_chunks(self, batch: FloatArray, prompt_tokens: FloatArray) -> TableTime | None:
        """The chunked rule by Triton kernels: of the engine's own tables, else the fastest of the device's others."""

        def look(tables: OperatorTables) -> TableTime | None:
            triton = tables.metadata.get("engine") in TRITON_ENGINES
            return self._chunks(tables, batch, prompt_tokens) if triton else None

        own = None if self.operators.tables is None else look(self.operators.tables)
        others = self.operators.on_this_device(look)
        return own or min(others, key=lambda timed: float(np.sum(timed.seconds)), default=None)

    def _timed(self, find: Callable[[OperatorTables], TableTime | None], amount: Work) -> OperatorTime:
        """Time of the engine's own tables, else of another engine of the device (not measured then)."""
        found = next(self.operators.on_this_device(find), None)
        return self.operators.timed(found, amount, "bf16", "decode_attention")

    def _step(self, tables: OperatorTables, sequences: FloatArray) -> TableTime | None:
        card, tp = self.card, self.tensor_parallel
        if isinstance(card, LinearAttentionCard):
            return tables.delta_rule_s(files.DELTA_RULE_DECODE, _delta_rule(card, tp), sequences)
        heads = max(1, round(card.state_elements / tp / MEASURED_HEAD**2))
        kin = DeltaRule(MEASURED_HEAD, MEASURED_HEAD, heads, heads)
        found = tables.delta_rule_s(files.DELTA_RULE_DECODE, kin, sequences)
        return None if found is None else found.scaled(card.state_elements / tp / (heads * MEASURED_HEAD**2))

    def _chunks(self, tables: OperatorTables, batch: FloatArray, prompt_tokens: FloatArray) -> TableTime | None:
        if not isinstance(self.card, LinearAttentionCard):
            return None
        shape = _delta_rule(self.card, self.tensor_parallel)
        return tables.delta_rule_s(files.DELTA_RULE_PREFILL, shape, prompt_tokens, np.maximum(batch, 1.0))


def _delta_rule(card: LinearAttentionCard, tensor_parallel: int) -> DeltaRule:
    """Heads of one GPU."""
    keys, values = max(1, card.num_key_heads // tensor_parallel), card.num_value_heads // tensor_parallel
    return DeltaRule(card.key_head_dim, card.value_head_dim, keys, values)


STATE = BYTES_PER_ELEMENT["fp32"]
VALUE = BYTES_PER_ELEMENT["bf16"]
DELTA_CHUNK_TOKENS = 64
"""Tokens of a chunk of the delta rule in prefill and training (chunk_gated_delta_rule of flash-linear-attention)."""
DELTA_STEP_FLOPS, MAMBA_STEP_FLOPS = 7.0, 5.0
"""FLOP per element of state and token. Delta rule: decay (1), read with the key (2), rank-one update (2), read with the
query (2); Mamba-2: decay (1), rank-one update (2), read with C (2)."""
DELTA_CHUNK_PRODUCTS, MAMBA_CHUNK_PRODUCTS = 3, 2
"""Products of a chunk with its state: what it holds of the keys (delta rule alone), the update, the read."""
STATE_PASSES = 4.0
"""Times that chunked kernels move the states of all chunks: written, read and written when they are passed on, read."""


def recurrent_matrices(card: ModelCard, tensor_parallel: int) -> list[Matrix]:
    """Projections of one recurrent mixer as one of ``tensor_parallel`` GPUs holds them; empty without.

    >>> from rlsim.loading.models import load_card
    >>> [(one.name, one.n, one.k) for one in recurrent_matrices(load_card("qwen3.5-397b-a17b"), tensor_parallel=8)]
    [('qkvz', 2560, 4096), ('rates', 16, 4096), ('output', 4096, 1024)]
    >>> [(one.name, one.n, one.k) for one in recurrent_matrices(load_card("nemotron-3-nano-30b-a3b"), 1)]
    [('zxbcdt', 10304, 2688), ('output', 2688, 4096)]
    """
    t, hidden = tensor_parallel, card.hidden_size
    if card.linear_attention is not None:
        linear = card.linear_attention
        keys = max(1, linear.num_key_heads // t) * linear.key_head_dim
        values = linear.value_width // t
        rates = Matrix("rates", max(1, 2 * linear.num_value_heads // t), hidden)
        return [Matrix("qkvz", 2 * (keys + values), hidden), rates, Matrix("output", hidden, values)]
    if card.mamba is None:
        return []
    mamba = card.mamba
    inner, groups = mamba.inner_width // t, max(1, mamba.num_groups // t)
    inputs = 2 * inner + 2 * groups * mamba.state_size + mamba.num_heads // t
    return [Matrix("zxbcdt", inputs, hidden), Matrix("output", hidden, inner)]


def indexer_matrices(card: ModelCard) -> list[Matrix]:
    """Projections of one indexer, which every GPU holds whole; empty without.

    >>> from rlsim.loading.models import load_card
    >>> [(one.name, one.n, one.k) for one in indexer_matrices(load_card("glm-5"))]
    [('index_query', 4096, 2048), ('index_key', 160, 6144)]
    """
    sparse, mla = card.sparse_attention, card.mla
    if sparse is None or mla is None or mla.q_lora_rank is None:
        return []
    queries = Matrix("index_query", sparse.index_heads * sparse.index_head_dim, mla.q_lora_rank)
    key = Matrix("index_key", sparse.index_head_dim + sparse.index_heads, card.hidden_size)
    return [queries, key, *entry_matrices(card, True)]


def entry_matrices(card: ModelCard, ranks: bool) -> list[Matrix]:
    """Projection that entries of several tokens are pooled from, whole on every GPU; empty where each token is one."""
    sparse, mla = card.sparse_attention, card.mla
    columns = 0 if sparse is None or mla is None else sparse.entry_columns(ranks, mla.cached_values)
    return [Matrix("entries", columns, card.hidden_size)] if columns else []


def index_scores(queries: ArrayLike, context_tokens: ArrayLike, card: ModelCard) -> Work:
    """Scores of ``queries`` positions over ``context_tokens`` cached tokens each: every index head on each key.

    Keys are read once for each query, in FP8 with their scales.
    """
    sparse = card.sparse_attention
    if sparse is None:
        raise ValueError(f"{card.name} has no indexer")
    pairs = np.asarray(queries, dtype=np.float64) * (np.asarray(context_tokens, dtype=np.float64) / sparse.entry_tokens)
    return Work(2.0 * pairs * sparse.index_heads * sparse.index_head_dim, pairs * sparse.key_bytes)


def convolution_channels(recurrent: LinearAttentionCard | MambaCard, tensor_parallel: int) -> int:
    """Channels of the short convolution of one GPU."""
    if isinstance(recurrent, LinearAttentionCard):
        keys = max(1, recurrent.num_key_heads // tensor_parallel) * recurrent.key_head_dim
        return 2 * keys + recurrent.value_width // tensor_parallel
    groups = max(1, recurrent.num_groups // tensor_parallel)
    return recurrent.inner_width // tensor_parallel + 2 * groups * recurrent.state_size


def recurrent_step(
    sequences: ArrayLike, recurrent: LinearAttentionCard | MambaCard, tensor_parallel: int, queries: int = 1
) -> Work:
    """State update of ``queries`` tokens of each sequence.

    One token reads the state and writes it. A verification keeps the state after each of its tokens, so that a
    rejection falls back to the one after the last accepted token without computing anything again: it reads one state
    and writes as many as it has tokens.

    >>> card = LinearAttentionCard(num_key_heads=1, num_value_heads=1, key_head_dim=10, value_head_dim=10)
    >>> [float(recurrent_step(1, card, 1, queries).bytes) for queries in (1, 4)]  # 400 bytes of state
    [800.0, 2000.0]
    """
    state = np.asarray(sequences, dtype=np.float64) * recurrent.state_elements / tensor_parallel
    each = DELTA_STEP_FLOPS if isinstance(recurrent, LinearAttentionCard) else MAMBA_STEP_FLOPS
    return Work(each * queries * state, (1.0 + queries) * state * STATE)


def recurrent_prompt(tokens: ArrayLike, recurrent: LinearAttentionCard | MambaCard, tensor_parallel: int) -> Work:
    """Chunked recurrence over ``tokens`` tokens of prompts, forward.

    FLOP per token: products of a chunk with its state, and within the chunk of C tokens the scores of queries (and for
    the delta rule of keys) on keys and their products with values. Bytes: inputs and outputs of all heads, and the
    states of all chunks STATE_PASSES times, in FP32 of Mamba-2 (mamba_ssm) and BF16 of the delta rule
    (flash-linear-attention).
    """
    t = np.asarray(tokens, dtype=np.float64) / tensor_parallel
    if isinstance(recurrent, LinearAttentionCard):
        chunk, heads = DELTA_CHUNK_TOKENS, recurrent.num_value_heads
        keys, values = recurrent.key_head_dim, recurrent.value_head_dim
        within = chunk * (6.0 * keys + 4.0 * values)
        flops = heads * (2.0 * DELTA_CHUNK_PRODUCTS * keys * values + within)
        rows, state = 2.0 * (recurrent.key_width + recurrent.value_width), VALUE
    else:
        chunk, heads = recurrent.chunk_tokens, recurrent.num_heads
        keys, values = recurrent.state_size, recurrent.head_dim
        scores = 2.0 * chunk * recurrent.num_groups * keys
        flops = heads * (2.0 * MAMBA_CHUNK_PRODUCTS * keys * values + 2.0 * chunk * values) + scores
        # Values are read for the states and again for the outputs, the gate once; outputs are written once.
        rows, state = 4.0 * recurrent.inner_width + 2.0 * recurrent.num_groups * keys, STATE
    states = STATE_PASSES * recurrent.state_elements / chunk * state
    return Work(t * flops, t * (rows * VALUE + states))


def split_bytes(tokens: ArrayLike, recurrent: LinearAttentionCard | MambaCard, tensor_parallel: int) -> FloatArray:
    """Bytes of sorting a projection's output into what convolution and gate read: read and written once.

    None of Mamba-2, whose convolution reads its part of the projection where it lies.
    """
    if not isinstance(recurrent, LinearAttentionCard):
        return np.zeros_like(np.asarray(tokens, dtype=np.float64))
    width = convolution_channels(recurrent, tensor_parallel) + recurrent.value_width / tensor_parallel
    return np.asarray(2.0 * np.asarray(tokens, dtype=np.float64) * width * VALUE, dtype=np.float64)


def gate_bytes(tokens: ArrayLike, recurrent: LinearAttentionCard | MambaCard, tensor_parallel: int) -> FloatArray:
    """Bytes of the gated norm of a mixer's output: output and gate read, one row written."""
    width = recurrent.value_width if isinstance(recurrent, LinearAttentionCard) else recurrent.inner_width
    return np.asarray(3.0 * np.asarray(tokens, dtype=np.float64) * width / tensor_parallel * VALUE, dtype=np.float64)
