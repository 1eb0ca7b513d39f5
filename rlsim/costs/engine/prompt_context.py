"""What attention adds to a prefill token behind a context of its own: turns of agents, what is prefilled again, chunks.

The prefill of an iteration is priced as whole prompts of mean length (``iteration``). A token behind c
others of its sequence attends to c keys and not to half of a mean prompt. Prompts of L tokens take I(L) seconds of
attention in all; the token at c takes I'(c), and what it takes beyond the mean token of a mean prompt is added to the
iteration. So the chunks of a sequence add up to the whole, whatever they are, and a mean prompt adds nothing.
"""

from __future__ import annotations

import numpy as np

from rlsim.costs.engine.layers import EngineLayers
from rlsim.units import FloatArray

SHORTEST_TOKENS = 128.0
"""Shortest prompts whose attention counts; tokens before their middle take what those take in the mean. Of shorter ones
tables hold launches, not pairs of query and key."""


def context_s(layers: EngineLayers, prompt_tokens: float, contexts: FloatArray) -> FloatArray:
    """Seconds that a prefill token adds behind each of ``contexts`` tokens of its own sequence, beyond the mean token.

    That is the one of prompts of ``prompt_tokens``; negative behind fewer tokens. contexts: from 0 in equal steps.
    """
    engine, card = layers.engine, layers.card
    copies = engine.attention_data_parallel * engine.pipeline_parallel
    doublings = np.ceil(np.log2(max(contexts[-1] / SHORTEST_TOKENS, 2.0)))
    lengths = SHORTEST_TOKENS * 2.0 ** np.arange(doublings + 1)
    tokens = np.full_like(lengths, max(engine.max_batched_tokens / copies, 1.0))
    timed = layers.prefill_module(tokens, lengths) or layers.prompt_attention(tokens / lengths, lengths)
    whole = np.concatenate(([0.0], lengths * timed.seconds / tokens))
    ends = np.concatenate(([0.0], lengths))
    steps = np.diff(ends)
    each = _nondecreasing(np.diff(whole) / steps, steps)
    middles = ends[:-1] + steps / 2
    slope = (each[-1] - each[-2]) / (middles[-1] - middles[-2])
    out = np.interp(contexts, middles, each) + slope * np.maximum(contexts - middles[-1], 0.0)
    return np.asarray((out - _mean(out, contexts, prompt_tokens)) * (card.num_attention_layers / copies))


def _mean(values: FloatArray, contexts: FloatArray, prompt_tokens: float) -> float:
    """Mean of a function that is linear between ``contexts``, over the tokens of a prompt."""
    inside = np.concatenate((contexts[contexts < prompt_tokens], [prompt_tokens]))
    return float(np.trapezoid(np.interp(inside, contexts, values), inside) / prompt_tokens)


def _nondecreasing(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The nearest nondecreasing values: neighbours in the wrong order become their weighted mean, so that sums stay."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = value, weight, 1
        while pools and pools[-1][0] > pool[0]:
            before, heavy, count = pools.pop()
            both = heavy + pool[1]
            pool = (before * heavy + pool[0] * pool[1]) / both, both, count + pool[2]
        pools.append(pool)
    return np.repeat([value for value, _, _ in pools], [count for _, _, count in pools])
