"""Rules of what is estimated of traces: closed forms, what scales and what does not, where the bounds lie."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from rlsim.readers.traces.agents import _marginals, agents_of
from rlsim.readers.traces.growth import LENGTH, trends_of
from rlsim.readers.traces.process import (
    Columns,
    _distance,
    _quantile,
    lognormal_of,
    marginal_of,
    scores_of,
    turns_of,
)
from rlsim.readers.traces.requests import group_numbers
from rlsim.readers.traces.trajectories import Call, Trajectory
from rlsim.readers.traces.workload import cap_of, fit_lognormal, group_correlation, quantile_table

RNG = np.random.default_rng(7)
LONG = np.exp(RNG.normal(5, 0.7, 400))
WEIGHTS = RNG.integers(1, 5, 400).astype(float)
NONE = np.zeros(400, dtype=np.bool_)
REPEATED = np.repeat(LONG, WEIGHTS.astype(int))


def test_scores_have_unit_variance_keep_order_and_take_weights_as_repetitions() -> None:
    values = np.minimum(np.round(LONG, -1), 200)  # with ties, most at the upper end: their scores lie not around 0
    scores = scores_of(values, WEIGHTS)
    mean = np.average(scores, weights=WEIGHTS)
    assert abs(mean) > 0.01 and np.average((scores - mean) ** 2, weights=WEIGHTS) == pytest.approx(1)
    order = np.argsort(values, kind="stable")
    assert all(
        (a < b) == (x < y) for (a, b), (x, y) in zip(pairwise(values[order]), pairwise(scores[order]), strict=True)
    )
    repeated = scores_of(np.repeat(values, WEIGHTS.astype(int)), np.ones(int(WEIGHTS.sum())))
    assert np.allclose(repeated, np.repeat(scores, WEIGHTS.astype(int)))
    assert not scores_of(np.full(3, 2.0), np.ones(3)).any()


def test_a_lognormal_is_its_logarithms_where_nothing_is_cut_and_most_likely_where_something_is() -> None:
    location, sigma = lognormal_of(LONG, WEIGHTS, NONE)
    logs = np.log(REPEATED)
    assert (location, sigma) == pytest.approx((logs.mean(), logs.std()))
    moved = lognormal_of(3 * LONG, WEIGHTS, NONE)
    assert moved == pytest.approx((location + math.log(3), sigma))
    cut = LONG > 200
    location, sigma = lognormal_of(np.minimum(LONG, 200), np.ones(400), cut)

    def likelihood(at: float, spread: float) -> float:
        z = (np.log(np.minimum(LONG, 200)) - at) / spread
        return float(np.where(cut, stats.norm.logsf(z), stats.norm.logpdf(z) - math.log(spread)).sum())

    best = likelihood(location, sigma)
    for away in (0.02, -0.02):
        assert likelihood(location + away, sigma) < best > likelihood(location, sigma + away)


def test_a_marginal_takes_weights_as_repetitions_and_scales_with_its_unit() -> None:
    one = marginal_of("times", "s", LONG, WEIGHTS)
    same = marginal_of("times", "s", REPEATED, np.ones(REPEATED.size))
    twice = marginal_of("times", "s", 2 * LONG, WEIGHTS)
    assert one.mean == pytest.approx(REPEATED.mean()) and one.section["log_sigma"] == same.section["log_sigma"]
    assert one.section["mean_s"] == pytest.approx(same.section["mean_s"], rel=1e-5)
    assert twice.section["mean_s"] == pytest.approx(2 * one.section["mean_s"], rel=1e-4)
    assert twice.section["log_sigma"] == one.section["log_sigma"]
    levels = np.linspace(0.05, 0.95, 7)
    assert one.quantile(levels) == pytest.approx(np.quantile(REPEATED, levels, method="hazen"), rel=0.02)
    assert _quantile(np.array([3.0, 1.0]), np.array([1.0, 3.0]), np.array([0.375, 0.875])) == pytest.approx([1, 3])
    # Of a lognormal the fit misses nothing; of two far heaps of 400 it does.
    exact = np.exp(stats.norm.ppf((np.arange(4000) + 0.5) / 4000))
    assert abs(marginal_of("times", "s", exact, np.ones(4000)).lognormal_miss) < 0.02
    heaps = np.repeat([10.0, 1000.0], 200) + np.arange(400)
    other = marginal_of("turns", "tokens", heaps, np.ones(400))
    assert other.section["kind"] == "quantiles" and abs(other.lognormal_miss) > 0.3
    assert other.section["tokens"][0] == 10 and other.section["tokens"][-1] == 1399
    for unit, value, shown in (("s", 2.5, 2.5), ("tokens", 2.6, 3), ("tokens", 0.2, 1)):
        section = marginal_of("one", unit, np.full(4, value), np.ones(4)).section
        assert section == {"kind": "constant", "seconds" if unit == "s" else "tokens": shown}


def test_numbers_of_turns_are_shares_of_those_that_came_so_far() -> None:
    """A quarter of 800 end after one turn, another is cut there; of the 400 left an eighth ends after two."""
    counts = np.repeat([1, 1, 2, 9], [200, 200, 50, 350])
    found = turns_of(counts, np.arange(800) // 200 == 1, None)
    levels, turns = (np.array(found.section[name]) for name in ("quantiles", "turns"))
    upto = 1 - 0.75 * 0.875
    assert np.interp([0.24, 0.26, upto - 0.01, upto + 0.01], levels, turns) == pytest.approx([1, 2, 2, 9])
    assert levels[0] == 0 and levels[-1] == 1 and turns.tolist() == sorted(turns)
    assert turns_of(np.array([2, 2]), np.array([False, True]), None).section == {"kind": "constant", "turns": 2}
    geometric = np.maximum(1, np.round(np.exp(stats.norm.ppf((np.arange(2000) + 0.5) / 2000) * 0.6 + 2))).astype(int)
    section = turns_of(geometric, np.zeros(2000, dtype=np.bool_), None).section
    assert section["kind"] == "lognormal" and section["log_sigma"] == pytest.approx(0.6, abs=0.03)
    assert section["mean_turns"] == pytest.approx(geometric.mean(), rel=0.03)


def test_distribution_functions_are_apart_as_kolmogorov_and_smirnov_say() -> None:
    for first, second in ((LONG[:50], LONG[50:]), (np.round(LONG[:90], -2), np.round(LONG[90:], -2)), (LONG, LONG)):
        apart = stats.ks_2samp(first, second).statistic
        assert _distance(first, np.sort(second)) == pytest.approx(apart, abs=1 / first.size)


def trajectory(step: int | None, *calls: tuple[float, float, float, float], **more: object) -> Trajectory:
    made = (Call(context, response, start_s=start, end_s=end) for context, response, start, end in calls)
    return Trajectory(tuple(made), step=step, **more)  # type: ignore[arg-type]


def test_columns_are_calls_without_failed_ones_and_a_wait_is_between_two_calls() -> None:
    rows = [
        trajectory(None, (10, 5, 0.0, 1.0), (25, 7, 3.0, 4.0), (20, 2, 3.5, 5.0), key="a"),
        trajectory(None, (9, 1, 0.0, 1.0), key="a", failed=True),
        trajectory(None, (0, 0, 0.0, 1.0), (12, 3, math.nan, 4.0), key="b", cut=True),
    ]
    found = Columns.of(rows, None, "file")
    assert found.turns.tolist() == [3, 2] and found.prompt_tokens.tolist() == [10, 1]
    assert found.total_tokens.tolist() == [22, 15] and found.owner.tolist() == [0, 0, 0, 1, 1]
    assert found.response_tokens.tolist() == [5, 7, 2, 1, 3] and found.gap_owner.tolist() == [0, 0, 1]
    assert found.observation_tokens.tolist() == [10, 1, 12]  # a context that shrank counts one token
    assert found.environment_s[:2].tolist() == [2, 0] and math.isnan(found.environment_s[2])
    assert found.cut.tolist() == [False, True] and found.cut_by_context.tolist() == [False, True]
    summed = found.summaries()
    assert "environment seconds" not in summed and summed["generated tokens"].tolist() == [14, 4]


def test_a_response_that_its_context_cuts_is_the_last_of_its_trajectory() -> None:
    """Half of 40 trajectories end at 1,000 tokens: what they would have generated is longer than what they did."""
    rows = []
    for place in range(40):
        first, second = 100 + place, 200 + 3 * place
        cut = place % 2 == 0
        last = 1000 - (first + second + 150) if cut else second - 60
        rows.append(trajectory(None, (50, first, 0, 1), (100 + first, second, 1, 2), (150 + first + second, last, 2, 3),
                               cut=cut))  # fmt: skip
    columns = Columns.of(rows, None, "file")
    marginals, settings, _ = _marginals(columns)
    assert settings["max_sequence_tokens"] == 1000
    responses = next(one for one in marginals if one.name == "turn tokens")
    plain = marginal_of("turn tokens", "tokens", columns.response_tokens, responses.weights)
    assert responses.weights.sum() == pytest.approx(40) and responses.mean == pytest.approx(plain.mean)
    cut = np.zeros(120, dtype=np.bool_)
    cut[2::6] = True
    wanted = marginal_of("turn tokens", "tokens", columns.response_tokens, responses.weights, cut, 1000.0)
    assert responses.section == wanted.section and responses.lognormal_miss == wanted.lognormal_miss


@pytest.mark.parametrize("steps", [4, 5])
def test_a_trend_takes_five_steps_and_is_its_line(steps: int) -> None:
    rows = [trajectory(10 * step, (10, 100 * 1.1**step, 0.0, 1.0)) for step in range(steps)]
    found = trends_of([*rows, trajectory(None, (1, 1, 0, 1)), trajectory(10, (1, 9e9, 0, 1), failed=True)])
    if steps < 5:
        assert found == []
        return
    (one,) = found
    assert (one.name, one.steps) == (LENGTH, (0, 40))
    assert (one.first, one.last) == pytest.approx((100, 100 * 1.1**4))
    assert one.mean == pytest.approx(100 * np.mean([1.1**step for step in range(5)]))
    assert one.text == f"{LENGTH}: from 100 at step 0 to 146 at step 40 (+0.96% a step)"
    assert one.points == [[10 * step, round(100 * 1.1**step / one.mean, 4)] for step in range(5)]
    assert trends_of([trajectory(step, (10, 100, 0, 1)) for step in range(9)]) == []


def test_shares_of_failed_ones_and_seconds_of_rewards_are_means() -> None:
    rows = [trajectory(None, (10, 20 + n, 0.0, 1.0), (40 + n, 9, 2.0, 3.0), reward_s=n % 2) for n in range(60)]
    found = agents_of([*rows, *[trajectory(None, failed=True)] * 20], "file", None, [])
    assert found.of_agent["failure_share"] == 0.25 and found.settings["environment_s"] == 0.5


def test_samples_of_a_prompt_are_so_many_in_a_row_or_have_its_key() -> None:
    numbers = group_numbers(None, 6, 2, "file")
    assert numbers is not None and numbers.tolist() == [0, 0, 1, 1, 2, 2]
    assert group_numbers(None, 6, 1, "file") is group_numbers(None, 6, None, "file") is None
    assert group_numbers(["a", "b", "c"], 3, None, "file") is None
    found = group_numbers(["b", "a", "b"], 3, None, "file")
    assert found is not None and found.tolist() == [0, 1, 0]


@pytest.mark.parametrize(("longest", "near", "capped"), [(3, 0, True), (2, 0, False), (6, 20, True), (6, 40, False)])
def test_a_cap_is_where_too_many_are_exactly_as_long(longest: int, near: int, capped: bool) -> None:
    lengths = np.concatenate([np.linspace(10, 900, 50).round(), np.full(longest, 1000.0),
                              np.resize(np.arange(980, 1000), near)])  # fmt: skip
    assert cap_of(lengths) == (1000 if capped else None)


def test_a_table_of_quantiles_keeps_mean_order_and_both_ends() -> None:
    for lengths in (LONG, np.repeat([1.0, 5000.0], [399, 1]), np.arange(1.0, 400.0)):
        levels, tokens = quantile_table(lengths)
        assert levels[0] == 0 and levels[-1] == 1 and len(levels) <= 80
        assert (np.diff(levels) > 0).all() and (np.diff(tokens) >= 0).all()
        assert np.trapezoid(tokens, levels) == pytest.approx(lengths.mean(), rel=0.05)
        assert (tokens[0], tokens[-1]) == pytest.approx((lengths.min(), lengths.max()))


def test_a_fitted_lognormal_ends_at_its_cap_and_its_function_undoes_its_quantile() -> None:
    cut = np.minimum(LONG, 250)
    fit = fit_lognormal(cut, cut == 250)
    assert fit.location == pytest.approx(5, abs=0.1) and fit.log_sigma == pytest.approx(0.7, abs=0.1)
    assert fit.cap == 250 and fit.mean == pytest.approx(cut.mean(), rel=0.03)
    levels = np.array([0.1, 0.5, 0.7])
    assert fit.cdf(fit.quantile(levels)) == pytest.approx(levels) and fit.quantile(np.array([0.999]))[0] == 250
    assert fit.cdf(np.array([fit.cap]))[0] == 1


def test_what_prompts_share_is_all_nothing_or_half() -> None:
    shared, own = np.repeat(RNG.normal(size=150), 8), RNG.normal(size=1200)
    groups = np.repeat(np.arange(150), 8)
    for part, low, high in ((shared, 0.97, 1.0), (own, -0.05, 0.06), ((shared + own), 0.4, 0.6)):
        found = group_correlation(np.exp(part), groups)
        assert found is not None and low <= found.value <= high and found.low <= found.value <= found.high
        assert found.prompts == 150
