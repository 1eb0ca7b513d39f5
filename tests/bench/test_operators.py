"""Operators: every cell of a CPU grid can be prepared and run; the expert layer computes what its definition says."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from rlsim.calibration.cases import ENQUEUE_CONTEXT, collectives, gemm, moe, prefill_attention
from bench.cases import Cell
from bench.collectives import measure_collectives
from bench.cases import MODELS, ModelDims, model_dims
from rlsim.calibration.grids import CPU_FULL, CPU_QUICK, GPU_FULL, GPU_QUICK, Grid, cells_of
from bench.moe import moe_feed_forward, random_experts, route, routing_load
from bench.operators import OPERATORS, prepare
from bench.training import NEEDS_GRADIENTS, training_layer
from bench.transformer import random_layer, rope_table
from bench.workbench import Workbench
from bench import BenchError

CPU = torch.device("cpu")
COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}


def test_every_operator_of_a_grid_prepares_and_runs(tiny_grid: Grid) -> None:
    bench = Workbench(CPU)
    cells = [cell for cell in cells_of(tiny_grid, False, False, 1) if cell.op not in COLLECTIVES]
    assert {cell.op for cell in cells} == set(OPERATORS) - {"host_to_device", "device_to_host"}
    for cell in cells:
        with torch.inference_mode(cell.op not in NEEDS_GRADIENTS):
            for call in prepare(cell, bench).calls:
                call()


@pytest.mark.parametrize("grid", [GPU_QUICK, GPU_FULL, CPU_QUICK, CPU_FULL])
def test_grids_are_complete_and_without_duplicates(grid: Grid) -> None:
    cells = cells_of(grid, True, True, 2)
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.op for cell in cells} == set(OPERATORS) | COLLECTIVES
    assert all(
        cell.number("batch") * cell.number("context") <= grid.max_cached_tokens
        for cell in cells
        if "attention" in cell.op and "context" in dict(cell.params)
    )


def test_composites_are_measured_at_points_that_no_operator_was_measured_at() -> None:
    for grid in (GPU_FULL, CPU_QUICK, CPU_FULL):
        assert {context for _, _, context in grid.composites}.isdisjoint(grid.contexts) or grid is GPU_FULL
        assert {batch for batch, _, _ in grid.composites} - set(grid.batches)


def test_declared_work() -> None:
    dims = model_dims("qwen3-8b")
    product = gemm(8, 4096, 4096)
    assert (product.flops, product.bytes) == (2 * 8 * 4096**2, 2 * (4096**2 + 2 * 8 * 4096))
    causal = prefill_attention(1, 2, dims)
    assert causal.flops == 4 * 3 * dims.heads * dims.head_dim
    mixture = model_dims("qwen3-30b-a3b")
    one, many = moe(1, mixture, "balanced"), moe(4096, mixture, "balanced")
    weights = 3 * mixture.hidden * mixture.width * 2
    assert one.bytes == pytest.approx(8 * weights + 2 * 2 * mixture.hidden)
    assert many.bytes == pytest.approx(128 * weights + 4096 * 2 * 2 * mixture.hidden, rel=1e-6)


def test_cell_keys_do_not_depend_on_the_order_of_parameters() -> None:
    assert Cell("op", (("a", 1), ("b", 2))).key == Cell("op", (("b", 2), ("a", 1))).key


def test_shipped_dimensions_are_consistent() -> None:
    for name in MODELS:
        dims = model_dims(name)
        assert dims.heads % dims.kv_heads == 0
        assert dims.qkv_width == (dims.heads + 2 * dims.kv_heads) * dims.head_dim
    with pytest.raises(BenchError, match="no dimensions for model 'gpt'"):
        model_dims("gpt")
    with pytest.raises(BenchError, match="kv_heads=3 does not divide heads=4"):
        model_dims({"hidden": 8, "heads": 4, "kv_heads": 3, "head_dim": 2, "width": 8, "vocabulary": 4})


def test_expert_layer_is_the_weighted_sum_of_its_experts() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = random_experts(16, 8, 6, CPU, torch.float32, generator)
    x = torch.randn(10, 16, generator=generator)
    scale, chosen = route(x, weights.router, 2)
    assert torch.allclose(scale.sum(-1), torch.ones(10))
    expected = torch.zeros_like(x)
    for token in range(10):
        for weight, expert in zip(scale[token], chosen[token], strict=True):
            gate, up = (x[token] @ weights.gate_up[expert]).chunk(2)
            expected[token] += weight * ((F.silu(gate) * up) @ weights.down[expert])
    assert torch.allclose(moe_feed_forward(x, weights, 2), expected, atol=1e-5)


def test_skewed_routing_is_measurably_less_balanced() -> None:
    generator = torch.Generator().manual_seed(1)
    router = torch.randn(32, 64, generator=generator) / 8
    x = torch.randn(512, 64, generator=generator)
    _, even = routing_load(route(x, router, 2)[1], 32)
    _, uneven = routing_load(route(x, router, 2, torch.randn(32, generator=generator))[1], 32)
    assert uneven > even >= 1.0


def test_training_layer_is_causal() -> None:
    dims = ModelDims(hidden=32, heads=4, kv_heads=2, head_dim=8, width=48, vocabulary=8)
    layer = random_layer(dims, CPU, torch.float32, torch.Generator().manual_seed(2))
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(3))
    changed = x.clone()
    changed[:, 4:] += 1.0
    angles = rope_table(6, 8, CPU)
    before, after = training_layer(x, layer, dims, angles), training_layer(changed, layer, dims, angles)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_collectives_run_between_two_processes() -> None:
    cells = collectives((4096, 65536), 2)
    samples = dict(measure_collectives(cells, CPU))
    assert list(samples) == cells
    assert all(sample.seconds_median > 0 for sample in samples.values())


def test_host_work_is_measured_where_the_device_has_little_to_do() -> None:
    assert all(min(grid.contexts) >= ENQUEUE_CONTEXT for grid in (GPU_QUICK, GPU_FULL, CPU_QUICK, CPU_FULL))
