"""The script of a GPU session: every part in the order of value, within the time, and one that fails stops no other."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_session"
PARTS = ["bench.losslessness", "bench.loop --measure", "bench.loop --settings", "bench run"]


@pytest.mark.parametrize("code", [0, 3])
def test_all_parts_run_in_order_whatever_one_of_them_comes_to(tmp_path: Path, code: int) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\nexit {code}\n', encoding="utf-8")
    python.chmod(0o755)
    done = subprocess.run(
        [SCRIPT, "cases.json", "settings.json", tmp_path / "out", "100"],
        env={"PYTHON": str(python), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("-m")]
    assert [any(part in line for line in said) for part in PARTS] == [True] * len(PARTS)
    assert [line.split()[1] for line in said] == ["bench.losslessness", "bench.loop", "bench.loop", "bench"]
    # The last part ends by itself before the session does.
    budget = int(said[-1].split("--budget ")[1].split()[0])
    assert 60 <= budget < 100
    log = (tmp_path / "out" / "session.log").read_text()
    assert log.count(f"exit {code} ") >= len(PARTS)
    assert done.stdout.count("== ") == len(PARTS) + 1
