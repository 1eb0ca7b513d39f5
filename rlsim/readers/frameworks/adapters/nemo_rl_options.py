"""Keys of NeMo-RL's configurations (examples/run_grpo.py) at v0.7.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rlsim.readers.frameworks.framework import Rule
from rlsim.readers.frameworks.megatron import core_rules
from rlsim.readers.frameworks.options import (
    Options,
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
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.rules import Rules

C = TypeVar("C", bound=Options)


class Grpo(Options, section="grpo"):
    """Of a step; PPO's, too."""

    num_prompts_per_step, num_generations_per_prompt = integer(), integer()
    batch_multiplier = number(1.0)
    use_dynamic_sampling = flag(False)
    dynamic_sampling_max_gen_batches = integer(10)
    max_rollout_turns = integer(0)
    ppo_epochs = integer()
    seq_logprob_error_threshold = number()
    skip_reference_policy_logprobs_calculation = flag(False)


class AsyncGrpo(Options, section="grpo.async_grpo"):
    """Of the older asynchronous loop."""

    enabled = flag(False)
    max_trajectory_age_steps = integer(1)
    in_flight_weight_updates, recompute_kv_cache_after_weight_updates = flag(False), flag(False)


class AsyncRl(Options, section="async_rl"):
    """Of the single controller."""

    max_inflight_prompts = integer()
    recompute_kv_cache_after_weight_updates = flag(False)
    sampler = text("in_order", name="sampler.name")
    max_lookahead_versions = integer(1, name="sampler.max_lookahead_versions")
    max_staleness_versions = integer(name="sampler.max_staleness_versions")


class Loss(Options, section="loss_fn"):
    """Of the loss."""

    reference_policy_kl_penalty = number(0.01)
    force_on_policy_ratio = flag(False)


class Data(Options, section="data"):
    """Of the prompts."""

    max_input_seq_length = integer(0)


class Cluster(Options, section="cluster"):
    """GPUs."""

    num_nodes, gpus_per_node = integer(1), integer(1)
    segment_size = integer()


class Env(Options, section="env"):
    """Of the environments; GPUs of a reward model among them."""

    should_use_nemo_gym = flag(False)
    reward_model_nodes = integer(0, name="reward_model.resources.num_nodes")
    reward_model_gpus_per_node = integer(0, name="reward_model.resources.gpus_per_node")


class Policy(Options, section="policy"):
    """Of the model and of its training."""

    model_name = text("")
    precision = text("bfloat16")
    train_global_batch_size = integer()
    train_micro_batch_size = integer(1)
    logprob_batch_size, max_total_sequence_length = integer(), integer()
    draft = flag(False, name="draft.enabled")
    optimizer = text("", name="optimizer.name")
    exp_avg_dtype = text(name="optimizer.kwargs.exp_avg_dtype")
    exp_avg_sq_dtype = text(name="optimizer.kwargs.exp_avg_sq_dtype")


class Packing(Options, section="policy.sequence_packing"):
    """Of micro-batches without padding."""

    enabled = flag(False)
    train_mb_tokens, logprob_mb_tokens = integer(0), integer(0)


class Dynamic(Options, section="policy.dynamic_batching"):
    """Of micro-batches padded to their longest sample."""

    enabled = flag(False)
    train_mb_tokens, logprob_mb_tokens = integer(0), integer(0)


class Megatron(Options, section="policy.megatron_cfg"):
    """Of training by Megatron-Core."""

    enabled = flag(False)
    tensor_model_parallel_size = size()
    pipeline_model_parallel_size, context_parallel_size = integer(1), integer(1)
    expert_model_parallel_size, expert_tensor_parallel_size = size(), size()
    fp8 = flag(False, name="fp8_cfg.enabled")
    peft = flag(False, name="peft.enabled")
    peft_dim = integer(8, name="peft.dim")
    activation_checkpointing = flag(False)
    recompute_granularity, recompute_modules = text(), words()
    account_for_loss_in_pipeline_split, sequence_parallel = switch(), switch()
    overlap_grad_reduce = switch(True, name="distributed_data_parallel_config.overlap_grad_reduce")
    grad_reduce_in_fp32 = flag(name="distributed_data_parallel_config.grad_reduce_in_fp32")
    use_distributed_optimizer = switch(True, name="optimizer.use_distributed_optimizer")
    mtp_num_layers = integer(0)
    optimizer = text(name="optimizer.optimizer")
    use_precision_aware_optimizer = flag(False, name="optimizer.use_precision_aware_optimizer")
    optimizer_cpu_offload = switch(name="optimizer.optimizer_cpu_offload")
    use_linear_ce_fusion_loss = switch()
    linear_ce_fusion_chunk_size = integer(4096)
    use_fused_linear_logprobs = switch()
    fused_linear_logprobs_chunk_size = integer(4096)
    moe_enable_deepep = flag(False)
    moe_token_dispatcher_type, moe_flex_dispatcher_backend = text(), text()


def core(of: Rules[C], when: Callable[[C], bool]) -> tuple[Rule[C], ...]:
    """Rules of what Megatron-Core's options say of the policy beside its layout."""
    return core_rules(
        of,
        when,
        tensor=Megatron.tensor_model_parallel_size,
        granularity=Megatron.recompute_granularity,
        modules=Megatron.recompute_modules,
        loss=Megatron.account_for_loss_in_pipeline_split,
        overlap=Megatron.overlap_grad_reduce,
        sharded=Megatron.use_distributed_optimizer,
        sequence=Megatron.sequence_parallel,
        fp32_gradients=Megatron.grad_reduce_in_fp32,
    )


class Dtensor(Options, section="policy.dtensor_cfg"):
    """Of training by FSDP."""

    enabled = flag()
    tensor_parallel_size, context_parallel_size, expert_parallel_size = integer(1), integer(1), integer(1)
    lora = flag(False, name="lora_cfg.enabled")
    lora_dim = integer(8, name="lora_cfg.dim")
    activation_checkpointing = flag(False)
    cpu_offload = switch()


class Generation(Options, section="policy.generation"):
    """Of generation by any engine."""

    backend = text("vllm")
    max_new_tokens = integer(0)
    colocated = flag(True, name="colocated.enabled")
    num_nodes = integer(0, name="colocated.resources.num_nodes")
    gpus_per_node = integer(0, name="colocated.resources.gpus_per_node")
    quant_cfg = text("")
    real_quant = switch()
    refit_transport = text()


class Vllm(Options, section="policy.generation.vllm_cfg"):
    """Of vLLM."""

    async_engine = flag(False)
    tensor_parallel_size = size()
    pipeline_parallel_size = integer()
    expert_parallel_size = size()
    precision = text()
    is_mx = flag(False)
    kv_cache_dtype = text()
    gpu_memory_utilization = number()
    max_model_len = integer(0)
    enforce_eager, enable_prefix_caching = flag(), flag()


class Kwargs(Options, section="policy.generation.vllm_kwargs"):
    """What vLLM takes as it stands."""

    max_num_seqs, max_num_batched_tokens = integer(), integer()
    enable_chunked_prefill, async_scheduling = flag(), flag()
    max_cudagraph_capture_size = integer()
    cudagraph_capture_sizes = integers()
    compiled_sizes = integers(name="compilation_config.cudagraph_capture_sizes")
    speculative_config = section()


class Drafts(Options, section="policy.generation.vllm_kwargs.speculative_config"):
    """Of a drafter."""

    method, model = text(), text()
    num_speculative_tokens, draft_tensor_parallel_size = integer(), integer()
    parallel_drafting = flag(False)
    num_speculative_tokens_per_batch_size = batches()


class Trtllm(Options, section="policy.generation.trtllm_cfg"):
    """Of TensorRT-LLM."""

    async_engine = flag(False)
    tensor_parallel_size, moe_expert_parallel_size = size(), size()
    precision = text()
    max_batch_size, max_num_tokens = integer(), integer()
    max_model_len = integer(0)
    gpu_memory_utilization = number()


class Mcore(Options, section="policy.generation.mcore_generation_config"):
    """Of generation by Megatron-Core."""

    tensor_model_parallel_size, expert_model_parallel_size = integer(), integer()
    pipeline_model_parallel_size = integer(1)
    max_requests, max_tokens = integer(), integer()
    max_model_len = integer(0)
    enable_prefix_caching, enable_chunked_prefill = flag(), flag()


class Sglang(Options, section="policy.generation.sglang_cfg"):
    """Of SGLang."""

    tp_size, ep_size, dp_size = size(), size(), size()
    pp_size = integer(1)
    max_running_requests, chunked_prefill_size = integer(), integer()
    context_length = integer(0)
    mem_fraction_static = number()
    kv_cache_dtype = text()
    disable_cuda_graph, disable_radix_cache = flag(), flag()


def sought(given: Any, *names: str) -> int | None:
    """The largest whole number that any of ``names`` holds in a section or below; None where none does."""
    found, stack = [], [given]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            found += [item[name] for name in names if type(item.get(name)) is int and item[name] > 0]
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return max(found, default=None)


def teacher_nodes(r: Reader) -> int:
    """Nodes of the teachers of NeMo-RL's on-policy distillation that have GPUs of their own (models/policy/
    teacher_worker_group.py:59-105 at 7ea279abf): those of each, one where nothing is said, once for a model."""
    place = "on_policy_distillation"
    own = f"{place}.non_colocated_teachers"
    if not (r.flag(f"{place}.enabled") and r.flag(f"{own}.enabled")):
        return 0
    once = r.flag(f"{place}.deduplicate_shared_teacher_checkpoints", True)
    usual, nodes, models = r.size(f"{own}.default_teacher_cfg.num_nodes"), 0, set[str]()
    for name, model in r.section(f"{place}.teacher_model_by_agent_name").items():
        if str(model) not in models or not once:
            nodes += r.size(f"{own}.teacher_overrides.{name}.num_nodes", usual)
        models.add(str(model))
    return nodes
