"""Output that fails: files that cannot be written, full disks, readers that stop listening."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlsim.errors import InputError
from rlsim.outputs import staged_folder

Run = Callable[..., tuple[int, str, str]]

SMALL = """\
name: small
model: qwen3-8b
hardware: h100_sxm
cluster: {num_gpus: 8}
workload:
  prompts_per_step: 4
  generations_per_prompt: 4
  response_tokens: {kind: lognormal, mean_tokens: 200}
  max_sequence_tokens: 1024
speculation: {method: eagle3, draft_length: 3, acceptance_length: 2.5}
simulation: {replications: 2}
"""

PHASES = {"data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s", "exposed_generation_s"}
PROJECTION_KEYS = {
    *("schema", "scenario", "digest", "seed", "baseline", "candidate", "rollout_speedup", "end_to_end_speedup"),
    *("provenance", "assumptions", "warnings"),
}


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def process(*argv: str, stdout: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rlsim.cli import main; main()", *argv]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def complains(result: tuple[int, str, str], *naming: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("rlsim: ") and err.count("\n") == 1
    for name in naming:
        assert name in err


def test_out_that_is_a_file(run: Run, small: str) -> None:
    complains(run("project", small, "--out", small), "small.yaml: is a file; --out needs a folder")
    complains(run("project", small, "--out", f"{small}/results"), "results: cannot be written")
    assert Path(small).read_text() == SMALL


@pytest.mark.parametrize("before", [None, "earlier answer"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, before: str | None) -> None:
    out = tmp_path / "out"
    if before is not None:
        out.mkdir()
        (out / "projection.json").write_text(before)
    with (
        pytest.raises(InputError, match=r"out: cannot be written \(No space left on device\)"),
        staged_folder(out) as stage,
    ):
        (stage / "projection.json").write_text("half an ans")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    left = [path.name for path in tmp_path.rglob("*")]
    assert left == ([] if before is None else ["out", "projection.json"])
    assert before is None or (out / "projection.json").read_text() == before


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "out") as stage:
        (stage / "projection.json").write_text("half an ans")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_new_files_replace_old_ones_and_leave_others(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "a.json").write_text("old")
    with staged_folder(tmp_path) as stage:
        (stage / "plots").mkdir()
        for name in ("a.json", "plots/b.png"):
            (stage / name).write_text("new")
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"notes.txt": "mine", "a.json": "new", "plots/b.png": "new"}


def test_a_full_standard_output_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        done = process("schema", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "rlsim: standard output: No space left on device\n"


def test_a_reader_that_stops_listening_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = process("schema", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
