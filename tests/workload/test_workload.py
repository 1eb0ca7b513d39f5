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
from rlsim.schema.workload import Workload
from rlsim.workload.acceptance import Acceptance
from rlsim.workload.batches import draw_batch, draw_iterations
from rlsim.workload.lengths import Place, ignored_ids, limited_lognormal_mean, read_lengths


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


def test_a_point_mass_stands_at_the_cap() -> None:
    batch = draw_batch(workload({"kind": "lognormal", "mean_tokens": 7000.0, "log_sigma": 0.6}), Place(0, 0, 0))
    at_cap = batch.total_tokens == 8192
    assert 0.4 < at_cap.mean() < 0.95
    assert batch.total_tokens.max() == 8192


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_share_of_variance_between_groups(rho: float) -> None:
    work = workload(
        {"kind": "lognormal", "mean_tokens": 900.0, "log_sigma": 0.5},
        group_correlation=rho,
        prompts_per_step=2000,
        max_sequence_tokens=1_000_000,
    )
    logs = np.log(draw_batch(work, Place(1, 0, 0)).response_tokens).reshape(2000, 16)
    between = logs.mean(axis=1).var() - logs.var(axis=1, ddof=1).mean() / 16
    assert between / logs.var() == pytest.approx(rho, abs=0.04)


def test_prompt_and_sample_scores_are_independent() -> None:
    work = workload(
        {"kind": "lognormal", "mean_tokens": 900.0, "log_sigma": 0.5},
        group_correlation=0.5,
        generations_per_prompt=1,
        prompts_per_step=5000,
        max_sequence_tokens=1_000_000,
    )
    assert np.log(draw_batch(work, Place(1, 0, 0)).response_tokens).std() == pytest.approx(0.5, rel=0.05)


def test_draws_depend_on_seed_step_and_replication_only() -> None:
    work = workload({"kind": "lognormal", "mean_tokens": 900.0})
    first = draw_batch(work, Place(5, 2, 1))
    assert np.array_equal(first.response_tokens, draw_batch(work, Place(5, 2, 1)).response_tokens)
    for other in ((6, 2, 1), (5, 3, 1), (5, 2, 0)):
        assert not np.array_equal(first.response_tokens, draw_batch(work, Place(*other)).response_tokens)
    wider = work.model_validate({**work.model_dump(), "environment_s": 3.0})
    assert np.array_equal(first.response_tokens, draw_batch(wider, Place(5, 2, 1)).response_tokens)


def test_groups_are_contiguous_and_the_generated_factor_counts() -> None:
    batch = draw_batch(workload({"kind": "constant", "tokens": 5}, generated_batch_factor=1.5), Place(0, 0, 0))
    assert batch.samples == 384 * 16
    assert np.array_equal(batch.group, np.repeat(np.arange(384), 16))


def test_varying_prompts_share_one_length_in_a_group_and_leave_room() -> None:
    work = workload(
        {"kind": "lognormal", "mean_tokens": 2500.0},
        prompt_tokens={"kind": "lognormal", "mean_tokens": 3000.0, "log_sigma": 1.0},
    )
    batches = [draw_batch(work, Place(0, 0, r)) for r in range(40)]
    by_group = batches[0].prompt_tokens.reshape(-1, 16)
    assert np.all(by_group == by_group[:, :1])
    assert max(b.total_tokens.max() for b in batches) <= 8192
    assert min(b.response_tokens.min() for b in batches) >= 1
    drawn = np.array([b.response_tokens.mean() for b in batches])
    assert abs(drawn.mean() - 2500) <= 4 * drawn.std() / math.sqrt(drawn.size) + 10


def test_quantiles_and_scaling_to_a_mean() -> None:
    shape = {"kind": "quantiles", "quantiles": [0, 0.5, 1], "tokens": [100, 200, 600]}
    drawn = means(workload(shape))
    assert drawn.mean() == pytest.approx(275, rel=0.02)
    scaled = means(workload({**shape, "mean_tokens": 4000.0}))
    assert abs(scaled.mean() - 4000) <= 3.5 * scaled.std() / math.sqrt(scaled.size)


@pytest.mark.parametrize(
    "shape",
    [
        {"kind": "lognormal", "mean_tokens": 8085.0},
        {"kind": "quantiles", "quantiles": [0, 1], "tokens": [1, 9], "mean_tokens": 9000.0},
    ],
)
def test_mean_at_the_cap_is_an_input_error(shape: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"workload\.response_tokens\.mean_tokens must be below 8085"):
        draw_batch(workload(shape), Place(0, 0, 0))


FILES = {
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 70, "output_length": 7, "hash_ids": [0]}\n' * 3,
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,70,7\n",
    "plain.csv": "# lengths\nanything\n7\n7\n",
    "bare.csv": "7\n7\n",
    "named.csv": "prompt_tokens,tokens_out\n70,7\n",
}


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        draw_batch(workload({"kind": "trace", "path": str(path)}), Place(0, 0, 0))
    assert "bad.csv" in str(error.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not found"):
        draw_batch(workload({"kind": "trace", "path": "nowhere.csv"}), Place(0, 0, 0))
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="is not a text file"):
        draw_batch(workload({"kind": "trace", "path": str(binary)}), Place(0, 0, 0))


def test_first_token_comes_from_the_prefill() -> None:
    batch = draw_batch(workload({"kind": "lognormal", "mean_tokens": 900.0}), Place(0, 0, 0))
    plain = draw_iterations(batch, Acceptance(np.zeros(0)), Place(0, 0, 0))
    assert np.array_equal(plain, batch.response_tokens - 1)
    drafted = draw_iterations(batch, Acceptance(np.array([0.8, 0.6])), Place(0, 0, 0))
    assert (batch.response_tokens - 1).sum() / drafted.sum() == pytest.approx(2.4, rel=0.01)


def test_a_file_without_a_header_keeps_its_first_value(tmp_path: Path) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("5,50\n6,60\n")
    quantiles, tokens = read_lengths(str(path), "2", "response")
    assert tokens.tolist() == [50, 50, 60, 60] and quantiles.size == 4
    with pytest.raises(InputError, match="column to one of: 1, 2"):
        read_lengths(str(path), None, "response")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("prompt_id,output_tokens\n1,5\n", "prompt_id"),
        ('{"output_length": 5, "hash_ids": [1]}\n', "hash_ids"),
        ("output_tokens\n5\n", ""),
        ("5\n", ""),
    ],
)
def test_prompt_ids_of_a_file_are_not_used(tmp_path: Path, text: str, ids: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    assert ignored_ids(str(path)) == ids
