"""verl's configurations (verl.trainer.main_ppo and its asynchronous trainers): keys and meaning at 1dda039b9."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlsim.readers.frameworks.adapters import verl_options as modes
from rlsim.readers.frameworks.adapters import verl_values as values
from rlsim.readers.frameworks.adapters.verl_options import (
    Actor,
    Algorithm,
    Async,
    Data,
    Fsdp,
    Megatron,
    Model,
    Mtp,
    Rollout,
    Run,
    Sglang,
    Transformer,
    Veomni,
    Vllm,
)
from rlsim.readers.frameworks.adapters.verl_values import Verl
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.megatron import optimizer_bytes, shared_experts, whole_experts
from rlsim.readers.frameworks.pools import verl_reward_model, verl_teachers
from rlsim.readers.frameworks.rules import INT4, TRANSFORMERS, Assumption, Case, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Speculation, Trainer, Workload

of = Rules(Verl)
FLEX = Transformer.moe_token_dispatcher_type.holds("flex")
NO_DEEPEP = [Transformer.moe_enable_deepep.to(False)]
RULES = (
    of(Workload.generations_per_prompt).by(Rollout.n, lambda c: c.samples),
    of(Workload.max_sequence_tokens).rule(lambda c: c.cap, values.set_max_sequence),
    of(Workload.max_response_tokens).rule(
        lambda c: c.kin.turn_tokens or c.data.max_response_length,
        lambda c, value: [Data.max_response_length.to(value), Data.max_prompt_length.to(max(1, c.cap - value))],
    ),
    of(
        Workload.generated_batch_factor,
        when=lambda c: c.data.gen_batch_size > c.data.train_batch_size > 0 and not c.fully_async,
    ).by(Data.gen_batch_size, lambda c: c.data.gen_batch_size / c.data.train_batch_size),
    of.under(Algorithm.filter_groups, of(Workload.max_rollouts_per_step).same(Algorithm.max_num_gen_batches)),
    of.either(
        of(Workload.prompts_per_step, when=lambda c: c.fully_async).by(
            Async.require_batches, lambda c: c.asynchronous_training.require_batches * c.actor.ppo_mini_batch_size
        ),
        of(Workload.prompts_per_step).by(
            Data.train_batch_size, lambda c: c.kin.env_groups or c.data.train_batch_size or None
        ),
    ),
    of(Cluster.num_gpus).rule(lambda c: c.every_gpu, lambda c, value: values.set_trainer_gpus(c, value - c.generating)),
    of(Cluster.generation_gpus).rule(lambda c: None if c.pool_by is None else c.generating, values.set_generation_gpus),
    of(Loop.mode).rule(lambda c: "sync" if c.mode == "sync" else "async", lambda c, to: modes.to_mode(c.mode, to)),
    of(Loop.style).rule(lambda c: modes.STYLES.get(c.mode), lambda c, to: modes.to_style(c.mode, to, c.data, c.actor)),
    of.either(
        of(Loop.policy_lag, when=lambda c: c.mode == "separate_async").same(Run.separate_warmup_batches, least=1),
        of(Loop.policy_lag, when=lambda c: c.mode == "colocate_async").same(Run.colocate_warmup_batches, least=1),
        of(Loop.policy_lag, when=lambda c: c.mode == "one_step_off").constant(1),
    ),
    of(Loop.overlap).rule(lambda c: modes.overlap(c.mode), lambda c, to: modes.to_overlap(c.mode, to)),
    of(Loop.staleness_fraction, when=lambda c: c.fully_async).same(Async.staleness_threshold),
    # V1: parameter_sync_step mini-batches, published once (trainer_base.py:511-537).
    of(Loop.update_every, when=lambda c: c.fully_async).same(Async.trigger_parameter_sync_step),
    of(Loop.in_flight_updates, when=lambda c: c.fully_async).same(Async.partial_rollout),
    # verl's sample is a prompt with its responses; 16 an engine are the style's and left to it, for other layouts too.
    of(Loop.max_in_flight_groups, when=lambda c: c.fully_async).rule(
        lambda c: c.asynchronous_training.own_in_flight * c.replicas or None,
        lambda c, value: [
            Async.concurrent_samples_per_replica.to(value // c.replicas) if c.fully_async else None  # opens its section
        ],
    ),
    # The V1 sampler counts a group trained at its own version as 1.
    of(Loop.max_age, when=lambda c: c.v1).by(
        Run.max_off_policy_threshold, lambda c: most - 1 if (most := c.trainer.max_off_policy_threshold) else None
    ),
    of(Loop.stale, when=lambda c: c.v1).words(
        Run.max_off_policy_strategy, ("drop*", "drop"), ("wait", "wait"), ("?*", "train"), readonly=True
    ),
    of(Engine.name).words(Rollout.name, ("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "trtllm"), ("hf", "vllm")),
    of(Engine.tensor_parallel).rule(
        lambda c: c.rollout.tensor_model_parallel_size * c.copies,
        lambda c, value: [Rollout.tensor_model_parallel_size.to(value // c.copies)],
    ),
    of(Engine.attention_data_parallel).rule(
        lambda c: c.copies,
        lambda c, value: [
            Rollout.data_parallel_size.to(value),
            Rollout.tensor_model_parallel_size.to(max(1, c.rollout.tensor_model_parallel_size * c.copies // value)),
        ],
    ),
    of(Engine.pipeline_parallel).same(Rollout.pipeline_model_parallel_size),
    of(Engine.expert_parallel).same(Rollout.expert_parallel_size),
    of(Engine.weight_precision).words(
        Rollout.quantization, (None, "bf16"), ("fp8", "fp8_block"), ("fp8*", "fp8_block"), *INT4, other="bf16"
    ),
    of.either(
        of(Engine.kv_precision, when=lambda c: c.on_sglang).words(
            Sglang.kv_cache_dtype,
            ("auto", "bf16"),
            ("bf16", "bf16"),
            ("bfloat16", "bf16"),
            ("fp8_e4m3", "fp8"),
            ("fp8_e5m2", "fp8"),
        ),
        of(Engine.kv_precision, when=lambda c: c.on_trtllm).words(
            Verl.trtllm_kv_dtype, ("auto", "bf16"), ("fp8", "fp8"), ("nvfp4", "nvfp4")
        ),
        of(Engine.kv_precision).words(
            Vllm.kv_cache_dtype, ("auto", "bf16"), ("fp8", "fp8"), ("fp8*", "fp8"), other="bf16"
        ),
    ),
    of(Engine.dispatch).words(Rollout.mode, ("sync", "static"), ("async", "least_loaded"), other="least_loaded"),
    of.either(
        of(Engine.max_running_sequences, when=lambda c: c.on_sglang).rule(
            lambda c: c.sglang.max_running_requests or c.rollout.max_num_seqs or None,
            lambda c, value: [
                (Sglang.max_running_requests if c.sglang.max_running_requests else Rollout.max_num_seqs).to(value)
            ],
        ),
        of(Engine.max_running_sequences).same(Rollout.max_num_seqs),
    ),
    of.either(
        of(Engine.max_batched_tokens, when=lambda c: c.on_sglang).by(
            Sglang.chunked_prefill_size, values.max_batched_tokens
        ),
        of(Engine.max_batched_tokens).same(Rollout.max_num_batched_tokens),
    ),
    of.either(
        of(Engine.gpu_memory_utilization, when=lambda c: c.on_sglang).rule(
            lambda c: c.sglang.mem_fraction_static or c.rollout.gpu_memory_utilization,
            lambda c, value: [
                (Sglang.mem_fraction_static if c.sglang.mem_fraction_static else Rollout.gpu_memory_utilization).to(
                    value
                )
            ],
        ),
        of(Engine.gpu_memory_utilization).by(Rollout.gpu_memory_utilization, lambda c: c.rollout.memory_share),
    ),
    of.either(
        of(Engine.cuda_graphs, when=lambda c: c.on_sglang).rule(
            lambda c: not (c.rollout.enforce_eager if (off := c.sglang.disable_cuda_graph) is None else off),
            lambda c, value: [
                (Rollout.enforce_eager if c.sglang.disable_cuda_graph is None else Sglang.disable_cuda_graph).to(
                    not value
                )
            ],
        ),
        # TensorRT-LLM is always handed a configuration of graphs.
        of(Engine.cuda_graphs, when=lambda c: c.on_trtllm).constant(True),
        of(Engine.cuda_graphs).opposite(Rollout.enforce_eager),
    ),
    of(Engine.max_captured_tokens).rule(values.max_captured_tokens, values.set_max_captured_tokens),
    of.either(
        of(Engine.prefix_caching, when=lambda c: c.on_sglang).opposite(Sglang.disable_radix_cache),
        of(Engine.prefix_caching).same(Rollout.enable_prefix_caching),
    ),
    of.either(
        of(Engine.chunked_prefill, when=lambda c: c.on_sglang).same(Sglang.enable_mixed_chunk),
        of(Engine.chunked_prefill).same(Rollout.enable_chunked_prefill),
    ),
    of(Engine.overlap_scheduling, when=lambda c: c.on_sglang).rule(
        lambda c: False if c.sglang.disable_overlap_schedule else None,
        lambda _, value: [Sglang.disable_overlap_schedule.to(not value)],
    ),
    of(Engine.async_scheduling, when=lambda c: c.rollout.name == "vllm").same(Vllm.async_scheduling),
    of(Speculation.method).rule(values.method, values.set_method),
    # SGLang counts steps; its num_draft_tokens holds the verified one too.
    of.either(
        of(Speculation.draft_length, when=lambda c: c.drafts_itself and c.on_sglang).same(Mtp.speculative_num_steps),
        of(Speculation.draft_length, when=lambda c: c.drafts_itself).same(Mtp.num_speculative_tokens),
        of(Speculation.draft_length, when=lambda c: c.on_sglang).same(Sglang.speculative_num_steps),
        of(Speculation.draft_length).same(Vllm.num_speculative_tokens),
    ),
    of(Speculation.parallel_drafting, when=lambda c: not c.on_sglang).same(Vllm.parallel_drafting),
    of(Speculation.draft_tensor_parallel, when=lambda c: not c.on_sglang).same(Vllm.draft_tensor_parallel_size),
    of(Speculation.policy, when=lambda c: not c.on_sglang and bool(c.vllm.drafts_by_batch)).constant("by_schedule"),
    of(Speculation.schedule, when=lambda c: not c.on_sglang).rule(lambda c: c.vllm.drafts_by_batch or None),
    of(Trainer.backend).rule(
        lambda c: "megatron" if c.megatron else "fsdp",
        lambda c, value: [
            Actor.strategy.to(value),
            Verl.model_engine.to("dp") if c.model_engine == "megatron" and value == "fsdp" else None,
        ],
    ),
    of(Trainer.tensor_parallel, when=lambda c: c.megatron, otherwise=1).same(Megatron.tensor_model_parallel_size),
    of(Trainer.pipeline_parallel, when=lambda c: c.megatron, otherwise=1).same(Megatron.pipeline_model_parallel_size),
    of.either(
        of(Trainer.expert_parallel, when=lambda c: c.by_veomni).same(Veomni.expert_parallel_size),
        of(Trainer.expert_parallel, when=lambda c: c.megatron).same(Megatron.expert_model_parallel_size),
    ),
    of(Trainer.expert_tensor_parallel, when=lambda c: c.megatron).by(
        Megatron.expert_tensor_parallel_size, lambda c: shared_experts(c.mcore, c.trainer.nnodes * c.node)
    ),
    of.either(
        of(Trainer.context_parallel, when=lambda c: c.megatron).same(Megatron.context_parallel_size),
        of(Trainer.context_parallel).rule(lambda c: c.sharing, values.set_context_parallel),
    ),
    of(Trainer.virtual_stages, when=lambda c: c.megatron, otherwise=1).rule(
        lambda c: c.mcore.virtual_pipeline_model_parallel_size,
        lambda c, value: [Megatron.virtual_pipeline_model_parallel_size.to(value if value > 1 else None)][: c.megatron],
    ),
    of.either(  # workers/engine/megatron, and FSDP's
        of(Trainer.lora_rank, when=lambda c: c.megatron).rule(
            lambda c: c.model.megatron_lora_rank or None, lambda _, value: [Model.megatron_lora_rank.to(value or 0)]
        ),
        of(Trainer.lora_rank).same(Model.lora_rank),
    ),
    of(Engine.lora_rank).rule(lambda c: 0 if c.model.merge else None, lambda _, value: [Model.merge.to(not value)]),
    of(Trainer.flash_attention_2).words(
        Model.attn_implementation, ("*flash_attention_[34]*", False), ("*flash-attn[34]*", False), ("*", None)
    ),
    of(Trainer.global_batch_samples).by(Actor.ppo_mini_batch_size, lambda c: c.batch),
    of(Trainer.epochs).same(Actor.ppo_epochs),
    of(Trainer.critic).cases(
        Case(True, [Verl.critic.holds(True)]),
        Case(True, [Verl.critic.holds(None), Algorithm.adv_estimator.holds("gae", None)]),
        Case(False, (), [Verl.critic.to(False)]),
    ),
    of(Trainer.sequence_packing).rule(
        lambda c: c.padless or c.actor.use_dynamic_bsz,
        lambda _, value: [Model.use_remove_padding.to(value), None if value else Actor.use_dynamic_bsz.to(False)],
    ),
    of(Trainer.micro_batch_tokens).rule(values.micro_batch_tokens, values.set_micro_batch_tokens),
    of(Trainer.logprob_micro_batch_tokens).rule(
        values.logprob_micro_batch_tokens, values.set_logprob_micro_batch_tokens
    ),
    of(Trainer.micro_batch_samples, when=lambda c: c.unpacked).rule(
        lambda c: c.train_samples,
        lambda c, value: [
            Actor.ppo_micro_batch_size_per_gpu.to(value),
            Actor.ppo_micro_batch_size.to(None) if c.actor.ppo_micro_batch_size else None,
        ],
    ),
    of(Trainer.logprob_micro_batch_samples, when=lambda c: c.unpacked and not c.rollout.log_prob_use_dynamic_bsz).rule(
        lambda c: c.logprob_samples,
        lambda c, value: [
            Rollout.log_prob_micro_batch_size_per_gpu.to(value),
            Rollout.log_prob_micro_batch_size.to(None) if c.rollout.log_prob_micro_batch_size else None,
        ],
    ),
    of(Trainer.rank_balance).switched(Run.balance_batch, None, "samples", also_on=("bins", "tokens")),
    of(Trainer.recompute).cases(
        Case("full", [Model.enable_gradient_checkpointing.holds(True)], when=lambda c: not c.megatron),
        Case("none", [Model.enable_gradient_checkpointing.holds(False)], when=lambda c: not c.megatron),
        Case("full", [Transformer.recompute_granularity.holds("full")], when=lambda c: c.megatron),
        Case("selective", [Transformer.recompute_granularity.holds("selective")], when=lambda c: c.megatron),
        Case("none", [Transformer.recompute_granularity.holds(None)], when=lambda c: c.megatron),
    ),
    *modes.core(of, lambda c: c.megatron),
    of.either(
        of(Trainer.optimizer_on_host, when=lambda c: c.megatron).same(Actor.optimizer_cpu_offload),
        of(Trainer.optimizer_on_host).same(Fsdp.offload_policy),
    ),
    of.either(
        of(Trainer.optimizer_bytes_per_parameter, when=lambda c: c.megatron).rule(
            lambda c: optimizer_bytes(c.actor.precision_aware, c.actor.optimizer_cpu_offload, c.actor.moments)
        ),
        of(Trainer.optimizer_bytes_per_parameter).words(
            Fsdp.model_dtype, ("fp32", 12.0), ("bf16", 4.0), ("bf*16", 4.0), ("*", None)
        ),
    ),
    of(Trainer.activations_on_host, when=lambda c: not c.megatron).same(Model.enable_activation_offload),
    of(Trainer.fused_kernels, when=lambda c: not c.megatron).same(Model.use_liger),
    of(Trainer.frozen_vision).same(Actor.freeze_vision_tower),
    of(Trainer.logits_bytes, when=lambda c: not c.megatron).rule(values.logits_bytes),
    of(Trainer.logits_chunk_tokens).rule(
        lambda c: 512 if c.model.use_fused_kernels else None, lambda _, value: [Model.use_fused_kernels.to(bool(value))]
    ),
    of(Trainer.precision, when=lambda c: c.megatron, otherwise="bf16").rule(
        lambda c: "fp8" if c.transformer.fp8 else "bf16",
        lambda _, value: [Transformer.fp8.to("hybrid" if value == "fp8" else None)],
    ),
    of(Trainer.moe_dispatcher, when=lambda c: c.megatron).cases(
        Case("deepep", [FLEX, Transformer.moe_enable_deepep.holds(True)]),
        Case("deepep", [FLEX, Transformer.moe_flex_dispatcher_backend.holds("deepep", None)]),
        Case("hybridep", [FLEX, Transformer.moe_flex_dispatcher_backend.holds("hybridep")], NO_DEEPEP),
        Case("alltoall", [Transformer.moe_token_dispatcher_type.holds("alltoall", "allgather")], NO_DEEPEP),
        Case(None),
    ),
    of(Trainer.mtp_layers).cases(
        Case(1, [Mtp.enable.holds(True), Mtp.enable_train.holds(True)]), Case(0, [Mtp.enable_train.holds(False)])
    ),
    # Not with bypass_mode (trainer/ppo/v1/trainer_base.py:1535, ray_trainer.py:1574), which asynchronous trainers set
    # (experimental/separation/ray_trainer.py:509); nothing reads use_rollout_log_probs.
    of(Trainer.policy_logprobs).rule(
        lambda c: not c.algorithm.bypass_mode,
        lambda _, value: [Algorithm.bypass_mode.to(not value), None if value else Rollout.calculate_log_probs.to(True)],
    ),
    of(Trainer.reference_logprobs).rule(
        lambda c: c.actor.use_kl_loss or c.algorithm.use_kl_in_reward,
        lambda _, value: [Actor.use_kl_loss.to(value), None if value else Algorithm.use_kl_in_reward.to(False)],
    ),
    of(Trainer.offload).rule(values.offload, values.set_offload),
    of(Loop.refit_method, when=lambda c: c.pool_by is not None, otherwise="auto").words(
        Rollout.transfer,
        ("nccl", "nccl_broadcast"),
        ("nixl", "rdma"),
        ("delta_sharded", "delta_sharded"),
        ("naive", "auto"),
        other="auto",
    ),
)


def _unused(c: Verl, scenario: Mapping[str, Any]) -> Iterator[str]:
    """The legacy section of a reward model is laid over the other one
    (verl/experimental/reward_loop/reward_loop.py:63-77)."""
    megatron = scenario["trainer.backend"] == "megatron"
    yield "actor_rollout_ref.actor.fsdp_config" if megatron else "actor_rollout_ref.actor.megatron"
    if not scenario["trainer.critic"]:
        yield "critic"
    if not c.legacy_reward_model and not c.reward_model:
        yield from ("reward_model", "reward.reward_model")
    engines = (name for name in ("vllm", "sglang", "trtllm") if name != c.rollout.name)
    yield from (f"actor_rollout_ref.rollout.engine_kwargs.{name}" for name in engines)
    if not scenario["trainer.reference_logprobs"]:
        yield "actor_rollout_ref.ref"


def _facts(c: Verl) -> Facts:
    return Facts(
        settings=(("stack", "verl"), ("loop.refit_framework", "verl_megatron" if c.megatron else "verl")),
        gpus_per_node=c.node,
        of_workers=True,
        prompt_cap=c.kin.max_start_length or c.data.max_prompt_length,
        cap_of_turn=c.kin.max_turns > 0 or c.kin.turn_tokens > 0,
        response_cap=min(c.kin.turn_tokens or c.data.max_response_length, c.rollout.max_model_len or c.cap),
        turns=c.turns,
        pools=(*verl_teachers(c), *verl_reward_model(c)),
        drafter=c.sglang.speculative_draft_model_path if c.on_sglang else c.vllm.draft_model,
        dynamic=c.algorithm.filter_groups,
    )


def _assumptions(c: Verl) -> Iterator[Assumption]:
    if c.mode == "one_step_off":
        yield Assumption(
            "A rollout pool of its own without async_training is one step off: a batch ahead, whose end is awaited "
            "before the weights move, as slime's train_async does it.",
            [Loop.style, Loop.policy_lag],
        )
    if c.mode == "separate_async":
        ahead = "V1's generation is as many batches ahead as it begins with: it bounds ages of samples alone."
        yield Assumption(ahead, [Loop.policy_lag])
    if c.mode == "colocate_async":
        yield Assumption(
            "V1 generates a batch ahead and stops while the trainer works.", [Loop.policy_lag, Loop.overlap]
        )
    yield from [TRANSFORMERS] if c.rollout.name == "hf" else []
    yield from whole_experts(c.mcore, c.trainer.nnodes * c.node) if c.megatron else ()
    if c.fixed_samples:
        yield Assumption(
            "A micro-batch of a fixed number of samples without padding counts as that many of mean length, packed.",
            [Trainer.micro_batch_tokens, Trainer.logprob_micro_batch_tokens],
        )
    if c.global_samples:
        yield Assumption(
            "ppo_micro_batch_size and log_prob_micro_batch_size count over all data-parallel ranks, as in verl before "
            "044bbba27 (2026-04-20); later releases stop without the sizes of a GPU.",
            [Trainer.micro_batch_tokens, Trainer.logprob_micro_batch_tokens, Trainer.micro_batch_samples],
        )
    if c.on_sglang and not c.sglang.chunked_prefill_size:
        yield Assumption(
            "SGLang prefills 8,192 tokens at once, its default on devices of 60 to 160 GiB; verl does not hand it "
            "max_num_batched_tokens (engine_kwargs.sglang.chunked_prefill_size states it).",
            [Engine.max_batched_tokens],
        )


_PPO = {"folder": "verl/trainer/config", "name": "ppo_trainer"}
FRAMEWORK = of.framework(
    "verl",
    RULES,
    _facts,
    _assumptions,
    unused=_unused,
    model=Model.path,
    node_size=Run.n_gpus_per_node,
    form="hydra",
    programs=modes.PROGRAMS,
    shipped={
        "ppo_trainer": ["verl"],
        "ppo_megatron_trainer": ["verl", "verl_megatron"],
        "one_step_off_ppo_trainer": ["verl", "verl_one_step_off"],
        "one_step_off_ppo_megatron_trainer": ["verl", "verl_megatron", "verl_one_step_off"],
        "fully_async_ppo_trainer": ["verl", "verl_fully_async"],
        "fully_async_ppo_megatron_trainer": ["verl", "verl_megatron", "verl_fully_async"],
    },
    start_asynchronous=["verl", "verl_fully_async"],
    language=r"\+{0,2}(actor_rollout_ref|async_training)\.",
    entry={
        r"^verl\.trainer\.main_ppo": _PPO,
        r"^verl\.experimental\.fully_async_policy\.": {"folder": "config", "name": "fully_async_ppo_trainer"},
        r"^verl\.experimental\.one_step_off_policy\.": {"folder": "config", "name": "one_step_off_ppo_trainer"},
        r"(^|/)main_ppo\.py$|^recipe\.\w+\.main_\w+$|verl_main_ppo$|^verl_mlite\.launch$": _PPO,
    },
)
