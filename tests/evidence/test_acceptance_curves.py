"""rlsim calibrate --from-curves: processes back from curves made with them; runs of agents beside their scenario."""

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlsim.cli import main
from rlsim.errors import InputError
from rlsim.evidence import phases as agent_rows
from rlsim.evidence.acceptance import fit_curves
from rlsim.evidence.compare import validate_table
from rlsim.evidence.phases import SUMMARISED, agent_scenario, spread
from rlsim.loading.scenario import load_scenario, vary
from rlsim.results.validation import Validation
from rlsim.workload.acceptance import two_parameter_rates

HEAD = "curve_kind,series,setting,x_name,x,y_name,y,unit\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *arguments])
    return int(ended.value.code or 0)


def table(path: Path, *rows: str) -> Path:
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def by_k(name: str, first: float, decay: float) -> list[str]:
    return [
        f"acceptance_by_k,{name},,drafted,{k},mean_acceptance_length,"
        f"{1 + two_parameter_rates(first, decay, k).sum():.6f},tokens"
        for k in range(1, 7)
    ]


def test_processes_come_back_and_stand_as_in_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    positions = [f"acceptance_by_position,own_mtp,,position,{i},rate,{p:.6f},1"
                 for i, p in enumerate(two_parameter_rates(0.9, 0.98, 3), start=1)]  # fmt: skip
    rows = [*by_k("one_eagle3", 0.8, 0.97), *by_k("two_eagle-3", 0.7, 0.97), *positions]
    found = fit_curves(table(tmp_path / "c.csv", *rows))
    assert found.processes["one_eagle3"].first == pytest.approx(0.8, abs=0.002)
    assert found.processes["own_mtp"].decay == pytest.approx(0.98, abs=0.002)
    assert max(fit.worst_tokens for fit in found.processes.values()) < 0.002
    path, out = table(tmp_path / "c.csv", *by_k("some_eagle3", 0.8, 0.97)), tmp_path / "fit.yaml"
    assert run("curves", str(path), "--out", str(out)) == 0
    assert "acceptance over draft length" in capsys.readouterr().out
    section = yaml.safe_load(out.read_text())["acceptance"]["some_eagle3"]["speculation"]
    words = [f"speculation.{key}={value}" for key, value in section.items()]
    assert load_scenario("quickstart", ["speculation.acceptance_length=null", *words]).speculation.first_acceptance
    first = out.read_bytes()
    assert run("curves", str(path), "--out", str(out)) == 0
    assert out.read_bytes() == first


@pytest.mark.parametrize(("rows", "named"), [
    (by_k("a", 0.8, 0.9)[:1], "holds no curve"),
    (["acceptance_by_k,a,,k,2,mean_acceptance_length,3.5,tokens"], "line 2: y must be an acceptance length from 1"),
    (["acceptance_by_k,a,,k,2.5,mean_acceptance_length,2,tokens"], "line 2: x must be a whole number"),
    (["acceptance_by_k,a,,k,2,mean_acceptance_length,many,tokens"], "line 2: y is not a number"),
    (["acceptance_by_k,,,k,2,mean_acceptance_length,2,tokens"], "line 2: series is not given"),
    (["acceptance_by_k,a,,k"], "line 2: .*has 4 cells"),
    (["acceptance_by_position,a,,i,1,rate,1.5,1"], "rate from 0 to 1"),
    (["acceptance_by_position,a,,i,2,rate,0.5,1"], "every position from 1"),
])  # fmt: skip
def test_tables_that_cannot_be_are_named_with_file_and_line(tmp_path: Path, rows: list[str], named: str) -> None:
    path = table(tmp_path / "c.csv", *rows)
    with pytest.raises(InputError, match=named) as error:
        fit_curves(path)
    assert "c.csv" in str(error.value) and "\n" not in str(error.value)


def test_a_missing_column_is_named_other_rows_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.csv"
    path.write_text("curve_kind,serie,x,y_name,y\n")
    assert run("curves", str(path), "--out", str(tmp_path / "out.yaml")) == 2
    assert "series (there is 'serie')" in capsys.readouterr().err
    assert not (tmp_path / "out.yaml").exists()
    other = "draft_drift,run,,training_step,0,generation_time,220,s"
    found = fit_curves(table(path, other, *by_k("a", 0.8, 0.9)))
    assert list(found.processes) == ["a"]
    with path.open() as file:
        assert len(list(csv.reader(file))) == 8


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


SPEEDUP_HEAD = (
    "id,source,model,draft,gpu,tp,engine,engine_version,precision,"
    "batch_or_concurrency,k,acceptance_length,speedup,notes"
)


def _speedups(tmp_path: Path, rows: list[str]) -> Validation:
    path = tmp_path / "speedups.csv"
    path.write_text("\n".join([SPEEDUP_HEAD, *rows]) + "\n")
    return validate_table(path)


def test_a_speedup_grows_with_acceptance_and_what_is_chosen_costs_what_was_measured(tmp_path: Path) -> None:
    common = "x,llama-3.1-8b,EAGLE-3,H200,1,SGLang,0.5.12,bf16,8"
    found = _speedups(tmp_path, [f"a,{common},3,2.0,1.5,", f"b,{common},7,2.0,1.2,", f"c,{common},3,3.0,0.9,"])
    low, deep, high = (row.predicted for row in found.rows)
    assert found.kind == "speculation"
    assert high == pytest.approx(1.5 * low, rel=1e-6) and deep < low
    lengths = found.draft_lengths
    # Chosen is c, which was measured at 0.9 where a was at 1.5; all but c are on their side of 1.
    assert lengths.series == 1 and lengths.right == 0
    assert lengths.regret == pytest.approx(1 - 0.9 / 1.5, abs=1e-6)
    assert (lengths.clear, lengths.right_sign_share) == (3, pytest.approx(2 / 3, abs=1e-6))


@pytest.mark.parametrize(("row", "reason"), [
    ("x,llama-3.1-8b,Medusa,H200,1,vLLM,,bf16,1,3,2.0,1.5,", "draft 'Medusa' is not simulated"),
    ("x,llama-3.1-8b,EAGLE-3,H200,1,SGLang,,bf16,1,9,2.0,1.5,topk=4 num_draft_tokens=6", "must exceed draft_length"),
    ("x,llama-3.1-8b,EAGLE-3,H200,1,torch,,bf16,1,3,2.0,1.5,", "engine 'torch' is not simulated"),
    ("x,llama-3.1-8b,EAGLE-3,H200,1,vLLM,,bf16,many,3,2.0,1.5,", "no number of sequences"),
    ("x,llama-3.1-8b,EAGLE-3,,1,vLLM,,bf16,1,3,2.0,1.5,", "gpu is not given"),
])  # fmt: skip
def test_speedups_that_leave_something_open_are_skipped_with_the_reason(row: str, reason: str, tmp_path: Path) -> None:
    assert reason in str(_speedups(tmp_path, [f"a,{row}"]).rows[0].skipped)
