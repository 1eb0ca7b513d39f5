"""What drafting adds to an engine iteration: sequential draft passes, rejection sampling, host look-ups."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.layers import (
    ATTENTION_LAUNCHES,
    UNCOMPILED_LAUNCHES,
    Components,
    EngineLayers,
    elementwise,
    total,
)
from rlsim.costs.engine.releases import draft_graph, drafts_ahead, proposer_launches
from rlsim.costs.interface import Bound
from rlsim.costs.operators import work
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.costs.operators.work import Matrix
from rlsim.schema.architecture import LayerCounts
from rlsim.schema.drafter import DraftCard, default_eagle3_draft, mtp_draft
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.units import BYTES_PER_ELEMENT, BoolArray, FloatArray

REJECTION_LAUNCHES = 20
"""Small operations of a rejection sampling: softmax, gathers, accept, recovered tokens. Counted in vLLM's sampler."""
REJECTION_PASSES = 5.0
"""Passes over FP32 rows of the vocabulary: logits read, softmax write and read, draft probabilities, recovered draw."""

FUSED_BY_MTP = 2
"""An MTP layer projects [hidden state, embedding], 2H to H (DeepSeek-V3, arXiv 2412.19437 section 2.2)."""


def draft_card(speculation: Speculation, card: ModelCard) -> DraftCard | None:
    """The network that drafts, or None where nothing is computed on the device (none, n-gram, suffix)."""
    if not speculation.active or speculation.method in ("ngram", "suffix"):
        return None
    if speculation.draft is not None:
        return speculation.draft
    return mtp_draft(card) if speculation.method == "mtp" else default_eagle3_draft(card)


def trained_draft(scenario: Scenario) -> DraftCard | None:
    """The drafter that a scenario trains online beside its policy; None without."""
    return draft_card(scenario.speculation, scenario.model) if scenario.speculation.trained_online else None


def as_model(draft: DraftCard) -> ModelCard:
    """The drafter as a dense model card, for the operators that ask for one."""
    return ModelCard(
        name=draft.kind, hidden_size=draft.hidden_size, num_layers=draft.num_layers, num_heads=draft.num_heads,
        num_kv_heads=draft.num_kv_heads, head_dim=draft.head_dim, intermediate_size=draft.intermediate_size,
        vocab_size=draft.vocab_size, max_position_embeddings=1, source=draft.source,
    )  # fmt: skip


class Drafting(Struct, frozen=True):
    """Drafting on one replica beside the target's ``layers``; sequence arrays count decoding sequences."""

    layers: EngineLayers
    speculation: Speculation
    eager_launch_s: float

    @property
    def verifying(self) -> EngineLayers:
        """The target's layers over the positions of verifications, which share experts."""
        return replace(self.layers, verified=self.queries)

    @property
    def queries(self) -> int:
        """Positions of a verification: drafted tokens and one more, or those of a tree; 1 without drafting."""
        return self.speculation.queries

    @property
    def draft(self) -> DraftCard | None:
        """Dimensions of the drafter."""
        return draft_card(self.speculation, self.layers.card)

    def _tensor_parallel(self, draft: DraftCard) -> int:
        """The drafter is sharded like the target as far as its heads allow."""
        tp = self.layers.engine.tensor_parallel
        # Halved until it divides, since most sizes of tensor parallelism are powers of two.
        while draft.num_heads % tp:
            tp //= 2
        return max(1, tp)

    def _pass(self, tokens: FloatArray, sequences: FloatArray, draft: DraftCard, first: bool) -> OperatorTime:
        """Device time of one draft pass over ``tokens`` rows that drafts one token for each of ``sequences``.

        The target's hidden states are fused in the first pass (EAGLE-3); later ones continue the drafter's own.
        """
        head = self.layers.head_components(sequences, sequences, (draft.vocab_size, draft.hidden_size))
        parts = self._own_layers(tokens, draft, self.verifying if first else self.layers) | head
        fused = FUSED_BY_MTP if draft.kind == "mtp" else draft.fused_hidden_states if first else 0
        if fused > 1:
            fusion = Matrix("fusion", draft.hidden_size, fused * self.layers.card.hidden_size)
            parts["fusion"] = self.layers.operators.gemm(tokens, fusion, "bf16")
        measured = sum(t.seconds * t.measured for t in parts.values())
        seconds = total(parts)
        return OperatorTime(
            seconds, np.asarray(measured) / np.maximum(seconds, 1e-12), next(iter(parts.values())).bound
        )

    def _own_layers(self, tokens: FloatArray, draft: DraftCard, target: EngineLayers) -> Components:
        operators = target.operators
        hidden, tp = draft.hidden_size, self._tensor_parallel(draft)
        if draft.kind == "mtp":
            with_experts = draft.num_layers if target.card.num_moe_layers else 0
            counts = LayerCounts(draft.num_layers, 0, 0, draft.num_layers - with_experts, with_experts)
            return target.layer_components(tokens, counts)
        model = as_model(draft)
        matrices = work.attention_matrices(model, tp) + work.ffn_matrices(hidden, draft.intermediate_size, tp)
        if draft.kind == "eagle3":
            # EAGLE-3's layer reads the embedding beside the hidden state (arXiv 2503.01840).
            matrices[0] = Matrix("qkv", matrices[0].n, 2 * hidden)
        reduced = target.fabric.all_reduce(tp, tokens * (hidden * BYTES_PER_ELEMENT["bf16"]))
        small = elementwise(operators, model, tokens, tp, draft.intermediate_size / tp)
        return {
            "layers": operators.gemms(tokens, matrices, "bf16").repeated(draft.num_layers),
            "all-reduce": reduced.repeated(2.0 * draft.num_layers),
            "elementwise": small.repeated(draft.num_layers),
        }

    def passes(
        self, sequences: FloatArray, eager: BoolArray, verified_s: FloatArray
    ) -> tuple[OperatorTime, OperatorTime]:
        """All k draft passes: the first over the positions that a chain may accept, the others one token per sequence
        or branch of its tree; and what an iteration waits besides for their launches.

        A pass cannot be shorter than the host takes to launch it. Where the host does not wait for the verification
        (and no batch exceeds the graphs, ``eager``), the launches of all passes hide behind it, ``verified_s``.
        """
        draft, k = self.draft, self.speculation.draft_length
        if draft is None:
            return modelled(np.zeros_like(sequences), "none"), modelled(np.zeros_like(sequences), "launch")
        # k + 1 rows: the drafter must read all positions of which the target may have accepted some.
        first = self._pass(sequences * (k + 1), sequences, draft, True)
        branches = sequences * self.speculation.tree_width
        other = self._pass(branches, branches, draft, False)
        first_s, other_s = (np.where(eager, self._eager_s(draft), each) for each in self._launch_s(draft))
        seconds = np.maximum(first.seconds, first_s) + (k - 1) * np.maximum(other.seconds, other_s)
        device_s = first.seconds + (k - 1) * other.seconds
        waited_s = np.zeros_like(device_s)
        if drafts_ahead(self.layers.engine, self.speculation):
            waited_s = np.where(eager, 0.0, np.maximum(first_s + (k - 1) * other_s - verified_s - device_s, 0.0))
            seconds = np.where(eager, seconds, device_s)
        launched = seconds > device_s
        bound: Bound = "launch" if bool(np.mean(launched) > 0.5) else other.bound
        return OperatorTime(seconds, np.where(launched, 0.0, other.measured), bound), modelled(waited_s, "launch")

    def _launch_s(self, draft: DraftCard) -> tuple[float, float]:
        """Host seconds to launch the first pass and each other one."""
        replay_s = self.layers.operators.host_s("graph_replay") or 0.0
        # Attention, and a piece of compiled code between two of them.
        pieces = draft.num_layers * (ATTENTION_LAUNCHES + 1) + 1
        pieces_s = (proposer_launches(self.layers.engine) + pieces) * self.eager_launch_s
        match draft_graph(self.layers.engine, self.layers.card, self.speculation):
            case "none":
                return self._eager_s(draft), self._eager_s(draft)
            case "piecewise":
                return pieces_s, pieces_s
            case "full":
                return pieces_s, replay_s
            case _:
                return replay_s, replay_s

    def _eager_s(self, draft: DraftCard) -> float:
        launches = proposer_launches(self.layers.engine) + draft.num_layers * UNCOMPILED_LAUNCHES
        return launches * self.eager_launch_s

    def cached_attention(self, sequences: FloatArray, context: FloatArray) -> OperatorTime:
        """Attention of the draft passes over their own cache, and the host's look-up over the context."""
        draft, speculation = self.draft, self.speculation
        if draft is None:
            lookup = speculation.lookup_s_per_1k_tokens / 1000.0 if speculation.active else 0.0
            return modelled(sequences * context * lookup, "host")
        if draft.kind == "mtp":
            once = self.layers.cached_attention(sequences, context, 1).repeated(
                draft.num_layers / self.layers.card.num_attention_layers
            )
        else:
            kv_precision = self.layers.engine.kv_precision
            heads = work.heads_of(as_model(draft), self._tensor_parallel(draft), kv_precision)
            once = self.layers.operators.decode_attention(heads, sequences, np.maximum(context, 1.0))
            once = once.repeated(draft.num_layers)
        return once.repeated(
            1 + (speculation.draft_length - 1) * speculation.tree_width
        )  # the first pass has no branches

    def rejection(self, sequences: FloatArray) -> OperatorTime:
        """Rejection sampling of all verified positions, outside the graph."""
        operators, queries = self.layers.operators, self.queries
        vocabulary, draft = self.layers.card.vocab_size, self.draft
        moved = sequences * queries * vocabulary * BYTES_PER_ELEMENT["fp32"] * REJECTION_PASSES
        device = operators.rejection(sequences, queries, vocabulary, draft.vocab_size if draft else vocabulary)
        device = device or operators.stream(moved)
        launched = REJECTION_LAUNCHES * self.eager_launch_s
        bound: Bound = "launch" if launched > float(np.mean(device.seconds)) else "memory"
        measured = np.where(device.seconds >= launched, device.measured, 0.0)
        return OperatorTime(np.maximum(device.seconds, launched), measured, bound)
