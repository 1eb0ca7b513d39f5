"""Seconds of recurrent mixers without their projections: convolution and state, token by token or over prompts.

The gated delta rule was measured, and the convolution before it. Of Mamba-2 the convolution alone was: its step moves a
state as the delta rule does, and takes that rule's measured time for as many bytes of state; its chunked scan is as far
from its roofline as the delta rule's chunked Triton kernels are from theirs, of as many state elements and tokens.
Neither counts as measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlsim.costs.operators import recurrent_work
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.costs.operators.work import Work
from rlsim.schema.architecture import LinearAttentionCard, MambaCard
from rlsim.tables import recurrent as look
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import OperatorTables
from rlsim.units import FloatArray

MEASURED_HEAD = 128
"""Key and value width of the heads that were measured."""
TRITON_ENGINES = ("sglang", "trtllm")
"""Engines whose tables hold flash-linear-attention's chunked Triton kernels, as training runs them (and mamba_ssm's are
alike: states of chunks, their passing on, outputs); vLLM's are one of FlashInfer that has no backward pass."""
LEAST_CHUNK_SHARE = 1.0 / 16.0
"""Prompts shorter than this share of a sequence keep the time of that share. Guards a division; no effect on tokens."""


@dataclass(frozen=True)
class RecurrentBlock:
    """One recurrent mixer on one of ``tensor_parallel`` GPUs."""

    operators: Operators
    card: LinearAttentionCard | MambaCard
    tensor_parallel: int

    def decode(self, sequences: FloatArray, queries: int, copied: bool = False) -> OperatorTime:
        """Convolution and state of ``queries`` tokens of each of ``sequences`` sequences (see recurrent_step).

        copied: the state after the last accepted token is copied back.
        """
        own = np.maximum(sequences, 1.0)
        amount = recurrent_work.recurrent_step(own, self.card, self.tensor_parallel)
        state = self._timed(lambda tables: self._step(tables, own), amount)
        if queries > 1:
            several = recurrent_work.recurrent_step(own, self.card, self.tensor_parallel, queries)
            moved = several.bytes + (amount.bytes if copied else 0.0)
            state = modelled(state.seconds * moved / amount.bytes, state.bound)
        tail = recurrent_work.convolution_step(own * queries, self.card, self.tensor_parallel)
        channels, kernel = self._channels, self.card.conv_kernel
        shift = self._timed(lambda t: look.convolution_decode_s(t, kernel, channels, own * queries), tail)
        return state + (shift if queries == 1 else shift.unmeasured())

    def prefill(self, batch: FloatArray, prompt_tokens: FloatArray, training: bool = False) -> OperatorTime:
        """Convolution and state over ``batch`` prompts of ``prompt_tokens`` tokens, forward.

        training: by the kernels that have a backward pass.
        """
        b, p = np.broadcast_arrays(np.asarray(batch, dtype=np.float64), np.asarray(prompt_tokens, dtype=np.float64))
        b, p, tp = np.maximum(b, LEAST_CHUNK_SHARE), np.maximum(p, 1.0), self.tensor_parallel
        state = self._scan(b, p, training)
        row = recurrent_work.convolution_prompt(b * p, self.card, tp)
        kernel = self.card.conv_kernel
        return state + self._timed(
            lambda t: look.convolution_prefill_s(t, kernel, self._channels, np.maximum(b, 1.0), p), row
        )

    def _scan(self, batch: FloatArray, prompt_tokens: FloatArray, training: bool) -> OperatorTime:
        """The chunked recurrence without the convolution before it."""
        card, tp = self.card, self.tensor_parallel
        amount = recurrent_work.recurrent_prompt(batch * prompt_tokens, card, tp)
        if isinstance(card, LinearAttentionCard):
            if not training:
                return self._timed(lambda tables: self._chunks(tables, batch, prompt_tokens), amount)
            found = self._triton_chunks(batch, prompt_tokens)
            return self.operators.timed(found, amount, "bf16", "prefill_attention")
        roof = self.operators.roofline(amount, "bf16", "prefill_attention")
        heads = max(1, round(card.state_elements / MEASURED_HEAD**2))
        kin = LinearAttentionCard(
            num_key_heads=heads, num_value_heads=heads, key_head_dim=MEASURED_HEAD, value_head_dim=MEASURED_HEAD
        )
        found = RecurrentBlock(self.operators, kin, tp)._triton_chunks(batch, prompt_tokens)
        if found is None:
            return roof
        same = recurrent_work.recurrent_prompt(batch * prompt_tokens, kin, tp)
        ideal = self.operators.roofline(same, "bf16", "prefill_attention")
        return modelled(roof.seconds * found.seconds / ideal.seconds, roof.bound)

    def _triton_chunks(self, batch: FloatArray, prompt_tokens: FloatArray) -> TableTime | None:
        """The chunked rule by Triton kernels: of the engine's own tables, else the fastest of the device's others."""
        operators = self.operators
        own = () if operators.tables is None else (operators.tables,)
        every = [tables for tables in (*own, *operators.siblings) if tables.metadata.get("engine") in TRITON_ENGINES]
        times = [(tables, self._chunks(tables, batch, prompt_tokens)) for tables in every]
        found = [(tables, timed) for tables, timed in times if timed is not None]
        if not found:
            return None
        tables, timed = min(found, key=lambda one: (one[0] not in own, float(np.sum(one[1].seconds))))
        return timed if tables in own else timed.scaled(1.0)

    @property
    def _channels(self) -> int:
        return recurrent_work.convolution_channels(self.card, self.tensor_parallel)

    def _timed(self, find: Callable[[OperatorTables], TableTime | None], amount: Work) -> OperatorTime:
        """What the engine's own tables hold, else those of another engine of the device (not measured then)."""
        operators = self.operators
        own = None if operators.tables is None else find(operators.tables)
        if own is None:
            found = (find(other) for other in operators.siblings)
            own = next((one.scaled(1.0) for one in found if one is not None), None)
        return operators.timed(own, amount, "bf16", "decode_attention")

    def _step(self, tables: OperatorTables, sequences: FloatArray) -> TableTime | None:
        card, tp = self.card, self.tensor_parallel
        if isinstance(card, LinearAttentionCard):
            keys, values = max(1, card.num_key_heads // tp), card.num_value_heads // tp
            return look.delta_rule_decode_s(tables, keys, values, card.key_head_dim, card.value_head_dim, sequences)
        heads = max(1, round(card.state_elements / tp / MEASURED_HEAD**2))
        found = look.delta_rule_decode_s(tables, heads, heads, MEASURED_HEAD, MEASURED_HEAD, sequences)
        return None if found is None else found.scaled(card.state_elements / tp / (heads * MEASURED_HEAD**2))

    def _chunks(self, tables: OperatorTables, batch: FloatArray, prompt_tokens: FloatArray) -> TableTime | None:
        card, tp = self.card, self.tensor_parallel
        if not isinstance(card, LinearAttentionCard):
            return None
        keys, values = max(1, card.num_key_heads // tp), card.num_value_heads // tp
        shape = (keys, values, card.key_head_dim, card.value_head_dim)
        return look.delta_rule_prefill_s(tables, *shape, np.maximum(batch, 1.0), prompt_tokens)
