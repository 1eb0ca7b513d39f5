"""The accuracy document: a function of the answer and the date, without markup of others; what explains far rows."""

import csv
from pathlib import Path

import pytest

from research.accuracy import accuracy_document, explanations, write_document
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


def test_the_document_is_a_function_of_answer_and_date() -> None:
    text = accuracy_document(published(), "2026-01-02")
    assert text == accuracy_document(published(), "2026-01-02")
    assert text != accuracy_document(published(), "2026-01-03")
    for date in ("today", "2026-13-01", "26-01-01"):
        with pytest.raises(InputError, match="YYYY-MM-DD"):
            accuracy_document(published(), date)


def test_rows_explanations_phases_and_reasons_stand_without_markup() -> None:
    text = accuracy_document(published(), "2026-01-02")
    for wanted in ("far\\|row", "+40.0 %", "not explained yet", "train", "no \\*reason\\*", "refit r", "-50.0 %"):
        assert wanted in text
    assert text.count("when this document was written") >= 3 and "Left out of this document" in text


def test_sections_and_pictures_of_given_tables(tmp_path: Path) -> None:
    engine = {"model": "m", "gpu": "H100", "engine": "vllm", "speculative": False}
    answer = published(iterations=measured("iterations", **engine), training=measured("training", gpu="H100"))
    text = accuracy_document(answer, "2026-01-02")
    for wanted in (
        "3 of the 4 rows of `iterations.csv`",
        "vllm on H100",
        "gpu is not given",
        "training-0",
        "not known",
    ):
        assert wanted in text
    write_document(answer, text, tmp_path / "ACCURACY.md")
    pictures = {"iterations_by_group.png", "training_by_release.png"}
    assert {path.name for path in tmp_path.iterdir()} == {"ACCURACY.md", *pictures}


def test_explanations_name_published_rows() -> None:
    with published_table("rl_steps.csv").open(newline="") as file:
        ids = {cells["id"] for cells in csv.DictReader(file)}
    assert {key.partition(":")[0] for key in explanations()} <= ids
    assert {key.partition(":")[2] for key in explanations()} <= {"", *PHASES}
    assert all(len(text) > 20 for text in explanations().values())
