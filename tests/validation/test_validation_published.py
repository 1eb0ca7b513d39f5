"""The published tables inside the project, and the document made of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from measured_tables import row, write

from rlsim.errors import InputError
from rlsim.files.reading import data_folder
from rlsim.results import Interval
from rlsim.validation.accuracy import accuracy_document, explanations, today
from rlsim.validation.phase_rows import PHASES
from rlsim.validation.published import Published, group_errors, published_digest
from rlsim.validation.refits import published_refits
from rlsim.validation.rows import NEEDED, SkippedRow, scenario_of
from rlsim.validation.speculation import measured_speculation
from rlsim.validation.study import PublishedFigure, median_error, published_table, study
from rlsim.validation.table import read_table
from rlsim.validation.validate import Validation, validate

TABLES = {
    "rl_steps.csv": 68,
    "study_speculation.csv": 14,
    "study_step_times.csv": 4,
    "study_async.csv": 2,
    "speculation_measured.csv": 42,
    "refit.csv": 22,
}


@pytest.mark.parametrize(("name", "count"), TABLES.items())
def test_every_published_figure_has_a_source(name: str, count: int) -> None:
    records = read_table(published_table(name), ("source",))
    assert len(records) == count
    assert all(record.cells["source"] and not record.problem for record in records)


def test_published_steps_are_simulable_or_say_why_not() -> None:
    reasons, ids = list[str](), list[str]()
    for record in read_table(published_table("rl_steps.csv"), NEEDED):
        ids.append(record.cells["id"])
        try:
            scenario_of(record.cells)
        except SkippedRow as reason:
            reasons.append(str(reason))
    assert len(set(ids)) == 68
    assert len(reasons) == 7
    assert sum("is not given" in reason for reason in reasons) == 6


def test_the_study_adds_up_as_published() -> None:
    """arXiv 2604.26779: the phases of its table of step times add up to the step within 0.3 s of rounding."""
    for record in read_table(published_table("study_step_times.csv"), ("step_s",)):
        phases = sum(float(record.cells[f"{n}_s"]) for n in ("data", "prepare", "generation", "logprob", "train"))
        assert phases == pytest.approx(float(record.cells["step_s"]), abs=0.4)


def test_explanations_name_published_rows() -> None:
    with published_table("rl_steps.csv").open(newline="") as file:
        ids = {cells["id"] for cells in csv.DictReader(file)}
    assert {key.partition(":")[0] for key in explanations()} <= ids
    assert {key.partition(":")[2] for key in explanations()} <= {"", *PHASES}
    assert all(len(text) > 20 for text in explanations().values())


def test_the_study_is_predicted_cell_by_cell() -> None:
    cells = study(replications=1)
    counts = {group: n for group, n, _, _ in group_errors(cells)}
    assert counts == {
        "generation speedup, k sweep": 6,
        "generation speedup, draft initialisation": 6,
        "generation speedup, n-gram": 2,
        "step times": 24,
        "asynchronous, lag 1": 4,
    }
    assert all(cell.predicted.mean >= 0 for cell in cells)
    assert median_error(cells, "generation speedup") is not None
    assert median_error(cells, "no such table") is None


def test_speedup_at_fixed_batch_follows_the_acceptance_length() -> None:
    """speedup = acceptance length x t(decode) / t(step): the same k has the same ratio of times."""
    ratios: dict[str, list[float]] = {}
    for cell in measured_speculation():
        if cell.unit == "x":
            k, length = cell.label.split("k=")[1].split(", length ")
            ratios.setdefault(k, []).append(cell.predicted.mean / float(length))
    assert set(ratios) == {"3", "5", "7"}
    for values in ratios.values():
        assert max(values) == pytest.approx(min(values), rel=1e-9)
    assert ratios["3"][0] > ratios["5"][0] > ratios["7"][0]


def test_every_published_refit_is_compared_or_left_out_with_a_reason() -> None:
    compared, left_out = published_refits()
    assert len(compared) + len(left_out) == TABLES["refit.csv"]
    assert {cell.group for cell in compared} == {"refit, NeMo-RL", "refit, verl"}
    assert all(reason for _, reason in left_out)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Validation:
    rows = [row(id="near|ly", generation_s="9"), row(id="far", total_step_time_s="2000"), row(id="out", model="x<b>")]
    return validate(write(tmp_path_factory.mktemp("t") / "t.csv", rows))


def published(steps: Validation) -> Published:
    cell = PublishedFigure("group *a*", "label", "x", 2.0, Interval(1.5, 1.0, 2.5))
    return Published("0123", steps, (cell,), (), (), (("id", "why"),), ())


def test_the_document_is_a_function_of_answer_and_date(steps: Validation) -> None:
    text = accuracy_document(published(steps), "2026-01-31")
    assert text == accuracy_document(published(steps), "2026-01-31")
    assert "Date 2026-01-31" in text
    assert "published tables 0123" in text
    assert text.endswith("\n")


def test_the_document_shows_rows_explanations_phases_and_reasons_without_markup(steps: Validation) -> None:
    text = accuracy_document(published(steps), today())
    assert "| near\\|ly |" in text
    assert "not explained yet" in text
    assert "| generation | 9.0 |" in text
    assert "x\\<b\\>" in text
    assert "group \\*a\\*" in text
    assert "-25.0 %" in text
    assert "| refit id | why |" in text


@pytest.mark.parametrize("date", ["yesterday", "2026-1-1", "", "2026-01-01\n# x"])
def test_a_date_of_another_form_is_refused(steps: Validation, date: str) -> None:
    with pytest.raises(InputError, match="YYYY-MM-DD"):
        accuracy_document(published(steps), date)


def test_json_of_all_published_tables(steps: Validation) -> None:
    document = json.loads(published(steps).to_json())
    assert len(document["rows"]) == 3
    assert document["compared"][0]["error_pct"] == -25.0
    assert document["refits_left_out"] == {"id": "why"}


def test_the_digest_tells_tables_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x\n1\n")
    monkeypatch.setattr("rlsim.validation.published.published_table", lambda name: tmp_path / name)
    first = published_digest()
    (tmp_path / "a.csv").write_bytes(b"x\r\n1\r\n")
    assert published_digest() == first
    (tmp_path / "a.csv").write_bytes(b"x\n2\n")
    assert published_digest() != first


def test_the_committed_document_is_of_these_tables_and_explains_every_far_row() -> None:
    text = (data_folder("calibration").parent / "docs" / "ACCURACY.md").read_text(encoding="utf-8")
    assert f"published tables {published_digest()}" in text, "run rlsim validate --published --write-accuracy"
    assert "not explained yet" not in text
