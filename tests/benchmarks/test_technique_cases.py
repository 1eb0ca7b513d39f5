"""Published speed-ups of techniques beside their predictions: what the benchmark says of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "techniques.py"


@pytest.fixture(scope="module")
def benchmark(script):
    return script("benchmarks/techniques.py")


def case(benchmark, **changed):
    about = {"name": "a", "technique": "drafts", "source": "somebody", "of": "step", "mean_tokens": 1000.0}
    numbers = {"published": (2.0, 2.5), "predicted": 1.8, "low": 1.5, "high": 2.1}
    return benchmark.Case(**{**about, **numbers, "fitted": True, "told": True, "given": "", **changed})


def test_published_ratios_are_met():
    run = subprocess.run([sys.executable, SCRIPT, "--json"], check=True, capture_output=True, text=True)
    found = json.loads(run.stdout)
    scores = found["summary"]
    assert scores["cases"] == sum(one["told"] for one in found["cases"]) >= 11
    assert scores["median_abs_error"] < 0.12
    assert scores["right_sign"] == 1.0
    assert scores["within_20_percent"] > 0.8
    assert scores["inside_90_percent"] >= 0.8
    fitted = {one["name"] for one in found["cases"] if one["fitted"]}
    assert {"verl_one_step_off", "verl_async_64", "areal_7b"} <= fitted


def test_a_range_is_missed_by_its_nearer_end(benchmark):
    assert case(benchmark).error == pytest.approx(-0.1)
    assert case(benchmark, predicted=2.2).error == 0
    assert case(benchmark, predicted=3.0).error == pytest.approx(0.2)
    assert case(benchmark).inside
    assert not case(benchmark, high=1.9).inside


def test_guessed_runs_do_not_count(benchmark):
    right, wrong = case(benchmark, predicted=2.2), case(benchmark, predicted=0.5, told=False)
    assert benchmark.summary([right, wrong]) == {
        "cases": 1, "median_abs_error": 0, "within_20_percent": 1, "right_sign": 1, "inside_90_percent": 1,
    }  # fmt: skip
    page = benchmark.page([right, wrong])
    before, _, after = page.partition("do not state enough")
    assert "2.20" in before
    assert "0.50" in after
