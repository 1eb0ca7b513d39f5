"""What drafting adds to an engine iteration: draft passes, rejection sampling, host look-ups."""

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
from rlsim.schema.base import Precision
from rlsim.schema.drafter import DraftCard, block_draft, default_eagle3_draft, mtp_draft
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import BLOCK_METHODS, LOOKUP_METHODS, Speculation
from rlsim.units import BYTES_PER_ELEMENT, BoolArray, FloatArray

REJECTION_LAUNCHES = 20
"""Small operations of a rejection sampling: softmax, gathers, accept, recovered tokens. Counted in vLLM's sampler."""
REJECTION_PASSES = 5.0
"""Passes over FP32 rows of the vocabulary: logits read, softmax write and read, draft probabilities, recovered draw."""

FUSED_BY_MTP = 2
"""An MTP layer projects [hidden state, embedding], 2H to H (DeepSeek-V3, arXiv 2412.19437 section 2.2)."""
CONTEXT_LAUNCHES = 7, 1
"""Operations that a block drafter launches for keys and values of its context, outside of its graphs, and more of them
a layer: states joined, fused, copied and normed, all layers' products, norm, rotary embedding; a layer's cache written.
Counted in precompute_and_store_context_kv (vllm/model_executor/models/qwen3_dflash.py @036a00d1)."""
PASS_KERNELS, TOKEN_KERNELS = 8.0, 4.0
"""Small kernels of a block beside its layers, head and draw: inputs prepared, embedding, states joined and their norm,
norm, rotary embedding and write of the context, rows picked and their norm; and of a token of DSpark's sequence: its
embedding, the sum of logits, the token mapped and stored. Counted in dflash and dspark/speculator.py."""
BIAS_PASSES, JOINING_PASSES = 3.0, 2.0
"""Passes over BF16 rows of the vocabulary: a token's bias and the logits read, their sum written; and what GPUs have
gathered read and written as rows (all_gather of distributed/device_communicators/base_device_communicator.py
@00a18bc3)."""


def draft_card(speculation: Speculation, card: ModelCard) -> DraftCard | None:
    """The network that drafts, or None where nothing is computed on the device (none, n-gram, suffix)."""
    if not speculation.active or speculation.method in LOOKUP_METHODS:
        return None
    if speculation.draft is not None:
        return speculation.draft
    if speculation.method in BLOCK_METHODS:
        return block_draft(card, markov=speculation.method == "dspark")
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
        """The drafter is sharded as stated, else like the target, as far as its heads allow."""
        tp = self.speculation.draft_tensor_parallel or self.layers.engine.tensor_parallel
        # Halved until it divides, since most sizes of tensor parallelism are powers of two.
        while draft.num_heads % tp:
            tp //= 2
        return max(1, tp)

    def _head(self, rows: FloatArray, sampled: FloatArray, draft: DraftCard, hidden: int) -> Components:
        """The drafter's LM head, or a product of another depth ``hidden`` onto its vocabulary, and sampling."""
        tp = self.speculation.draft_tensor_parallel or self.layers.engine.tensor_parallel
        return self.layers.head_components(rows, sampled, (draft.vocab_size, hidden, tp))

    def _pass(self, tokens: FloatArray, sequences: FloatArray, draft: DraftCard, first: bool) -> OperatorTime:
        """Device time of one draft pass over ``tokens`` rows that drafts one token for each of ``sequences``.

        The target's hidden states are fused in the first pass (EAGLE-3); later ones continue the drafter's own.
        """
        head = self._head(sequences, sequences, draft, draft.hidden_size)
        parts = self._own_layers(tokens, draft, self.verifying if first else self.layers) | head
        fused = FUSED_BY_MTP if draft.kind == "mtp" else draft.fused_hidden_states if first else 0
        return _as_one(parts | self._fusion(tokens, draft, fused))

    def _fusion(self, tokens: FloatArray, draft: DraftCard, states: int) -> Components:
        if states <= 1:
            return {}
        fusion = Matrix("fusion", draft.hidden_size, states * self.layers.card.hidden_size)
        return {"fusion": self.layers.operators.gemm(tokens, fusion, self._precision)}

    def _block(self, sequences: FloatArray, draft: DraftCard) -> OperatorTime:
        """Device time of one pass that drafts all k tokens of each of ``sequences``.

        P-EAGLE and PARD put k - 1 masked tokens behind the k + 1 rows of a first pass (vLLM
        worker/gpu/spec_decode/peagle/speculator.py @484e39a1). DFlash asks with k + 1 rows and DSpark with k, over keys
        and values that each layer makes of all verified states (dflash/speculator.py @75d3c8e9, dspark/speculator.py
        @6534e066); DSpark then draws token by token, each with the bias of the one before.
        """
        k, method = self.speculation.draft_length, self.speculation.method
        asked, verified = sequences * {"dflash": k + 1, "dspark": k}.get(method, 2 * k), sequences * (k + 1)
        parts = self._own_layers(asked, draft, self.verifying)
        parts |= self._head(sequences * k, sequences * k, draft, draft.hidden_size)
        if method not in BLOCK_METHODS:
            return _as_one(parts | self._fusion(asked, draft, draft.fused_hidden_states))
        parts |= self._fusion(verified, draft, draft.fused_hidden_states) | self._context(verified, draft)
        parts["small"] = self.layers.operators.stream(self._logit_bytes(sequences * k, draft, 0.0), PASS_KERNELS)
        if draft.markov_rank:
            token = self._head(sequences, sequences, draft, draft.markov_rank)
            moved = self._logit_bytes(sequences, draft, BIAS_PASSES)
            token["small"] = self.layers.operators.stream(moved, TOKEN_KERNELS)
            # Tokens are drawn one by one, not all at once.
            parts |= {f"of a token: {name}": timed.repeated(k) for name, timed in token.items()}
            del parts["sampling"]
        return _as_one(parts)

    def _logit_bytes(self, rows: FloatArray, draft: DraftCard, passes: float) -> FloatArray:
        """Bytes of ``passes`` over BF16 logits, and of the copy that joins the parts of several GPUs."""
        shared = (self.speculation.draft_tensor_parallel or self.layers.engine.tensor_parallel) > 1
        return rows * (draft.vocab_size * BYTES_PER_ELEMENT["bf16"] * (passes + (JOINING_PASSES if shared else 0.0)))

    def _context(self, tokens: FloatArray, draft: DraftCard) -> Components:
        """Keys and values that the layers of a block drafter make of the target's states."""
        mla = self.layers.card.mla if draft.kind == "mtp" else None
        heads = -(-draft.num_kv_heads // self._tensor_parallel(draft))
        width = 2 * heads * draft.head_dim if mla is None else mla.cached_values
        matrix = Matrix("context", draft.num_layers * width, draft.hidden_size)
        return {"context": self.layers.operators.gemm(tokens, matrix, self._precision)}

    @property
    def _precision(self) -> Precision:
        return self.speculation.draft_precision or "bf16"

    def _own_layers(self, tokens: FloatArray, draft: DraftCard, target: EngineLayers) -> Components:
        operators = target.operators
        hidden, tp = draft.hidden_size, self._tensor_parallel(draft)
        if draft.kind == "mtp":
            with_experts = draft.num_layers if target.card.num_moe_layers else 0
            counts = LayerCounts(draft.num_layers, 0, 0, draft.num_layers - with_experts, with_experts)
            return target.layer_components(tokens, counts)
        model = as_model(draft)
        matrices = work.attention_matrices(model, tp) + work.ffn_matrices(hidden, draft.intermediate_size, tp)
        products = operators.gemms(tokens, matrices, self._precision).repeated(draft.num_layers)
        if draft.kind == "eagle3":
            # EAGLE-3's first layer reads the embedding beside the hidden state (arXiv 2503.01840).
            wide = [Matrix("qkv", matrices[0].n, 2 * hidden), *matrices[1:]]
            further = operators.gemms(tokens, matrices, self._precision).repeated(draft.num_layers - 1)
            products = operators.gemms(tokens, wide, self._precision) + further
        reduced = target.fabric.all_reduce(tp, tokens * (hidden * BYTES_PER_ELEMENT["bf16"]))
        small = elementwise(operators, model, tokens, tp, draft.intermediate_size / tp)
        return {
            "layers": products,
            "all-reduce": reduced.repeated(2.0 * draft.num_layers),
            "elementwise": small.repeated(draft.num_layers),
        }

    def passes(
        self, sequences: FloatArray, eager: BoolArray, verified_s: FloatArray
    ) -> tuple[OperatorTime, OperatorTime]:
        """All draft passes: the first over the positions that a chain may accept, the others one token per sequence
        or branch of its tree, or one pass alone; and what an iteration waits besides for their launches.

        A pass cannot be shorter than the host takes to launch it. Where the host does not wait for the verification
        (and no batch exceeds the graphs, ``eager``), the launches of all passes hide behind it, ``verified_s``.
        """
        draft, k = self.draft, self.speculation.draft_length
        if draft is None:
            return modelled(np.zeros_like(sequences), "none"), modelled(np.zeros_like(sequences), "launch")
        if self.speculation.in_one_pass:
            first = other = self._block(sequences, draft)
        else:
            # k + 1 rows: the drafter must read all positions of which the target may have accepted some.
            first = self._pass(sequences * (k + 1), sequences, draft, True)
            branches = sequences * self.speculation.tree_width
            other = self._pass(branches, branches, draft, False)
        others = 0 if self.speculation.in_one_pass else k - 1
        first_s, other_s = (np.where(eager, self._eager_s(draft), each) for each in self._launch_s(draft))
        seconds = np.maximum(first.seconds, first_s) + others * np.maximum(other.seconds, other_s)
        device_s = first.seconds + others * other.seconds
        waited_s = np.zeros_like(device_s)
        if drafts_ahead(self.layers.engine, self.speculation):
            waited_s = np.where(eager, 0.0, np.maximum(first_s + others * other_s - verified_s - device_s, 0.0))
            seconds = np.where(eager, seconds, device_s)
        launched = seconds > device_s
        bound: Bound = "launch" if bool(np.mean(launched) > 0.5) else other.bound
        return OperatorTime(seconds, np.where(launched, 0.0, other.measured), bound), modelled(waited_s, "launch")

    def _launch_s(self, draft: DraftCard) -> tuple[float, float]:
        """Host seconds to launch the first pass and each other one."""
        replay_s = self.layers.operators.host_s("graph_replay") or 0.0
        # Attention, and a piece of compiled code between two of them.
        pieces = draft.num_layers * (ATTENTION_LAUNCHES + 1) + 1
        around = proposer_launches(self.layers.engine) + self._context_launches(draft)
        pieces_s = (around + pieces) * self.eager_launch_s
        match draft_graph(self.layers.engine, self.layers.card, self.speculation):
            case "none":
                return self._eager_s(draft), self._eager_s(draft)
            case "piecewise":
                return pieces_s, pieces_s
            case "full" if self.speculation.method in BLOCK_METHODS:
                return around * self.eager_launch_s + replay_s, replay_s
            case "full":
                return pieces_s, replay_s
            case _:
                return replay_s, replay_s

    def _eager_s(self, draft: DraftCard) -> float:
        launches = proposer_launches(self.layers.engine) + draft.num_layers * UNCOMPILED_LAUNCHES
        return (launches + self._context_launches(draft)) * self.eager_launch_s

    def _context_launches(self, draft: DraftCard) -> int:
        once, layer = CONTEXT_LAUNCHES if self.speculation.method in BLOCK_METHODS else (0, 0)
        return once + layer * draft.num_layers

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
        # The first pass has no branches, and a block no other.
        others = 0 if speculation.in_one_pass else (speculation.draft_length - 1) * speculation.tree_width
        return once.repeated(1 + others)

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


def _as_one(parts: Components) -> OperatorTime:
    """A pass that consists of ``parts``."""
    measured = sum(t.seconds * t.measured for t in parts.values())
    seconds = total(parts)
    return OperatorTime(seconds, np.asarray(measured) / np.maximum(seconds, 1e-12), next(iter(parts.values())).bound)
