"""Six known processes of agents, and their draws in the form in which verifiers writes traces."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rlsim.schema.workload import Workload
from rlsim.workload.batches import draw_rollouts
from rlsim.workload.lengths import Place

LENGTHS = {"kind": "lognormal", "mean_tokens": 150, "log_sigma": 0.8}
ANSWERS = {"kind": "lognormal", "mean_tokens": 180, "log_sigma": 1.0}
TIMES = {"kind": "lognormal", "mean_s": 4, "log_sigma": 1.0}
TURNS = {"kind": "lognormal", "mean_turns": 8, "log_sigma": 0.5}
PLAIN: dict[str, Any] = {"turns": TURNS, "observation_tokens": ANSWERS, "environment_s": TIMES}
# Two kinds of tools: nine in ten calls take about a second, the others a minute.
TWO_TOOLS = {"kind": "quantiles", "quantiles": [0, 0.45, 0.9, 0.91, 1], "seconds": [0.2, 1, 2, 40, 80]}
HARD = {"turns_length_correlation": 0.8, "environment_length_correlation": 0.7, "turns_group_correlation": 0.6,
        "environment_group_correlation": 0.4}  # fmt: skip
PROCESSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "independent": ({"group_correlation": 0.0}, PLAIN),
    "alike within prompts": (
        {"group_correlation": 0.5},
        {**PLAIN, "environment_group_correlation": 0.4, "environment_trajectory_correlation": 0.3},
    ),
    "hard prompts have more of all": ({"group_correlation": 0.4}, {**PLAIN, **HARD}),
    "heavy tails": (
        {"response_tokens": {**LENGTHS, "log_sigma": 1.4}},
        {**PLAIN, "environment_s": {"kind": "lognormal", "mean_s": 4, "log_sigma": 1.8},
         "environment_trajectory_correlation": 0.3, "response_trajectory_correlation": 0.3},
    ),
    "cut by turns and context": (
        {"max_sequence_tokens": 6000},
        {**PLAIN, "turns": {**TURNS, "mean_turns": 12, "log_sigma": 0.7}, "max_turns": 30},
    ),
    "two tools": ({}, {**PLAIN, "environment_s": TWO_TOOLS, "environment_trajectory_correlation": 0.4}),
}  # fmt: skip
"""By name: keys of workload and of workload.agent."""


def workload(name: str, prompts: int = 64, size: int = 8) -> Workload:
    """A known process."""
    keys, agent = PROCESSES[name]
    base = {"prompts_per_step": prompts, "generations_per_prompt": size, "response_tokens": LENGTHS,
            "prompt_tokens": {"kind": "lognormal", "mean_tokens": 800, "log_sigma": 0.4},
            "max_sequence_tokens": 65536, "agent": agent}  # fmt: skip
    return Workload.model_validate({**base, **keys})


def written(path: Path, given: Workload, seed: int = 1) -> Path:
    """Draws of a process as traces of verifiers; engines take 20 ms a token, at different hours."""
    one = draw_rollouts(given, Place(seed, 0, 0))[0]
    # No key moves what another one draws: without a cap of the context the same trajectories go on to their ends.
    wanted = draw_rollouts(given.model_copy(update={"max_sequence_tokens": 10_000_000}), Place(seed, 0, 0))[0]
    most_turns = 1000 if given.agent is None else given.agent.max_turns
    goes_on = np.diff(one.turns.first) < np.diff(wanted.turns.first)
    rows = []
    for place in range(one.batch.samples):
        clock, calls = 1000.0 * place, []
        prompt = int(one.batch.prompt_tokens[place])
        for turn in range(one.turns.first[place], one.turns.first[place + 1]):
            usage = {"prompt_tokens": prompt + int(one.turns.history_tokens[turn]),
                     "completion_tokens": int(one.turns.response_tokens[turn])}  # fmt: skip
            span = {"start": clock, "end": clock + 0.02 * usage["completion_tokens"]}
            calls.append({"usage": usage, "time": span, "finish_reason": "stop"})
            clock = span["end"] + float(one.turns.environment_s[turn])
        total = int(one.batch.total_tokens[place])
        stopped = "max_total_tokens" if goes_on[place] or total >= given.max_sequence_tokens else "done"
        stopped = "max_turns" if len(calls) == most_turns else stopped
        rows.append({"calls": calls, "nodes": [], "task": {"key": str(one.batch.group[place])}, "ok": True,
                     "stop_condition": stopped})  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
