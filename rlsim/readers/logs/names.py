"""Which metrics of a framework are which phase of a step.

NeMo-RL 0.7 names its timers ``timing/train/*`` (nemo_rl/algorithms/grpo.py), verl ``timing_s/*``
(verl/trainer/ppo/ray_trainer.py), MLPerf's GRPO reference and tables of rlsim by their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Quantity = Literal[
    "step", "data", "generation", "exposed_generation", "logprob", "train", "refit",
    "prompt_tokens", "response_tokens", "acceptance_length",
]  # fmt: skip
PHASES: tuple[Quantity, ...] = ("step", "generation", "exposed_generation", "logprob", "train", "refit", "data")
FACTS: tuple[Quantity, ...] = ("prompt_tokens", "response_tokens", "acceptance_length")
_NEMO, _VERL = "timing/train/", "timing_s/"


@dataclass(frozen=True)
class Naming:
    """How one framework tells a quantity: metrics of a step that add up. needed: the first must be there."""

    quantity: Quantity
    metrics: tuple[str, ...]


def _naming(quantity: Quantity, *metrics: str, head: str = "") -> Naming:
    return Naming(quantity, tuple(head + name for name in metrics))


NAMINGS: tuple[Naming, ...] = (
    _naming("step", "total_step_time", head=_NEMO),
    _naming("generation", "generation", head=_NEMO),
    _naming("exposed_generation", "exposed_generation", head=_NEMO),
    _naming("logprob", "policy_and_reference_logprobs", head=_NEMO),
    _naming("train", "policy_training", "training_prep", head=_NEMO),
    _naming("refit", "weight_sync", head=_NEMO),
    # The refit of a colocated step is all that its GPUs do between the last update and the first token.
    _naming("refit", "prepare_for_generation/total", "logprob_inference_prep", head=_NEMO),
    _naming("data", "data_processing", "reward_calculation", "advantage_calculation", head=_NEMO),
    _naming("step", "step", head=_VERL),
    _naming("generation", "gen", head=_VERL),
    _naming("exposed_generation", "wait_prev_gen", head=_VERL),
    _naming("logprob", "old_log_prob", "ref", head=_VERL),
    _naming("logprob", "ref", head=_VERL),
    _naming("train", "update_actor", "update_critic", head=_VERL),
    _naming("refit", "update_weights", head=_VERL),
    _naming("refit", "param_sync", head=_VERL),
    _naming("data", "adv", "reward", head=_VERL),
    _naming("step", "train_step_time"),
    _naming("train", "policy_training_time"),
    _naming("exposed_generation", "exposed_generation_time"),
    _naming("generation", "generation_time"),
    _naming("logprob", "logprob_time"),
    _naming("refit", "weight_sync_time"),
    _naming("step", "total_step_time_s"),
    *(_naming(quantity, f"{quantity}_s") for quantity in PHASES),
    _naming("prompt_tokens", "train/mean_prompt_length"),
    _naming("prompt_tokens", "prompt_length/mean"),
    _naming("response_tokens", "train/mean_gen_tokens_per_sample"),
    _naming("response_tokens", "train/mean_total_tokens_per_sample"),
    _naming("response_tokens", "response_length/mean"),
    _naming("acceptance_length", "train/vllm/spec_acceptance_length"),
)
"""In order of preference: the first whose first metric is there tells the quantity."""


def found_namings(metrics: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The metrics of a log that make up each quantity; those of seconds may end in ``_s``."""
    present = {name: name for name in metrics} | {name.removesuffix("_s"): name for name in metrics if _seconds(name)}
    out: dict[str, tuple[str, ...]] = {}
    for naming in NAMINGS:
        if naming.metrics[0] in present and naming.quantity not in out:
            out[naming.quantity] = tuple(dict.fromkeys(present[name] for name in naming.metrics if name in present))
    return out


def _seconds(name: str) -> bool:
    return name.endswith("_time_s")
