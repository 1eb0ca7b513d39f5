"""SkyRL's configurations (skyrl_train's ppo_base_config and its fully asynchronous trainer) at a9564572e."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.files import Bases
from rlsim.readers.frameworks.rows import (
    Changes,
    Framework,
    Reader,
    Row,
    choice,
    either,
    flag,
    integer,
    layout,
    number,
    product,
    sequence_cap,
    unused_keys,
)

TRAINER, GENERATOR, PLACEMENT = "trainer.", "generator.", "trainer.placement."
MEGATRON = "trainer.policy.megatron_config."
ASYNC = "trainer.fully_async."
ENGINES = "inference_engine_"
SAMPLES = f"{GENERATOR}n_samples_per_prompt"
KL = f"{TRAINER}algorithm.use_kl_"

BASES = Bases(shipped={"ppo_base_config": ("skyrl",)}, start=("skyrl",), hydra=True)


CAP = sequence_cap(f"{TRAINER}max_prompt_length", f"{GENERATOR}sampling_params.max_generate_length")
REFERENCE = either("trainer.reference_logprobs", f"{KL}loss", f"{KL}in_reward", default=True)


def megatron(r: Reader) -> bool:
    """Whether Megatron-Core trains; else FSDP."""
    return r.text(f"{TRAINER}strategy", "fsdp2") == "megatron"


def _layout(name: str, target: str) -> Row:
    return layout(target, f"{MEGATRON}{name}", f"{TRAINER}strategy", megatron)


def _context_key(r: Reader) -> str:
    return f"{MEGATRON}context_parallel_size" if megatron(r) else f"{TRAINER}policy.sequence_parallel_size"


def _training(r: Reader) -> int:
    return r.integer(f"{PLACEMENT}policy_num_nodes", 1) * r.integer(f"{PLACEMENT}policy_num_gpus_per_node", 4)


def _replica(r: Reader) -> tuple[int, int]:
    """GPUs of a stage of a replica and copies of its attention."""
    copies = r.integer(f"{GENERATOR}{ENGINES}data_parallel_size", 1)
    return r.integer(f"{GENERATOR}{ENGINES}tensor_parallel_size", 1) * copies, copies


def _generation(r: Reader) -> int | None:
    if r.flag(f"{PLACEMENT}colocate_all", True):
        return None
    stages = r.integer(f"{GENERATOR}{ENGINES}pipeline_parallel_size", 1)
    return r.integer(f"{GENERATOR}num_inference_engines", 1) * _replica(r)[0] * stages


def asynchronous(r: Reader) -> bool:
    """Whether the fully asynchronous trainer runs: split pools, and its section among the keys."""
    return _generation(r) is not None and isinstance(r.value("trainer.fully_async"), dict)


def _cap(r: Reader) -> int:
    found: int = CAP.read(r)
    return found


def _samples(name: str, target: str) -> Row:
    """Packed samples of a micro-batch count as the longest ones."""
    key = f"{TRAINER}{name}"
    packing = f"{TRAINER}use_sample_packing"

    def read(r: Reader) -> int | None:
        return r.integer(key, 1) * _cap(r) if r.flag(packing) else None

    def write(value: int, r: Reader) -> Changes:
        return {key: value // _cap(r)} if r.flag(packing) and value % _cap(r) == 0 else {}

    return Row(target, (key, packing), read, write)


def _write_gpus(value: int, r: Reader) -> Changes:
    rest, per_node = value - (_generation(r) or 0), r.integer(f"{PLACEMENT}policy_num_gpus_per_node", 4)
    size = per_node if rest % per_node == 0 else rest
    return (
        {} if rest < 1 else {f"{PLACEMENT}policy_num_nodes": rest // size, f"{PLACEMENT}policy_num_gpus_per_node": size}
    )


def _write_tensor(value: int, r: Reader) -> Changes:
    copies = _replica(r)[1]
    return {f"{GENERATOR}{ENGINES}tensor_parallel_size": value // copies} if value % copies == 0 else {}


def _dispatch(r: Reader) -> str:
    return "round_robin" if r.flag(f"{GENERATOR}async_engine", True) and not r.flag(f"{GENERATOR}batched") else "static"


def _idle(r: Reader) -> tuple[str, ...]:
    trainer = f"{TRAINER}policy.fsdp_config" if megatron(r) else MEGATRON.rstrip(".")
    unused = [(r.value(f"{TRAINER}critic.model.path"), f"{TRAINER}critic"), (REFERENCE.read(r), f"{TRAINER}ref")]
    return (trainer, *(section for used, section in unused if not used))


ROWS = (
    integer("workload.prompts_per_step", f"{TRAINER}train_batch_size"),
    integer("workload.generations_per_prompt", SAMPLES),
    CAP,
    Row("cluster.num_gpus", (f"{PLACEMENT}policy_num_nodes", f"{PLACEMENT}policy_num_gpus_per_node"),
        lambda r: _training(r) + (_generation(r) or 0), _write_gpus),
    Row("cluster.generation_gpus", (f"{PLACEMENT}colocate_all", f"{GENERATOR}num_inference_engines"), _generation,
        lambda v, r: {} if v is None or v % (_replica(r)[0]) else {
            f"{PLACEMENT}colocate_all": False, f"{GENERATOR}num_inference_engines": v // _replica(r)[0]}),
    Row("loop.mode", (f"{PLACEMENT}colocate_all",), lambda r: "async" if asynchronous(r) else "sync"),
    Row("loop.style", (f"{PLACEMENT}colocate_all",), lambda r: "skyrl" if asynchronous(r) else None),
    Row("loop.policy_lag", (f"{ASYNC}max_staleness_steps",),
        lambda r: r.integer(f"{ASYNC}max_staleness_steps", 4) if asynchronous(r) else None,
        lambda v, r: {f"{ASYNC}max_staleness_steps": v} if asynchronous(r) else {}),
    Row("loop.max_in_flight_groups", (f"{ASYNC}num_parallel_generation_workers",),
        lambda r: r.integer(f"{ASYNC}num_parallel_generation_workers") or None if asynchronous(r) else None,
        lambda v, r: {f"{ASYNC}num_parallel_generation_workers": v} if asynchronous(r) else {}),
    choice("engine.name", f"{GENERATOR}backend", {"vllm": "vllm", "sglang": "sglang"}),
    Row("engine.tensor_parallel",
        (f"{GENERATOR}{ENGINES}tensor_parallel_size", f"{GENERATOR}{ENGINES}data_parallel_size"),
        lambda r: _replica(r)[0], _write_tensor),
    Row("engine.attention_data_parallel", (f"{GENERATOR}{ENGINES}data_parallel_size",), lambda r: _replica(r)[1]),
    integer("engine.pipeline_parallel", f"{GENERATOR}{ENGINES}pipeline_parallel_size"),
    integer("engine.expert_parallel", f"{GENERATOR}{ENGINES}expert_parallel_size"),
    Row("engine.dispatch", (f"{GENERATOR}async_engine", f"{GENERATOR}batched"), _dispatch,
        lambda v, r: {f"{GENERATOR}batched": v == "static"} if v in ("static", "round_robin") else {}),
    integer("engine.max_running_sequences", f"{GENERATOR}max_num_seqs"),
    integer("engine.max_batched_tokens", f"{GENERATOR}max_num_batched_tokens"),
    number("engine.gpu_memory_utilization", f"{GENERATOR}gpu_memory_utilization"),
    flag("engine.cuda_graphs", f"{GENERATOR}enforce_eager", inverted=True),
    flag("engine.prefix_caching", f"{GENERATOR}enable_prefix_caching"),
    flag("engine.chunked_prefill", f"{GENERATOR}enable_chunked_prefill"),
    Row("trainer.backend", (f"{TRAINER}strategy",), lambda r: "megatron" if megatron(r) else "fsdp",
        lambda v, r: {f"{TRAINER}strategy": "megatron" if v == "megatron" else "fsdp2"}),
    _layout("tensor_model_parallel_size", "trainer.tensor_parallel"),
    _layout("pipeline_model_parallel_size", "trainer.pipeline_parallel"),
    _layout("expert_model_parallel_size", "trainer.expert_parallel"),
    Row("trainer.context_parallel",
        (f"{MEGATRON}context_parallel_size", f"{TRAINER}policy.sequence_parallel_size"),
        lambda r: r.integer(_context_key(r), 1), lambda v, r: {_context_key(r): v}),
    Row("trainer.lora_rank", (f"{TRAINER}policy.model.lora.rank",),
        lambda r: r.integer(f"{TRAINER}policy.model.lora.rank") or None,
        lambda v, r: {f"{TRAINER}policy.model.lora.rank": v or 0}),
    product("trainer.global_batch_samples", (f"{TRAINER}policy_mini_batch_size",), SAMPLES),
    integer("trainer.epochs", f"{TRAINER}update_epochs_per_batch"),
    Row("trainer.critic", (f"{TRAINER}algorithm.advantage_estimator", f"{TRAINER}critic.model.path"),
        lambda r: bool(r.text(f"{TRAINER}critic.model.path"))),
    flag("trainer.sequence_packing", f"{TRAINER}use_sample_packing"),
    _samples("micro_train_batch_size_per_gpu", "trainer.micro_batch_tokens"),
    _samples("micro_forward_batch_size_per_gpu", "trainer.logprob_micro_batch_tokens"),
    Row("trainer.micro_batch_samples", (f"{TRAINER}micro_train_batch_size_per_gpu",),
        lambda r: None if r.flag(f"{TRAINER}use_sample_packing")
        else r.integer(f"{TRAINER}micro_train_batch_size_per_gpu", 1),
        lambda v, r: {} if r.flag(f"{TRAINER}use_sample_packing") else {f"{TRAINER}micro_train_batch_size_per_gpu": v}),
    Row("trainer.recompute", (f"{TRAINER}gradient_checkpointing",),
        lambda r: "full" if r.flag(f"{TRAINER}gradient_checkpointing") else "none",
        lambda v, r: {} if v == "selective" else {f"{TRAINER}gradient_checkpointing": v == "full"}),
    REFERENCE,
)  # fmt: skip

SKYRL = Framework(
    "skyrl",
    ROWS,
    *unused_keys("skyrl"),
    relevant_elsewhere=(
        f"{TRAINER}policy.model.path", f"{GENERATOR}max_turns", f"{GENERATOR}max_input_length",
        f"{TRAINER}algorithm.dynamic_sampling.type",
    ),
    idle=_idle,
)  # fmt: skip


def skyrl_facts(r: Reader, keys: Mapping[str, Any]) -> Facts:
    """Facts of a configuration whose rows gave ``keys``."""
    text = "SkyRL has no stack of its own; its trainer takes the terms fitted to the RL steps of others, its weight "
    return Facts(
        model=r.text(f"{TRAINER}policy.model.path"),
        model_key=f"{TRAINER}policy.model.path",
        gpus_per_node=r.integer(f"{PLACEMENT}policy_num_gpus_per_node", 4) if _generation(r) is None else 8,
        prompt_cap=r.integer(f"{TRAINER}max_prompt_length", 1),
        response_cap=r.integer(f"{GENERATOR}sampling_params.max_generate_length", 1),
        turns=r.integer(f"{GENERATOR}max_turns", 1),
        dynamic=r.text(f"{TRAINER}algorithm.dynamic_sampling.type") == "filter",
        settings=(("stack", "verl"), ("loop.refit_framework", "skyrl")),
        assumptions=((f"{text}transfers its own.", ("stack",)),),
    )
