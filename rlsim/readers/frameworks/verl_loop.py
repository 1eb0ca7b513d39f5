"""verl's GPUs and loop: shared pools, one step off, fully asynchronous, and the V1 trainers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.rows import Changes, Functions, Test

ROLLOUT = "actor_rollout_ref.rollout."
ASYNC = "async_training."
V1 = "trainer.v1."
THRESHOLD = f"{V1}sampler.max_off_policy_threshold"
NODE = "trainer.n_gpus_per_node"
STYLES = {"fully_async": "verl", "one_step_off": "slime", "separate_async": "verl_v1", "colocate_async": "verl_v1"}
"""Loop styles by the way to overlap."""


def fully_async(r: Reader) -> bool:
    """Whether the fully asynchronous trainer runs: its section is there."""
    return isinstance(r.value("async_training"), dict)


def _v1_mode(r: Reader) -> str:
    """Mode of the V1 trainer; empty where it does not run."""
    return r.text(f"{V1}trainer_mode", "sync") if r.flag("trainer.use_v1") else ""


def _pool(r: Reader) -> str | None:
    """Section that holds a rollout pool of its own."""
    if r.flag("actor_rollout_ref.hybrid_engine", True) and not fully_async(r) and _v1_mode(r) != "separate_async":
        return None
    return "rollout." if isinstance(r.value("rollout"), dict) else ROLLOUT


def mode(r: Reader) -> str:
    """sync, or one of verl's ways to overlap: fully_async, one_step_off, separate_async, colocate_async."""
    if fully_async(r):
        return "fully_async"
    if _v1_mode(r) in ("separate_async", "colocate_async"):
        return _v1_mode(r)
    return "one_step_off" if _pool(r) is not None else "sync"


def _trainer_gpus(r: Reader) -> int:
    return r.integer("trainer.nnodes", 1) * r.integer(NODE, 8)


def _generation(r: Reader) -> int | None:
    pool = _pool(r)
    if pool is None:
        return None
    per_node = r.integer(f"{pool}n_gpus_per_node") or r.integer(NODE, 8)
    return (r.integer(f"{pool}nnodes") or 1) * per_node


def _nodes(gpus: int, r: Reader, pool: str) -> Changes:
    per_node = min(r.integer(f"{pool}n_gpus_per_node") or r.integer(NODE, 8), r.integer(NODE, 8))  # of both pools
    size = gpus if gpus < per_node else math.gcd(gpus, per_node)
    return {f"{pool}nnodes": gpus // size, f"{pool}n_gpus_per_node": size}


def _write_gpus(value: int, r: Reader) -> Changes:
    rest = value - (_generation(r) or 0)
    return _nodes(rest, r, "trainer.") if rest > 0 else {}


def _write_generation(value: int | None, r: Reader) -> Changes:
    """The trainer keeps what the rollout pool leaves of all GPUs."""
    pool = _pool(r)
    if value is None or pool is None:
        return {}
    rest = _trainer_gpus(r) + (_generation(r) or 0) - value
    trainer = _nodes(rest, r, "trainer.") if rest > 0 else {}
    return {"actor_rollout_ref.hybrid_engine": False, **_nodes(value, r, pool), **trainer}


def _replicas(r: Reader) -> int:
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size")
    return max(1, (_generation(r) or 1) // math.prod(r.size(f"{ROLLOUT}{name}") for name in names))


def _groups(r: Reader) -> int | None:
    """verl's sample of asynchronous training is a prompt with all its responses."""
    each = r.integer(f"{ASYNC}concurrent_samples_per_replica") if fully_async(r) else 0
    return each * _replicas(r) or None


def _write_groups(value: int, r: Reader) -> Changes:
    return {f"{ASYNC}concurrent_samples_per_replica": value // _replicas(r)} if fully_async(r) else {}


def _v1(r: Reader) -> bool:
    return mode(r) in ("separate_async", "colocate_async")


def _max_age(r: Reader) -> int | None:
    """The V1 sampler counts a group trained at its own version as 1."""
    threshold = r.integer(THRESHOLD) if _v1(r) else 0
    return threshold - 1 if threshold else None


FUNCTIONS: Mapping[str, Functions] = {
    "cluster.num_gpus": (lambda r: _trainer_gpus(r) + (_generation(r) or 0), _write_gpus),
    "cluster.generation_gpus": (_generation, _write_generation),
    "loop.max_age": (_max_age, lambda value, r: {THRESHOLD: 1 + (value or 0)} if _v1(r) else {}),
    "loop.style": (lambda r: STYLES.get(mode(r)), None),
    "loop.max_in_flight_groups": (_groups, _write_groups),
}
TESTS: Mapping[str, Test] = {
    "asynchronous": lambda r: mode(r) != "sync",
    "one_ahead": lambda r: mode(r) not in ("sync", "fully_async"),
    "one_step_off": lambda r: mode(r) == "one_step_off",
    "separate_async": lambda r: mode(r) == "separate_async",
    "colocate_async": lambda r: mode(r) == "colocate_async",
    "fully_async": fully_async,
    "v1": _v1,
}
