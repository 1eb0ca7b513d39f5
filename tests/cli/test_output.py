"""Output that fails: files that cannot be written, full disks, readers that stop listening."""

import errno
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from command_line import SMALL, complains, process
from matplotlib.image import imread

from rlsim.errors import InputError
from rlsim.files.writing import staged_folder

Run = Callable[..., tuple[int, str, str]]


def test_out_that_is_a_file(run: Run, small: str) -> None:
    complains(run("project", small, "--out", small), "small.yaml: is a file; --out needs a folder")
    complains(run("project", small, "--out", f"{small}/results"), "results: cannot be written")
    assert Path(small).read_text() == SMALL


@pytest.mark.parametrize(
    "words", [["site"], ["plan", "no_such_scenario"], ["sweep", "no_such_scenario", "--vary", "k=0:1"]]
)
def test_out_that_is_a_file_is_refused_before_anything_is_done(run: Run, small: str, words: list[str]) -> None:
    complains(run(*words, "--out", small), "small.yaml: is a file; --out needs a folder")


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


def test_an_interrupted_writer_leaves_nothing_and_new_files_replace_old_ones_and_leave_others(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "out") as stage:
        (stage / "projection.json").write_text("half an ans")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "a.json").write_text("old")
    with staged_folder(tmp_path) as stage:
        (stage / "plots").mkdir()
        for name in ("a.json", "plots/b.png"):
            (stage / name).write_text("new")
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"notes.txt": "mine", "a.json": "new", "plots/b.png": "new"}


def test_a_full_standard_output_is_one_message_and_a_reader_that_stops_listening_no_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = process("schema", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "rlsim: standard output: No space left on device\n"
    reading, writing = os.pipe()
    os.close(reading)
    done = process("schema", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


COMMANDS = {
    "run": ("--steps", "6"),
    "sweep": ("--vary", "speculation.draft_length=1:3", "--vary", "speculation.acceptance_length=1.5,2.0"),
    "sweep of sizes": ("--vary", "cluster.num_gpus=8,16", "--vary", "engine.tensor_parallel,trainer.tensor_parallel=1"),
    "plan": ("--max-staleness", "0"),
    "check": ("--step", "40"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_pictures_are_drawn_again_from_the_files_alone(run: Run, small: str, tmp_path: Path, name: str) -> None:
    out = tmp_path / "results"
    jobs = ("--jobs", "1") if name.split()[0] in ("sweep", "plan") else ()
    code, _, err = run(name.split()[0], small, *COMMANDS[name], *jobs, "--out", str(out))
    assert code == 0, err
    before = {path.name: path.read_bytes() for path in out.glob("*.png")}
    assert before
    for picture in before:
        (out / picture).unlink()
    code, told, err = run("plot", str(out))
    assert (code, err) == (0, "")
    assert {path.name for path in out.glob("*.png")} == set(before)
    assert all(f"{out}/{picture}" in told for picture in before)
    for picture, content in before.items():
        # Files hold rounded numbers: at an edge a shade may differ in its last bit.
        drawn, again = imread(BytesIO(content)), imread(out / picture)
        assert drawn.shape == again.shape and abs(drawn - again).max() < 2 / 255, picture


def test_what_cannot_be_drawn_names_its_command_pictures_go_elsewhere(run: Run, small: str, tmp_path: Path) -> None:
    run("check", small, "--step", "40", "--out", str(tmp_path / "a"))
    assert run("plot", str(tmp_path / "a"), "--out", str(tmp_path / "b"))[0] == 0
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["check.png"]
    out = tmp_path / "projected"
    run("project", small, "--out", str(out))
    complains(run("plot", str(out)), "lacks the curves", f"rlsim project {out}/scenario.yaml --out {out}")
    complains(run("plot", str(tmp_path / "absent")), "no such folder")
    (tmp_path / "empty").mkdir()
    complains(run("plot", str(tmp_path / "empty")), "holds none of run.json")
    for content in ("[]", "{}", "{", '{"candidate": 3}'):
        broken = tmp_path / "broken"
        broken.mkdir(exist_ok=True)
        (broken / "check.json").write_text(content)
        complains(run("plot", str(broken)), "broken/check.json: ")
        assert [path.name for path in broken.iterdir()] == ["check.json"]


def test_what_both_scenarios_lack_is_said_once(run: Run) -> None:
    lacks = "missing=[{part: a judge, step: longer, keys: []}]"
    both = run("compare", "quickstart", "quickstart", lacks, "simulation.replications=1")[2]
    one = run("compare", "quickstart", "quickstart", "simulation.replications=1", "--set-b", lacks)[2]
    assert both.count("without a judge: the real step is longer") == one.count("without a judge") == 1
