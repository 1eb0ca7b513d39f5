"""ROLL's configurations (roll/configs; pipelines rlvr, agentic, sft and dpo) at 8eb27cc2."""

from __future__ import annotations

from collections.abc import Iterator

from rlsim.readers.frameworks.adapters.roll_options import Infer, Inference, Strategy, Train, devices, mapped
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.megatron import GRANULARITIES, core_rules, shared_experts
from rlsim.readers.frameworks.options import Change, Options, Part, aside, integer, number, size, switch, text
from rlsim.readers.frameworks.pools import JUDGED_SHARE, judge_places, roll_judges
from rlsim.readers.frameworks.rules import INT4, TRANSFORMERS, Assumption, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Trainer, Workload


class Roll(Options):
    """A whole configuration."""

    trainer, strategy, infer, engine = Part(Train), Part(Strategy), Part(Infer), Part(Inference)
    entry, pretrain = text("", name="launcher.entry"), text("")
    num_gpus_per_node = integer(8)
    rollout_batch_size = integer(128)
    num_return_sequences_in_group = size()
    validated = size(name="validation.generating_args.num_return_sequences")
    group_size = integer(name="train_env_manager.group_size")
    sequence_length, prompt_length = integer(), integer()
    response_length = integer(1024)
    async_generation_ratio = number(0.0)
    ppo_epochs = integer(1)
    estimator = text("gae", name="adv_estimator")
    init_kl_coef = number(0.2)
    enable_reference, use_kl_loss, enable_old_logprobs_recompute = switch(), switch(), switch()
    force_disable_old_logprobs_recompute = switch()
    max_actions_per_traj = integer()
    max_turns = integer(10)
    max_tokens_per_step = integer()
    use_additional_prompts = switch()
    response_key, chosen_key = aside(text()), aside(text())

    @property
    def turn_tokens(self) -> int:
        """Most tokens of a turn of an agent, 0 where nothing bounds it (pipeline/agentic/env_manager/
        traj_env_manager.py:228-230)."""
        return min(filter(None, (self.max_tokens_per_step, self.infer.max_new_tokens)), default=0)

    @property
    def supervised(self) -> bool:
        """Whether samples are of a data set (pipeline/sft, pipeline/dpo), by the keys of its rows."""
        return self.response_key is not None or self.pair == 2

    @property
    def pair(self) -> int:
        """Samples of a row: chosen and rejected under DPO."""
        return 1 if self.chosen_key is None else 2

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch."""
        return self.pair * self.trainer.batch_size

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core trains."""
        return "megatron" in self.trainer.strategy

    @property
    def sglang(self) -> bool:
        """Whether SGLang generates."""
        return self.infer.strategy == "sglang"

    @property
    def agentic(self) -> bool:
        """Whether environments are played."""
        return self.group_size is not None

    @property
    def group(self) -> int:
        """Samples of a prompt."""
        if self.rollouts_alone and not self.agentic:  # rlvr_rollout_pipeline.py takes the validation's settings
            return self.validated
        return (self.group_size or 1) if self.agentic else self.num_return_sequences_in_group

    @property
    def training(self) -> frozenset[int]:
        """GPUs that train."""
        return frozenset() if "rollout_pipeline" in self.entry else devices(self.trainer.device_mapping)

    @property
    def rollouts_alone(self) -> bool:
        """Whether the pipeline generates and does not train (pipeline/agentic/agentic_rollout_pipeline.py,
        pipeline/rlvr/rlvr_rollout_pipeline.py)."""
        return not self.training and bool(self.generating)

    @property
    def generating(self) -> frozenset[int]:
        """GPUs that generate."""
        return frozenset() if self.supervised else devices(self.infer.device_mapping)

    @property
    def apart(self) -> bool:
        """Whether there are GPUs for each."""
        return not self.rollouts_alone and not self.training & self.generating

    @property
    def asynchronous(self) -> bool:
        """Whether generation overlaps with training."""
        return self.apart and self.async_generation_ratio > 0

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        return self.sequence_length or (self.prompt_length or 1024) + self.response_length

    @property
    def ulysses(self) -> int:
        """GPUs that share a sequence where Megatron-Core does not train."""
        return self.trainer.ulysses_size or self.strategy.ulysses_size

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        one = self.strategy
        return max(
            1,
            len(self.training)
            // (
                one.tensor_model_parallel_size * one.pipeline_model_parallel_size * one.context_parallel_size
                if self.megatron
                else self.ulysses
            ),
        )

    @property
    def update(self) -> int:
        """Samples of an update of a rank."""
        return self.trainer.batch_size * self.trainer.accumulation

    @property
    def updates(self) -> int:
        """base_config.py:657-662, 785-819: updates of a rank in a step, counted over all GPUs under DeepSpeed."""
        samples = self.rollout_batch_size * (1 if self.agentic else self.group)
        counted = self.megatron or self.trainer.strategy in ("fsdp2_train", "fsdp2_infer")
        return samples // (self.ranks if counted else 1) // self.update

    @property
    def recomputing(self) -> bool:
        """Whether log-probs of the policy are needed without being asked for."""
        return self.estimator in ("step_reinforce", "gigpo") or self.updates > 1 or self.init_kl_coef > 0

    @property
    def tp(self) -> int:
        """GPUs that share a layer of an engine."""
        return self.engine.tensor_parallel_size or self.engine.tp_size or self.infer.num_gpus_per_worker

    @property
    def packed(self) -> bool:
        """Whether micro-batches have no padding."""
        one = self.trainer
        return one.use_sequence_packing or one.use_dynamic_batching_in_train or one.use_remove_padding


def _set_num_gpus(c: Roll, value: int) -> list[Change]:
    if not c.apart:
        return mapped(c.r, (0, value), (0, value))
    left = value - len(c.generating)
    return mapped(c.r, (0, left), (left, value))


def _set_generation_gpus(c: Roll, value: int | None) -> list[Change]:
    every = len(c.training | c.generating)
    return mapped(c.r, (0, every - (value or 0)), (every - (value or every), every))


def _micro_batch_tokens(c: Roll) -> int:
    one = c.trainer
    stated = one.max_tokens_per_microbatch_in_train or one.packed_train
    return stated or c.r.real_tokens(c.micro_batch, c.cap)


def _logprob_micro_batch_tokens(c: Roll) -> int:
    """Log-prob passes of the trainer's own worker (base_worker.py:147, megatron_strategy.py:246-268)."""
    one = c.trainer
    if one.use_dynamic_batching_in_infer:
        return max(c.cap, one.max_tokens_per_microbatch_in_infer)
    return one.packed_forward or c.r.real_tokens(one.infer_batch_size, c.cap)


def _policy_logprobs(c: Roll) -> bool:
    # base_config.py:657-662: what forbids them comes first, then estimators that need them, then the updates.
    return not c.force_disable_old_logprobs_recompute and (c.enable_old_logprobs_recompute or c.recomputing)


def _set_policy_logprobs(c: Roll, value: bool) -> Iterator[Change]:
    if value or not c.recomputing:
        yield Roll.enable_old_logprobs_recompute.to(value)
    if value or c.recomputing:
        yield Roll.force_disable_old_logprobs_recompute.to(not value)


of = Rules(Roll)
RULES = (
    of.either(
        of(Workload.prompts_per_step, when=lambda c: c.supervised).rule(lambda c: c.update * c.ranks),
        # pipeline/agentic/agentic_config.py:318-333: of environments the batch counts trajectories.
        of(Workload.prompts_per_step).by(
            Roll.rollout_batch_size, lambda c: c.rollout_batch_size // c.group if c.agentic else c.rollout_batch_size
        ),
    ),
    of(Workload.generations_per_prompt).by(
        Roll.num_return_sequences_in_group, lambda c: c.pair if c.supervised else c.group
    ),
    of(Loop.supervised).rule(lambda c: c.supervised or None),
    of(Loop.rollouts_alone).rule(lambda c: c.rollouts_alone or None),
    of(Workload.max_sequence_tokens).by(Roll.response_length, lambda c: c.cap),
    of(Workload.max_response_tokens).rule(
        lambda c: None if c.agentic else c.response_length,
        lambda c, value: [Roll.response_length.to(value), Roll.prompt_length.to(max(1, c.cap - value))],
    ),
    of(Cluster.num_gpus).rule(lambda c: len(c.training | c.generating), _set_num_gpus),
    of(Cluster.generation_gpus, when=lambda c: c.apart).rule(lambda c: len(c.generating), _set_generation_gpus),
    of(Loop.mode).rule(
        lambda c: "async" if c.asynchronous else "sync",
        lambda _, value: [Roll.async_generation_ratio.to(float(value == "async"))],
    ),
    of(Loop.style, when=lambda c: not c.supervised and not c.rollouts_alone).constant("roll"),
    of(Loop.staleness_fraction, when=lambda c: c.asynchronous).same(Roll.async_generation_ratio),
    of(Engine.name).words(
        Infer.strategy,
        ("vllm", "vllm"),
        ("vllm*", "vllm"),
        ("sglang", "sglang"),
        ("sglang*", "sglang"),
        ("hf*", "vllm"),
    ),
    of(Engine.tensor_parallel).by(Inference.tensor_parallel_size, lambda c: c.tp),
    of(Engine.pipeline_parallel).same(Inference.pipeline_parallel_size),
    of(Engine.expert_parallel).rule(
        lambda c: c.tp if c.engine.enable_expert_parallel else c.engine.ep_size,
        lambda c, value: [Inference.ep_size.to(value) if c.sglang else Inference.enable_expert_parallel.to(value > 1)],
    ),
    of(Engine.weight_precision).words(
        Inference.quantization, ("fp8", "fp8_block"), ("fp8*", "fp8_block"), *INT4, other="bf16"
    ),
    of(Engine.dispatch).constant("least_loaded"),
    of.either(
        of(Engine.max_running_sequences, when=lambda c: c.sglang).same(Inference.max_running_requests),
        of(Engine.max_running_sequences).same(Inference.max_num_seqs),
    ),
    of(Engine.max_batched_tokens).same(Inference.max_num_batched_tokens),
    of.either(
        of(Engine.gpu_memory_utilization, when=lambda c: c.sglang).same(Inference.mem_fraction_static),
        of(Engine.gpu_memory_utilization).same(Inference.gpu_memory_utilization),
    ),
    of(Engine.cuda_graphs).opposite(Inference.enforce_eager),
    of(Engine.prefix_caching).same(Inference.enable_prefix_caching),
    of(Trainer.backend).rule(lambda c: "megatron" if c.megatron else "fsdp"),
    of(Trainer.tensor_parallel, when=lambda c: c.megatron, otherwise=1).same(Strategy.tensor_model_parallel_size),
    of(Trainer.pipeline_parallel, when=lambda c: c.megatron, otherwise=1).same(Strategy.pipeline_model_parallel_size),
    of.either(
        of(Trainer.expert_parallel, when=lambda c: c.megatron).same(Strategy.expert_model_parallel_size),
        of(Trainer.expert_parallel).same(Strategy.ep_size),
    ),
    of(Trainer.expert_tensor_parallel, when=lambda c: c.megatron).by(
        Strategy.expert_tensor_parallel_size, lambda c: shared_experts(c.strategy)
    ),
    of.either(
        of(Trainer.context_parallel, when=lambda c: c.megatron).same(Strategy.context_parallel_size),
        of(Trainer.context_parallel).by(Train.ulysses_size, lambda c: c.ulysses),
    ),
    of(Trainer.virtual_stages, when=lambda c: c.megatron, otherwise=1).rule(
        lambda c: c.strategy.virtual_pipeline_model_parallel_size
    ),
    of(Trainer.lora_rank).same(Train.lora_rank),
    of(Trainer.global_batch_samples).by(Train.accumulation, lambda c: c.update * c.ranks),
    of(Trainer.epochs).same(Roll.ppo_epochs),
    of(Trainer.critic).rule(
        lambda c: c.estimator == "gae", lambda _, value: [Roll.estimator.to("gae" if value else "grpo")]
    ),
    # Megatron's alone (roll/configs/worker_config.py:199-205; no strategy but megatron_strategy.py reads it).
    of(Trainer.sequence_packing).rule(
        lambda c: c.packed, lambda c, value: [Train.use_sequence_packing.to(value)][: c.megatron]
    ),
    of(Trainer.micro_batch_tokens, when=lambda c: c.packed).rule(_micro_batch_tokens),
    of(Trainer.micro_batch_samples, when=lambda c: not c.packed).by(Train.batch_size, lambda c: c.micro_batch),
    of(Trainer.logprob_micro_batch_tokens, when=lambda c: c.packed).rule(
        _logprob_micro_batch_tokens,
        lambda c, value: [Train.infer_batch_size.to(max(1, round(value / (c.r.mean_tokens or c.cap))))],
    ),
    of(Trainer.logprob_micro_batch_samples, when=lambda c: not c.packed).same(Train.infer_batch_size),
    of.either(
        of(Trainer.recompute, when=lambda c: c.megatron and c.strategy.recompute_granularity is not None).words(
            Strategy.recompute_granularity, *GRANULARITIES
        ),
        of(Trainer.recompute, when=lambda c: c.megatron).rule(
            lambda c: "full" if c.strategy.moe_layer_recompute else "none",
            lambda _, value: [Strategy.recompute_granularity.to(value)],
        ),
        of(Trainer.recompute).switched(Train.disable_gradient_checkpointing, "none", "full"),
    ),
    *core_rules(
        of,
        lambda c: c.megatron,
        tensor=Strategy.tensor_model_parallel_size,
        granularity=Strategy.recompute_granularity,
        modules=Strategy.recompute_modules,
        loss=Strategy.account_for_loss_in_pipeline_split,
        overlap=Strategy.overlap_grad_reduce,
        sharded=Strategy.use_distributed_optimizer,
    ),
    of(Trainer.sequence_parallel, when=lambda c: c.megatron and c.strategy.tensor_model_parallel_size > 1).by(
        Strategy.sequence_parallel, lambda c: c.strategy.in_sequence
    ),
    of(Trainer.optimizer_on_host).rule(
        lambda c: c.strategy.optimizer_cpu_offload or c.strategy.offload_policy,
        lambda c, value: [(Strategy.optimizer_cpu_offload if c.megatron else Strategy.offload_policy).to(value)],
    ),
    of(Trainer.logits_bytes, when=lambda c: not c.megatron).constant(10.0),
    of(Trainer.policy_logprobs).rule(_policy_logprobs, _set_policy_logprobs),
    # base_config.py:575, 654-656: either kind of KL needs it, and alone it runs too (rlvr_pipeline.py:578).
    of(Trainer.reference_logprobs).rule(
        lambda c: c.pair == 2 if c.supervised else c.enable_reference or c.use_kl_loss or c.init_kl_coef > 0,
        lambda _, value: (
            [Roll.enable_reference.to(True)] if value else [Roll.use_kl_loss.to(False), Roll.init_kl_coef.to(0.0)]
        ),
    ),
    of(Trainer.moe_dispatcher, when=lambda c: c.megatron).words(
        Strategy.moe_token_dispatcher_type,
        ("alltoall", "alltoall"),
        ("allgather", "alltoall"),
        ("flex", "deepep"),
        readonly=True,
    ),
)


def _facts(c: Roll) -> Facts:
    return Facts(
        gpus_per_node=c.num_gpus_per_node,
        supervised=c.supervised,
        prompt_cap=c.prompt_length or max(1, c.cap // 2),
        response_cap=(c.turn_tokens or c.cap) if c.agentic else c.response_length,
        cap_of_turn=c.agentic and c.turn_tokens > 0,
        turns=c.max_actions_per_traj or (c.max_turns if c.agentic else 1),
        dynamic=c.use_additional_prompts,
        pools=roll_judges(c.r, c.training, c.generating),
        lacking=tuple(_lacking(c)),
    )


def _lacking(c: Roll) -> Iterator[str]:
    """Workers on a part of GPUs that others share are simulated on all of them; VL pipelines have images."""
    if "_vl_pipeline" in c.entry:
        yield "the images of its prompts"
    every = c.training | c.generating
    for name, devices_ in (("training", c.training), ("generation", c.generating)):
        if not c.apart and devices_ and devices_ < every:
            yield f"{name} on {len(devices_)} of the {len(every)} GPUs alone"


def _assumptions(c: Roll) -> Iterator[Assumption]:
    judges = roll_judges(c.r, c.training, c.generating)
    if judges:
        yield Assumption(f"Judges generate {JUDGED_SHARE:g} of what max_new_tokens lets them.", ["pools"])
    for pool, (_, _, gpus) in zip(judges, judge_places(c.r), strict=False):
        if not pool["gpus"] and gpus < c.training:
            yield Assumption(
                f"The {pool['name']} works on {len(gpus)} of the trainer's {len(c.training)} GPUs while others "
                "generate; it is simulated on all of them when they are done.",
                ["pools"],
            )
    if c.infer.strategy.startswith("hf"):
        yield TRANSFORMERS
    if c.rollouts_alone and not c.agentic:
        yield Assumption(
            "The rollout pipeline generates for all of its validation data once, nobody says for how many prompts: "
            "rollout_batch_size of them are simulated.",
            ["workload.prompts_per_step"],
        )
    if c.agentic and not c.max_actions_per_traj:
        yield Assumption(
            "The most turns of the environments are taken as 10 where the configuration does not say them at its top.",
            ["workload.agent"],
        )


FRAMEWORK = of.framework(
    "roll",
    RULES,
    _facts,
    _assumptions,
    borrowed="ROLL",
    model=Roll.pretrain,
    node_size=Roll.num_gpus_per_node,
    form="hydra",
    shipped={"roll": ["roll"]},
    entry={r"start_(rlvr|agentic|rlvr_vl|sft|dpo)\w*_pipeline\.py$": {"name": "rlvr_config"}},
    renamed={"sft_train": "actor_train"},
    home="github.com/alibaba/ROLL (examples)",
    begin={option.key: "list(range(0,8))" for option in (Train.device_mapping, Infer.device_mapping)},
)
