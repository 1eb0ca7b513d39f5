"""Training steps, transfers, phases and curves, each beside the part of rlsim that predicts it."""

from pathlib import Path

import pytest
from measured_tables import PHASES, ROW, TRAINING, write

from rlsim.evidence.compare import validate_table
from rlsim.evidence.training import _cuts, _measured_rows
from rlsim.results.validation import Validation
from rlsim.workload.acceptance import two_parameter_rates


def validated(tmp_path: Path, *rows: dict[str, str]) -> Validation:
    return validate_table(write(tmp_path / "t.csv", list(rows)))


def test_a_measured_step_wins_and_training_follows_what_rows_say(tmp_path: Path) -> None:
    found = validated(tmp_path, TRAINING, {**TRAINING, "id": "b", "step_time_s": ""})
    assert [row.measured for row in found.rows] == [9.0, 10.0]
    assert found.rows[0].predicted == found.rows[1].predicted
    assert [row.cuts[0] for row in found.rows] == ["step time measured", "step time from the throughput"]
    changes = [{}, {"gbs": "256"}, {"precision": "MXFP8"}, {"recompute": "full"}, {"num_gpus": "16"}]
    found = validated(tmp_path, *({**TRAINING, "id": str(i), **change} for i, change in enumerate(changes)))
    plain, doubled, fp8, recomputed, spread = (float(row.predicted or 0) for row in found.rows)
    assert 1.8 * plain < doubled <= 2 * plain
    assert fp8 < plain
    assert 1.2 * plain < recomputed < 1.4 * plain
    assert spread == pytest.approx(0.5 * plain, rel=0.1)
    # Four of 32 layers keep the LM head; frozen weights spare one of three products.
    changes = [{}, {"layers_override": "4"}, {"training_kind": "lora"}, {"pp": "4"}, {"pp": "4", "vp": "4"}]
    found = validated(tmp_path, *({**TRAINING, "id": str(i), **change} for i, change in enumerate(changes)))
    plain, cut, thin, staged, interleaved = (float(row.predicted or 0) for row in found.rows)
    assert 4 / 32 * plain < cut < 0.4 * plain
    assert 0.6 * plain < thin < 0.8 * plain
    assert interleaved < staged


@pytest.mark.parametrize(("changes", "reason"), [
    ({"training_kind": "checkpoint_resume"}, "training_kind 'checkpoint_resume' is not simulated"),
    ({"layers_override": "8 layers"}, "layers_override is not a number"),
    ({"model": "DeepSeekV3", "ep": "8", "num_gpus": "64", "layers_override": "3"}, "no MoE layer among the 3"),
    ({"model": "gpt-oss-120b", "ep": "8", "layers_override": "3"}, "sliding_window_layers 18 exceeds num_layers 3"),
    ({"model": "Qwen3_30B_a3B", "ep": ""}, "expert parallel size of a mixture of experts is not given"),
    ({"packed": "1"}, "lengths of packed sequences"),
    ({"precision": "NVFP4"}, "trainer.precision nvfp4 is not supported by h100_sxm"),
    ({"precision": "int8"}, "training precision 'int8' is not simulated"),
    ({"precision": ""}, "precision is not given"),
    ({"gbs": ""}, "gbs is not given"),
    ({"seq_len": "0.5"}, "seq_len must be at least 1 token"),
    ({"gbs": "1e8"}, "more than 200,000 sequences"),
    ({"step_time_s": "", "implied_step_time_s": ""}, "step_time_s and implied_step_time_s are not given"),
    ({"tp": "3"}, "trainer.tensor_parallel"),
    ({"flag": "superseded"}, "flag superseded"),
])  # fmt: skip
def test_training_that_is_not_simulated(changes: dict[str, str], reason: str, tmp_path: Path) -> None:
    row = validated(tmp_path, {**TRAINING, **changes}).rows[0]
    assert reason in str(row.skipped)
    assert row.predicted is None


def test_every_known_phase_is_a_record_also_where_it_cannot_be_simulated(tmp_path: Path) -> None:
    found = validated(tmp_path, PHASES)
    assert {row.id: row.measured for row in found.rows} == {
        "a:step": 30.0, "a:exposed_generation": 9.0, "a:logprob": 2.5, "a:train": 5.0, "a:refit": 2.0,
    }  # fmt: skip
    assert all(row.predicted for row in found.rows)
    assert found.groups.keys() == {"step", "exposed_generation", "logprob", "train", "refit"}
    by_group = {row.group: float(row.predicted or 0) for row in found.rows}
    assert by_group["step"] > sum(by_group[name] for name in ("exposed_generation", "logprob", "train"))
    silent = {**PHASES, "id": "none", **dict.fromkeys([name for name in PHASES if name.endswith("_s")], "")}
    found = validated(tmp_path, {**PHASES, "mean_response_len": ""}, {**PHASES, "id": "b", "gpu": "MI250X"}, silent)
    assert len(found.rows) == 5 + 5 + 1
    assert {row.skipped for row in found.rows[:5]} == {"the mean or the longest response is not given"}
    assert {row.skipped for row in found.rows[5:10]} == {"no hardware profile for 'MI250X'"}
    assert (found.rows[-1].id, found.rows[-1].skipped) == ("none", "no phase is given")


STEP = {**ROW, "framework_version": "NeMo-RL v0.6.0"}
STEP_PHASES = {"generation_s": "8", "logprob_s": "3", "train_s": "6", "refit_s": "4"}


def test_phases_of_a_table_of_steps(tmp_path: Path) -> None:
    table = write(tmp_path / "s.csv", [{**STEP, "id": "s", **STEP_PHASES}, {**STEP, "id": "t"}])
    found = validate_table(table, "phases")
    measured = {row.id: row.measured for row in found.scored}
    assert measured == {"s:step": 20.0, "s:generation": 8.0, "s:logprob": 3.0, "s:train": 6.0, "s:refit": 4.0}
    assert [(row.id, row.skipped) for row in found.rows if row.skipped] == [
        ("t:step", "no phase is given besides the whole step")
    ]
    by_phase = {row.group: float(row.predicted or 0.0) for row in found.scored}
    parts = sum(by_phase[name] for name in ("generation", "logprob", "train", "refit"))
    assert by_phase["step"] == pytest.approx(parts, rel=0.05)
    assert found.cuts["phases, without the whole step"].n == 4
    assert found.cuts["train, nemo_rl-0.6"].n == 1
    assert found.rows[0].details["stack"] == "nemo_rl-0.6"


@pytest.mark.parametrize(("changes", "stack"), [
    ({"framework": "verl"}, "verl"),
    ({"framework": "NeMo-RL", "framework_version": "0.5.0"}, "nemo_rl-0.5"),
    ({"framework": "MarinSkyRL (SkyRL)"}, "nemo_rl-0.7"),
])  # fmt: skip
def test_phases_run_on_the_stack_of_their_framework(changes: dict[str, str], stack: str, tmp_path: Path) -> None:
    found = validated(tmp_path, {**PHASES, **changes})
    assert {row.details["stack"] for row in found.scored} == {stack}
    told = [remark for remark in found.remarks if "no stack of" in remark]
    skyrl = ["no stack of MarinSkyRL (SkyRL) is known: its rows take nemo_rl-0.7"]
    assert told == (skyrl if "SkyRL" in changes["framework"] else [])


def curve(k: int, length: float, series: str = "s", kind: str = "acceptance_by_k") -> dict[str, str]:
    return {
        "id": f"{series}{k}", "curve_kind": kind, "series": series, "x_name": "k", "x": str(k), "y_name": "length",
        "y": f"{length:.6f}", "unit": "tokens", "flag": "",
    }  # fmt: skip


def test_a_point_is_predicted_from_the_others_of_its_series(tmp_path: Path) -> None:
    lengths = {k: 1 + float(two_parameter_rates(0.8, 0.95, k).sum()) for k in range(1, 6)}
    exact = [curve(k, length) for k, length in lengths.items()]
    found = validated(tmp_path, *exact, curve(1, 1.5, "lonely"), curve(3, 2.0, "lonely"), curve(1, 0.4, "run", "run"))
    for row, length in zip(found.rows[:5], lengths.values(), strict=True):
        assert row.predicted == pytest.approx(length, rel=1e-3)
        assert row.covered
    assert {row.skipped for row in found.rows[5:7]} == {
        "its series has fewer than 2 other draft lengths to fit the process to"
    }
    assert found.rows[7].skipped == "nothing of rlsim predicts this yet"
    # What a point says of itself does not reach its own prediction.
    moved = validated(tmp_path, *exact[:4], curve(5, 1.2 * lengths[5]))
    assert moved.rows[4].predicted == found.rows[4].predicted
    assert moved.rows[3].predicted != found.rows[3].predicted


def cells(**changes: str) -> dict[str, str]:
    return {**TRAINING, "release": "NeMo 26.02.01", **changes}


@pytest.mark.parametrize(("changes", "group"), [
    ({}, "Megatron-Bridge 26.02, dense, H100, BF16"),
    ({"release": "nemo:26.06", "model": "Qwen3_30B_a3B"}, "Megatron-Bridge 26.06, MoE, H100, BF16"),
    ({"gpu": "GB300 NVL72", "precision": "FP8-MX"}, "Megatron-Bridge 26.02, dense, GB300, MXFP8"),
    ({"precision": "MXFP8"}, "Megatron-Bridge 26.02, dense, H100, MXFP8"),
    ({"precision": "FP8 block/subchannel (128x128 Hopper)"}, "Megatron-Bridge 26.02, dense, H100, FP8"),
    ({"precision": "nvfp4"}, "Megatron-Bridge 26.02, dense, H100, NVFP4"),
    ({"framework": "prime-rl trainer (FSDP2)", "release": "unknown"}, "prime-rl trainer, dense, H100, BF16"),
    ({"framework": "torchtitan", "release": "2024-12"}, "torchtitan 2024-12, dense, H100, BF16"),
    ({"model": "no such model", "release": ""}, "Megatron-Bridge, H100, BF16"),
    ({"framework": "", "release": "", "precision": ""}, "dense, H100"),
])  # fmt: skip
def test_a_group_tells_release_family_device_and_precision(changes: dict[str, str], group: str) -> None:
    assert _measured_rows("a", cells(**changes))[0].group == group


def test_cuts_are_the_parts_of_the_group_and_release_by_family_and_rack() -> None:
    assert _cuts(cells(gpu="GB200", model="Qwen3_30B_a3B")) == (
        "release: Megatron-Bridge 26.02", "family: MoE", "device: GB200", "precision: BF16",
        "MoE on NVL72 racks, Megatron-Bridge 26.02",
    )  # fmt: skip
    assert _cuts(cells())[-1] == "dense on 8-GPU nodes, Megatron-Bridge 26.02"
    assert _cuts({"model": "none", "gpu": "", "precision": ""}) == ()
    details = _measured_rows("a", cells())[0].details
    assert (details["framework"], details["series"], details["family"]) == ("Megatron-Bridge", "26.02", "dense")
