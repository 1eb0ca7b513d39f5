"""Kinds of tables: recognised by their columns, stated by name, and refused in one message."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from measured_tables import ROW, row, write

from rlsim.errors import InputError
from rlsim.validation.kind import Kind
from rlsim.validation.kinds import COLUMNS, kind_of, validate_table
from rlsim.validation.measured import MeasuredTable
from rlsim.validation.scores import Score, scores_by_group
from rlsim.validation.validate import RowResult, Validation

Run = Callable[..., tuple[int, str, str]]

TABLES = {
    Kind.STEPS: ROW,
    Kind.ITERATIONS: {
        "id": "a", "engine": "vllm", "model": "Llama-3.1-8B", "precision": "bf16", "gpu": "H100",
        "decode_gpus_per_engine": "1", "isl": "128", "osl": "64", "concurrency": "4", "tpot_ms": "7",
        "spec_method": "none", "serving_mode": "disagg",
    },
    Kind.TRAINING: {
        "id": "a", "model": "LLAMA3_8B", "gpu": "H100", "num_gpus": "8", "precision": "BF16", "gbs": "128", "mbs": "1",
        "seq_len": "4096", "step_time_s": "9",
    },
    Kind.TRANSFERS: {
        "id": "a", "model": "Qwen3-30B-A3B", "gpu": "H100", "method": "nccl full broadcast", "train_gpus": "8",
        "gen_gpus": "8", "time_s": "4",
    },
    Kind.PHASES: {
        "id": "a", "model": "Qwen/Qwen3-30B-A3B", "gpu": "H100", "num_gpus": "16", "prompts_per_step": "8",
        "samples_per_prompt": "8", "total_step_s": "30", "train_s": "5", "generation_s": "9", "precision": "bf16",
        "max_prompt_len": "256", "max_response_len": "1024", "mean_response_len": "300", "placement": "colocated sync",
        "gen_parallelism": "TP4", "train_parallelism": "EP8",
    },
    Kind.CURVES: {
        "id": "a", "curve_kind": "run", "series": "s", "x_name": "step", "x": "1", "y_name": "reward", "y": "0.5",
    },
}  # fmt: skip
"""One row of each kind with little more than the columns that tell it."""


@pytest.mark.parametrize("kind", list(Kind))
def test_a_table_is_recognised_by_its_columns(kind: Kind) -> None:
    assert kind_of(list(TABLES[kind])) is kind
    assert kind_of([*reversed(TABLES[kind]), "notes"]) is kind


@pytest.mark.parametrize("kind", list(Kind))
def test_every_row_is_answered_in_one_form(kind: Kind, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [TABLES[kind], {**TABLES[kind], "id": "b", "model": "unknown"}])
    found = validate_table(table, replications=1)
    document = json.loads(found.to_json())
    assert document["kind"] == kind
    assert {"rows", "score", "groups", "skipped"} <= set(document)
    assert set(document["score"]) == {"n", "median_abs_error", "p90_abs_error", "bias", "coverage", "half_width"}
    assert document["score"]["n"] + document["skipped"] == len(document["rows"])
    for entry in document["rows"]:
        assert {"id", "group", "predicted", "measured", "unit", "low", "high", "covered"} <= set(entry)
        assert entry["reason"] == entry["skipped"]
        assert (entry["predicted"] is None) == (entry["skipped"] is not None)
        if entry["skipped"] is None:
            assert entry["low"] <= entry["predicted"] <= entry["high"]
            assert entry["covered"] == (entry["low"] <= entry["measured"] <= entry["high"])
    if kind is not Kind.CURVES:
        assert document["score"]["n"] > 0
        assert "unknown" in str(document["rows"][-1]["reason"])
    assert len(found.to_frame()) == len(document["rows"])
    assert [line["id"] for line in csv.DictReader(found.to_csv().splitlines())] == [e["id"] for e in document["rows"]]


@pytest.mark.parametrize("kind", list(Kind))
def test_text_and_files_of_each_kind(kind: Kind, run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [TABLES[kind], {**TABLES[kind], "id": "b", "flag": "doubtful"}])
    code, out, err = run("validate", table, "--replications", 1, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    own = {
        Kind.STEPS: {"waterfall.png"},
        Kind.ITERATIONS: {"by_batch.png"},
        Kind.TRAINING: {"by_release.png"},
        Kind.TRANSFERS: {"by_group.png"},
        Kind.PHASES: {"by_group.png"},
        Kind.CURVES: set(),
    }
    assert files == {"validation.json", "rows.csv", "scatter.png"} | own[kind]
    if kind is not Kind.STEPS:
        assert "flag doubtful" in out
        assert f"rows of kind {kind}" in out


def test_a_table_of_no_kind_is_told_the_nearest_and_what_it_lacks() -> None:
    columns = [name for name in TABLES[Kind.TRAINING] if name != "gbs"] + ["gbz"]
    with pytest.raises(InputError, match=r"training, the nearest, column gbs .*is missing"):
        kind_of(columns)
    with pytest.raises(InputError, match="no column of any kind"):
        kind_of(["a", "b"])
    with pytest.raises(InputError, match="columns gpu, tpot_ms or decode_step_ms_est are missing"):
        kind_of([name for name in TABLES[Kind.ITERATIONS] if name not in ("gpu", "tpot_ms")])


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.STEPS])
def test_a_wrong_kind_names_the_columns_that_are_missing(kind: Kind, run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [row()])
    code, out, err = run("validate", table, "--kind", kind)
    assert (code, out) == (2, "")
    assert f"is no table of {kind}" in err
    first = next(entry[-1] for entry in COLUMNS[kind].needed if not set(entry) & set(ROW))
    assert first in err
    assert len(err) <= 600


def test_a_stated_kind_wins_over_the_columns(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [{**ROW, **TABLES[Kind.CURVES]}])
    assert isinstance(validate_table(table, "curves"), MeasuredTable)
    assert isinstance(validate_table(table, "steps", replications=1), Validation)
    with pytest.raises(InputError, match="kind must be one of steps, iterations"):
        validate_table(table, "epochs")


@pytest.mark.parametrize("argv", [("--kind", "epochs"), ("--kind", "steps", "--published")])
def test_a_kind_that_makes_no_sense_is_refused(run: Run, argv: tuple[str, ...], tmp_path: Path) -> None:
    table = () if "--published" in argv else (write(tmp_path / "t.csv", [row()]),)
    code, out, err = run("validate", *table, *argv)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["", "\n", "id,curve_kind,series,x_name,x,y_name,y\n", '"a\n', "x" * 200_000])
def test_files_that_are_no_tables_are_one_message(text: str, run: Run, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(text)
    code, out, err = run("validate", table, "--json")
    assert (code, out) == (2, "")
    assert 0 < len(err) <= 600
    assert "Traceback" not in err


def test_bias_and_errors_are_shares_of_the_measured_values() -> None:
    def of(group: str, predicted: float | None, high: float = 3.0) -> RowResult:
        return RowResult("x", group, measured_s=2.0, predicted_s=predicted, low_s=1.0, high_s=high)

    rows = [of("a", 1.0), of("a", 2.2), of("a", 3.0, 1.5), of("b", 4.0), of("b", None)]
    assert Score.of(rows[:3]).as_dict() == {
        "n": 3,
        "median_abs_error": 0.5,
        "p90_abs_error": 0.5,
        "bias": pytest.approx(0.1),
        "coverage": pytest.approx(2 / 3),
        "half_width": pytest.approx(3**0.5),
    }
    groups = scores_by_group(rows)
    assert list(groups) == ["a", "b"]
    assert (groups["b"].n, groups["b"].bias) == (1, 1.0)
    assert Score.of([]).as_dict()["median_abs_error"] is None
