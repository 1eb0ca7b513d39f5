"""What a verl configuration says beside its rows: model, caps, turns, and what the mapping assumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.rows import Reader
from rlsim.readers.frameworks.verl import ACTOR, MODEL, ROLLOUT, VLLM_DRAFTS, megatron
from rlsim.readers.frameworks.verl_loop import mode

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
