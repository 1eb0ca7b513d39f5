"""verl's configurations (verl.trainer.main_ppo and its asynchronous trainers): keys and meaning at 1dda039b9."""

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
from rlsim.readers.frameworks.verl_loop import LOOP_ROWS, MINI, SAMPLES, fully_async, mode

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.ref.", "actor_rollout_ref.rollout."
MODEL, MTP = "actor_rollout_ref.model.", "actor_rollout_ref.model.mtp."
MEGATRON = f"{ACTOR}megatron."
VLLM_DRAFTS = f"{ROLLOUT}engine_kwargs.vllm.speculative_config."
SGLANG_DRAFTS = f"{ROLLOUT}engine_kwargs.sglang."

BASES = Bases(
    shipped={
        "ppo_trainer": ("verl",),
        "ppo_megatron_trainer": ("verl", "verl_megatron"),
        "fully_async_ppo_trainer": ("verl", "verl_fully_async"),
        "fully_async_ppo_megatron_trainer": ("verl", "verl_megatron", "verl_fully_async"),
    },
    start=("verl",),
    hydra=True,
)


CAP = sequence_cap("data.max_prompt_length", "data.max_response_length")
REFERENCE = either("trainer.reference_logprobs", f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward", default=False)


def megatron(r: Reader) -> bool:
    """Whether Megatron-Core trains; else FSDP (veOmni and TorchTitan shard as FSDP2 does)."""
    return r.text(f"{ACTOR}strategy", "fsdp") == "megatron"


def _layout(name: str, target: str) -> Row:
    return layout(target, f"{MEGATRON}{name}", f"{ACTOR}strategy", megatron)


def _context_key(r: Reader) -> str:
    return f"{MEGATRON}context_parallel_size" if megatron(r) else f"{ACTOR}ulysses_sequence_parallel_size"


def _context(r: Reader) -> int:
    return r.integer(_context_key(r), 1)


def _cap(r: Reader) -> int:
    found: int = CAP.read(r)
    return found


def _capacity(samples: str, flag_key: str, tokens: str, target: str) -> Row:
    """Tokens of a micro-batch: the stated limit of a GPU, times the GPUs that share a sequence; or samples of it.

    A fixed number of samples without padding counts as its longest ones.
    """

    def read(r: Reader) -> int | None:
        if r.flag(flag_key):
            return r.integer(tokens, 16384) * _context(r)
        if not r.flag(f"{MODEL}use_remove_padding"):
            return None
        return r.integer(samples, 1) * _cap(r)

    def write(value: int, r: Reader) -> Changes:
        if not r.flag(f"{MODEL}use_remove_padding") and not r.flag(flag_key):
            return {}
        if not r.flag(flag_key) and value % _cap(r) == 0:
            return {samples: value // _cap(r)}
        return {flag_key: True, tokens: -(-value // _context(r))}

    return Row(target, (samples, flag_key, tokens, f"{MODEL}use_remove_padding"), read, write)


def _packing(r: Reader) -> bool:
    return r.flag(f"{MODEL}use_remove_padding") or r.flag(f"{ACTOR}use_dynamic_bsz")


def _write_packing(value: bool, r: Reader) -> Changes:
    return {f"{MODEL}use_remove_padding": value, **({} if value else {f"{ACTOR}use_dynamic_bsz": False})}


def _policy_logprobs(r: Reader) -> bool:
    return not (r.flag(f"{ROLLOUT}calculate_log_probs") and r.flag(f"{ACTOR}use_rollout_log_probs"))


def _write_policy_logprobs(value: bool, r: Reader) -> Changes:
    out: Changes = {f"{ACTOR}use_rollout_log_probs": not value}
    return out if value else {**out, f"{ROLLOUT}calculate_log_probs": True}


def _critic(r: Reader) -> bool:
    stated = r.value("critic.enable")
    return r.flag("critic.enable") if stated is not None else r.text("algorithm.adv_estimator", "gae") == "gae"


def _recompute(r: Reader) -> str:
    if not megatron(r):
        return "full" if r.flag(f"{MODEL}enable_gradient_checkpointing") else "none"
    given = r.text(f"{MEGATRON}override_transformer_config.recompute_granularity")
    return {"full": "full", "selective": "selective"}.get(given, "none")


def _write_recompute(value: str, r: Reader) -> Changes:
    if megatron(r):
        key = f"{MEGATRON}override_transformer_config.recompute_granularity"
        return {key: None if value == "none" else value}
    return {} if value == "selective" else {f"{MODEL}enable_gradient_checkpointing": value == "full"}


_FSDP_OFFLOADS = tuple(f"{ACTOR}fsdp_config.{part}_offload" for part in ("param", "optimizer"))
_MEGATRON_OFFLOADS = tuple(f"{MEGATRON}{part}_offload" for part in ("param", "grad", "optimizer"))


def _offloads(r: Reader) -> tuple[str, ...]:
    return _MEGATRON_OFFLOADS if megatron(r) else _FSDP_OFFLOADS


def _replica(r: Reader) -> tuple[int, int]:
    """GPUs of a stage of a replica and copies of its attention."""
    copies = r.integer(f"{ROLLOUT}data_parallel_size", 1)
    return r.integer(f"{ROLLOUT}tensor_model_parallel_size", 1) * copies, copies


def _write_tensor(value: int, r: Reader) -> Changes:
    copies = _replica(r)[1]
    return {f"{ROLLOUT}tensor_model_parallel_size": value // copies} if value % copies == 0 else {}


def _write_copies(value: int, r: Reader) -> Changes:
    total = _replica(r)[0]
    if total % value:
        return {}
    return {f"{ROLLOUT}data_parallel_size": value, f"{ROLLOUT}tensor_model_parallel_size": total // value}


def _precision(r: Reader) -> str:
    return "fp8_block" if r.text(f"{ROLLOUT}quantization").startswith("fp8") else "bf16"


def _dispatch(r: Reader) -> str:
    return "static" if r.text(f"{ROLLOUT}mode", "async") == "sync" else "least_loaded"


def _write_dispatch(value: str, r: Reader) -> Changes:
    return {f"{ROLLOUT}mode": "sync" if value == "static" else "async"} if value in ("static", "least_loaded") else {}


def _mtp(r: Reader) -> bool:
    return r.flag(f"{MTP}enable") and r.flag(f"{MTP}enable_rollout")


_SGLANG_METHODS = {"EAGLE3": "eagle3", "EAGLE": "mtp", "NEXTN": "mtp", "STANDALONE": "draft_model"}
_VLLM_METHODS = {"eagle": "eagle3", "deepseek_mtp": "mtp", "qwen3_next_mtp": "mtp"}


def _method(r: Reader) -> str | None:
    if _mtp(r):
        return "mtp"
    if r.text(f"{ROLLOUT}name", "vllm") == "sglang":
        given = r.text(f"{SGLANG_DRAFTS}speculative_algorithm")
        return _SGLANG_METHODS.get(given.upper(), given.lower() or None)
    given = r.text(f"{VLLM_DRAFTS}method")
    fallback = "draft_model" if r.value(f"{VLLM_DRAFTS}model") else None
    return _VLLM_METHODS.get(given, given) or fallback


def _length_key(r: Reader) -> str:
    """Where the drafted tokens stand. SGLang counts steps; its num_draft_tokens holds the verified one too."""
    sglang = r.text(f"{ROLLOUT}name", "vllm") == "sglang"
    if _mtp(r):
        return f"{MTP}speculative_num_steps" if sglang else f"{MTP}num_speculative_tokens"
    return f"{SGLANG_DRAFTS}speculative_num_steps" if sglang else f"{VLLM_DRAFTS}num_speculative_tokens"


def _write_method(value: str, r: Reader) -> Changes:
    if value == "none":
        return {f"{MTP}enable_rollout": False, f"{VLLM_DRAFTS}method": None, f"{VLLM_DRAFTS}model": None}
    if value == "mtp":
        return {f"{MTP}enable": True, f"{MTP}enable_rollout": True}
    out: Changes = {f"{MTP}enable_rollout": False}
    if r.text(f"{ROLLOUT}name", "vllm") == "sglang":
        word = next((left for left, right in _SGLANG_METHODS.items() if right == value), None)
        return {} if word is None else {**out, f"{SGLANG_DRAFTS}speculative_algorithm": word}
    return {**out, f"{VLLM_DRAFTS}method": value}


_BACKENDS = {"nccl": "nccl_broadcast", "nixl": "rdma", "delta_sharded": "delta_sharded"}


def _transport(r: Reader) -> str:
    return _BACKENDS.get(r.text(f"{ROLLOUT}checkpoint_engine.backend", "naive"), "auto")


def _write_transport(value: str, r: Reader) -> Changes:
    word = next((left for left, right in _BACKENDS.items() if right == value), "naive" if value == "auto" else None)
    return {} if word is None else {f"{ROLLOUT}checkpoint_engine.backend": word}


def _oversampling(r: Reader) -> float | None:
    generated, trained = r.integer("data.gen_batch_size"), r.integer("data.train_batch_size")
    return generated / trained if not fully_async(r) and generated > trained > 0 else None


def _write_strategy(value: str, r: Reader) -> Changes:
    return {f"{ACTOR}strategy": "megatron" if value == "megatron" else "fsdp"}


def _write_quantization(value: Any, r: Reader) -> Changes:
    return {f"{ROLLOUT}quantization": None if value == "bf16" else "fp8"} if value in ("bf16", "fp8_block") else {}


def _idle(r: Reader) -> tuple[str, ...]:
    trainer = f"{ACTOR}fsdp_config" if megatron(r) else MEGATRON.rstrip(".")
    unused = [(_critic(r), "critic"), (REFERENCE.read(r), REF.rstrip("."))]
    return (trainer, *(section for used, section in unused if not used))


_TRIES = "algorithm.filter_groups.max_num_gen_batches"

ROWS = (
    integer("workload.generations_per_prompt", SAMPLES),
    CAP,
    Row("workload.generated_batch_factor", ("data.gen_batch_size", "data.train_batch_size"), _oversampling,
        lambda v, r: {"data.gen_batch_size": round(v * r.integer("data.train_batch_size"))}),
    Row("workload.max_rollouts_per_step", ("algorithm.filter_groups.max_num_gen_batches",),
        lambda r: r.integer(_TRIES) or None if r.flag("algorithm.filter_groups.enable") else None,
        lambda v, r: {"algorithm.filter_groups.enable": True, _TRIES: v}),
    *LOOP_ROWS,
    choice("engine.name", f"{ROLLOUT}name", {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}),
    Row("engine.tensor_parallel",
        (f"{ROLLOUT}tensor_model_parallel_size", f"{ROLLOUT}data_parallel_size"), lambda r: _replica(r)[0],
        _write_tensor),
    Row("engine.attention_data_parallel", (f"{ROLLOUT}data_parallel_size",), lambda r: _replica(r)[1], _write_copies),
    integer("engine.pipeline_parallel", f"{ROLLOUT}pipeline_model_parallel_size"),
    integer("engine.expert_parallel", f"{ROLLOUT}expert_parallel_size"),
    Row("engine.weight_precision", (f"{ROLLOUT}quantization",), _precision, _write_quantization),
    Row("engine.kv_precision", (f"{ROLLOUT}engine_kwargs.vllm.kv_cache_dtype",),
        lambda r: "fp8" if r.text(f"{ROLLOUT}engine_kwargs.vllm.kv_cache_dtype").startswith("fp8") else "bf16",
        lambda v, r: {f"{ROLLOUT}engine_kwargs.vllm.kv_cache_dtype": "auto" if v == "bf16" else v}),
    Row("engine.dispatch", (f"{ROLLOUT}mode",), _dispatch,
        _write_dispatch),
    integer("engine.max_running_sequences", f"{ROLLOUT}max_num_seqs"),
    integer("engine.max_batched_tokens", f"{ROLLOUT}max_num_batched_tokens"),
    number("engine.gpu_memory_utilization", f"{ROLLOUT}gpu_memory_utilization"),
    flag("engine.cuda_graphs", f"{ROLLOUT}enforce_eager", inverted=True),
    flag("engine.prefix_caching", f"{ROLLOUT}enable_prefix_caching"),
    flag("engine.chunked_prefill", f"{ROLLOUT}enable_chunked_prefill"),
    Row("speculation.method",
        (f"{MTP}enable", f"{MTP}enable_rollout", f"{MTP}method", f"{VLLM_DRAFTS}method", f"{VLLM_DRAFTS}model",
         f"{SGLANG_DRAFTS}speculative_algorithm", f"{MTP}speculative_algorithm"), _method, _write_method),
    Row("speculation.draft_length",
        (f"{MTP}num_speculative_tokens", f"{MTP}speculative_num_steps", f"{VLLM_DRAFTS}num_speculative_tokens",
         f"{SGLANG_DRAFTS}speculative_num_steps"),
        lambda r: r.integer(_length_key(r)) or None, lambda v, r: {_length_key(r): v}),
    Row("trainer.backend", (f"{ACTOR}strategy",), lambda r: "megatron" if megatron(r) else "fsdp", _write_strategy),
    _layout("tensor_model_parallel_size", "trainer.tensor_parallel"),
    _layout("pipeline_model_parallel_size", "trainer.pipeline_parallel"),
    _layout("expert_model_parallel_size", "trainer.expert_parallel"),
    Row("trainer.context_parallel",
        (f"{MEGATRON}context_parallel_size", f"{ACTOR}ulysses_sequence_parallel_size"), _context,
        lambda v, r: {_context_key(r): v}),
    Row("trainer.virtual_stages", (f"{MEGATRON}virtual_pipeline_model_parallel_size",),
        lambda r: r.integer(f"{MEGATRON}virtual_pipeline_model_parallel_size", 1) if megatron(r) else 1,
        lambda v, r: {f"{MEGATRON}virtual_pipeline_model_parallel_size": None if v == 1 else v} if megatron(r) else {}),
    Row("trainer.lora_rank", (f"{MODEL}lora_rank",), lambda r: r.integer(f"{MODEL}lora_rank") or None,
        lambda v, r: {f"{MODEL}lora_rank": v or 0}),
    product("trainer.global_batch_samples", (MINI, SAMPLES), SAMPLES),
    integer("trainer.epochs", f"{ACTOR}ppo_epochs"),
    Row("trainer.critic", ("critic.enable", "algorithm.adv_estimator"), _critic,
        lambda v, r: {"critic.enable": v}),
    Row("trainer.sequence_packing", (f"{MODEL}use_remove_padding", f"{ACTOR}use_dynamic_bsz"), _packing,
        _write_packing),
    _capacity(f"{ACTOR}ppo_micro_batch_size_per_gpu", f"{ACTOR}use_dynamic_bsz", f"{ACTOR}ppo_max_token_len_per_gpu",
              "trainer.micro_batch_tokens"),
    _capacity(f"{ROLLOUT}log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}log_prob_use_dynamic_bsz",
              f"{ROLLOUT}log_prob_max_token_len_per_gpu", "trainer.logprob_micro_batch_tokens"),
    Row("trainer.micro_batch_samples", (f"{ACTOR}ppo_micro_batch_size_per_gpu",),
        lambda r: None if _packing(r) else r.integer(f"{ACTOR}ppo_micro_batch_size_per_gpu", 1),
        lambda v, r: {} if _packing(r) else {f"{ACTOR}ppo_micro_batch_size_per_gpu": v}),
    Row("trainer.rank_balance", ("trainer.balance_batch",),
        lambda r: None if r.flag("trainer.balance_batch", True) else "samples",
        lambda v, r: {"trainer.balance_batch": v != "samples"}),
    Row("trainer.recompute",
        (f"{MODEL}enable_gradient_checkpointing", f"{MEGATRON}override_transformer_config.recompute_granularity"),
        _recompute, _write_recompute),
    Row("trainer.mtp_layers", (f"{MTP}enable", f"{MTP}enable_train"),
        lambda r: 1 if r.flag(f"{MTP}enable") and r.flag(f"{MTP}enable_train") else 0,
        lambda v, r: {f"{MTP}enable_train": False} if not v else {f"{MTP}enable": True, f"{MTP}enable_train": True}),
    Row("trainer.policy_logprobs", (f"{ROLLOUT}calculate_log_probs", f"{ACTOR}use_rollout_log_probs"),
        _policy_logprobs, _write_policy_logprobs),
    REFERENCE,
    Row("trainer.offload", (*_FSDP_OFFLOADS, *_MEGATRON_OFFLOADS),
        lambda r: any(list(map(r.flag, _offloads(r)))), lambda v, r: dict.fromkeys(_offloads(r), v)),
    Row("loop.refit_method", (f"{ROLLOUT}checkpoint_engine.backend",), _transport, _write_transport),
)  # fmt: skip

VERL = Framework(
    "verl",
    ROWS,
    *unused_keys("verl"),
    relevant_elsewhere=(
        f"{MODEL}path", "trainer.n_gpus_per_node", f"{ROLLOUT}multi_turn.enable", f"{ROLLOUT}max_model_len",
        f"{ROLLOUT}multi_turn.max_user_turns", f"{ROLLOUT}multi_turn.max_assistant_turns",
        "algorithm.filter_groups.enable",
    ),
    idle=_idle,
)  # fmt: skip


_ASSUMED = {
    "one_step_off": (
        "A rollout pool of its own without async_training is one step off: a batch ahead, whose end is awaited before "
        "the weights move, as slime's train_async does it.",
        ("loop.style", "loop.policy_lag"),
    ),
    "separate_async": (
        "The V1 trainer's generation is one batch ahead; its configuration bounds the age of samples, not that.",
        ("loop.policy_lag",),
    ),
    "colocate_async": (
        "The V1 trainer's generation is one batch ahead and stops while the trainer works.",
        ("loop.policy_lag", "loop.overlap"),
    ),
}


def verl_facts(r: Reader, keys: Mapping[str, Any]) -> Facts:
    """Facts of a configuration whose rows gave ``keys``."""
    prompt, response = r.integer("data.max_prompt_length", 1), r.integer("data.max_response_length", 1)
    assumptions: list[tuple[str, tuple[str, ...]]] = [_ASSUMED[mode(r)]] if mode(r) in _ASSUMED else []
    if r.flag(f"{MODEL}use_remove_padding") and not r.flag(f"{ACTOR}use_dynamic_bsz"):
        text = "A micro-batch of a fixed number of samples without padding counts as that many of the longest, packed."
        assumptions.append((text, ("trainer.micro_batch_tokens", "trainer.logprob_micro_batch_tokens")))
    turns = 1
    if r.flag(f"{ROLLOUT}multi_turn.enable"):
        most = [r.integer(f"{ROLLOUT}multi_turn.max_{who}_turns") for who in ("assistant", "user")]
        turns = min((n for n in (most[0], most[1] + 1 if most[1] else 0) if n), default=8)
    return Facts(
        model=r.text(f"{MODEL}path"),
        model_key=f"{MODEL}path",
        gpus_per_node=r.integer("trainer.n_gpus_per_node", 8),
        prompt_cap=prompt,
        response_cap=min(response, r.integer(f"{ROLLOUT}max_model_len") or prompt + response),
        turns=turns,
        drafter=r.text(f"{VLLM_DRAFTS}model"),
        dynamic=r.flag("algorithm.filter_groups.enable"),
        settings=(("stack", "verl"), ("loop.refit_framework", "verl_megatron" if megatron(r) else "verl")),
        assumptions=tuple(assumptions),
    )
