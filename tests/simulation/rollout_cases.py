"""Cost tables and random cases for the tests of the rollout simulation."""

from typing import Any

import numpy as np
from fixed_costs import World, run
from hypothesis import strategies as st
from msgspec.structs import asdict

from rlsim.costs.interface import EngineCounters, IterationTable, PrefillService
from rlsim.errors import Infeasible
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import RolloutResult
from rlsim.workload.batches import Batch

PROMPTS = (5, 30, 17, 50, 1)


def cost_table(**keys: Any) -> IterationTable:
    """Smooth costs: a floor, a share per sequence, attention proportional to all cached tokens, linear prefill which
    takes longer behind a context."""
    slots = keys.get("max_running_sequences", 64)
    n = np.arange(slots + 1, dtype=np.float64)
    step = keys.pop("floor_s", 5e-3) + keys.pop("sequence_s", 2e-5) * n
    step[0] = 0.0
    context = np.arange(keys.pop("knots", 40)) * 64.0
    attention = keys.pop("attention_s", 4e-7) * np.outer(n, context + 3e-5 * context**2)
    grid = np.array([1.0, 64.0, 512.0, 4096.0])
    behind = (1e-8 if "prefill_s" not in keys else 0.0) * (np.arange(40) * 64.0 - 20.0)
    prefill = keys.pop("prefill_s", 8e-6) * np.outer([1.0, 1.1, 1.3], grid + 20)
    values: dict[str, Any] = {
        "tokens_per_sequence": 1, "max_batched_tokens": 8192, "max_running_sequences": slots, "kv_capacity_tokens": 1e9,
        "chunked_prefill": True, "prefill_context_s": behind, **keys,
    }  # fmt: skip
    return IterationTable(step, 64.0, attention, grid, np.array([0.0, slots / 2, float(slots)]), prefill, **values)


def counted(counters: EngineCounters) -> dict[str, Any]:
    return {name: getattr(counters, name) for name in EngineCounters.__slots__}


def told(result: RolloutResult) -> dict[str, Any]:
    """All that a rollout tells, comparable with ==."""
    arrays = ("finish_s", "replica", "replica_end_s", "peak_kv_tokens")
    return {**{name: getattr(result, name).tolist() for name in arrays}, **counted(result.counters)}


def traced(world: World, detailed: bool) -> dict[str, Any]:
    """All that a trace holds, comparable with ==, or why there is none."""
    try:
        trace = run(world, detailed)
    except Infeasible as error:
        return {"infeasible": str(error)}
    return {**asdict(trace), "counters": counted(trace.counters)}


def make_batch(prompts: list[int], responses: list[int], group_size: int = 1) -> Batch:
    """A batch from lists of one entry per sample; prompts are those of each group's first sample."""
    group = np.arange(len(responses)) // group_size
    return Batch(np.asarray(prompts)[group * group_size], np.asarray(responses), group)


@st.composite
def tables(draw: st.DrawFn) -> IterationTable:
    """Small engines: few slots, a tight token budget, often a tight KV cache.

    Its capacity is no sum of the samples' growths: at an exact tie the last bit of a sum would settle who is evicted.
    """
    per_sequence = draw(st.integers(1, 4))
    return cost_table(max_running_sequences=draw(st.integers(1, 8)),
                      max_batched_tokens=draw(st.integers(8 * per_sequence, 100)),
                      kv_capacity_tokens=draw(st.integers(130, 500)) + 0.371717, chunked_prefill=draw(st.booleans()),
                      tokens_per_sequence=per_sequence,
                      prefill_context_s=draw(st.sampled_from([0.0, 1e-7])) * (np.arange(40) * 64.0 - 20.0))  # fmt: skip


@st.composite
def sample_lists(draw: st.DrawFn, per_sequence: int, most: int = 25) -> list[Request]:
    """Samples of five prompts with iterations between full and no acceptance."""
    samples = []
    for number in range(draw(st.integers(1, most))):
        group = draw(st.integers(0, len(PROMPTS) - 1))
        tokens = draw(st.integers(0, 59))
        iterations = draw(st.integers(-(-tokens // per_sequence), tokens))
        samples.append(Request(number, group, PROMPTS[group], tokens + 1, iterations))
    return samples


@st.composite
def services(draw: st.DrawFn) -> PrefillService | None:
    """Engines that prefill alone, as fast as nothing or slower than those that decode."""
    if draw(st.sampled_from([False, False, True])):
        return None
    table = cost_table(max_batched_tokens=draw(st.sampled_from([16, 60, 8192])))
    token_s, kv_token_s = draw(st.sampled_from([0.0, 1e-6, 1e-3])), draw(st.sampled_from([0.0, 1e-6, 1e-3]))
    return PrefillService(draw(st.integers(1, 3)), table, token_s, kv_token_s, draw(st.sampled_from([0.0, 1e-4])))
