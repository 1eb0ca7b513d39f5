"""Layers of the rollout engine: what is counted, verification attention, parallel layouts."""

import builders
import numpy as np
import pytest

from rlsim.costs.engine.layers import pipeline_hops, total
from rlsim.schema.architecture import LayerCounts
from rlsim.tables.profile import load_profile

TOKENS = np.array([1.0, 64.0, 512.0])


def test_every_layer_is_counted_once() -> None:
    given = builders.layers(builders.scenario())
    one, all_layers = given.layer_components(TOKENS, True, LayerCounts(1, 0, 0, 1, 0)), given.components(TOKENS, True)
    assert set(one) == {"attention projections", "feed-forward", "elementwise"}
    assert total(all_layers) == pytest.approx(36 * total(one))


def test_shared_experts_and_dense_layers_of_deepseek_v3_are_present() -> None:
    given = builders.layers(builders.deepseek())
    parts = given.components(TOKENS, True)
    assert {"attention projections", "experts", "feed-forward", "all-reduce"} <= set(parts)
    alone = given.layer_components(TOKENS, True, LayerCounts(58, 0, 0, 0, 58))
    assert (parts["experts"].seconds == alone["experts"].seconds).all()


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b"])
def test_verification_attention_costs_between_one_and_k_plus_one_passes(model: str) -> None:
    given = builders.layers(builders.scenario(model))
    sequences, context = np.array([[1.0], [64.0], [256.0]]), np.array([[1.0, 1000.0, 8000.0]])
    once = given.cached_attention(sequences, context, 1).seconds
    for queries in (2, 4, 8):
        verify = given.cached_attention(sequences, context, queries).seconds
        assert (verify >= once).all()
        assert (verify <= queries * once * (1 + 1e-12)).all()
    assert given.cached_attention(sequences, context, 4).seconds == pytest.approx(once, rel=0.05)


def test_absorbed_attention_of_many_heads_becomes_compute_bound_when_verifying() -> None:
    """DeepSeek-V3 with 128 heads on one GPU: 512 rows share one latent vector, far above the machine balance."""
    given = builders.layers(builders.deepseek(engine={"attention_data_parallel": 16}))
    sequences, context = np.array([[1024.0]]), np.array([[16384.0]])
    once, verify = (given.cached_attention(sequences, context, q) for q in (1, 4))
    assert float(verify.seconds[0, 0]) > 1.2 * float(once.seconds[0, 0])
    assert verify.bound == "compute"


def test_sampling_covers_sampled_rows_and_the_head_all_rows() -> None:
    given = builders.layers(builders.scenario())
    rows = np.array([4096.0])
    few, many = given.head_components(rows, rows / 4), given.head_components(rows, rows)
    assert few["LM head"].seconds == many["LM head"].seconds
    assert 4 * few["sampling"].seconds[0] == pytest.approx(many["sampling"].seconds[0])


def test_pipeline_hops_grow_with_stages_and_use_the_network_beyond_the_domain() -> None:
    profile = load_profile("h100_sxm")
    fabric = builders.fabric(profile)
    near = builders.scenario(engine={"pipeline_parallel": 4}).engine
    far = builders.scenario(cluster={"num_gpus": 16}, engine={"tensor_parallel": 4, "pipeline_parallel": 4}).engine
    tokens = np.array([1e5])
    inside = float(pipeline_hops(near, fabric, tokens, 4096).seconds[0])
    assert inside == pytest.approx(3 * (4.7e-6 + 1e5 * 4096 * 2 / fabric.nvlink))
    assert float(pipeline_hops(far, fabric, tokens, 4096).seconds[0]) > 5 * inside
