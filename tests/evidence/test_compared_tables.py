"""Kinds of tables: recognised by their columns, stated by name, and refused in one message."""

import csv
import json
from pathlib import Path

import pytest
from measured_tables import PHASES, ROW, TRAINING, TRANSFER, write

from rlsim.errors import InputError
from rlsim.evidence import Kind
from rlsim.evidence.compare import validate_table
from rlsim.evidence.tables import kind_of
from rlsim.report.text.validation import rows_csv
from rlsim.results.validation import ComparedRow, Score, Validation

TABLES = {
    Kind.STEPS: ROW,
    Kind.ITERATIONS: {
        "id": "a", "engine": "vllm", "model": "Llama-3.1-8B", "precision": "bf16", "gpu": "H100",
        "decode_gpus_per_engine": "1", "isl": "128", "osl": "64", "concurrency": "4", "tpot_ms": "7",
        "spec_method": "none", "serving_mode": "disagg",
    },
    Kind.TRAINING: TRAINING,
    Kind.TRANSFERS: TRANSFER,
    Kind.PHASES: PHASES,
    Kind.CURVES: {
        "id": "a", "curve_kind": "run", "series": "s", "x_name": "step", "x": "1", "y_name": "reward", "y": "0.5",
    },
    Kind.ROLLOUTS: {
        "id": "a", "engine": "trtllm", "model": "Llama-3.1-8B", "precision": "bf16", "gpu": "H100",
        "decode_gpus_per_engine": "1", "isl": "128", "osl": "64", "num_requests": "64", "spec_method": "none",
        "tokens_per_s_per_gpu": "8000",
    },
    Kind.SPECULATION: {
        "id": "a", "model": "Llama-3.1-8B", "draft": "EAGLE-3", "gpu": "H100", "engine": "SGLang", "tp": "1",
        "batch_or_concurrency": "8", "k": "3", "acceptance_length": "2.5", "speedup": "1.6",
    },
    Kind.MEMORY: {
        "id": "a", "kind": "engine", "framework": "vllm", "model": "qwen3-8b", "gpu": "H100", "release": "0.11.0",
        "measured_quantity": "kv_gib", "value": "45",
    },
}  # fmt: skip
"""One row of each kind."""


# Runs of users have a scenario each beside their table (test_wild_runs.py).
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.WILD])
def test_a_table_is_recognised_by_its_columns_and_every_row_answered_in_one_form(kind: Kind, tmp_path: Path) -> None:
    assert kind_of(write(tmp_path / "t.csv", [TABLES[kind]])) is kind
    columns = dict.fromkeys([*reversed(TABLES[kind]), "notes"], "")
    assert kind_of(write(tmp_path / "t.csv", [columns])) is kind
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
    assert [line["id"] for line in csv.DictReader(rows_csv(found).splitlines())] == [e["id"] for e in document["rows"]]
    assert Validation.model_validate(document).to_json() == found.to_json()


def test_a_stated_kind_wins_and_a_table_of_none_is_told_the_nearest_and_what_it_lacks(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [{**ROW, **TABLES[Kind.CURVES]}])
    assert [validate_table(table, kind, replications=1).kind for kind in ("curves", "steps")] == ["curves", "steps"]
    with pytest.raises(InputError, match="kind must be one of steps, iterations"):
        validate_table(table, "epochs")

    def kind(names: list[str]) -> Kind:
        return kind_of(write(tmp_path / "t.csv", [dict.fromkeys(names, "")]))

    columns = [name for name in TABLES[Kind.TRAINING] if name != "gbs"] + ["gbz"]
    with pytest.raises(InputError, match=r"training, the nearest, column gbs .*is missing"):
        kind(columns)
    with pytest.raises(InputError, match="no column of any kind"):
        kind(["a", "b"])
    with pytest.raises(InputError, match="columns gpu, tpot_ms or decode_step_ms_est are missing"):
        kind([name for name in TABLES[Kind.ITERATIONS] if name not in ("gpu", "tpot_ms")])
    (tmp_path / "t.csv").write_text(",".join(TABLES[Kind.CURVES]) + "\n")
    with pytest.raises(InputError, match="has a header but no rows"):
        validate_table(tmp_path / "t.csv")


def test_bias_and_errors_are_shares_of_the_measured_values() -> None:
    def of(group: str, predicted: float | None, high: float = 3.0) -> ComparedRow:
        return ComparedRow(id="x", group=group, measured=2.0, predicted=predicted, low=1.0, high=high)

    rows = [of("a", 1.0), of("a", 2.2), of("a", 3.0, 1.5), of("b", 4.0), of("b", None)]
    score = Score.of(rows[:3])
    assert (score.n, score.median_abs_error, score.p90_abs_error) == (3, 0.5, 0.5)
    assert [score.bias, score.coverage, score.half_width] == pytest.approx([0.1, 2 / 3, 3**0.5])
    groups = Validation.of("training", rows).groups
    assert list(groups) == ["a", "b"]
    assert (groups["b"].n, groups["b"].bias) == (1, 1.0)
    assert Score.of([]).median_abs_error is None
