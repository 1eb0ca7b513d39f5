"""What moves do to a scenario that no value of a key says: functions of it and of a severity."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from rlsim.costs.interface import Part, Prices
from rlsim.costs.trainer.layer import IMBALANCE
from rlsim.projection.change import (
    Change,
    Priced,
    equal_lengths,
    equal_trajectories,
    in_rounds,
    iterations_with,
    no_refit,
    passes_with,
    without_parts,
)
from rlsim.projection.idle import BUBBLE
from rlsim.projection.uncertainty.features import VALUES
from rlsim.report.format import percent
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.schema.workload import ConstantLength, ConstantTime

FURTHER_BATCHES = 8
"""Batches by which a loop's limit is widened to see what it costs."""
MOST_LAG = 64
"""The largest lag that the schema takes."""
BF16_BYTES, INT32_BYTES = 2.0, 4.0
BETWEEN = "logging and checkpoints"
"""Part of a step that stands in none of its phases."""


def _no_environment(scenario: Scenario, x: float) -> Change:
    keys: dict[str, Any] = {"workload.environment_s": 0.0}
    if scenario.workload.agent is not None:
        nothing = {"kind": "constant", "seconds": 0.0}
        own = {"environment_s": nothing, "max_environments": None, "judge": None, "start_s": nothing,
               "started_sandboxes": 0, "calls_per_s": None}  # fmt: skip
        keys |= {f"workload.agent.{key}": value for key, value in own.items()}
    return Change(keys=keys)


def _further_ahead(scenario: Scenario, x: float) -> Change:
    loop = scenario.loop
    if loop.staleness_fraction is not None:
        return Change(keys={"loop.staleness_fraction": loop.staleness_fraction + FURTHER_BATCHES})
    if loop.queue_batches is not None:
        return Change(keys={"loop.queue_batches": loop.queue_batches + FURTHER_BATCHES})
    return Change(keys={"loop.policy_lag": min(MOST_LAG, loop.lag + FURTHER_BATCHES)})


def _idle_replicas(scenario: Scenario, share: float) -> Change:
    def fewer(prices: Prices) -> Prices:
        return replace(prices, replicas=max(1, round(share * prices.replicas)))

    return Change(how=f"work goes to {percent(share)} of the replicas", prices=fewer)


def _slow_devices(scenario: Scenario, factor: float) -> Change:
    def slower(prices: Prices) -> Prices:
        return _passes(factor)(iterations_with(factor)(prices))

    return Change(how=f"all kernels take {factor:.3g} times as long", prices=slower)


def _passes(factor: float) -> Priced:
    """Log-probs and updates times ``factor``."""
    return passes_with(lambda phase, part: 1.0 if phase == "data" else factor)


def _between_steps(scenario: Scenario, seconds: float) -> Change:
    """The driver is busy once a step with what no timer of a phase holds."""
    part = Part(BETWEEN, seconds, "host", "assumed")
    return Change(
        how=f"{seconds:.3g} s of logging, checkpoints and validation", prices=passes_with(lambda *_: 1.0, part)
    )


def _little_kv_cache(scenario: Scenario, divisor: float) -> Change:
    least = float(scenario.workload.max_sequence_tokens)

    def smaller(prices: Prices) -> Prices:
        table = prices.iteration
        # A cache below one longest sequence could not run at all.
        capacity = min(table.kv_capacity_tokens, max(least, table.kv_capacity_tokens / divisor))
        return replace(prices, iteration=replace(table, kv_capacity_tokens=capacity))

    return Change(how=f"a replica's cache holds 1/{divisor:.3g} of its tokens", prices=smaller)


def longer_responses(scenario: Scenario, factor: float) -> Change | None:
    """Mean length times ``factor``, within what the cap leaves; None where the lengths have no mean to change."""
    length, key = scenario.workload.response_tokens, "workload.response_tokens"
    # A mean near the cap could not be reached: longer responses are cut there.
    room = 0.95 * min(scenario.workload.max_sequence_tokens - 1, scenario.workload.longest_response_tokens)
    if isinstance(length, ConstantLength):
        return Change(keys={f"{key}.tokens": max(1, round(min(room, factor * length.tokens)))})
    if length.mean_tokens is None or factor * length.mean_tokens > room:
        return None
    return Change(keys={f"{key}.mean_tokens": factor * length.mean_tokens})


def _rounds(scenario: Scenario, count: float) -> Change | None:
    """A rollout for each accumulation step, which waits for its own longest response; of single turns."""
    if scenario.workload.agent is not None or scenario.workload.racing:
        return None
    return Change(how=f"a step is generated in {round(count)} rounds", workload=in_rounds(round(count)))


def _slow_turns(scenario: Scenario, factor: float) -> Change | None:
    agent = scenario.workload.agent
    if agent is None:
        return None
    name = "seconds" if isinstance(agent.environment_s, ConstantTime) else "mean_s"
    return Change(keys={f"workload.agent.environment_s.{name}": factor * getattr(agent.environment_s, name)})


def _reloaded_base(scenario: Scenario, bytes_per_s: float) -> Change:
    """Every engine reads the base's weights from storage at ``bytes_per_s`` (verl#4470: vLLM's sleep level 2)."""
    seconds = BF16_BYTES * parameter_counts(scenario.model).total / bytes_per_s
    return Change(keys={"loop.refit_fixed_s": (scenario.loop.refit_fixed_s or 0.0) + seconds})


def _routes_through_driver(scenario: Scenario, bytes_per_s: float) -> Change | None:
    """A driver passes on the experts of every token and layer at ``bytes_per_s``, 4 bytes each (THUDM/slime 624b824a,
    slime/utils/types.py: routed_experts of shape tokens, layers, top-k in int32)."""
    moe = scenario.model.moe
    if moe is None:
        return None
    sample_bytes = float(VALUES["sequence"](scenario)) * scenario.model.num_layers * moe.top_k * INT32_BYTES
    most = 1.0  # of the schema
    seconds = min(most, scenario.loop.driver_sample_s + sample_bytes / bytes_per_s)
    return Change(keys={"loop.driver_sample_s": seconds})


FUNCTIONS: Mapping[str, Callable[[Scenario, float], Change | None]] = {
    "no_environment": _no_environment,
    "further_ahead": _further_ahead,
    "equal_trajectories": lambda scenario, x: Change(workload=equal_trajectories),
    "equal_lengths": lambda scenario, x: Change(workload=equal_lengths),
    "no_refit": lambda scenario, x: Change(prices=no_refit),
    "no_bubble": lambda scenario, x: Change(prices=without_parts(lambda part: part.name == BUBBLE)),
    "even_ranks": lambda scenario, x: Change(prices=without_parts(lambda part: part.name == IMBALANCE)),
    "idle_replicas": _idle_replicas,
    "slow_trainer": lambda _, factor: Change(
        how=f"log-probs and updates take {factor:.3g} times as long", prices=_passes(factor)
    ),
    "slow_devices": _slow_devices,
    "slow_engine": lambda scenario, x: Change(how=f"iterations take {x:.3g} times as long", prices=iterations_with(x)),
    "between_steps": _between_steps,
    "little_kv_cache": _little_kv_cache,
    "longer_responses": longer_responses,
    "rounds": _rounds,
    "slow_turns": _slow_turns,
    "reloaded_base": _reloaded_base,
    "routes_through_driver": _routes_through_driver,
}
"""By the names that moves give them."""
