"""rlsim import and rlsim export as programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from corpus_files import FOLDER

from rlsim.cli import main

BASE = str(FOLDER / "nemo-rl" / "base.yaml")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(argv)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_an_import_writes_the_scenario_and_tells_the_accounting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "scenario.yaml"
    code, printed, told = run(capsys, "import", "nemo-rl", BASE, "--hardware", "gb200_nvl72", "-o", str(out))
    assert code == 0 and printed.startswith("written: ")
    assert "0 not understood" in told
    assert "hardware: gb200_nvl72" in out.read_text()
    assert [path.name for path in out.parent.iterdir()] == ["scenario.yaml"]


def test_an_import_prints_the_same_bytes_twice_and_json_with_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "import", "nemo-rl", BASE) == run(capsys, "import", "nemo-rl", BASE)
    code, printed, _ = run(capsys, "import", "nemo-rl", BASE, "~logger", "--json")
    answer = json.loads(printed)
    assert code == 0 and answer["accounting"]["counts"]["used"] > 40
    assert len(answer["accounting"]["keys"]) == sum(answer["accounting"]["counts"].values())


def test_a_wrong_import_is_one_message_and_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "scenario.yaml"
    code, printed, told = run(capsys, "import", "nemo-rl", BASE, "cluster.num_node=3", "-o", str(out))
    assert (code, printed) == (2, "") and told.count("\n") == 1
    assert "base.yaml" in told and "cluster.num_node" in told and "cluster.num_nodes" in told
    assert not out.exists() and list(tmp_path.iterdir()) == []
    assert run(capsys, "import", "verl", BASE, "--config-name", "harm")[0] == 2


def test_an_export_prints_overrides_and_writes_both_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    run(capsys, "import", "nemo-rl", BASE, "-o", str(scenario))
    code, printed, told = run(
        capsys, "export", str(scenario), "--to", "nemo-rl", "--config", BASE, "--set", "cluster.num_gpus=32",
        "-o", str(tmp_path / "out"),
    )  # fmt: skip
    assert (code, printed, told) == (0, "cluster.num_nodes=4\n", "")
    assert (tmp_path / "out" / "overrides.txt").read_text() == printed
    again = tmp_path / "again.yaml"
    run(capsys, "import", "nemo-rl", str(tmp_path / "out" / "config.yaml"), "-o", str(again))
    assert "num_gpus: 32" in again.read_text()


def test_projecting_never_imports_omegaconf() -> None:
    code = "import sys, rlsim.cli, rlsim.projection.project; sys.exit('omegaconf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
