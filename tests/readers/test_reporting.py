"""Records that a training job writes of itself: what watch reads back, and that the job is never disturbed."""

import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import rlsim
from rlsim.readers.logs.reading import read_log
from rlsim.readers.logs.reporting import WHERE


class Tensor:
    """Of one element, as torch's."""

    def __float__(self) -> float:
        return 12.5


def test_what_a_framework_logs_is_read_back_to_the_digit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.jsonl"
    monkeypatch.setenv(WHERE, str(file))
    for step in (1, 2):
        metrics = {"timing_s/gen": Tensor(), "timing_s/step": 30.25 + step, "critic/note": "text", "flag": True,
                   "response_length/mean": 700, "actor/loss": float("nan"), "table": [1, 2]}  # fmt: skip
        assert rlsim.live_report(metrics, step)
    log = read_log(file)
    assert log.framework == "verl" and log.steps == (1, 2)
    assert log.values["generation"].tolist() == [12.5, 12.5] and log.values["step"].tolist() == [31.25, 32.25]
    assert "flag" not in file.read_text() and "table" not in file.read_text()


def test_records_of_one_step_add_up_under_a_prefix(tmp_path: Path) -> None:
    file = tmp_path / "nemo.jsonl"
    for step in (1, 2):
        rlsim.live_report({"total_step_time": 60.0, "policy_training": 20.0}, step, file, prefix="timing/train")
        rlsim.live_report({"train": {"mean_gen_tokens_per_sample": 900.0}}, step, file)
    log = read_log(file)
    assert log.values["step"].tolist() == [60.0, 60.0] and log.values["train"].tolist() == [20.0, 20.0]


def test_a_job_goes_on_where_nothing_can_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = tmp_path / "missing" / "job.jsonl"
    with caplog.at_level(logging.WARNING, "rlsim"):
        assert [rlsim.live_report({"step_time": 1.0}, 1, nowhere) for _ in range(3)] == [False] * 3
    assert len(caplog.records) == 1 and not rlsim.live_report({"note": "text"}, 1, tmp_path / "empty.jsonl")
    assert not (tmp_path / "empty.jsonl").exists()


def test_a_job_loads_nothing_heavy() -> None:
    heavy = ("numpy", "pydantic", "yaml", "msgspec", "pandas", "typer")
    code = f"import sys, rlsim; rlsim.live_report; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_transformers_itself_calls_the_callback(tmp_path: Path) -> None:
    from transformers import TrainerControl, TrainerState
    from transformers.trainer_callback import CallbackHandler

    file = tmp_path / "trl.jsonl"
    callback = rlsim.trainer_callback(file)
    handler = CallbackHandler([callback], None, None, None, None)
    args, state, control = SimpleNamespace(), TrainerState(global_step=3), TrainerControl()
    handler.on_step_begin(args, state, control)
    handler.on_step_end(args, state, control)
    handler.on_log(args, state, control, {"loss": 0.5, "completions/mean_length": 300.0})
    log = read_log(file)
    assert log.steps == (3,) and log.values["step"][0] > 0


def test_a_trainers_callback_reports_its_logs_on_the_first_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = ModuleType("transformers")
    stand_in.TrainerCallback = type("TrainerCallback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    file = tmp_path / "trl.jsonl"
    callback = rlsim.trainer_callback(file)
    assert isinstance(callback, stand_in.TrainerCallback)
    clock = iter([0.0, 3.0, 10.0, 15.0, 20.0, 21.0])
    monkeypatch.setattr("rlsim.readers.logs.reporting.time.perf_counter", lambda: next(clock))

    def steps(count: int) -> None:
        for _ in range(count):
            callback.on_step_begin(None, None, None)
            callback.on_step_end(None, None, None)

    steps(2)
    callback.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=2), None, logs={"loss": 0.5})
    steps(1)
    logged = {"step_time": 9.0, "completions/mean_length": 300.0}
    callback.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=3), None, logs=logged)
    callback.on_log(None, SimpleNamespace(is_world_process_zero=False, global_step=4), None, logs=logged)
    log = read_log(file)
    assert log.framework.startswith("trl") and log.steps == (2, 3)
    assert log.values["step"].tolist() == [4.0, 9.0]  # the mean of 3 and 5 s, then what the trainer itself logs
