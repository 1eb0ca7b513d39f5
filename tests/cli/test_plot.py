"""rlsim plot: the pictures of finished results again."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from command_line import complains
from matplotlib.image import imread

Run = Callable[..., tuple[int, str, str]]
COMMANDS = {
    "run": ("--steps", "6"),
    "sweep": ("--vary", "speculation.draft_length=1:3", "--vary", "speculation.acceptance_length=1.5,2.0"),
    "sweep of sizes": ("--vary", "cluster.num_gpus=8,16", "--vary", "engine.tensor_parallel,trainer.tensor_parallel=1"),
    "blame": (),
    "plan": ("--max-staleness", "0"),
    "check": ("--step", "40"),
    "headroom": (),
    "techniques": (),
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


def test_pictures_go_elsewhere(run: Run, small: str, tmp_path: Path) -> None:
    run("blame", small, "--out", str(tmp_path / "a"))
    assert run("plot", str(tmp_path / "a"), "--out", str(tmp_path / "b"))[0] == 0
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["waterfall.png"]


def test_what_cannot_be_drawn_names_the_command_that_can(run: Run, small: str, tmp_path: Path) -> None:
    out = tmp_path / "projected"
    run("project", small, "--out", str(out))
    complains(run("plot", str(out)), "lacks the curves", f"rlsim project {out}/scenario.yaml --out {out}")
    complains(run("plot", str(tmp_path / "absent")), "no such folder")
    (tmp_path / "empty").mkdir()
    complains(run("plot", str(tmp_path / "empty")), "holds none of run.json")
    for content in ("[]", "{}", "{", '{"candidate": 3}'):
        broken = tmp_path / "broken"
        broken.mkdir(exist_ok=True)
        (broken / "blame.json").write_text(content)
        complains(run("plot", str(broken)), "broken/blame.json: ")
        assert [path.name for path in broken.iterdir()] == ["blame.json"]
