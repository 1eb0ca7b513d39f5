"""Keys of SkyRL's configurations (skyrl/train/config/config.py and its entry points) at a9564572e, and what several of
them say together."""

from __future__ import annotations

from rlsim.readers.frameworks.options import (
    Options,
    Part,
    anything,
    aside,
    batches,
    flag,
    integer,
    number,
    section,
    size,
    switch,
    text,
    words,
)
from rlsim.readers.frameworks.rules import PACKED_INT4


class Placement(Options, section="trainer.placement"):
    """GPUs of the trainer."""

    colocate_all = flag(True)
    policy_num_nodes, policy_num_gpus_per_node = size(), size()
    ref_num_nodes, ref_num_gpus_per_node, colocate_policy_ref = aside(size()), aside(size()), aside(flag(True))
    critic_num_nodes, critic_num_gpus_per_node = aside(size()), aside(size())


class Run(Options, section="trainer"):
    """Of a step and of training."""

    strategy = text("fsdp")
    arctic_colocate = switch(name="arctic_rl.colocate")
    train_batch_size = integer()
    eval_batch_size = integer(1024)
    policy_mini_batch_size = integer(1)
    update_epochs_per_batch = integer()
    max_prompt_length = integer(512)
    remove_microbatch_padding = flag()
    max_tokens_per_microbatch = integer(-1)
    micro_train_batch_size_per_gpu, micro_forward_batch_size_per_gpu = size(), size()
    gradient_checkpointing = flag(False)
    fused_lm_head_logprob = switch()
    use_kl_loss = flag(True, name="algorithm.use_kl_loss")
    use_kl_in_reward = flag(False, name="algorithm.use_kl_in_reward")
    dynamic_sampling = text(name="algorithm.dynamic_sampling.type")
    max_sample_batches = integer(30, name="algorithm.dynamic_sampling.max_sample_batches")
    mtp = flag(False, name="mtp.enabled")
    mtp_tokens = integer(name="mtp.num_speculative_tokens")
    critic = text(name="critic.model.path")


class Policy(Options, section="trainer.policy"):
    """Of the model."""

    path = text("", name="model.path")
    lora_rank = integer(name="model.lora.rank")
    sequence_parallel_size = integer(1)


class Megatron(Options, section="trainer.policy.megatron_config"):
    """Of training by Megatron-Core."""

    tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size = integer(1), integer(1), integer(1)
    expert_model_parallel_size, expert_tensor_parallel_size = integer(1), integer()
    moe_token_dispatcher_type = text()
    fp8 = text(name="transformer_config_kwargs.fp8")
    recompute_granularity = text(name="transformer_config_kwargs.recompute_granularity")
    use_precision_aware_optimizer = flag(False, name="optimizer_config_kwargs.use_precision_aware_optimizer")
    optimizer_cpu_offload = switch(name="optimizer_config_kwargs.optimizer_cpu_offload")
    recompute_modules = words(name="transformer_config_kwargs.recompute_modules")
    account_for_loss = switch(name="transformer_config_kwargs.account_for_loss_in_pipeline_split")
    # skyrl/train/config/config.py:248-252.
    overlap_grad_reduce = switch(name="ddp_config.overlap_grad_reduce")
    grad_reduce_in_fp32 = flag(name="ddp_config.grad_reduce_in_fp32")
    exp_avg_dtype = text(name="optimizer_config_kwargs.exp_avg_dtype")
    exp_avg_sq_dtype = text(name="optimizer_config_kwargs.exp_avg_sq_dtype")
    # Weights with the adapter in them go to the engine unless stated (skyrl/train/config/config.py:414 and
    # skyrl/backends/skyrl_train/inference_servers/utils.py:23-34); FSDP hands the adapter over always.
    merge_lora = flag(True, name="lora_config.merge_lora")


class Async(Options, section="trainer.fully_async"):
    """Of the fully asynchronous trainer."""

    enabled = flag()
    max_staleness_steps = integer(4)
    num_parallel_generation_workers = integer()
    clear_kv_cache_on_weight_sync = flag(False)


class Generator(Options, section="generator"):
    """Of what is generated."""

    n_samples_per_prompt = integer()
    eval_n_samples_per_prompt = integer(1)
    max_turns = integer(1)
    max_input_length = integer(0)
    batched = flag(False)


class Inference(Options, section="generator.inference_engine"):
    """Of the engines."""

    backend = text()
    num_engines, tensor_parallel_size, data_parallel_size = size(), size(), size()
    enable_pd, num_prefill = flag(False), integer(0)
    pipeline_parallel_size, expert_parallel_size = integer(), integer()
    async_engine = flag(True)
    max_num_seqs, max_num_batched_tokens = integer(), integer()
    gpu_memory_utilization = number()
    enforce_eager, enable_prefix_caching, enable_chunked_prefill = flag(), flag(), flag()
    quantization = text(name="engine_init_kwargs.quantization")
    max_model_len = integer(0, name="engine_init_kwargs.max_model_len")
    kv_cache_dtype = text(name="engine_init_kwargs.kv_cache_dtype")
    max_cudagraph_capture_size = integer(name="engine_init_kwargs.max_cudagraph_capture_size")
    router_policy = text(name="router_init_kwargs.policy")


class Drafts(Options, section="generator.inference_engine.speculative_config"):
    """Of a drafter of its own."""

    method, model = text(), text()
    num_speculative_tokens, draft_tensor_parallel_size = integer(), integer()
    parallel_drafting = flag(False)
    num_speculative_tokens_per_batch_size = batches()


class Skyrl(Options):
    """A whole configuration."""

    entry = text("", name="launcher.entry")
    sampled = integer(1024, name="generator.sampling_params.max_generate_length")
    evaluated = integer(name="generator.eval_sampling_params.max_generate_length")
    fsdp_cpu_offload = switch(name="trainer.policy.fsdp_config.cpu_offload")
    placement, run, policy, mcore = Part(Placement), Part(Run), Part(Policy), Part(Megatron)
    fully_async, generator, engine, drafts = Part(Async), Part(Generator), Part(Inference), Part(Drafts)

    harbor_turns = integer(0, name="harbor_trial_config.agent.kwargs.max_turns")

    async_section = aside(section(name="trainer.fully_async"))
    flat_engines = aside(anything(name="generator.num_inference_engines"))
    raw_input_length = anything(name="generator.max_input_length", resolved=False)

    @property
    def rollouts_alone(self) -> bool:
        """Whether an evaluation generates batches and trains nothing (train/entrypoints/main_generate.py)."""
        return self.entry.endswith("main_generate")

    @property
    def max_response(self) -> int:
        """Most tokens of a turn (train/config/config.py:1251, 1280)."""
        return (self.rollouts_alone and self.evaluated) or self.sampled

    @property
    def training_gpus(self) -> int:
        """GPUs of the trainer."""
        return 0 if self.rollouts_alone else self.placement.policy_num_nodes * self.placement.policy_num_gpus_per_node

    @property
    def beside(self) -> int:
        """GPUs of the reference policy beside the actor's, which shared ones always have (train/trainer.py:655-757)."""
        place = self.placement
        alone = self.split and not place.colocate_policy_ref and (self.run.use_kl_loss or self.run.use_kl_in_reward)
        return place.ref_num_nodes * place.ref_num_gpus_per_node if alone else 0

    @property
    def node(self) -> int:
        """GPUs of a node: those that its workers take where they share them with the engines, else 8."""
        return 8 if self.split else self.placement.policy_num_gpus_per_node

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core trains."""
        return self.run.strategy == "megatron"

    @property
    def packed(self) -> bool:
        """Whether vLLM finds INT4 weights in the checkpoint: what the trainer then fakes, it serves
        (backends/skyrl_train/workers/megatron/fake_int4_qat.py)."""
        return self.engine.quantization is None and any(word in self.policy.path for word in PACKED_INT4)

    @property
    def split(self) -> bool:
        """Whether generation has GPUs of its own. Arctic RL shares them by a switch of its own, beside which
        colocate_all must be off (integrations/arctic_rl/config.py:42-46 at a9564572e)."""
        return not self.placement.colocate_all and not self.run.arctic_colocate

    @property
    def fully(self) -> bool:
        """Whether the fully asynchronous trainer runs. The flat layout has no switch: there the section among the keys
        is one."""
        if not self.split:
            return False
        enabled = self.fully_async.enabled
        if enabled is None:
            enabled = self.flat_engines is not None and self.async_section is not None
        return enabled or "fully_async" in self.entry

    @property
    def asynchronous(self) -> bool:
        """Whether generation overlaps with training."""
        return self.fully or (self.split and "async" in self.entry)

    @property
    def one_off(self) -> bool:
        """Whether training is one step behind."""
        return self.asynchronous and not self.fully

    @property
    def unpacked(self) -> bool:
        """Whether micro-batches are padded samples."""
        return self.run.remove_microbatch_padding is False

    @property
    def by_tokens(self) -> bool:
        """Whether micro-batches are bounded by tokens."""
        return self.run.max_tokens_per_microbatch > 0

    @property
    def multi_turn(self) -> bool:
        """Whether a trajectory has several turns. It ends where its context exceeds max_input_length before a turn, and
        each turn generates max_generate_length (skyrl/train/generators/skyrl_gym_generator.py:386, 829); with one turn
        max_input_length must equal max_prompt_length, else be no less (skyrl/train/utils/utils.py:489-497)."""
        return self.generator.max_turns > 1

    @property
    def trial_tokens(self) -> int:
        """Most tokens of a trajectory of Harbor's agents, which talk to the engines' server and know no other bound
        (examples/train_integrations/harbor/harbor_generator.py at a9564572e); 0 without."""
        return self.engine.max_model_len if self.harbor_turns else 0

    @property
    def turns(self) -> int:
        """Most turns of a trajectory."""
        return max(self.generator.max_turns, self.harbor_turns)

    @property
    def response_cap(self) -> int:
        """Most tokens of a response."""
        return self.trial_tokens or self.max_response

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        if self.trial_tokens:
            return self.trial_tokens
        context = (self.multi_turn and self.generator.max_input_length) or self.run.max_prompt_length
        whole = context + self.max_response
        return min(whole, self.engine.max_model_len or whole)

    @property
    def stated_input_length(self) -> bool:
        """Whether max_input_length is a number of its own rather than another key's."""
        return isinstance(self.raw_input_length, int)

    @property
    def stage_gpus(self) -> int:
        """GPUs of an engine that hold a layer."""
        return self.engine.tensor_parallel_size * self.engine.data_parallel_size

    @property
    def engine_stages(self) -> int:
        """GPUs of an engine that share no layer."""
        return self.engine.pipeline_parallel_size or 1

    @property
    def engine_gpus(self) -> int:
        """GPUs of an engine."""
        return self.stage_gpus * self.engine_stages

    @property
    def shared(self) -> bool:
        """Whether engines have the trainer's GPUs, all of them."""
        return self.placement.colocate_all and not self.rollouts_alone

    @property
    def generation_gpus(self) -> int:
        """GPUs beside the trainer's."""
        return self.engine.num_engines * self.engine_gpus if self.split or self.rollouts_alone else 0
