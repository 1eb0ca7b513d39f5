"""NeMo-RL's GRPO configurations (examples/run_grpo.py): keys and meaning at v0.7.0.

Batches: lm_policy.py; engines and their defaults: vllm_generation.py; asynchrony: async_utils (docs/interop.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlsim.errors import shortened
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.files import Bases
from rlsim.readers.frameworks.nemo_rl_loop import LOOP_ROWS, asynchronous
from rlsim.readers.frameworks.rows import Changes, Framework, Reader, Row, choice, flag, integer, number, unused_keys

POLICY = "policy."
MEGATRON = "policy.megatron_cfg."
DTENSOR = "policy.dtensor_cfg."
GENERATION = "policy.generation."
VLLM = "policy.generation.vllm_cfg."
KWARGS = "policy.generation.vllm_kwargs."
DRAFTS = f"{KWARGS}speculative_config."
SYNCHRONOUS_ENGINE, ASYNCHRONOUS_ENGINE = (1024, 16384), (128, 2048)
"""Running sequences and batched tokens that vLLM takes where nothing is set: its LLM class on GPUs of 70 GiB and more,
and AsyncLLM without a usage context (vLLM 0.20)."""

BACKENDS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "megatron": "vllm", "dynamo": "vllm"}
"""Engines, and what stands in for those that are not simulated."""

BASES = Bases(shipped={"grpo_math_1B.yaml": ("nemo_rl",)}, start=("nemo_rl",))


def megatron(r: Reader) -> bool:
    """Whether Megatron-Core trains; else FSDP2 (DTensor)."""
    return r.flag(f"{MEGATRON}enabled")


def asynchronous_engine(r: Reader) -> bool:
    """Whether requests go to the engine one by one."""
    return r.flag(f"{VLLM}async_engine")


def _backend(key_megatron: str, key_dtensor: str, target: str) -> Row:
    """A layout key that Megatron and DTensor have under different names."""

    def key(r: Reader) -> str:
        return f"{MEGATRON}{key_megatron}" if megatron(r) else f"{DTENSOR}{key_dtensor}"

    return Row(
        target,
        (f"{MEGATRON}{key_megatron}", f"{DTENSOR}{key_dtensor}", f"{MEGATRON}enabled"),
        lambda r: r.integer(key(r), 1),
        lambda value, r: {key(r): value},
    )


def _megatron_only(name: str, target: str) -> Row:
    key = f"{MEGATRON}{name}"

    def write(value: int, r: Reader) -> Changes:
        return {key: value} if megatron(r) else {f"{MEGATRON}enabled": True, f"{DTENSOR}enabled": False, key: value}

    return Row(target, (key, f"{MEGATRON}enabled"), lambda r: r.integer(key, 1) if megatron(r) else 1, write)


def _expert_read(r: Reader) -> int:
    return r.integer(f"{MEGATRON}expert_model_parallel_size" if megatron(r) else f"{DTENSOR}expert_parallel_size", 1)


def _expert_write(value: int, r: Reader) -> Changes:
    return {f"{MEGATRON}expert_model_parallel_size" if megatron(r) else f"{DTENSOR}expert_parallel_size": value}


def _recompute(r: Reader) -> str:
    if not megatron(r):
        return "full" if r.flag(f"{DTENSOR}activation_checkpointing") else "none"
    if not r.flag(f"{MEGATRON}activation_checkpointing"):
        return "none"
    return "selective" if r.text(f"{MEGATRON}recompute_granularity", "full") == "selective" else "full"


def _write_recompute(value: str, r: Reader) -> Changes:
    if not megatron(r):
        if value == "selective":
            return {}
        return {f"{DTENSOR}activation_checkpointing": value == "full"}
    out: Changes = {f"{MEGATRON}activation_checkpointing": value != "none"}
    if value != "none" and value != r.text(f"{MEGATRON}recompute_granularity", "full"):
        out[f"{MEGATRON}recompute_granularity"] = value
    return out


def _packed(r: Reader) -> str | None:
    """Section whose capacity holds: packing, or batches that are dynamic; none with fixed micro-batches."""
    packing, dynamic = f"{POLICY}sequence_packing", f"{POLICY}dynamic_batching"
    if r.flag(f"{packing}.enabled"):
        return packing
    return dynamic if r.flag(f"{dynamic}.enabled") else None


def _capacity(name: str, factor: str, target: str) -> Row:
    """Tokens of a packed micro-batch: as stated, else the cap times the samples of a micro-batch."""
    keys = tuple(f"{POLICY}{section}.{name}" for section in ("sequence_packing", "dynamic_batching"))

    def read(r: Reader) -> int | None:
        section = _packed(r)
        if section is None:
            return None
        cap = r.integer(f"{POLICY}max_total_sequence_length", 1)
        return r.integer(f"{section}.{name}") or cap * r.integer(f"{POLICY}{factor}", 1)

    def write(value: int, r: Reader) -> Changes:
        section = _packed(r)
        return {} if section is None else {f"{section}.{name}": value}

    return Row(target, (*keys, f"{POLICY}{factor}"), read, write)


def _policy_logprobs(r: Reader) -> bool:
    skipped = r.flag("loss_fn.force_on_policy_ratio") and r.value("grpo.seq_logprob_error_threshold") is None
    return not skipped


def _write_policy_logprobs(value: bool, r: Reader) -> Changes:
    if value:
        return {"loss_fn.force_on_policy_ratio": False}
    return {"loss_fn.force_on_policy_ratio": True, "grpo.seq_logprob_error_threshold": None}


def _write_reference(value: bool, r: Reader) -> Changes:
    out: Changes = {"grpo.skip_reference_policy_logprobs_calculation": not value}
    if not value and r.number("loss_fn.reference_policy_kl_penalty"):
        out["loss_fn.reference_policy_kl_penalty"] = 0
    return out


def _vllm_parallel(r: Reader) -> tuple[int, int]:
    """GPUs of a stage of a replica and copies of its attention: experts beyond TP come with data-parallel attention."""
    tensor, expert = r.integer(f"{VLLM}tensor_parallel_size", 1), r.integer(f"{VLLM}expert_parallel_size", 1)
    copies = expert // tensor if expert > tensor and expert % tensor == 0 else 1
    return tensor * copies, copies


def _write_vllm_tensor(value: int, r: Reader) -> Changes:
    copies = _vllm_parallel(r)[1]
    return {f"{VLLM}tensor_parallel_size": value // copies} if value % copies == 0 else {}


def _engine_limit(key: str, index: int, target: str) -> Row:
    def default(r: Reader) -> int:
        return (ASYNCHRONOUS_ENGINE if asynchronous_engine(r) else SYNCHRONOUS_ENGINE)[index]

    keys = (f"{KWARGS}{key}", f"{VLLM}async_engine")
    return Row(target, keys, lambda r: r.integer(keys[0]) or default(r), lambda value, r: {keys[0]: value})


def _dispatch_write(value: str, r: Reader) -> Changes:
    return {f"{VLLM}async_engine": value == "round_robin"} if value in ("static", "round_robin") else {}


def _precision(r: Reader) -> str:
    given = r.text(f"{VLLM}precision", "bfloat16")
    if given != "fp8":
        return "nvfp4" if given == "nvfp4" else "bf16"
    return "fp8" if r.flag(f"{VLLM}is_mx") else "fp8_block"


def _write_precision(value: str, r: Reader) -> Changes:
    if value in ("bf16", "nvfp4"):
        return {f"{VLLM}precision": "bfloat16" if value == "bf16" else value}
    return {f"{VLLM}precision": "fp8", f"{VLLM}is_mx": value == "fp8"}


_METHODS = {
    "eagle3": "eagle3", "eagle": "eagle3", "mtp": "mtp", "deepseek_mtp": "mtp", "qwen3_next_mtp": "mtp",
    "ngram": "ngram", "suffix": "suffix", "draft_model": "draft_model",
}  # fmt: skip


def _method(r: Reader) -> str | None:
    given = r.text(f"{DRAFTS}method")
    if not given:
        return "draft_model" if r.value(f"{DRAFTS}model") else None
    return _METHODS.get(given, "mtp" if given.endswith("_mtp") else given)


def _write_method(value: str, r: Reader) -> Changes:
    if value == "none":
        return {f"{KWARGS}speculative_config": None}
    return {f"{DRAFTS}method": value}


def _precise_optimizer(r: Reader) -> float | None:
    return 8.0 if megatron(r) and r.flag(f"{MEGATRON}optimizer.use_precision_aware_optimizer") else 12.0


def _write_precise(value: float, r: Reader) -> Changes:
    if not megatron(r) or value not in (8.0, 12.0):
        return {}
    return {f"{MEGATRON}optimizer.use_precision_aware_optimizer": value == 8.0}


def _lora(r: Reader) -> int | None:
    section = f"{MEGATRON}peft." if megatron(r) else f"{DTENSOR}lora_cfg."
    return r.integer(f"{section}dim", 8) if r.flag(f"{section}enabled") else None


def _write_lora(value: int | None, r: Reader) -> Changes:
    section = f"{MEGATRON}peft." if megatron(r) else f"{DTENSOR}lora_cfg."
    return {f"{section}enabled": value is not None, **({} if value is None else {f"{section}dim": value})}


_DISPATCHERS = {"alltoall": "alltoall", "allgather": "alltoall"}


def _moe_dispatcher(r: Reader) -> str | None:
    """Unset: as the stack's recipes do. flex sends through HybridEP, or through DeepEP where that is enabled."""
    if not megatron(r):
        return None
    if r.flag(f"{MEGATRON}moe_enable_deepep"):
        return "deepep"
    given = r.text(f"{MEGATRON}moe_token_dispatcher_type")
    if given == "flex":
        return "deepep" if r.text(f"{MEGATRON}moe_flex_dispatcher_backend", "deepep") == "deepep" else "hybridep"
    return _DISPATCHERS.get(given)


def _write_dispatcher(value: str, r: Reader) -> Changes:
    if value == "alltoall":
        return {f"{MEGATRON}moe_token_dispatcher_type": "alltoall", f"{MEGATRON}moe_enable_deepep": False}
    return {
        f"{MEGATRON}moe_token_dispatcher_type": "flex",
        f"{MEGATRON}moe_flex_dispatcher_backend": value,
        f"{MEGATRON}moe_enable_deepep": value == "deepep",
    }


def _fp8(r: Reader) -> str:
    return "fp8" if megatron(r) and r.flag(f"{MEGATRON}fp8_cfg.enabled") else "bf16"


def _write_backend(value: str, r: Reader) -> Changes:
    return {f"{MEGATRON}enabled": value == "megatron", f"{DTENSOR}enabled": value != "megatron"}


def _optimizer(r: Reader) -> str:
    return "muon" if megatron(r) and "muon" in r.text(f"{MEGATRON}optimizer.optimizer", "adam") else "adam"


def _oversampling(r: Reader) -> float:
    return r.number("grpo.batch_multiplier", 1.0) if r.flag("grpo.use_dynamic_sampling") else 1.0


def _tries(r: Reader) -> int | None:
    return r.integer("grpo.dynamic_sampling_max_gen_batches", 10) if r.flag("grpo.use_dynamic_sampling") else None


def _write_kv(value: Any, r: Reader) -> Changes:
    return {f"{VLLM}kv_cache_dtype": "auto" if value == "bf16" else value}


_RECOMPUTE_KEYS = (
    f"{MEGATRON}activation_checkpointing", f"{MEGATRON}recompute_granularity", f"{DTENSOR}activation_checkpointing",
)  # fmt: skip
_TRANSPORTS = {"nccl_reshard": "nccl_reshard", "nixl": "rdma", "vllm_zmq_sparse": "delta_sharded"}

ROWS = (
    integer("workload.prompts_per_step", "grpo.num_prompts_per_step"),
    integer("workload.generations_per_prompt", "grpo.num_generations_per_prompt"),
    integer("workload.max_sequence_tokens", f"{POLICY}max_total_sequence_length"),
    Row("workload.generated_batch_factor", ("grpo.use_dynamic_sampling", "grpo.batch_multiplier"), _oversampling,
        lambda v, r: {"grpo.use_dynamic_sampling": True, "grpo.batch_multiplier": v}),
    Row("workload.max_rollouts_per_step", ("grpo.dynamic_sampling_max_gen_batches",), _tries,
        lambda v, r: {"grpo.use_dynamic_sampling": True, "grpo.dynamic_sampling_max_gen_batches": v}),
    *LOOP_ROWS,
    choice("engine.name", f"{GENERATION}backend", BACKENDS),
    Row("engine.tensor_parallel", (f"{VLLM}tensor_parallel_size", f"{VLLM}expert_parallel_size"),
        lambda r: _vllm_parallel(r)[0], _write_vllm_tensor),
    integer("engine.pipeline_parallel", f"{VLLM}pipeline_parallel_size"),
    integer("engine.expert_parallel", f"{VLLM}expert_parallel_size"),
    Row("engine.attention_data_parallel", (f"{VLLM}expert_parallel_size",), lambda r: _vllm_parallel(r)[1]),
    Row("engine.weight_precision", (f"{VLLM}precision", f"{VLLM}is_mx"), _precision, _write_precision),
    Row("engine.kv_precision", (f"{VLLM}kv_cache_dtype",),
        lambda r: "fp8" if r.text(f"{VLLM}kv_cache_dtype", "auto").startswith("fp8") else "bf16", _write_kv),
    Row("engine.dispatch", (f"{VLLM}async_engine",),
        lambda r: "round_robin" if asynchronous_engine(r) else "static", _dispatch_write),
    _engine_limit("max_num_seqs", 0, "engine.max_running_sequences"),
    _engine_limit("max_num_batched_tokens", 1, "engine.max_batched_tokens"),
    number("engine.gpu_memory_utilization", f"{VLLM}gpu_memory_utilization"),
    flag("engine.cuda_graphs", f"{VLLM}enforce_eager", inverted=True),
    flag("engine.prefix_caching", f"{VLLM}enable_prefix_caching"),
    flag("engine.chunked_prefill", f"{KWARGS}enable_chunked_prefill"),
    integer("engine.max_captured_tokens", f"{KWARGS}max_cudagraph_capture_size"),
    Row("speculation.method", (f"{DRAFTS}method", f"{DRAFTS}model"), _method, _write_method),
    integer("speculation.draft_length", f"{DRAFTS}num_speculative_tokens"),
    Row("speculation.online_training", (f"{POLICY}draft.enabled",),
        lambda r: r.flag(f"{POLICY}draft.enabled") and _method(r) is not None,
        lambda v, r: {f"{POLICY}draft.enabled": v}),
    Row("trainer.backend", (f"{MEGATRON}enabled", f"{DTENSOR}enabled"),
        lambda r: "megatron" if megatron(r) else "fsdp", _write_backend),
    _backend("tensor_model_parallel_size", "tensor_parallel_size", "trainer.tensor_parallel"),
    _megatron_only("pipeline_model_parallel_size", "trainer.pipeline_parallel"),
    _backend("context_parallel_size", "context_parallel_size", "trainer.context_parallel"),
    Row("trainer.expert_parallel", (f"{MEGATRON}expert_model_parallel_size", f"{DTENSOR}expert_parallel_size"),
        _expert_read, _expert_write),
    Row("trainer.precision", (f"{MEGATRON}fp8_cfg.enabled",), _fp8,
        lambda v, r: {f"{MEGATRON}fp8_cfg.enabled": v == "fp8"} if v != "nvfp4" else {}),
    Row("trainer.lora_rank", tuple(f"{s}{k}" for s in (f"{MEGATRON}peft.", f"{DTENSOR}lora_cfg.")
                                   for k in ("enabled", "dim")), _lora, _write_lora),
    integer("trainer.global_batch_samples", f"{POLICY}train_global_batch_size"),
    Row("trainer.sequence_packing", (f"{POLICY}sequence_packing.enabled", f"{POLICY}dynamic_batching.enabled"),
        lambda r: _packed(r) is not None,
        lambda v, r: {f"{POLICY}sequence_packing.enabled": v, f"{POLICY}dynamic_batching.enabled": False}),
    _capacity("train_mb_tokens", "train_micro_batch_size", "trainer.micro_batch_tokens"),
    _capacity("logprob_mb_tokens", "logprob_batch_size", "trainer.logprob_micro_batch_tokens"),
    Row("trainer.micro_batch_samples", (f"{POLICY}train_micro_batch_size",),
        lambda r: None if _packed(r) else r.integer(f"{POLICY}train_micro_batch_size", 1),
        lambda v, r: {} if _packed(r) else {f"{POLICY}train_micro_batch_size": v}),
    Row("trainer.recompute", _RECOMPUTE_KEYS, _recompute, _write_recompute),
    Row("trainer.mtp_layers", (f"{MEGATRON}mtp_num_layers",),
        lambda r: r.integer(f"{MEGATRON}mtp_num_layers") if megatron(r) else 0,
        lambda v, r: {f"{MEGATRON}mtp_num_layers": v} if megatron(r) else {}),
    Row("trainer.optimizer", (f"{MEGATRON}optimizer.optimizer",), _optimizer),
    Row("trainer.optimizer_bytes_per_parameter", (f"{MEGATRON}optimizer.use_precision_aware_optimizer",),
        _precise_optimizer, _write_precise),
    Row("trainer.policy_logprobs", ("loss_fn.force_on_policy_ratio", "grpo.seq_logprob_error_threshold"),
        _policy_logprobs, _write_policy_logprobs),
    Row("trainer.reference_logprobs",
        ("grpo.skip_reference_policy_logprobs_calculation", "loss_fn.reference_policy_kl_penalty"),
        lambda r: not r.flag("grpo.skip_reference_policy_logprobs_calculation"), _write_reference),
    Row("trainer.moe_dispatcher",
        tuple(f"{MEGATRON}{k}" for k in ("moe_token_dispatcher_type", "moe_enable_deepep",
                                         "moe_flex_dispatcher_backend")), _moe_dispatcher, _write_dispatcher),
    Row("loop.refit_method", (f"{GENERATION}refit_transport",),
        lambda r: _TRANSPORTS.get(r.text(f"{GENERATION}refit_transport"), "auto"),
        lambda v, r: {f"{GENERATION}refit_transport": next((k for k, m in _TRANSPORTS.items() if m == v), None)}),
)  # fmt: skip

NEMO_RL = Framework(
    "nemo-rl",
    ROWS,
    *unused_keys("nemo_rl"),
    relevant_elsewhere=(
        f"{POLICY}model_name", "cluster.gpus_per_node", f"{GENERATION}max_new_tokens", "data.max_input_seq_length",
        "grpo.max_rollout_turns", f"{POLICY}precision", f"{KWARGS}speculative_config", f"{VLLM}max_model_len",
    ),
)  # fmt: skip


def nemo_rl_facts(r: Reader, keys: Mapping[str, Any]) -> Facts:
    """Facts of a configuration whose rows gave ``keys``."""
    cap = r.integer(f"{POLICY}max_total_sequence_length", 1)
    engine_cap = r.integer(f"{VLLM}max_model_len") or cap
    assumptions: list[tuple[str, tuple[str, ...]]] = []
    if r.flag(f"{POLICY}dynamic_batching.enabled") and not r.flag(f"{POLICY}sequence_packing.enabled"):
        text = "Dynamic batching is simulated as packing of the same capacity; its padding to the longest sample of a "
        assumptions.append((f"{text}micro-batch is left out.", ("trainer.sequence_packing",)))
    if keys.get("engine.attention_data_parallel", 1) > 1:
        text = "Experts over more GPUs than vllm_cfg.tensor_parallel_size come with data-parallel attention, so a "
        assumptions.append(
            (f"{text}replica has expert_parallel_size GPUs.", ("engine.tensor_parallel", "engine.expert_parallel"))
        )
    if asynchronous(r) and keys.get("loop.membership") == "first_done":
        text = "The sampler takes the groups that are done first; max_lookahead_versions (else "
        assumptions.append((f"{text}max_staleness_versions) bounds how far ahead groups start.", ("loop.policy_lag",)))
    backend, precision = r.text(f"{GENERATION}backend", "vllm"), r.text(f"{POLICY}precision", "bfloat16")
    if BACKENDS[backend.lower()] != backend.lower():
        assumptions.append((f"vLLM stands in for the {shortened(backend)} engine.", ("engine.name",)))
    if precision != "bfloat16":
        assumptions.append((f"Training in {shortened(precision)} is simulated as bf16.", ("trainer.precision",)))
    return Facts(
        model=r.text(f"{POLICY}model_name"),
        model_key=f"{POLICY}model_name",
        gpus_per_node=r.integer("cluster.gpus_per_node", 1),
        prompt_cap=r.integer("data.max_input_seq_length") or cap,
        response_cap=min(r.integer(f"{GENERATION}max_new_tokens") or cap, engine_cap),
        turns=r.integer("grpo.max_rollout_turns", 1),
        drafter=r.text(f"{DRAFTS}model"),
        dynamic=r.flag("grpo.use_dynamic_sampling"),
        assumptions=tuple(assumptions),
    )
