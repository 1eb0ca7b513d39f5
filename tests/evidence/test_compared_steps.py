"""validate(): rows, reasons, statistics, files."""

import csv
import json
from pathlib import Path

import pytest
from measured_tables import row, write

from rlsim.evidence.compare import validate_table as validate
from rlsim.report.text.validation import rows_csv
from rlsim.report.text.validation import validation_text as render
from rlsim.results import PHASES
from rlsim.results.validation import ComparedRow, PhaseError, Validation

STEP_KEYS = {"id", "measured_s", "predicted_s", "error_pct", "low_s", "high_s", "covered", "skipped", "phases"}


KEYS = STEP_KEYS | {"group", "measured", "predicted", "unit", "low", "high", "reason"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Validation:
    rows = [row(id="first", generation_s="10", logprob_s="2", train_s="4", refit_s="3"), row(id="twin"),
            row(id="first", avg_seq_len="300"), row(id="negative", total_step_time_s="-4"),
            row(id="zero", total_step_time_s="0"), row(id="text", total_step_time_s="about 20"),
            row(id="", avg_seq_len=""), row(id="=HYPERLINK(1)"), row(id="too-big", model="DeepSeek-V3"),
            row(id="phase", generation_s="nan"),
            row(id="async", on_off_policy="async lag 1", train_tp="2", refit_s="1",
                exposed_generation_s="2")]  # fmt: skip
    return validate(write(tmp_path_factory.mktemp("tables") / "mixed.csv", rows))


def test_every_row_is_answered_in_order_or_skipped_with_its_reason(mixed: Validation) -> None:
    wanted = {"first": "", "twin": "", "first again": "appears before, in line 2",
              "negative": "total_step_time_s must be finite and not negative",
              "zero": "total_step_time_s must be above 0", "text": "total_step_time_s is not a number",
              "line 8": "id is not given", "=HYPERLINK(1)": "", "too-big": "infeasible",
              "phase": "generation_s must be finite", "async": ""}  # fmt: skip
    for found, (name, reason) in zip(mixed.rows, wanted.items(), strict=True):
        assert found.id == name.removesuffix(" again")
        assert reason in (found.skipped or "") and bool(found.skipped) == bool(reason)
    assert (mixed.skipped, len(mixed.scored)) == (7, 4)


def test_contract_form_with_published_phases_beside_ours(mixed: Validation) -> None:
    document = json.loads(mixed.to_json())
    steps = {"rows", "median_abs_error_pct", "p90_abs_error_pct", "interval_coverage", "skipped"}
    assert set(document) == {*steps, "kind", "score", "groups"}
    for entry in document["rows"]:
        assert set(entry) == KEYS
        assert [entry[name] for name in ("measured", "predicted", "low", "high", "unit", "reason")] == [
            *(entry[name] for name in ("measured_s", "predicted_s", "low_s", "high_s")), "s", entry["skipped"],
        ]  # fmt: skip
        if entry["skipped"] is None:
            assert entry["low_s"] <= entry["predicted_s"] <= entry["high_s"]
            assert entry["error_pct"] == pytest.approx(100 * (entry["predicted_s"] / entry["measured_s"] - 1), rel=1e-6)
            assert entry["covered"] == (entry["low_s"] <= entry["measured_s"] <= entry["high_s"])
            assert set(entry["phases"]) == set(PHASES)
    phases, asynchronous = mixed.rows[0].phases, mixed.rows[10].phases
    assert {name: p.measured for name, p in phases.items() if p.measured is not None} == {
        "generation_s": 10.0, "logprob_s": 2.0, "train_s": 4.0, "prepare_s": 3.0, "exposed_generation_s": 10.0,
    }  # fmt: skip
    assert (asynchronous["refit_s"].measured, asynchronous["prepare_s"].measured) == (1.0, None)
    assert asynchronous["exposed_generation_s"].measured == 2.0
    synchronous = sum(phases[n].predicted for n in ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s"))
    assert synchronous == pytest.approx(mixed.rows[0].predicted, rel=1e-6)


def test_cells_run_in_no_spreadsheet_and_escape_sequences_never_reach_the_terminal(mixed: Validation) -> None:
    lines = list(csv.DictReader(rows_csv(mixed).splitlines()))
    assert [line["id"] for line in lines][7] == "'=HYPERLINK(1)"
    assert lines[0]["measured_generation_s"] == "10" and lines[2]["predicted_s"] == ""
    odd = ComparedRow(id="-2+3", group="\t=1", measured=-1.5)
    assert "'-2+3,'\t=1,-1.5" in rows_csv(Validation.of("training", (odd,)))
    phases = {"train_s": PhaseError(predicted=1.0, measured=2.0)}
    values = {"measured": 10.0, "predicted": 11.0, "low": 9.0, "high": 12.0}
    evil = ComparedRow(id="\x1b[31mred\nline", group="m\x1b[1m", **values, phases=phases)
    skipped = ComparedRow(id="\x1b]0;title\x07", skipped="because \x1b[2J")
    text = render(Validation.of("steps", (evil, skipped)))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_same_table_same_answer_and_progress_counts_rows(tmp_path: Path) -> None:
    path, seen = write(tmp_path / "t.csv", [row(), row(id="b", avg_seq_len="500")]), list[tuple[int, int]]()
    once = validate(path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert once == validate(path)
    assert once.digest != validate(write(tmp_path / "u.csv", [row(avg_seq_len="401")])).digest
