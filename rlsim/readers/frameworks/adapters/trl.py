"""trl's options of GRPO, RLOO, SFT and DPO (trl/trainer/*_config.py; trl grpo, examples/scripts) at f2cd57710, of which
the lines named below are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.options import Options, flag, integer, number, size, switch, text
from rlsim.readers.frameworks.rules import TRANSFORMERS, Assumption, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Trainer, Workload


class Trl(Options):
    """Options of the command line and of its launcher."""

    entry = text("", name="launcher.entry")
    distributed_type = text("", name="launcher.distributed_type")
    zero_stage = integer(name="launcher.zero_stage")
    use_deepspeed, use_fsdp = switch(name="launcher.use_deepspeed"), switch(name="launcher.use_fsdp")
    deepspeed, fsdp = text(""), text("")
    launched_processes = integer(name="launcher.num_processes")
    cp_size = integer(1, name="launcher.cp_size")
    num_processes = integer()

    model_name_or_path = text("")
    attn_implementation = text()
    use_vllm = switch()
    vllm_mode = text("colocate")  # grpo_config.py:585, rloo_config.py:408
    vllm_tensor_parallel_size = size()
    vllm_gpu_memory_utilization = number(0.3)
    vllm_importance_sampling_correction = switch(True)

    generation_batch_size = integer()
    per_device_train_batch_size = integer(8)
    gradient_accumulation_steps = size()
    steps_per_generation, num_generations = integer(), integer()
    num_iterations = size()
    max_prompt_length = integer()
    max_completion_length = integer(512)  # grpo_config.py:489, rloo_config.py:312
    max_tool_calling_iterations = integer(0)
    max_length = integer(1024)  # sft_config.py:205, dpo_config.py:188
    packing, padding_free, precompute_ref_log_probs = flag(False), flag(False), flag(False)
    beta = number()
    gradient_checkpointing, use_liger_kernel = flag(True), flag(False)
    use_peft = flag(False)
    lora_r = integer(16)

    @property
    def ranks(self) -> int:
        """Processes of the trainer, one a GPU."""
        stated = self.launched_processes or self.num_processes
        batch = self.per_device_train_batch_size * (self.steps_per_generation or self.gradient_accumulation_steps)
        fitting = (most for most in range(8, 0, -1) if batch * most % self.generations == 0)  # trl refuses others
        return stated or (8 if self.supervised else next(fitting, 8))

    @property
    def supervised(self) -> bool:
        """sft.py and dpo.py, or the commands of trl."""
        return re.match("(.*/)?(train_)?(sft|dpo)", self.entry) is not None

    @property
    def pair(self) -> int:
        """Samples of a row of the data set: chosen and rejected under DPO."""
        return 2 if self.supervised and "dpo" in self.entry.rpartition("/")[2] else 1

    @property
    def packed(self) -> bool:
        """Whether micro-batches have no padding (sft_config.py:84-89)."""
        return self.supervised and (self.packing or self.padding_free)

    @property
    def shared(self) -> Literal[0, 1, 2, 3] | None:
        """What data-parallel ranks share, as stages of ZeRO: nothing where neither the launcher nor its file says
        DeepSpeed or FSDP (accelerate's MULTI_GPU, torchrun); None where no launcher is known."""
        kind = self.distributed_type.upper()
        if self.deepspeed or self.use_deepspeed or kind == "DEEPSPEED":
            stages: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
            return next((stage for stage in stages if stage == self.zero_stage), None)
        if self.fsdp or self.use_fsdp or kind == "FSDP":
            return 3
        return 0 if self.entry else None

    @property
    def server(self) -> bool:
        """Whether vLLM has GPUs of its own."""
        return self.use_vllm and self.vllm_mode == "server"

    @property
    def rloo(self) -> bool:
        """rloo.py and trl rloo: RLOOConfig, whose defaults differ."""
        return re.match("(.*/)?(train_)?rloo", self.entry) is not None

    @property
    def batch(self) -> int:
        """Samples of one generation, or of all those that an optimizer step accumulates over."""
        return max(self.generated, self.update)

    @property
    def update(self) -> int:
        """Samples, of DPO pairs, of an optimizer step."""
        return self.per_device_train_batch_size * self.ranks * self.gradient_accumulation_steps

    @property
    def generated(self) -> int:
        """Samples of one generation."""
        return self.generation_batch_size or self.per_device_train_batch_size * self.ranks * (
            self.steps_per_generation or self.gradient_accumulation_steps
        )

    @property
    def steps(self) -> int:
        """Micro-batches between two generations (grpo_config.py:1077-1094)."""
        return (
            self.steps_per_generation
            or (self.generation_batch_size or 0) // (self.per_device_train_batch_size * self.ranks)
            or self.gradient_accumulation_steps
        )

    @property
    def generations(self) -> int:
        """Samples of a prompt."""
        return self.num_generations or (2 if self.rloo else 8)  # grpo_config.py:475, rloo_config.py:298

    @property
    def prompt_cap(self) -> int:
        """Most tokens of a prompt."""
        return self.max_prompt_length or 512

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        return self.max_length if self.supervised else self.prompt_cap + self.max_completion_length


def policy_logprobs(c: Trl) -> bool:
    """Always in rloo_trainer.py:1458; grpo_trainer.py:2561-2565, with vllm_importance_sampling_correction of
    grpo_config.py:916."""
    if c.rloo or c.gradient_accumulation_steps % (c.steps * c.num_iterations) != 0:
        return True
    return c.use_vllm and c.vllm_importance_sampling_correction


def reference_logprobs(c: Trl) -> bool:
    """grpo_config.py:672, rloo_config.py:495."""
    beta = c.beta
    if c.supervised:
        return c.pair == 2 and not c.precompute_ref_log_probs
    return (beta if beta is not None else 0.05 if c.rloo else 0.0) != 0


of = Rules(Trl)
RULES = (
    of(Workload.prompts_per_step).by(
        Trl.generation_batch_size, lambda c: c.update if c.supervised else max(1, c.batch // c.generations)
    ),
    of(Workload.generations_per_prompt).by(Trl.num_generations, lambda c: c.pair if c.supervised else c.generations),
    of(Loop.supervised).rule(lambda c: c.supervised or None),
    of(Workload.max_sequence_tokens).by(Trl.max_completion_length, lambda c: c.cap),
    of(Workload.max_response_tokens).rule(
        lambda c: c.max_completion_length,
        lambda c, value: [Trl.max_completion_length.to(value), Trl.max_prompt_length.to(max(1, c.cap - value))],
    ),
    of(Cluster.num_gpus).rule(lambda c: c.ranks + (c.vllm_tensor_parallel_size if c.server else 0)),
    of(Cluster.generation_gpus, when=lambda c: c.server).rule(lambda c: c.vllm_tensor_parallel_size),
    of(Engine.name).constant("vllm"),
    of(Engine.tensor_parallel).same(Trl.vllm_tensor_parallel_size),
    of(Engine.max_batched_tokens, when=lambda c: c.use_vllm and not c.server).constant(4096),  # vllm_generation.py:363
    of(Engine.gpu_memory_utilization, when=lambda c: not c.server).same(Trl.vllm_gpu_memory_utilization),
    of(Trainer.backend).constant("fsdp"),
    of(Trainer.zero_stage).rule(lambda c: c.shared),
    of(Trainer.context_parallel).same(Trl.cp_size),
    of.under(Trl.use_peft, of(Trainer.lora_rank).same(Trl.lora_r)),
    of(Trainer.flash_attention_2).words(
        Trl.attn_implementation, ("*flash_attention_[34]*", False), ("*flash-attn[34]*", False), ("*", None)
    ),
    of(Trainer.global_batch_samples).by(Trl.gradient_accumulation_steps, lambda c: c.update),
    of(Trainer.epochs).same(Trl.num_iterations),
    of(Trainer.sequence_packing).rule(lambda c: c.packed),
    of(Trainer.micro_batch_tokens, when=lambda c: c.packed).rule(
        lambda c: (
            c.cap * c.per_device_train_batch_size * c.pair
            if c.packing
            else c.r.real_tokens(c.per_device_train_batch_size * c.pair, c.cap)
        )
    ),
    of(Trainer.micro_batch_samples).by(
        Trl.per_device_train_batch_size, lambda c: c.per_device_train_batch_size * c.pair
    ),
    of(Trainer.recompute).switched(Trl.gradient_checkpointing, "full", "none"),
    of(Trainer.fused_kernels).same(Trl.use_liger_kernel),
    of(Trainer.logits_bytes).constant(10.0),
    of(Trainer.policy_logprobs).rule(policy_logprobs),
    of(Trainer.reference_logprobs).rule(reference_logprobs),
)


def _facts(c: Trl) -> Facts:
    return Facts(
        gpus_per_node=8,
        supervised=c.supervised,
        filled=c.supervised and c.packing,
        prompt_cap=c.prompt_cap,
        response_cap=c.max_completion_length,
        turns=1 + c.max_tool_calling_iterations,
    )


def _assumptions(c: Trl) -> Iterator[Assumption]:
    if not c.max_prompt_length and not c.supervised:
        yield Assumption(
            "No option caps prompts; 512 tokens are left for them beside the completion.",
            [Workload.max_sequence_tokens],
        )
    if c.generated < c.batch and not c.supervised:
        yield Assumption(
            f"The {c.batch // c.generated} generations of an accumulated step are simulated as one of all samples, "
            "which is faster.",
            [Workload.prompts_per_step],
        )
    if not c.use_vllm and not c.supervised:
        yield TRANSFORMERS
    if c.server:
        yield Assumption(
            f"vLLM's server is taken to have {c.shown(Trl.vllm_tensor_parallel_size)} GPU(s) of its own; "
            "cluster.generation_gpus states more.",
            [Cluster.generation_gpus, Cluster.num_gpus],
        )
    if not c.launched_processes and not c.num_processes:
        yield Assumption(
            f"The launcher names no number of processes; {c.ranks} are assumed (num_processes).", [Cluster.num_gpus]
        )


FRAMEWORK = of.framework(
    "trl",
    RULES,
    _facts,
    _assumptions,
    borrowed="trl",
    model=Trl.model_name_or_path,
    node_size=Trl.launched_processes,
    shipped={"trl": ["trl"]},
    entry={r"(^|/)(train_)?(grpo|gspo|rloo|sft|dpo)\w*(\.py)?$": {}},
    form="words",
    begin={Trl.use_vllm.key: True},
    python=True,
)
