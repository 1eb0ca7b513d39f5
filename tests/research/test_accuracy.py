"""The accuracy document: a function of the answer and the date, without markup of others; what explains far rows."""

import csv
from pathlib import Path

import pytest

from research.accuracy import accuracy_document, explanations, write_document
from research.sweeps import iteration_sweep
from rlsim.errors import InputError
from rlsim.evidence.phases import PHASES
from rlsim.evidence.published import published_table
from rlsim.results import Interval
from rlsim.results.validation import ComparedRow, PhaseError, Published, PublishedFigure, Score, Validation


def steps() -> Validation:
    phases = {"train_s": PhaseError(predicted=4.0, measured=3.0)}
    about = {"model": "a/b", "device": "h100", "mode": "sync"}
    spread = {"measured": 10.0, "predicted": 14.0, "low": 12.0, "high": 16.0}
    far = ComparedRow(id="far|row", **spread, phases=phases, details=about)
    return Validation.of("steps", [far, ComparedRow(id="left", skipped="no *reason*", phases={})], table="t.csv")


def measured(kind: str, **details: str | bool) -> Validation:
    spread = {"measured": 1.0, "predicted": 1.1, "low": 0.9, "high": 1.2}
    rows = [ComparedRow(id=f"{kind}-{n}", group="g", cuts=("plain rows",), **spread, details=details) for n in range(3)]
    rows.append(ComparedRow(id="gone", group="g", skipped="gpu is not given", details=details))
    return Validation.of(kind, rows, table=f"{kind}.csv", digest="d", ttft=Score(n=0))


def published(**given: Validation) -> Published:
    figure = PublishedFigure(group="step times", label="x", unit="s", measured=2.0, predicted=Interval(1.0, 1.0, 1.0))
    return Published(steps=steps(), digest="0123", compared=(figure,), refits_left_out={"r": "why"}, **given)


def test_the_document_is_a_function_of_answer_and_date_without_markup_of_others() -> None:
    text = accuracy_document(published(), "2026-01-02")
    assert text == accuracy_document(published(), "2026-01-02")
    assert text != accuracy_document(published(), "2026-01-03")
    for date in ("today", "2026-13-01", "26-01-01"):
        with pytest.raises(InputError, match="YYYY-MM-DD"):
            accuracy_document(published(), date)
    text = accuracy_document(published(), "2026-01-02")
    for wanted in (
        "far\\|row",
        "+40.0 %",
        "not explained yet",
        "step times",
        "No table was given of: engine iterations",
    ):
        assert wanted in text
    assert "Left out of this document" in text


def test_rows_and_pictures_of_given_tables(tmp_path: Path) -> None:
    engine = {"model": "m", "gpu": "H100", "engine": "vllm", "speculative": False}
    answer = published(iterations=measured("iterations", **engine), training=measured("training", gpu="H100"))
    text = accuracy_document(answer, "2026-01-02")
    assert "|Engine iterations|3|" in text and "plain rows" in text and "iterations_by_group.png" in text
    write_document(answer, text, tmp_path / "ACCURACY.md")
    pictures = {"iterations_by_group.png", "training_by_release.png"}
    assert {path.name for path in tmp_path.iterdir()} == {"ACCURACY.md", "accuracy.csv", *pictures}
    rows = list(csv.DictReader((tmp_path / "accuracy.csv").read_text().splitlines()))
    assert {row["kind"] for row in rows} == {"steps", "phases of steps", "iterations", "training", "figures"}
    by_id = {(row["kind"], row["row"]): row for row in rows}
    assert by_id["steps", "far|row"]["error_pct"] == "+40.0" and by_id["steps", "far|row"]["inside"] == "no"
    assert by_id["training", "1 not compared"]["note"] == "gpu is not given"
    assert by_id["figures", "r"]["note"] == "why"


def test_explanations_name_published_rows() -> None:
    with published_table("rl_steps.csv").open(newline="") as file:
        ids = {cells["id"] for cells in csv.DictReader(file)}
    assert {key.partition(":")[0] for key in explanations()} <= ids
    assert {key.partition(":")[2] for key in explanations()} <= {"", *PHASES}
    assert all(len(text) > 20 for text in explanations().values())


HEAD = "model,batch,seq,gamma,mode,median_ms\n"
PUBLISHED_MS = {("Llama-3.1-8B-Instruct", 0): {1: 10.3, 8: 11.0, 16: 12.6, 32: 14.1, 64: 16.1},
                ("Llama-3.1-8B-Instruct", 3): {1: 11.3, 8: 13.7, 16: 15.7, 32: 17.7, 64: 24.6},
                ("Llama-3.1-8B-Instruct", 7): {1: 11.3, 8: 15.5, 16: 17.1, 32: 23.6, 64: 40.0},
                ("Llama-3.1-8B-Instruct", 15): {1: 11.4, 8: 17.0, 16: 23.0, 32: 38.7, 64: 71.4},
                ("Qwen2.5-7B", 0): {1: 9.6, 8: 10.0, 16: 10.5, 32: 12.2, 64: 13.7},
                ("Qwen2.5-7B", 3): {1: 10.3, 8: 11.9, 16: 13.4, 32: 14.7, 64: 20.9},
                ("Qwen2.5-7B", 7): {1: 10.6, 8: 13.2, 16: 14.3, 32: 20.2, 64: 37.0},
                ("Qwen2.5-7B", 15): {1: 10.8, 8: 14.1, 16: 19.7, 32: 36.0, 64: 66.4}}  # fmt: skip


def sweep(tmp_path: Path, lines: str) -> Path:
    path = tmp_path / "sweep.csv"
    path.write_text(HEAD + lines)
    return path


def test_published_decode_and_verification_steps_within_fifteen_per_cent_in_the_median(tmp_path: Path) -> None:
    lines = "".join(f"{model},{batch},2048,{gamma},{'target_verify' if gamma else 'target_decode'},{ms}\n"
                    for (model, gamma), cells in PUBLISHED_MS.items() for batch, ms in cells.items())  # fmt: skip
    result = iteration_sweep(sweep(tmp_path, lines))
    assert len(result.points) == 40
    median = result.median_abs_error_pct()
    assert median < 15.0
    assert "verify 15 + 1" in result.text()


def test_other_modes_and_nonsense_are_counted_by_reason(tmp_path: Path) -> None:
    lines = (
        "Qwen2.5-7B,1,256,0,target_decode,9.5\n"
        "Qwen2.5-7B,1,256,3,drafter_decode,4.4\n"
        "Qwen2.5-7B,0,0,0,target_decode,9.5\n"
        "Qwen2.5-7B,1,256,0,target_decode,-1\n"
        "Qwen2.5-7B,one,256,0,target_decode,9.5\n"
        "Qwen2.5-7B,1e9,256,0,target_decode,9.5\n"
        "Qwen2.5-7B,1,256,400,target_verify,9.5\n"
        "NoSuch-7B,1,256,0,target_decode,9.5\n"
        "Qwen2.5-7B,1,256\n"
    )
    result = iteration_sweep(sweep(tmp_path, lines))
    assert len(result.points) == 1
    assert sum(result.skipped.values()) == 8
    assert "8 points left out" not in result.text()
    assert any("drafter_decode" in reason for reason in result.skipped)
