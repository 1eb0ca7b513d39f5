"""validate(): rows, reasons, statistics, files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from measured_tables import ROW, row, write

from rlsim.errors import InputError
from rlsim.results import PHASES
from rlsim.validation.text import render
from rlsim.validation.validate import PhaseError, RowResult, Validation, quantile_abs, validate

STEP_KEYS = {"id", "measured_s", "predicted_s", "error_pct", "low_s", "high_s", "covered", "skipped", "phases"}
KEYS = STEP_KEYS | {"group", "measured", "predicted", "unit", "low", "high", "reason"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Validation:
    rows = [
        row(id="first", generation_s="10", logprob_s="2", train_s="4", refit_s="3"),
        row(id="twin"),
        row(id="first", avg_seq_len="300"),
        row(id="negative", total_step_time_s="-4"),
        row(id="zero", total_step_time_s="0"),
        row(id="text", total_step_time_s="about 20"),
        row(id="", avg_seq_len=""),
        row(id="=HYPERLINK(1)"),
        row(id="too-big", model="DeepSeek-V3"),
        row(id="phase", generation_s="nan"),
        row(id="async", on_off_policy="async lag 1", refit_s="1", exposed_generation_s="2"),
    ]
    return validate(write(tmp_path_factory.mktemp("tables") / "mixed.csv", rows))


def test_every_row_is_answered_in_order(mixed: Validation) -> None:
    ids = ["first", "twin", "first", "negative", "zero", "text", "line 8", "=HYPERLINK(1)", "too-big", "phase", "async"]
    assert [r.id for r in mixed.rows] == ids
    assert [bool(r.skipped) for r in mixed.rows] == [
        False,
        False,
        True,
        True,
        True,
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    assert mixed.skipped == 7
    assert len(mixed.scored) + mixed.skipped == len(mixed.rows)


def test_reasons_say_what_is_wrong(mixed: Validation) -> None:
    reasons = [r.skipped or "" for r in mixed.rows]
    assert "appears before, in line 2" in reasons[2]
    assert "total_step_time_s must be finite and not negative" in reasons[3]
    assert "total_step_time_s must be above 0" in reasons[4]
    assert "total_step_time_s is not a number" in reasons[5]
    assert "id is not given" in reasons[6]
    assert "infeasible" in reasons[8]
    assert "generation_s must be finite" in reasons[9]


def test_contract_form(mixed: Validation) -> None:
    document = json.loads(mixed.to_json())
    steps = {"rows", "median_abs_error_pct", "p90_abs_error_pct", "interval_coverage", "skipped"}
    assert set(document) == {*steps, "kind", "score", "groups"}
    for entry in document["rows"]:
        assert set(entry) == KEYS
        assert [entry[name] for name in ("measured", "predicted", "low", "high", "unit", "reason")] == [
            *(entry[name] for name in ("measured_s", "predicted_s", "low_s", "high_s")),
            "s",
            entry["skipped"],
        ]
        if entry["skipped"] is None:
            assert entry["low_s"] <= entry["predicted_s"] <= entry["high_s"]
            assert entry["error_pct"] == pytest.approx(100 * (entry["predicted_s"] / entry["measured_s"] - 1), rel=1e-6)
            assert entry["covered"] == (entry["low_s"] <= entry["measured_s"] <= entry["high_s"])
            assert set(entry["phases"]) == set(PHASES)


def test_the_score_holds_shares_of_the_same_errors(mixed: Validation) -> None:
    document = json.loads(mixed.to_json())
    score = document["score"]
    assert score["n"] == len(mixed.scored)
    assert 100 * score["median_abs_error"] == pytest.approx(document["median_abs_error_pct"], rel=1e-8)
    assert 100 * score["p90_abs_error"] == pytest.approx(document["p90_abs_error_pct"], rel=1e-8)
    assert score["coverage"] == document["interval_coverage"]
    assert sum(group["n"] for group in document["groups"].values()) == score["n"]


def test_a_table_has_every_row(mixed: Validation) -> None:
    frame = mixed.to_frame()
    assert list(frame["id"]) == [row.id for row in mixed.rows]
    assert frame["predicted_s"].isna().sum() == mixed.skipped
    assert frame["error_pct"].abs().median() == pytest.approx(mixed.median_abs_error_pct)


def test_rows_that_ask_the_same_get_the_same_answer(mixed: Validation) -> None:
    assert mixed.rows[0].predicted_s == mixed.rows[1].predicted_s == mixed.rows[7].predicted_s


def test_published_phases_stand_beside_ours(mixed: Validation) -> None:
    phases, asynchronous = mixed.rows[0].phases, mixed.rows[10].phases
    assert phases is not None
    assert asynchronous is not None
    assert {name: p.measured_s for name, p in phases.items() if p.measured_s is not None} == {
        "generation_s": 10.0,
        "logprob_s": 2.0,
        "train_s": 4.0,
        "prepare_s": 3.0,
        "exposed_generation_s": 10.0,
    }
    assert (asynchronous["refit_s"].measured_s, asynchronous["prepare_s"].measured_s) == (1.0, None)
    assert asynchronous["exposed_generation_s"].measured_s == 2.0
    synchronous = sum(phases[n].predicted_s for n in ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s"))
    assert synchronous == pytest.approx(mixed.rows[0].predicted_s, rel=1e-6)


def test_the_csv_runs_in_no_spreadsheet(mixed: Validation) -> None:
    lines = list(csv.DictReader(io.StringIO(mixed.to_csv())))
    assert len(lines) == len(mixed.rows)
    assert lines[7]["id"] == "'=HYPERLINK(1)"
    assert float(lines[0]["predicted_s"]) == pytest.approx(mixed.rows[0].predicted_s, rel=1e-6)
    assert lines[0]["measured_prepare_s"] == "3"


def test_text_lists_rows_phases_reasons_and_summary(mixed: Validation) -> None:
    text = render(mixed)
    for wanted in (
        "first",
        "90 % interval",
        "Phases with a published time",
        "Skipped",
        "11 rows, 4 simulated, 7 skipped",
    ):
        assert wanted in text
    assert max(map(len, text.splitlines())) < 260


def test_escape_sequences_in_names_never_reach_the_terminal() -> None:
    evil = RowResult(
        "\x1b[31mred\nline", "m", "d", "r", "sync", 10.0, 11.0, 9.0, 12.0, None, {"train_s": PhaseError(1.0, 2.0)}
    )
    skipped = RowResult("\x1b]0;title\x07", skipped="because \x1b[2J")
    text = render(Validation("t.csv", "0", (evil, skipped)))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_statistics_of_known_errors() -> None:
    """Errors -10, 0 and +30 %: median 10, p90 linear between 10 and 30, two of three covered."""
    rows = [
        RowResult(str(i), measured_s=100.0, predicted_s=p, low_s=p - 15, high_s=p + 15)
        for i, p in enumerate((90.0, 100.0, 130.0))
    ]
    validation = Validation("t", "0", (*rows, RowResult("left out", skipped="why")))
    assert validation.median_abs_error_pct == pytest.approx(10.0)
    assert validation.p90_abs_error_pct == pytest.approx(26.0)
    assert validation.interval_coverage == pytest.approx(2 / 3)
    assert validation.skipped == 1


def test_a_table_without_any_simulable_row_is_answered(tmp_path: Path) -> None:
    validation = validate(write(tmp_path / "t.csv", [row(model="unknown")]))
    document = json.loads(validation.to_json())
    assert document["median_abs_error_pct"] is None
    assert document["skipped"] == 1
    assert "none of which can be simulated" in render(validation)
    assert quantile_abs([], 0.5) is None


def test_a_table_without_needed_columns_or_rows_is_refused(tmp_path: Path) -> None:
    cells = {k: v for k, v in ROW.items() if k != "num_gpus"}
    with pytest.raises(InputError, match="column num_gpus"):
        validate(write(tmp_path / "t.csv", [{**cells, "num_gpu": "8"}]))
    with pytest.raises(InputError, match="no rows"):
        validate(write(tmp_path / "u.csv", [ROW]).parent / _header_only(tmp_path))


def _header_only(folder: Path) -> str:
    (folder / "header.csv").write_text(",".join(ROW) + "\n")
    return "header.csv"


def test_absent_parallel_sizes_are_told(tmp_path: Path) -> None:
    cells = {k: v for k, v in ROW.items() if not k.startswith(("gen_", "train_"))}
    validation = validate(write(tmp_path / "t.csv", [cells]))
    assert validation.scored
    assert "gen_tp" in validation.remarks[0]
    assert validation.remarks[0] in " ".join(render(validation).split())


def test_same_table_same_answer_and_progress_counts_rows(tmp_path: Path) -> None:
    path, seen = write(tmp_path / "t.csv", [row(), row(id="b", avg_seq_len="500")]), list[tuple[int, int]]()
    once = validate(path, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert once == validate(path)
    assert once.digest != validate(write(tmp_path / "u.csv", [row(avg_seq_len="401")])).digest
