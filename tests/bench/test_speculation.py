"""The whole reference step: same law as plain decoding, caches consistent after rollback."""

import itertools

import pytest
import torch
from scipy.stats import binom, chi2

from bench import speculation
from bench.cases import ModelDims
from bench.rejection import Draft, draw, sampling_probabilities, verify
from bench.speculation import Sampling, random_state, target_forward

CPU = torch.device("cpu")
KERNELS = ("sdpa_masked", "sdpa_masked")
SMALL = {"hidden": 16, "heads": 4, "kv_heads": 2, "head_dim": 4, "draft_width": 16}
DIMS = ModelDims(**SMALL, width=24, vocabulary=5, layers=2, qk_norm=1, draft_vocabulary=4)
PROMPT = torch.tensor([[3, 1, 4]])
FALSE_ALARM = 1e-4


def model(seed: int) -> tuple[speculation.Target, object]:
    generator = torch.Generator().manual_seed(seed)
    made = DIMS, CPU, torch.float32, generator
    return speculation.random_target(*made), speculation.random_draft_head(*made)


def generate(seed: int, batch: int, new: int, k: int, sampling: Sampling) -> tuple[torch.Tensor, speculation.State]:
    """At least ``new`` tokens [B, new] of every sequence, by speculative steps."""
    target, head = model(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    state = random_state(target, batch, 0, max(k, 1), capacity=PROMPT.shape[1] + (new + 1) * (k + 1) + 1)
    first = speculation.prefill(target, head, state, PROMPT.expand(batch, -1), sampling, KERNELS[1], generator)
    out = torch.full((batch, (new + 1) * (k + 1) + 1), -1)
    out[:, 0] = first
    filled = torch.ones(batch, dtype=torch.long)
    while int(filled.min()) < new:
        tokens, count = speculation.speculative_step(target, head, state, k, sampling, KERNELS, generator)
        for position in range(k + 1):
            rows = torch.nonzero(count > position)[:, 0]
            out[rows, filled[rows] + position] = tokens[rows, position]
        filled += count
    return out[:, :new], state


def next_token_law(seed: int, sequences: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """p(. | sequence) [N, V] by one plain forward over the whole sequence."""
    target, _ = model(seed)
    state = random_state(target, len(sequences), 0, 1, capacity=sequences.shape[1] + 1)
    logits, _ = target_forward(target, state, sequences, state.lengths, KERNELS[1])
    return sampling_probabilities(logits[:, -1], sampling.temperature, sampling.top_k, sampling.top_p)


def joint_law(seed: int, new: int, sampling: Sampling) -> torch.Tensor:
    """Probability [V**new] of every continuation of PROMPT under plain decoding."""
    law = torch.ones(1, dtype=torch.float64)
    for length in range(new):
        prefixes = torch.tensor(list(itertools.product(range(DIMS.vocabulary), repeat=length)), dtype=torch.long)
        sequences = torch.cat([PROMPT.expand(len(prefixes), -1), prefixes.view(len(prefixes), -1)], 1)
        law = (law[:, None] * next_token_law(seed, sequences, sampling).double()).flatten()
    return law


@pytest.mark.parametrize(("k", "sampling"), [
    (0, Sampling()), (3, Sampling()), (2, Sampling(temperature=0.7, top_k=3)), (3, Sampling(greedy_draft=True)),
    (2, Sampling(top_p=0.8)),
])  # fmt: skip
def test_generated_text_follows_the_targets_joint_law(k: int, sampling: Sampling) -> None:
    batch, new, seed = 8_000, 3, 11 + k
    tokens, _ = generate(seed, batch, new, k, sampling)
    cells = (tokens * DIMS.vocabulary ** torch.arange(new - 1, -1, -1)).sum(1)
    counts = torch.bincount(cells, minlength=DIMS.vocabulary**new).double()
    expected = joint_law(seed, new, sampling) * batch
    rare = expected < 5.0
    assert chi_square_accepts(*(torch.cat([one[~rare], one[rare].sum()[None]]) for one in (counts, expected)))


def test_greedy_text_is_that_of_every_draft_length_and_caches_after_rollback_are_fresh() -> None:
    sampling = Sampling(temperature=0.0, greedy_draft=True)
    plain, _ = generate(21, 4, 12, 0, sampling)
    for k in (1, 3, 5):
        speculative, _ = generate(21, 4, 12, k, sampling)
        assert torch.equal(speculative, plain), k
    batch, new, k, seed = 8, 9, 3, 31
    target, _ = model(seed)
    tokens, state = generate(seed, batch, new, k, Sampling())
    settled = PROMPT.shape[1] + new - 1
    sequences = torch.cat([PROMPT.expand(batch, -1), tokens], 1)[:, :settled]
    fresh = random_state(target, batch, 0, 1, capacity=settled)
    target_forward(target, fresh, sequences, fresh.lengths, KERNELS[1])
    for used, expected in zip(state.target_cache, fresh.target_cache, strict=True):
        assert torch.allclose(used.keys[:, :settled], expected.keys, atol=1e-4)
        assert torch.allclose(used.values[:, :settled], expected.values, atol=1e-4)


VOCABULARY = 6
SAMPLES = 40_000


def distributions(rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(1.5 * torch.randn(rows, VOCABULARY, generator=generator), -1)


def drafted(q: torch.Tensor, generator: torch.Generator) -> Draft:
    rows = q.expand(SAMPLES, *q.shape).contiguous()
    return Draft(draw(rows, generator), rows)


def chi_square_accepts(counts: torch.Tensor, expected: torch.Tensor) -> bool:
    """Pearson's statistic within its distribution's range at FALSE_ALARM; a cell that cannot occur must be empty."""
    possible = expected > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum().item()
    return statistic < chi2.isf(FALSE_ALARM, int(possible.sum()) - 1)


def follows(tokens: torch.Tensor, count: torch.Tensor, p: torch.Tensor) -> None:
    """What was emitted at every position has its probabilities of ``p``."""
    for position, law in enumerate(p.double()):
        reached = tokens[count > position, position]
        counts = torch.bincount(reached, minlength=VOCABULARY).double()
        assert chi_square_accepts(counts, law * len(reached)), position


def as_often(accepted: torch.Tensor, tried: int, rate: float) -> bool:
    low, high = binom.interval(1.0 - FALSE_ALARM, tried, rate)
    return low <= int(accepted.sum()) <= high


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_output_position_follows_the_target_and_acceptance_is_one_minus_total_variation(seed: int) -> None:
    k = 3
    p, q = distributions(k + 1, seed), distributions(k, seed + 100)
    generator = torch.Generator().manual_seed(seed)
    tokens, count = verify(p.expand(SAMPLES, -1, -1), drafted(q, generator), generator)
    follows(tokens, count, p)
    for position in range(k):
        rate = 1.0 - 0.5 * (p[position] - q[position]).abs().sum().item()
        assert as_often(count > position + 1, int((count > position).sum()), rate), position


def test_top_k_and_top_p_keep_the_smallest_sufficient_set() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    assert torch.allclose(sampling_probabilities(logits, 1.0, top_k=2), torch.tensor([0.625, 0.375, 0.0, 0.0]))
    assert torch.allclose(sampling_probabilities(logits, 1.0, top_p=0.7), torch.tensor([0.625, 0.375, 0.0, 0.0]))
    assert torch.allclose(sampling_probabilities(logits, 0.5), torch.tensor([0.25, 0.09, 0.0225, 0.0025]) / 0.365)
