"""Operators: every case of a CPU can be prepared and run; the expert layer computes what its definition says."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from bench import attention
from bench.attention import AttentionPlan, cached_attention, plan_attention, reference_attention, usable_kernels
from bench.cases import COLLECTIVES, Case, CaseList, ModelDims
from bench.collectives import measure_collectives
from bench.moe import deal, moe_feed_forward, random_experts, route, routing_load
from bench.operators import OPERATORS, prepare
from bench.training import NEEDS_GRADIENTS, training_layer
from bench.transformer import random_layer, rope_table, rotate
from bench.workbench import Workbench

CPU = torch.device("cpu")
LAWS = ("balanced", "power_law_1.01", "power_law_1.2")


def test_every_operator_of_a_list_prepares_and_runs_whatever_the_order_of_its_parameters(tiny: CaseList) -> None:
    on = Workbench(CPU, tiny.models)
    cases = [case for case in tiny.cases if case.op not in COLLECTIVES]
    on_gpus = {"host_to_device", "device_to_host", "host_weight_copy", "fused_verification"}
    assert {case.op for case in cases} == set(OPERATORS) - on_gpus
    for case in cases:
        with torch.inference_mode(case.op not in NEEDS_GRADIENTS):
            for call in prepare(case, on).calls:
                call()
    assert Case("op", {"a": 1, "b": 2}).key == Case("op", {"b": 2, "a": 1}).key


def test_an_expert_layer_is_the_weighted_sum_of_its_experts_and_loads_follow_the_law() -> None:
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
    # Balanced loads are equal; of a density load^-1 from 1 to h the loads at two quantiles are h^(q - p) apart.
    tokens, experts, top_k = 4096, 128, 8
    loads = {name: np.bincount(deal(name, tokens, experts, top_k).ravel(), minlength=experts) for name in LAWS}
    assert np.ptp(loads["balanced"]) == 0
    low, high = (float(np.quantile(loads["power_law_1.01"], q)) for q in (0.6, 0.9))
    assert high / low == pytest.approx((0.8 * tokens) ** 0.3, rel=0.15)
    imbalance = [routing_load(deal(name, tokens, experts, top_k), experts)[1] for name in LAWS]
    assert imbalance[0] == 1.0 and imbalance[1] > 3 and imbalance[2] > 1.5 * imbalance[1]


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 16, 2), (3, 128, 8), (64, 16, 2), (4096, 128, 8)])
def test_tokens_are_dealt_to_distinct_experts(distribution: str, tokens: int, experts: int, top_k: int) -> None:
    chosen = deal(distribution, tokens, experts, top_k)
    assert chosen.shape == (tokens, top_k)
    assert chosen.min() >= 0 and chosen.max() < experts
    assert all(len(set(row)) == top_k for row in chosen.tolist())


def test_a_training_layer_is_causal_and_rotation_depends_on_relative_position_only() -> None:
    dims = ModelDims(hidden=32, heads=4, kv_heads=2, head_dim=8, width=48, vocabulary=8)
    layer = random_layer(dims, CPU, torch.float32, torch.Generator().manual_seed(2))
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(3))
    changed = x.clone()
    changed[:, 4:] += 1.0
    angles = rope_table(6, 8, CPU)
    before, after = training_layer(x, layer, dims, angles), training_layer(changed, layer, dims, angles)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert not torch.allclose(before[:, 4:], after[:, 4:])
    angles = rope_table(64, 16, CPU)
    x, y = torch.randn(1, 16), torch.randn(1, 16)
    near = (rotate(x, angles[3]) * rotate(y, angles[10])).sum()
    far = (rotate(x, angles[43]) * rotate(y, angles[50])).sum()
    assert torch.allclose(near, far, atol=1e-4)
    assert torch.allclose(rotate(x, angles[9]).norm(), x.norm(), atol=1e-5)


def test_collectives_run_between_two_processes() -> None:
    cases = [Case(op, {"bytes": size, "ranks": 2, "mode": "eager"}) for size in (4096, 65536) for op in COLLECTIVES]
    samples = list(measure_collectives(cases, CPU))
    assert [case for case, _ in samples] == cases
    assert all(sample.seconds_median > 0 for _, sample in samples)


def is_the_reference(kernel: str, lengths: list[int], queries: int, heads: int, kv_heads: int) -> bool:
    """Whether a kernel gives what the definition gives, over three ragged prefixes."""
    generator, held = torch.Generator().manual_seed(queries), torch.tensor(lengths)
    query = torch.randn(3, queries, heads, 16, generator=generator)
    keys, values = (torch.randn(3, 32, kv_heads, 16, generator=generator) for _ in range(2))
    plan = plan_attention(kernel, held, queries, 32, heads // kv_heads)
    rows = torch.arange(3)[:, None]
    out = cached_attention(plan, query, keys[rows, plan.slots], values[rows, plan.slots], keys, values)
    return torch.allclose(out, reference_attention(query, keys, values, held), atol=1e-5)


@pytest.mark.parametrize("queries", [1, 2, 8])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4)])
def test_masked_kernel_is_bottom_right_causal(queries: int, heads: int, kv_heads: int) -> None:
    assert is_the_reference("sdpa_masked", [0, 5, 17], queries, heads, kv_heads)


def flash_by_definition(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: AttentionPlan,
    max_query: int,
    used: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What FlashAttention promises for packed queries [T, H, D] over used lengths: output, and log-sum-exp [H, T]."""
    out, lse = torch.empty_like(query), torch.empty(query.shape[1], query.shape[0])
    group = query.shape[1] // keys.shape[2]
    for sequence, (start, end) in enumerate(zip(plan.query_offsets[:-1], plan.query_offsets[1:], strict=True)):
        length = int(used[sequence])
        k, v = (cache[sequence, :length].repeat_interleave(group, dim=1) for cache in (keys, values))
        scores = torch.einsum("qhd,shd->hqs", query[start:end], k) / query.shape[-1] ** 0.5
        if causal:
            last = length - max_query + torch.arange(max_query)
            scores = scores.masked_fill(torch.arange(length) > last[:, None], float("-inf"))
        lse[:, start:end] = scores.logsumexp(-1)
        out[start:end] = torch.einsum("hqs,shd->qhd", scores.softmax(-1), v)
    return out, lse


@pytest.mark.parametrize("kernel", ["flash_varlen", "flash_prefix"])
@pytest.mark.parametrize("queries", [1, 4])
def test_flash_paths_pack_and_merge_rightly(kernel: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash", flash_by_definition)
    assert is_the_reference(kernel, [9, 1, 20], queries, 8, 2)


def test_a_kernel_that_computes_something_else_or_swaps_memory_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash", flash_by_definition)
    right = [kernel for kernel in attention.KERNELS if kernel != "flash_prefix_swapped"]
    assert usable_kernels(CPU, torch.float32, 8, 2, 16) == right

    def scaled(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flash_by_definition(*arguments)
        return 1.1 * out, lse

    monkeypatch.setattr(attention, "_flash", scaled)
    assert usable_kernels(CPU, torch.float32, 8, 2, 16) == ["sdpa_masked"]

    def swapped(
        query: torch.Tensor, keys: torch.Tensor, *rest: torch.Tensor | AttentionPlan | int | bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flash_by_definition(query, keys, *rest)
        batch, kv_heads = query.shape[0], keys.shape[2]
        return out, lse.view(kv_heads, -1, batch).transpose(1, 2).contiguous().view(-1, batch)

    monkeypatch.setattr(attention, "_flash", swapped)
    assert "flash_prefix_swapped" in usable_kernels(CPU, torch.float32, 8, 2, 16)
    assert "flash_prefix" not in usable_kernels(CPU, torch.float32, 8, 2, 16)
