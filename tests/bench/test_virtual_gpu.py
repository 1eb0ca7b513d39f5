"""The CUDA paths from end to end on a virtual GPU: every cell runs, nothing waits inside a graph, predictions count
every kernel.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner
from virtual_gpu import DISPATCH_S, KERNEL_S, LINK_BYTES_PER_S, MEMORY_BYTES, virtual_gpu

from bench import operators, recording, run, speculation
from bench.attention import KERNELS
from bench.cases import COLLECTIVES, HANDED_OVER, Case, is_isolated
from bench.measurements import Measurement, Measurements, read_measurements
from bench.operators import OPERATORS, prepare
from bench.timing import StopRule, Watch
from bench.training import NEEDS_GRADIENTS
from bench.workbench import Workbench
from research.assumptions.cases import AssumptionAxes, wider_list, with_assumptions
from research.assumptions.check import check_assumptions
from rlsim.calibration.cases import GPU_QUICK, cases_of
from rlsim.calibration.device_profile import rates_of
from rlsim.calibration.measured_tables import make_tables
from rlsim.calibration.selfcheck import SelfCheck
from rlsim.cli.commands import app
from rlsim.costs.engine import draft, layers
from rlsim.tables.profile import load_profile

GPU = torch.device("cuda", 0)
ASSUMED = AssumptionAxes(
    depths=(1, 4), compiled_depths=(1, 4), chain_elements=(1, 2**20, 2**24), drafts=(1, 3), draft_batches=(1,),
    weight_bytes=2**26, weight_tensors=(1, 16), trained=("qwen3-8b", "qwen3-30b-a3b"), replayed_tokens=(1024,),
)  # fmt: skip
AXES = replace(
    GPU_QUICK, checked_layers=4, rows=(1, 16, 64), batches=(1, 16, 64), queries=(1, 4), contexts=(1024, 8192),
    moe_tokens=(16,), train_tokens=(1024,), copy_bytes=(2**26,), max_head_rows=64,
    composites=((1, 0, 1024), (16, 3, 8192), (64, 0, 1024)),
)  # fmt: skip
"""Axes of few values, among them those of the engine steps, so that little is interpolated; true dimensions."""
SMALL = with_assumptions(cases_of(AXES, on_gpu=True), AXES, ASSUMED, on_gpu=True)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu")
    with virtual_gpu():
        run.run(SMALL, "cuda", out, progress=False)
    return out


@pytest.fixture
def records(measured: Path) -> Measurements:
    return read_measurements(measured / run.MEASUREMENTS)


def check_of(measured: Measurements, out: Path) -> SelfCheck:
    return make_tables(measured, out, "h200_sxm").check


def test_every_operator_of_a_gpu_runs_and_steps_are_the_cost_models(records: Measurements, tmp_path: Path) -> None:
    refused = {record.case.op for record in records.records if record.unsupported}
    assert refused == {*COLLECTIVES, "fused_verification"}, "one GPU has nobody to talk to, and compiles no kernel"
    assert {record.case.op for record in records.of()} == {*OPERATORS, HANDED_OVER}
    assert {record.case.text("dtype") for record in records.of("gemm")} == {"bf16", "fp8"}
    # Without caches and noise only kernels that the cost model does not count and interpolation are left.
    check = check_of(records, tmp_path)
    assert [len(check.of_mode(mode).points) for mode in ("graph", "eager")] == [3, 3]
    assert max(abs(point.error) for point in check.of_mode("graph").points) < 0.09
    assert check.as_engines_run == check.of_mode("graph")


def speculative_error(check: SelfCheck) -> float:
    captured = check.of_mode("graph")
    return replace(captured, points=tuple(p for p in captured.points if p.case.number("draft_length"))).p90_abs_error


@pytest.mark.parametrize("changed", [(draft.Drafting, "passes"), (layers.EngineLayers, "layer_components")])
def test_a_wrong_cost_of_users_shows_in_the_self_check(
    changed: tuple[type, str], records: Measurements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = changed
    right = getattr(owner, name)

    def half_as_much_again(*arguments: object) -> object:
        priced = right(*arguments)
        if isinstance(priced, dict):
            return {part: timed.repeated(1.5) for part, timed in priced.items()}
        if isinstance(priced, tuple):  # draft passes, and what an iteration waits for their launches
            return tuple(timed.repeated(1.5) for timed in priced)
        return priced.repeated(1.5)

    right_error = speculative_error(check_of(records, tmp_path / "right"))
    monkeypatch.setattr(owner, name, half_as_much_again)
    assert speculative_error(check_of(records, tmp_path / "wrong")) > right_error + 0.02


def test_the_documented_commands_make_a_calibration_of_it(measured: Path, tmp_path: Path) -> None:
    arguments = ["measurements", str(measured), "--name", "h200_sxm", "--merge-over", "vllm"]
    told = CliRunner().invoke(app(), ["calibrate", *arguments, "--out", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "measured over imported (h200_sxm, vllm) seconds" in told.output
    scenario = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    options = ["--set", f"hardware={tmp_path / 'h200_sxm.yaml'}", "--json"]
    told = CliRunner().invoke(app(), ["project", str(scenario), *options])
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert any("self-check error of the measured tables" in line for line in answer["assumptions"])


def test_assumptions_stand_beside_the_constants_of_this_gpu(records: Measurements, tmp_path: Path) -> None:
    """What the clock charges comes out of the measurements again, and the cost model agrees where it counts kernels."""
    made, rates = make_tables(records, tmp_path, "h200_sxm"), rates_of(records)
    groups = check_assumptions(records, made.tables, "h200_sxm", load_profile("h200_sxm"), rates).groups
    rows = {one.name: one for group in groups.values() for one in group}
    assert rows["eager_launch_s"].measured == pytest.approx(DISPATCH_S)
    assert rows["KERNEL_FLOOR_S"].measured == pytest.approx(KERNEL_S, rel=1e-3)
    assert rows["max(launch, device), kernels"].measured == pytest.approx(1.0, rel=0.01)
    assert rows["captured layer"].ratio == pytest.approx(1.0, rel=0.05)
    assert abs(rows["overlap_s (vllm)"].measured) < 0.5 * KERNEL_S, "nothing overlaps here"
    for mode in ("one_graph", "graph_each"):
        assert rows[f"draft pass ({mode}), batch 1"].ratio == pytest.approx(1.0, rel=0.15)
    link = rows["host_link_share x host link"]
    assert link.measured == pytest.approx(LINK_BYTES_PER_S, rel=0.01)
    assert rows["launches of a layer"].measured > 50, "forward alone: backward is left out here"
    assert rows["export_tensor_s + load_tensor_s + ipc_tensor_s"].measured < rows["load_tensor_s"].measured * 2


def one_record(case: Case, on: Workbench) -> Measurement:
    return recording.record_of(case, on, Watch(GPU), StopRule(max_seconds=0.01))


def case_of(op: str, **wanted: object) -> Case:
    return next(case for case in SMALL.cases if case.op == op and wanted.items() <= case.params.items())


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_attention_kernel_can_be_captured(kernel: str) -> None:
    with virtual_gpu():
        on = Workbench(GPU, SMALL.models, memory={"kernels 32/8/128": [kernel]})
        for case in (case_of("verify_attention", heads=32, kv_heads=8), case_of("speculative_step", mode="graph")):
            assert one_record(case, on).sample


def test_waiting_inside_a_graph_and_a_tensor_left_on_the_host_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = speculation.verify

    def waiting(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, count = exact(*arguments)
        count.max().item()
        return tokens, count

    monkeypatch.setattr(speculation, "verify", waiting)
    with virtual_gpu():
        on = Workbench(GPU, SMALL.models)
        assert "capturing" in one_record(case_of("speculative_step", mode="graph"), on).unsupported
        assert one_record(case_of("speculative_step", mode="eager"), on).sample
    on_device = operators.rope_table
    monkeypatch.setattr(operators, "rope_table", lambda rows, width, _: on_device(rows, width, torch.device("cpu")))
    with virtual_gpu():
        assert "device" in one_record(case_of("rotary"), Workbench(GPU, SMALL.models)).unsupported


@pytest.mark.nightly  # a second list on the virtual GPU; wrong costs of users are seen by the self-check above
def test_uncounted_kernels_show(records: Measurements, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forward = speculation.decoder_layer
    monkeypatch.setattr(speculation, "decoder_layer", lambda x, *rest: forward(x + 0.0 * x, *rest))
    axes = replace(AXES, models=("qwen3-8b",), rows=(1, 2), composites=((1, 0, 1024),))
    with virtual_gpu():
        longer = run.run(cases_of(axes, on_gpu=True), "cuda", tmp_path, progress=False).whole
    errors = [check_of(whole, tmp_path / str(id(whole))).points[0].error for whole in (records, longer)]
    assert errors[1] < errors[0] - 0.01


def test_the_full_list_fits_into_memory() -> None:
    """The cases of each operator that move most, with what is kept between cases, in 60 % of an H200's memory.

    Without training: under autograd torch tells a fused attention kernel from a naive one only on a real device.
    """
    wanted = wider_list("cuda", quick=False)
    left_out = {*NEEDS_GRADIENTS, *COLLECTIVES}
    cases = [case for case in wanted.cases if case.op not in left_out and not is_isolated(case)]
    cases = [case for case in cases if case.text("kernel") != "triton"]
    largest = [max((case for case in cases if case.op == op), key=volume) for op in sorted({case.op for case in cases})]
    with virtual_gpu() as gpu, torch.inference_mode():
        on = Workbench(GPU, wanted.models)
        for case in largest:
            prepare(case, on).calls[0]()
    assert 2e10 < gpu.memory.peak_bytes < recording._FULL_MEMORY * MEMORY_BYTES


def volume(case: Case) -> float:
    """Declared bytes; of an engine step its cached tokens and logits."""
    numbers = {name: int(case.params.get(name, 0)) for name in ("batch", "context", "draft_length")}
    return case.bytes or float(numbers["batch"] * numbers["context"] * (1 + numbers["draft_length"]))
