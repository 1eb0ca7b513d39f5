"""The fit of transfer parameters to measured transfers: what it recovers, what it leaves alone, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from measured_tables import write
from typer.testing import CliRunner

from rlsim.cli import app
from rlsim.errors import InputError
from rlsim.parameters.sets import load_transfer_parameters
from rlsim.schema.transfer_parameters import TransferParameters
from rlsim.validation.fit_transfers import ASSUMED, TransferFitResult, fit_transfers
from rlsim.validation.halves import TableRecords
from rlsim.validation.table import read_table
from rlsim.validation.transfer_rows import validate_transfers

NEEDED = ("id", "model", "gpu", "method")
MODELS = ("Qwen3-8B", "Qwen3-32B", "Qwen3-30B-A3B", "Qwen3-235B-A22B", "DeepSeek-V3")


def row(model: str, method: str = "NCCL broadcast") -> dict[str, str]:
    return {
        "id": f"{model}-{method}", "framework": "NeMo-RL", "model": model, "gpu": "H100", "method": method,
        "train_parallelism": "", "gen_parallelism": "TP8", "train_gpus": "16", "gen_gpus": "16",
        "placement": "disaggregated", "time_s": "1000", "flag": "",
    }  # fmt: skip


ROWS = [row(model, method) for model in MODELS for method in ("NCCL broadcast", "per-tensor NCCL broadcast")]


def truth() -> TransferParameters:
    """The start with another share of the network and another host time per tensor."""
    start = load_transfer_parameters("start")
    values = start.values.model_copy(update={"network_share": 0.15, "load_tensor_s": 2e-4})
    return start.model_copy(update={"values": values})


def measured(folder: Path, rows: list[dict[str, str]], name: str = "t.csv") -> Path:
    """A table whose times are those of the truth."""
    path = write(folder / name, rows)
    found = validate_transfers(TableRecords(name, "", read_table(path, NEEDED)), truth())
    return write(path, [{**r, "time_s": str(p.predicted)} for r, p in zip(rows, found.rows, strict=True)])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> TransferFitResult:
    return fit_transfers([measured(tmp_path_factory.mktemp("fit"), ROWS)], name="own")


def test_times_of_known_values_are_met(found: TransferFitResult) -> None:
    assert found.parameters.fit.rows == len(ROWS)
    assert found.parameters.fit.median_error < 0.02
    family = found.parameters.family("nemo_rl")
    assert family.rows == len(ROWS)
    assert found.parameters.values.network_share * family.link_factor == pytest.approx(0.15, rel=0.1)


def test_values_that_no_row_holds_stay_where_the_fit_starts(found: TransferFitResult) -> None:
    start = load_transfer_parameters("start").values
    assert all(getattr(found.parameters.values, name) == getattr(start, name) for name in ASSUMED)
    assert found.parameters.values.delta_tensor_s == pytest.approx(start.delta_tensor_s, rel=1e-3)
    assert found.parameters.family("verl").link_factor == pytest.approx(1.0, rel=1e-3)


def test_few_numbers_are_determined_by_few_rows(found: TransferFitResult) -> None:
    assert 1 < found.parameters.fit.determined < len(ROWS) < found.parameters.fit.values


def test_a_measurement_counts_once_and_an_objection_in_one_table_holds_in_all(tmp_path: Path) -> None:
    first = measured(tmp_path, ROWS)
    again = tmp_path / "again.csv"
    again.write_bytes(first.read_bytes())
    assert fit_transfers([first, again]).parameters.fit.rows == len(ROWS)
    records = [dict(record.cells) for record in read_table(first, NEEDED)]
    records[0]["flag"] = "too_fast"
    write(again, records)
    assert fit_transfers([first, again]).parameters.fit.rows == len(ROWS) - 1


def test_the_file_reads_back(found: TransferFitResult, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(found.to_yaml(), encoding="utf-8")
    assert load_transfer_parameters(str(path)) == found.parameters


def test_a_table_without_a_row_to_price_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row can be priced"):
        fit_transfers([write(tmp_path / "t.csv", [row("secret")])])


def test_the_command_writes_the_file_and_tells_the_errors(tmp_path: Path) -> None:
    table, out = measured(tmp_path, ROWS[:4]), tmp_path / "own.yaml"
    result = CliRunner().invoke(app, ["calibrate", "--from-transfers", str(table), "--name", "own", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "nemo_rl: 4 rows" in result.output
    assert yaml.safe_load(out.read_text())["name"] == "own"
    both = ["calibrate", "--from-transfers", str(table), "--from-steps", str(table)]
    assert CliRunner().invoke(app, both).exit_code != 0
