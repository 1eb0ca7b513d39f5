"""Adapters (LoRA) that an engine applies beside the products of its layers."""

import numpy as np

from rlsim.costs.operators import work
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.recurrent import recurrent_matrices
from rlsim.costs.operators.time import OperatorTime, modelled, zero
from rlsim.schema.architecture import LayerCounts
from rlsim.schema.engine import Engine
from rlsim.schema.model import ModelCard
from rlsim.units import BYTES_PER_ELEMENT, MICROSECOND, FloatArray

ADAPTER_KERNELS, ADAPTER_KERNEL_S = 2, 12.0 * MICROSECOND
"""Kernels of an adapter beside each of its products (down to its rank, up from it), and the least time of one. Engines
fuse neither into the product: Qwen3.5-9B on SGLang took 3.5 to 3.7 ms an iteration more with adapters of rank 32 at 32,
64 and 128 sequences on one, two and four H100 alike (calibration/published/wild, P10 to P15), for 152 products."""


def adapters(
    operators: Operators, card: ModelCard, engine: Engine, counts: LayerCounts, own: FloatArray, tokens: FloatArray
) -> OperatorTime:
    """Time beside the products of mixers on ``own`` tokens and of dense blocks on ``tokens``: weights of adapters are
    read, inputs and outputs moved. Those of routed experts, which engines rarely load, count as merged."""
    rank, out, copies = engine.lora_rank or 0, zero(own), engine.tensor_parallel // engine.attention_data_parallel
    blocks = [(counts.attention, own, work.attention_matrices(card, copies))]
    if card.recurrent is not None:
        blocks.append((counts.linear + counts.mamba, own, recurrent_matrices(card, copies)))
    ffn = work.ffn_matrices(card.hidden_size, card.intermediate_size, engine.tensor_parallel, card.gated_ffn)
    for count, rows, matrices in (*blocks, (counts.dense, tokens, ffn)):
        for one in matrices if count else ():
            moved = (rank + rows) * (one.k + one.n) * BYTES_PER_ELEMENT["bf16"]
            seconds = operators.stream(moved, ADAPTER_KERNELS).seconds
            once = modelled(np.maximum(seconds, ADAPTER_KERNELS * ADAPTER_KERNEL_S), "memory")
            out = out + once.repeated(count)
    return out
