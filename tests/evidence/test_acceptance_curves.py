"""rlsim calibrate --from-curves: processes and drift back from curves made with them, and tables that cannot be."""

import csv
from pathlib import Path

import pytest
import yaml

from rlsim.cli import main
from rlsim.errors import InputError
from rlsim.evidence.acceptance import fit_curves
from rlsim.loading.scenario import load_scenario
from rlsim.workload.acceptance import two_parameter_rates

HEAD = "curve_kind,series,setting,x_name,x,y_name,y,unit\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *arguments])
    return int(ended.value.code or 0)


def table(path: Path, *rows: str) -> Path:
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def by_k(name: str, first: float, decay: float) -> list[str]:
    return [
        f"acceptance_by_k,{name},,drafted,{k},mean_acceptance_length,"
        f"{1 + two_parameter_rates(first, decay, k).sum():.6f},tokens"
        for k in range(1, 7)
    ]


def test_processes_come_back_and_stand_as_in_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    positions = [f"acceptance_by_position,own_mtp,,position,{i},rate,{p:.6f},1"
                 for i, p in enumerate(two_parameter_rates(0.9, 0.98, 3), start=1)]  # fmt: skip
    rows = [*by_k("one_eagle3", 0.8, 0.97), *by_k("two_eagle-3", 0.7, 0.97), *positions]
    found = fit_curves(table(tmp_path / "c.csv", *rows))
    assert found.processes["one_eagle3"].first == pytest.approx(0.8, abs=0.002)
    assert found.processes["own_mtp"].decay == pytest.approx(0.98, abs=0.002)
    assert max(fit.worst_tokens for fit in found.processes.values()) < 0.002
    path, out = table(tmp_path / "c.csv", *by_k("some_eagle3", 0.8, 0.97)), tmp_path / "fit.yaml"
    assert run("curves", str(path), "--out", str(out)) == 0
    assert "acceptance over draft length" in capsys.readouterr().out
    section = yaml.safe_load(out.read_text())["acceptance"]["some_eagle3"]["speculation"]
    words = [f"speculation.{key}={value}" for key, value in section.items()]
    assert load_scenario("quickstart", ["speculation.acceptance_length=null", *words]).speculation.first_acceptance
    first = out.read_bytes()
    assert run("--from-curves", str(path), "--out", str(out)) == 0
    assert out.read_bytes() == first


@pytest.mark.parametrize(("rows", "named"), [
    (by_k("a", 0.8, 0.9)[:1], "holds no curve"),
    (["acceptance_by_k,a,,k,2,mean_acceptance_length,3.5,tokens"], "line 2: y must be an acceptance length from 1"),
    (["acceptance_by_k,a,,k,2.5,mean_acceptance_length,2,tokens"], "line 2: x must be a whole number"),
    (["acceptance_by_k,a,,k,2,mean_acceptance_length,many,tokens"], "line 2: y is not a number"),
    (["acceptance_by_k,,,k,2,mean_acceptance_length,2,tokens"], "line 2: series is not given"),
    (["acceptance_by_k,a,,k"], "line 2: .*has 4 cells"),
    (["acceptance_by_position,a,,i,1,rate,1.5,1"], "rate from 0 to 1"),
    (["acceptance_by_position,a,,i,2,rate,0.5,1"], "every position from 1"),
])  # fmt: skip
def test_tables_that_cannot_be_are_named_with_file_and_line(tmp_path: Path, rows: list[str], named: str) -> None:
    path = table(tmp_path / "c.csv", *rows)
    with pytest.raises(InputError, match=named) as error:
        fit_curves(path)
    assert "c.csv" in str(error.value) and "\n" not in str(error.value)


def test_a_missing_column_is_named_other_rows_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.csv"
    path.write_text("curve_kind,serie,x,y_name,y\n")
    assert run("--from-curves", str(path), "--out", str(tmp_path / "out.yaml")) == 2
    assert "series (there is 'serie')" in capsys.readouterr().err
    assert not (tmp_path / "out.yaml").exists()
    other = "draft_drift,run,,training_step,0,generation_time,220,s"
    found = fit_curves(table(path, other, *by_k("a", 0.8, 0.9)))
    assert list(found.processes) == ["a"]
    with path.open() as file:
        assert len(list(csv.reader(file))) == 8
