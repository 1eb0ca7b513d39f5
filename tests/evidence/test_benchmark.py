"""Scores of anybody's predictions: by hand on rows that are known, and the same as a validation's."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from rlsim import InputError
from rlsim.evidence.published import published_table
from rlsim.evidence.shown.benchmark import BASELINES, baseline, crps, regret, score
from rlsim.results.validation import ComparedRow, Score

STEPS = published_table("rl_steps.csv")


@pytest.fixture
def rows() -> list[dict[str, str]]:
    with STEPS.open() as file:
        return [row for row in csv.DictReader(file) if row["total_step_time_s"]][:10]


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["id,predicted_s,low_s,high_s", *lines]))
    return path


def test_a_score_counts_what_it_says(tmp_path: Path, rows, run) -> None:
    lines = []
    for number, row in enumerate(rows):
        time = float(row["total_step_time_s"])
        lines.append(f"{row['id']},{time * (1 + number / 100)},{time * (0.9 if number else 2)},{time * 3}")
    file = written(tmp_path / "predictions.csv", [*lines, "nobody,1,,"])
    code, out, _ = run("benchmark", "score", file, "--json")
    found = json.loads(out)
    assert (code, found["rows"]) == (0, 10)
    assert found["median_abs_error"] == pytest.approx(0.045) and found["bias"] == pytest.approx(0.045)
    assert found["coverage"] == pytest.approx(0.9)
    assert "coverage 90% of 90 % intervals" in run("benchmark", "score", file)[1]
    compared = [
        ComparedRow(id=row["id"], measured=float(row["total_step_time_s"]), predicted=float(line.split(",")[1]))
        for row, line in zip(rows, lines, strict=True)
    ]  # fmt: skip
    # The same quantiles as those of the accuracy page.
    assert found["p90_abs_error"] == pytest.approx(Score.of(compared).p90_abs_error)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_scored_as_anything_else(tmp_path: Path, name: str, run) -> None:
    code, _, _ = run("benchmark", "baseline", name, tmp_path / "baseline.csv")
    found = score(tmp_path / "baseline.csv", STEPS)
    # Nothing is fitted and nothing waits: such a step is too short.
    assert code == 0 and found.rows >= 60 and found.bias < 0 and found.coverage is None


def test_the_operators_know_what_the_roofline_does_not(rows) -> None:
    """That a batch four times as large takes longer than one that only reads the weights."""
    longer = {**rows[0], "rollout_batch": str(4 * int(rows[0]["rollout_batch"]))}
    generated = {**rows[0], "train_gpus": "1000000000"}
    assert BASELINES["operators"](generated) > BASELINES["by-hand"](generated)
    for predict in BASELINES.values():
        assert predict(longer) > predict(rows[0])


def test_what_cannot_be_scored_is_one_message(tmp_path: Path, rows) -> None:
    for lines, message in (
        ([], "rows|no row"),
        (["nobody,1,,"], "no row has an id"),
        ([f"{rows[0]['id']},-1,,"], "above 0"),
    ):
        with pytest.raises(InputError, match=message):
            score(written(tmp_path / "predictions.csv", lines), STEPS)
    with pytest.raises(InputError, match="by-hand, operators"):
        baseline("nothing", STEPS)


def test_the_score_of_a_distribution_is_that_of_many_draws() -> None:
    draws = np.random.default_rng(0).normal(0.0, 0.3, 4000)
    for error in (0.0, 0.2, -0.9):
        sampled = np.abs(draws - error).mean() - 0.5 * np.abs(draws[:, None] - draws[None, :]).mean()
        assert crps(error, 0.3) == pytest.approx(sampled, abs=0.01)
        assert crps(error, 0.0) == abs(error)


def test_regret_is_of_what_looks_fastest() -> None:
    right = [({"model": "a"}, 10.0, 1.0), ({"model": "a"}, 20.0, 2.0), ({"model": "b"}, 5.0, 9.0)]
    assert regret(right) == (0.0, 1)
    assert regret([right[0], ({"model": "a"}, 15.0, 0.5)]) == (0.5, 1)
