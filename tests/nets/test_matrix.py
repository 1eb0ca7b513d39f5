"""Every model on every device under every engine and tensor-parallel size: prices are numbers that grow with work."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from rlsim.costs.engine.hosts import NO_HOST
from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import EngineInputs, engine_prices
from rlsim.costs.memory import engine_memory, trainer_memory
from rlsim.costs.operators.device import Device, device_of
from rlsim.costs.prices import PriceInputs
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.costs.trainer.training import TrainingCosts
from rlsim.errors import Infeasible, InputError
from rlsim.loading.models import list_cards, load_card
from rlsim.loading.scenario import load_scenario
from rlsim.projection.model_assumptions import training_assumptions
from rlsim.schema.engine import Engine, check_heads
from rlsim.schema.hardware import BOUNDS, UNMEASURED_BOUNDS
from rlsim.schema.model import ModelCard
from rlsim.schema.speculation import Speculation
from rlsim.schema.trainer import Trainer
from rlsim.simulation.iteration_times import prepare
from rlsim.tables.profile import list_profiles, load_profile
from tests.costs.builders import PLAIN

ENGINES = ("vllm", "sglang", "trtllm")
MEASURED = [(profile, name) for profile in list_profiles()
            for name in (ENGINES if load_profile(profile).operator_tables else ENGINES[:1])]  # fmt: skip
"""Devices with engines; of a device without tables kernels do not know the engine."""
PARTS = 20
WHOLE = (False, pytest.param(True, marks=pytest.mark.nightly))
"""A device with an engine takes every twentieth layout, neighbours other ones; each night all."""
SIZES = (1, 2, 4, 8, 16, 32)
SEQUENCES, CONTEXT, PROMPT = 8, 8192, 100.0
NOISE = 0.75
"""Measured tables are no smooth functions: more tokens take at least this share of what fewer take."""


@cache
def layouts() -> tuple[tuple[ModelCard, int], ...]:
    return tuple(_layouts())


def layouts_of(place: int, whole: bool) -> tuple[tuple[ModelCard, int], ...]:
    return layouts() if whole else layouts()[place % PARTS :: PARTS]


def _layouts() -> Iterator[tuple[ModelCard, int]]:
    for name in list_cards():
        card = load_card(name)
        for size in SIZES:
            try:
                check_heads(size, card, "tensor_parallel")
            except ValueError:
                continue
            yield card, size


def engine(card: ModelCard, device: Device, name: str, size: int) -> IterationCosts:
    section = Engine.model_validate({"name": name, "tensor_parallel": size, "max_batched_tokens": 2048})
    inputs = EngineInputs(card, device, section, Speculation(), NO_HOST, SEQUENCES, CONTEXT, PROMPT, 1e6)
    return engine_prices.__wrapped__(inputs)


def is_price(seconds: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(seconds) & (seconds >= 0)))


def grows(seconds: np.ndarray, along: int) -> bool:
    return bool(np.all(np.diff(seconds, axis=along) >= -1e-12 * np.max(np.abs(seconds))))


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize(("profile", "name"), MEASURED)
def test_engines_have_prices_that_grow_with_batch_and_context(profile: str, name: str, whole: bool) -> None:
    device = device_of(load_profile(profile), name)
    with np.errstate(all="raise", under="ignore"):
        for card, size in layouts_of(MEASURED.index((profile, name)), whole):
            where, found = (card.name, size), engine(card, device, name, size)
            table = found.table
            assert is_price(table.step_s) and is_price(table.attention_s) and is_price(table.prefill_s), where
            assert np.all(table.step_s[1:] > 0) and np.all(table.prefill_s[0, 1:] > 0), where
            assert np.all(table.step_s[2:] >= NOISE * table.step_s[1:-1]), where
            for along in (0, 1):
                assert grows(table.attention_s, along), where
            assert grows(table.prefill_s, 1) and grows(table.prefill_context_s, 0), where
            parts = sum(timed.seconds for timed in found.attention.values())
            assert parts[1:] == pytest.approx(table.attention_s[1:], rel=1e-12), where


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("profile", list_profiles())
def test_trainers_have_prices_that_grow_with_the_batch(profile: str, whole: bool) -> None:
    device = device_of(load_profile(profile), "vllm")
    with np.errstate(all="raise", under="ignore"):
        for card, size in layouts_of([*list_profiles()].index(profile), whole):
            trainer = Trainer.model_validate({"tensor_parallel": size})
            costs = TrainingCosts(card, trainer, device, PLAIN.training, 2 * size)
            small, large = (costs.step(MicroBatches(2.0, tokens, tokens * 512.0, 1)) for tokens in (1024.0, 4096.0))
            seconds = np.array([part.seconds for part in (*small.parts, *large.parts)])
            assert is_price(seconds) and 0 < small.seconds < large.seconds, (card.name, size)


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


@pytest.mark.parametrize("pipeline", [2, 4])
@pytest.mark.parametrize(
    ("model", "speculation"),
    [("llama-3.1-8b", {"method": "none"}), ("llama-3.1-8b", EAGLE), ("qwen3-8b", NGRAM), ("glm-4.5-air", MTP)],
)
def test_stages_of_n_times_the_layers_take_n_times(model: str, speculation: dict[str, object], pipeline: int) -> None:
    card = load_card(model).model_copy(update={"mtp_layers": 1}) if speculation is MTP else load_card(model)
    if card.moe is not None:
        card = card.model_copy(update={"moe": card.moe.model_copy(update={"first_dense_layers": 0})})
    one = costs_of(card, 1, 16, 4096, speculation)
    deeper = card.model_copy(update={"num_layers": card.num_layers * pipeline})
    whole = costs_of(deeper, pipeline, 16 * pipeline, 4096 * pipeline, speculation)
    every = slice(pipeline, None, pipeline)
    for name in one.components.keys() - {"host"}:
        found, expected = whole.components[name].seconds[every], one.components[name].seconds[1:]
        assert found == pytest.approx(expected * pipeline, rel=1e-9), name
    for name, timed in one.attention.items():
        assert whole.attention[name].seconds[every] == pytest.approx(timed.seconds[1:] * pipeline, rel=1e-9), name
    chunk = 4096
    alone_s, piped_s = (prepare(each.table).prefill(0, count)
                        for each, count in ((one, chunk), (whole, chunk * pipeline)))  # fmt: skip
    assert piped_s == pytest.approx(alone_s * pipeline, rel=1e-9)
    behind = [prepare(each.table).behind(9000) for each in (one, whole)]
    assert behind[0] == pytest.approx(behind[1], rel=1e-9) and behind[0] > 0


@pytest.mark.parametrize("pipeline", [2, 4])
def test_prefill_of_a_pipeline_is_divided_by_its_stages(pipeline: int) -> None:
    """16,384 tokens of DeepSeek-V3: attention is measured with its projections, weights of experts are read by all."""
    card = load_card("deepseek-v3")
    seconds = [prepare(costs_of(card, stages, 8, 16384, {"method": "none"}, 1000.0).table).prefill(0, 16384)
               for stages in (1, pipeline)]  # fmt: skip
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


ALONE = ("speculation={method: none}", "simulation.replications=1")


@pytest.mark.parametrize(("overrides", "message", "needed", "available"), [
    (["cluster.num_gpus=4096", "engine.tensor_parallel=8"], "more data-parallel ranks than samples", 2048, 512),
    (["cluster.num_gpus=4096"], "more engine replicas than rollouts", 4096, 2048),
    (["cluster.num_gpus=1000000"], "more engine replicas than rollouts", 1_000_000, 2048),
    (["trainer.micro_batch_tokens=600"], "exceed trainer.micro_batch_tokens", None, 600),
])  # fmt: skip
def test_ranks_and_replicas_work(overrides: list[str], message: str, needed: float | None, available: float) -> None:
    inputs = PriceInputs(load_scenario("quickstart", [*ALONE, *overrides]))
    with pytest.raises(Infeasible, match=message) as error:
        inputs.before_work.trainer_bytes  # noqa: B018 - prices are made where they are asked for
        inputs.trainer  # noqa: B018
    assert error.value.available == available and needed in (None, error.value.needed)


def test_as_many_ranks_and_replicas_as_samples_run_and_ranks_that_do_not_divide_them_are_told() -> None:
    widest = load_scenario("quickstart", [*ALONE, "cluster.num_gpus=1024"])
    assert widest.cluster.training // 2 == widest.trainer.global_batch_samples
    assert trainer_memory(widest).total > 0 and engine_memory(widest).kv_capacity_tokens > 0
    for gpus, told in ((8, False), (24, True)):
        given = load_scenario("quickstart", [*ALONE, f"cluster.num_gpus={gpus}"])
        text = " ".join(training_assumptions(given, PriceInputs(given).overheads.training))
        assert ("512 samples of an update do not divide over 12 data-parallel ranks" in text) == told


WRONG: dict[str, Any] = {
    "memory_bandwidth_bytes_per_s": 1790, "bf16_flops": 500, "fp8_flops": 1979, "nvlink_bandwidth_bytes_per_s": 900,
    "network_bandwidth_bytes_per_s": 400, "host_link_bandwidth_bytes_per_s": 64, "memory_bytes": 80,
    "host_memory_bytes": 2048, "nvlink_latency_s": 4.7, "network_latency_s": 5, "eager_launch_s": 16.8,
}  # fmt: skip


@pytest.mark.parametrize("key", WRONG)
def test_a_device_in_other_units_is_refused_with_the_bound(key: str) -> None:
    least, most, unit = {**BOUNDS, **UNMEASURED_BOUNDS}[key]
    with pytest.raises(InputError, match=key) as error:
        load_scenario("quickstart", [f"hardware.{key}.value={WRONG[key]}"])
    assert f"must be in {unit}, between {least:g} and {most:g}" in str(error.value)


def test_no_transfer_beats_the_line_rate() -> None:
    """Quickstart's trainer gathers 16 GB over two GPUs at 450 GB/s; a lagged loop sends them over the links it has."""
    for name in ("quickstart", "qwen8b_async_lag1"):
        transfers = PriceInputs(load_scenario(name)).transfers
        job, links = transfers._job, transfers._job.links
        seconds = {part.name: part.seconds for part in transfers.transfer().parts}
        if name == "quickstart":
            assert seconds["gathering of full tensors"] >= job.full_bytes / 2 / links.nvlink_bytes_per_s >= 0.0178
        else:
            assert seconds["weights on the wire"] >= job.wire_bytes / links.nvlink_bytes_per_s
