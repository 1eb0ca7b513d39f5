"""Does what rlsim advises come true? ``python benchmarks/moves_hold.py [NAME...] [--out FILE.csv]``.

For every scenario: "Try first" of project, the first move of techniques and settings, and the best plan, each applied
through the keys that it prints and projected again. It holds where the printed mean lies in the interval of the new
projection. "Try first" is compared with the best single move that asks for keys alone, too.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rlsim.errors import RlsimError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.improve import techniques
from rlsim.planning.plan import plan
from rlsim.projection.project import project
from rlsim.results.record import Interval
from rlsim.schema.scenario import Scenario

SHIPPED = (
    "quickstart", "qwen8b_rl_zero", "qwen8b_rl_think", "qwen8b_async_lag1", "qwen235b_512", "qwen235b_2048",
    "mlperf_grpo", "verl_dapo_7b", "coding_agent_64",
)  # fmt: skip
_LAG = {"loop.mode": "async", "loop.policy_lag": 1}
_HALF = {"cluster.generation_gpus": 4, "cluster.training_gpus": 4}
_PLAIN = {"speculation.method": "none"}
_AGENT = {
    "workload.agent.turns": {"kind": "constant", "turns": 4}, "workload.response_tokens.mean_tokens": 300,
    "workload.agent.environment_s": {"kind": "lognormal", "mean_s": 3.0, "log_sigma": 0.8},
}  # fmt: skip
_SANDBOXES = {
    "engine.dispatch": "least_loaded", "workload.agent.turns": {"kind": "lognormal", "mean_turns": 6, "log_sigma": 0.7},
    "workload.agent.max_turns": 30, "workload.agent.nodes": {"count": 4, "places": 32},
    "workload.agent.start_s": {"kind": "lognormal", "mean_s": 20, "log_sigma": 0.5},
    "workload.agent.call_failure_share": 0.1, "workload.agent.calls_per_s": 40.0,
}  # fmt: skip
DRAWN: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("quickstart", {"speculation.method": "none"}),
    "a100": ("quickstart", {"hardware": "a100_sxm"}),
    "b200": ("quickstart", {"hardware": "b200_sxm"}),
    "mi300x": ("quickstart", {"hardware": "mi300x"}),
    "lag 1": ("quickstart", {**_LAG, **_HALF}),
    "lag 2 plain": ("quickstart", {"loop.mode": "async", "loop.policy_lag": 2, "speculation.method": "none", **_HALF}),
    "verl": ("quickstart", {"stack": "verl", "trainer.backend": "fsdp", "speculation.method": "none"}),
    "verl 16 GPUs, link": (
        "quickstart",
        {"stack": "verl", "cluster.num_gpus": 16, "cluster.fabric": "infiniband_8x400"},
    ),
    "slime": ("quickstart", {"stack": "slime", "engine.name": "sglang", "speculation.method": "none"}),
    "14b": ("quickstart", {"model": "qwen2.5-14b", "cluster.num_gpus": 16, "trainer.tensor_parallel": 4, **_PLAIN}),
    "32b": (
        "quickstart",
        {
            "model": "qwen3-32b",
            "cluster.num_gpus": 32,
            "engine.tensor_parallel": 2,
            "trainer.tensor_parallel": 8,
            **_PLAIN,
        },
    ),
    "30b experts": (
        "quickstart",
        {
            "model": "qwen3-30b-a3b",
            "cluster.num_gpus": 16,
            "trainer.expert_parallel": 8,
            "engine.tensor_parallel": 2,
            "speculation.method": "none",
        },
    ),
    "heavy tail": ("quickstart", {"workload.response_tokens.log_sigma": 1.6}),
    "even": ("quickstart", {"workload.response_tokens.log_sigma": 0.2}),
    "agent": ("quickstart", {**_AGENT, "speculation.method": "none"}),
    "agent lag 1": ("quickstart", {**_AGENT, **_LAG, **_HALF, "speculation.method": "none"}),
    "agent sandboxes": ("quickstart", {**_AGENT, **_SANDBOXES, "speculation.method": "none"}),
    "eager": ("quickstart", {"engine.cuda_graphs": False}),
    "k 5": ("qwen8b_rl_zero", {"speculation.draft_length": 5}),
    "235b h200": ("qwen235b_512", {"hardware": "h200_sxm"}),
    "235b lag 2": ("qwen235b_2048", {"loop.policy_lag": 2}),
    "long prompts": ("quickstart", {"workload.prompt_tokens.tokens": 1500}),
    "dapo": ("quickstart", {"workload.usable_group_share": 0.6}),
}
"""Scenarios by name: a shipped one and what is different."""


def scenario_called(name: str) -> Scenario:
    """A shipped scenario or one of DRAWN."""
    base, keys = DRAWN.get(name, (name, {}))
    return vary(load_scenario(base), keys) if keys else load_scenario(base)


def within(printed_s: float, again: Interval) -> bool:
    """Whether a printed mean lies in the interval of the projection of what was printed."""
    return again.low <= printed_s <= again.high


def advised(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """What each command advises, as printed and projected again."""

    def row(kind: str, title: str, printed: Interval, changes: tuple[str, ...]) -> dict[str, Any]:
        given = dict(change.split("=", 1) for change in changes)
        again = project(vary(scenario, {key: yaml.safe_load(value) for key, value in given.items()})).candidate.step_s
        return {
            "kind": kind, "title": title, "printed_s": printed.mean, "again_s": again.mean, "low": again.low,
            "high": again.high, "holds": within(printed.mean, again), "keys": " ".join(changes),
        }  # fmt: skip

    now = project(scenario)
    yield {"kind": "now", "printed_s": now.candidate.step_s.mean}
    if now.try_first is not None:
        yield row("try first", now.try_first.title, now.try_first.step_s, now.try_first.changes)
    ranked = [one for one in techniques(scenario).techniques if one.speedup.mean > 1.0]
    if ranked:
        yield row("first move", ranked[0].title, ranked[0].step_s, ranked[0].changes)
    best = plan(scenario)
    step_s = best.best.numbers.step_s
    if best.changes and isinstance(step_s, Interval):
        yield row("plan", best.best.name, step_s, best.changes)


def main() -> None:
    """Rows of all scenarios, one line each while they are made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*SHIPPED, *DRAWN])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for name in given.names:
        began = time.process_time()
        try:
            found = list(advised(scenario_called(name)))
        except RlsimError as error:
            found = [{"kind": "refused", "title": str(error)}]
        for one in found:
            rows.append({"scenario": name, **one})
            print(rows[-1], flush=True)
        print(f"{name}: {time.process_time() - began:.1f} s of CPU", file=sys.stderr, flush=True)
    if given.out is not None:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, sorted({key for one in rows for key in one}))
            writer.writeheader()
            writer.writerows(rows)
    scored = [one for one in rows if "holds" in one]
    print(f"{sum(one['holds'] for one in scored)} of {len(scored)} hold")


if __name__ == "__main__":
    main()
