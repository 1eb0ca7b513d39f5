"""Which metrics of a framework are which phase of a step.

NeMo-RL 0.7 names its timers ``timing/train/*`` (nemo_rl/algorithms/grpo.py), verl ``timing_s/*``
(verl/trainer/ppo/ray_trainer.py), MLPerf's GRPO reference and tables of rlsim by their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rlsim.files.yaml import lists_beside

Quantity = Literal[
    "step", "data", "generation", "exposed_generation", "logprob", "train", "refit",
    "prompt_tokens", "response_tokens", "acceptance_length",
]  # fmt: skip
PHASES: tuple[Quantity, ...] = ("step", "generation", "exposed_generation", "logprob", "train", "refit", "data")
FACTS: tuple[Quantity, ...] = ("prompt_tokens", "response_tokens", "acceptance_length")
NAMINGS: Sequence[Sequence[str]] = lists_beside(__file__)["namings"]
"""A quantity and the metrics of a step that add up to it, in order of preference: the first whose first metric is there
tells the quantity."""


def found_namings(metrics: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The metrics of a log that make up each quantity; those of seconds may end in ``_s``."""
    seconds = {name.removesuffix("_s"): name for name in metrics if name.endswith("_time_s")}
    present = {name: name for name in metrics} | seconds
    out: dict[str, tuple[str, ...]] = {}
    for quantity, *names in NAMINGS:
        if names[0] in present and quantity not in out:
            out[quantity] = tuple(dict.fromkeys(present[name] for name in names if name in present))
    return out
