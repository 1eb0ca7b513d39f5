"""The fit of training terms: known ones are found again, flagged rows stay out, and the command writes a set."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.parameters.sets import load_training_parameters, shipped
from rlsim.validation.fit_training import fit_training
from rlsim.validation.training_rows import predicted_s, trainer_setup

ROW = {
    "framework": "Megatron-Bridge", "release": "NeMo 26.04", "training_kind": "pretrain", "model": "LLAMA3_8B",
    "gpu": "H100", "num_gpus": "8", "precision": "BF16", "gbs": "64", "mbs": "1", "seq_len": "4096", "tp": "1",
    "pp": "1", "cp": "1", "vp": "", "ep": "1", "flag": "", "step_time_s": "",
}  # fmt: skip
MOE = {"model": "Qwen3_30B_a3B", "ep": "8"}
KINDS = (
    {}, {"mbs": "2"}, {"seq_len": "8192", "mbs": "2"}, {"precision": "FP8"}, {"tp": "2"}, {"pp": "2"}, MOE,
    {**MOE, "mbs": "4"}, {**MOE, "precision": "FP8", "mbs": "4"}, {**MOE, "num_gpus": "16"},
)  # fmt: skip
WANTED = {"dense_efficiency": 0.8, "grouped_efficiency": 0.5, "moe_host_layer_s": 0.004}


def _table(folder: Path, **flagged: str) -> Path:
    """Steps that the wanted terms predict; ``flagged`` changes a last row, which is flagged and measured wrong."""
    truth = shipped(load_training_parameters("start").model_copy(update=WANTED))
    rows = []
    for number, change in enumerate(KINDS * 2):
        cells = {**ROW, **change, "id": str(number), "gbs": "64" if number < len(KINDS) else "256"}
        rows.append({**cells, "step_time_s": repr(predicted_s(trainer_setup(cells), truth))})
    if flagged:
        rows.append({**ROW, "id": "bad", "step_time_s": "1e-3", **flagged})
    path = folder / "training.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_known_terms_are_found_again_and_flagged_rows_stay_out(tmp_path: Path) -> None:
    found = fit_training(_table(tmp_path, flag="superseded"))
    record = found.parameters.fit
    assert record.rows == 2 * len(KINDS)
    assert record.median_error < 0.02
    start = load_training_parameters("start")
    for name, value in WANTED.items():  # the prior keeps some of the way to the start
        left, whole = (np.log(getattr(one, name) / value) for one in (found.parameters, start))
        assert abs(left) < 0.6 * abs(whole)
    assert set(record.held_out_median_error) == {"model", "release", "device", "framework"}
    assert found.parameters.framework("megatron_bridge").rows == 2 * len(KINDS)
    assert found.parameters.framework("torchtitan").rows == 0
    path = tmp_path / "own.yaml"
    path.write_text(found.to_yaml())
    given = load_scenario("quickstart", [f"simulation.training_parameters={path}"])
    assert given.simulation.training_parameters == found.parameters


def test_a_table_without_usable_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "training.csv"
    path.write_text(",".join(ROW) + "\n" + ",".join({**ROW, "model": "Nobody-7B"}.values()) + "\n")
    with pytest.raises(InputError, match=r"training\.csv: only 0 rows can be priced; a fit needs at least 4"):
        fit_training(path)
