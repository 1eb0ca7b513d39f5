"""Operators: every case of a CPU can be prepared and run; the expert layer computes what its definition says."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from bench.cases import COLLECTIVES, Case, CaseList, ModelDims
from bench.collectives import measure_collectives
from bench.moe import deal, moe_feed_forward, random_experts, route, routing_load
from bench.operators import OPERATORS, prepare
from bench.training import NEEDS_GRADIENTS, training_layer
from bench.transformer import random_layer, rope_table
from bench.workbench import Workbench

CPU = torch.device("cpu")
LAWS = ("balanced", "power_law_1.01", "power_law_1.2")


def test_every_operator_of_a_list_prepares_and_runs(tiny: CaseList) -> None:
    on = Workbench(CPU, tiny.models)
    cases = [case for case in tiny.cases if case.op not in COLLECTIVES]
    assert {case.op for case in cases} == set(OPERATORS) - {"host_to_device", "device_to_host", "host_weight_copy"}
    for case in cases:
        with torch.inference_mode(case.op not in NEEDS_GRADIENTS):
            for call in prepare(case, on).calls:
                call()


def test_case_keys_do_not_depend_on_the_order_of_parameters() -> None:
    assert Case("op", {"a": 1, "b": 2}).key == Case("op", {"b": 2, "a": 1}).key


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


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 16, 2), (3, 128, 8), (64, 16, 2), (4096, 128, 8)])
def test_tokens_are_dealt_to_distinct_experts_one_for_each_place(
    distribution: str, tokens: int, experts: int, top_k: int
) -> None:
    chosen = deal(distribution, tokens, experts, top_k)
    assert chosen.shape == (tokens, top_k)
    assert chosen.min() >= 0 and chosen.max() < experts
    assert all(len(set(row)) == top_k for row in chosen.tolist())


def test_loads_follow_the_named_distribution() -> None:
    """Balanced loads are equal; of a density load^-1 from 1 to h the loads at two quantiles are h^(q - p) apart."""
    tokens, experts, top_k = 4096, 128, 8
    loads = {name: np.bincount(deal(name, tokens, experts, top_k).ravel(), minlength=experts) for name in LAWS}
    assert np.ptp(loads["balanced"]) == 0
    low, high = (float(np.quantile(loads["power_law_1.01"], q)) for q in (0.6, 0.9))
    assert high / low == pytest.approx((0.8 * tokens) ** 0.3, rel=0.15)
    imbalance = [routing_load(deal(name, tokens, experts, top_k), experts)[1] for name in LAWS]
    assert imbalance[0] == 1.0 and imbalance[1] > 3 and imbalance[2] > 1.5 * imbalance[1]


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
    cases = [Case(op, {"bytes": size, "ranks": 2, "mode": "eager"}) for size in (4096, 65536) for op in COLLECTIVES]
    samples = list(measure_collectives(cases, CPU))
    assert [case for case, _ in samples] == cases
    assert all(sample.seconds_median > 0 for _, sample in samples)
