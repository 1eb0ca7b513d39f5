"""SkyRL's configurations (skyrl/train/config/config.py and its entry points): keys and meaning at a9564572e."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rlsim.readers.frameworks.adapters.skyrl_options import (
    Async,
    Drafts,
    Generator,
    Inference,
    Megatron,
    Placement,
    Policy,
    Run,
    Skyrl,
)
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.megatron import core_rules, optimizer_bytes, shared_experts
from rlsim.readers.frameworks.options import Change
from rlsim.readers.frameworks.pools import skyrl_teacher
from rlsim.readers.frameworks.rules import Assumption, Case, Rules, spread, vllm_method
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Speculation, Trainer, Workload


def _set_max_sequence(c: Skyrl, value: int) -> Iterator[Change]:
    prompt, context = c.run.max_prompt_length, value - c.max_response
    if c.multi_turn and context >= prompt:
        yield Generator.max_input_length.to(context)
    elif value > prompt:
        yield Skyrl.sampled.to(value - prompt)
        if c.multi_turn:
            yield Generator.max_input_length.to(prompt)
    else:
        yield from (Run.max_prompt_length.to(value // 2), Skyrl.sampled.to(-(-value // 2)))
        if c.multi_turn or c.stated_input_length:
            yield Generator.max_input_length.to(value // 2)


def _set_max_response(c: Skyrl, value: int) -> Iterator[Change]:
    context = max(1, c.cap - value)
    yield Skyrl.sampled.to(value)
    if not c.multi_turn:
        yield Run.max_prompt_length.to(context)
    if c.multi_turn or c.stated_input_length:
        yield Generator.max_input_length.to(context)


def _set_num_gpus(c: Skyrl, value: int) -> Iterator[Change]:
    left = max(1, value - c.generation_gpus - c.beside)
    yield from _placed(c, left)
    if c.shared:
        yield _filling(left, c.engine_gpus)


def _set_reference_gpus(c: Skyrl, value: int) -> Iterator[Change]:
    """On GPUs of their own only where engines have theirs."""
    if c.split:
        yield Placement.colocate_policy_ref.to(not value)
        yield from spread(value or c.training_gpus, c.node, Placement.ref_num_nodes, Placement.ref_num_gpus_per_node)


def _set_generation_gpus(c: Skyrl, value: int | None) -> Iterator[Change]:
    every = c.training_gpus + c.generation_gpus
    yield Placement.colocate_all.to(value is None)
    yield _filling(every if value is None else value, c.engine_gpus)
    if value is None:
        yield from (*_placed(c, every), *_set_mode(c, "sync"))


def _placed(c: Skyrl, gpus: int) -> Iterator[Change]:
    """GPUs that train. Models beside the policy have the same, else SkyRL stops (train/trainer.py:656-702,
    train/utils/utils.py:467-478 at a9564572e)."""
    yield from spread(gpus, c.node, Placement.policy_num_nodes, Placement.policy_num_gpus_per_node)
    shared = not c.beside and (c.run.use_kl_loss or c.run.use_kl_in_reward)
    beside = spread(gpus, c.node, Placement.ref_num_nodes, Placement.ref_num_gpus_per_node) if shared else []
    if c.run.critic is not None:
        beside += spread(gpus, c.node, Placement.critic_num_nodes, Placement.critic_num_gpus_per_node)
    # Where nothing is stated they have one.
    yield from (change for change in beside if change.value != (c.r.value(change.key) or 1))


def _filling(gpus: int, engine_gpus: int) -> Change:
    """Engines that fill so many GPUs; on shared ones not all is an error (train/utils/utils.py:456 at a9564572e)."""
    return Inference.num_engines.to(max(1, gpus // engine_gpus))


def _set_tensor(c: Skyrl, value: int) -> Iterator[Change]:
    """GPUs of a layer, with those that attention copies divide them among."""
    if value % c.engine.data_parallel_size == 0:
        yield Inference.tensor_parallel_size.to(value // c.engine.data_parallel_size)
        if c.shared:
            yield _filling(c.training_gpus, value * c.engine_stages)


def _set_stages(c: Skyrl, value: int) -> Iterator[Change]:
    yield Inference.pipeline_parallel_size.to(value)
    if c.shared:
        yield _filling(c.training_gpus, c.stage_gpus * value)


def _set_mode(c: Skyrl, value: str) -> Iterator[Change]:
    """The program that runs: of those that overlap, the one of one step (examples/train/async/async_trainer.py at
    a9564572e); both of them stop on shared GPUs (line 25 there, train/fully_async_trainer.py:392)."""
    if value == "async":
        yield Skyrl.entry.to("examples.train.async.main_async")
    elif "async" in c.entry:
        yield Skyrl.entry.to("skyrl.train.entrypoints.main_base")
    if value == "sync" and c.fully:
        yield Async.enabled.to(False)


def _set_staleness(c: Skyrl, value: int) -> Iterator[Change]:
    """Workers have a batch of groups at least and no more than may be under way, else SkyRL stops
    (train/fully_async_trainer.py:352-362 at a9564572e)."""
    if not c.fully:
        return
    most, batch = max(1, value), c.run.policy_mini_batch_size
    yield Async.max_staleness_steps.to(most)
    if (workers := c.fully_async.num_parallel_generation_workers) is not None:
        yield Async.num_parallel_generation_workers.to(min(max(workers, batch), batch * (most + 1)))


def _logprob_micro_batch_tokens(c: Skyrl) -> int:
    if c.by_tokens:
        return c.run.max_tokens_per_microbatch
    return c.r.real_tokens(c.run.micro_forward_batch_size_per_gpu, c.cap)


LEAST_LOADED = "sticky_least_loaded"
"""Policy of vllm-router that hands a session to the engine with the fewest."""


def _dispatch(c: Skyrl) -> Literal["static", "round_robin", "least_loaded"]:
    """Sessions of the router are trajectories (inference_servers/remote_inference_client.py:894-905)."""
    if c.generator.batched or not c.engine.async_engine:
        return "static"
    return "least_loaded" if c.engine.router_policy == LEAST_LOADED else "round_robin"


def _set_dispatch(c: Skyrl, value: str) -> Iterator[Change]:
    """Its vllm-router has no queue of its own: another policy than these two is none to say."""
    yield Generator.batched.to(value == "static")
    if value == "least_loaded" or c.engine.router_policy == LEAST_LOADED:
        yield Inference.router_policy.to(LEAST_LOADED if value == "least_loaded" else None)


of = Rules(Skyrl)
RULES = (
    of.either(
        of(Workload.prompts_per_step, when=lambda c: c.rollouts_alone).same(Run.eval_batch_size),
        of(Workload.prompts_per_step).same(Run.train_batch_size),
    ),
    of.either(
        of(Workload.generations_per_prompt, when=lambda c: c.rollouts_alone).same(Generator.eval_n_samples_per_prompt),
        of(Workload.generations_per_prompt).same(Generator.n_samples_per_prompt),
    ),
    of(Workload.max_sequence_tokens).rule(lambda c: c.cap, _set_max_sequence),
    of(Workload.max_response_tokens, when=lambda c: not c.trial_tokens).rule(
        lambda c: c.max_response, _set_max_response
    ),
    of(Workload.max_rollouts_per_step, when=lambda c: c.run.dynamic_sampling == "filter").same(
        Run.max_sample_batches, least=1
    ),
    of(Cluster.num_gpus).rule(lambda c: c.training_gpus + c.generation_gpus + c.beside, _set_num_gpus),
    of(Cluster.generation_gpus, when=lambda c: c.split).rule(lambda c: c.generation_gpus, _set_generation_gpus),
    of(Cluster.reference_gpus).rule(lambda c: c.beside or None, _set_reference_gpus),
    of(Loop.rollouts_alone).rule(lambda c: c.rollouts_alone or None),
    of(Loop.mode).rule(lambda c: "async" if c.asynchronous else "sync", _set_mode),
    of.either(
        of(Loop.style, when=lambda c: c.fully).constant("skyrl"),
        of(Loop.style, when=lambda c: not c.rollouts_alone).constant("slime"),
    ),
    of.either(
        of(Loop.policy_lag, when=lambda c: c.fully).rule(lambda c: c.fully_async.max_staleness_steps, _set_staleness),
        of(Loop.policy_lag, when=lambda c: c.one_off).constant(1),
    ),
    of(Loop.max_in_flight_groups, when=lambda c: c.fully).same(Async.num_parallel_generation_workers),
    of(Loop.recompute_kv, when=lambda c: c.fully).same(Async.clear_kv_cache_on_weight_sync),
    of(Engine.name).words(Inference.backend, ("vllm", "vllm"), ("sglang", "sglang")),
    of(Engine.tensor_parallel).rule(lambda c: c.stage_gpus, _set_tensor),
    of(Engine.attention_data_parallel).rule(lambda c: c.engine.data_parallel_size),
    # Of num_engines so many prefill alone, each of as many GPUs (SkyRL a9564572, inference_servers/setup.py:80).
    of(Engine.Prefill.gpus, when=lambda c: c.engine.enable_pd).by(
        Inference.num_prefill, lambda c: c.engine.num_prefill * c.engine_gpus or None
    ),
    of(Engine.pipeline_parallel).rule(lambda c: c.engine.pipeline_parallel_size or None, _set_stages),
    of(Engine.expert_parallel).same(Inference.expert_parallel_size),
    of.either(
        of(Engine.weight_precision, when=lambda c: c.packed).constant("int4"),
        of(Engine.weight_precision).words(
            Inference.quantization, (None, "bf16"), ("fp8", "fp8"), ("fp8*", "fp8"), other="bf16"
        ),
    ),
    # inference_servers/utils.py:148-155 hands all of engine_init_kwargs to vLLM, and router_init_kwargs to its router.
    of(Engine.kv_precision).words(
        Inference.kv_cache_dtype, ("auto", "bf16"), ("fp8", "fp8"), ("fp8*", "fp8"), other="bf16"
    ),
    of(Engine.max_captured_tokens).same(Inference.max_cudagraph_capture_size),
    of(Engine.dispatch).rule(_dispatch, _set_dispatch),
    of(Engine.max_running_sequences).same(Inference.max_num_seqs),
    of(Engine.max_batched_tokens).same(Inference.max_num_batched_tokens),
    of(Engine.gpu_memory_utilization).same(Inference.gpu_memory_utilization),
    of(Engine.cuda_graphs).opposite(Inference.enforce_eager),
    of(Engine.prefix_caching).same(Inference.enable_prefix_caching),
    of(Engine.chunked_prefill).same(Inference.enable_chunked_prefill),
    of(Speculation.method).rule(
        lambda c: "mtp" if c.run.mtp else vllm_method(c.drafts.method, c.drafts.model),
        lambda _, value: [Drafts.method.to(None if value == "none" else value)],
    ),
    of(Speculation.draft_length).rule(
        lambda c: c.run.mtp_tokens if c.run.mtp else c.drafts.num_speculative_tokens,
        lambda _, value: [Drafts.num_speculative_tokens.to(value or None)],
    ),
    of(Speculation.parallel_drafting).same(Drafts.parallel_drafting),
    of(Speculation.draft_tensor_parallel).same(Drafts.draft_tensor_parallel_size),
    of(Speculation.policy).rule(lambda c: "by_schedule" if c.drafts.num_speculative_tokens_per_batch_size else None),
    of(Speculation.schedule).rule(lambda c: c.drafts.num_speculative_tokens_per_batch_size or None),
    of(Trainer.backend).words(Run.strategy, ("megatron", "megatron"), ("fsdp", "fsdp"), ("fsdp2", "fsdp")),
    of(Trainer.tensor_parallel, when=lambda c: c.megatron, otherwise=1).same(Megatron.tensor_model_parallel_size),
    of(Trainer.pipeline_parallel, when=lambda c: c.megatron, otherwise=1).same(Megatron.pipeline_model_parallel_size),
    of(Trainer.expert_parallel, when=lambda c: c.megatron, otherwise=1).same(Megatron.expert_model_parallel_size),
    of(Trainer.expert_tensor_parallel, when=lambda c: c.megatron).by(
        Megatron.expert_tensor_parallel_size, lambda c: shared_experts(c.mcore)
    ),
    of.either(
        of(Trainer.context_parallel, when=lambda c: c.megatron).same(Megatron.context_parallel_size),
        of(Trainer.context_parallel).same(Policy.sequence_parallel_size),
    ),
    of(Trainer.lora_rank).same(Policy.lora_rank),
    of(Engine.lora_rank, when=lambda c: c.megatron).rule(
        lambda c: None if c.mcore.merge_lora else c.policy.lora_rank or None,
        lambda _, value: [Megatron.merge_lora.to(not value)],
    ),
    # Mini-batches count prompts (skyrl/train/utils/utils.py:104).
    of(Trainer.global_batch_samples).by(
        Run.policy_mini_batch_size, lambda c: c.run.policy_mini_batch_size * (c.generator.n_samples_per_prompt or 1)
    ),
    of(Trainer.epochs).same(Run.update_epochs_per_batch),
    of(Trainer.critic).cases(Case(False, [Run.critic.holds(None)]), Case(True), readonly=True),
    of(Trainer.sequence_packing).same(Run.remove_microbatch_padding),
    of(Trainer.micro_batch_tokens, when=lambda c: not c.unpacked).by(
        Run.max_tokens_per_microbatch,
        lambda c: (
            c.run.max_tokens_per_microbatch
            if c.by_tokens
            else c.r.real_tokens(c.run.micro_train_batch_size_per_gpu, c.cap)
        ),
    ),
    of(Trainer.logprob_micro_batch_tokens, when=lambda c: not c.unpacked).rule(
        _logprob_micro_batch_tokens,
        lambda c, value: [Run.micro_forward_batch_size_per_gpu.to(max(1, round(value / (c.r.mean_tokens or c.cap))))],
    ),
    of(Trainer.micro_batch_samples, when=lambda c: c.unpacked).same(Run.micro_train_batch_size_per_gpu),
    of(Trainer.logprob_micro_batch_samples, when=lambda c: c.unpacked).same(Run.micro_forward_batch_size_per_gpu),
    # backends/skyrl_train/workers/megatron/megatron_worker.py:493-494 and megatron_model_wrapper.py:397.
    of(Trainer.precision, when=lambda c: c.megatron, otherwise="bf16").rule(
        lambda c: "fp8" if c.mcore.fp8 in ("hybrid", "e4m3") else "bf16",
        lambda c, value: [Megatron.fp8.to("hybrid" if value == "fp8" else None)][: c.megatron],
    ),
    of(Trainer.recompute).cases(
        Case("none", [Run.gradient_checkpointing.holds(False)], when=lambda c: not c.megatron),
        Case("full", [Run.gradient_checkpointing.holds(True)], when=lambda c: not c.megatron),
        Case("none", [Megatron.recompute_granularity.holds("none")], when=lambda c: c.megatron),
        Case("selective", [Megatron.recompute_granularity.holds("selective")], when=lambda c: c.megatron),
        Case("full", [Megatron.recompute_granularity.holds("full", None)], when=lambda c: c.megatron),
    ),
    *core_rules(
        of,
        lambda c: c.megatron,
        tensor=Megatron.tensor_model_parallel_size,
        granularity=Megatron.recompute_granularity,
        modules=Megatron.recompute_modules,
        loss=Megatron.account_for_loss,
        overlap=Megatron.overlap_grad_reduce,
        fp32_gradients=Megatron.grad_reduce_in_fp32,
    ),
    of(Trainer.optimizer_bytes_per_parameter, when=lambda c: c.megatron, otherwise=12.0).by(
        Megatron.use_precision_aware_optimizer,
        lambda c: optimizer_bytes(
            c.mcore.use_precision_aware_optimizer,
            c.mcore.optimizer_cpu_offload,
            (c.mcore.exp_avg_dtype, c.mcore.exp_avg_sq_dtype),
        ),
    ),
    of(Trainer.mtp_layers).rule(lambda c: 1 if c.run.mtp and c.megatron else 0),
    of.either(
        of(Trainer.optimizer_on_host, when=lambda c: c.megatron).same(Megatron.optimizer_cpu_offload),
        of(Trainer.optimizer_on_host).same(Skyrl.fsdp_cpu_offload),
    ),
    # BF16 logits, whose log-probs are taken in chunks of FP32 (logprobs_chunk_size).
    of(Trainer.logits_bytes).constant(4.0),
    of(Trainer.logits_chunk_tokens, when=lambda c: c.run.fused_lm_head_logprob).constant(1024),
    of(Trainer.reference_logprobs).rule(
        lambda c: (c.run.use_kl_loss or c.run.use_kl_in_reward) and not _teacher(c),
        lambda _, value: [Run.use_kl_loss.to(value), None if value else Run.use_kl_in_reward.to(False)],
    ),
    of(Trainer.moe_dispatcher, when=lambda c: c.megatron).words(
        Megatron.moe_token_dispatcher_type,
        ("alltoall", "alltoall"),
        ("allgather", "alltoall"),
        ("flex", "deepep"),
        readonly=True,
    ),
)


def _teacher(c: Skyrl) -> tuple[dict[str, Any], ...]:
    return skyrl_teacher(c.r, c.policy.path, c.run.use_kl_loss or c.run.use_kl_in_reward)


def _facts(c: Skyrl) -> Facts:
    return Facts(
        settings=(("loop.refit_framework", "skyrl"),),
        gpus_per_node=c.node,
        of_workers=True,
        prompt_cap=c.run.max_prompt_length,
        response_cap=c.response_cap,
        turns=c.turns,
        cap_of_turn=c.multi_turn,
        dynamic=c.run.dynamic_sampling == "filter",
        drafter=c.drafts.model or "",
        pools=_teacher(c),
    )


def _assumptions(c: Skyrl) -> Iterator[Assumption]:
    yield Assumption(
        "No steps of SkyRL were fitted; its trainer takes the terms fitted to the RL steps of others, its weight "
        "transfers its own.",
        ["stack"],
    )
    if c.one_off:
        yield Assumption(
            "SkyRL's one-step-off example trains on the batch before; its end is awaited before weights move, as "
            "slime's train_async does it.",
            [Loop.style, Loop.policy_lag],
        )


def _unused(c: Skyrl, scenario: Mapping[str, Any]) -> Iterator[str]:
    if c.rollouts_alone:
        yield from ("trainer.policy.fsdp_config", "trainer.policy.megatron_config", "trainer.critic", "trainer.ref")
        return
    megatron = scenario["trainer.backend"] == "megatron"
    yield "trainer.policy.fsdp_config" if megatron else "trainer.policy.megatron_config"
    if not scenario["trainer.critic"]:
        yield "trainer.critic"
    if not scenario["trainer.reference_logprobs"] and not _teacher(c):
        yield "trainer.ref"
    if scenario["loop.mode"] == "sync":
        yield "trainer.fully_async"


FRAMEWORK = of.framework(
    "skyrl",
    RULES,
    _facts,
    _assumptions,
    unused=_unused,
    model=Policy.path,
    node_size=Placement.policy_num_gpus_per_node,
    form="hydra",
    shipped={"ppo_base_config": ["skyrl"], "fully_async": ["skyrl", "skyrl_fully_async"]},
    stack="skyrl",
    programs={
        "sync": "skyrl.train.entrypoints.main_base",
        "slime": "examples.train.async.main_async",
        "skyrl": "examples.train.fully_async.main_fully_async",
    },
    start_asynchronous=["skyrl", "skyrl_fully_async"],
    entry={
        r"^skyrl\.train\.entrypoints\.main_(base|generate)$": {},
        r"^(examples|skyrl_train|integrations)\.(\w+\.)*main_(?!sft)\w+$": {},
        r"skyrl_train_main$|(^|/)\w*entrypoint\.py$": {},
    },
    # Names of the flat layout, before InferenceEngineConfig came (skyrl_train's ppo_base_config.yaml).
    renamed={
        "generator.num_inference_engines": Inference.num_engines.key,
        **{
            f"generator.inference_engine_{kind}_parallel_size": f"generator.inference_engine.{kind}_parallel_size"
            for kind in ("tensor", "pipeline", "data", "expert")
        },
        **{
            f"generator.{name}": f"generator.inference_engine.{name}"
            for name in (
                "backend", "async_engine", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
                "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill", "run_engines_locally",
                "weight_sync_backend",
            )
        },
        "generator.remote_inference_engine_urls": "generator.inference_engine.external_server_urls",
        **{
            f"generator.{name}": f"generator.inference_engine.{name}"
            for name in ("engine_init_kwargs", "model_dtype", "vllm_v1_disable_multiproc")
        },
        "trainer.use_sample_packing": Run.remove_microbatch_padding.key,
    },
)  # fmt: skip
