"""``rlsim validate`` as users run it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from measured_tables import row, write

from rlsim.cli.commands import app_of

Run = Callable[..., tuple[int, str, str]]


def test_text_and_files(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [row(), row(id="-2+3", model="none")])
    code, out, err = run("validate", table, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "2 rows of kind steps, 1 simulated, 1 skipped" in out
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "validation.json",
        "rows.csv",
        "scatter.png",
        "ratios.png",
    }
    with (tmp_path / "out" / "rows.csv").open(newline="") as file:
        assert [cells["id"] for cells in csv.DictReader(file)] == ["own-run", "'-2+3"]


def test_json_is_one_object_and_nothing_else(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [row()])
    code, out, err = run("validate", table, "--json", "--seed", 3)
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["rows"][0]["id"] == "own-run"
    assert out != run("validate", table, "--json", "--seed", 4)[1]


@pytest.mark.parametrize(
    ("former", "words", "hint"),
    [
        ("validate t.csv --json", "table t.csv --json", ""),
        ("validate --json t.csv", "table --json t.csv", ""),
        ("validate table t.csv", "table t.csv", ""),
        (
            "validate --published --seed 3",
            "published --seed 3",
            "`validate --published` is now `rlsim validate published`",
        ),
        ("validate --published --cross", "published --cross", "rlsim validate published"),
        ("validate --cross --json", "cross --json", "rlsim validate cross"),
        ("calibrate --jointly a.csv --jointly=b.csv --out o", "fit a.csv b.csv --out o", "rlsim calibrate fit"),
        ("calibrate --from-transfers a.csv --from-transfers b.csv", "fit a.csv b.csv", "rlsim calibrate fit"),
        ("calibrate --from-iterations a.csv", "fit a.csv", "rlsim calibrate fit"),
        ("calibrate --from-steps a.csv --refit", "fit a.csv", "rlsim calibrate fit"),
        ("calibrate --from-steps a.csv --out m.npz", "own a.csv --out m.npz", "rlsim calibrate own"),
        ("calibrate --device cuda --quick", "device cuda --quick", "rlsim calibrate device"),
        ("calibrate --cases c.json --device cpu", "cases c.json --device cpu", "rlsim calibrate cases"),
        ("calibrate --from aisimulate dir --list", "import aisimulate dir --list", "rlsim calibrate import"),
        ("calibrate dir --from aisimulate", "import aisimulate dir", "rlsim calibrate import"),
        ("calibrate --from-measurements d --name n", "measurements d --name n", "rlsim calibrate measurements"),
        ("calibrate --from-curves c.csv --draft-length 3 --within=0.1", "curves c.csv", "rlsim calibrate curves"),
    ],
)
def test_former_words_are_those_of_a_job(
    former: str, words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *given = former.split()
    group = typer.main.get_command(app_of()).commands[name]  # type: ignore[attr-defined]
    assert group.translated(given) == words.split()
    out, err = capsys.readouterr()
    assert out == "" and (hint in err if hint else err == "")


@pytest.mark.parametrize("option", ["--write-accuracy", "--date", "--sweep=f"])
def test_options_that_left_the_package_say_where_they_went(run: Run, option: str) -> None:
    code, out, err = run("validate", "--published", option, "x")
    assert (code, out) == (2, "") and "python -m research" in err
