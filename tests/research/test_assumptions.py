"""Assumptions beside measurements: times that follow known laws give back their constants, and what rlsim uses is read
from the loaded objects.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from bench.cases import COMPILED, HANDED_OVER, Case, ModelDims, read_cases
from bench.measurements import Facts, Measurement, Measurements, Metadata, Sample
from research.assumptions import __main__ as program
from research.assumptions import check
from research.assumptions.cases import depth_iteration
from research.assumptions.launches import launch_assumptions
from research.assumptions.rows import Assumption, Basis
from research.assumptions.training import training_assumptions
from research.assumptions.transfers import transfer_assumptions
from rlsim.calibration.calibrate import calibrate_measurements
from rlsim.calibration.cases import dims_of
from rlsim.calibration.training_cases import trained_layer
from rlsim.costs.engine.device_times import COMPILED_LAUNCH
from rlsim.costs.engine.layers import ATTENTION_LAUNCHES, DENSE_LAUNCHES, UNCOMPILED_LAUNCHES
from rlsim.loading.models import load_card
from rlsim.parameters.sets import shipped
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import load_profile
from tests.calibration.test_measured_tables import SOME_GPU, measurements

US = 1e-6
DENSE, MIXTURE = dims_of(load_card("qwen3-8b")), dims_of(load_card("qwen3-30b-a3b"))
BASIS = Basis(load_profile("h100_sxm"), OperatorTables.load("h100_sxm", "vllm"), shipped())
GPU = replace(SOME_GPU, device="NVIDIA H100 80GB HBM3")
DEPTHS = (2, 4, 8)


def record(case: Case, seconds: float, kernels: int | None = None, host_s: float | None = None) -> Measurement:
    return Measurement(case, Sample(seconds, seconds, seconds, 7, 0.0), facts=Facts(kernels=kernels, host_s=host_s))


def measured(records: Iterable[Measurement], metadata: Metadata = GPU) -> Measurements:
    return Measurements(metadata, {"qwen3-8b": DENSE, "qwen3-30b-a3b": MIXTURE}, list(records))


def row(rows: Iterable[Assumption], name: str, what: str = "") -> Assumption:
    (found,) = [one for one in rows if one.name == name and what in one.what]
    return found


def depth(layers: int, mode: str, seconds: float, kernels: int, host_s: float | None = None) -> Measurement:
    return record(depth_iteration("qwen3-8b", DENSE, layers, mode), seconds, kernels, host_s)


def iterations() -> list[Measurement]:
    """Layers of 30 kernels that take 4 us each to launch, compiled 10 of 5 us; replayed a layer takes 120 us."""
    eager = [depth(n, "eager", (60 + 130 * n) * US, 9 + 30 * n, (50 + 120 * n) * US) for n in DEPTHS]
    compiled = [depth(n, COMPILED, (60 + 130 * n) * US, 9 + 10 * n, (40 + 50 * n) * US) for n in DEPTHS]
    graph = [depth(n, "graph", (40 + 120 * n) * US, 9 + 30 * n) for n in DEPTHS]
    return eager + compiled + graph


def copies(op: str, seconds_of: dict[int, float], **params: str) -> list[Measurement]:
    sizes = {"bytes": 2**28}
    return [record(Case(op, {**sizes, "tensors": n, **params}), seconds) for n, seconds in seconds_of.items()]


def law(per_tensor_s: float, rate: float) -> dict[int, float]:
    """Seconds of 2^28 bytes by the number of tensors."""
    return {n: 2**28 / rate + (n - 1) * per_tensor_s for n in (1, 64, 512)}


def test_copies_of_weights_give_seconds_of_a_tensor_and_the_rate() -> None:
    records = copies("weight_copy", law(3 * US, 1.2e12), path="tensors")
    records += copies("weight_copy", law(9 * US, 4e11), path="bucket")
    records += copies("host_weight_copy", law(0.0, 5e10), memory="pinned", direction="to_device")
    records += copies("host_weight_copy", law(20 * US, 2e9), memory="pageable", direction="to_host")
    records += copies(HANDED_OVER, law(150 * US, 1e12), path="tensors")
    rows, values = transfer_assumptions(measured(records), BASIS), BASIS.fitted.transfers.values
    loaded = row(rows, "load_tensor_s")
    assert (loaded.used, loaded.measured) == (pytest.approx(values.load_tensor_s), pytest.approx(3 * US))
    bucket = row(rows, "export_tensor_s + load_tensor_s", "pack, copy, unpack")
    assert (bucket.used, bucket.measured) == (
        pytest.approx(values.export_tensor_s + values.load_tensor_s), pytest.approx(9 * US),
    )  # fmt: skip
    linked = row(rows, "host_link_share x host link")
    link = BASIS.profile.host_link_bandwidth_bytes_per_s.value
    assert (linked.used, linked.measured) == (pytest.approx(values.host_link_share * link), pytest.approx(5e10))
    assert not [one for one in rows if one.name == "none (pinned tensors)"], "no seconds, no row"
    paged, each = row(rows, "pageable_out_bytes_per_s"), row(rows, "copy_s")
    assert (paged.used, paged.measured) == (pytest.approx(values.pageable_out_bytes_per_s), pytest.approx(2e9))
    assert (each.used, each.measured) == (pytest.approx(values.copy_s), pytest.approx(20 * US))
    assert each.origin.startswith("assumed") and paged.origin.startswith("fitted")
    handed = row(rows, "export_tensor_s + load_tensor_s + ipc_tensor_s")
    used = values.export_tensor_s + values.load_tensor_s + values.ipc_tensor_s
    assert (handed.used, handed.measured) == (pytest.approx(used), pytest.approx(150 * US))
    assert row(rows, "none (IPC copies)").ratio is None


def layers(model: str, dims: ModelDims) -> list[Measurement]:
    """1,024 and 8,192 tokens; the host takes 0.1 ms forward and 0.15 ms more backward."""
    out = []
    for tokens in (1024, 8192):
        out += [
            record(trained_layer("layer_forward", tokens, model, dims), tokens * 0.3 * US, None, 100 * US),
            record(trained_layer("layer_forward_backward", tokens, model, dims), tokens * US, None, 250 * US),
            record(trained_layer("layer_forward_backward", tokens, model, dims, "graph"), tokens * 0.8 * US, 90, None),
        ]
    return out


def test_training_layers_stand_beside_the_trainers_prices() -> None:
    records = [*layers("qwen3-8b", DENSE), *layers("qwen3-30b-a3b", MIXTURE)]
    rows = training_assumptions(measured(records), BASIS)
    sets = BASIS.fitted
    slow, fast = (row(rows, f"qwen3-8b layer ({of})", "8,192 tokens, eager") for of in ("RL trainers", "pretraining"))
    assert slow.measured == fast.measured == pytest.approx(8192 * US)
    assert fast.used / slow.used == pytest.approx(sets.steps.dense_efficiency, rel=0.02)
    flops = next(one.case.flops for one in records if one.case.op == "layer_forward_backward" and one.seconds > 8e-3)
    assert 0.3 < flops / fast.used / BASIS.profile.bf16_flops.value < 0.9, "near what a tuned H100 layer reaches"
    mixture = [row(rows, "qwen3-30b-a3b layer (pretraining)", f"8,192 tokens, {mode}") for mode in ("eager", "graph")]
    assert mixture[1].used < mixture[0].used, "graphs take away of its host time"
    floor = row(rows, "moe_host_layer_s, qwen3-30b-a3b")
    experts_s = 128 * sets.training.expert_host_s * sets.training.bf16_expert_host_share
    assert floor.used == pytest.approx(sets.steps.moe_host_layer_s + experts_s)
    assert floor.measured == pytest.approx(100 * US)
    assert row(rows, "HOST_BACKWARD", "qwen3-8b").measured == pytest.approx(1.5)
    assert row(rows, "launches of a layer", "qwen3-8b").measured == 90
    share = row(rows, "graph_host_share")
    assert (share.used, share.measured) == (sets.training.graph_host_share, pytest.approx(0.8))


def test_kernels_cost_the_slope_of_the_host_and_used_values_are_of_loaded_objects() -> None:
    """Change what is loaded, and the row changes with it: no figure is a copy."""
    values = BASIS.fitted.transfers.values.model_copy(update={"load_tensor_s": 1.0})
    fitted = structs.replace(BASIS.fitted, transfers=BASIS.fitted.transfers.model_copy(update={"values": values}))
    launch = BASIS.profile.eager_launch_s.model_copy(update={"value": 2.0})
    changed = Basis(BASIS.profile.model_copy(update={"eager_launch_s": launch}), BASIS.tables, fitted)
    records = [*iterations(), *copies("weight_copy", law(3 * US, 1e12), path="tensors")]
    assert row(transfer_assumptions(measured(records), changed), "load_tensor_s").used == 1.0
    assert row(launch_assumptions(measured(records), changed), "eager_launch_s").used == 2.0
    rows = launch_assumptions(measured(iterations()), BASIS)
    launch_s = BASIS.profile.eager_launch_s.value
    eager, compiled = row(rows, "eager_launch_s"), row(rows, "COMPILED_LAUNCH x eager_launch_s")
    assert (eager.used, eager.measured) == (launch_s, pytest.approx(4 * US))
    assert eager.ratio == pytest.approx(4 * US / launch_s)
    assert (compiled.used, compiled.measured) == (pytest.approx(COMPILED_LAUNCH * launch_s), pytest.approx(5 * US))
    assert row(rows, "COMPILED_LAUNCH").measured == pytest.approx(5 / 4)
    assert row(rows, "UNCOMPILED_LAUNCHES").measured == pytest.approx(30)
    counted = row(rows, "EngineLayers.launches")
    assert (counted.used, counted.measured) == (ATTENTION_LAUNCHES + DENSE_LAUNCHES, pytest.approx(10))
    layer = row(rows, "UNCOMPILED_LAUNCHES x eager_launch_s")
    assert (layer.used, layer.measured) == (pytest.approx(UNCOMPILED_LAUNCHES * launch_s), pytest.approx(120 * US))
    assert row(rows, "GRAPH_NODE_S").measured == pytest.approx(4 * US)


def test_the_program_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["assumptions", "--cases", str(tmp_path / "cases.json"), "--quick"])
    program.main()
    wanted = read_cases(tmp_path / "cases.json")
    path = measurements(tmp_path, wanted, wanted.cases, GPU)
    calibrate_measurements(path, tmp_path)
    monkeypatch.setattr("sys.argv", ["assumptions", str(path), str(tmp_path)])
    program.main()
    told = capsys.readouterr().out
    assert told.startswith("assumptions of the cost model beside measurements on NVIDIA H100 80GB HBM3")
    heads = [line.strip() for line in told.splitlines()]
    assert all(any(head.startswith(group) for head in heads) for group, _ in check.GROUPS)
