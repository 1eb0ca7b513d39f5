"""``rlsim validate`` as users run it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from measured_tables import ROW, row, write

from rlsim.files.reading import data_folder

Run = Callable[..., tuple[int, str, str]]


def test_text_and_files(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [row(), row(id="-2+3", model="none")])
    code, out, err = run("validate", table, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "2 rows, 1 simulated, 1 skipped" in out
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "validation.json",
        "rows.csv",
        "scatter.png",
        "waterfall.png",
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
    "argv",
    [
        ("validate",),
        ("validate", "absent.csv"),
        ("validate", "absent.csv", "--published"),
        ("validate", "--published", "--date", "today"),
        ("validate", "--sweep", "absent.csv"),
        ("validate", "absent.csv", "--replications", "0"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(run: Run, argv: tuple[str, ...]) -> None:
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.strip()
    assert "Traceback" not in err


def test_a_table_that_lacks_a_column_is_told_by_name(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [{k: v for k, v in ROW.items() if k != "gpu"}])
    code, out, err = run("validate", table, "--json")
    assert (code, out) == (2, "")
    assert "column gpu" in err


def test_nothing_is_left_where_the_folder_cannot_be_written(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [row()])
    (tmp_path / "file").write_text("mine")
    code, _, err = run("validate", table, "--out", tmp_path / "file")
    assert code == 2
    assert "is a file" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_sweeps_are_compared_as_text_and_json(run: Run, tmp_path: Path) -> None:
    sweep = tmp_path / "s.csv"
    sweep.write_text("model,batch,seq,gamma,mode,median_ms\nQwen2.5-7B,1,2048,0,target_decode,9.6\n")
    assert "1 points" in run("validate", "--sweep", sweep)[1]
    code, out, _ = run("validate", "--sweep", sweep, "--json")
    assert code == 0
    assert json.loads(out)["sweeps"][0]["points"] == 1


def test_the_accuracy_document_is_written_only_where_asked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SimpleNamespace(
        steps=None, iterations=None, halves={}, cross=None, to_json=lambda: "{}", text=lambda style: "rows"
    )
    monkeypatch.setattr("rlsim.validation.published.run_published", lambda *given: answer)
    monkeypatch.setattr("rlsim.validation.accuracy.accuracy_document", lambda answer, day: f"of {day}")
    home = data_folder("calibration").parent / "docs" / "ACCURACY.md"
    before = home.read_bytes()
    assert run("validate", "--published", "--json") == (0, "{}\n", "")
    assert home.read_bytes() == before
    file = tmp_path / "new" / "A.md"
    assert run("validate", "--published", "--date", "2026-01-02", "--write-accuracy", file) == (0, "rows\n", "")
    assert file.read_text() == "of 2026-01-02"
    assert run("validate", "t.csv", "--write-accuracy", file)[0] == 2
