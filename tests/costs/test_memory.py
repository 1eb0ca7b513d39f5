"""Memory per GPU: by hand, sharding, typed shortfalls, and layouts that are known to run."""

import builders
import pytest

from rlsim import vary
from rlsim.costs.memory import engine_memory, kv_bytes_per_gpu_token, trainer_memory, weight_bytes
from rlsim.costs.trainer_memory import trainer_parts
from rlsim.errors import Infeasible
from rlsim.evidence.published import published_table
from rlsim.evidence.steps import STEP_COLUMNS, scenario_of
from rlsim.evidence.tables import SkippedRow, read_table
from rlsim.loading.models import load_card
from rlsim.schema.model import parameter_counts
from rlsim.units import GIB


def test_kv_capacity_of_qwen3_8b_by_hand_and_parallelism_divides_weights_and_cache() -> None:
    """36 layers x 2 x 8 KV heads x 128 x 2 bytes = 147,456 bytes a token; 8.19 G parameters in BF16 are 16.4 GB."""
    memory = engine_memory(builders.scenario(engine={"gpu_memory_utilization": 0.9}))
    assert kv_bytes_per_gpu_token(builders.scenario()) == 147_456
    assert memory.parts.weights == pytest.approx(2 * 8.19e9, rel=0.002)
    # The newest vLLM: graphs within the share; its sampler holds 1,024 rows of 151,936 logits in 20 bytes each.
    forward, sampler = 16384 * 2 * (2 * 4096 + 3 * 12288), 1024 * 151_936 * 20
    assert memory.parts.activations == max(forward, sampler)
    room = 0.9 * 79.18 * GIB - 2 * 8.19e9 - 0.14 * GIB - max(forward, sampler)
    assert memory.kv_capacity_tokens == pytest.approx((room - memory.parts.graphs) / 147_456, rel=0.002)
    one = engine_memory(builders.scenario(engine={"gpu_memory_utilization": 0.5}))
    four = engine_memory(builders.scenario(engine={"gpu_memory_utilization": 0.5, "tensor_parallel": 4}))
    piped = engine_memory(builders.scenario(engine={"gpu_memory_utilization": 0.5, "pipeline_parallel": 4}))
    assert four.parts.weights == pytest.approx(one.parts.weights / 4)
    assert piped.parts.weights == pytest.approx(one.parts.weights / 4)
    assert four.kv_capacity_tokens > 4 * one.kv_capacity_tokens


def test_weights_that_do_not_fit_are_infeasible_and_optimizer_states_are_sharded() -> None:
    with pytest.raises(Infeasible) as caught:
        engine_memory(builders.scenario("qwen3-235b-a22b", cluster={"num_gpus": 1}))
    answer = caught.value
    assert answer.unit == "bytes"
    assert answer.needed > 2 * 235e9
    assert answer.available == pytest.approx(0.9 * 79.18 * GIB)
    assert "tensor_parallel=1" in str(answer)
    assert "GiB" in str(answer)
    given = builders.scenario("qwen3-235b-a22b", trainer={"expert_parallel": 8, "recompute": "full"},
                              engine={"tensor_parallel": 8})  # fmt: skip
    with pytest.raises(Infeasible, match=r"most of it is (optimizer|gradients)") as caught:
        trainer_memory(given)
    assert caught.value.needed > caught.value.available == pytest.approx(79.18 * GIB)
    # Adam of Qwen3-8B: 12 bytes a parameter over 8 ranks; weights and FP32 gradients are whole on every rank.
    parts = trainer_memory(builders.scenario(trainer={"recompute": "full"}))
    assert parts.optimizer == pytest.approx(12 * 8.19e9 / 8, rel=0.002)
    assert parts.gradients == 2 * parts.weights == pytest.approx(4 * 8.19e9, rel=0.002)
    sharded = trainer_memory(builders.scenario(trainer={"recompute": "full", "backend": "fsdp"}))
    # Two blocks of 36 in BF16, and the root unit (embedding, head) whole; FP32 weights are the optimizer's.
    root = 2 * 151_936 * 4096
    assert sharded.weights == pytest.approx(2 / 36 * (parts.weights - 2 * root) + 2 * root)
    assert sharded.optimizer == pytest.approx(parts.optimizer)


def test_low_precisions_and_replicated_caches_take_their_bytes() -> None:
    card = load_card("qwen3-235b-a22b")
    high = 2 * 151_936 * 4096 + 94 * 4096 * 128
    full, half = weight_bytes(card, "bf16"), weight_bytes(card, "fp8")
    assert full - half == pytest.approx(full / 2 - high)
    assert weight_bytes(card, "nvfp4") < 0.6 * half + 2 * high
    # 65.2 GB are the safetensors of openai/gpt-oss-120b, 13.8 those of gpt-oss-20b.
    sizes = {"gpt-oss-120b": 65.2e9, "gpt-oss-20b": 13.8e9}
    assert {name: weight_bytes(load_card(name), "mxfp4") for name in sizes} == pytest.approx(sizes, rel=0.005)
    own = {"tensor_parallel": 2, "weight_precision": "mxfp4"}
    memory = engine_memory(builders.scenario("gpt-oss-120b", engine=own))
    # Experts of 2,880 hidden units are padded to 3,072, by a fifteenth of what they take.
    assert memory.parts.weights == pytest.approx(69.1e9 / 2, rel=0.005)  # 64.38 GiB in a start-up log of vLLM 0.11
    with pytest.raises(ValueError, match="mxfp4 is of routed experts, which Qwen3-8B has not"):
        builders.scenario(engine={"weight_precision": "mxfp4"})
    # Qwen3-235B has 4 KV heads: TP8 holds each twice, so a token costs each GPU as much as at TP4.
    per_token = [
        kv_bytes_per_gpu_token(builders.scenario("qwen3-235b-a22b", "gb200_nvl72", engine={"tensor_parallel": tp}))
        for tp in (1, 4, 8)
    ]
    assert per_token[0] == 4 * per_token[1] == 4 * per_token[2]
    # 61 layers x 576 x 2 bytes a token on every GPU (DeepSeek-V2, arXiv 2405.04434).
    given = [builders.deepseek(engine={"attention_data_parallel": copies}) for copies in (1, 16)]
    assert kv_bytes_per_gpu_token(given[0]) == 61 * 576 * 2
    shared, split = (engine_memory(one) for one in given)
    assert split.kv_capacity_tokens > 10 * shared.kv_capacity_tokens
    assert split.parts.weights > shared.parts.weights


def test_drafters_take_memory_and_a_copy_of_attention_must_hold_a_whole_sequence() -> None:
    """A sequence does not spread over copies: what one copy cannot hold does not fit, however many there are."""
    tight = {"gpu_memory_utilization": 0.31, "attention_data_parallel": 16}
    with pytest.raises(Infeasible):
        engine_memory(builders.deepseek(engine=tight, workload={"max_sequence_tokens": 160_000}))
    plain = builders.scenario()
    eagle = builders.scenario(speculation=builders.EAGLE)
    assert engine_memory(eagle).parts.draft > 0.5e9
    assert kv_bytes_per_gpu_token(eagle) - kv_bytes_per_gpu_token(plain) == 2 * 8 * 128 * 2
    mtp = builders.deepseek(speculation={"method": "mtp", "draft_length": 1, "acceptance_length": 1.5})
    assert kv_bytes_per_gpu_token(mtp) == 62 * 576 * 2


def test_published_runs_fit() -> None:
    """Every run of which steps were published held its engine's cache and its trainer's state."""
    fitting = 0
    for record in read_table(published_table("rl_steps.csv"), STEP_COLUMNS):
        try:
            given = scenario_of(record.cells)
        except SkippedRow:
            continue
        assert engine_memory(given).kv_capacity_tokens >= given.workload.max_sequence_tokens, given.name
        assert trainer_memory(given).total <= given.hardware.memory_bytes.value, given.name
        fitting += 1
    assert fitting == 61


def test_shards_offloaded_by_fsdp_lie_on_the_host() -> None:
    # CPUOffloadPolicy: shards of weights, gradients and states are on the host; Megatron's gradients stay.
    keys = {"cluster": {"num_gpus": 64}, "trainer": {"backend": "fsdp", "recompute": "full"}}
    here = vary(builders.scenario("qwen3-32b", "h200_sxm", **keys), {})  # with the stack that a loaded scenario has
    there = vary(here, {"trainer.optimizer_on_host": True})
    sharded = 4 * parameter_counts(here.model).total / 64
    own, offloaded = (trainer_parts(one, 64, True) for one in (here, there))
    assert own.gradients - offloaded.gradients == pytest.approx(sharded) and offloaded.optimizer == 0
    assert trainer_parts(vary(there, {"trainer.optimizer_step": "device"}), 64, True).gradients == own.gradients
