"""slime's options (slime/utils/arguments.py, Megatron's and SGLang's) at 624b824a8, and what several of them say."""

from __future__ import annotations

from rlsim.readers.frameworks.options import Options, aside, flag, integer, integers, number, size, switch, text, words


class Slime(Options):
    """Options of the command line."""

    entry = text("", name="launcher.entry")
    hardware = text("", name="launcher.hardware")
    hf_checkpoint = text("")
    num_gpus_per_node = integer()
    actor_num_nodes = size()
    node = integer(8, name="actor_num_gpus_per_node")
    rollout_num_gpus = integer()
    rollout_num_gpus_per_engine = size()
    prefill_num_servers = integer()
    colocate = flag(False)

    rollout_batch_size = integer()
    n_samples_per_prompt = size()
    over_sampling_batch_size, rollout_max_context_len, rollout_max_prompt_len = integer(), integer(), integer()
    rollout_max_response_len = integer(1024)
    rollout_function_path, loss_type = text(""), text("")
    update_weights_interval = integer(1)
    update_weight_mode, dynamic_sampling_filter_path = text(), text()

    sglang_pp_size, sglang_pipeline_parallel_size = size(), size()
    sglang_ep_size = integer()
    sglang_expert_parallel_size, sglang_dp_size = size(), size()
    sglang_enable_dp_attention = flag(False)
    sglang_kv_cache_dtype = text()
    sglang_max_running_requests = integer()
    sglang_chunked_prefill_size, sglang_max_prefill_tokens = integer(), integer(16384)
    sglang_enable_mixed_chunk = flag()
    sglang_server_concurrency = integer(512)
    sglang_cuda_graph_max_bs, sglang_cuda_graph_max_bs_decode = integer(), integer()
    sglang_cuda_graph_bs, sglang_cuda_graph_bs_decode = integers(), integers()
    sglang_mem_fraction_static = number()
    sglang_disable_cuda_graph, sglang_disable_radix_cache = flag(), flag()
    sglang_disable_overlap_schedule = flag(False)
    sglang_speculative_algorithm = text()
    sglang_speculative_num_steps = integer()
    sglang_speculative_eagle_topk = size()
    sglang_speculative_num_draft_tokens = integer()
    sglang_speculative_draft_model_path = text("")

    tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size = size(), size(), size()
    expert_model_parallel_size, virtual_pipeline_model_parallel_size = size(), size()
    expert_tensor_parallel_size = integer()
    num_layers = aside(integer())
    decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers = aside(integer()), aside(integer())
    fp8_format, train_backend = text(), text("megatron")
    fp8_recipe = aside(text())
    lora_rank = integer(0)
    gradient_checkpointing, fsdp_cpu_offload, fully_async = flag(False), flag(False), flag(False)  # miles
    max_seq_len, generate_max_turns = integer(), integer(1)
    global_batch_size = integer()
    num_steps_per_rollout = size()
    advantage_estimator = text()
    use_dynamic_batch_size = flag(False)
    max_tokens_per_gpu, log_probs_max_tokens_per_gpu, log_probs_chunk_size = integer(), integer(), integer()
    micro_batch_size = size()
    balance_data, balance_by_flops = flag(False), flag(False)
    recompute_granularity, recompute_modules = text(), words()
    account_for_loss_in_pipeline_split, sequence_parallel = flag(False), flag(False)
    overlap_grad_reduce = flag(False)  # as Megatron-LM's arguments have it
    exp_avg_dtype, exp_avg_sq_dtype = text(), text()
    use_rollout_logprobs, get_mismatch_metrics, keep_old_actor, use_opd = switch(), switch(), switch(), switch()
    use_routing_replay, use_rollout_routing_replay = switch(), switch()
    skip_actor_forward_only = switch()  # miles
    enable_mtp_training = flag(False)
    mtp_num_layers = integer(0)
    optimizer = text()
    use_precision_aware_optimizer, optimizer_cpu_offload = flag(False), flag(False)
    no_offload_train, use_kl_loss = switch(), switch()
    kl_coef = number(0.0)
    moe_enable_deepep = flag(False)
    moe_token_dispatcher_type = text()

    @property
    def overlapping(self) -> bool:
        """Whether train_async.py runs."""
        return "train_async" in self.entry

    @property
    def fully(self) -> bool:
        """Whether rollouts run on while the trainer works."""
        return self.overlapping and (self.fully_async or "fully_async" in self.rollout_function_path)

    @property
    def split(self) -> bool:
        """Whether generation has GPUs of its own."""
        return not (self.colocate or self.supervised)

    @property
    def supervised(self) -> bool:
        """Whether samples are of a data set (slime/rollout/sft_rollout.py)."""
        return self.loss_type == "sft_loss" or "sft_rollout" in self.rollout_function_path

    @property
    def asynchronous(self) -> bool:
        """Whether generation overlaps with training."""
        return self.overlapping and self.split

    @property
    def prompt_cap(self) -> int:
        """Most tokens of a prompt."""
        return self.rollout_max_prompt_len or 1024

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        return self.rollout_max_context_len or self.max_seq_len or (self.prompt_cap + self.rollout_max_response_len)

    @property
    def generation_gpus(self) -> int:
        """GPUs beside the trainer's."""
        return (self.rollout_num_gpus or 0) if self.split else 0

    @property
    def dynamic_batches(self) -> bool:
        """Whether micro-batches are bounded by tokens."""
        return self.use_dynamic_batch_size and bool(self.max_tokens_per_gpu)

    @property
    def stages(self) -> int:
        """GPUs of an engine that share no layer."""
        return self.sglang_pp_size * self.sglang_pipeline_parallel_size

    @property
    def drafting(self) -> bool:
        """Whether drafts of a stated length are verified."""
        if self.block:
            return (self.sglang_speculative_num_draft_tokens or 0) > 1
        return self.sglang_speculative_algorithm is not None and (self.sglang_speculative_num_steps or 0) > 0

    @property
    def block(self) -> bool:
        """Whether a draft is a block of one pass."""
        return (self.sglang_speculative_algorithm or "").upper() in ("DFLASH", "DSPARK")

    @property
    def tree(self) -> bool:
        """Whether a draft is a tree."""
        return self.drafting and not self.block and self.sglang_speculative_eagle_topk > 1

    @property
    def positions(self) -> int:
        """SGLang 0.5.7 (docker/patch), server_args.py:2050-2079: a chain verifies num_steps + 1 tokens, a tree
        num_draft_tokens; cuda_graph_runner.py:277-300: a graph of so many sequences has that many tokens of each;
        0.5.15 alike."""
        if not self.drafting:
            return 1
        if self.tree or self.block:
            return self.sglang_speculative_num_draft_tokens or 1
        return (self.sglang_speculative_num_steps or 0) + 1

    @property
    def policy_logprobs(self) -> bool | None:
        """Whether a pass computes the policy's log-probs before the update; None: unless one update follows each
        rollout, of slime, whose loss takes its own then (slime/backends/megatron_utils/actor.py:461-476); miles is told
        (miles/backends/megatron_utils/actor.py of 005270cb)."""
        if self.skip_actor_forward_only or (self.use_rollout_logprobs and not self.get_mismatch_metrics):
            return False
        replayed = self.use_routing_replay and not self.use_rollout_routing_replay
        needed = self.get_mismatch_metrics or self.keep_old_actor or self.use_opd or replayed or self.kl_coef != 0
        return True if needed or self.advantage_estimator in ("ppo", "gspo") else None
