"""The acceptance process against published series, limits and brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsim.errors import InputError
from rlsim.schema.speculation import Speculation, Variation
from rlsim.workload.acceptance import (
    LOGIT_GRID,
    Acceptance,
    SampleMoves,
    _Renewal,
    _renewal_limit,
    acceptance_of,
    iterations_needed,
    moments_by_logit,
    moves_of,
    solve_rates,
    two_parameter_rates,
)

# Acceptance length over k and the two parameters (a_1, d): NVIDIA arXiv:2604.26779; vLLM pull requests 20780 and 32628.
PUBLISHED = [({3: 3.32, 5: 4.35, 7: 5.06}, 0.886, 0.985, 0.006), ({3: 2.77, 5: 3.23, 7: 3.48}, 0.770, 0.970, 0.016),
             ({2: 2.36, 3: 2.79, 4: 3.08, 5: 3.32, 6: 3.46, 7: 3.54}, 0.774, 0.975, 0.010),
             ({2: 2.10, 3: 2.29, 4: 2.39, 5: 2.43, 6: 2.45, 7: 2.47}, 0.682, 0.875, 0.010),
             ({3: 2.61, 4: 2.81, 5: 2.93, 6: 3.00, 7: 3.04, 8: 3.04}, 0.746, 0.935, 0.007)]  # fmt: skip


def speculation(**keys: object) -> Speculation:
    return Speculation.model_validate({"method": "eagle3", **keys})


@pytest.mark.parametrize(("series", "first", "decay", "rmse"), PUBLISHED)
def test_two_parameters_give_lengths(series: dict[int, float], first: float, decay: float, rmse: float) -> None:
    errors = [1 + two_parameter_rates(first, decay, k).sum() - length for k, length in series.items()]
    assert np.sqrt(np.mean(np.square(errors))) <= rmse + 0.005


def test_lengths_are_solved_for_every_form_and_ngram_is_a_mixture() -> None:
    first = solve_rates(3.32, 0.985, 3)[0]
    assert 1 + two_parameter_rates(first, 0.985, 7).sum() == pytest.approx(5.06, abs=0.05)
    constant = solve_rates(2.77, 1.0, 3)[0]
    assert 1 + two_parameter_rates(constant, 1.0, 7).sum() > 1.03 * 3.48
    acceptance = Acceptance(np.array([0.8, 0.5, 0.2]))
    tokens, share = np.arange(1, 5), np.array([0.2, 0.3, 0.3, 0.2])
    assert acceptance.mean == pytest.approx(tokens @ share)
    assert acceptance.variance == pytest.approx(tokens**2 @ share - (tokens @ share) ** 2)
    assert acceptance_of(Speculation()).mean == 1.0
    assert acceptance_of(speculation(draft_length=3, acceptance_length=2.6)).mean == pytest.approx(2.6)
    given_rates = acceptance_of(speculation(draft_length=3, position_acceptance=[0.73, 0.52, 0.36]))
    assert given_rates.mean == pytest.approx(2.61)
    first = acceptance_of(speculation(draft_length=3, first_acceptance=0.886, acceptance_decay=0.985))
    assert first.mean == pytest.approx(3.32, abs=0.01)
    # vLLM pull request 24344: 4.59 tokens per drafting step, 2.96 over all steps at k = 5.
    match = 1.96 / 3.59
    mixture = acceptance_of(
        speculation(method="ngram", draft_length=5, match_probability=match, acceptance_length=2.96)
    )
    assert mixture.mean == pytest.approx(2.96)
    by_position = acceptance_of(
        speculation(method="ngram", draft_length=5, match_probability=match,
                    position_acceptance=[0.81, 0.74, 0.70, 0.68, 0.66]),
    )  # fmt: skip
    assert by_position.mean == pytest.approx(2.96, abs=0.01)
    assert mixture.variance > acceptance_of(speculation(draft_length=5, acceptance_length=2.96)).variance
    with pytest.raises(InputError, match=r"match_probability 0\.2 .* at most 1\.6"):
        acceptance_of(speculation(method="ngram", draft_length=3, match_probability=0.2, acceptance_length=2.0))
    with pytest.raises(InputError, match="acceptance_length"):
        solve_rates(5.0, 0.97, 3)


@given(k=st.integers(1, 12), share=st.floats(0, 1), decay=st.floats(0.5, 1))
def test_solved_rates_have_the_given_acceptance_length(k: int, share: float, decay: float) -> None:
    rates = solve_rates(1 + share * k, decay, k)
    assert 1 + rates.sum() == pytest.approx(1 + share * k, abs=1e-9)
    assert np.all(rates <= 1 + 1e-12) and np.all(np.diff(rates) <= 1e-12)


def test_iterations_without_drafts_at_full_acceptance_and_with_moves() -> None:
    lengths = np.array([0, 1, 7, 40_000])
    rng = np.random.default_rng(1)
    assert iterations_needed(lengths, Acceptance(np.zeros(0)), rng).tolist() == lengths.tolist()
    assert iterations_needed(lengths, Acceptance(np.zeros(4)), rng).tolist() == lengths.tolist()
    counts = iterations_needed(np.array([0, 1, 4, 5, 4001]), Acceptance(np.ones(3)), np.random.default_rng(0))
    assert counts.tolist() == [0, 1, 1, 2, 1001]
    lengths = np.full(20_000, 3000)
    acceptance = Acceptance(two_parameter_rates(0.8, 0.97, 3))
    scores = np.random.default_rng(3).standard_normal(lengths.size)
    moves = moves_of(Variation(prompt_spread=0.5), acceptance, scores, scores, lengths.astype(float))
    narrow = iterations_needed(lengths, acceptance, np.random.default_rng(2))
    wide = iterations_needed(lengths, acceptance, np.random.default_rng(2), moves)
    assert wide.std() > 2 * narrow.std()
    assert lengths.sum() / wide.sum() == pytest.approx(acceptance.mean, rel=0.005)


def exact_moments(length: int, rates: np.ndarray) -> tuple[float, float]:
    """Mean and variance of the verifications for ``length`` tokens, by recursion over the tokens still missing."""
    share = -np.diff(np.concatenate(([1.0], rates, [0.0])))
    first, second = np.zeros(length + 1), np.zeros(length + 1)
    for left in range(1, length + 1):
        rest = np.maximum(left - np.arange(1, share.size + 1), 0)
        first[left] = 1 + share @ first[rest]
        second[left] = 1 + share @ (2 * first[rest] + second[rest])
    return float(first[-1]), float(second[-1] - first[-1] ** 2)


@pytest.mark.parametrize("length", [40, 700, 3000])
@pytest.mark.parametrize("rates", [(0.77, 0.57, 0.41), (0.3, 0.27, 0.25, 0.25, 0.24), (0.9,)])
def test_moments_are_exact(length: int, rates: tuple[float, ...]) -> None:
    """Both branches: mean within 4 standard errors, variance within 5 % (and the 1/12 that rounding adds)."""
    mean, variance = exact_moments(length, np.asarray(rates))
    drawn = iterations_needed(np.full(60_000, length), Acceptance(np.asarray(rates)), np.random.default_rng(11))
    assert abs(drawn.mean() - mean) <= 4 * np.sqrt(variance / drawn.size) + 1e-9
    assert drawn.var() == pytest.approx(variance, rel=0.05, abs=0.15)


@settings(max_examples=40)
@given(rates=st.lists(st.floats(0, 1), min_size=1, max_size=7).map(lambda r: sorted(r, reverse=True)),
       lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=20), spread=st.sampled_from([0.0, 0.2]))  # fmt: skip
def test_iterations_stay_within_what_is_possible(rates: list[float], lengths: list[int], spread: float) -> None:
    asked = np.array(lengths)
    moves = SampleMoves(spread * np.random.default_rng(4).standard_normal(asked.size), spread / 1000.0)
    counts = iterations_needed(asked, Acceptance(np.array(rates)), np.random.default_rng(5), moves)
    assert np.all(counts <= asked)
    assert np.all(counts * (len(rates) + 1) >= asked)


def test_positions_beyond_the_stated_ones_go_on_as_the_last_two_did() -> None:
    """The two-parameter form at another k is the same form."""
    for stated, k in ((1, 4), (2, 5), (4, 7)):
        length = 1.0 + float(two_parameter_rates(0.8, 0.9, stated).sum())
        keys = {"acceptance_length": length, "acceptance_at_draft_length": stated, "acceptance_decay": 0.9}
        rates = acceptance_of(speculation(draft_length=k, **keys)).position_rates
        assert rates == pytest.approx(two_parameter_rates(0.8, 0.9, k), rel=1e-9)


@given(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=7))
def test_moments_are_those_of_the_distribution_and_ends_fall_evenly_into_verifications(each: list[float]) -> None:
    rates = np.cumprod(each)
    emitted, shares = np.arange(1, rates.size + 2), -np.diff(np.concatenate(([1.0], rates, [0.0])))
    moments = [float(shares @ emitted**power) for power in (1, 2, 3)]
    found = Acceptance(rates)
    assert [found.mean, found.second_moment, found.third_moment] == pytest.approx(moments)
    assert [values[LOGIT_GRID.size // 2] for values in moments_by_logit(found)] == pytest.approx(moments)
    # Of verifications of m tokens always, the last is cut at 1 .. m tokens alike: variance (m^2 - 1) / 12 of tokens.
    size, score = rates.size + 1, 1e4
    lengths, always = np.full(2, 10**7), _Renewal(size, size**2, size**3)
    middle, far = _renewal_limit(lengths, always, size, np.array([0.0, score]))
    assert (far - middle) / score == pytest.approx(np.sqrt((size**2 - 1) / 12) / size, rel=0.01)
