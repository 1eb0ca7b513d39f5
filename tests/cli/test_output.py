"""Output that fails: files that cannot be written, full disks, readers that stop listening."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import SMALL, complains, process

from rlsim.errors import InputError
from rlsim.files.writing import staged_folder

Run = Callable[..., tuple[int, str, str]]


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
