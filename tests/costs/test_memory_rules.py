"""Closed forms of memory over cards and layouts: what sharding, stages, ends and recomputation may and may not do."""

from dataclasses import replace

import builders
import pytest

from rlsim.costs.engine_memory import engine_parts
from rlsim.costs.memory import (
    check_host,
    engine_fits,
    engine_memory,
    engine_spread,
    host_bytes,
    memory_share,
    room_of,
    safe_bytes,
    trainer_fits,
    trainer_memory,
    trainer_parts,
    trainer_spread,
)
from rlsim.costs.trainer.layout import train_layout
from rlsim.costs.trainer_memory import rank_tokens, stages
from rlsim.errors import Infeasible
from rlsim.loading.models import load_card
from rlsim.loading.scenario import vary
from rlsim.schema.base import replaced
from rlsim.schema.model import mixer_parameters, parameter_counts
from rlsim.schema.scenario import Scenario

CARDS = ("qwen3-8b", "llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "nemotron-3-nano-30b-a3b")
WHOLE = "b300_sxm"


def scenario(card: str, gpus: int = 64, **trainer: object) -> Scenario:
    """A trainer alone on its GPUs, with packed micro-batches of 4,096 tokens."""
    own = {"micro_batch_tokens": 4096, "recompute": "none", **trainer}
    return builders.scenario(card, WHOLE, cluster={"num_gpus": gpus}, trainer=own)


def held(card: str, gpus: int = 64, **trainer: object) -> float:
    """Bytes of a training GPU."""
    return trainer_parts(scenario(card, gpus, **trainer), gpus, True).total


def states(card: str, gpus: int = 64, **trainer: object) -> float:
    """Bytes of weights, gradients and optimizer."""
    parts = trainer_parts(scenario(card, gpus, **trainer), gpus, True)
    return parts.weights + (parts.gradients or 0.0) + (parts.optimizer or 0.0)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_parts_add_up_and_no_sharding_is_dear(card: str, backend: str) -> None:
    parts = trainer_parts(scenario(card, backend=backend), 64, True)
    assert parts.total == pytest.approx(sum(size for _, size in parts.items()))
    assert all(size >= 0 for _, size in parts.items())
    # More of what is shared leaves less: no, optimizer, gradients, weights.
    by_stage = [states(card, backend=backend, zero_stage=stage) for stage in (0, 1, 2, 3)]
    assert by_stage[0] > by_stage[1] > by_stage[2]
    assert by_stage[3] < by_stage[0]


@pytest.mark.parametrize("card", CARDS)
def test_one_gpu_shares_with_nobody(card: str) -> None:
    alone = [trainer_parts(scenario(card, 1, backend="fsdp", zero_stage=stage), 1, True) for stage in (0, 1, 2, 3)]
    assert all(one == alone[0] for one in alone)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("sizes", [
    ("tensor_parallel", (1, 2, 4, 8)), ("context_parallel", (1, 2, 4)), ("expert_parallel", (1, 2, 4, 8)),
])  # fmt: skip
def test_more_of_a_parallelism_never_raises_what_it_shards(card: str, sizes: tuple[str, tuple[int, ...]]) -> None:
    name, values = sizes
    for backend in ("fsdp", "megatron"):
        if name == "expert_parallel" and "30b" not in card:
            continue
        totals = [trainer_parts(scenario(card, backend=backend, **{name: n}), 64, True) for n in values]
        sharded = [one.weights + one.activations + (one.logits or 0.0) for one in totals]
        assert sharded == sorted(sharded, reverse=True)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_never_raises_the_peak(card: str, recompute: str) -> None:
    for pipeline in (1, 2):
        modules = ["layernorm", "mlp", "moe"]
        less = held(card, pipeline_parallel=pipeline, recompute=recompute, recompute_modules=modules)
        assert less < held(card, pipeline_parallel=pipeline)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("pipeline", [2, 4])
def test_pipeline_ends_add_up_to_the_model(card: str, pipeline: int) -> None:
    given = scenario(card, pipeline_parallel=pipeline)
    first, last = stages(given, train_layout(given.trainer, given.model, 64), "auto")
    counts = parameter_counts(given.model)
    assert first.ends == counts.embedding
    assert last.ends == (counts.lm_head or counts.embedding)  # a tied head is a copy
    blocks = counts.total - counts.embedding - counts.lm_head
    each = first.blocks / first.layers
    assert last.blocks / last.layers == pytest.approx(each)
    assert each * given.model.num_layers == pytest.approx(blocks)
    # 1F1B: the first stage holds a micro-batch of every stage, the last one its own.
    assert (first.in_flight, last.in_flight) == (pipeline, 1)
    interleaved = scenario(card, pipeline_parallel=pipeline, virtual_stages=1)
    assert stages(interleaved, train_layout(interleaved.trainer, given.model, 64), "auto") == (first, last)


def test_what_ends_a_stage_and_lacks_sequence_parallelism_count() -> None:
    assert held("qwen3-8b", tensor_parallel=4) < held("qwen3-8b", tensor_parallel=4, sequence_parallel=False)
    assert held("qwen3-8b") == held("qwen3-8b", sequence_parallel=False)  # nothing is shared without TP
    bf16, fp32 = (states("qwen3-8b", gradient_precision=p) for p in ("bf16", "fp32"))
    parameters = parameter_counts(scenario("qwen3-8b").model).total
    assert fp32 - bf16 == pytest.approx(2 * parameters)
    logits = [trainer_parts(scenario("qwen3-8b", logits_bytes=each), 64, True).logits for each in (5.0, 10.0)]
    assert logits[1] == pytest.approx(2 * (logits[0] or 0.0))


def test_gpus_that_share_experts_hold_what_they_gather() -> None:
    """As many parameters as where experts are spread over all of them, and the tokens of others beside their own."""
    apart, shared = (
        trainer_parts(scenario("qwen3-30b-a3b", tensor_parallel=4, expert_parallel=ep, **own), 64, True)
        for ep, own in ((8, {}), (2, {"expert_tensor_parallel": 4}))
    )
    assert (apart.weights, apart.optimizer) == (shared.weights, shared.optimizer)
    given = scenario("qwen3-30b-a3b")
    tokens, moe = given.workload.max_sequence_tokens / 4, given.model.moe
    assert moe is not None
    gathered = tokens * 3 * moe.top_k * given.model.hidden_size * 2 * given.model.num_layers
    assert shared.activations - apart.activations == pytest.approx(gathered)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_an_engine_that_may_take_more_has_more_cache(engine: str) -> None:
    def cache(**own: object) -> float:
        given = builders.scenario("qwen3-8b", engine={"name": engine, "gpu_memory_utilization": 0.8, **own})
        memory = engine_memory(given)
        assert memory.kv_bytes == pytest.approx(room_of(given, memory))
        return memory.kv_bytes

    assert cache() < cache(gpu_memory_utilization=0.9)
    assert cache(max_running_sequences=1024) <= cache(max_running_sequences=64)
    assert cache(lora_rank=64) < cache()
    # vLLM's sampler takes less since 0.19; its graphs count within the share since 0.21.
    if engine == "vllm":
        assert cache(version="0.11.0") < cache(version="0.20.0")
        assert cache(version="0.21.0") < cache(version="0.20.0")
        assert cache(version="0.20.0") == pytest.approx(cache(version="0.20.0", cuda_graphs=False))


@pytest.mark.parametrize("card", CARDS)
def test_plain_data_parallelism_and_fsdp_hold_the_same_on_one_gpu(card: str) -> None:
    # Gradients of Megatron's plain data parallelism are those of FSDP; nothing is gathered from anybody.
    plain, fsdp = (
        trainer_parts(scenario(card, 1, backend=backend, zero_stage=stage, logits_bytes=10), 1, True)
        for backend, stage in (("megatron", 0), ("fsdp", 3))
    )
    assert plain == replace(fsdp, slack=None)


@pytest.mark.parametrize("card", CARDS)
def test_more_stages_never_raise_what_a_gpu_holds(card: str) -> None:
    sizes = [trainer_parts(scenario(card, pipeline_parallel=pp), 64, True) for pp in (1, 2, 4)]
    held_states = [one.weights + (one.gradients or 0.0) for one in sizes]
    assert held_states == sorted(held_states, reverse=True)


def test_vllm_runs_fewer_sequences_on_small_devices_and_an_a100() -> None:
    found = {}
    for device in ("h100_sxm", "a100_sxm", "l40s"):
        given = builders.scenario("qwen3-8b", device)
        found[device] = given.released_engine.most_running, given.released_engine.budget_tokens
        stated = builders.scenario("qwen3-8b", device, engine={"max_running_sequences": 77})
        assert stated.released_engine.most_running == 77
        assert builders.scenario("qwen3-8b", device, engine={"name": "sglang"}).released_engine.most_running == 1024
    assert found["h100_sxm"] == (1024, 16384)
    assert found["a100_sxm"] == found["l40s"] == (256, 8192)


def test_the_probability_falls_with_what_is_held_and_its_bound_refuses() -> None:
    given = scenario("qwen3-8b", 8)
    parts = trainer_parts(given, 8, True)
    whole = given.training_device.memory_bytes.value
    for held_bytes, probability in ((parts.total, 0.5), (safe_bytes(given, parts), 0.95)):
        sized = {name: size * whole / held_bytes for name, size in vars(parts).items() if size is not None}
        assert trainer_fits(given, replace(parts, **sized)) == pytest.approx(probability)
    # A loss that nobody states leaves more open, a release that nobody states what its sampler takes.
    stated = scenario("qwen3-8b", 8, logits_bytes=8)
    assert trainer_spread(stated, parts) < trainer_spread(given, parts)
    old, new, unknown = (
        engine_spread(builders.scenario("qwen3-8b", engine={"version": version})) for version in ("0.11", "0.20", None)
    )
    assert old == new < unknown
    few, many = (builders.scenario("qwen3-8b", engine={"gpu_memory_utilization": share}) for share in (0.24, 0.9))
    assert engine_fits(few) < 0.5 < engine_fits(many)
    fits = safe_bytes(given, trainer_memory(given))
    assert fits > trainer_memory(given).total
    tight = builders.scenario("llama-3.1-70b", cluster={"num_gpus": 64}, trainer={"recompute": "full"})
    with pytest.raises(Infeasible, match="GiB"):
        trainer_memory(tight)


def test_an_engine_takes_the_share_that_is_its_own_default() -> None:
    def share(speculation: dict[str, object] | None = None, hardware: str = "h100_sxm", **engine: object) -> float:
        own = {"name": "sglang", **engine}
        return memory_share(builders.scenario("qwen3-8b", hardware, engine=own, speculation=speculation or {}))

    def left(mib: float, hardware: str = "h100_sxm") -> float:
        total = builders.scenario("qwen3-8b", hardware).hardware.memory_bytes.value / 2**20
        return pytest.approx(1 - mib / total, abs=5e-4)

    assert share(name="vllm") == share(name="trtllm") == 0.9 and share(gpu_memory_utilization=0.7) == 0.7
    # 512 MiB, 1.5 a token of a chunk, 2 a captured sequence, an eighth of a GiB for each GPU.
    assert share() == left(512 + 1.5 * 8192 + 2 * 256 + 128)
    assert share(tensor_parallel=8) == left(512 + 1.5 * 8192 + 2 * 512 + 1024)
    assert share(hardware="b200_sxm") == left(512 + 1.5 * 16384 + 2 * 512 + 128, "b200_sxm")
    assert share(max_batched_tokens=2048) == left(10240)  # at least, of large GPUs
    copies = share(tensor_parallel=8, attention_data_parallel=8)
    assert copies == left(512 + 1.5 * 8192 + 2 * 512 + 1024 + 4.5 * 512 * 8)
    drafts = {"draft_length": 3, "acceptance_length": 2.0}
    assert share({"method": "eagle3", **drafts}) == left(13440 + 2048)
    assert share({"method": "ngram", **drafts}) == share()


def test_expert_parallelism_leaves_experts_as_wide_as_they_are() -> None:
    def forward(**own: object) -> float:
        engine = {"name": "sglang", "max_batched_tokens": 8192, "tensor_parallel": 4, **own}  # samples in the rest
        return engine_parts(builders.scenario("qwen3-30b-a3b", WHOLE, engine=engine))[0].activations

    assert forward(expert_parallel=4) - forward() == pytest.approx(8192 * 2 * 8 * 3 * 768 * (1 - 1 / 4))


def test_what_waits_on_the_host_is_counted_by_node() -> None:
    offloaded = builders.scenario("qwen3-8b", cluster={"num_gpus": 8}, trainer={"optimizer_on_host": True})
    kept = builders.scenario("qwen3-8b", cluster={"num_gpus": 8}, trainer={"offload": False})
    assert host_bytes(offloaded) > host_bytes(kept)
    # Two nodes share what the optimizer of one holds.
    two = builders.scenario("qwen3-8b", cluster={"num_gpus": 16}, trainer={"optimizer_on_host": True, "offload": False})
    own = [host_bytes(one) - host_bytes(kept) for one in (offloaded, two)]
    assert own[0] == pytest.approx(2 * own[1])
    # An optimizer without moments keeps 8 bytes a parameter less there.
    adam, plain = (
        builders.scenario("qwen3-8b", cluster={"num_gpus": 8}, trainer={"backend": "fsdp", "optimizer_on_host": True,
                                                                         "optimizer_bytes_per_parameter": held})
        for held in (12.0, 4.0)
    )  # fmt: skip
    assert host_bytes(adam) - host_bytes(plain) == pytest.approx(8 * parameter_counts(adam.model).total, rel=1e-3)
    # What a node lacks by less than the constant's own doubt is tried, unless it must fit more surely.
    memory = offloaded.hardware.host_memory_bytes.model_copy(update={"value": host_bytes(offloaded) / 1.1})
    short = replaced(offloaded, {"hardware": replaced(offloaded.hardware, {"host_memory_bytes": memory})})
    check_host(short)
    with pytest.raises(Infeasible, match="states on the host"):
        check_host(vary(short, {"simulation.fit_probability": 0.5}))


def test_what_gpus_repeat_of_latent_attention_and_routers() -> None:
    def replica(gpus: int, **own: object) -> float:
        engine = {"name": "sglang", "weight_precision": "fp8", "tensor_parallel": gpus, **own}
        given = builders.scenario("deepseek-v3", WHOLE, cluster={"num_gpus": 64}, engine=engine)
        return engine_parts(given)[0].weights * gpus

    # Projections into latents in FP8 and routers in BF16 are whole on each GPU; absorbed products again in BF16.
    down, routers, absorbed = 61 * 7168 * (1536 + 512 + 64), 58 * 256 * 7168 * 2, 61 * 512 * 128 * 256 * 2
    assert replica(8) - replica(4) == pytest.approx(4 * (down + routers), rel=1e-3)
    copies = replica(8, attention_data_parallel=8) - replica(8)
    embedding, mixers = 129280 * 7168 * 2, mixer_parameters(load_card("deepseek-v3"))
    assert copies == pytest.approx(7 * (mixers - down + embedding + absorbed), rel=1e-3)
    # vLLM holds views of weights that are not quantised, where SGLang copies them.
    held = {name: replica(8, name=name, weight_precision="bf16") for name in ("vllm", "sglang")}
    assert held["sglang"] - held["vllm"] == pytest.approx(absorbed)


def test_a_micro_batch_holds_no_more_than_a_rank_has() -> None:
    few = {"cluster": {"num_gpus": 8}, "workload": {"prompts_per_step": 8, "generations_per_prompt": 2}}
    sizes = []
    for capacity in (2, 4):  # samples of the longest length, of which each rank has two
        given = builders.scenario("qwen3-8b", WHOLE, **few)
        longest = given.workload.max_sequence_tokens
        given = builders.scenario("qwen3-8b", WHOLE, trainer={"micro_batch_tokens": capacity * longest}, **few)
        sizes.append(trainer_parts(given, 8, True))
    assert sizes[0] == sizes[1]


def test_a_rank_of_many_packed_samples_has_hardly_more_than_their_mean() -> None:
    def tokens(samples: int, **own: object) -> float:
        workload = {"prompts_per_step": samples, "generations_per_prompt": 8, "group_correlation": 0.0, **own}
        given = builders.scenario("qwen3-8b", WHOLE, cluster={"num_gpus": 8}, workload=workload)
        return rank_tokens(given, train_layout(given.trainer, given.model, 8), True)

    lengths = {"prompt_tokens": {"kind": "constant", "tokens": 100}, "max_sequence_tokens": 4096}
    spread = {**lengths, "response_tokens": {"kind": "lognormal", "mean_tokens": 400, "log_sigma": 0.8}}
    even = {**lengths, "response_tokens": {"kind": "lognormal", "mean_tokens": 400, "log_sigma": 0.0}}
    assert tokens(32, **even) == 32 * 500
    constant = {**lengths, "response_tokens": {"kind": "constant", "tokens": 400}}
    assert tokens(32, **constant) == 32 * 4096  # says nothing of what is longer
    assert tokens(1, **spread) == 4096  # no less than the longest sample
    beyond = [tokens(n, **spread) / (500 * n) - 1 for n in (32, 128)]
    assert beyond[0] == pytest.approx(2 * beyond[1]) and 0 < beyond[0] < 1
    # Samples of a prompt are long together.
    assert tokens(32, **{**spread, "group_correlation": 0.5}) > tokens(32, **spread)
