"""verl's supervised fine-tuning (verl/trainer/config: sft_trainer.yaml, sft_trainer_engine.yaml) at b178a3cd5."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.megatron import shared_experts
from rlsim.readers.frameworks.options import Options, Part, flag, integer, size, switch, text
from rlsim.readers.frameworks.rules import Assumption, Rules
from rlsim.readers.frameworks.targets import Cluster, Loop, Trainer, Workload


class Data(Options, section="data"):
    """Of the data set."""

    train_batch_size, max_length = integer(256), integer(1024)
    micro_batch_size_per_gpu, micro_batch_size = integer(), integer()
    use_dynamic_bsz = switch()
    max_token_len_per_gpu = integer(8192)


class Engine(Options, section="engine"):
    """Of sft_trainer.py's trainer."""

    kind = text("", name="_target_")
    ulysses_sequence_parallel_size = size()
    tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size = size(), size(), size()
    expert_model_parallel_size, expert_tensor_parallel_size = size(), integer()
    recompute_granularity = text(name="override_transformer_config.recompute_granularity")
    offload_policy = flag(False)


class VerlSft(Options):
    """A whole configuration."""

    data, engine = Part(Data), Part(Engine)
    path, partial_pretrain = text("", name="model.path"), text("", name="model.partial_pretrain")
    gradient_checkpointing = flag(True, name="model.enable_gradient_checkpointing")
    lora_rank = integer(0, name="model.lora_rank")
    activation_offload = switch(name="model.enable_activation_offload")
    padding_free = switch(name="use_remove_padding")
    model_padding_free = switch(name="model.use_remove_padding")
    cpu_offload = flag(False, name="model.fsdp_config.cpu_offload")
    ulysses_size = size(name="ulysses_sequence_parallel_size")
    nnodes, n_gpus_per_node = size(name="trainer.nnodes"), integer(8, name="trainer.n_gpus_per_node")
    entry = text("", name="launcher.entry")
    processes, nodes = integer(name="launcher.nproc_per_node"), size(name="launcher.nnodes")

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core trains (engine=megatron)."""
        return "Mcore" in self.engine.kind

    @property
    def gpus(self) -> int:
        """GPUs: as torchrun starts processes, else as the trainer on Ray is told."""
        if self.open_processes:
            return 8 * self.nodes
        return self.processes * self.nodes if self.processes else self.nnodes * self.n_gpus_per_node

    @property
    def open_processes(self) -> bool:
        """Whether torchrun starts as many processes as whoever runs the script says; trainer.n_gpus_per_node is of the
        trainer on Ray alone (trainer/sft_trainer_ray.py)."""
        return not self.processes and re.search(r"(^|[./])sft_trainer(\.py)?$", self.entry) is not None

    @property
    def sequence(self) -> int:
        """GPUs that share a sequence."""
        return max(self.ulysses_size, self.engine.ulysses_sequence_parallel_size)

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch; micro_batch_size counts those of a rank too (fsdp_sft_trainer.py:153-155)."""
        return self.data.micro_batch_size_per_gpu or self.data.micro_batch_size or 4

    @property
    def packed(self) -> bool:
        """Whether micro-batches have no padding."""
        return self.data.use_dynamic_bsz or self.padding_free or self.model_padding_free


of = Rules(VerlSft)
RULES = (
    of(Workload.prompts_per_step).same(Data.train_batch_size),
    of(Workload.generations_per_prompt).constant(1),
    of(Workload.max_sequence_tokens).same(Data.max_length),
    of(Cluster.num_gpus).rule(lambda c: c.gpus),
    of(Loop.supervised).constant(True),
    of(Trainer.backend).rule(lambda c: "megatron" if c.megatron else "fsdp"),
    of(Trainer.tensor_parallel, when=lambda c: c.megatron, otherwise=1).same(Engine.tensor_model_parallel_size),
    of(Trainer.pipeline_parallel, when=lambda c: c.megatron, otherwise=1).same(Engine.pipeline_model_parallel_size),
    of(Trainer.expert_parallel, when=lambda c: c.megatron, otherwise=1).same(Engine.expert_model_parallel_size),
    of(Trainer.expert_tensor_parallel, when=lambda c: c.megatron).by(
        Engine.expert_tensor_parallel_size, lambda c: shared_experts(c.engine)
    ),
    of.either(
        of(Trainer.context_parallel, when=lambda c: c.megatron).same(Engine.context_parallel_size),
        of(Trainer.context_parallel).rule(lambda c: c.sequence),
    ),
    of(Trainer.lora_rank).rule(lambda c: c.lora_rank or None),
    of(Trainer.sequence_packing).rule(lambda c: c.packed),
    of(Trainer.micro_batch_tokens, when=lambda c: c.packed).rule(
        lambda c: (
            max(c.data.max_length, c.data.max_token_len_per_gpu * c.sequence)
            if c.data.use_dynamic_bsz
            else c.r.real_tokens(c.micro_batch, c.data.max_length)
        )
    ),
    of(Trainer.micro_batch_samples, when=lambda c: not c.packed).rule(lambda c: c.micro_batch),
    of.either(
        of(Trainer.recompute, when=lambda c: c.megatron).words(
            Engine.recompute_granularity, ("full", "full"), ("selective", "selective"), (None, "none"), readonly=True
        ),
        of(Trainer.recompute).switched(VerlSft.gradient_checkpointing, "full", "none"),
    ),
    of(Trainer.activations_on_host, when=lambda c: not c.megatron).same(VerlSft.activation_offload),
    of(Trainer.optimizer_on_host).rule(lambda c: c.cpu_offload or c.engine.offload_policy),
    of(Trainer.reference_logprobs).constant(False),
)


def _facts(c: VerlSft) -> Facts:
    return Facts(
        settings=(("stack", "verl"),),
        gpus_per_node=8 if c.open_processes else c.processes or c.n_gpus_per_node,
        of_workers=True,
        prompt_cap=c.data.max_length,
        response_cap=c.data.max_length,
        supervised=True,
        model=c.path or c.partial_pretrain,
    )


def _assumptions(c: VerlSft) -> Iterator[Assumption]:
    if c.open_processes:
        yield Assumption(
            f"The launcher leaves its number of processes open; {c.gpus} GPUs are assumed.", [Cluster.num_gpus]
        )


FRAMEWORK = of.framework(
    "verl-sft",
    RULES,
    _facts,
    _assumptions,
    model=VerlSft.path,
    node_size=VerlSft.n_gpus_per_node,
    form="hydra",
    shipped={"sft_trainer": ["verl_sft"], "sft_trainer_engine": ["verl_sft", "verl_sft_engine"]},
    entry={
        r"fsdp_sft_trainer(\.py)?$": {"folder": "verl/trainer/config", "name": "sft_trainer"},
        r"(^|[./])sft_trainer(_ray)?(\.py)?$": {"folder": "verl/trainer/config", "name": "sft_trainer_engine"},
    },
    renamed={"model.partial_pretrain": "model.path"},
)
