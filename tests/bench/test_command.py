"""The measuring program: runs in a folder without rlsim, and says in one line what is missing."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import programs
import pytest

import bench
from bench import BenchError
from bench.cases import CaseList, read_cases, write_cases
from bench.measurements import read_measurements

EMPTY = {"schema": "rlsim.cases/1", "name": "x", "budget_s": 1, "target_spread": 0.1, "models": {}, "cases": []}
run = partial(programs.run, module="bench")


@pytest.fixture
def carried(tmp_path: Path, tiny: CaseList) -> Path:
    """A folder that holds bench/ and a list of a few cases, and nothing else."""
    shutil.copytree(Path(bench.__file__).parent, tmp_path / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    few = [case for case in tiny.cases if case.op in ("launch_eager", "rms_norm", "speculative_step")]
    write_cases(tmp_path / "cases.json", replace(tiny, cases=few))
    return tmp_path


def test_the_folder_measures_alone_and_without_torch_says_so(carried: Path) -> None:
    done = run(carried, ["torch"], "run", carried / "cases.json", "--device", "cpu", "--out", carried / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: measuring needs torch")
    assert len(done.stderr.splitlines()) == 1
    assert not (carried / "out").exists()
    options = ["run", carried / "cases.json", "--device", "cpu", "--out", carried / "out"]
    done = run(carried, programs.NOT_ON_THE_MEASURED_MACHINE, *options)
    assert (done.returncode, done.stderr) == (0, "")
    measured = read_measurements(carried / "out" / "measurements.json")
    assert [record.case for record in measured.of()] == read_cases(carried / "cases.json").cases
    assert measured.models["tiny"].hidden == 256


@pytest.mark.parametrize(
    ("device", "out", "told"),
    [("npu", ".", "error: unknown device 'npu'; use cpu, cuda or cuda:N\n"), ("cpu", "cases.json", "cannot write")],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(carried: Path, device: str, out: str, told: str) -> None:
    done = run(carried, [], "run", carried / "cases.json", "--device", device, "--out", carried / out)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_former_spelling_names_the_new_one(carried: Path) -> None:
    done = run(carried, ["torch"], "--cases", carried / "cases.json", "--device", "cuda", "--out", carried / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --cases is gone: python -m bench run cases.json --out DIR [--device DEVICE]\n"
    done = run(carried, [], "run", carried / "cases.json", "--out", carried / "out", "--budget", "-1")
    assert done.returncode == 2 and "must be a positive number of seconds" in done.stderr


def test_a_budget_ends_a_call_with_exit_code_0_and_the_same_command_continues(carried: Path) -> None:
    options = ["run", carried / "cases.json", "--device", "cpu", "--out", carried / "out"]
    done = run(carried, [], *options, "--budget", "0.001")
    assert (done.returncode, done.stderr) == (0, "")
    few = read_measurements(carried / "out" / "measurements.json")
    wanted = read_cases(carried / "cases.json").cases
    assert (len(few.records), few.missing) == (1, len(wanted) - 1)
    left = f"{few.missing} cases are left after the budget of 0.001 s; the same command continues with them"
    assert left in done.stdout
    done = run(carried, [], *options)
    assert done.returncode == 0 and "are left" not in done.stdout
    whole = read_measurements(carried / "out" / "measurements.json")
    assert ([record.case for record in whole.records], whole.missing) == (wanted, 0)


@pytest.mark.parametrize(("content", "message"), [
    (None, "cannot read"),
    ("{", "is no JSON"),
    ("{}", "no list of cases"),
    ("[" * 100_000, "is no JSON"),
    (json.dumps({"schema": "rlsim.cases/1", "name": "x"}), "is damaged"),
    (json.dumps({**EMPTY, "cases": [{"op": "gemm", "params": {}, "flops": "many"}]}), "flops is 'many'"),
    (json.dumps({**EMPTY, "cases": [{"op": "gemm", "params": {}, "bytes": float("nan")}]}), "bytes is 'nan'"),
    (json.dumps({**EMPTY, "models": {"m": {"hidden": 8}}}), "is damaged"),
])  # fmt: skip
def test_a_list_of_cases_that_is_none_is_one_message(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "cases.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BenchError, match=message):
        read_cases(path)


def test_a_device_file_is_not_read() -> None:
    with pytest.raises(BenchError, match="no regular file"):
        read_cases(Path("/dev/zero"))
