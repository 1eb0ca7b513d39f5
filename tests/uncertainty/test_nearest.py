"""The measured runs nearest to a scenario: what they differ in, and in which order."""

from pathlib import Path

import numpy as np
import pytest

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.uncertainty import features, nearest
from rlsim.projection.uncertainty.evidence import Evidence, EvidenceTable
from rlsim.projection.uncertainty.features import FEATURES, Coded, differences


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


def test_the_run_of_a_scenario_is_nearest_to_it_and_names_differ_before_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = load_scenario("quickstart")
    others = {"twice": vary(scenario, "workload.prompts_per_step=128"), "model": vary(scenario, "model=qwen3-8b")}
    others["both"] = vary(others["model"], "workload.prompts_per_step=256")
    rows = [Evidence("step", name, 0.1, {}, {}, features.about(one, "step")) for name, one in others.items()]
    rows.append(Evidence("step", "own", 0.1, {}, {}, features.about(scenario, "step")))
    path = tmp_path / "evidence.npz"
    path.write_bytes(EvidenceTable(tuple(rows), (), {}, {}).to_bytes())
    monkeypatch.setattr(nearest, "evidence_path", lambda: path)
    found = nearest.nearest(scenario, "step", 4)
    assert [run.id for run in found] == ["own", "twice", "model", "both"]
    assert [[one.feature for one in run.differences] for run in found] == [
        [], ["samples of a step"], ["model"], ["model", "samples of a step"]
    ]  # fmt: skip
