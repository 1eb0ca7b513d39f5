"""Keys of verl's configurations (verl.trainer.main_ppo and its asynchronous trainers) at 1dda039b9."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rlsim.readers.frameworks.framework import Rule
from rlsim.readers.frameworks.megatron import core_rules
from rlsim.readers.frameworks.options import (
    Change,
    Options,
    anything,
    aside,
    batches,
    flag,
    integer,
    integers,
    number,
    section,
    size,
    switch,
    text,
    words,
)
from rlsim.readers.frameworks.rules import Rules
from rlsim.schema.asynchrony import Style

C = TypeVar("C", bound=Options)

STYLES: dict[str, Style] = {
    "fully_async": "verl",
    "one_step_off": "slime",
    **dict.fromkeys(("separate_async", "colocate_async"), "verl_v1"),
}
"""Rules of asynchronous loops by the mode of verl's trainers."""
PROGRAMS = {
    "sync": "verl.trainer.main_ppo",
    "verl_v1": "verl.trainer.main_ppo",
    "slime": "verl.experimental.one_step_off_policy.main_ppo",
    "verl": "verl.experimental.fully_async_policy.fully_async_main",
}
"""verl's programs by the rules of their loops; V1's modes are options of the first."""


class Run(Options, section="trainer"):
    """Of the run."""

    nnodes = integer(1)
    n_gpus_per_node = integer(8)
    balance_batch = flag(True)
    use_v1 = flag(False)
    trainer_mode = text("sync", name="v1.trainer_mode")
    parameter_sync_step = aside(integer(4, name="v1.separate_async.parameter_sync_step"))
    separate_warmup_batches = integer(1, name="v1.separate_async.num_warmup_batches")
    colocate_warmup_batches = integer(1, name="v1.colocate_async.num_warmup_batches")
    max_off_policy_threshold = integer(0, name="v1.sampler.max_off_policy_threshold")
    max_off_policy_strategy = text(name="v1.sampler.max_off_policy_strategy")


class Data(Options, section="data"):
    """Of the prompts."""

    train_batch_size = integer(1)
    gen_batch_size = integer(0)
    max_prompt_length, max_response_length = integer(1), integer(1)


class Algorithm(Options, section="algorithm"):
    """Of the loss and of what is generated for it."""

    adv_estimator = text()
    use_kl_in_reward = flag(False)
    bypass_mode = flag(False, name="rollout_correction.bypass_mode")
    filter_groups = flag(False, name="filter_groups.enable")
    max_num_gen_batches = integer(name="filter_groups.max_num_gen_batches")


class Async(Options, section="async_training"):
    """Of the fully asynchronous trainer."""

    require_batches = integer(1)
    staleness_threshold = number(0.0)
    trigger_parameter_sync_step = integer(1)
    partial_rollout = flag(True)
    concurrent_samples_per_replica = integer(0)

    @property
    def own_in_flight(self) -> int:
        """Prompts in flight for an engine; 0 for the 16 of the style, which stay open for other numbers of engines."""
        each = self.concurrent_samples_per_replica
        return 0 if each == 16 else each


class Pool(Options, section="rollout"):
    """GPUs of a rollout pool of its own."""

    nnodes, n_gpus_per_node = integer(0), integer(0)


class Kin(Options):
    """Of projects that have verl's words and some of their own: Search-R1 (verl/trainer/config/ppo_trainer.yaml:10, 91,
    179 and search_r1/llm_agent/generation.py:233-290 at a14dc3a), rllm
    (trainer/config/_generated_agent_ppo_trainer.yaml:364-366, trainer/verl/verl_backend.py:528 at 9beb6e0f) and RAGEN
    (config/base.yaml at 5eb79b8), whose groups of environments stand for prompts."""

    do_search = flag(True)
    max_turns = integer(0)
    max_start_length = integer(0, name="data.max_start_length")
    n_agent = integer(0, name="actor_rollout_ref.rollout.n_agent")
    rllm = aside(section())
    max_steps = integer(0, name="rllm.agent.max_steps")
    env_groups = integer(0, name="es_manager.train.env_groups")
    group_size = integer(0, name="es_manager.train.group_size")
    max_turn = integer(0, name="agent_proxy.max_turn")
    turn_tokens = integer(0, name="ctx_manager.generation.gen_config.response_length")


class Mtp(Options, section="actor_rollout_ref.model.mtp"):
    """Of the model's own drafting layers."""

    enable, enable_train, enable_rollout = flag(False), flag(False), flag(False)
    speculative_num_steps, num_speculative_tokens = integer(), integer()


class Model(Options, section="actor_rollout_ref.model"):
    """Of the model."""

    path = text("")
    use_remove_padding = flag(False)
    use_fused_kernels = switch()
    enable_gradient_checkpointing, use_liger, enable_activation_offload = flag(False), flag(False), flag(False)
    lora_rank = integer()
    megatron_lora_rank = integer(name="lora.rank")
    # Weights with the adapter in them go to the engine, which knows of none (engine_workers.py:735-737 and
    # rollout/vllm_rollout/vllm_async_server.py:224, 401 of 0.10.0.dev).
    merge = flag(False, name="lora.merge")
    attn_implementation = text(name="override_config.attn_implementation")


class Actor(Options, section="actor_rollout_ref.actor"):
    """Of training."""

    strategy = text("fsdp")
    ppo_epochs = integer()
    ppo_mini_batch_size = integer(1)
    ppo_micro_batch_size, ppo_micro_batch_size_per_gpu = integer(0), integer(0)
    ppo_max_token_len_per_gpu = integer(16384)
    use_dynamic_bsz, use_kl_loss, calculate_entropy = flag(False), flag(False), flag(False)
    entropy_coeff, freeze_vision_tower = number(0.0), flag(False)
    ulysses_sequence_parallel_size = size()
    optimizer_cpu_offload = switch(name="optim.override_optimizer_config.optimizer_cpu_offload")
    use_precision_aware_optimizer = switch(name="optim.use_precision_aware_optimizer")
    exp_avg_dtype, exp_avg_sq_dtype = text(name="optim.exp_avg_dtype"), text(name="optim.exp_avg_sq_dtype")
    # Laid over what is above (utils/megatron/optimizer.py:200-203).
    overridden_aware = switch(name="optim.override_optimizer_config.use_precision_aware_optimizer")
    overridden_avg = text(name="optim.override_optimizer_config.exp_avg_dtype")
    overridden_avg_sq = text(name="optim.override_optimizer_config.exp_avg_sq_dtype")

    @property
    def precision_aware(self) -> bool:
        """Whether Megatron-Core's optimizer holds less than FP32."""
        return self.use_precision_aware_optimizer or self.overridden_aware

    @property
    def moments(self) -> tuple[str | None, str | None]:
        """Types of its moments."""
        return self.overridden_avg or self.exp_avg_dtype, self.overridden_avg_sq or self.exp_avg_sq_dtype


class Megatron(Options, section="actor_rollout_ref.actor.megatron"):
    """Of training by Megatron-Core."""

    tensor_model_parallel_size, pipeline_model_parallel_size = integer(1), integer(1)
    virtual_pipeline_model_parallel_size, context_parallel_size = integer(1), integer(1)
    expert_model_parallel_size, expert_tensor_parallel_size = integer(1), integer()
    param_offload, grad_offload, optimizer_offload = flag(False), flag(False), flag(False)
    sequence_parallel, use_distributed_optimizer = flag(True), flag(True)
    # Off unless overridden (utils/megatron_utils.py:103-107 of 0.10.0.dev).
    overlap_grad_reduce = switch(name="override_ddp_config.overlap_grad_reduce")
    grad_reduce_in_fp32 = flag(name="override_ddp_config.grad_reduce_in_fp32")


class Transformer(Options, section="actor_rollout_ref.actor.megatron.override_transformer_config"):
    """Of Megatron-Core's layers."""

    recompute_granularity, recompute_modules = text(), words()
    account_for_loss_in_pipeline_split = switch()
    fp8 = anything()  # its scaling (fp8_recipe) makes no difference to trainer.precision
    # verl's own default is alltoall (workers/engine/megatron/transformer_impl.py:369); of flex it is DeepEP
    # (Megatron-LM d98e8a64d, core/transformer/transformer_config.py:898, 1743-1748).
    moe_token_dispatcher_type = text()
    moe_enable_deepep = flag(False)
    moe_flex_dispatcher_backend = text()


def core(of: Rules[C], when: Callable[[C], bool]) -> tuple[Rule[C], ...]:
    """Rules of what Megatron-Core's options say of the actor beside its layout."""
    return core_rules(
        of,
        when,
        tensor=Megatron.tensor_model_parallel_size,
        granularity=Transformer.recompute_granularity,
        modules=Transformer.recompute_modules,
        loss=Transformer.account_for_loss_in_pipeline_split,
        overlap=Megatron.overlap_grad_reduce,
        sharded=Megatron.use_distributed_optimizer,
        sequence=Megatron.sequence_parallel,
        fp32_gradients=Megatron.grad_reduce_in_fp32,
    )


class Fsdp(Options, section="actor_rollout_ref.actor.fsdp_config"):
    """Of training by FSDP."""

    ulysses_sequence_parallel_size = size()
    offload_policy = switch()
    param_offload, optimizer_offload = flag(False), flag(False)
    # What the trainer holds, FP32 unless stated (workers/engine/fsdp/transformer_impl.py:239-243 of 0.10.0.dev): with
    # BF16 no master lies beside the weights, and torch's Adam has its two moments in it too, 2 bytes each.
    model_dtype = text("")


class Veomni(Options, section="actor_rollout_ref.actor.veomni"):
    """Of training by veOmni."""

    ulysses_parallel_size = size()
    expert_parallel_size = integer(1)
    param_offload, optimizer_offload = flag(False), flag(False)


class Rollout(Options, section="actor_rollout_ref.rollout"):
    """Of generation and of the log-probs of what it generated."""

    name = text("vllm", name="name")
    n = integer()
    mode = text("async")
    nnodes, n_gpus_per_node = integer(0), integer(0)
    tensor_model_parallel_size = size()
    pipeline_model_parallel_size = integer()
    data_parallel_size = size()
    expert_parallel_size = integer()
    quantization = text()
    max_model_len = integer(0)
    max_num_seqs, max_num_batched_tokens = integer(), integer()
    gpu_memory_utilization, standalone_gpu_memory_utilization = number(), number()
    enforce_eager, enable_prefix_caching, enable_chunked_prefill = flag(), flag(), flag()
    cudagraph_capture_sizes = integers()
    calculate_log_probs = flag()
    log_prob_micro_batch_size, log_prob_micro_batch_size_per_gpu = integer(0), integer(0)
    log_prob_use_dynamic_bsz = flag(False)
    log_prob_max_token_len_per_gpu = integer(16384)
    multi_turn = flag(False, name="multi_turn.enable")
    max_user_turns = integer(0, name="multi_turn.max_user_turns")
    max_assistant_turns = integer(0, name="multi_turn.max_assistant_turns")
    transfer = text(name="checkpoint_engine.backend")

    @property
    def memory_share(self) -> float | None:
        """Of an engine on GPUs of its own the share that is stated for these alone
        (experimental/fully_async_policy/fully_async_rollouter.py:110-122 at 1dda039b9)."""
        return self.standalone_gpu_memory_utilization or self.gpu_memory_utilization


class Vllm(Options, section="actor_rollout_ref.rollout.engine_kwargs.vllm"):
    """What vLLM takes over what verl hands it (workers/rollout/vllm_rollout/vllm_async_server.py:264-326)."""

    kv_cache_dtype = text()
    max_cudagraph_capture_size = integer(0)
    cudagraph_capture_sizes = integers(name="compilation_config.cudagraph_capture_sizes")
    draft_method = text("", name="speculative_config.method")
    draft_model = text("", name="speculative_config.model")
    num_speculative_tokens = integer(name="speculative_config.num_speculative_tokens")
    draft_tensor_parallel_size = integer(name="speculative_config.draft_tensor_parallel_size")
    parallel_drafting = flag(False, name="speculative_config.parallel_drafting")
    async_scheduling = flag()
    drafts_by_batch = batches(name="speculative_config.num_speculative_tokens_per_batch_size")


class Sglang(Options, section="actor_rollout_ref.rollout.engine_kwargs.sglang"):
    """What SGLang takes over what verl hands it (workers/rollout/sglang_rollout/async_sglang_server.py:276-340)."""

    kv_cache_dtype = text()
    max_running_requests, chunked_prefill_size = integer(0), integer(0)
    max_prefill_tokens = integer(16384)
    mem_fraction_static = number()
    disable_cuda_graph = flag()
    cuda_graph_bs = integers()
    cuda_graph_max_bs = integer(0)
    disable_radix_cache, enable_mixed_chunk, disable_overlap_schedule = flag(False), flag(False), flag(False)
    speculative_algorithm = text("")
    speculative_num_steps = integer()
    speculative_draft_model_path = text("")


def to_mode(now: str, value: str) -> list[Change]:
    """What makes the V1 trainer of mode ``now`` a synchronous one; a style makes it asynchronous."""
    return [Run.trainer_mode.to("sync")] if value == "sync" and now in ("separate_async", "colocate_async") else []


def to_style(now: str, value: str | None, data: Data, actor: Actor) -> list[Change]:
    """What makes a synchronous trainer V1's asynchronous one with engines of its own, which refuses another number of
    mini-batches and naive (trainer_separate_async.py:51-69); one_step_off and fully_async are other programs."""
    if value != "verl_v1" or now != "sync":
        return []
    mini_batches = max(1, data.train_batch_size // (actor.ppo_mini_batch_size or data.train_batch_size))
    chosen = [Run.use_v1.to(True), Run.trainer_mode.to("separate_async"), Rollout.transfer.to("nccl")]
    return [*chosen, Run.parameter_sync_step.to(mini_batches)]


def overlap(mode: str) -> bool | None:
    """Whether generation goes on while the trainer works; None: as its loop has it."""
    return False if mode == "colocate_async" else None


def to_overlap(now: str, value: bool | None) -> list[Change]:
    """Of V1's two asynchronous trainers the one whose generation stops while it works, on the same GPUs."""
    if value is not False or now != "separate_async":
        return []
    return [Run.trainer_mode.to("colocate_async"), Rollout.transfer.to("naive")]
