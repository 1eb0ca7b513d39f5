"""Prediction of composites from operators: interpolation, and the sum itself on times that are known."""

import math
from typing import Any

import pytest

from rlsim.calibration.cases import composite
from rlsim.calibration.cell import Cell
from rlsim.calibration.grids import CPU_QUICK, cells_of
from rlsim.calibration.predict import OperatorTimes, interpolate, predict_composite
from rlsim.calibration.selfcheck import CheckedPoint, SelfCheck, check_records, check_text
from rlsim.errors import InputError

UNIT_S = 1e-6


def record(cell: Cell, seconds: float) -> dict[str, Any]:
    return {"cell": cell.key, "op": cell.op, "params": dict(cell.params), "sample": {"seconds_median": seconds}}


def unit_times() -> OperatorTimes:
    """Every operator takes UNIT_S, parts of an eager step nothing."""
    cells = cells_of(CPU_QUICK, False, False, 1)
    return OperatorTimes(record(cell, 1e-12 if cell.op == "host_enqueue" else UNIT_S) for cell in cells)


def test_interpolation_is_exact_on_power_laws_and_at_the_nodes() -> None:
    points = {(math.log(x), math.log(y)): 3e-6 * x**0.7 * y**0.4 for x in (1, 4, 64) for y in (2, 8)}
    for x, y in ((1, 2), (2, 3), (10, 8), (64, 5)):
        assert interpolate(points, (math.log(x), math.log(y))) == pytest.approx(3e-6 * x**0.7 * y**0.4)


def test_beyond_the_range_growth_is_between_none_and_proportional() -> None:
    falling = {(math.log(x),): s for x, s in ((1, 4e-6), (2, 3e-6))}
    assert interpolate(falling, (math.log(8),)) == pytest.approx(3e-6)
    steep = {(math.log(x),): s for x, s in ((1, 1e-6), (2, 9e-6))}
    assert interpolate(steep, (math.log(8),)) == pytest.approx(36e-6)
    assert interpolate(steep, (math.log(0.5),)) == pytest.approx(0.5e-6)


def test_points_need_no_full_grid() -> None:
    points = {(0.0, 0.0): 1e-6, (0.0, 1.0): 2e-6, (1.0, 0.0): 2e-6}
    assert interpolate(points, (1.0, 0.0)) == pytest.approx(2e-6)
    assert interpolate(points, (1.0, 1.0)) == pytest.approx(2e-6)
    assert interpolate(points, (0.5, 0.0)) == pytest.approx(math.sqrt(2) * 1e-6)


def test_a_decode_iteration_counts_each_operator_of_each_layer() -> None:
    """12 operators a layer; ends: norm, feature copy, head, plan, softmax, sampling; 11 small kernels."""
    times = unit_times()
    one, two = (predict_composite(times, composite("tiny", n, 2, 0, 100, "graph"), "cuda") for n in (1, 2))
    assert two - one == pytest.approx(12 * UNIT_S)
    assert one == pytest.approx((12 + 6 + 11) * UNIT_S)


def test_each_further_draft_token_costs_one_pass_with_head_and_draw() -> None:
    times = unit_times()
    seconds = [predict_composite(times, composite("tiny", 1, 2, k, 100, "graph"), "cuda") for k in (1, 2, 3)]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0])
    assert seconds[1] - seconds[0] == pytest.approx((8 + 3 + 2 + 1 + 1 + 3 + 4) * UNIT_S)


def test_an_eager_step_is_bound_by_its_host_on_a_gpu_and_adds_its_glue_on_a_cpu() -> None:
    cells = cells_of(CPU_QUICK, False, False, 1)
    slow_host = OperatorTimes(record(cell, 1e-2 if cell.op == "host_enqueue" else UNIT_S) for cell in cells)
    step = composite("tiny", CPU_QUICK.checked_layers, 2, 2, 100, "eager")
    assert predict_composite(slow_host, step, "cuda") == pytest.approx((CPU_QUICK.checked_layers + 2 + 1) * 1e-2)
    assert predict_composite(unit_times(), step, "cpu") == predict_composite(unit_times(), step, "cuda")
    assert predict_composite(slow_host, step, "cpu") > predict_composite(slow_host, step, "cuda") * 0.9


def test_composites_never_enter_the_prediction() -> None:
    step = composite("tiny", 1, 2, 0, 100, "graph")
    cells = cells_of(CPU_QUICK, False, False, 1)
    records = [record(cell, UNIT_S) for cell in cells]
    with_truth = [*records, record(step, 123.0)]
    predicted = predict_composite(OperatorTimes(records), step, "cuda")
    assert predict_composite(OperatorTimes(with_truth), step, "cuda") == predicted
    checked = check_records(with_truth, {"device": "d", "device_type": "cuda"})
    assert checked.points[-1].measured_s == 123.0
    assert checked.points[-1].predicted_s == predicted


def test_what_was_not_measured_is_named() -> None:
    with pytest.raises(InputError, match="hold no 'gemm' with"):
        unit_times().seconds("gemm", m=1, n=7, k=7, dtype="bf16")


def test_errors_are_median_and_ninetieth_percentile_of_absolute_values() -> None:
    points = tuple(
        CheckedPoint("m", 1, "graph", 1, 0, 1, 1.0, 1.0 + error / 100) for error in (-10, 1, 2, 3, 4, 5, 6, 7, 8, 20)
    )
    check = SelfCheck("d", points)
    assert check.median_abs_error == pytest.approx(0.055)
    assert check.p90_abs_error == pytest.approx(0.10)
    assert "graph: median error 5.5 %, p90 10.0 % over 10 composites" in check_text(check)


def test_a_composite_that_cannot_be_predicted_is_skipped_with_its_reason() -> None:
    records = [record(composite("tiny", 1, 2, 0, 100, "graph"), 1.0)]
    check = check_records(records, {"device": "d", "device_type": "cuda"})
    assert check.points == ()
    assert "1 composites skipped: the measurements hold no 'launch_in_graph'" in check_text(check)
