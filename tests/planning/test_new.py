"""rlsim new."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project

Run = Callable[..., tuple[int, str, str]]
GIVEN = {
    "--model": "Qwen/Qwen3-8B", "--hardware": "h100_sxm", "--gpus": "8", "--batch": "8x4", "--response-tokens": "300"
}  # fmt: skip


def words(**changed: str) -> list[str]:
    given = GIVEN | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return [word for pair in given.items() for word in pair]


def test_a_new_scenario_loads_projects_and_states_what_it_assumes(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    code, out, err = run("new", str(target), *words())
    assert (code, err) == (0, "") and "next: rlsim project" in out
    scenario = load_scenario(target)
    assert (scenario.name, scenario.cluster.num_gpus, scenario.workload.prompts_per_step) == ("mine", 8, 8)
    assert scenario.workload.max_sequence_tokens == 2048
    assert len(scenario.assumptions) == 3 and all(one.keys for one in scenario.assumptions)
    assert project(load_scenario(target, ["simulation.replications=1"])).candidate.step_s.mean > 0


def test_a_model_that_one_gpu_cannot_hold_gets_a_layout(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "large.yaml"
    assert run("new", str(target), *words(model="qwen2.5-72b", gpus="32"))[0] == 0
    scenario = load_scenario(target, ["simulation.replications=1"])
    assert scenario.engine.tensor_parallel > 1
    assert project(scenario).candidate.step_s.mean > 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": "qwen3-9b"}, "unknown model 'qwen3-9b'"),
        ({"hardware": "h10"}, "unknown hardware profile"),
        ({"gpus": "0"}, "--gpus 0: must be a whole number"),
        ({"batch": "64"}, "--batch 64: must be PROMPTSxSAMPLES"),
        ({"response_tokens": "many"}, "--response-tokens many"),
        ({"model": "llama-3.1-405b", "gpus": "2"}, "infeasible: no plan fits"),
    ],
)
def test_bad_answers_leave_nothing(run: Run, tmp_path: Path, changed: dict[str, str], told: str) -> None:
    code, out, err = run("new", str(tmp_path / "mine.yaml"), *words(**changed))
    assert (code, out) == (2, "") and told in err
    assert list(tmp_path.iterdir()) == []


def test_existing_files_stay_unless_replaced(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    target.write_text("mine\n")
    code, _, err = run("new", str(target), *words())
    assert code == 2 and "exists already; --overwrite" in err and target.read_text() == "mine\n"
    assert run("new", str(target), *words(), "--overwrite")[0] == 0


def test_it_asks_on_terminals_alone_and_again_after_a_bad_answer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "mine.yaml"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, _, err = run("new", str(target), "--model", "qwen3-8b")
    assert code == 2 and "needs --hardware, --gpus, --batch, --response-tokens" in err
    answers = iter(["qwen3-9b", "qwen3-8b", "h100_sxm", "8", "8x4", "300"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: next(answers))
    code, _, err = run("new", str(target))
    assert code == 0 and "unknown model 'qwen3-9b'" in err and target.exists()
