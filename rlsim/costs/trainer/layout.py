"""How a model is spread over the training GPUs: parameters per rank, data-parallel sizes."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from functools import lru_cache

import numpy as np
from msgspec import Struct

from rlsim.costs.operators import work
from rlsim.costs.operators.recurrent import recurrent_matrices
from rlsim.costs.operators.work import Matrix
from rlsim.files.kernel import compiled
from rlsim.schema.architecture import LayerShape
from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.schema.trainer import PipelineBalance, RankBalance, Trainer
from rlsim.units import FloatArray, IntArray, digest_of

TENSORS_PER_ATTENTION, TENSORS_PER_FFN, TENSORS_PER_EXPERT = 8, 3, 3
"""Weight tensors of one mixer (projections and norms), one FFN and one gated expert in a published checkpoint."""


class TrainLayout(Struct, frozen=True):
    """Parallel sizes and parameters of one rank (elements).

    data_parallel: replicas that see different micro-batches; dense_shards, expert_shards: ranks over which optimizer
    state of the dense and of the expert parameters is spread. trained_share: trained parameters over all (LoRA: less).
    """

    data_parallel: int
    dense_shards: int
    expert_shards: int
    dense_parameters: float
    expert_parameters: float
    trained_share: float = 1.0

    @property
    def parameters(self) -> float:
        """Parameters that one rank holds in full."""
        return self.dense_parameters + self.expert_parameters

    @property
    def sharded_parameters(self) -> float:
        """Parameters over the ranks that share them: what an FSDP rank holds."""
        return self.dense_parameters / self.dense_shards + self.expert_parameters / self.expert_shards

    @property
    def optimizer_parameters(self) -> float:
        """Parameters whose optimizer state one rank holds."""
        return self.trained_share * self.sharded_parameters

    def groups(self, trainer: Trainer) -> tuple[tuple[float, float, int, int], ...]:
        """Dense and expert parameters of a rank: all, trained, ranks that share them, and how far apart these are."""
        share, dense, experts = self.trained_share, self.dense_parameters, self.expert_parameters
        return (
            (dense, share * dense, self.dense_shards, trainer.tensor_parallel),
            (experts, share * experts, self.expert_shards, trainer.expert_parallel * trainer.expert_tensor_parallel),
        )


def train_layout(trainer: Trainer, card: ModelCard, gpus: int) -> TrainLayout:
    """Data parallelism takes what TP x CP x PP leaves; experts are spread over EP first, then over what is left.

    FSDP shards the weights of a rank as well, Megatron-Core their optimizer state alone.
    """
    counts = parameter_counts(card)
    tp, pp = trainer.tensor_parallel, trainer.pipeline_parallel
    cp, ep, rank = trainer.context_parallel, trainer.expert_parallel * trainer.expert_tensor_parallel, trainer.lora_rank
    experts = card.num_moe_layers * counts.expert * (card.moe.num_experts if card.moe else 0)
    dense = counts.total - experts
    data_parallel = max(1, gpus // (tp * pp * cp))  # of a loop of rollouts alone nobody checks that sizes divide GPUs
    return TrainLayout(
        data_parallel=data_parallel,
        # Context-parallel ranks hold the same weights, so that the optimizer is spread over them too.
        dense_shards=data_parallel * cp,
        # Experts are not divided by TP or CP: whatever EP and ETP leave of a stage's GPUs repeats them.
        expert_shards=max(1, gpus // (pp * ep)),
        dense_parameters=dense / (tp * pp),
        expert_parameters=experts / (ep * pp),
        trained_share=1.0 if rank is None else min(1.0, adapter_parameters(card, rank) / counts.total),
    )


def stage_layers(card: ModelCard, trainer: Trainer, balance: PipelineBalance) -> tuple[float, float]:
    """Layers of a middle and of the last pipeline stage, each over all layers of :func:`stage_shapes`.

    Where the LM head counts as a layer (``head``), the stages have as few layers as hold all of them and one more; of
    two free places the embedding takes one (account_for_*_in_pipeline_split), of more a layout of its own keeps all for
    the end.

    >>> from rlsim.loading.models import load_card
    >>> card = load_card("qwen3-235b-a22b")
    >>> [round(share * card.num_layers, 6) for share in stage_layers(card, Trainer(pipeline_parallel=8), "auto")]
    [12.0, 11.0]
    """
    layers, stages = card.num_layers, trainer.pipeline_parallel
    counted = sum(count for _, _, count in stage_shapes(card, stages))
    if balance == "layers" or stages == 1 or (balance == "auto" and layers % stages == 0):
        return layers / stages / counted, layers / stages / counted
    middle = -(-(layers + 1) // stages)
    free = stages * middle - layers
    return middle / counted, max(0, middle - free + (free == 2)) / counted


def stage_shapes(card: ModelCard, stages: int) -> tuple[tuple[bool, LayerShape, float], ...]:
    """(experts, shape, count) of the layers that pipeline stages are made of.

    All but the dense ones at the beginning of a mixture of experts, which are work of the first stage alone.
    """
    first = card.moe.first_dense_layers if card.moe is not None and stages > 1 else 0
    rest = 1.0 - first / card.num_dense_layers if first else 1.0
    kinds = ((moe, shape, count if moe or not shape.ffn else count * rest) for moe, shape, count in card.layer_shapes)
    return tuple(kind for kind in kinds if kind[2] > 0)


def adapter_parameters(card: ModelCard, rank: int) -> int:
    """Parameters of LoRA adapters of ``rank``: two thin matrices beside each one of a layer."""
    held = [*dense_matrices(card)]
    if card.moe is not None:
        held.append((expert_matrices(card), card.num_moe_layers * card.moe.num_experts))
    # Rows and columns of all matrices: what adapters of rank 1 hold.
    return rank * sum(count * sum(one.n + one.k for one in matrices) for matrices, count in held)


def dense_matrices(card: ModelCard) -> list[tuple[list[Matrix], int]]:
    """Whole matrices of mixers and feed-forward blocks with the layers that have them, but for routed experts."""
    dense = work.ffn_matrices(card.hidden_size, card.intermediate_size, 1, card.gated_ffn)
    around = work.shared_expert_matrices(card, 1) + work.latent_expert_matrices(card)
    return [
        (work.attention_matrices(card, 1), card.num_attention_layers),
        (recurrent_matrices(card, 1), card.num_recurrent_layers),
        (dense, card.num_dense_layers),
        (around, card.num_moe_layers),
    ]


def expert_matrices(card: ModelCard) -> list[Matrix]:
    """Whole matrices of one routed expert; none without."""
    moe = card.moe
    return [] if moe is None else work.ffn_matrices(card.expert_hidden_size, moe.expert_intermediate_size, 1, moe.gated)


def weight_tensors(card: ModelCard, stacked: bool = False) -> int:
    """Named weight tensors of the checkpoint, where ``stacked`` with a layer's routed experts as one of each kind."""
    counts, moe = card.layer_counts, card.moe
    total = counts.mixers * TENSORS_PER_ATTENTION + counts.dense * TENSORS_PER_FFN + 3
    if moe is not None:
        experts = moe.matrices * (moe.num_shared_experts + (1 if stacked else moe.num_experts))
        total += counts.moe * (1 + experts + len(work.latent_expert_matrices(card)))
    return total


EVEN_LENGTH_TOKENS = 24576.0
"""Length at which a sample's attention counts as much as the rest of its work where ranks are balanced: verl's weight
for a 7B model (``utils/seqlen_balancing.py``), from memory. Assumption; it decides who gets what, no time by itself."""
PACKED_KEPT = 1024
"""Packings cached per process, each with the lengths of its batch."""


def micro_batch_of(trainer: Trainer, longest: int, update: bool, packed: bool) -> int:
    """Capacity of a micro-batch of the update, else of a log-prob pass: tokens, or samples where none is packed."""
    if packed:
        own, forward = trainer.micro_batch_tokens or longest, trainer.logprob_micro_batch_tokens
    else:
        own, forward = trainer.micro_batch_samples, trainer.logprob_micro_batch_samples
    return own if update else forward or own


class TrainedBatch(Struct, frozen=True, eq=False):
    """Lengths that a step trains on, and how many samples were generated for it; equal by content.

    total_tokens: prompt plus response of each trained sample.
    """

    total_tokens: FloatArray
    generated_samples: int
    digest: bytes = b""

    def __eq__(self, other: object) -> bool:
        # Arrays have no single answer to ==; batches without a digest (b"") are made for one look-up each.
        if not isinstance(other, TrainedBatch):
            return NotImplemented
        return (self.generated_samples, self.digest) == (other.generated_samples, other.digest)

    def __hash__(self) -> int:
        return hash((self.generated_samples, self.digest))

    @classmethod
    def of(cls, total_tokens: FloatArray, generated_samples: int) -> TrainedBatch:
        """The batch with the digest of its lengths."""
        return cls(total_tokens, generated_samples, digest_of(total_tokens))

    def packed(self, trainer: Trainer, balance: RankBalance, ranks: int, capacity: int, steps: int) -> MicroBatches:
        """Micro-batches of ``steps`` optimizer steps; capacity: tokens of a packed one, samples of a padded one."""
        cp = trainer.context_parallel
        multiple = trainer.tensor_parallel * (2 * cp if cp > 1 else 1)
        if not trainer.sequence_packing:
            lengths = padded(self.total_tokens, multiple)
            return padded_samples(lengths, ranks, steps, capacity)
        if balance == "bins":
            return dealt_bins(_bins(self, capacity, steps, multiple), ranks)
        return _dealt(self, (ranks, cp), steps, multiple, capacity, balance)


class MicroBatches(Struct, frozen=True):
    """Micro-batches of the busiest data-parallel rank and one optimizer step, as averages.

    count: micro-batches per rank, a mean over steps; tokens: computed tokens of one (with padding); sum_squared: sum of
    squared lengths in one; steps: optimizer steps of the RL step. balance: tokens of the mean rank over this one's.
    """

    count: float
    tokens: float
    sum_squared: float
    steps: int
    balance: float = 1.0


COMPILED_TOKENS = 2**22
"""Largest bin that the kernel packs: it has a place for every number of free tokens."""


class Bins(Struct, frozen=True, eq=False):
    """Packed samples, fullest bin first. tokens, sum_squared: [bins]."""

    tokens: FloatArray
    sum_squared: FloatArray


def packed_bins(lengths: FloatArray, capacity: float) -> Bins:
    """Samples in bins of ``capacity`` tokens by best-fit decreasing; one longer than that has a bin of its own."""
    longest_first = np.sort(lengths)[::-1]
    needed = longest_first.astype(np.int64)
    empty = min(int(capacity), int(needed.sum()) + 1)  # holds everything, with room to spare
    # No two samples longer than half a bin share one: each opens its own, and the room that is left grows in order.
    alone = int(np.searchsorted(-needed, -(empty // 2)))
    kernel, number = compiled(), np.empty(len(needed), dtype=np.int64)
    sizes = [c_int64(one) for one in (len(needed), empty, alone)]
    places = [c_void_p(one.ctypes.data) for one in (needed, number)]
    if (
        kernel is None
        or empty > COMPILED_TOKENS
        or not kernel.packing_bins(sizes[0], places[0], sizes[1], sizes[2], places[1])
    ):
        number = _fitted(needed, empty, alone)
    tokens = np.bincount(number, longest_first).astype(np.float64)
    squared = np.bincount(number, longest_first**2).astype(np.float64)
    # Stable, as everywhere that C and Python must agree.
    order = np.argsort(-tokens, kind="stable")
    return Bins(tokens[order], squared[order])


def _fitted(needed: IntArray, empty: int, opened: int) -> IntArray:
    """The bin of each sample, the first ``opened`` alone in theirs: the reference of the kernel's ``packing.c``."""
    # A bin is one whole number, its free tokens times this plus its own number: lists of those are searched in half the
    # time that pairs take, and a sample that goes in just lessens it.
    unit = len(needed) + 1
    first = (empty - needed[:opened]) * unit + np.arange(opened)
    filled, free = first.tolist(), first[first >= unit].tolist()
    for taken in (needed[opened:] * unit).tolist():
        slot = bisect_left(free, taken)
        if slot < len(free):
            rest = free.pop(slot) - taken
        else:
            rest = empty * unit + opened - taken
            opened += 1
        filled.append(rest)
        if rest >= unit:
            insort(free, rest)
    return np.array(filled, dtype=np.int64) % unit


def bins_by_step(lengths: FloatArray, capacity: float, steps: int, multiple: int) -> tuple[Bins, ...]:
    """Bins of ``capacity`` tokens of each of ``steps`` optimizer steps; samples are padded to ``multiple``."""
    return tuple(packed_bins(chunk, capacity) for chunk in np.array_split(padded(lengths, multiple), steps))


def dealt_bins(bins: Sequence[Bins], data_parallel: int) -> MicroBatches:
    """Bins of each step dealt to the ranks in turn, the fullest first, so that all ranks run equally many.

    NeMo-RL (``sequence_packing``) rounds the number of bins up to a multiple of the ranks; here the last ones are
    empty.
    """
    # The rank that is dealt first has the fullest bin of every round.
    tokens = sum(float(one.tokens[::data_parallel].sum()) for one in bins)
    squared = sum(float(one.sum_squared[::data_parallel].sum()) for one in bins)
    count = sum(-(-len(one.tokens) // data_parallel) for one in bins)
    total = sum(float(one.tokens.sum()) for one in bins)
    return _averages(count, tokens, squared, len(bins), total / data_parallel)


def balanced_ranks(lengths: FloatArray, data_parallel: int) -> IntArray:
    """The rank of each sample: equally many on each, and equal work as far as lengths allow.

    Longest first to the rank with least work (verl's ``balance_batch`` partitions by differencing, much alike).
    """
    return _dealt_by(lengths * (1.0 + lengths / EVEN_LENGTH_TOKENS), data_parallel)


def _dealt_by(cost: FloatArray, count: int) -> IntArray:
    """The rank of each sample: equally many on each, dearest first to the rank with the least cost."""
    room, dearest_first = -(-len(cost) // count), np.argsort(-cost, kind="stable")
    costs, rank = cost[dearest_first], np.empty(len(cost), dtype=np.int64)
    sizes = [c_int64(one) for one in (len(cost), count, room)]
    places = [c_void_p(one.ctypes.data) for one in (costs, rank)]
    kernel = compiled()
    if kernel is None or not kernel.packing_deal(sizes[0], places[0], sizes[1], sizes[2], places[1]):
        rank = _in_turn(costs, count, room)
    return rank[np.argsort(dearest_first)]


def _in_turn(costs: FloatArray, count: int, room: int) -> IntArray:
    """The rank of each sample, dearest first: the reference of the kernel's ``packing.c``."""
    least, left, ranks = [(0.0, rank) for rank in range(count)], [room] * count, list[int]()
    for cost in costs.tolist():
        dealt, rank = heapq.heappop(least)
        ranks.append(rank)
        left[rank] -= 1
        if left[rank]:
            heapq.heappush(least, (dealt + cost, rank))
    return np.array(ranks, dtype=np.int64)


def gpu_shares(lengths: FloatArray, data_parallel: int, gpus: int) -> list[FloatArray]:
    """Lengths of each rank's samples where every one of its ``gpus`` is dealt equally many and as many tokens.

    Shares stand in a row and each in the order of the samples, as verl's before 62221fa13 (2025-10-23).
    """
    dealt = _dealt_by(lengths, data_parallel * gpus)
    order = np.argsort(dealt, kind="stable")
    return np.split(lengths[order], np.searchsorted(dealt[order] // gpus, np.arange(1, data_parallel)))


def _in_row(shares: Sequence[FloatArray]) -> tuple[FloatArray, IntArray]:
    """Lengths of all shares, and the number of the share of each."""
    return np.concatenate(shares), np.repeat(np.arange(len(shares)), [len(share) for share in shares])


def dealt_samples(
    lengths: FloatArray, ranks: tuple[int, int], steps: int, capacity: float, balance: RankBalance
) -> MicroBatches:
    """Samples dealt to the ranks, each of which packs its own; all run as many micro-batches as the fullest needs.

    ranks: data-parallel ones, and GPUs of each. balance: tokens: by work (:func:`balanced_ranks`), so that only a
    sample longer than the mean rank's share sets the pace; gpu_tokens: :func:`gpu_shares`; samples: in their order.
    """
    count, tokens, squared = 0, 0.0, 0.0
    data_parallel, gpus = ranks
    if balance == "gpu_tokens":
        whole = [np.array_split(share, steps) for share in gpu_shares(lengths, data_parallel, gpus)]
        updates = [_in_row(update) for update in zip(*whole, strict=True)]
    elif balance == "samples":
        updates = [_in_row(np.array_split(part, data_parallel)) for part in np.array_split(lengths, steps)]
    else:
        updates = [(part, balanced_ranks(part, data_parallel)) for part in np.array_split(lengths, steps)]
    for part, dealt in updates:
        # Lengths are whole numbers, whose sums are exact in any order.
        by_rank = np.bincount(dealt, part, data_parallel)
        busiest = part[dealt == by_rank.argmax()]
        count += max(1, -(-int(busiest.sum()) // int(capacity)))
        tokens += float(busiest.sum())
        squared += float((busiest**2).sum())
    return _averages(count, tokens, squared, steps, float(lengths.sum()) / data_parallel)


def padded_samples(lengths: FloatArray, data_parallel: int, steps: int, samples: int) -> MicroBatches:
    """``samples`` to a micro-batch without packing, each padded to the longest of the batch."""
    longest = float(lengths.max())
    per_rank = -(-len(lengths) // (steps * data_parallel))
    tokens = steps * per_rank * longest
    count = steps * -(-per_rank // samples)
    return _averages(count, tokens, tokens * longest, steps, len(lengths) * longest / data_parallel)


def _averages(count: int, tokens: float, squared: float, steps: int, mean_tokens: float) -> MicroBatches:
    """Totals of the busiest rank over all steps as averages over its micro-batches."""
    filled = max(count, steps)
    return MicroBatches(filled / steps, tokens / filled, squared / filled, steps, mean_tokens / tokens)


def padded(lengths: FloatArray, multiple: int) -> FloatArray:
    """Lengths as they are computed: multiples of ``multiple`` (tensor and context parallelism)."""
    return np.asarray(np.ceil(lengths / multiple) * multiple, dtype=np.float64)


@lru_cache(maxsize=PACKED_KEPT)
def _dealt(
    batch: TrainedBatch, ranks: tuple[int, int], steps: int, multiple: int, capacity: int, balance: RankBalance
) -> MicroBatches:
    """Found once for all trainers that deal alike: searches price thousands of layouts on one batch."""
    return dealt_samples(padded(batch.total_tokens, multiple), ranks, steps, capacity, balance)


@lru_cache(maxsize=PACKED_KEPT)
def _bins(batch: TrainedBatch, capacity: int, steps: int, multiple: int) -> tuple[Bins, ...]:
    return bins_by_step(batch.total_tokens, capacity, steps, multiple)
