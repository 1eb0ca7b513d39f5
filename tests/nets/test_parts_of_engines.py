"""Pipelines and chunks add up: PP stages of PP times the layers take PP times as long, chunks take the whole."""

import pytest

from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import EngineInputs, engine_prices
from rlsim.costs.operators.device import device_of
from rlsim.costs.overheads import NO_HOST
from rlsim.loading.models import load_card
from rlsim.schema.engine import Engine
from rlsim.schema.model import ModelCard
from rlsim.schema.speculation import Speculation
from rlsim.simulation.iteration_times import prepare
from rlsim.tables.profile import load_profile

NGRAM = {"method": "ngram", "draft_length": 3, "acceptance_length": 2.0, "lookup_s_per_1k_tokens": 1e-4}
EAGLE = {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.0}
MTP = {"method": "mtp", "draft_length": 2, "acceptance_length": 2.0}


def costs_of(
    card: ModelCard, pipeline: int, sequences: int, budget: int, speculation: dict[str, object], prompt: float = 700.0
) -> IterationCosts:
    """An engine of ``pipeline`` stages of 8 GPUs; graphs reach as far as tokens of a stage do, so that all is alike."""
    size = 8 if card.mla is not None else 1
    keys = {
        "tensor_parallel": size, "pipeline_parallel": pipeline, "max_batched_tokens": budget,
        "weight_precision": "fp8" if card.moe else "bf16", "async_scheduling": False,
    }  # fmt: skip
    inputs = EngineInputs(
        card, device_of(load_profile("h100_sxm"), "vllm"), Engine.model_validate(keys),
        Speculation.model_validate(speculation), NO_HOST, sequences, 16384, prompt, 1e6,
    )  # fmt: skip
    return engine_prices(inputs)


def deeper(card: ModelCard, times: int) -> ModelCard:
    return card.model_copy(update={"num_layers": card.num_layers * times})


@pytest.mark.parametrize("pipeline", [2, 4])
@pytest.mark.parametrize(
    ("model", "speculation"),
    [("llama-3.1-8b", {"method": "none"}), ("llama-3.1-8b", EAGLE), ("qwen3-8b", NGRAM), ("glm-4.5-air", MTP)],
)
def test_stages_of_as_many_times_the_layers_take_as_many_times_as_long(
    model: str, speculation: dict[str, object], pipeline: int
) -> None:
    card = load_card(model).model_copy(update={"mtp_layers": 1}) if speculation is MTP else load_card(model)
    if card.moe is not None:
        card = card.model_copy(update={"moe": card.moe.model_copy(update={"first_dense_layers": 0})})
    one = costs_of(card, 1, 16, 4096, speculation)
    whole = costs_of(deeper(card, pipeline), pipeline, 16 * pipeline, 4096 * pipeline, speculation)
    every = slice(pipeline, None, pipeline)
    for name in one.components.keys() - {"host"}:
        found, expected = whole.components[name].seconds[every], one.components[name].seconds[1:]
        assert found == pytest.approx(expected * pipeline, rel=1e-9), name
    for name, timed in one.attention.items():
        assert whole.attention[name].seconds[every] == pytest.approx(timed.seconds[1:] * pipeline, rel=1e-9), name
    chunk = 4096
    alone_s, piped_s = (
        prepare(each.table).prefill(0, count) for each, count in ((one, chunk), (whole, chunk * pipeline))
    )
    assert piped_s == pytest.approx(alone_s * pipeline, rel=1e-9)
    behind = [prepare(each.table).behind(9000) for each in (one, whole)]
    assert behind[0] == pytest.approx(behind[1], rel=1e-9) and behind[0] > 0


@pytest.mark.parametrize("pipeline", [2, 4])
def test_prefill_of_a_pipeline_is_divided_by_its_stages(pipeline: int) -> None:
    """16,384 tokens of DeepSeek-V3: attention is measured with its projections, weights of experts are read by all."""
    card = load_card("deepseek-v3")
    seconds = [
        prepare(costs_of(card, stages, 8, 16384, {"method": "none"}, 1000.0).table).prefill(0, 16384)
        for stages in (1, pipeline)
    ]
    assert 1.0 <= seconds[1] / seconds[0] * pipeline < 1.25


@pytest.mark.parametrize(("context", "added_s"), [(107, 0.0), (4096, 0.0115), (16384, 0.0480), (32768, 0.0947)])
def test_prefill_takes_the_attention_of_its_own_context(context: int, added_s: float) -> None:
    """Chunks of 8,192 tokens of Llama-3.1-8B on an H100, beyond what prompts of 107 tokens take.

    Of longer contexts each token attends to half of them: 4 x 4,096 x 8,192 x context / 2 FLOP a layer, at the two
    thirds of the peak that the measured kernel reaches at such lengths.
    """
    timing = prepare(costs_of(load_card("llama-3.1-8b"), 1, 8, 8192, {"method": "none"}, 107.0).table)
    found = timing.behind(context) * 8192 / context
    assert found == pytest.approx(added_s, rel=0.03, abs=1e-4)
    ideal_s = 32 * 4 * 4096 * 8192 * (context - 107) / 2 / 989e12
    assert ideal_s - 1e-4 <= found <= ideal_s / 0.6 + 1e-4


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "deepseek-v3.2", "qwen3-next-80b-a3b"])
def test_attention_behind_a_context_grows_as_far_as_layers_look(model: str) -> None:
    """Every layer, half of them, latents, the 2,048 that rank highest and scores of all, one layer of four."""
    timing = prepare(costs_of(load_card(model), 1, 8, 8192, {"method": "none"}, 1000.0).table)
    assert timing.behind(1000) == pytest.approx(0.0, abs=1e-9)
    near, far = (timing.context[int(tokens * timing.inverse_knot)] for tokens in (4096, 14336))
    assert timing.context[0] < 0 < near < far
    sparse = model == "deepseek-v3.2"
    spread = timing.context[-1] - timing.context[0]
    assert (far - near) / spread < (0.35 if sparse else 0.8)
    parts = sum(timing.behind(end) - timing.behind(start) for start, end in [(0, 77), (77, 4000), (4000, 12345)])
    assert parts == pytest.approx(timing.behind(12345), rel=1e-12)
