"""AReaL's configurations (areal/api/cli_args.py) at 4aef98d8d, as are the lines named below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlsim.readers.frameworks.areal_options import (
    Actor,
    Archon,
    Areal,
    Generation,
    Half,
    Megatron,
    Rollout,
    Sglang,
    Vllm,
)
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.megatron import optimizer_bytes, recomputed_modules
from rlsim.readers.frameworks.options import Change
from rlsim.readers.frameworks.pools import areal_teacher
from rlsim.readers.frameworks.rules import INT4, Assumption, Case, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Trainer, Workload
from rlsim.schema.trainer import RecomputeModule


def _set_max_sequence(c: Areal, value: int) -> Iterator[Change]:
    if not c.agent:
        yield Generation.max_new_tokens.to(value - c.prompt_cap)
    if c.agent or value > c.total:
        yield Generation.max_tokens.to(value)
    if c.rollout.agent_tokens is not None:
        yield Rollout.agent_tokens.to(value)
    if c.trajectory_tokens is not None:
        yield Areal.trajectory_tokens.to(value)


def _micro_batch_tokens(c: Areal) -> int:
    """Without a bound one micro-batch, or n_mbs (utils/data.py:693, 714-716, 465-470), two a stage of Megatron's
    pipeline (engine/megatron_engine.py:1953-1965)."""
    if bound := c.actor.max_tokens_per_mb:
        return bound * c.train.c
    count = max(c.actor.n_mbs, 2 * c.train.p if c.train.p > 1 else 1)
    return c.r.real_tokens(max(1, c.minibatch // (c.train.d * count)), c.cap)


def _policy_logprobs(c: Areal) -> bool:
    """should_compute_prox_logp (cli_args.py:1534-1545; utils/constants.py:49-51)."""
    return c.actor.prox_logp_method != "loglinear" if c.actor.use_decoupled_loss else c.actor.recompute_logprob


def _set_policy_logprobs(c: Areal, value: bool) -> list[Change]:
    if c.actor.use_decoupled_loss:
        return [Actor.prox_logp_method.to("recompute" if value else "loglinear")]
    return [Actor.recompute_logprob.to(value)]


def _set_precision(c: Areal, value: str) -> list[Change | None]:
    if c.on_archon:
        return [Archon.fp8.to("blockwise" if value == "fp8" else "disabled")]
    mode = Megatron.fp8_mode.to("e4m3") if value == "fp8" else Megatron.fp8.to(None)
    return [mode if c.megatron else None]


def _generating(half: Half) -> list[Change]:
    return [Rollout.backend.to(str(half))]


def _training(half: Half) -> list[Change]:
    return [Actor.backend.to(str(half))]


def _virtual_stages(c: Areal) -> int | None:
    """Of Archon's interleaved schedules, the default, two (cli_args.py:608-612)."""
    if c.train.p == 1:
        return None
    if c.on_archon:
        return 1 if c.archon.pp_schedule == "1F1B" else 2
    return c.mcore.virtual_pipeline_parallel_size if c.megatron else None


def _recompute_modules(c: Areal) -> tuple[RecomputeModule, ...] | None:
    """Archon computes every second product again (experimental/models/archon/activation_checkpoint.py:173-176)."""
    if c.saves_some:
        return ("layernorm", "mlp", "moe_act")
    selective = c.megatron and c.mcore.recompute_granularity == "selective"
    return recomputed_modules(c.mcore.recompute_modules) if selective else None


def _optimizer_bytes(c: Areal) -> float:
    """FSDP's and Archon's weights and Adam's moments are of actor.dtype, without an FP32 copy (fsdp_engine.py:976,
    1120; archon_engine.py:1085). adam_bf16 is Megatron-Core's precision-aware one (megatron_engine.py:1131-1144)."""
    if c.actor.optimizer == "sgd":
        return 4.0  # Megatron-Core's FP32 weights; where weights are BF16 less, which no value of the scenario says
    halved = c.actor.optimizer == "adam_bf16"
    if c.megatron:
        moments = ("bf16", "bf16") if halved else (c.mcore.exp_avg_dtype, c.mcore.exp_avg_sq_dtype)
        return optimizer_bytes(halved or c.mcore.use_precision_aware_optimizer, False, moments)
    return 4.0 + (0.0 if "16" in c.actor.dtype else 4.0 if halved else 8.0)


def _on_host(c: Areal) -> bool:
    """fsdp_engine.py:405, 1168; the weights, which go there too, count as on the GPU."""
    if c.on_archon:
        return c.archon.offload_params
    return not c.megatron and (c.actor.fsdp_on_host or c.actor.step_on_device)


CHECKPOINTS = [Actor.gradient_checkpointing.to(True)]
of = Rules(Areal)
RULES = (
    of(Workload.prompts_per_step).by(Areal.batch_size, lambda c: c.prompts),
    of(Workload.generations_per_prompt).same(Generation.n_samples),
    of(Workload.max_sequence_tokens).rule(lambda c: c.cap, _set_max_sequence),
    of(Workload.max_response_tokens).rule(
        lambda c: c.gconfig.max_new_tokens,
        lambda c, value: [
            Generation.max_new_tokens.to(value),
            None if c.agent else Areal.prompt.to(max(1, c.cap - value)),
        ],
    ),
    of(Cluster.num_gpus).rule(
        lambda c: c.train.d * c.ranks + c.apart,
        lambda c, value: _training(replace(c.train, d=max(1, (value - c.apart) // c.ranks))),
    ),
    of(Cluster.generation_gpus, when=lambda c: not c.shared).rule(
        lambda c: c.gen_gpus,
        lambda c, value: _generating(replace(c.gen, d=max(1, (value or 1) // (c.gen.t * c.gen.p)))),
    ),
    of(Loop.mode, when=lambda c: c.asynchronous, otherwise="sync").constant("async"),
    of(Loop.style, when=lambda c: c.asynchronous).constant("areal"),
    # infra/staleness_manager.py:106-109: so many batches may be accepted or running beyond that of the version.
    of(Loop.policy_lag, when=lambda c: c.asynchronous).by(
        Rollout.max_head_offpolicyness, lambda c: c.rollout.max_head_offpolicyness
    ),
    of(Loop.refit_method).words(Actor.weight_update_mode, ("disk", "disk"), ("xccl", "auto"), other="auto"),
    of(Loop.max_in_flight_groups, when=lambda c: c.asynchronous).same(Rollout.max_concurrent_rollouts),
    of(Engine.name).rule(
        lambda c: "vllm" if c.on_vllm else "sglang", lambda c, value: _generating(replace(c.gen, backend=value))
    ),
    of(Engine.tensor_parallel).rule(lambda c: c.gen.t, lambda c, value: _generating(replace(c.gen, t=value))),
    of(Engine.pipeline_parallel).rule(lambda c: c.gen.p, lambda c, value: _generating(replace(c.gen, p=value))),
    of(Engine.expert_parallel).rule(
        lambda c: c.gen.e if c.on_vllm else max(c.gen.e, c.sglang.ep_size),
        lambda c, value: [*_generating(replace(c.gen, e=value)), Sglang.ep_size.to(value)],
    ),
    of(Engine.attention_data_parallel, when=lambda c: not c.on_vllm).rule(
        lambda c: c.sglang.dp_size if c.sglang.enable_dp_attention else None,
        lambda _, value: [Sglang.dp_size.to(value), Sglang.enable_dp_attention.to(value > 1)],
    ),
    of(Engine.kv_precision, when=lambda c: not c.on_vllm).words(
        Sglang.kv_cache_dtype, ("fp8_e4m3", "fp8"), ("fp8*", "fp8"), ("auto", "bf16"), other="bf16"
    ),
    # No chunks by default (cli_args.py:1766), then whole prompts up to max_prefill_tokens.
    of(Engine.max_batched_tokens, when=lambda c: not c.on_vllm).by(
        Sglang.chunked_prefill_size,
        lambda c: chunk if (chunk := c.sglang.chunked_prefill_size) > 0 else c.sglang.max_prefill_tokens,
    ),
    of(Engine.chunked_prefill, when=lambda c: not c.on_vllm).same(Sglang.enable_mixed_chunk),
    of(Engine.max_captured_tokens, when=lambda c: not c.on_vllm).by(
        Sglang.cuda_graph_max_bs, lambda c: max(c.sglang.cuda_graph_bs or [0]) or c.sglang.cuda_graph_max_bs
    ),
    of(Engine.dispatch).constant("round_robin"),
    of.either(
        of(Engine.max_running_sequences, when=lambda c: c.on_vllm).same(Vllm.max_num_seqs),
        of(Engine.max_running_sequences).same(Sglang.max_running_requests),
    ),
    of.either(
        of(Engine.gpu_memory_utilization, when=lambda c: c.on_vllm).same(Vllm.gpu_memory_utilization),
        of(Engine.gpu_memory_utilization).same(Sglang.mem_fraction_static),
    ),
    of.either(
        of(Engine.cuda_graphs, when=lambda c: c.on_vllm).opposite(Vllm.enforce_eager),
        of(Engine.cuda_graphs).opposite(Sglang.disable_cuda_graph),
    ),
    # Off unless asked for: cli_args.py:1656, 1746.
    of.either(
        of(Engine.prefix_caching, when=lambda c: c.on_vllm).opposite(Vllm.no_enable_prefix_caching),
        of(Engine.prefix_caching).opposite(Sglang.disable_radix_cache),
    ),
    of(Engine.overlap_scheduling, when=lambda c: not c.on_vllm).rule(
        lambda c: False if c.sglang.disable_overlap_schedule else None,
        lambda _, value: [Sglang.disable_overlap_schedule.to(not value)],
    ),
    of.either(
        # Engines serve the checkpoint that training begins with, in its own precision.
        of(Engine.weight_precision, when=lambda c: c.served_fp8).constant("fp8_block"),
        of(Engine.weight_precision, when=lambda c: c.on_vllm).words(
            Vllm.quantization, ("fp8*", "fp8_block"), *INT4, other="bf16"
        ),
        of(Engine.weight_precision).words(Sglang.quantization, ("fp8*", "fp8_block"), *INT4, other="bf16"),
    ),
    of(Trainer.backend).rule(
        lambda c: "megatron" if c.megatron else "fsdp", lambda c, value: _training(replace(c.train, backend=value))
    ),
    of(Trainer.tensor_parallel).rule(lambda c: c.train.t, lambda c, value: _training(replace(c.train, t=value))),
    of(Trainer.pipeline_parallel).rule(lambda c: c.train.p, lambda c, value: _training(replace(c.train, p=value))),
    of(Trainer.context_parallel).rule(lambda c: c.train.c, lambda c, value: _training(replace(c.train, c=value))),
    of(Trainer.expert_parallel).rule(lambda c: c.train.e, lambda c, value: _training(replace(c.train, e=value))),
    of(Trainer.expert_tensor_parallel, when=lambda c: c.megatron).rule(
        lambda c: c.train.x, lambda c, value: _training(replace(c.train, x=value))
    ),
    of(Trainer.precision).rule(lambda c: "fp8" if c.fp8 else "bf16", _set_precision),
    of(Trainer.global_batch_samples).rule(
        lambda c: c.minibatch, lambda c, value: [Actor.ppo_n_minibatches.to(c.samples // value)]
    ),
    of.under(Actor.use_lora, of(Trainer.lora_rank).same(Actor.lora_rank)),
    # Engines apply it: adapters alone are sent (trainer/rl_trainer.py:311-333, infra/remote_inf_engine.py:799).
    of(Engine.lora_rank, when=lambda c: c.actor.use_lora).rule(lambda c: c.actor.lora_rank),
    of(Trainer.flash_attention_2).words(
        Actor.attn_impl, ("*flash_attention_[34]*", False), ("*flash-attn[34]*", False), ("*", None)
    ),
    of(Trainer.critic).rule(lambda c: c.critic is not None),
    of(Trainer.sequence_packing).constant(True),
    of(Trainer.micro_batch_tokens).by(Actor.max_tokens_per_mb, _micro_batch_tokens),
    of(Trainer.recompute).cases(
        Case("none", [Actor.gradient_checkpointing.holds(False)], when=lambda c: not c.bridged),
        Case("full", [Actor.gradient_checkpointing.holds(True)], when=lambda c: not c.megatron and not c.on_archon),
        Case("full", [Megatron.recompute_granularity.holds("full")], CHECKPOINTS, lambda c: c.megatron),
        Case("selective", [Megatron.recompute_granularity.holds("selective")], CHECKPOINTS, lambda c: c.megatron),
        Case("none", [Megatron.recompute_granularity.holds(None)], when=lambda c: c.megatron),
        Case("full", [Archon.ac_mode.holds("full")], CHECKPOINTS, lambda c: c.on_archon),
        Case("none", [Archon.ac_mode.holds("none")], CHECKPOINTS, lambda c: c.on_archon),
        Case("selective", [Archon.ac_mode.holds("selective", "memory_budget")], CHECKPOINTS, lambda c: c.on_archon),
    ),
    of(Trainer.recompute_modules).rule(
        _recompute_modules, lambda c, value: [Megatron.recompute_modules.to(list(value))] if c.megatron else []
    ),
    of(Trainer.gradient_overlap, when=lambda c: c.megatron).same(Megatron.overlap_grad_reduce),
    of.either(
        of(Trainer.gradient_precision, when=lambda c: c.megatron).switched(
            Megatron.grad_reduce_in_fp32, "fp32", "bf16"
        ),
        of(Trainer.gradient_precision, when=lambda c: not c.on_archon).words(
            Actor.grad_reduce_dtype, ("bfloat16", "bf16"), ("float32", "fp32"), other="fp32"
        ),
    ),
    # With an adapter there is none: engine/megatron_engine.py:1276-1280.
    of(Trainer.zero_stage, when=lambda c: c.megatron).rule(
        lambda c: None if c.mcore.use_distributed_optimizer and not c.actor.use_lora else 0
    ),
    of(Trainer.fp8_parameter_gather, when=lambda c: c.megatron and c.fp8).same(Megatron.fp8_param_gather),
    of(Trainer.virtual_stages).by(Megatron.virtual_pipeline_parallel_size, _virtual_stages),
    of(Trainer.optimizer_bytes_per_parameter).rule(_optimizer_bytes),
    of(Trainer.optimizer_on_host).rule(
        _on_host, lambda c, value: [Actor.fsdp_on_host.to(value)][: not c.megatron and not c.on_archon]
    ),
    of(Trainer.optimizer_step).rule(lambda c: "device" if _on_host(c) and c.actor.step_on_device else None),
    of(Trainer.logits_bytes, when=lambda c: not c.megatron).constant(4.0),
    of(Trainer.policy_logprobs).rule(_policy_logprobs, _set_policy_logprobs),
    of(Trainer.reference_logprobs).rule(lambda c: c.reference is not None and c.actor.kl_ctl > 0),
)


def _facts(c: Areal) -> Facts:
    return Facts(
        gpus_per_node=c.n_gpus_per_node,
        prompt_cap=c.prompt_cap,
        response_cap=min(c.cap, c.gconfig.max_new_tokens),
        turns=c.turns,
        pools=areal_teacher(c.r, c.taught.d, c.taught.t, c.taught.p, c.taught.c),
    )


def _assumptions(c: Areal) -> Iterator[Assumption]:
    if not c.agent and not c.prompt:
        yield Assumption(
            "No key caps prompts; 1,024 tokens are left for them beside the response.", [Workload.max_sequence_tokens]
        )
    if c.saves_some:
        yield Assumption(
            "Archon computes every second product again (ac_mode); memory counts norms and MLPs as computed again, "
            "time the attention.",
            [Trainer.recompute, Trainer.recompute_modules],
        )
    if c.r.text("teacher.path") and c.asynchronous:
        yield Assumption(
            "The teacher works beside the step before; AReaL's trainer waits for its log-probs instead.", ["pools"]
        )


FRAMEWORK = of.framework(
    "areal",
    RULES,
    _facts,
    _assumptions,
    borrowed="AReaL",
    model=Actor.path,
    node_size=Areal.n_gpus_per_node,
    shipped={"areal": ["areal"]},
    entry={r"(^|/)(?!.*(sft|dpo|rw|eval))\w+\.py$": {}},
    begin={Rollout.backend.key: "sglang:d1t1p1", Actor.backend.key: "fsdp:d1t1p1"},
)
