"""What of verl's configurations no table can say (keys/verl.yaml): verl.trainer.main_ppo and its asynchronous trainers.

Keys and meaning at 1dda039b9.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlsim.readers.frameworks import verl_loop
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.framework import framework_of
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.rows import Changes, Functions
from rlsim.readers.frameworks.verl_loop import ROLLOUT, fully_async

ACTOR, MODEL, MTP = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "actor_rollout_ref.model.mtp."
MEGATRON = f"{ACTOR}megatron."
VIRTUAL_STAGES = f"{MEGATRON}virtual_pipeline_model_parallel_size"
VLLM_DRAFTS = f"{ROLLOUT}engine_kwargs.vllm.speculative_config."
SGLANG_DRAFTS = f"{ROLLOUT}engine_kwargs.sglang."
SGLANG_METHODS = {"EAGLE3": "eagle3", "EAGLE": "mtp", "NEXTN": "mtp", "STANDALONE": "draft_model"}
VLLM_METHODS = {"eagle": "eagle3", "deepseek_mtp": "mtp", "qwen3_next_mtp": "mtp"}
ULYSSES = (f"{ACTOR}ulysses_sequence_parallel_size", f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size")
"""The older of both counts where it is above 1 (verl/workers/config/actor.py:330)."""
TEXTS = ("data.max_prompt_length", "data.max_response_length")


def megatron(r: Reader) -> bool:
    """Whether Megatron-Core trains; else FSDP (veOmni and TorchTitan shard as FSDP2 does)."""
    return r.text(f"{ACTOR}strategy", "fsdp") == "megatron"


def _sglang(r: Reader) -> bool:
    return r.text(f"{ROLLOUT}name", "vllm") == "sglang"


def _capacity(samples: str, flag_key: str, tokens: str) -> Functions:
    """Tokens of a micro-batch: the stated limit of a GPU, times the GPUs that share a sequence; or samples of it.

    A fixed number of samples without padding has mean ones, and at least one of the longest.
    """

    def cap(r: Reader) -> int:
        return sum(r.integer(key, 1) for key in TEXTS)

    def sharing(r: Reader) -> int:
        names = (f"{MEGATRON}context_parallel_size",) if megatron(r) else ULYSSES
        return max(r.integer(name, 1) for name in names)

    def read(r: Reader) -> int | None:
        if r.flag(flag_key):
            return max(r.integer(tokens, 16384) * sharing(r), int(r.mean_tokens or 0) + 1)
        return r.real_tokens(r.integer(samples, 1), cap(r)) if r.flag(f"{MODEL}use_remove_padding") else None

    def write(value: int, r: Reader) -> Changes:
        if not r.flag(flag_key):
            if not r.flag(f"{MODEL}use_remove_padding"):
                return {}
            fitting = max(1, round(value / (r.mean_tokens or cap(r))))
            if r.real_tokens(fitting, cap(r)) == value:
                return {samples: fitting}
        return {flag_key: True, tokens: -(-value // sharing(r))}

    return read, write


def _packing(r: Reader) -> bool:
    return r.flag(f"{MODEL}use_remove_padding") or r.flag(f"{ACTOR}use_dynamic_bsz")


def _offloads(r: Reader) -> list[str]:
    parts = ("param", "grad", "optimizer") if megatron(r) else ("param", "optimizer")
    return [f"{MEGATRON if megatron(r) else f'{ACTOR}fsdp_config.'}{part}_offload" for part in parts]


def _mtp(r: Reader) -> bool:
    return r.flag(f"{MTP}enable") and r.flag(f"{MTP}enable_rollout")


def _method(r: Reader) -> str | None:
    if _mtp(r):
        return "mtp"
    if _sglang(r):
        given = r.text(f"{SGLANG_DRAFTS}speculative_algorithm")
        return SGLANG_METHODS.get(given.upper(), given.lower() or None)
    given = r.text(f"{VLLM_DRAFTS}method")
    fallback = "draft_model" if r.value(f"{VLLM_DRAFTS}model") else None
    return VLLM_METHODS.get(given, given) or fallback


def _write_method(value: str, r: Reader) -> Changes:
    if value == "none":
        return {f"{MTP}enable_rollout": False, f"{VLLM_DRAFTS}method": None, f"{VLLM_DRAFTS}model": None}
    if value == "mtp":
        return {f"{MTP}enable": True, f"{MTP}enable_rollout": True}
    out: Changes = {f"{MTP}enable_rollout": False}
    if _sglang(r):
        word = next((left for left, right in SGLANG_METHODS.items() if right == value), None)
        return {} if word is None else {**out, f"{SGLANG_DRAFTS}speculative_algorithm": word}
    return {**out, f"{VLLM_DRAFTS}method": value}


def _length_key(r: Reader) -> str:
    """Where the drafted tokens stand. SGLang counts steps; its num_draft_tokens holds the verified one too."""
    section = MTP if _mtp(r) else SGLANG_DRAFTS if _sglang(r) else VLLM_DRAFTS
    return f"{section}{'speculative_num_steps' if _sglang(r) else 'num_speculative_tokens'}"


def _oversampling(r: Reader) -> float | None:
    generated, trained = r.integer("data.gen_batch_size"), r.integer("data.train_batch_size")
    return generated / trained if not fully_async(r) and generated > trained > 0 else None


FUNCTIONS: Mapping[str, Functions] = {
    **verl_loop.FUNCTIONS,
    "workload.generated_batch_factor": (
        _oversampling,
        lambda value, r: {"data.gen_batch_size": round(value * r.integer("data.train_batch_size"))},
    ),
    "speculation.method": (_method, _write_method),
    "speculation.draft_length": (
        lambda r: r.integer(_length_key(r)) or None,
        lambda value, r: {_length_key(r): value},
    ),
    "trainer.virtual_stages": (
        lambda r: r.integer(VIRTUAL_STAGES, 1) if megatron(r) else 1,
        lambda value, r: {VIRTUAL_STAGES: None if value == 1 else value} if megatron(r) else {},
    ),
    "trainer.micro_batch_tokens": _capacity(
        f"{ACTOR}ppo_micro_batch_size_per_gpu", f"{ACTOR}use_dynamic_bsz", f"{ACTOR}ppo_max_token_len_per_gpu"
    ),
    "trainer.logprob_micro_batch_tokens": _capacity(
        f"{ROLLOUT}log_prob_micro_batch_size_per_gpu",
        f"{ROLLOUT}log_prob_use_dynamic_bsz",
        f"{ROLLOUT}log_prob_max_token_len_per_gpu",
    ),
    "trainer.offload": (
        lambda r: any([r.flag(key) for key in _offloads(r)]),  # noqa: C419 - all of them count as read
        lambda value, r: dict.fromkeys(_offloads(r), value),
    ),
}


def verl_facts(r: Reader) -> Facts:
    """What a configuration says beside its rows."""
    prompt, response = (r.integer(key, 1) for key in TEXTS)
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
    )


VERL = framework_of(
    "verl",
    verl_facts,
    FUNCTIONS,
    {
        **verl_loop.TESTS,
        "megatron": megatron,
        "unpacked": lambda r: not _packing(r),
        "fixed_samples": lambda r: r.flag(f"{MODEL}use_remove_padding") and not r.flag(f"{ACTOR}use_dynamic_bsz"),
    },
)
