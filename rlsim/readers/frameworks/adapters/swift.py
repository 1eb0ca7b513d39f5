"""ms-swift's options (swift and megatron: sft; rlhf with --rlhf_type grpo, gkd or dpo; swift/arguments,
swift/megatron/arguments) at 3602360a5. Lines named below are of that commit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rlsim.errors import InputError
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.megatron import core_rules, optimizer_bytes
from rlsim.readers.frameworks.options import Change, Options, anything, flag, integer, number, size, switch, text, words
from rlsim.readers.frameworks.pools import swift_teacher
from rlsim.readers.frameworks.rules import EXPERTS_IMPLEMENTATION, INT4, TRANSFORMERS, Assumption, Rules, vllm_method
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Speculation, Trainer, Workload


class Swift(Options):
    """Options of the command line and what its environment says of processes."""

    program, entry = text("swift", name="launcher.program"), text("", name="launcher.entry")
    processes, launched = integer(name="launcher.nproc_per_node"), integer(name="launcher.num_processes")
    devices = anything(name="launcher.cuda_visible_devices")
    nnodes = size(name="launcher.nnodes")

    rlhf_type = text("dpo")
    model, teacher_model, teacher_model_server = text(""), text(""), text("")
    tuner_type, train_type = text(), text("lora")
    lora_rank = integer(8)
    attn_impl, deepspeed, fsdp = text(), text(""), text("")

    use_vllm = switch()
    vllm_mode = text("server")
    vllm_tensor_parallel_size, vllm_pipeline_parallel_size, vllm_data_parallel_size = size(), size(), size()
    vllm_gpu_memory_utilization = number(0.9)
    vllm_max_num_seqs, vllm_max_model_len = integer(256), integer()
    vllm_enforce_eager, vllm_enable_prefix_caching = flag(False), flag(True)
    vllm_enable_expert_parallel, vllm_enable_lora = flag(False), flag(False)
    vllm_quantization, draft_method = text(), text(name="vllm_speculative_config.method")
    drafter = text(name="vllm_speculative_config.model")
    draft_length = integer(name="vllm_speculative_config.num_speculative_tokens")
    async_generate, offload_model, offload_optimizer = flag(False), flag(False), flag(False)

    per_device_train_batch_size = integer(1)
    gradient_accumulation_steps, generation_batch_size, steps_per_generation = integer(), integer(), integer()
    num_generations, num_iterations = integer(8), size()
    max_length, max_completion_length = integer(), integer(512)
    max_turns, vllm_server_port = integer(), integer(8000)
    multi_turn_scheduler = text()
    beta = number()
    dynamic_sample, gradient_checkpointing, padding_free = flag(False), flag(True), flag()
    packing, use_liger_kernel = flag(False), flag(False)
    sequence_parallel_size = size()

    micro_batch_size, global_batch_size = size(), integer(16)
    tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size = size(), size(), size()
    expert_model_parallel_size, expert_tensor_parallel_size = size(), size()
    virtual_pipeline_model_parallel_size = size()
    recompute_granularity, recompute_modules = text("selective"), words()
    optimizer_cpu_offload, use_precision_aware_optimizer = flag(False), flag(False)
    exp_avg_dtype, exp_avg_sq_dtype, fp8_format = text(), text(), text()
    # Defaults of swift/megatron/arguments/megatron_args.py at 006938be6.
    account_for_loss_in_pipeline_split, overlap_grad_reduce, sequence_parallel = flag(False), flag(False), flag(False)
    use_distributed_optimizer, use_megatron_fsdp, fp8_param_gather = flag(True), flag(False), flag(False)
    data_parallel_sharding_strategy, optimizer = text("optim_grads_params"), text("adam")
    accumulate_allreduce_grads_in_fp32, main_grads_dtype = flag(False), text("fp32")
    moe_token_dispatcher_type, moe_enable_deepep = text("alltoall"), flag(False)
    mtp_num_layers, fp4_format, experts_impl = integer(), text(), text()
    freeze_vit, reference_free = flag(True), flag(False)

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core trains."""
        return self.program == "megatron" or "_megatron" in self.entry

    @property
    def supervised(self) -> bool:
        """Whether samples are of a data set."""
        return self.pair == 2 or re.search(r"(^|/)sft(\.py)?$", self.entry) is not None

    @property
    def pair(self) -> int:
        """Samples of a row of the data set: chosen and rejected under DPO."""
        tuned = re.search(r"(^|/)rlhf(\.py)?$", self.entry) is not None
        return 2 if tuned and self.rlhf_type == "dpo" else 1

    @property
    def ranks(self) -> int:
        """Processes of the trainer, one a GPU: as its environment says, else one (swift/cli/main.py:31-33)."""
        if self.launched:  # accelerate's count is of all nodes
            return self.launched
        visible = len(str(self.devices).split(",")) if self.devices is not None and not self.processes else 1
        return (self.processes or visible) * self.nnodes

    @property
    def server(self) -> bool:
        """Whether vLLM has GPUs of its own."""
        return self.use_vllm and self.vllm_mode == "server"

    @property
    def rollout(self) -> Mapping[str, Any]:
        """The server of swift rollout that the script itself starts: launch.py; empty where it starts none."""
        servers = self.r.value("launcher.servers") or ()
        own = (one for one in servers if "turns" in one and one["port"] == self.vllm_server_port)
        return next(own, {}) if self.server else {}

    @property
    def served(self) -> int:
        """GPUs of the server."""
        if self.rollout:
            return int(self.rollout["gpus"])
        engine = self.vllm_tensor_parallel_size * self.vllm_pipeline_parallel_size
        return engine * self.vllm_data_parallel_size if self.server else 0

    @property
    def accumulated(self) -> int:
        """Micro-batches of an optimizer step (rlhf_args.py:527-530, trainers/arguments.py:283-286)."""
        fill = max(1, -(-16 // (self.per_device_train_batch_size * self.ranks)))
        return self.gradient_accumulation_steps or (1 if self.rlhf_type == "grpo" else fill)

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch."""
        return self.pair * (self.micro_batch_size if self.megatron else self.per_device_train_batch_size)

    @property
    def trained(self) -> int:
        """Samples, of DPO pairs, of an optimizer step."""
        if self.megatron:
            return self.global_batch_size
        return self.per_device_train_batch_size * self.ranks * self.accumulated // self.sequence_parallel_size

    @property
    def batch(self) -> int:
        """Samples of one generation, and of an optimizer step at least (args_mixin.py:203, megatron_args.py:261)."""
        parts = self.steps_per_generation or (1 if self.megatron else self.accumulated)
        each = self.trained if self.megatron else self.trained // self.accumulated
        return max(self.generation_batch_size or parts * each, self.trained)

    @property
    def samples(self) -> int:
        """Samples of a prompt."""
        return self.num_generations if self.rlhf_type == "grpo" else 1

    @property
    def prompt_cap(self) -> int:
        """Most tokens of a prompt: max_length, of which GRPO cuts prompts (rlhf_args.py:156)."""
        return self.max_length or 2048

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        if self.supervised:
            return self.prompt_cap
        longest = self.prompt_cap + self.max_completion_length
        served = self.vllm_max_model_len or longest
        return min(served, longest) if self.max_length else served

    @property
    def packed(self) -> bool:
        """Whether samples are flattened without padding; Megatron's default."""
        return self.packing or (self.megatron if self.padding_free is None else self.padding_free)

    @property
    def adapted(self) -> bool:
        """Whether an adapter is trained."""
        return (self.tuner_type or self.train_type) in ("lora", "longlora", "adalora")

    @property
    def sharing(self) -> Literal[0, 1, 2, 3] | None:
        """What Megatron-Core's ranks share, as stages of ZeRO (megatron_args.py:587-591)."""
        if self.use_megatron_fsdp:
            return SHARDED.get(self.data_parallel_sharding_strategy)
        return None if self.use_distributed_optimizer else 0

    @property
    def shared(self) -> Literal[0, 1, 2, 3] | None:
        """What data-parallel ranks share, as stages of ZeRO; nothing without DeepSpeed or FSDP."""
        stages: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
        found = re.match(r"zero(\d)", self.deepspeed)
        stated = next((stage for stage in stages if found and str(stage) == found[1]), None)
        return None if self.megatron or self.fsdp or (self.deepspeed and not found) else stated or 0


def prompts(c: Swift) -> int:
    """Prompts of a step. Raises InputError for what generates nothing."""
    if c.supervised:
        return c.trained
    if c.rlhf_type not in ("grpo", "gkd"):
        raise InputError(
            f"{c.r.where}: rlhf_type: '{c.shown(Swift.rlhf_type)}' is not simulated; known: grpo, gkd, dpo"
        )
    return max(1, c.batch // c.samples)


SHARDED: dict[str, Literal[0, 1, 2, 3]] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _set_lora_rank(c: Swift, value: int | None) -> Iterator[Change]:
    if (value is None) == c.adapted:
        yield Swift.tuner_type.to("full" if value is None else "lora")
    if value is not None:
        yield Swift.lora_rank.to(value)


of = Rules(Swift)
RULES = (
    of(Workload.prompts_per_step).by(Swift.generation_batch_size, prompts),
    of(Workload.generations_per_prompt).by(Swift.num_generations, lambda c: c.pair if c.supervised else c.samples),
    of(Loop.supervised).rule(lambda c: c.supervised or None),
    of(Workload.max_sequence_tokens).by(Swift.max_length, lambda c: c.cap),
    of(Workload.max_response_tokens).same(Swift.max_completion_length),
    of(Cluster.num_gpus).rule(lambda c: c.ranks + c.served),
    of(Cluster.generation_gpus, when=lambda c: c.server).rule(lambda c: c.served),
    of(Loop.mode, when=lambda c: c.server and c.async_generate, otherwise="sync").constant("async"),
    of(Loop.style, when=lambda c: c.server and c.async_generate).constant("slime"),
    of(Loop.policy_lag, when=lambda c: c.server and c.async_generate).constant(1),
    of(Engine.name).constant("vllm"),
    of(Engine.tensor_parallel).by(
        Swift.vllm_tensor_parallel_size,
        lambda c: c.rollout.get("tensor_parallel", c.vllm_tensor_parallel_size),
    ),
    of(Engine.pipeline_parallel).same(Swift.vllm_pipeline_parallel_size),
    of(Engine.expert_parallel).rule(
        lambda c: (
            c.rollout.get("tensor_parallel", c.vllm_tensor_parallel_size) if c.vllm_enable_expert_parallel else None
        ),
        lambda _, value: [Swift.vllm_enable_expert_parallel.to(value > 1)],
    ),
    of(Engine.weight_precision).words(Swift.vllm_quantization, ("fp8*", "fp8"), *INT4, other="bf16"),
    # Merged into the weights that are sent unless vLLM is to load it (rlhf_trainers/args_mixin.py:118).
    of(Engine.lora_rank, when=lambda c: c.adapted and not c.supervised).rule(
        lambda c: c.lora_rank if c.vllm_enable_lora else 0,
        lambda _, value: [Swift.vllm_enable_lora.to(value > 0)],
    ),
    of(Speculation.method).rule(lambda c: vllm_method(c.draft_method, c.drafter)),
    of(Speculation.draft_length).same(Swift.draft_length),
    of(Engine.max_running_sequences).same(Swift.vllm_max_num_seqs),
    of(Engine.gpu_memory_utilization).same(Swift.vllm_gpu_memory_utilization),
    of(Engine.cuda_graphs).opposite(Swift.vllm_enforce_eager),
    of(Engine.prefix_caching).same(Swift.vllm_enable_prefix_caching),
    of(Trainer.backend).rule(lambda c: "megatron" if c.megatron else "fsdp"),
    of.either(
        of(Trainer.zero_stage, when=lambda c: c.megatron).rule(lambda c: c.sharing),
        of(Trainer.zero_stage).rule(lambda c: c.shared),
    ),
    of(Trainer.tensor_parallel, when=lambda c: c.megatron, otherwise=1).same(Swift.tensor_model_parallel_size),
    of(Trainer.pipeline_parallel, when=lambda c: c.megatron, otherwise=1).same(Swift.pipeline_model_parallel_size),
    of(Trainer.expert_parallel, when=lambda c: c.megatron).same(Swift.expert_model_parallel_size),
    of(Trainer.expert_tensor_parallel, when=lambda c: c.megatron).same(Swift.expert_tensor_parallel_size),
    of.either(
        of(Trainer.context_parallel, when=lambda c: c.megatron).same(Swift.context_parallel_size),
        of(Trainer.context_parallel).same(Swift.sequence_parallel_size),
    ),
    of(Trainer.lora_rank, when=lambda c: c.adapted).rule(lambda c: c.lora_rank, _set_lora_rank),
    of(Trainer.flash_attention_2).words(
        Swift.attn_impl, ("*flash_attention_[34]*", False), ("*flash_attn_[34]*", False), ("*", None)
    ),
    of.either(
        of(Trainer.global_batch_samples, when=lambda c: c.megatron).by(Swift.global_batch_size, lambda c: c.trained),
        of(Trainer.global_batch_samples).by(Swift.gradient_accumulation_steps, lambda c: c.trained),
    ),
    of(Trainer.epochs).same(Swift.num_iterations),
    of(Trainer.sequence_packing).rule(lambda c: c.packed, lambda _, value: [Swift.padding_free.to(value)]),
    of(Trainer.micro_batch_tokens, when=lambda c: c.packed).rule(
        lambda c: c.micro_batch * c.cap if c.packing else c.r.real_tokens(c.micro_batch, c.cap)
    ),
    of.either(
        of(Trainer.micro_batch_samples, when=lambda c: c.megatron).by(Swift.micro_batch_size, lambda c: c.micro_batch),
        of(Trainer.micro_batch_samples).by(Swift.per_device_train_batch_size, lambda c: c.micro_batch),
    ),
    of.either(
        of(Trainer.recompute, when=lambda c: c.megatron).words(
            Swift.recompute_granularity, ("full", "full"), ("selective", "selective"), ("none", "none")
        ),
        of(Trainer.recompute).switched(Swift.gradient_checkpointing, "full", "none"),
    ),
    *core_rules(
        of,
        lambda c: c.megatron,
        tensor=Swift.tensor_model_parallel_size,
        granularity=Swift.recompute_granularity,
        modules=Swift.recompute_modules,
        loss=Swift.account_for_loss_in_pipeline_split,
        overlap=Swift.overlap_grad_reduce,
        sequence=Swift.sequence_parallel,
    ),
    of(Trainer.virtual_stages, when=lambda c: c.megatron, otherwise=1).rule(
        lambda c: c.virtual_pipeline_model_parallel_size
    ),
    of(Trainer.precision, when=lambda c: c.megatron, otherwise="bf16").rule(
        lambda c: "nvfp4" if c.fp4_format else "fp8" if c.fp8_format else "bf16",
        # swift/megatron/arguments/megatron_args.py:636
        lambda c, to: [Swift.fp8_format.to("hybrid" if to == "fp8" else None)][: c.megatron],
    ),
    of(Trainer.fp8_parameter_gather, when=lambda c: c.megatron and c.fp8_format is not None).same(
        Swift.fp8_param_gather
    ),
    # megatron_args.py:1113-1116: gradients in BF16 where main_grads_dtype asks for them alone.
    of(Trainer.gradient_precision, when=lambda c: c.megatron).rule(
        lambda c: "fp32" if c.accumulate_allreduce_grads_in_fp32 or c.main_grads_dtype == "fp32" else "bf16",
        lambda _, value: [Swift.main_grads_dtype.to(value)],
    ),
    of(Trainer.optimizer, when=lambda c: c.megatron).words(
        Swift.optimizer, ("muon", "muon"), ("adam", "adam"), ("*muon*", "muon"), other="adam"
    ),
    of(Trainer.mtp_layers, when=lambda c: c.megatron).same(Swift.mtp_num_layers),
    of(Trainer.moe_dispatcher, when=lambda c: c.megatron).rule(
        lambda c: "deepep" if c.moe_enable_deepep else None if c.moe_token_dispatcher_type == "flex" else "alltoall"
    ),
    of(Trainer.expert_products, when=lambda c: not c.megatron).words(Swift.experts_impl, *EXPERTS_IMPLEMENTATION),
    # Of models that see; an adapter of all linear layers leaves it out as well (tuner_args.py:123, 210).
    of(Trainer.frozen_vision).same(Swift.freeze_vit),
    of(Trainer.optimizer_bytes_per_parameter, when=lambda c: c.megatron).by(
        Swift.use_precision_aware_optimizer,
        lambda c: optimizer_bytes(
            c.use_precision_aware_optimizer, c.optimizer_cpu_offload, (c.exp_avg_dtype, c.exp_avg_sq_dtype)
        ),
    ),
    of(Trainer.fused_kernels, when=lambda c: not c.megatron).same(Swift.use_liger_kernel),
    of.either(
        of(Trainer.optimizer_on_host, when=lambda c: c.megatron).same(Swift.optimizer_cpu_offload),
        of(Trainer.optimizer_on_host).rule(lambda c: c.deepspeed.endswith("_offload")),
    ),
    of(Trainer.logits_bytes, when=lambda c: not c.megatron).constant(10.0),  # the trainer of Hugging Face, as trl's
    # grpo_trainer.py:778: always; a distillation has no ratio. rlhf_args.py:355-356: beta is 0.04 where none is stated.
    of(Trainer.policy_logprobs).rule(lambda c: c.rlhf_type == "grpo"),
    of(Trainer.reference_logprobs).rule(
        lambda c: c.pair == 2 and not c.reference_free if c.supervised else c.rlhf_type == "grpo" and c.beta != 0,
        lambda c, to: [Swift.beta.to(None if to else 0.0)][: c.rlhf_type == "grpo"],
    ),
    of(Trainer.offload).rule(
        lambda c: c.offload_model or c.offload_optimizer,
        lambda _, value: [Swift.offload_model.to(value), Swift.offload_optimizer.to(value)],
    ),
)


def _facts(c: Swift) -> Facts:
    return Facts(
        gpus_per_node=8,
        supervised=c.supervised,
        filled=c.supervised and c.packing,
        prompt_cap=c.prompt_cap,
        response_cap=c.max_completion_length,
        turns=(c.max_turns or 1) if c.multi_turn_scheduler else c.rollout.get("turns", 1),
        pools=swift_teacher(
            c.r,
            c.teacher_model_server,
            c.teacher_model,
            (c.tensor_model_parallel_size, c.pipeline_model_parallel_size, c.context_parallel_size)
            if c.megatron
            else None,
        ),
        drafter=c.drafter or "",
        dynamic=c.dynamic_sample,
    )


def _assumptions(c: Swift) -> Iterator[Assumption]:
    if c.supervised:
        if not c.max_length:
            yield Assumption(
                "No option caps samples; 2,048 tokens are taken (max_length).", [Workload.max_sequence_tokens]
            )
        return
    if not c.max_length:
        yield Assumption(
            "No option caps prompts; 2,048 tokens are left for them beside the completion (max_length).",
            [Workload.max_sequence_tokens],
        )
    if not c.use_vllm:
        yield TRANSFORMERS
    if c.server and not c.rollout:
        yield Assumption(
            f"The server of swift rollout is taken to have {c.served} GPU(s) of its own (cluster.generation_gpus).",
            [Cluster.generation_gpus, Cluster.num_gpus],
        )
    if c.rlhf_type == "gkd":
        yield Assumption("Every sample of the distillation is generated by the student (lmbda 1).", [Loop.mode])


FRAMEWORK = of.framework(
    "swift",
    RULES,
    _facts,
    _assumptions,
    borrowed="ms-swift",
    model=Swift.model,
    node_size=Swift.processes,
    shipped={"swift": ["swift"]},
    entry={r"^(rlhf|sft)$|(^|/)cli/(_megatron/)?(rlhf|sft)\.py$": {}},
    form="words",
    begin={Swift.rlhf_type.key: "grpo", Swift.use_vllm.key: True, Swift.vllm_mode.key: "colocate"},
    home="github.com/modelscope/ms-swift (examples)",
)
