"""rlsim headroom: a ladder that only goes down, whose rungs add up, and that ends at the roofline."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from rlsim.attribution.headroom import headroom
from rlsim.cli.main import main
from rlsim.costs.efficiency import peak_flops, update_flops
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.report.text.attribution import render_headroom
from rlsim.results.check import Headroom

NAMES = ["as it is", "no host time", "best kernels", "perfect overlap", "no straggler tail", "roofline"]


@pytest.mark.parametrize("name", ["quickstart", "qwen235b_512", "qwen8b_async_lag1", "verl_dapo_7b"])
def test_the_ladder_only_goes_down(name: str) -> None:
    found = headroom(load_scenario(name))
    assert [one.name for one in found.rungs] == NAMES
    steps = [one.step_s for one in found.rungs]
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(steps))
    assert steps[0] - sum(one.saved_s for one in found.rungs) == pytest.approx(steps[-1])
    assert steps[-1] < 0.6 * steps[0]


def test_the_first_rung_is_what_project_answers() -> None:
    scenario = load_scenario("quickstart")
    assert headroom(scenario).step_s == pytest.approx(project(scenario).candidate.step_s.mean)


def test_the_roofline_is_work_over_peak() -> None:
    """With one length and no drafts the last rung's passes take their FLOP at the datasheet's rate."""
    scenario = load_scenario(
        "quickstart", ["k=0", "workload.response_tokens={kind: constant, tokens: 800}", "simulation.replications=1"]
    )
    last = headroom(scenario).rungs[-1]
    samples = scenario.workload.samples_per_step
    work = update_flops(scenario, np.full(samples, 907.0)).model * (1 + 2 / 3)  # two passes of log-probs
    passes_s = work / scenario.cluster.num_gpus / peak_flops(scenario, training=True)
    assert last.step_s - last.generation_s == pytest.approx(passes_s, rel=0.02)


def test_no_host_leaves_what_a_host_does_not_do() -> None:
    slow = vary(load_scenario("quickstart"), {"engine.host_iteration_s": 0.05})
    busy, plain = headroom(slow), headroom(load_scenario("quickstart"))
    assert busy.rungs[1].saved_s > plain.rungs[1].saved_s + 20
    assert busy.rungs[1].step_s == pytest.approx(plain.rungs[1].step_s, rel=0.01)


def test_a_layout_that_is_no_better_stays_out() -> None:
    scenario = load_scenario("quickstart")
    worse = vary(scenario, "engine.tensor_parallel=8")
    found = headroom(scenario, (worse, ("engine.tensor_parallel=8",)))
    assert found.rungs[1].name == "best layout"
    assert found.rungs[1].saved_s == 0
    assert not found.rungs[1].changes


def test_where_a_published_projection_stands() -> None:
    """arXiv 2604.26779 projects 2.72x for the rollout and 1.70x for the step: docs/headroom.md."""
    plain, drafted = (headroom(load_scenario("qwen235b_512", words)) for words in (["k=0"], []))
    rollout = [
        before.generation_s / after.generation_s for before, after in zip(plain.rungs, drafted.rungs, strict=True)
    ]
    step = [before.step_s / after.step_s for before, after in zip(plain.rungs, drafted.rungs, strict=True)]
    assert step[0] == pytest.approx(1.70, rel=0.03)
    assert rollout[0] < 2.72 < rollout[-1]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        main(["headroom", "quickstart", "simulation.replications=1", "--plan", "--json", "--out", str(out)])
    assert not end.value.code
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "rlsim.headroom/1"
    assert told["rungs"][1]["name"] == "best layout"
    found = Headroom.read(out / "headroom.json")
    assert found.as_dict() == told
    assert (out / "headroom.png").stat().st_size > 5000
    text = render_headroom(found)
    assert "nobody can" in text
    assert max(map(len, text.splitlines())) <= 100
