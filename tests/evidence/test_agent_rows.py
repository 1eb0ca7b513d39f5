"""Measured runs of agents: which scenario describes them, medians and spreads, and what is fitted to them."""

import csv
from pathlib import Path
from typing import Any

import pytest

from rlsim.evidence import phases as agent_rows
from rlsim.evidence.compare import validate_table
from rlsim.evidence.phases import SUMMARISED, agent_scenario, spread
from rlsim.loading.scenario import load_scenario, vary

CELLS = {
    "model": "Qwen/Qwen3-8B", "gpu": "GB200 NVL72", "num_gpus": "64", "generation_gpus": "48", "max_agent_turns": "4",
    "prompts_per_step": "4", "generations_per_prompt": "4", "gbs_samples": "16", "seed_index": "1", "flag": "",
}  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A scenario of agents that stands for the shipped ones."""
    scenario = load_scenario(
        "qwen8b_async_lag1",
        [
            "name=small_agents",
            "workload.agent={turns: {kind: lognormal, mean_turns: 2.5}, max_turns: 4, "
            "environment_s: {kind: quantiles, quantiles: [0, 0.8, 0.9, 1], seconds: [10, 20, 40, 60]}, "
            "environment_group_correlation: 0.9}",
            "workload.response_tokens={kind: lognormal, mean_tokens: 60}",
            "speculation={method: none}",
            "trainer.global_batch_samples=null",
            "simulation.steps=12",
            "simulation.replications=1",
        ],
    )
    monkeypatch.setattr(agent_rows, "_shipped", lambda: (scenario,))
    return scenario


def table_of(path: Path, steps: list[dict[str, float]], **changes: str) -> Path:
    """A table of measured steps; a flagged one that must not count comes first."""
    rows: list[dict[str, Any]] = [
        {**CELLS, "id": "warm", **dict.fromkeys(SUMMARISED.values(), 9999.0), "flag": "first"}
    ]
    rows += [{**CELLS, "id": f"s{i}", **seconds, **changes} for i, seconds in enumerate(steps)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def simulated_steps(scenario: Any) -> list[dict[str, float]]:
    """The steps of the scenario itself at the batch of CELLS, as if they had been measured."""
    run = agent_rows.simulated_run(vary(scenario, "workload.prompts_per_step=4", "workload.generations_per_prompt=4"))
    return [
        {
            "exposed_generation_time_s": step.phases.exposed_generation_s,
            "policy_training_time_s": step.phases.train_s,
            "weight_sync_time_s": step.phases.refit_s,
            "train_step_time_s": step.seconds,
        }
        for replication in run.steps
        for step in replication
    ]


def test_a_run_is_compared_by_the_medians_and_the_spread_of_its_steps_which_are_no_rows_of_their_own(small, tmp_path):
    """A run that is the simulated one is met exactly; slower steps are seen in the medians alone."""
    steps = simulated_steps(small)
    found = validate_table(table_of(tmp_path / "t.csv", steps), "phases")
    summaries = {row.id.partition(": ")[2]: row for row in found.rows if row.id.startswith("small_agents, batch 16")}
    assert summaries.keys() == {"exposed_generation, median of steps", "exposed_generation, p10 to p90 of steps",
                                "train, median of steps", "refit, median of steps", "step, median of steps",
                                "step, p10 to p90 of steps"}  # fmt: skip
    assert all(row.error == pytest.approx(0.0, abs=1e-9) for row in summaries.values())
    slower = [{name: value + 10.0 for name, value in step.items()} for step in steps]
    moved = validate_table(table_of(tmp_path / "slow.csv", slower), "phases")
    errors = {row.id.partition(": ")[2]: row.error for row in moved.rows if row.id.startswith("small_agents, batch 16")}
    assert errors["step, p10 to p90 of steps"] == pytest.approx(0.0, abs=1e-9)
    assert errors["step, median of steps"] < 0
    reasons = {row.group: row.skipped for row in found.rows if row.id.startswith("s1:")}
    assert "one draw" in str(reasons["exposed_generation"]) and "one draw" in str(reasons["step"])
    assert reasons["train"] is None and reasons["refit"] is None
    assert spread(list(range(101))) == 80.0


@pytest.mark.parametrize("change", [{"num_gpus": "32"}, {"max_agent_turns": "5"}, {"gpu": "h100"}, {"model": "a/b"}])
def test_rows_of_other_agents_have_no_scenario(small, change):
    assert agent_scenario(CELLS, 0) is not None
    assert agent_scenario({**CELLS, **change}, 0) is None
    assert agent_scenario({**CELLS, "max_agent_turns": ""}, 0) is None
