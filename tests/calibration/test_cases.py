"""Lists of cases: complete, without duplicates, within their bounds, with the least work of each case."""

import pytest

from bench.cases import COLLECTIVES, COMPILED, ENQUEUE_CONTEXT, HANDED_OVER, is_isolated, read_cases, write_cases
from bench.operators import OPERATORS
from research.assumptions.cases import depth_iteration, draft_passes, wider_list
from rlsim.calibration.cases import (
    CPU_FULL,
    CPU_QUICK,
    DISTRIBUTIONS,
    GPU_FULL,
    GPU_QUICK,
    CaseAxes,
    case_list,
    cases_of,
    dims_of,
    fused_verification,
    gemm,
    moe,
    prefill_attention,
    trained_layer,
)
from rlsim.calibration.selfcheck import card_of
from rlsim.loading.models import load_card
from rlsim.schema.drafter import default_eagle3_draft
from rlsim.schema.engine import Engine

AXES = [(GPU_QUICK, True), (GPU_FULL, True), (CPU_QUICK, False), (CPU_FULL, False)]


@pytest.mark.parametrize(("axes", "on_gpu"), AXES)
def test_lists_are_complete_and_without_duplicates(axes: CaseAxes, on_gpu: bool) -> None:
    cases = wider_list("cuda" if on_gpu else "cpu", quick=axes in (GPU_QUICK, CPU_QUICK)).cases
    own = cases_of(axes, on_gpu).cases
    keys = {case.key for case in own}
    assert [case for case in cases if case.key in keys] == own
    assert len({case.key for case in cases}) == len(cases)
    linked, apart = {"host_to_device", "device_to_host", "host_weight_copy", "fused_verification"}, set(COLLECTIVES)
    wanted = set(OPERATORS) | apart | {HANDED_OVER} if on_gpu else (set(OPERATORS) | apart) - linked
    assert {case.op for case in cases} == wanted
    cached = [case for case in cases if "attention" in case.op and "context" in case.params]
    assert all(case.number("batch") * case.number("context") <= axes.max_cached_tokens for case in cached)
    assert min(axes.contexts) >= ENQUEUE_CONTEXT


def test_steps_are_measured_where_no_operator_was_isolated_cases_need_processes_and_a_list_survives(tmp_path) -> None:
    for axes in (GPU_FULL, CPU_QUICK, CPU_FULL):
        assert {context for _, _, context in axes.composites}.isdisjoint({1 + c for c in axes.contexts})
        assert {batch for batch, _, _ in axes.composites} - set(axes.batches)
    found = {(case.op, case.text("mode")) for case in wider_list("cuda", False).cases if is_isolated(case)}
    assert found == {("depth_iteration", COMPILED), (HANDED_OVER, "")}
    assert not any(is_isolated(case) for case in wider_list("cpu", False).cases)
    wanted = case_list("cpu", True)
    write_cases(tmp_path / "cases.json", wanted)
    assert read_cases(tmp_path / "cases.json") == wanted
    named = Engine.model_json_schema()["properties"]["expert_balance"]["enum"]
    assert set(DISTRIBUTIONS) == set(named)


def test_declared_work_of_operators_and_of_what_stands_beside_assumptions() -> None:
    dims, mixture = dims_of(load_card("qwen3-8b")), dims_of(load_card("qwen3-30b-a3b"))
    product = gemm(8, 4096, 4096)
    assert (product.flops, product.bytes) == (2 * 8 * 4096**2, 2 * (4096**2 + 2 * 8 * 4096))
    assert prefill_attention(1, 2, dims).flops == 2 * 4 * dims.heads * dims.head_dim
    weights = 3 * mixture.hidden * mixture.width
    assert moe(1, mixture, "balanced").flops == pytest.approx(2 * 8 * weights)
    assert moe(4096, mixture, "balanced").bytes > 128 * 2 * weights
    verified, drawn = (fused_verification(2, k, 1000, 100) for k in (3, 0))
    assert (verified.bytes, drawn.bytes) == (2 * 2 * 5 * 1000 + 4 * 2 * 100, 2 * 2 * 2 * 1000)
    assert (verified.flops, drawn.flops) == (5 * 8 * 1000 + 2 * 2 * 1100, 5 * 2 * 1000 + 2 * 2 * 1000)
    # What a layer more, a pass more and a tensor more have to do.
    dims = dims_of(load_card("qwen3-8b"))
    layer = dims.hidden * (dims.qkv_width + dims.heads * dims.head_dim + 3 * dims.width)
    shallow, deep = (depth_iteration("qwen3-8b", dims, depth, "graph") for depth in (2, 3))
    assert deep.flops - shallow.flops == pytest.approx(2 * layer, rel=0.02)
    assert deep.bytes - shallow.bytes == pytest.approx(2 * layer, rel=0.01)
    draft, few, many = dims.draft_layer, *(draft_passes("qwen3-8b", dims, 1, (1, k, 8), "eager") for k in (2, 3))
    matrices = draft.hidden * (2 * draft.qkv_width + draft.heads * draft.head_dim + 3 * draft.width + draft.vocabulary)
    assert many.bytes - few.bytes == pytest.approx(2 * matrices, rel=0.01)
    copies = [case for case in wider_list("cuda", False).cases if case.op in ("weight_copy", HANDED_OVER)]
    assert {case.bytes / case.number("bytes") for case in copies if case.text("path") == "tensors"} == {2.0}
    assert {case.bytes / case.number("bytes") for case in copies if case.op == "weight_copy"} == {2.0, 6.0}
    eager, replayed = (trained_layer("layer_forward_backward", 64, "qwen3-8b", dims, mode)
                       for mode in ("eager", "graph"))  # fmt: skip
    assert (eager.flops, eager.bytes) == (replayed.flops, replayed.bytes) and eager.key != replayed.key


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-30b-a3b", "llama-3.1-70b"])
def test_dimensions_are_those_of_the_model_card(name: str) -> None:
    card = load_card(name)
    dims, again = dims_of(card), card_of(dims_of(card))
    for key in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "qk_norm", "moe"):
        assert getattr(again, key) == getattr(card, key), key
    assert dims.draft_layer.width == default_eagle3_draft(card).intermediate_size
