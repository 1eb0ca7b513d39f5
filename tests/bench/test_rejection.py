"""Rejection sampling: the output follows the target, each position is accepted with probability 1 - TV(p, q)."""

import pytest
import torch
from scipy.stats import binom, chi2

from bench.rejection import Draft, draw, sampling_probabilities, verify

VOCABULARY = 6
SAMPLES = 40_000
FALSE_ALARM = 1e-4


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


@pytest.mark.parametrize("seed", [1, 2])
def test_each_output_position_follows_the_target(seed: int) -> None:
    k = 3
    p, q = distributions(k + 1, seed), distributions(k, seed + 100)
    generator = torch.Generator().manual_seed(seed)
    follows(*verify(p.expand(SAMPLES, -1, -1), drafted(q, generator), generator), p)


@pytest.mark.parametrize("seed", [3, 4])
def test_conditional_acceptance_is_one_minus_total_variation(seed: int) -> None:
    k = 3
    p, q = distributions(k + 1, seed), distributions(k, seed + 100)
    generator = torch.Generator().manual_seed(seed)
    _, count = verify(p.expand(SAMPLES, -1, -1), drafted(q, generator), generator)
    for position in range(k):
        rate = 1.0 - 0.5 * (p[position] - q[position]).abs().sum().item()
        assert as_often(count > position + 1, int((count > position).sum()), rate), position


def test_deterministic_draft_is_accepted_with_the_targets_probability_and_stays_lossless() -> None:
    p = distributions(3, 5)
    generator = torch.Generator().manual_seed(5)
    draft = Draft(torch.tensor([[2, 4]]).expand(SAMPLES, -1))
    tokens, count = verify(p.expand(SAMPLES, -1, -1), draft, generator)
    assert as_often(count > 1, SAMPLES, p[0, 2].item())
    follows(tokens, count, p)


def test_reduced_draft_vocabulary_is_lossless() -> None:
    p, q = distributions(2, 6), torch.softmax(torch.tensor([[0.3, 1.0, -0.5]]), -1)
    to_target = torch.tensor([5, 0, 3])
    generator = torch.Generator().manual_seed(6)
    rows = q.expand(SAMPLES, 1, 3).contiguous()
    indices = draw(rows, generator)
    tokens, count = verify(p.expand(SAMPLES, -1, -1), Draft(to_target[indices], rows, indices, to_target), generator)
    follows(tokens, count, p[:1])
    assert as_often(count > 1, SAMPLES, torch.minimum(p[0, to_target], q[0]).sum().item())


def test_greedy_target_accepts_exactly_its_argmax() -> None:
    logits = torch.tensor([[[0.0, 3.0, 1.0], [2.0, 0.0, 1.0], [0.0, 0.0, 9.0]]])
    p = sampling_probabilities(logits, temperature=0.0)
    tokens, count = verify(p, Draft(torch.tensor([[1, 0]])))
    assert tokens.tolist() == [[1, 0, 2]]
    assert count.tolist() == [3]
    tokens, count = verify(p, Draft(torch.tensor([[1, 1]])))
    assert count.tolist() == [2]
    assert tokens[0, :2].tolist() == [1, 0]


def test_identical_distributions_accept_everything() -> None:
    q = distributions(4, 7)
    generator = torch.Generator().manual_seed(7)
    bonus = distributions(1, 8)
    _, count = verify(torch.cat([q, bonus]).expand(SAMPLES, -1, -1), drafted(q, generator), generator)
    assert (count == 5).all()


def test_without_draft_the_target_is_sampled() -> None:
    p = distributions(1, 9)
    generator = torch.Generator().manual_seed(9)
    tokens, count = verify(p.expand(SAMPLES, 1, -1), Draft(torch.empty(SAMPLES, 0, dtype=torch.long)), generator)
    assert (count == 1).all()
    follows(tokens, count, p)


def test_top_k_and_top_p_keep_the_smallest_sufficient_set() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    assert torch.allclose(sampling_probabilities(logits, 1.0, top_k=2), torch.tensor([0.625, 0.375, 0.0, 0.0]))
    assert torch.allclose(sampling_probabilities(logits, 1.0, top_p=0.7), torch.tensor([0.625, 0.375, 0.0, 0.0]))
    assert torch.allclose(sampling_probabilities(logits, 0.5), torch.tensor([0.25, 0.09, 0.0225, 0.0025]) / 0.365)
