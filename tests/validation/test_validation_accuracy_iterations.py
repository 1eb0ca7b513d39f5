"""The section of the accuracy document on engine iterations, and its picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from measured_tables import row, write

from rlsim.parameters.sets import load_engine_parameters
from rlsim.results import Interval
from rlsim.validation.accuracy import accuracy_document
from rlsim.validation.accuracy_iterations import (
    LEAST_ROWS,
    PICTURE,
    group_explanations,
    iterations_section,
    write_picture,
)
from rlsim.validation.kinds import validate_table
from rlsim.validation.markdown import code, section, table
from rlsim.validation.measured import MeasuredRow, MeasuredTable
from rlsim.validation.published import Published
from rlsim.validation.study import PublishedFigure
from rlsim.validation.validate import Validation, validate

Run = Callable[..., tuple[int, str, str]]
CELLS = (PublishedFigure("group", "label", "x", 2.0, Interval(1.5, 1.0, 2.5)),)

POINT = {
    "id": "alone", "serving_mode": "disagg", "engine": "vllm", "engine_version": "0.18.0",
    "model": "meta-llama/Llama-3.1-8B-Instruct", "precision": "bf16", "gpu": "H100", "decode_gpus_per_engine": "1",
    "tp": "1", "isl": "512", "osl": "128", "concurrency": "8", "decode_batch_per_engine": "8",
    "est_decoding_reqs_per_engine": "7.5", "tpot_ms": "8", "spec_method": "none", "spec_k": "", "acceptance_length": "",
    "decode_step_ms_est": "", "flag": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredTable:
    speculating = {"spec_method": "eagle3", "spec_k": "3", "acceptance_length": "2.2", "tpot_ms": "4"}
    rows = [
        POINT,
        {**POINT, "id": "served", "serving_mode": "agg", "est_decoding_reqs_per_engine": "70", "concurrency": "72"},
        {**POINT, "id": "fast", **speculating},
        {**POINT, "id": "other", "engine": "trtllm", "gpu": "B200", "tpot_ms": "6"},
        {**POINT, "id": "o|d", "model": "no<such>model"},
    ]
    found = validate_table(write(tmp_path_factory.mktemp("t") / "it`s.csv", rows))
    assert isinstance(found, MeasuredTable)
    return found


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Validation:
    return validate(write(tmp_path_factory.mktemp("t") / "t.csv", [row()]), replications=1)


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_the_section_tells_what_was_compared_and_how_to_make_it_again(measured: MeasuredTable) -> None:
    text = iterations_section(measured)
    assert "4 of the 5 rows of `its.csv`" in text
    assert measured.digest in text
    assert "rlsim validate --published --iterations it" in text
    assert f"]({PICTURE})" in text
    assert all(f"- {remark}" in text for remark in measured.remarks)
    assert "speed-up of speculation: 1 pairs" in text


def test_sets_are_told_with_plain_rows_first_and_batches_by_size(measured: MeasuredTable) -> None:
    text = iterations_section(measured)
    sets = [line.split(" | ")[0].strip("| ") for line in lines(text, "| plain") + lines(text, "| speculative rows")]
    assert set(sets) == set(measured.cuts)
    assert sets[-1] == "speculative rows"
    assert sets.index("plain, running batch up to 8") < sets.index("plain, running batch from 64 on")
    (whole,) = lines(text, "| all rows")
    assert whole.split(" | ")[1] == "4"


def test_errors_by_engine_and_device_leave_speculation_out(measured: MeasuredTable) -> None:
    text = iterations_section(measured)
    (vllm,), (trtllm,) = lines(text, "| vllm on H100 |"), lines(text, "| trtllm on B200 |")
    assert vllm.split(" | ")[1] == "2"
    error = 100 * next(row.error or 0.0 for row in measured.scored if row.id == "other")
    assert trtllm.split(" | ")[1:5] == ["1", f"{abs(error):.1f} %", f"{abs(error):.1f} %", f"{error:+.1f} %"]


def test_rows_that_were_not_simulated_are_counted_by_reason(measured: MeasuredTable) -> None:
    (reason,) = (row.skipped for row in measured.rows if row.skipped)
    told = iterations_section(measured).split("### Iterations not simulated")[1]
    assert told.strip().endswith("| 1 |")
    assert "no\\<such\\>model" in told or reason in told


def test_the_worst_groups_have_enough_rows_and_say_why_where_it_is_known(measured: MeasuredTable) -> None:
    assert "No group has as many." in iterations_section(measured)
    known = next(iter(group_explanations()))
    details = {"engine": "e", "gpu": "g", "speculative": False}

    def group(name: str, predicted: float, count: int = LEAST_ROWS) -> list[MeasuredRow]:
        one = MeasuredRow("r", name, "ms", measured=10.0, details=details).predict(predicted, 0.1)
        return [one] * count

    rows = group("near", 10.1) + group(known, 15.0) + group("small", 30.0, LEAST_ROWS - 1)
    text = iterations_section(MeasuredTable("iterations", "t", "0", tuple(rows)))
    told = text.split("### Worst groups")[1].split("###")[0].splitlines()[4:]
    assert [line.split(" | ")[0].strip("| ") for line in told if line] == [known, "near"]
    assert group_explanations()[known][:40] in told[0]
    assert told[1].endswith("| not known |")


def test_without_a_table_the_section_says_that_it_was_left_out(steps: Validation, measured: MeasuredTable) -> None:
    answer = Published("0123", steps, CELLS, (), (), (), ())
    without = accuracy_document(answer, "2026-01-31")
    assert "errors of the engine half\nare left out here" in without
    assert "--iterations TABLE.csv" in without
    assert PICTURE not in without
    assert "### By engine and device" not in without
    given = accuracy_document(replace(answer, iterations=measured), "2026-01-31")
    assert "left out here" not in given
    assert given.count("## Engine iterations") == without.count("## Engine iterations") == 1
    assert '"iterations": null' in answer.to_json()
    assert '"id": "served"' in replace(answer, iterations=measured).to_json()
    assert "Engine iterations by group" in replace(answer, iterations=measured).text()


def test_the_fit_is_told_from_its_file(monkeypatch: pytest.MonkeyPatch, measured: MeasuredTable) -> None:
    start = load_engine_parameters("start")
    fit = start.fit.model_copy(
        update={"rows": 1234, "data_digest": "f" * 16, "median_error": 0.081, "held_out_median_error": 0.123}
    )
    for parameters, told in (
        (start, ("before any fit",)),
        (start.model_copy(update={"fit": fit}), ("1,234", "12.3 %")),
    ):
        monkeypatch.setattr(
            "rlsim.validation.accuracy_iterations.load_engine_parameters", lambda given=parameters: given
        )
        assert all(words in iterations_section(None) for words in told)
    assert "a table other than the one above" in iterations_section(measured)


def test_document_and_picture_are_written_together(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Validation, measured: MeasuredTable
) -> None:
    given: list[object] = []

    def answer(*arguments: object) -> Published:
        given.extend(arguments)
        return Published("0123", steps, CELLS, (), (), (), (), measured)

    monkeypatch.setattr("rlsim.validation.published.run_published", answer)
    file = tmp_path / "docs" / "A.md"
    code_, _, told = run("validate", "--published", "--iterations", "t.csv", "--write-accuracy", file)
    assert (code_, told) == (0, "")
    assert Path("t.csv") in given
    assert file.with_name(PICTURE).read_bytes().startswith(b"\x89PNG")
    assert PICTURE in file.read_text()


def test_nothing_is_drawn_where_no_row_was_simulated(tmp_path: Path, measured: MeasuredTable) -> None:
    empty = replace(measured, rows=tuple(row for row in measured.rows if row.skipped))
    for found in (None, empty):
        write_picture(found, tmp_path)
    assert not list(tmp_path.iterdir())
    assert PICTURE not in iterations_section(empty)


@pytest.mark.parametrize("arguments", [("t.csv",), ("--sweep", "t.csv"), ()])
def test_iterations_belong_to_the_published_tables(run: Run, arguments: tuple[str, ...]) -> None:
    code_, out, told = run("validate", *arguments, "--iterations", "i.csv")
    assert (code_, out) == (2, "")
    assert "--published" in told


def test_a_table_of_another_kind_is_refused_before_anything_is_simulated(run: Run, tmp_path: Path) -> None:
    steps_table = write(tmp_path / "steps.csv", [row()])
    code_, out, told = run("validate", "--published", "--iterations", steps_table)
    assert (code_, out) == (2, "")
    assert "is no table of iterations" in told


def test_markdown_holds_no_markup_of_others() -> None:
    assert table(("a",), []) == ""
    assert section("T", ("a",), []) == ""
    assert section("T", ("a",), [["x|y"]], "after") == "## T\n\n| a |\n|---|\n| x\\|y |\n\nafter"
    assert code("a`b") == "`ab`"
