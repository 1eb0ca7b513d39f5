"""Distances between runs: what they are fitted to, what they say of a run and itself, which layouts are near."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.uncertainty import features, nearest, variogram
from rlsim.projection.uncertainty.evidence import Evidence, EvidenceTable, load_evidence
from rlsim.projection.uncertainty.features import FEATURES, Coded, differences


def made_up(rows: int, device_spread: float, doubling_spread: float) -> list[Evidence]:
    """Transfers whose errors differ by device and walk at random from one doubling of GPUs to the next."""
    generator = np.random.default_rng(7)
    by_device = generator.normal(0, device_spread, 60)
    walk = np.cumsum(generator.normal(0, doubling_spread, 8))
    out = []
    for number in range(rows):
        device, doublings = int(generator.integers(60)), int(generator.integers(8))
        error = by_device[device] + walk[doublings] + generator.normal(0, 0.02)
        about = {"framework": "f", "method": "m", "model": "x", "device": f"d{device}", "gpus": 2.0**doublings}
        out.append(Evidence("transfer", f"row {number}", float(error), {}, {}, about))
    return out


def test_weights_are_those_that_the_errors_were_drawn_with() -> None:
    weights = variogram.fit_distances(made_up(600, 0.20, 0.0))["transfer"]
    assert np.sqrt(weights["device"]) == pytest.approx(np.sqrt(2) * 0.20, rel=0.3)
    assert np.sqrt(weights["gpus"]) < 0.03
    assert np.sqrt(weights[variogram.SAME]) < 0.06
    walked = variogram.fit_distances(made_up(600, 0.0, 0.15))["transfer"]
    assert walked["gpus"] > 5 * weights["gpus"]
    assert np.sqrt(walked["device"]) < 0.05


def test_mistakes_in_a_table_do_not_set_the_weights() -> None:
    rows = made_up(400, 0.20, 0.0)
    wrong = [replace(row, surprise=row.surprise + 1.5) if n % 40 == 0 else row for n, row in enumerate(rows)]
    sound, spoilt = (np.sqrt(variogram.fit_distances(each)["transfer"]["device"]) for each in (rows, wrong))
    assert spoilt == pytest.approx(sound, rel=0.25)


def test_what_no_pair_differs_in_keeps_its_prior() -> None:
    weights = variogram.fit_distances(made_up(100, 0.2, 0.0))
    assert weights["transfer"]["method"] == pytest.approx(variogram.NAME_PRIOR, rel=1e-3)
    assert weights["step"]["samples"] == variogram.DOUBLING_PRIOR


def test_releases_of_two_engines_say_nothing_of_each_other() -> None:
    runs = [
        {"engine": engine, "release": release, "batch": batch}
        for engine, release, batch in (("vllm", "0.11.0", 8.0), ("vllm", "0.12.0", 8.0), ("sglang", "0.5.9", 32.0))
    ]
    values = Coded.of("iteration", runs).values
    names = [one.name for one in FEATURES["iteration"]]
    releases = differences("iteration", values[0], values[1])
    engines = differences("iteration", values[0], values[2])
    assert {names[i]: releases[i] for i in np.flatnonzero(releases)} == {"release": 1.0}
    assert {names[i]: engines[i] for i in np.flatnonzero(engines)} == {"engine": 1.0, "batch": 2.0}


def test_a_measured_step_is_near_itself_and_a_far_layout_is_not() -> None:
    measured = [row for row in load_evidence().rows if row.kind == "step" and row.about["model"] == "Llama-3.1-8B"]
    about, scenario = measured[0].about, load_scenario("quickstart")
    assert nearest.distance(scenario, "step") > 0
    runs = nearest._read(*nearest._version())["step"]
    assert runs.distances(about).min() == 0.0
    far = vary(
        scenario,
        *("model=qwen3-32b", "hardware=b300_sxm", "cluster.num_gpus=8192", "engine.tensor_parallel=8"),
        *("workload.prompts_per_step=8192", "trainer.tensor_parallel=8", "speculation.method=none"),
    )
    assert nearest.distance(far, "step") > nearest.distance(scenario, "step")
    assert not nearest.near_evidence(far)


def test_a_scenario_that_was_measured_is_near(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scenario = load_scenario("quickstart")
    own = Evidence("step", "own", 0.1, {}, {}, features.about(scenario, "step"))
    table = EvidenceTable((own, *made_up(20, 0.1, 0.0)), (), {}, {})
    path = tmp_path / "evidence.npz"
    path.write_bytes(variogram.with_distances(table).to_bytes())
    monkeypatch.setattr(nearest, "evidence_path", lambda: path)
    assert nearest.near_evidence(scenario)
    (row, *_) = nearest.nearest(scenario, "step")
    assert (row.id, row.distance, row.differences) == ("own", 0.0, ())
    assert not nearest.near_evidence(vary(scenario, "model=qwen3-32b", "hardware=b200_sxm", "cluster.num_gpus=4096"))


def test_nearest_rows_say_what_differs() -> None:
    scenario = load_scenario("quickstart")
    for kind in features.HALVES:
        found = nearest.nearest(scenario, kind, 3)
        assert [one.distance for one in found] == sorted(one.distance for one in found)
        for one in found:
            assert one.distance**2 == pytest.approx(sum(each.squared for each in one.differences), abs=1e-12)
            assert all(each.asked != each.measured for each in one.differences if each.feature == "model")
