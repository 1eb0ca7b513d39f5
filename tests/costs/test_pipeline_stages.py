"""Which pipeline stage sets the pace, and what travels between them."""

from dataclasses import replace

import builders
import numpy as np
import pytest
from builders import ONE, VOCABULARY, bare, exactly, seconds, training

from rlsim.costs.trainer.layout import stage_layers, stage_shapes
from rlsim.costs.trainer.training import LM_HEAD
from rlsim.loading.models import load_card
from rlsim.schema.trainer import PipelineBalance, StackFeatures, Trainer

EIGHT = {"cluster": {"num_gpus": 8}}


def dealt(model: str, stages: int, balance: PipelineBalance = "auto") -> tuple[float, float]:
    """Layers of a middle and of the last stage."""
    card = load_card(model)
    counted = sum(count for _, _, count in stage_shapes(card, stages))
    middle, last = stage_layers(card, Trainer(pipeline_parallel=stages), balance)
    return middle * counted, last * counted


@pytest.mark.parametrize(
    ("model", "stages", "balance", "layers"),
    [
        ("qwen3-235b-a22b", 8, "auto", (12, 11)),  # 94 layers, embedding and loss as one each
        ("llama-3.1-405b", 16, "auto", (8, 7)),  # 126 the same way
        ("deepseek-v3", 16, "auto", (4, 1)),  # Et*4|(t*4|)*14tmL
        ("deepseek-v3", 4, "auto", (16, 13)),
        ("llama-3.1-70b", 4, "auto", (20, 20)),
        ("llama-3.1-70b", 4, "head", (21, 17)),
        ("deepseek-v3", 16, "layers", (61 / 16, 61 / 16)),
        ("deepseek-v3", 1, "head", (61, 61)),
    ],
)
def test_layers_of_a_middle_and_of_the_last_stage(
    model: str, stages: int, balance: PipelineBalance, layers: tuple[float, float]
) -> None:
    assert dealt(model, stages, balance) == (exactly(layers[0]), exactly(layers[1]))


def test_dense_layers_at_the_beginning_are_work_of_the_first_stage_alone() -> None:
    card = load_card("deepseek-v3")
    assert [(moe, count) for moe, _, count in stage_shapes(card, 4)] == [(True, 58)]
    assert [(moe, count) for moe, _, count in stage_shapes(card, 1)] == [(False, 3), (True, 58)]
    assert [count for _, _, count in stage_shapes(load_card("llama-3.1-8b"), 4)] == [32]


@pytest.mark.parametrize(("balance", "head_counts"), [("layers", True), ("head", False)])
def test_the_head_adds_to_the_last_stage_or_takes_the_place_of_layers(balance: str, head_counts: bool) -> None:
    """Llama-3.1-70B in 4 stages: 20 layers each and the head, or 21 and 17 with it (the head is worth some 1.5)."""
    layout = {"pipeline_parallel": 4, "virtual_stages": 5, "recompute": "none"}
    given = bare("llama-3.1-70b", trainer=layout, **EIGHT)
    found = training(given, features=StackFeatures(pipeline_balance=balance))
    batch = replace(ONE, count=16.0)
    step, layer = found.step(batch), found.layers.layer(ONE, False)
    one_s = seconds(layer.forward()) + seconds(layer.backward())
    assert (seconds(step.parts, LM_HEAD) > 0) == head_counts
    head_s = seconds((*found.head(ONE), *found.head(ONE, backward=True)))
    assert one_s < head_s < 2 * one_s
    busiest_s, middle_s = (20 * one_s + head_s, 20 * one_s) if head_counts else (21 * one_s, 21 * one_s)
    passes_s = 16 * busiest_s + 3 / 5 * middle_s
    others = ("gradient exchange", "optimizer", "step synchronisation")
    assert step.seconds - sum(seconds(step.parts, name) for name in others) == exactly(passes_s)


def test_activations_and_their_gradients_travel_between_stages_without_virtual_ones() -> None:
    """Qwen3-8B, 8,192 tokens of 4,096 BF16 values there and back, within NVLink or over the network."""
    sent_s = {}
    for name, gpus, virtual in (("inside", 8, 1), ("across", 16, 1), ("virtual", 16, 3)):
        layout = {"pipeline_parallel": 2, "virtual_stages": virtual}
        given = bare(trainer={**layout, "recompute": "none"}, cluster={"num_gpus": gpus})
        sent_s[name] = seconds(training(given).step(ONE).parts, "stage transfers")
    moved = 2 * 8192 * 4096 * 2
    fabric = builders.fabric(builders.BARE)
    assert sent_s == {
        "inside": exactly(moved / fabric.nvlink), "across": exactly(moved / fabric.network), "virtual": 0.0,
    }  # fmt: skip
    forward = training(bare(trainer={"pipeline_parallel": 2}, **EIGHT)).forward(ONE)
    assert seconds(forward.parts, "stage transfers") == exactly(moved / 2 / fabric.nvlink)


def test_the_head_runs_three_products_and_adapters_leave_it_frozen() -> None:
    forward, backward = (training(bare()).head(ONE, backward=way) for way in (False, True))
    rows = np.array([8192.0])
    assert seconds(backward, LM_HEAD) == exactly(2 * seconds(forward, LM_HEAD))
    assert seconds(backward, "loss") == exactly(2 * seconds(forward, "loss"))
    moved = float(rows[0]) * VOCABULARY * 72 / 3
    assert seconds(forward, "loss") == exactly(moved / builders.BANDWIDTH)
    frozen = training(bare(trainer={"lora_rank": 16})).head(ONE, backward=True)
    assert seconds(frozen, LM_HEAD) == exactly(seconds(forward, LM_HEAD))


def test_gradients_in_bf16_and_parameters_in_fp8_halve_their_traffic() -> None:
    given = bare(trainer={"precision": "fp8"}, cluster={"num_gpus": 16})
    plain, halved = (
        training(given, features=features).update.exchange_s(0.0, 0.0)
        for features in (StackFeatures(), StackFeatures(gradient_precision="bf16", fp8_parameter_gather=True))
    )
    fabric, elements = builders.fabric(builders.BARE), training(given).layout.dense_parameters
    for found, gradient, weight in ((plain, 4, 2), (halved, 2, 1)):
        scatter = fabric.collective("reduce_scatter", 16, elements * gradient).seconds
        gather = fabric.collective("all_gather", 16, elements * weight).seconds
        assert found == exactly(float(scatter + gather))
