"""Sections of the accuracy document on training steps, transfers and phases, and their pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from measured_tables import row, write
from test_validation_halves import PHASES, TRAINING

from rlsim.errors import InputError
from rlsim.parameters.sets import load_training_parameters, load_transfer_parameters
from rlsim.results import Interval
from rlsim.validation.accuracy import accuracy_document
from rlsim.validation.accuracy_halves import HALVES, WORST_ROWS, halves_sections, joined, write_half_pictures
from rlsim.validation.kind import Kind
from rlsim.validation.kinds import validate_table
from rlsim.validation.measured import MeasuredRow, MeasuredTable
from rlsim.validation.published import Published, run_published
from rlsim.validation.study import PublishedFigure
from rlsim.validation.validate import Validation

Run = Callable[..., tuple[int, str, str]]
PICTURES = {"training_by_release.png", "transfers_by_method.png", "phases.png"}
CELLS = (PublishedFigure("group", "label", "x", 2.0, Interval(1.5, 1.0, 2.5)),)
STEPS = Validation("t.csv", "0", ())
TRANSFER = {
    "id": "a", "framework": "NeMo-RL", "model": "Qwen3-30B-A3B", "gpu": "H100", "method": "NCCL-Reshard",
    "train_parallelism": "EP8 PP2", "gen_parallelism": "TP8 DP2", "train_gpus": "16", "gen_gpus": "16",
    "placement": "disaggregated", "time_s": "4",
}  # fmt: skip


def group(name: str, measured: float, predicted: float | None, kind: str = "training", **details: str) -> MeasuredRow:
    one = MeasuredRow(name, "a group", "s", measured, details={"model": "m", "gpu": "H100", **details})
    return one.skip("flag doubtful") if predicted is None else one.predict(predicted, 0.1)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> MeasuredTable:
    release = {"release": "NeMo 26.02"}
    rows = [
        {**TRAINING, **release},
        {**TRAINING, **release, "id": "moe|", "model": "Qwen3_30B_a3B", "ep": "8", "cp": "1", "step_time_s": "30"},
        {**TRAINING, **release, "id": "old", "flag": "superseded"},
        {**TRAINING, **release, "id": "unknown", "model": "no<such>model"},
    ]
    found = validate_table(write(tmp_path_factory.mktemp("t") / "tr`aining.csv", rows))
    assert isinstance(found, MeasuredTable)
    assert found.score.n == 2
    return found


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_section_tells_scores_groups_worst_rows_and_what_is_left_out(training: MeasuredTable) -> None:
    text = section(halves_sections({Kind.TRAINING: training}, {"moe|": "a known reason"}), "Training steps")
    assert "2 of the 4 rows of `training.csv`" in text
    assert f"digest {training.digest}" in text
    error = 100 * (training.rows[1].error or 0.0)
    told = [line for line in text.splitlines() if line.startswith("| Megatron-Bridge 26.02, MoE, H100, BF16 | 1 |")]
    assert told == [
        f"| Megatron-Bridge 26.02, MoE, H100, BF16 | 1 | {abs(error):.1f} % | {abs(error):.1f} % | {error:+.1f} % | "
        f"{100 if training.rows[1].covered else 0} % | {training.rows[1].half_width:.2f}x |"
    ]
    assert "| all rows | 2 |" in text
    assert "| family: dense | 1 |" in text
    worst = text.split("largest errors")[1].split("###")[0]
    assert "a known reason" in worst
    assert "| not known |" in worst
    left = text.split("### Training steps not scored")[1]
    assert "| flag superseded | 1 |" in left
    assert "no\\<such\\>model" in left
    assert "](training_by_release.png)" in text


def test_the_fit_of_training_is_told_with_the_groups_left_out_of_it(
    monkeypatch: pytest.MonkeyPatch, training: MeasuredTable
) -> None:
    shipped = load_training_parameters()
    fit = shipped.fit.model_copy(
        update={"rows": 1234, "data_digest": "f" * 16, "held_out_median_error": {"model": 0.0912, "release": 0.123}}
    )
    where = "rlsim.validation.accuracy_halves.load_training_parameters"
    monkeypatch.setattr(where, lambda: shipped.model_copy(update={"fit": fit}))
    for found in ({}, {Kind.TRAINING: training}):
        text = section(halves_sections(found, {}), "Training steps")
        assert all(words in text for words in ("1,234 rows", "| one model | 9.1 % |", "| one release | 12.3 % |"))
        assert ("tables other than those above" in text) == bool(found)
    monkeypatch.setattr(where, lambda: load_training_parameters("start"))
    assert "before any fit" in section(halves_sections({}, {}), "Training steps")


def test_the_fit_of_transfers_knows_its_tables_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = load_transfer_parameters()
    fit = shipped.fit.model_copy(update={"data_digest": "aa bb", "held_out_median_error": 0.321})
    where = "rlsim.validation.accuracy_halves.load_transfer_parameters"
    monkeypatch.setattr(where, lambda: shipped.model_copy(update={"fit": fit}))
    for digest, other in (("bb, aa", False), ("aa", True)):
        found = MeasuredTable("transfers", "t.csv, s.csv", digest, ())
        text = section(halves_sections({Kind.TRANSFERS: found}, {}), "Weight transfers by method")
        assert ("tables other than those above" in text) == other
        assert "| one framework | 32.1 % |" in text


def test_without_tables_each_section_says_so_and_how_to_get_it() -> None:
    text = accuracy_document(Published("0123", STEPS, (), (), (), (), ()), "2026-01-31")
    for kind in HALVES:
        assert f"No table of {kind} was given when this document was written (`--{kind} TABLE.csv`)" in text
    assert not any(picture in text for picture in PICTURES)


def test_the_worst_rows_are_the_largest_errors_and_no_more_than_that_many() -> None:
    rows = tuple(group(f"row{i}", 10.0, 10.0 + i) for i in range(WORST_ROWS + 3))
    found = MeasuredTable("transfers", "t.csv", "0", rows)
    text = halves_sections({Kind.TRANSFERS: found}, {}).split("largest errors")[1]
    names = [line.split(" | ")[0].strip("| ") for line in text.split("## ")[0].splitlines() if line.startswith("| row")]
    assert names[1:] == [f"row{i}" for i in range(WORST_ROWS + 2, 2, -1)]


def test_tables_of_one_kind_are_scored_together_and_a_measurement_once() -> None:
    first = MeasuredTable("transfers", "a.csv", "1", (group("x", 4.0, 5.0), group("f", 9.0, None)), ("r",))
    again = (
        group("z", 4.01, 5.0, model="org/M"),
        group("g", 9.0, 8.0),
        group("w", 6.0, 5.0),
        group("v", 4.0, 3.0, model="n"),
        group("u", 4.0, 3.0, gen_gpus="256"),
    )
    second = MeasuredTable("transfers", "b.csv", "2", again, ("r", "s"))
    both = joined([first, second])
    assert (both.table, both.digest, both.remarks) == ("a.csv, b.csv", "1, 2", ("r", "s"))
    assert [one.id for one in both.scored] == ["x", "w", "v", "u"]
    assert {one.id: one.skipped for one in both.rows if one.skipped} == {
        "f": "flag doubtful",
        "z": "the same measurement as an earlier row",
        "g": "the flag of another row of the same measurement",
    }
    assert both.rows[2].covered is None
    # Two runs may have a phase of the same length; they are two measurements.
    phases = joined([replace(one, kind="phases") for one in (first, second)])
    assert [one.id for one in phases.scored] == ["x", "z", "g", "w", "v", "u"]


def test_pictures_are_drawn_for_what_was_scored(tmp_path: Path, training: MeasuredTable) -> None:
    transfers = MeasuredTable("transfers", "t", "0", (group("x", 4.0, 5.0), group("far", 1.0, 1e4)))
    phases = MeasuredTable("phases", "t", "0", (group("x", 4.0, None),))
    write_half_pictures({Kind.TRAINING: training, Kind.TRANSFERS: transfers, Kind.PHASES: phases}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == PICTURES - {"phases.png"}


def test_tables_are_given_by_option_and_written_with_the_document(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: MeasuredTable
) -> None:
    given: list[object] = []

    def answer(*arguments: object) -> Published:
        given.extend(arguments)
        return Published("0123", STEPS, (), (), (), (), (), None, {Kind.TRAINING: training})

    monkeypatch.setattr("rlsim.validation.published.run_published", answer)
    file = tmp_path / "docs" / "A.md"
    options = ("--training", "t.csv", "--transfers", "a.csv", "--transfers", "b.csv", "--phases", "p.csv")
    code, out, err = run("validate", "--published", *options, "--json", "--write-accuracy", file)
    assert (code, err) == (0, "")
    assert given[-2] == {
        Kind.TRAINING: [Path("t.csv")],
        Kind.TRANSFERS: [Path("a.csv"), Path("b.csv")],
        Kind.PHASES: [Path("p.csv")],
    }
    document = json.loads(out)
    assert document["training"]["score"]["n"] == 2
    assert document["transfers"] is document["phases"] is None
    assert {path.name for path in file.parent.iterdir()} == {"A.md", "training_by_release.png"}
    assert "training_by_release.png" in file.read_text()


@pytest.mark.parametrize("option", [f"--{kind}" for kind in HALVES])
def test_tables_of_halves_belong_to_the_published_ones(run: Run, option: str) -> None:
    code, out, err = run("validate", "t.csv", option, "i.csv")
    assert (code, out) == (2, "")
    assert option in err
    assert "belong to --published" in err


@pytest.mark.parametrize("kind", HALVES)
def test_a_wrong_table_is_refused_before_anything_is_simulated(kind: Kind, run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "it.csv", [{"id": "a", "tpot_ms": "3"}])
    code, out, err = run("validate", "--published", f"--{kind}", table)
    assert (code, out) == (2, "")
    assert f"is no table of {kind}" in err


def test_a_table_given_twice_is_refused(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [row()])
    with pytest.raises(InputError, match=r"--transfers: .*t\.csv is given more than once"):
        run_published(halves={Kind.TRANSFERS: [table, tmp_path / "." / "t.csv"]})


def test_published_tables_and_given_ones_stand_in_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, nothing in (
        ("validate", STEPS),
        ("study", CELLS),
        ("measured_speculation", ()),
        ("published_refits", ((), ())),
    ):
        monkeypatch.setattr(f"rlsim.validation.published.{name}", lambda *given, nothing=nothing: nothing)
    paths = {
        kind: [write(tmp_path / f"{kind}.csv", [cells])]
        for kind, cells in ((Kind.TRAINING, TRAINING), (Kind.TRANSFERS, TRANSFER), (Kind.PHASES, PHASES))
    }
    found = run_published(halves=paths)
    assert {kind: one.score.n for kind, one in found.halves.items()} == {
        Kind.TRAINING: 1,
        Kind.TRANSFERS: 1,
        Kind.PHASES: 5,
    }
    text = found.text()
    assert all(f"{title} by group" in text for title in ("Training steps", "Weight transfers", "Phases"))
    document = accuracy_document(found, "2026-01-31")
    assert all(picture in document for picture in PICTURES)
