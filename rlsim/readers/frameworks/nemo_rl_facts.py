"""What a NeMo-RL configuration says beside its rows: model, caps, turns, and what the mapping assumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlsim.errors import shortened
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.nemo_rl import BACKENDS, DRAFTS, GENERATION, POLICY, VLLM
from rlsim.readers.frameworks.nemo_rl_loop import asynchronous
from rlsim.readers.frameworks.rows import Reader


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
