"""OpenRLHF's options (openrlhf/cli/train_ppo_ray.py, train_sft.py, train_dpo.py) at 3c3be623; those without dots are of
before ed62d0e2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rlsim.readers.frameworks.asked import UNPOOLED, Facts
from rlsim.readers.frameworks.options import Change, Options, Part, aside, flag, integer, number, size, switch, text
from rlsim.readers.frameworks.pools import openrlhf_reward_model
from rlsim.readers.frameworks.rules import EXPERTS_IMPLEMENTATION, Assumption, Rules, node_size
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Trainer, Workload


class Actor(Options, section="actor"):
    """Of the policy."""

    path = text("", name="model_name_or_path")
    num_nodes = size()
    num_gpus_per_node = integer(8)
    gradient_checkpointing_enable, freeze_visual_encoder = flag(False), flag(False)
    optim = text("adam")


class Ref(Options, section="ref"):
    """Of the reference."""

    num_nodes = size()
    num_gpus_per_node = integer(8)


class Vllm(Options, section="vllm"):
    """Of the engines."""

    num_engines, tensor_parallel_size = size(), size()
    gpu_memory_utilization = number(0.95)
    enforce_eager, enable_prefix_caching = flag(False), flag(False)


class Rollout(Options, section="rollout"):
    """Of generation."""

    batch_size = integer(1024)
    n_samples_per_prompt = integer(1)
    vllm_generate_batch_size, max_new_tokens = integer(), integer()
    micro_batch_size = size()
    max_tokens_per_gpu = integer()


class Train(Options, section="train"):
    """Of training."""

    batch_size = integer(128)
    micro_batch_size = size()
    micro_batch_stated = integer(name="micro_batch_size")
    max_epochs = integer(1)
    max_tokens_per_gpu = integer(16192)
    dynamic_batch_enable = flag(False)
    colocate_all, colocate_actor_ref, colocate_critic_reward = switch(), switch(), switch()
    async_enable = flag(False)
    async_queue_size = size()
    partial_rollout_enable = switch()
    agent_func_path = aside(text())


class Ds(Options, section="ds"):
    """Of DeepSpeed."""

    tensor_parallel_size = integer(1)
    ring_attn_size = size()
    lora_rank = integer(name="lora.rank")
    attn_implementation, experts_implementation = text(), text()
    packing_samples = switch()
    adam_offload, use_liger_kernel = flag(False), flag(False)
    enable_sleep = switch()
    zero_stage = aside(integer(2))


class Openrlhf(Options):
    """All options."""

    actor, ref, vllm, rollout, train, ds = Part(Actor), Part(Ref), Part(Vllm), Part(Rollout), Part(Train), Part(Ds)
    max_len = integer(2048, name="data.max_len")
    prompt_max_len, generate_max_len = integer(), integer()
    estimator = text(name="algo.advantage.estimator")
    kl_coef = number(0.01, name="algo.kl.init_coef")
    dynamic_filtering = switch(name="algo.dynamic_filtering_enable")
    reward_model = aside(text(name="reward.model_name_or_path"))
    reward_url = aside(text(name="reward.remote_url"))
    entry = text("", name="launcher.entry")
    launched, nodes = integer(name="launcher.num_gpus"), size(name="launcher.num_nodes")

    @property
    def supervised(self) -> bool:
        """Whether train_sft.py or train_dpo.py trains on a data set."""
        return "train_sft" in self.entry or self.pair == 2

    @property
    def pair(self) -> int:
        """Samples of a row of the data set: chosen and rejected under DPO."""
        return 2 if "train_dpo" in self.entry else 1

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch (train_sft.py:166, train_dpo.py: 8 rows)."""
        return self.pair * (self.train.micro_batch_stated or 8) if self.supervised else self.train.micro_batch_size

    @property
    def trainer_gpus(self) -> int:
        """GPUs of the trainer; deepspeed starts a process for each of a node."""
        if self.supervised:
            return (self.launched or 8) * self.nodes
        return self.actor.num_nodes * self.actor.num_gpus_per_node

    @property
    def shared(self) -> bool:
        """Whether engines share the actor's GPUs. An asynchronous run has engines of their own, and colocate_all the
        models of DeepSpeed alone (lines 56, 75, 667)."""
        return self.supervised or (self.train.colocate_all and not self.train.async_enable)

    @property
    def critic(self) -> bool:
        """Whether a critic is trained."""
        return (self.estimator or "gae") == "gae"

    @property
    def referring(self) -> bool:
        """Whether there is a reference."""
        # Lines 42, 93: without a penalty none is made.
        return self.kl_coef > 0

    @property
    def beside(self) -> int:
        """GPUs of the reference beside the actor's, which it shares with either flag (41-48, 92-100); critic and reward
        models do with colocate_all (105-143)."""
        if self.supervised or not self.referring or self.train.colocate_all or self.train.colocate_actor_ref:
            return 0
        return self.ref.num_nodes * self.ref.num_gpus_per_node

    @property
    def unscored(self) -> bool:
        """Lines 138-148, 597-598: no reward model beside a URL, a function or an agent."""
        return self.reward_url is not None or self.train.agent_func_path is not None

    @property
    def engines(self) -> int:
        """GPUs of all engines."""
        return self.vllm.num_engines * self.vllm.tensor_parallel_size

    @property
    def apart(self) -> int:
        """GPUs beside the trainer's."""
        return 0 if self.shared else self.engines

    @property
    def two_caps(self) -> bool:
        """Whether prompt and response have a cap each."""
        return self.prompt_max_len is not None or self.generate_max_len is not None

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        return (self.prompt_max_len or 1024) + self.response if self.two_caps else self.max_len

    @property
    def response(self) -> int:
        """Most tokens of a response."""
        return (self.generate_max_len or 1024) if self.two_caps else self.rollout.max_new_tokens or self.cap

    @property
    def packed(self) -> bool:
        """Whether micro-batches have no padding."""
        return self.ds.packing_samples or self.train.dynamic_batch_enable

    def bounded(self, tokens: int) -> int:
        """Tokens of a micro-batch that is bounded by tokens; it holds at least one sample."""
        return max(self.cap, tokens * self.ds.ring_attn_size)


def _set_max_sequence(c: Openrlhf, value: int) -> list[Change]:
    if c.two_caps:
        return [Openrlhf.generate_max_len.to(value - (c.prompt_max_len or 1024))]
    return [Openrlhf.max_len.to(value)]


def _set_max_response(c: Openrlhf, value: int) -> list[Change]:
    if c.two_caps:
        return [Openrlhf.generate_max_len.to(value), Openrlhf.prompt_max_len.to(max(1, c.cap - value))]
    return [Rollout.max_new_tokens.to(value)]


def _set_num_gpus(c: Openrlhf, value: int) -> Iterator[Change]:
    node = c.actor.num_gpus_per_node
    yield Actor.num_nodes.to(max(1, (value - c.apart - c.beside) // node))
    if c.referring and not c.beside:
        yield from (Ref.num_nodes.to(max(1, (value - c.apart) // node)), Ref.num_gpus_per_node.to(node))


def _set_generation_gpus(c: Openrlhf, value: int | None) -> Iterator[Change]:
    if value is None or not c.train.async_enable:
        yield Train.colocate_all.to(value is None)
    yield Vllm.num_engines.to(c.vllm.num_engines if value is None else value // c.vllm.tensor_parallel_size)


def _set_reference_gpus(c: Openrlhf, value: int) -> Iterator[Change]:
    if value and c.train.async_enable:
        yield Train.colocate_all.to(False)
    yield Train.colocate_actor_ref.to(not value)
    node = node_size(value, c.ref.num_gpus_per_node) if value else c.actor.num_gpus_per_node
    yield from (Ref.num_gpus_per_node.to(node), Ref.num_nodes.to(value // node if value else c.actor.num_nodes))


ZERO_STAGES: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
of = Rules(Openrlhf)
RULES = (
    of.either(
        of(Workload.prompts_per_step, when=lambda c: c.supervised).same(Train.batch_size),
        of(Workload.prompts_per_step).same(Rollout.batch_size),
    ),
    of.either(
        of(Workload.generations_per_prompt, when=lambda c: c.supervised).rule(lambda c: c.pair),
        of(Workload.generations_per_prompt).same(Rollout.n_samples_per_prompt),
    ),
    of(Workload.max_sequence_tokens).rule(lambda c: c.cap, _set_max_sequence),
    of(Workload.max_response_tokens).rule(lambda c: c.response if c.response < c.cap else None, _set_max_response),
    of(
        # More than rollout.batch_size only in asynchronous runs (cli/train_ppo_ray.py:694-698).
        Workload.generated_batch_factor,
        when=lambda c: (c.rollout.vllm_generate_batch_size or 0) > c.rollout.batch_size > 0,
    ).by(Rollout.vllm_generate_batch_size, lambda c: (c.rollout.vllm_generate_batch_size or 0) / c.rollout.batch_size),
    of(Cluster.num_gpus).rule(lambda c: c.trainer_gpus + c.apart + c.beside, _set_num_gpus),
    of(Cluster.generation_gpus, when=lambda c: not c.shared).rule(lambda c: c.engines, _set_generation_gpus),
    of(Cluster.reference_gpus).rule(lambda c: c.beside or None, _set_reference_gpus),
    of(Loop.supervised).rule(lambda c: c.supervised or None),
    of(Loop.mode).switched(Train.async_enable, "async", "sync"),
    of(Loop.style, when=lambda c: c.train.async_enable).switched(
        Train.partial_rollout_enable, "openrlhf_partial", "openrlhf"
    ),
    # trainer/ppo_trainer_async.py:110, 230: a batch takes a slot to be generated and gives it back to be trained on, so
    # that one of the slots is of the batch in generation.
    of(Loop.queue_batches, when=lambda c: c.train.async_enable).by(
        Train.async_queue_size, lambda c: c.train.async_queue_size - 1
    ),
    of(Engine.name).constant("vllm"),
    of(Engine.tensor_parallel).same(Vllm.tensor_parallel_size),
    # trainer/ppo_utils/samples_generator.py:215-225: to the engine with the fewest, in turn where all begin idle.
    of(Engine.dispatch).constant("round_robin"),
    of(Engine.gpu_memory_utilization).same(Vllm.gpu_memory_utilization),
    of(Engine.cuda_graphs).opposite(Vllm.enforce_eager),
    of(Engine.prefix_caching).same(Vllm.enable_prefix_caching),
    of(Trainer.backend).constant("fsdp"),
    of(Trainer.tensor_parallel).same(Ds.tensor_parallel_size),
    of(Trainer.context_parallel).same(Ds.ring_attn_size),
    of(Trainer.lora_rank).same(Ds.lora_rank),
    of(Trainer.flash_attention_2).words(
        Ds.attn_implementation, ("*flash_attention_[34]*", False), ("*flash-attn[34]*", False), ("*", None)
    ),
    of(Trainer.global_batch_samples).same(Train.batch_size),
    of(Trainer.epochs).same(Train.max_epochs),
    of(Trainer.critic).rule(
        lambda c: c.critic, lambda _, value: [Openrlhf.estimator.to("gae" if value else "group_norm")]
    ),
    of(Trainer.sequence_packing).rule(lambda c: c.packed),
    of(Trainer.micro_batch_tokens, when=lambda c: c.packed).rule(
        lambda c: (
            c.bounded(c.train.max_tokens_per_gpu)
            if c.train.dynamic_batch_enable
            else c.r.real_tokens(c.micro_batch, c.cap)
        ),
        lambda c, value: [
            Train.dynamic_batch_enable.to(True),
            Train.max_tokens_per_gpu.to(value // c.ds.ring_attn_size),
        ],
    ),
    of(Trainer.logprob_micro_batch_tokens, when=lambda c: c.packed and not c.supervised).by(
        Rollout.max_tokens_per_gpu,
        lambda c: (
            c.bounded(c.rollout.max_tokens_per_gpu or c.train.max_tokens_per_gpu)
            if c.train.dynamic_batch_enable
            else c.r.real_tokens(c.rollout.micro_batch_size, c.cap)
        ),
    ),
    of(Trainer.micro_batch_samples, when=lambda c: not c.packed).by(Train.micro_batch_size, lambda c: c.micro_batch),
    of(Trainer.logprob_micro_batch_samples, when=lambda c: not c.packed and not c.supervised).same(
        Rollout.micro_batch_size
    ),
    of(Trainer.zero_stage, when=lambda c: c.supervised).rule(
        lambda c: next((stage for stage in ZERO_STAGES if stage == c.ds.zero_stage), None)
    ),
    of(Trainer.rank_balance).switched(Train.dynamic_batch_enable, "tokens", "samples", readonly=True),
    of(Trainer.recompute).switched(Actor.gradient_checkpointing_enable, "full", "none"),
    of(Trainer.fused_kernels).same(Ds.use_liger_kernel),
    # Of both spellings the one that is there: train_sft.py:228 at 3c3be623 has it without a section.
    of(Trainer.optimizer).words(Actor.optim, ("muon", "muon"), ("adam", "adam"), other="adam"),
    of(Trainer.expert_products).words(Ds.experts_implementation, *EXPERTS_IMPLEMENTATION),
    of(Trainer.frozen_vision).same(Actor.freeze_visual_encoder),
    of(Trainer.policy_logprobs).constant(True),
    of(Trainer.optimizer_on_host).same(Ds.adam_offload),
    of(Trainer.logits_bytes).constant(10.0),
    of(Trainer.reference_logprobs).rule(
        lambda c: c.pair == 2 if c.supervised else c.referring,
        lambda _, value: [Openrlhf.kl_coef.to(0.01 if value else 0)],
    ),
    of(Trainer.offload).by(Ds.enable_sleep, lambda c: c.ds.enable_sleep or c.ds.adam_offload),
)


def _facts(c: Openrlhf) -> Facts:
    return Facts(
        gpus_per_node=c.actor.num_gpus_per_node if c.actor.num_nodes > 1 or not c.apart else 8,
        of_workers=True,
        supervised=c.supervised,
        prompt_cap=c.cap - c.response if c.response < c.cap else c.cap,
        response_cap=min(c.cap, c.response),
        dynamic=c.dynamic_filtering,
        pools=() if c.supervised or c.unscored else openrlhf_reward_model(c.r, c.train.colocate_all),
    )


def _assumptions(c: Openrlhf) -> Iterator[Assumption]:
    yield Assumption("DeepSpeed ZeRO 3 shards as FSDP does and is simulated so.", [Trainer.backend])
    if c.supervised and not c.launched:
        yield Assumption(
            f"The launcher names no number of GPUs; {c.trainer_gpus} are assumed (deepspeed's num_gpus).",
            [Cluster.num_gpus],
        )
    if c.supervised or c.train.colocate_all:
        return
    if c.critic and not c.train.colocate_critic_reward:
        yield Assumption("GPUs of the critic beside the actor's are left out.", [Cluster.num_gpus])
    if c.reward_model is not None and not c.unscored:
        yield Assumption("GPUs of reward models beside the actor's are left out.", UNPOOLED)


def _unused(c: Openrlhf, scenario: Mapping[str, Any]) -> Iterator[str]:
    if not c.critic:
        yield "critic"
    if c.unscored:
        yield from ("reward.model_name_or_path", "reward.num_nodes", "reward.num_gpus_per_node", "reward.offload")


# Options of before ed62d0e2 that were only renamed there, by section, whose name went before some; "old=new" where more
# changed. prompt_max_len and generate_max_len became max_len in d0e088b6.
_FORMER = {
    "actor": "actor_num_nodes actor_num_gpus_per_node pretrain=model_name_or_path "
    "gradient_checkpointing=gradient_checkpointing_enable "
    "gradient_checkpointing_use_reentrant=gradient_checkpointing_reentrant",
    "critic": "critic_num_nodes critic_num_gpus_per_node critic_pretrain=model_name_or_path",
    "reward": "reward_num_nodes reward_num_gpus_per_node reward_pretrain=model_name_or_path remote_rm_url=remote_url",
    "ref": "ref_num_nodes ref_num_gpus_per_node ref_reward_offload=offload",
    "train": "train_batch_size train_max_tokens_per_gpu max_epochs agent_func_path colocate_actor_ref "
    "colocate_critic_reward async_queue_size micro_train_batch_size=micro_batch_size async_train=async_enable "
    "colocate_all_models=colocate_all partial_rollout=partial_rollout_enable use_dynamic_batch=dynamic_batch_enable",
    "vllm": "vllm_num_engines vllm_tensor_parallel_size vllm_gpu_memory_utilization vllm_sync_backend "
    "vllm_enable_sleep enable_prefix_caching enforce_eager",
    "rollout": "rollout_batch_size rollout_max_tokens_per_gpu vllm_generate_batch_size n_samples_per_prompt "
    "max_new_tokens micro_rollout_batch_size=micro_batch_size",
    "data": "max_len",
    "algo": "advantage_estimator=advantage.estimator init_kl_coef=kl.init_coef "
    "dynamic_filtering=dynamic_filtering_enable",
    "ds": "ds_tensor_parallel_size zero_stage zpg adam_offload packing_samples ring_attn_size attn_implementation "
    "grad_accum_dtype overlap_comm deepcompile use_liger_kernel load_in_4bit lora_rank=lora.rank "
    "ring_head_stride=ring_attn_head_stride deepspeed_enable_sleep=enable_sleep",
}
FRAMEWORK = of.framework(
    "openrlhf",
    RULES,
    _facts,
    _assumptions,
    borrowed="OpenRLHF",
    unused=_unused,
    model=Actor.path,
    node_size=Actor.num_gpus_per_node,
    form="words",
    shipped={"openrlhf": ["openrlhf"]},
    entry={r"train_(ppo_ray|sft|dpo)(\.py)?$": {}},
    renamed={
        "model": "actor",  # of train_sft.py and train_dpo.py, as the next
        "optim": Actor.optim.key,
        "freeze_visual_encoder": Actor.freeze_visual_encoder.key,
    }
    | {
        old: f"{section}.{new or old.removeprefix(f'{section}_')}"
        for section, names in _FORMER.items()
        for old, _, new in (name.partition("=") for name in names.split())
    },
)
