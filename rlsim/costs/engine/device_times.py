"""What the device does of engine iterations, whatever the host does beside it.

The same for many hosts and memories, and of fewer sequences a part of that of more: a search finds it once an engine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.capture import captured_sizes
from rlsim.costs.engine.draft import Drafting
from rlsim.costs.engine.hosts import HostOverheads
from rlsim.costs.engine.layers import Components, EngineLayers, total
from rlsim.costs.engine.releases import verifies_in_pieces
from rlsim.costs.interface import Bound
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.schema.engine import Engine
from rlsim.units import BYTES_PER_ELEMENT, BoolArray, FloatArray, distinct

COMPILED_LAUNCH = 0.7
"""Launch of a kernel from compiled code, over that of an uncompiled operator (``eager_launch_s``): 10 us on x86 hosts,
28 us on Grace. Published eager iterations, over their launches, give 5 to 14 and 20 to 37 us; in between are calls of
Triton kernels (8.7 us on GB200, vLLM PR 34838) and of library operators (37 us there for a linear layer,
TransformerEngine PR 2053). Assumption."""
SAMPLER_LAUNCHES = 8
"""Kernels of LM head and sampling, outside the captured graph. Structural count."""
EAGER_PART = "eager launches"
"""Name of the part that launches beyond the captured graphs add to the device's work."""
DRAFT_PASSES, DRAFT_ATTENTION = "draft passes", "draft attention"
DRAFT_LAUNCHES = "draft launches"
"""What an iteration waits for launches of drafts that hide behind its other work."""
DRAFT_PARTS = (DRAFT_PASSES, DRAFT_ATTENTION)
"""Parts of an iteration that run once for each drafted token."""
CONTEXT_POINTS = 64
"""Points of the prepared attention table along context."""
SHORTEST_TOKENS = 128.0
"""Shortest prompts whose attention counts; tokens before their middle take what those take in the mean. Of shorter ones
tables hold launches, not pairs of query and key."""


def context_s(layers: EngineLayers, prompt_tokens: float, contexts: FloatArray) -> FloatArray:
    """Seconds that a prefill token adds behind each of ``contexts`` tokens of its own sequence, beyond the mean token.

    That is the one of prompts of ``prompt_tokens``; negative behind fewer tokens. contexts: from 0 in equal steps.
    """
    engine = layers.engine
    copies = engine.attention_data_parallel * engine.pipeline_parallel
    doublings = np.ceil(np.log2(max(contexts[-1] / SHORTEST_TOKENS, 2.0)))
    lengths = SHORTEST_TOKENS * 2.0 ** np.arange(doublings + 1)
    # Full iterations: kernels on few tokens hold launches, which prefill_s counts already.
    tokens = np.full_like(lengths, max(engine.budget_tokens / copies, 1.0))
    timed = layers.prefill_module(tokens, lengths) or layers.prompt_attention(tokens / lengths, lengths)
    whole = np.concatenate(([0.0], lengths * timed.seconds / tokens))
    ends = np.concatenate(([0.0], lengths))
    steps = np.diff(ends)
    # A token behind more context cannot take less; tables of short prompts waver by a few per cent.
    each = _nondecreasing(np.diff(whole) / steps, steps)
    middles = ends[:-1] + steps / 2
    # Beyond the longest prompt pairs go on growing with the context, one for each cached token.
    slope = (each[-1] - each[-2]) / (middles[-1] - middles[-2])
    out = np.interp(contexts, middles, each) + slope * np.maximum(contexts - middles[-1], 0.0)
    inside = np.concatenate((contexts[contexts < prompt_tokens], [prompt_tokens]))
    # prefill_s holds the mean token of the mean prompt: only the difference to it is added here.
    mean = float(np.trapezoid(np.interp(inside, contexts, out), inside) / prompt_tokens)
    return np.asarray((out - mean) * (layers.card.num_attention_layers / copies))


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


class DeviceTimes(Struct, frozen=True, eq=False):
    """What the device does of an iteration, as tables: of 0 .. N decoding sequences, and of these at CONTEXT_POINTS
    contexts, ``step`` tokens apart. behind_s: of a prefill token behind each of these contexts of its own."""

    components: Components
    eager: BoolArray
    compute_bound: FloatArray
    attention: Components
    step: float
    behind_s: FloatArray

    @classmethod
    def of(cls, drafting: Drafting, max_sequences: int, max_context: float, prompt_tokens: float) -> DeviceTimes:
        """Up to ``max_sequences`` sequences. Of the host, kernels know three values alone."""
        layers, stages = drafting.layers, drafting.layers.engine.pipeline_parallel
        n = np.maximum(np.arange(max_sequences + 1, dtype=np.float64), 1.0)
        components, eager = _on_device(drafting, n)
        step = max(8.0, max_context / (CONTEXT_POINTS - 1))
        # Stages work on a share of the sequences each at the same time, one behind the other on all of them.
        contexts, own = np.maximum(np.arange(CONTEXT_POINTS) * step, 1.0), np.ceil(n / stages)
        drafted = "context look-up" if drafting.draft is None else DRAFT_ATTENTION
        attention = {
            "attention": layers.cached_attention(own[:, None], contexts[None, :], drafting.queries),
            drafted: drafting.cached_attention(own[:, None], contexts[None, :]).repeated(stages),
        }
        behind = context_s(layers, max(prompt_tokens, 1.0), np.arange(CONTEXT_POINTS, dtype=np.float64) * step)
        return cls(components, eager, compute_bound(drafting, n), _monotone(attention), step, behind)

    def bare(self) -> DeviceTimes:
        """The seconds without what is measured of them, in half of the memory."""
        return self._each(lambda t: OperatorTime(t.seconds, np.broadcast_to(0.0, t.seconds.shape), t.bound))

    def up_to(self, max_sequences: int) -> DeviceTimes:
        """The first rows. What bounds a part is found over all of them."""
        rows = slice(max_sequences + 1)
        first = self._each(lambda t: OperatorTime(t.seconds[rows], t.measured[rows], t.bound))
        return replace(first, eager=self.eager[rows], compute_bound=self.compute_bound[rows])

    def _each(self, change: Callable[[OperatorTime], OperatorTime]) -> DeviceTimes:
        components, attention = (
            {name: change(timed) for name, timed in parts.items()} for parts in (self.components, self.attention)
        )
        return replace(self, components=components, attention=attention)


class PrefillTimes(Struct, frozen=True, eq=False):
    """What the device does of iterations with prefill: ``grid`` tokens beside ``counts`` decoding sequences.

    linear: seconds of layers without attention, shape (counts, grid); attention: of the prompt, shape (grid,); head_s:
    of LM head and sampling. measured: share of the prefill's time; bound: of its longest part. compute_bound: how
    far products on so many tokens are, 0 to 1, shape (counts, grid).
    """

    grid: FloatArray
    counts: FloatArray
    linear: FloatArray
    attention: FloatArray
    head_s: float
    measured: FloatArray
    bound: Bound
    compute_bound: FloatArray

    @classmethod
    def of(cls, drafting: Drafting, max_sequences: int, prompt: float) -> PrefillTimes:
        """Up to the token budget beside up to ``max_sequences`` sequences, of prompts of ``prompt`` tokens."""
        layers, engine = drafting.layers, drafting.layers.engine
        budget = float(max(engine.budget_tokens, 16))
        grid = distinct(np.concatenate([[0.0], np.geomspace(8, budget, 12).round()]))
        # Few rows: what prompts add changes with the batch only by the capture size and by tile effects.
        counts = distinct(np.array([0, 1, max_sequences // 8, max_sequences // 2, max_sequences], dtype=np.float64))
        tokens = counts[:, None] * drafting.queries + grid[None, :]
        of_stage = np.maximum(np.ceil(tokens / engine.pipeline_parallel).ravel(), 1.0)
        # Prompts share experts as verified positions do, so that both kinds of iteration agree.
        components, _ = _device(drafting.verifying, of_stage, drafting.queries)
        own = np.maximum(grid / engine.attention_data_parallel / engine.pipeline_parallel, 1e-9)
        attention = layers.prefill_module(own, prompt)
        if attention is not None:
            # Latent attention over prompts was measured together with its projections, which count once.
            components.pop("attention projections")
        else:
            attention = layers.prompt_attention(own / prompt, prompt)
        linear = total(components).reshape(tokens.shape)
        attention = attention.repeated(layers.card.num_attention_layers)
        states = layers.prompt_states(own / prompt, prompt)
        if states is not None:
            attention = attention + states
        parts = components.values()
        known = sum(one.seconds * one.measured for one in parts) / np.maximum(total(components), 1e-12)
        share = known.reshape(tokens.shape)[0]
        whole = linear[0] + attention.seconds
        measured = (linear[0] * share + attention.seconds * attention.measured) / np.maximum(whole, 1e-12)
        longest = max((*parts, attention), key=lambda timed: float(timed.seconds[-1]))
        head_s = float(total(layers.head_components(np.ones(1), np.ones(1)))[0])
        bound = layers.compute_bound(of_stage).reshape(tokens.shape)
        return cls(grid, counts, linear, attention.seconds, head_s, measured, longest.bound, bound)

    def seeing(self, token_s: float) -> PrefillTimes:
        """The same where a vision tower adds ``token_s`` seconds to each token of a prompt."""
        added_s = self.grid * token_s
        share = added_s / np.maximum(self.linear[0] + self.attention + added_s, 1e-12)
        return replace(self, linear=self.linear + added_s, measured=self.measured * (1.0 - share))

    def added_s(self, engine: Engine, host: HostOverheads) -> FloatArray:
        """What the tokens add to the same iteration without them.

        An iteration without decoding sequences has no decoding part to add to, so there the idle engine's head,
        sampling and host are added (minus a negative), or nobody would pay them.
        """
        idle_s = engine.pipeline_parallel * self.head_s + host.iteration_s
        decoding_part = np.where(self.counts[:, None] > 0, self.linear[:, :1], -idle_s)
        device_s = self.linear + self.attention[None, :]
        factor = host.factors(self.compute_bound)
        extra = factor * np.maximum(device_s, host.prefill_s) - factor[:, :1] * decoding_part
        # Nothing to prefill adds nothing, also where the launch floor is above the iteration.
        extra[:, 0] = 0.0
        # Padding ends where the graphs do, so that some more tokens may take less there; a table must not fall.
        return np.asarray(np.maximum.accumulate(np.maximum(extra, 0.0), axis=1))


def compute_bound(drafting: Drafting, sequences: FloatArray) -> FloatArray:
    """How far iterations that decode so many ``sequences`` are, in one stage of a pipeline."""
    return drafting.layers.compute_bound(
        np.ceil(sequences / drafting.layers.engine.pipeline_parallel) * drafting.queries
    )


def plain_s(drafting: Drafting, sequences: FloatArray) -> FloatArray:
    """What the device takes for one iteration of each of some numbers of ``sequences``, without their context.

    The same as a prepared table says, for few points of many engines.
    """
    return total(_on_device(drafting, sequences)[0])


def cached_s(drafting: Drafting, sequences: FloatArray, context: FloatArray) -> FloatArray:
    """What their mean ``context`` tokens add; no host and no captured graph changes it."""
    stages = drafting.layers.engine.pipeline_parallel
    own = np.ceil(sequences / stages)
    drafted = drafting.cached_attention(own, context).repeated(stages)
    whole: FloatArray = drafting.layers.cached_attention(own, context, drafting.queries).seconds + drafted.seconds
    return whole


def _on_device(drafting: Drafting, n: FloatArray) -> tuple[Components, BoolArray]:
    """What the device does of an iteration whatever its context, by part, for n decoding sequences; where it is eager.

    Pipeline stages work on n / PP sequences each; the last one, with the LM head and the drafter, does so PP times per
    iteration. Sampling runs once per sequence; of the k + 1 verified positions the others pass rejection sampling.
    """
    layers, engine = drafting.layers, drafting.layers.engine
    sampled = np.ceil(n / engine.pipeline_parallel)
    tokens = sampled * drafting.queries
    pieces = verifies_in_pieces(engine, drafting.speculation)
    out, eager = _device(drafting.verifying, tokens, drafting.queries, pieces)
    out |= layers.state_components(tokens, drafting.queries)
    head = layers.head_components(tokens, sampled)
    out |= {name: timed.repeated(engine.pipeline_parallel) for name, timed in head.items()}
    if engine.pipeline_parallel > 1:
        out["pipeline"] = pipeline_hops(engine, layers.fabric, tokens, layers.card.hidden_size)
    if drafting.speculation.active:
        verified_s = total(out) / engine.pipeline_parallel
        passed, waited = drafting.passes(sampled, eager, verified_s)
        out[DRAFT_PASSES] = passed.repeated(engine.pipeline_parallel)
        if bool(np.any(waited.seconds > 0)):
            out[DRAFT_LAUNCHES] = waited.repeated(engine.pipeline_parallel)
        out["rejection sampling"] = drafting.rejection(sampled).repeated(engine.pipeline_parallel)
    return out, eager


def pipeline_hops(engine: Engine, fabric: Collectives, tokens: FloatArray, hidden: int) -> OperatorTime:
    """Point-to-point messages between the stages of a replica."""
    size, latency, rate = tokens * hidden * BYTES_PER_ELEMENT["bf16"], fabric.profile.nvlink_latency_s, fabric.nvlink
    if engine.gpus_per_replica > fabric.domain:
        latency, rate = fabric.profile.network_latency_s, fabric.network
    return modelled((engine.pipeline_parallel - 1) * (latency.value + size / rate), "network")


def _device(
    layers: EngineLayers, tokens: FloatArray, queries: int, pieces: bool = False
) -> tuple[Components, BoolArray]:
    """Layer times with capture padding, and where the iteration runs eagerly.

    An iteration beyond the graphs runs compiled kernels one by one and takes the longer of its device work and its
    launches ("eager launches" is what they add): the device hides a launch whenever a kernel lasts longer. Under
    data-parallel attention every copy captures graphs for its own share of the tokens. pieces: graphs are piecewise,
    and the host launches what stands between them.
    """
    engine, copies = layers.engine, layers.engine.attention_data_parallel
    own, sizes = np.ceil(tokens / copies), captured_sizes(layers.captured_tokens(queries))
    eager = np.logical_or(own > sizes[-1], not engine.cuda_graphs)
    # Engines run a batch in the next larger graph that they captured, with what is missing as padding.
    fitting = sizes[np.minimum(np.searchsorted(sizes, own), len(sizes) - 1)]
    padded = np.where(eager, tokens, fitting * copies)
    # Thousands of batch sizes meet some 50 captured ones: each is priced once.
    unique, inverse = np.unique(padded, return_inverse=True)
    captured = layers.components(unique)
    launched = layers.launched(unique, captured) if bool(np.any(eager)) else captured
    out: Components = {}
    for name, timed in captured.items():
        other = launched[name]
        seconds = np.where(eager, other.seconds[inverse], timed.seconds[inverse])
        known = np.where(eager, other.measured[inverse], timed.measured[inverse])
        out[name] = OperatorTime(seconds, known, timed.bound)
    uncompiled_s = layers.operators.profile.eager_launch_s.value
    # An engine set to capture nothing compiles nothing either (vLLM's enforce_eager).
    share = COMPILED_LAUNCH if engine.cuda_graphs else 1.0
    launch_s = (layers.launches() * share + SAMPLER_LAUNCHES) * uncompiled_s
    between_s = layers.pieces() * share * uncompiled_s if pieces else 0.0
    waiting = np.maximum(np.where(eager, launch_s - total(launched)[inverse], between_s - total(out)), 0.0)
    if bool(np.any(waiting > 0)):
        out[EAGER_PART] = modelled(waiting, "launch")
    return out, eager


def _monotone(attention: Components) -> Components:
    """Attention over more context or more sequences never takes less time; what that adds is of the target's."""
    seconds = total(attention)
    longer = highest_so_far(highest_so_far(seconds.T).T)
    if not np.any(longer > seconds):
        return attention
    return attention | {"attention": attention["attention"] + modelled(longer - seconds, "memory")}


def highest_so_far(values: FloatArray) -> FloatArray:
    """Running maximum down the first axis: the few columns that fall anywhere are accumulated, in half of the time."""
    falling = np.flatnonzero((values[1:] < values[:-1]).any(axis=0))
    if not falling.size:
        return values
    out = values.copy(order="K")
    out[:, falling] = np.maximum.accumulate(values[:, falling], axis=0)
    return out
