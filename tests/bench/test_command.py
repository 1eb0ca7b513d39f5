"""The measuring program: runs with torch, numpy and the standard library only, and says in one line what is missing."""

import subprocess
import sys
from pathlib import Path

BLOCK = "import sys\nfor name in {names!r}: sys.modules[name] = None\n"
ENTRY = "from rlsim.calibration.measure import main\nsys.exit(main({arguments!r}))"
NOT_ON_THE_MEASURED_MACHINE = ["pydantic", "simpy", "scipy", "pandas", "pyarrow", "yaml", "matplotlib", "typer"]


def run(blocked: list[str], code: str) -> subprocess.CompletedProcess[str]:
    script = BLOCK.format(names=blocked) + code
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_everything_that_measures_imports_without_the_rest_of_rlsims_dependencies() -> None:
    code = "import rlsim.calibration.measure, bench.run, rlsim.calibration.selfcheck"
    done = run(NOT_ON_THE_MEASURED_MACHINE, code)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_torch_one_message_and_exit_code_2(tmp_path: Path) -> None:
    done = run(["torch"], ENTRY.format(arguments=["--device", "cpu", "--out", str(tmp_path / "out")]))
    assert done.returncode == 2
    assert done.stderr.startswith("error: measuring needs torch")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_unknown_device_is_exit_code_2(tmp_path: Path) -> None:
    done = run([], ENTRY.format(arguments=["--device", "npu", "--out", str(tmp_path)]))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown device 'npu'; use cpu, cuda or cuda:N\n"


def test_a_folder_that_cannot_be_written_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run([], ENTRY.format(arguments=["--device", "cpu", "--quick", "--out", str(tmp_path / "file")]))
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert len(done.stderr.splitlines()) == 1
