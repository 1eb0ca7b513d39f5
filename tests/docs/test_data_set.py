"""The data set of measured RL steps: tidy, checked, the same bytes each time."""

import hashlib
import json
from pathlib import Path

import pandas
import pytest
from pydantic import ValidationError


def test_the_data_set_is_tidy_and_says_what_it_holds(script, tmp_path: Path) -> None:
    program = script("scripts/data_set")
    for name in ("a", "b"):
        program.main(tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["README.md", "croissant.json", "rl_steps.csv", "rl_steps.parquet", "scenarios.jsonl"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    frame = pandas.read_parquet(tmp_path / "a" / "rl_steps.parquet")
    assert list(frame.columns) == list(program.Step.model_fields) and frame["id"].is_unique
    rows = pandas.read_csv(tmp_path / "a" / "rl_steps.csv")
    assert len(rows) == len(frame) and (rows["step_s"].fillna(0) == frame["step_s"].fillna(0)).all()
    # A source is in one part alone, or a test would know what a fit saw.
    assert (frame.groupby("source")["split"].nunique() == 1).all() and set(frame["split"]) == {"train", "test"}
    described = json.loads((tmp_path / "a" / "croissant.json").read_text())
    for one in described["distribution"]:
        assert hashlib.sha256((tmp_path / "a" / one["name"]).read_bytes()).hexdigest() == one["sha256"]
    runs = [json.loads(line)["id"] for line in (tmp_path / "a" / "scenarios.jsonl").read_text().splitlines()]
    assert set(runs) <= set(frame["id"])


def test_what_cannot_be_true_is_refused(script) -> None:
    program = script("scripts/data_set")
    row = dict(program.table("verl_runs.csv")[0])
    assert program.step_of(row).step_s == 790.1
    for changes in (
        {"train_s": "900"}, {"num_gpus": "0"}, {"total_step_s": "-1"}, {"model": ""},
        {"total_step_s": "", "generation_s": "", "old_logprob_s": "", "train_s": ""},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            program.step_of({**row, **changes})
