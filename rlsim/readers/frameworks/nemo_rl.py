"""What of NeMo-RL's GRPO configurations no table can say (keys/nemo_rl.yaml): keys and meaning at v0.7.0.

Batches: lm_policy.py; engines and their defaults: vllm_generation.py; asynchrony: async_utils (docs/interop.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlsim.errors import InputError, shortened
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.formulas import sought
from rlsim.readers.frameworks.framework import framework_of
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.rows import Changes, Functions

POLICY = "policy."
MEGATRON = "policy.megatron_cfg."
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
GYM_TURNS = ("max_steps", "max_turns", "agent_max_turns", "max_iterations")
"""Keys by which environments of NeMo-Gym bound their turns."""
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


def _method(r: Reader) -> str | None:
    given = r.text(f"{DRAFTS}method")
    if not given:
        return "draft_model" if r.value(f"{DRAFTS}model") else None
    return "eagle3" if given == "eagle" else "mtp" if given.endswith("_mtp") else given


def _write_method(value: str, r: Reader) -> Changes:
    return {f"{KWARGS}speculative_config": None} if value == "none" else {f"{DRAFTS}method": value}


FUNCTIONS: Mapping[str, Functions] = {
    "cluster.num_gpus": (_gpus, _nodes),
    "cluster.generation_gpus": (_generation, _write_generation),
    "cluster.placement": (lambda r: "aligned" if r.value("cluster.segment_size") else None, _write_placement),
    "loop.mode": (lambda r: "async" if asynchronous(r) else "sync", _write_mode),
    "loop.style": (_style, None),
    "speculation.method": (_method, _write_method),
    "speculation.online_training": (
        lambda r: r.flag(f"{POLICY}draft.enabled") and _method(r) is not None,
        lambda value, r: {f"{POLICY}draft.enabled": value},
    ),
    "trainer.micro_batch_tokens": _capacity("train_mb_tokens", "train_micro_batch_size"),
    "trainer.logprob_micro_batch_tokens": _capacity("logprob_mb_tokens", "logprob_batch_size"),
}


def _turns(r: Reader) -> int:
    """Most turns: NeMo-Gym's environments say theirs themselves."""
    said = sought(r.raw("env.nemo_gym"), *GYM_TURNS) if r.flag("env.should_use_nemo_gym") else None
    return said or r.integer("grpo.max_rollout_turns") or 1


def nemo_rl_facts(r: Reader) -> Facts:
    """What a configuration says beside its rows."""
    cap = r.integer(f"{POLICY}max_total_sequence_length", 1)
    engine_cap = r.integer(f"{VLLM}max_model_len") or cap
    return Facts(
        model=r.text(f"{POLICY}model_name"),
        model_key=f"{POLICY}model_name",
        gpus_per_node=r.integer(NODE, 1),
        prompt_cap=r.integer("data.max_input_seq_length") or cap,
        response_cap=min(r.integer(f"{GENERATION}max_new_tokens") or cap, engine_cap),
        turns=_turns(r),
        drafter=r.text(f"{DRAFTS}model"),
        dynamic=r.flag("grpo.use_dynamic_sampling"),
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
        "lookahead": lambda r: controller(r) and bool(r.integer(f"{SAMPLER}max_lookahead_versions")),
        "windowed": lambda r: _style(r) == "nemo_rl_windowed",
        "unpacked": lambda r: packed(r) is None,
        "dynamic": lambda r: (
            r.flag(f"{POLICY}dynamic_batching.enabled") and not r.flag(f"{POLICY}sequence_packing.enabled")
        ),
        "turns_unsaid": lambda r: r.flag("env.should_use_nemo_gym") and _turns(r) == 1,
        "async_colocated": lambda r: asynchronous(r) and r.flag(f"{COLOCATED}enabled", True),
        "stood_in": lambda r: r.text(f"{GENERATION}backend", "vllm").lower() in STOOD_IN,
        "not_bfloat16": lambda r: r.text(f"{POLICY}precision", "bfloat16") != "bfloat16",
    },
)
