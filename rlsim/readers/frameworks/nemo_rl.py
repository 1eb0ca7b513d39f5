"""What of NeMo-RL's GRPO configurations no table can say (keys/nemo_rl.yaml): keys and meaning at v0.7.0.

Batches: lm_policy.py; engines and their defaults: vllm_generation.py; asynchrony: async_utils (docs/interop.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.framework import framework_of
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.rows import Changes, Functions

POLICY = "policy."
MEGATRON = "policy.megatron_cfg."
DTENSOR = "policy.dtensor_cfg."
GENERATION = "policy.generation."
VLLM = "policy.generation.vllm_cfg."
KWARGS = "policy.generation.vllm_kwargs."
DRAFTS = f"{KWARGS}speculative_config."
ASYNC = "grpo.async_grpo."
SAMPLER = "async_rl.sampler."
COLOCATED = "policy.generation.colocated."
RESOURCES = f"{COLOCATED}resources."
NODE = "cluster.gpus_per_node"
IN_ORDER = "in_order"
SAMPLERS = (IN_ORDER, "ready_first", "weight_fifo", "windowed")
RACK_NODE_GPUS = 4
"""GPUs of a tray of GB200 or GB300 NVL72."""
SYNCHRONOUS_ENGINE, ASYNCHRONOUS_ENGINE = (1024, 16384), (128, 2048)
"""Running sequences and batched tokens that vLLM takes where nothing is set: its LLM class on GPUs of 70 GiB and more,
and AsyncLLM without a usage context (vLLM 0.20)."""
STOOD_IN = ("megatron", "dynamo")
"""Engines that are not simulated, for which vLLM stands in."""


def megatron(r: Reader) -> bool:
    """Whether Megatron-Core trains; else FSDP2 (DTensor)."""
    return r.flag(f"{MEGATRON}enabled")


def controller(r: Reader) -> bool:
    """Whether the single controller runs the loop: its section is there and the older one is null."""
    return isinstance(r.value("async_rl"), dict) and not isinstance(r.value("grpo.async_grpo"), dict)


def asynchronous(r: Reader) -> bool:
    """Whether generation runs beside training."""
    return controller(r) or r.flag(f"{ASYNC}enabled")


def asynchronous_grpo(r: Reader) -> bool:
    """Whether asynchronous GRPO runs, the older of both loops that overlap."""
    return asynchronous(r) and not controller(r)


def _style(r: Reader) -> str | None:
    """The rules of the loop: those of the controller's sampler, or of the older collector."""
    if not asynchronous(r):
        return None
    sampler = r.text(f"{SAMPLER}name", IN_ORDER)
    if controller(r) and sampler not in SAMPLERS:
        raise InputError(
            f"{r.where}: {SAMPLER}name: '{shortened(sampler)}' is not simulated; known: {', '.join(SAMPLERS)}"
        )
    return f"nemo_rl_{sampler}" if controller(r) else "nemo_rl"


def packed(r: Reader) -> str | None:
    """Section whose capacity holds: packing, or batches that are dynamic; none with fixed micro-batches."""
    sections = (f"{POLICY}sequence_packing", f"{POLICY}dynamic_batching")
    return next((section for section in sections if r.flag(f"{section}.enabled")), None)


def _gpus(r: Reader) -> int:
    return r.integer("cluster.num_nodes", 1) * r.integer(NODE, 1)


def _nodes(gpus: int, r: Reader) -> Changes:
    """Nodes of the configuration's size where they divide the GPUs, else of the largest size that does."""
    per_node = r.integer(NODE, 1)
    size = gpus if gpus < per_node else math.gcd(gpus, per_node)
    return {"cluster.num_nodes": gpus // size, NODE: size}


def _generation(r: Reader) -> int | None:
    if r.flag(f"{COLOCATED}enabled", True):
        return None
    per_node = r.integer(f"{RESOURCES}gpus_per_node") or r.integer(NODE, 1)
    return (r.integer(f"{RESOURCES}num_nodes") or 1) * per_node


def _write_generation(gpus: int | None, r: Reader) -> Changes:
    if gpus is None:
        return {f"{COLOCATED}enabled": True}
    per_node = r.integer(NODE, 1)
    nodes = gpus // per_node if gpus % per_node == 0 else 1
    return {f"{COLOCATED}enabled": False, f"{RESOURCES}num_nodes": nodes, f"{RESOURCES}gpus_per_node": gpus // nodes}


def _write_placement(value: str | None, r: Reader) -> Changes:
    """Nodes of a segment: those of an NVL72 domain that NeMo-RL's recipes take (16 of 18), else the node itself."""
    nodes = 16 if r.integer(NODE, 1) == RACK_NODE_GPUS else 1
    return {"cluster.segment_size": nodes if value == "aligned" else None}


def _write_mode(value: str, r: Reader) -> Changes:
    if value == "sync" and controller(r):
        return {"async_rl": None}
    return {f"{ASYNC}enabled": value == "async"}


def _lag_key(r: Reader) -> str:
    if not controller(r):
        return f"{ASYNC}max_trajectory_age_steps"
    ahead = f"{SAMPLER}max_lookahead_versions"
    return ahead if r.integer(ahead) else f"{SAMPLER}max_staleness_versions"


def _in_flight(r: Reader) -> bool | None:
    """The synchronous engine cannot publish weights under running requests: NeMo-RL then waits for all of them."""
    if not asynchronous_grpo(r):
        return None
    return r.flag(f"{ASYNC}in_flight_weight_updates") and r.flag(f"{VLLM}async_engine")


def _write_in_flight(value: bool, r: Reader) -> Changes:
    if not asynchronous_grpo(r):
        return {}
    return {f"{ASYNC}in_flight_weight_updates": value, **({f"{VLLM}async_engine": True} if value else {})}


def _recompute(r: Reader) -> str:
    if not megatron(r):
        return "full" if r.flag(f"{DTENSOR}activation_checkpointing") else "none"
    if not r.flag(f"{MEGATRON}activation_checkpointing"):
        return "none"
    return "selective" if r.text(f"{MEGATRON}recompute_granularity", "full") == "selective" else "full"


def _write_recompute(value: str, r: Reader) -> Changes:
    if not megatron(r):
        return {f"{DTENSOR}activation_checkpointing": value == "full"}
    out: Changes = {f"{MEGATRON}activation_checkpointing": value != "none"}
    if value not in ("none", r.text(f"{MEGATRON}recompute_granularity", "full")):
        out[f"{MEGATRON}recompute_granularity"] = value
    return out


def _capacity(name: str, factor: str) -> Functions:
    """Tokens of a packed micro-batch: as stated, else the cap times the samples of a micro-batch."""

    def read(r: Reader) -> int | None:
        section = packed(r)
        if section is None:
            return None
        cap = r.integer(f"{POLICY}max_total_sequence_length", 1)
        return r.integer(f"{section}.{name}") or cap * r.integer(f"{POLICY}{factor}", 1)

    def write(value: int, r: Reader) -> Changes:
        section = packed(r)
        return {} if section is None else {f"{section}.{name}": value}

    return read, write


def _policy_logprobs(r: Reader) -> bool:
    return not (r.flag("loss_fn.force_on_policy_ratio") and r.value("grpo.seq_logprob_error_threshold") is None)


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


def _write_tensor(value: int, r: Reader) -> Changes:
    copies = _vllm_parallel(r)[1]
    return {f"{VLLM}tensor_parallel_size": value // copies} if value % copies == 0 else {}


def _engine_limit(name: str, index: int) -> Functions:
    key = f"{KWARGS}{name}"

    def read(r: Reader) -> int:
        defaults = ASYNCHRONOUS_ENGINE if r.flag(f"{VLLM}async_engine") else SYNCHRONOUS_ENGINE
        return r.integer(key) or defaults[index]

    return read, lambda value, r: {key: value}


def _precision(r: Reader) -> str:
    given = r.text(f"{VLLM}precision", "bfloat16")
    if given != "fp8":
        return "nvfp4" if given == "nvfp4" else "bf16"
    return "fp8" if r.flag(f"{VLLM}is_mx") else "fp8_block"


def _write_precision(value: str, r: Reader) -> Changes:
    if value in ("bf16", "nvfp4"):
        return {f"{VLLM}precision": "bfloat16" if value == "bf16" else value}
    return {f"{VLLM}precision": "fp8", f"{VLLM}is_mx": value == "fp8"}


def _method(r: Reader) -> str | None:
    given = r.text(f"{DRAFTS}method")
    if not given:
        return "draft_model" if r.value(f"{DRAFTS}model") else None
    return "eagle3" if given == "eagle" else "mtp" if given.endswith("_mtp") else given


def _write_method(value: str, r: Reader) -> Changes:
    return {f"{KWARGS}speculative_config": None} if value == "none" else {f"{DRAFTS}method": value}


def _adapters(r: Reader) -> str:
    return f"{MEGATRON}peft." if megatron(r) else f"{DTENSOR}lora_cfg."


def _write_lora(value: int | None, r: Reader) -> Changes:
    section = _adapters(r)
    return {f"{section}enabled": value is not None, **({} if value is None else {f"{section}dim": value})}


def _moe_dispatcher(r: Reader) -> str | None:
    """Unset: as the stack's recipes do. flex sends through HybridEP, or through DeepEP where that is enabled."""
    if not megatron(r):
        return None
    if r.flag(f"{MEGATRON}moe_enable_deepep"):
        return "deepep"
    given = r.text(f"{MEGATRON}moe_token_dispatcher_type")
    if given == "flex":
        return "deepep" if r.text(f"{MEGATRON}moe_flex_dispatcher_backend", "deepep") == "deepep" else "hybridep"
    return "alltoall" if given in ("alltoall", "allgather") else None


def _write_dispatcher(value: str, r: Reader) -> Changes:
    if value == "alltoall":
        return {f"{MEGATRON}moe_token_dispatcher_type": "alltoall", f"{MEGATRON}moe_enable_deepep": False}
    return {
        f"{MEGATRON}moe_token_dispatcher_type": "flex",
        f"{MEGATRON}moe_flex_dispatcher_backend": value,
        f"{MEGATRON}moe_enable_deepep": value == "deepep",
    }


FUNCTIONS: Mapping[str, Functions] = {
    "cluster.num_gpus": (_gpus, _nodes),
    "cluster.generation_gpus": (_generation, _write_generation),
    "cluster.placement": (lambda r: "aligned" if r.value("cluster.segment_size") else None, _write_placement),
    "loop.mode": (lambda r: "async" if asynchronous(r) else "sync", _write_mode),
    "loop.policy_lag": (
        lambda r: r.integer(_lag_key(r), 1) if asynchronous(r) else None,
        lambda value, r: {_lag_key(r): max(1, value)} if asynchronous(r) else {},
    ),
    "loop.style": (_style, None),
    "loop.in_flight_updates": (_in_flight, _write_in_flight),
    "engine.tensor_parallel": (lambda r: _vllm_parallel(r)[0], _write_tensor),
    "engine.attention_data_parallel": (lambda r: _vllm_parallel(r)[1], None),
    "engine.weight_precision": (_precision, _write_precision),
    "engine.max_running_sequences": _engine_limit("max_num_seqs", 0),
    "engine.max_batched_tokens": _engine_limit("max_num_batched_tokens", 1),
    "speculation.method": (_method, _write_method),
    "speculation.online_training": (
        lambda r: r.flag(f"{POLICY}draft.enabled") and _method(r) is not None,
        lambda value, r: {f"{POLICY}draft.enabled": value},
    ),
    "trainer.backend": (
        lambda r: "megatron" if megatron(r) else "fsdp",
        lambda value, r: {f"{MEGATRON}enabled": value == "megatron", f"{DTENSOR}enabled": value != "megatron"},
    ),
    "trainer.lora_rank": (
        lambda r: r.integer(f"{_adapters(r)}dim", 8) if r.flag(f"{_adapters(r)}enabled") else None,
        _write_lora,
    ),
    "trainer.sequence_packing": (
        lambda r: packed(r) is not None,
        lambda value, r: {f"{POLICY}sequence_packing.enabled": value, f"{POLICY}dynamic_batching.enabled": False},
    ),
    "trainer.micro_batch_tokens": _capacity("train_mb_tokens", "train_micro_batch_size"),
    "trainer.logprob_micro_batch_tokens": _capacity("logprob_mb_tokens", "logprob_batch_size"),
    "trainer.recompute": (_recompute, _write_recompute),
    "trainer.policy_logprobs": (_policy_logprobs, _write_policy_logprobs),
    "trainer.reference_logprobs": (
        lambda r: not r.flag("grpo.skip_reference_policy_logprobs_calculation"),
        _write_reference,
    ),
    "trainer.moe_dispatcher": (_moe_dispatcher, _write_dispatcher),
}


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
    backend, precision = r.text(f"{GENERATION}backend", "vllm"), r.text(f"{POLICY}precision", "bfloat16")
    if backend.lower() in STOOD_IN:
        assumptions.append((f"vLLM stands in for the {shortened(backend)} engine.", ("engine.name",)))
    if precision != "bfloat16":
        assumptions.append((f"Training in {shortened(precision)} is simulated as bf16.", ("trainer.precision",)))
    return Facts(
        model=r.text(f"{POLICY}model_name"),
        model_key=f"{POLICY}model_name",
        gpus_per_node=r.integer(NODE, 1),
        prompt_cap=r.integer("data.max_input_seq_length") or cap,
        response_cap=min(r.integer(f"{GENERATION}max_new_tokens") or cap, engine_cap),
        turns=r.integer("grpo.max_rollout_turns", 1),
        drafter=r.text(f"{DRAFTS}model"),
        dynamic=r.flag("grpo.use_dynamic_sampling"),
        assumptions=tuple(assumptions),
    )


NEMO_RL = framework_of(
    "nemo_rl",
    nemo_rl_facts,
    FUNCTIONS,
    {
        "megatron": megatron,
        "controller": controller,
        "asynchronous": asynchronous,
        "asynchronous_grpo": asynchronous_grpo,
        "windowed": lambda r: _style(r) == "nemo_rl_windowed",
        "unpacked": lambda r: packed(r) is None,
    },
)
