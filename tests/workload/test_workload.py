"""Drawn lengths: published means, caps, groups, files of others and their mistakes."""

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, scenario_digest
from rlsim.projection.project import project
from rlsim.schema.workload import Workload
from rlsim.workload import agents
from rlsim.workload.acceptance import Acceptance, SampleMoves, iterations_needed
from rlsim.workload.batches import (
    at_cap,
    draw_batch,
    draw_iterations,
    draw_rollouts,
    expected_prompt_tokens,
    expected_response_tokens,
    longest_environment_s,
)
from rlsim.workload.draw import MOST_LAGGED_SAMPLES, draw
from rlsim.workload.lengths import Place, ignored_ids, read_lengths
from rlsim.workload.lognormal import limited_lognormal_mean


def workload(response: dict[str, Any], **keys: Any) -> Workload:
    base = {"prompts_per_step": 256, "generations_per_prompt": 16, "max_sequence_tokens": 8192}
    return Workload.model_validate({**base, "response_tokens": response, **keys})


def means(work: Workload, count: int = 40) -> np.ndarray:
    return np.array([draw_batch(work, Place(3, 0, r)).response_tokens.mean() for r in range(count)])


SCORES = np.array([NormalDist().inv_cdf((i + 0.5) / 20_000) for i in range(20_000)])


@given(mu=st.floats(0, 9), sigma=st.floats(0.05, 1.5), cap=st.floats(2, 60_000))
def test_limited_mean_against_the_mean_over_quantiles(mu: float, sigma: float, cap: float) -> None:
    brute = np.minimum(np.exp(mu + sigma * SCORES), cap).mean()
    assert limited_lognormal_mean(mu, sigma, cap) == pytest.approx(brute, rel=0.005)


@pytest.mark.parametrize("mean", [300.0, 3200.0, 7000.0])
def test_mean_after_truncation_is_the_published_one(mean: float) -> None:
    drawn = means(workload({"kind": "lognormal", "mean_tokens": mean, "log_sigma": 0.9}))
    assert abs(drawn.mean() - mean) <= 3.5 * drawn.std() / math.sqrt(drawn.size)


def test_groups_are_contiguous_share_prompts_and_leave_room() -> None:
    batch = draw_batch(workload({"kind": "lognormal", "mean_tokens": 7000.0, "log_sigma": 0.6}), Place(0, 0, 0))
    at_cap = batch.total_tokens == 8192
    assert 0.4 < at_cap.mean() < 0.95
    assert batch.total_tokens.max() == 8192
    batch = draw_batch(workload({"kind": "constant", "tokens": 5}, generated_batch_factor=1.5), Place(0, 0, 0))
    assert batch.samples == 384 * 16
    assert np.array_equal(batch.group, np.repeat(np.arange(384), 16))
    work = workload({"kind": "lognormal", "mean_tokens": 2500.0},
                    prompt_tokens={"kind": "lognormal", "mean_tokens": 3000.0, "log_sigma": 1.0})  # fmt: skip
    batches = [draw_batch(work, Place(0, 0, r)) for r in range(40)]
    by_group = batches[0].prompt_tokens.reshape(-1, 16)
    assert np.all(by_group == by_group[:, :1])
    assert max(b.total_tokens.max() for b in batches) <= 8192
    assert min(b.response_tokens.min() for b in batches) >= 1
    drawn = np.array([b.response_tokens.mean() for b in batches])
    assert abs(drawn.mean() - 2500) <= 4 * drawn.std() / math.sqrt(drawn.size) + 10


@pytest.mark.parametrize("prompt", [{"kind": "constant", "tokens": 2000},
                                    {"kind": "lognormal", "mean_tokens": 2000.0, "log_sigma": 1.0}])  # fmt: skip
def test_a_response_has_a_cap_of_its_own(prompt: dict[str, Any]) -> None:
    shape = {"kind": "lognormal", "mean_tokens": 700.0, "log_sigma": 0.7}
    work = workload(shape, prompt_tokens=prompt, max_response_tokens=1024)
    batch, drawn = draw_batch(work, Place(0, 0, 0)), means(work)
    assert batch.response_tokens.max() == 1024
    assert np.array_equal(at_cap(work, batch), (batch.response_tokens == 1024) | (batch.total_tokens == 8192))
    assert 0.05 < at_cap(work, batch).mean() < 0.6
    assert abs(drawn.mean() - 700) <= 3.5 * drawn.std() / math.sqrt(drawn.size) + 10
    assert expected_response_tokens(work) == pytest.approx(700, rel=0.05)
    none, wide = (draw_batch(workload(shape, **more), Place(0, 0, 0)) for more in ({}, {"max_response_tokens": 8192}))
    assert np.array_equal(none.response_tokens, wide.response_tokens)


def test_the_cap_of_a_response_is_that_of_each_turn() -> None:
    agent = {"turns": {"kind": "constant", "turns": 4}, "max_turns": 4}
    shape = {"kind": "lognormal", "mean_tokens": 300.0, "log_sigma": 1.0}
    work = workload(shape, agent=agent, max_response_tokens=500)
    (rollout,) = draw_rollouts(work, Place(0, 0, 0))
    assert rollout.turns is not None
    assert rollout.turns.response_tokens.max() == 500
    assert rollout.batch.response_tokens.max() > 1000
    assert not at_cap(work, rollout.batch).any()


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_share_of_variance_between_groups(rho: float) -> None:
    work = workload({"kind": "lognormal", "mean_tokens": 900.0, "log_sigma": 0.5}, group_correlation=rho,
                    prompts_per_step=2000, max_sequence_tokens=1_000_000)  # fmt: skip
    logs = np.log(draw_batch(work, Place(1, 0, 0)).response_tokens).reshape(2000, 16)
    between = logs.mean(axis=1).var() - logs.var(axis=1, ddof=1).mean() / 16
    assert between / logs.var() == pytest.approx(rho, abs=0.04)


def test_scores_of_prompts_and_samples_are_independent_and_quantiles_scale() -> None:
    work = workload({"kind": "lognormal", "mean_tokens": 900.0, "log_sigma": 0.5}, group_correlation=0.5,
                    generations_per_prompt=1, prompts_per_step=5000, max_sequence_tokens=1_000_000)  # fmt: skip
    assert np.log(draw_batch(work, Place(1, 0, 0)).response_tokens).std() == pytest.approx(0.5, rel=0.05)
    shape = {"kind": "quantiles", "quantiles": [0, 0.5, 1], "tokens": [100, 200, 600]}
    drawn = means(workload(shape))
    assert drawn.mean() == pytest.approx(275, rel=0.02)
    scaled = means(workload({**shape, "mean_tokens": 4000.0}))
    assert abs(scaled.mean() - 4000) <= 3.5 * scaled.std() / math.sqrt(scaled.size)


def test_draws_depend_on_seed_step_and_replication_and_the_first_token_on_the_prefill() -> None:
    work = workload({"kind": "lognormal", "mean_tokens": 900.0})
    first = draw_batch(work, Place(5, 2, 1))
    assert np.array_equal(first.response_tokens, draw_batch(work, Place(5, 2, 1)).response_tokens)
    for other in ((6, 2, 1), (5, 3, 1), (5, 2, 0)):
        assert not np.array_equal(first.response_tokens, draw_batch(work, Place(*other)).response_tokens)
    wider = work.model_validate({**work.model_dump(), "environment_s": 3.0})
    assert np.array_equal(first.response_tokens, draw_batch(wider, Place(5, 2, 1)).response_tokens)
    batch = draw_batch(workload({"kind": "lognormal", "mean_tokens": 900.0}), Place(0, 0, 0))
    plain = draw_iterations(batch, Acceptance(np.zeros(0)), Place(0, 0, 0))
    assert np.array_equal(plain, batch.response_tokens - 1)
    drafted = draw_iterations(batch, Acceptance(np.array([0.8, 0.6])), Place(0, 0, 0))
    assert (batch.response_tokens - 1).sum() / drafted.sum() == pytest.approx(2.4, rel=0.01)


def test_a_mean_that_quantiles_cannot_have_is_an_input_error() -> None:
    shape = {"kind": "quantiles", "quantiles": [0, 1], "tokens": [1, 9], "mean_tokens": 9000.0}
    with pytest.raises(InputError, match=r"workload\.response_tokens\.mean_tokens must be below 8085"):
        draw_batch(workload(shape), Place(0, 0, 0))
    with pytest.raises(InputError, match=r"mean_tokens must be below 8085, the cap, as the mean beside cut_share"):
        draw_batch(workload({"kind": "lognormal", "mean_tokens": 8085.0, "cut_share": 0.4}), Place(0, 0, 0))
    with pytest.raises(InputError, match=r"mean_tokens must be above [\d,]+, as a share of 0.47 at the cap of 8,085"):
        draw_batch(workload({"kind": "lognormal", "mean_tokens": 3000.0, "cut_share": 0.47}), Place(0, 0, 0))
    with pytest.raises(InputError, match="holds so much"):  # lengths so wide that their mean overflows
        draw_batch(workload({"kind": "lognormal", "mean_tokens": 0.3001 * 8085, "cut_share": 0.3}), Place(0, 0, 0))


@pytest.mark.parametrize("factor", [1.0, 1.2, 2.0])
def test_a_mean_beyond_the_cap_is_that_of_the_uncut_lengths(factor: float) -> None:
    cap, sigma = 8192 - 107, 0.7
    work = workload({"kind": "lognormal", "mean_tokens": factor * cap, "log_sigma": sigma})
    drawn = np.concatenate([draw_batch(work, Place(3, 0, r)).response_tokens for r in range(10)])
    # P(X > cap) of ln X ~ N(ln mean - sigma^2 / 2, sigma)
    cut = NormalDist().cdf((math.log(factor) - sigma**2 / 2) / sigma)
    assert (drawn == cap).mean() == pytest.approx(cut, abs=0.01)


@pytest.mark.parametrize(("mean", "share"), [(6600.0, 0.47), (4500.0, 0.1), (8000.0, 0.9)])
def test_the_share_at_the_cap_gives_the_spread(mean: float, share: float) -> None:
    work = workload({"kind": "lognormal", "mean_tokens": mean, "cut_share": share})
    drawn = np.concatenate([draw_batch(work, Place(3, 0, r)).response_tokens for r in range(10)])
    assert (drawn == 8085).mean() == pytest.approx(share, abs=0.01)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)


FILES = {"mooncake.jsonl": '{"timestamp": 0, "input_length": 70, "output_length": 7, "hash_ids": [0]}\n' * 3,
         "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,70,7\n",
         "plain.csv": "# lengths\nanything\n7\n7\n", "bare.csv": "7\n7\n",
         "named.csv": "prompt_tokens,tokens_out\n70,7\n"}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_known_formats(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[name])
    response = {"kind": "trace", "path": str(path), "column": "tokens_out" if name == "named.csv" else None}
    keys: dict[str, Any] = {}
    if name not in ("plain.csv", "bare.csv"):
        keys["prompt_tokens"] = {"kind": "trace", "path": str(path)}
    batch = draw_batch(workload(response, **keys), Place(0, 0, 0))
    assert set(batch.response_tokens.tolist()) == {7}
    assert set(batch.prompt_tokens.tolist()) == {70 if keys else 107}


@pytest.mark.parametrize(("text", "message"), [
    ("output_tokens\n5\n-3\n", "line 3: 'output_tokens' must be a number of at least 0; got '-3'"),
    ("output_tokens\nnan\n", "line 2"),
    ("output_tokens\nlong\n", "got 'long'"),
    ("output_tokens\n", "no rows"),
    ("", "no rows"),
    ("output_tokens\n0\n", "every length"),
    ("a,b\n1,2\n", r"column to one of: a, b"),
    ("a,output_tokens\n1\n", "line 2: 1 cells where the header has 2"),
    ('{"output_length": 5}\n{"output_length": }\n', "line 2: not JSON"),
    ('{"output_length": 5}\n{"other": 5}\n', "line 2: no column 'output_length'"),
    ('{"output_length": true}\n', "line 1"),
    ("quantile,output_tokens\n0,5\n0.5,9\n", "increase from 0 to 1"),
    ("quantile,output_tokens\n0,5\n1,4\n", "must not decrease"),
])  # fmt: skip
def test_bad_files_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        draw_batch(workload({"kind": "trace", "path": str(path)}), Place(0, 0, 0))
    assert "bad.csv" in str(error.value)


def test_missing_and_binary_files_and_the_first_value_without_a_header(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not found"):
        draw_batch(workload({"kind": "trace", "path": "nowhere.csv"}), Place(0, 0, 0))
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="is not a text file"):
        draw_batch(workload({"kind": "trace", "path": str(binary)}), Place(0, 0, 0))
    path = tmp_path / "bare.csv"
    path.write_text("5,50\n6,60\n")
    quantiles, tokens = read_lengths(str(path), "2", "response")
    assert tokens.tolist() == [50, 50, 60, 60] and quantiles.size == 4
    with pytest.raises(InputError, match="column to one of: 1, 2"):
        read_lengths(str(path), None, "response")


@pytest.mark.parametrize(("text", "ids"), [
    ("prompt_id,output_tokens\n1,5\n", "prompt_id"),
    ('{"output_length": 5, "hash_ids": [1]}\n', "hash_ids"),
    ("output_tokens\n5\n", ""),
    ("5\n", ""),
])  # fmt: skip
def test_prompt_ids_of_a_file_are_not_used(tmp_path: Path, text: str, ids: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    assert ignored_ids(str(path)) == ids


SUFFIX = "speculation={method: suffix, draft_length: 8, acceptance_length: 1.7, match_probability: 0.6%s}"
RATES = Acceptance(np.array([0.4, 0.2, 0.1]))


def verifications(gain: float, *more: str) -> np.ndarray:
    variation = f", variation: {{group_gain: {gain}}}"
    step = draw(load_scenario("quickstart", [SUFFIX % variation, "simulation.replications=1", *more]), 0).steps[0]
    return step.iterations[0]


def test_verifications_by_hand() -> None:
    """Of two groups the longer sample has the second acceptance from the end of the shorter one on."""
    lengths, group, move = np.array([20_000, 60_000, 40_000, 40_000]), np.array([0, 0, 1, 1]), 0.9
    moves = SampleMoves(np.zeros(4), group=group, by_done=np.array([0.0, move]))
    found = iterations_needed(lengths, RATES, np.random.default_rng(0), moves)
    alone, longer = RATES.mean, RATES.moved(move).mean
    by_hand = [20_000 / alone, 20_000 / alone + 40_000 / longer, 40_000 / alone, 40_000 / alone]
    assert found == pytest.approx(by_hand, rel=0.02)


@given(lengths=st.lists(st.integers(1, 500), min_size=6, max_size=6))
def test_who_is_done_is_who_is_shorter(lengths: list[int]) -> None:
    given_lengths, group = np.array(lengths), np.array([0, 0, 0, 1, 1, 1])
    moves = SampleMoves(np.zeros(6), group=group, by_done=np.arange(3.0))
    done = moves.at(given_lengths, given_lengths[:, None].astype(float))[:, 0]
    for sample, length in enumerate(lengths):
        others = given_lengths[group == group[sample]]
        assert done[sample] == np.count_nonzero(others < length)


def test_no_gain_is_the_plain_draw_more_is_never_slower_and_agents_are_refused() -> None:
    varied = SUFFIX % ", variation: {}"
    plain = draw(load_scenario("quickstart", [varied, "simulation.replications=1"]), 0).steps[0].iterations[0]
    assert verifications(0.0).tolist() == plain.tolist()
    sums = [verifications(gain).sum() for gain in (0.0, 0.5, 1.0, 2.0)]
    assert sums == sorted(sums, reverse=True)
    assert sums[-1] < 0.8 * sums[0]
    with pytest.raises(InputError, match="single responses"):
        verifications(1.0, "workload.agent={}")


SMALL = ["workload.prompts_per_step=4", "workload.generations_per_prompt=8", "trainer.global_batch_samples=32"]


def written(folder: Path, tokens: int) -> Path:
    path = folder / "lengths.csv"
    path.write_text("output_tokens\n" + f"{tokens}\n" * 50)
    return path


@pytest.mark.parametrize("key", ["workload.response_tokens", "workload.prompt_tokens"])
def test_an_edited_length_file_is_read_again(key: str, tmp_path: Path) -> None:
    path = written(tmp_path, 100)
    scenario = load_scenario(
        "quickstart", [*SMALL, "simulation.replications=8", f"{key}={{kind: trace, path: {path}}}"]
    )
    before, digest = project(scenario).candidate.step_s.mean, scenario_digest(scenario)
    written(tmp_path, 900)
    again = project(scenario)
    assert again.digest == scenario_digest(scenario) != digest
    expected = expected_response_tokens if key.endswith("response_tokens") else expected_prompt_tokens
    assert expected(scenario.workload) == 900
    assert abs(again.candidate.step_s.mean / before - 1) > 0.02
    written(tmp_path, 100)
    assert project(scenario).candidate.step_s.mean == before


def test_an_edited_file_of_environment_times_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("seconds\n" + "0.1\n" * 20)
    agent = f"workload.agent={{turns: {{kind: constant, turns: 3}}, environment_s: {{kind: trace, path: {path}}}}}"
    scenario = load_scenario("quickstart", [*SMALL, agent, "simulation.replications=1"])
    before = project(scenario).candidate.step_s.mean
    path.write_text("seconds\n" + "10.0\n" * 20)
    assert project(scenario).candidate.step_s.mean > before + 15


AGENT = {
    "turns": {"kind": "lognormal", "mean_turns": 6, "log_sigma": 0.5}, "max_turns": 12, "max_attempts": 3,
    "environment_s": {"kind": "lognormal", "mean_s": 3, "log_sigma": 1}, "turn_timeout_s": 20,
    "environment_group_correlation": 0.3, "environment_trajectory_correlation": 0.2, "call_failure_share": 0.3,
    "start_s": {"kind": "lognormal", "mean_s": 9, "log_sigma": 0.5},
}  # fmt: skip


def test_turns_drawn_at_once_move_no_draw_and_the_longest_environment_is_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = {}
    for share, cap in [(0.0, 65536), (0.4, 900)]:
        agent = {**AGENT, "failure_share": share}
        shape = {"kind": "lognormal", "mean_tokens": 80.0, "log_sigma": 0.8}
        work = workload(shape, agent=agent, prompts_per_step=8, max_sequence_tokens=cap)
        for block in (1, 300, 2**16):  # one turn of all trajectories, some, and all
            monkeypatch.setattr(agents, "_BLOCK", block)
            draw_rollouts.cache_clear()
            (one,) = draw_rollouts(work, Place(1, 2, 3))
            assert one.turns is not None
            found = [getattr(one.turns, name).tobytes() for name in one.turns.__struct_fields__]
            assert drawn.setdefault(share, found) == found
            assert one.batch.total_tokens.max() <= cap
        if not share:  # nothing fails, no context is full
            assert one.turns.calls is not None and one.turns.calls.max() == 3
            spent_s = np.add.reduceat(one.turns.environment_s * one.turns.calls, one.turns.first[:-1]).max()
            assert longest_environment_s(work, Place(1, 2, 3)) == pytest.approx(spent_s)


def test_a_lagged_loop_may_hold_fewer_samples_as_it_is_simulated_as_a_whole() -> None:
    large = ["workload.prompts_per_step=65536", "simulation.steps=6", "simulation.warmup_steps=0"]
    lagged = ["loop.mode=async", "loop.policy_lag=1", "cluster.generation_gpus=4", "cluster.training_gpus=4"]
    with pytest.raises(InputError, match=f"more than the {MOST_LAGGED_SAMPLES:,} .* of 4 together would fit"):
        draw(load_scenario("quickstart", [*large, *lagged, "simulation.replications=1"]), 0)
