"""EasyR1's configurations (verl.trainer.main of hiyouga/EasyR1; verl/trainer/config.py and verl/workers) at b44b311."""

from __future__ import annotations

from collections.abc import Iterator

from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.options import Change, Options, Part, flag, integer, number, size, text
from rlsim.readers.frameworks.rules import Assumption, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Trainer, Workload


class Actor(Options, section="worker.actor"):
    """Of training."""

    model_path = text("", name="model.model_path")
    gradient_checkpointing = flag(True, name="model.enable_gradient_checkpointing")
    lora_rank = integer(0, name="model.lora.rank")
    freeze_vision_tower = flag(False, name="model.freeze_vision_tower")
    global_batch_size = integer(256)
    update_samples = integer(4, name="micro_batch_size_per_device_for_update")
    experience_samples = integer(16, name="micro_batch_size_per_device_for_experience")
    padding_free, dynamic_batching = flag(True), flag(True)
    ulysses_size, ppo_epochs = size(), size()
    offload_params = flag(False, name="offload.offload_params")
    offload_optimizer = flag(False, name="offload.offload_optimizer")
    cpu_offload = flag(False, name="fsdp.enable_cpu_offload")


class Rollout(Options, section="worker.rollout"):
    """Of generation."""

    n = size()
    gpu_memory_utilization = number(0.6)
    enforce_eager = flag(False)
    tensor_parallel_size = integer(2)
    max_model_len, max_num_batched_tokens = integer(0), integer(8192)


class EasyR1(Options):
    """A whole configuration."""

    actor, rollout = Part(Actor), Part(Rollout)
    rollout_batch_size = integer(512, name="data.rollout_batch_size")
    max_prompt_length = integer(512, name="data.max_prompt_length")
    max_response_length = integer(512, name="data.max_response_length")
    adv_estimator = text("grpo", name="algorithm.adv_estimator")
    disable_kl = flag(False, name="algorithm.disable_kl")
    online_filtering = flag(False, name="algorithm.online_filtering")
    nnodes = integer(1, name="trainer.nnodes")
    n_gpus_per_node = integer(8, name="trainer.n_gpus_per_node")
    max_try_make_batch = integer(20, name="trainer.max_try_make_batch")

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        return self.max_prompt_length + self.max_response_length

    def tokens(self, samples: int) -> int | None:
        """Tokens of a micro-batch: so many padded samples' with dynamic batches (dp_actor.py:197-199, 240-243), else
        mean ones; those of a sample lie on ulysses_size GPUs."""
        if self.actor.dynamic_batching:
            return max(samples * self.cap, int(self.r.mean_tokens or 0) + 1)
        return self.r.real_tokens(samples, self.cap) if self.actor.padding_free else None


def _set_max_sequence(c: EasyR1, value: int) -> Iterator[Change]:
    """The prompts keep their tokens where the response has some left."""
    prompt = min(c.max_prompt_length, value // 2)
    yield from (EasyR1.max_prompt_length.to(prompt), EasyR1.max_response_length.to(value - prompt))


of = Rules(EasyR1)
RULES = (
    of(Workload.prompts_per_step).same(EasyR1.rollout_batch_size),
    of(Workload.generations_per_prompt).same(Rollout.n),
    of(Workload.max_sequence_tokens).rule(lambda c: c.cap, _set_max_sequence),
    of(Workload.max_response_tokens).rule(
        lambda c: c.max_response_length,
        lambda c, value: [EasyR1.max_response_length.to(value), EasyR1.max_prompt_length.to(max(1, c.cap - value))],
    ),
    of(Workload.max_rollouts_per_step, when=lambda c: c.online_filtering).same(EasyR1.max_try_make_batch),
    of(Cluster.num_gpus).by(EasyR1.nnodes, lambda c: c.nnodes * c.n_gpus_per_node),
    of(Loop.mode).constant("sync"),
    of(Engine.name).constant("vllm"),
    of(Engine.tensor_parallel).same(Rollout.tensor_parallel_size),
    of(Engine.max_batched_tokens).same(Rollout.max_num_batched_tokens),
    of(Engine.gpu_memory_utilization).same(Rollout.gpu_memory_utilization),
    of(Engine.cuda_graphs).opposite(Rollout.enforce_eager),
    of(Trainer.backend).constant("fsdp"),
    of(Trainer.context_parallel).same(Actor.ulysses_size),
    of(Trainer.frozen_vision).same(Actor.freeze_vision_tower),
    of(Trainer.lora_rank).rule(lambda c: c.actor.lora_rank or None, lambda _, value: [Actor.lora_rank.to(value or 0)]),
    # Prompts, as verl's mini-batch (workers/fsdp_workers.py:142-143).
    of(Trainer.global_batch_samples).by(Actor.global_batch_size, lambda c: c.actor.global_batch_size * c.rollout.n),
    of(Trainer.epochs).same(Actor.ppo_epochs),
    of(Trainer.critic).rule(lambda c: c.adv_estimator == "gae"),
    of(Trainer.sequence_packing).rule(lambda c: c.actor.padding_free or c.actor.dynamic_batching),
    of(Trainer.micro_batch_tokens).by(Actor.update_samples, lambda c: c.tokens(c.actor.update_samples)),
    of(Trainer.logprob_micro_batch_tokens).by(Actor.experience_samples, lambda c: c.tokens(c.actor.experience_samples)),
    of(Trainer.micro_batch_samples, when=lambda c: c.tokens(1) is None).same(Actor.update_samples),
    of(Trainer.recompute).switched(Actor.gradient_checkpointing, "full", "none"),
    of(Trainer.optimizer_on_host).same(Actor.cpu_offload),
    of(Trainer.logits_bytes).constant(4.0),  # as verl, whose code it is (verl/utils/torch_functional.py)
    of(Trainer.reference_logprobs).opposite(EasyR1.disable_kl),
    of(Trainer.offload).rule(
        lambda c: c.actor.offload_params or c.actor.offload_optimizer,
        lambda _, value: [Actor.offload_params.to(value), Actor.offload_optimizer.to(value)],
    ),
)


def _facts(c: EasyR1) -> Facts:
    return Facts(
        settings=(("stack", "verl"), ("loop.refit_framework", "verl")),
        gpus_per_node=c.n_gpus_per_node,
        of_workers=True,
        prompt_cap=c.max_prompt_length,
        response_cap=min(c.max_response_length, c.rollout.max_model_len or c.cap),
        dynamic=c.online_filtering,
    )


def _assumptions(c: EasyR1) -> Iterator[Assumption]:
    yield Assumption("EasyR1 has no stack of its own; it is simulated as verl, whose code it is.", ["stack"])


FRAMEWORK = of.framework(
    "easyr1",
    RULES,
    _facts,
    _assumptions,
    model=Actor.model_path,
    node_size=EasyR1.n_gpus_per_node,
    shipped={"easyr1": ["easyr1"]},
    entry={r"^verl\.trainer\.main$": {}},
    home="github.com/hiyouga/EasyR1 (examples)",
)
