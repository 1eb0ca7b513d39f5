"""Draft lengths by the live batch, and what training a draft online costs."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlsim
from rlsim.costs.engine.draft import draft_card
from rlsim.costs.engine.draft_policy import DraftPolicy, counted, policy_costs, tokens_factor
from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import _engine, drafting_fixed, engine_prices
from rlsim.costs.engine_memory import TERMS
from rlsim.costs.interface import EngineCounters
from rlsim.costs.memory import trainer_memory
from rlsim.costs.prices import PriceInputs
from rlsim.costs.transfer.job import job_of
from rlsim.errors import InputError
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.projection.summary import phase_parts
from rlsim.projection.variant import simulate_variant
from rlsim.schema.drafter import draft_parameters, met_draft_parameters
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.units import GIB

K = 5
BASE = (
    f"speculation.draft_length={K}", "speculation.first_acceptance=0.8", "speculation.acceptance_length=null",
    "simulation.replications=1",
)  # fmt: skip


def scenario(*overrides: str) -> Scenario:
    return load_scenario("quickstart", [*BASE, *overrides])


@cache
def engines() -> tuple[IterationCosts, ...]:
    inputs = PriceInputs(scenario("speculation.policy=by_batch")).engine
    return tuple(engine_prices(drafting_fixed(inputs, k)) for k in range(K + 1))


KINDS = st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0.1, 0.98), st.floats(0.7, 1.0)), min_size=1, max_size=4)


def policy_of(
    kind: str, drawn: list[tuple[float, float, float]], threshold: int = 32, context: float = 600
) -> DraftPolicy:
    whole = sum(weight for weight, *_ in drawn)
    kinds = tuple((weight / whole, tuple(np.cumprod(first * decay ** np.arange(K)).tolist()))
                  for weight, first, decay in drawn)  # fmt: skip
    mean = np.sum([[share * p for p in rates] for share, rates in kinds], axis=0)
    lengths = tuple((1.0 + np.concatenate(([0.0], np.cumsum(mean)))).tolist())
    return DraftPolicy(kind, threshold, 600.0, lengths, kinds, ((1, threshold, K), (threshold + 1, 999, 0)))


def seconds_per_token(costs: IterationCosts, policy: DraftPolicy) -> np.ndarray:
    """Of a sequence at the context by which lengths are compared, by live sequences."""
    table = costs.table
    column = policy.context_tokens / table.context_step_tokens
    below = int(column)
    at = table.attention_s[:, below] * (1 - column + below) + table.attention_s[:, below + 1] * (column - below)
    return np.asarray((table.step_s + at)[1:] / policy.lengths[-1])


@settings(max_examples=25, deadline=None)
@given(drawn=KINDS)
def test_no_fixed_length_beats_the_best_by_batch_or_by_request(drawn: list[tuple[float, float, float]]) -> None:
    by_batch, per_request = (policy_of(kind, drawn) for kind in ("by_batch", "per_request"))
    chosen = seconds_per_token(policy_costs(engines(), by_batch), by_batch)
    own = seconds_per_token(policy_costs(engines(), per_request), per_request)
    for k, engine in enumerate(engines()):
        fixed = seconds_per_token(engine, by_batch) * by_batch.lengths[-1] / by_batch.lengths[k]
        # Tables hold attention that never falls with more sequences, which parts alone need not.
        assert np.all(chosen <= fixed * 1.01)
    assert np.all(own <= chosen * 1.01)


@settings(max_examples=25, deadline=None)
@given(drawn=KINDS, threshold=st.integers(0, 300))
def test_off_above_drafts_everything_or_nothing(drawn: list[tuple[float, float, float]], threshold: int) -> None:
    policy = policy_of("off_above", drawn, threshold)
    costs = policy_costs(engines(), policy)
    n = np.arange(len(costs.table.step_s))
    few = (n > 0) & (n <= threshold)
    many = n > threshold
    many[0] = False
    assert np.array_equal(costs.table.step_s[few], engines()[K].table.step_s[few])
    expected = engines()[0].table.step_s[many] * policy.lengths[K]
    assert costs.table.step_s[many] == pytest.approx(expected)
    assert set(costs.choice.drafted[1:].tolist()) <= {0.0, float(K)}


@settings(max_examples=10, deadline=None)
@given(drawn=KINDS, threshold=st.integers(1, 300))
def test_a_schedule_of_all_or_nothing_is_off_above(drawn: list[tuple[float, float, float]], threshold: int) -> None:
    off, stated = (policy_costs(engines(), policy_of(kind, drawn, threshold)) for kind in ("off_above", "by_schedule"))
    assert np.array_equal(off.table.step_s, stated.table.step_s)
    assert np.array_equal(off.table.attention_s, stated.table.attention_s)


@pytest.mark.parametrize(("values", "message"), [
    ("speculation.policy=by_schedule", "policy by_schedule needs schedule"),
    ("speculation.schedule=[[2, 5, 3]]", "schedule must begin at 1 sequence"),
    ("speculation.schedule=[[1, 5, 3], [5, 9, 1]]", "rise without overlaps; got 5 to 9"),
    ("speculation.policy=budget", "policy budget needs a drafter of one pass"),
])  # fmt: skip
def test_schedules_with_holes_and_budgets_of_chains_are_refused(values: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(values)


def test_sglang_drafts_less_for_more_sequences_and_more_where_more_is_accepted() -> None:
    by_rate = [
        policy_costs(engines(), policy_of("adaptive", [(1.0, first, 1.0)])).choice.drafted[[1, 8, 32, 64]].tolist()
        for first in (0.1, 0.5, 0.75, 0.99)
    ]
    for drafted in by_rate:
        assert drafted == sorted(drafted, reverse=True)
        assert drafted[-1] == 0.0
    for rarely, often in pairwise(by_rate):
        assert all(a <= b for a, b in zip(rarely, often, strict=True))
    # All accepted: the longest candidate for each batch, of those that this engine may draft; next to nothing: the
    # shortest, which is one token up to seven sequences and none above.
    assert (by_rate[-1], by_rate[0]) == ([5.0, 3.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0])


@settings(max_examples=10, deadline=None)
@given(drawn=KINDS)
def test_a_budget_pays_its_whole_block(drawn: list[tuple[float, float, float]]) -> None:
    budget, own = (policy_of(kind, drawn) for kind in ("budget", "per_request"))
    costs = policy_costs(engines(), budget)
    paid, free = seconds_per_token(costs, budget), seconds_per_token(policy_costs(engines(), own), own)
    fixed = seconds_per_token(engines()[K], budget)
    # Tables hold attention that never falls with more sequences, which parts alone need not.
    assert np.all(free <= paid * 1.01)
    assert np.all(paid <= fixed * 1.01)
    assert set(costs.choice.most.tolist()) == {K}


@settings(max_examples=25, deadline=None)
@given(drawn=KINDS, kind=st.sampled_from(["off_above", "by_batch", "per_request"]),
       counts=st.lists(st.integers(0, 5000), min_size=90, max_size=90))  # fmt: skip
def test_parts_tell_what_ran(drawn: list[tuple[float, float, float]], kind: str, counts: list[int]) -> None:
    policy = policy_of(kind, drawn)
    costs = policy_costs(engines(), policy)
    counters = EngineCounters(len(counts) - 1)
    for n, count in enumerate(counts[1:], start=1):
        counters.count(n, count, 600.0)
    whole = sum(
        count * (costs.table.step_s[n] + np.interp(600.0 / costs.table.context_step_tokens,
            np.arange(costs.table.attention_s.shape[1]), costs.table.attention_s[n]))
        for n, count in enumerate(counters.iterations_at)
    )  # fmt: skip
    assert sum(part.seconds for part in costs.parts(counters)) == pytest.approx(float(whole), rel=0.01)
    ran = counted(costs, counters)
    assert ran.iterations == pytest.approx(counters.iterations_at @ costs.choice.repeats[:90], abs=45)
    reference = sum(n * c for n, c in enumerate(counters.iterations_at))
    sequences = sum(n * c for n, c in enumerate(ran.iterations_at))
    if reference:
        assert tokens_factor(costs, counters) == pytest.approx(reference / sequences, rel=0.02)
    assert all(a == pytest.approx(600.0 * b) for a, b in zip(ran.context_at, ran.iterations_at, strict=True))


def test_a_policy_that_always_or_never_drafts_is_the_fixed_length_or_plain_decoding() -> None:
    fixed, always = (
        project(scenario(*more)).candidate
        for more in ((), ("speculation.policy=off_above", "speculation.off_above_sequences=100000"))
    )
    assert always.phases["generation_s"].mean == pytest.approx(fixed.phases["generation_s"].mean, rel=1e-9)
    assert always.statistics.tokens_per_verification == pytest.approx(fixed.statistics.tokens_per_verification)
    never = project(scenario("speculation.policy=off_above", "speculation.off_above_sequences=0"))
    assert never.rollout_speedup.mean == pytest.approx(1.0, abs=0.02)
    statistics, plain = never.candidate.statistics, never.baseline.statistics
    assert statistics.tokens_per_verification == pytest.approx(1.0, abs=0.01)
    assert statistics.decode_iterations == pytest.approx(plain.decode_iterations, rel=0.03)
    assert statistics.mean_batch == pytest.approx(plain.mean_batch, rel=0.02)
    assert statistics.mean_context_tokens == pytest.approx(plain.mean_context_tokens, rel=0.02)
    overrides = ("speculation.policy=off_above", "speculation.off_above_sequences=0")
    never = project(scenario(*overrides, "speculation.variation.prompt_spread=0.8"))
    assert never.rollout_speedup.mean == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("policy", ["off_above", "by_batch", "per_request"])
def test_parts_of_the_phase_add_up(policy: str) -> None:
    run = simulate_variant(scenario(f"speculation.policy={policy}", "speculation.variation.prompt_spread=0.5"))
    generation_s = np.mean([step.phases["generation_s"] for steps in run.steps for step in steps])
    parts = sum(part.seconds for part in phase_parts(run) if part.phase == "generation_s")
    assert parts == pytest.approx(generation_s, rel=1e-6)


def test_engines_capture_graphs_for_every_length_and_training_a_draft_takes_memory_and_bytes() -> None:
    fixed, chosen = (PriceInputs(scenario(f"speculation.policy={policy}")).engine_memory.parts
                     for policy in ("fixed", "by_batch"))  # fmt: skip
    assert fixed.graphs is not None
    # A set for every length, up to the largest pool that any engine was seen to hold.
    assert chosen.graphs == pytest.approx(min(fixed.graphs * (K + 1), TERMS["graphs_most_gib"] * GIB))
    inputs = PriceInputs(scenario("speculation.policy=by_batch")).engine
    assert {one.captured_tokens for one in engines()} == {engine_prices(drafting_fixed(inputs, K)).captured_tokens}
    frozen, online, seldom, packed = (
        scenario(*more)
        for more in (
            (),
            ("speculation.online_training=true",),
            ("speculation.online_training=true", "speculation.online_interval_steps=10"),
            ("speculation.online_training=true", "speculation.online_packing=true"),
        )
    )
    assert trainer_memory(frozen).draft is None
    assert (trainer_memory(online).draft or 0) > 1e9
    added, tenth = (job_of(one).full_bytes - job_of(frozen).full_bytes for one in (online, seldom))
    assert added == pytest.approx(10 * tenth) and added > 1e8
    assert frozen.sequence_packing and packed.sequence_packing and not online.sequence_packing
    train = {name: project(one).candidate.phases["train_s"].mean
             for name, one in (("frozen", frozen), ("online", online), ("packed", packed))}  # fmt: skip
    assert train["frozen"] < train["packed"] < train["online"]
    lookup = scenario("speculation.method=ngram", "speculation.online_training=true")
    assert lookup.sequence_packing and trainer_memory(lookup).draft is None


MTP = ("model=deepseek-v3", "speculation={method: mtp, draft_length: 1, acceptance_length: 1.8}")
CHAIN = {"speculation": {"draft_length": 8, "acceptance_length": 4.0}, "simulation": {"replications": 1}}


def generation_s(**speculation):
    scenario = vary(load_scenario("quickstart"), CHAIN, {"speculation": {"tree_width": 1, **speculation}})
    return rlsim.project(scenario).candidate.phases.generation_s.mean


def test_the_first_draft_pass_of_a_tree_has_no_branches() -> None:
    n, context = np.array([16.0]), np.array([4000.0])

    def cached_s(length: int, width: int) -> float:
        keys = {
            "draft_length": length,
            "acceptance_length": 1.5,
            "tree_width": width,
            "verified_positions": 1 + length * width,
        }
        inputs = PriceInputs(vary(load_scenario("quickstart"), CHAIN, {"speculation": keys}))
        return float(_engine(inputs.engine).cached_attention(n, context).seconds[0])

    assert cached_s(1, 8) == cached_s(1, 1)
    assert cached_s(3, 8) == pytest.approx(17 * cached_s(1, 1))


def test_a_chain_is_a_tree_of_one_branch_and_a_tree_pays_by_its_acceptance():
    assert generation_s(tree_width=1, verified_positions=9) == generation_s()
    chain, verified = generation_s(), generation_s(verified_positions=48)
    assert verified > 1.2 * chain
    assert generation_s(verified_positions=48, tree_width=4) > verified
    small = {"workload": {"prompts_per_step": 1, "generations_per_prompt": 8}, "trainer": {"global_batch_samples": 8}}
    base = vary(load_scenario("quickstart"), CHAIN, small)
    tree = vary(base, {"speculation": {"tree_width": 4, "verified_positions": 32, "acceptance_length": 6.0}})
    seconds = [rlsim.project(scenario).candidate.phases.generation_s.mean for scenario in (base, tree)]
    assert seconds[1] < 0.85 * seconds[0]


def test_a_token_meets_few_experts_of_an_mtp_layer_that_is_trained() -> None:
    card = load_card("deepseek-v3")
    draft = draft_card(load_scenario("quickstart", MTP).speculation, card)
    assert draft is not None
    met, whole = met_draft_parameters(draft, card), draft_parameters(draft, card)
    head, moe = card.vocab_size * card.hidden_size, card.moe
    assert moe is not None
    assert whole - (met - head) == pytest.approx((256 - 8) * 3 * 7168 * 2048)
    # A layer of the model, its projection of two inputs, and the LM head.
    layer = (parameter_counts(card).active - 2 * head) / card.num_layers
    assert met == pytest.approx(layer + 2 * 7168**2 + head, rel=0.02)
