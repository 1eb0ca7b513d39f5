"""verl's GPUs and loop: shared pools, one step off, fully asynchronous, and the V1 trainers."""

from __future__ import annotations

import math
from typing import Any

from rlsim.readers.frameworks.rows import Changes, Reader, Row

MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
SAMPLES = "actor_rollout_ref.rollout.n"
ROLLOUT = "actor_rollout_ref.rollout."
ASYNC = "async_training."
V1 = "trainer.v1."


def fully_async(r: Reader) -> bool:
    """Whether the fully asynchronous trainer runs: its section is there."""
    return isinstance(r.value("async_training"), dict)


def v1_mode(r: Reader) -> str:
    """Mode of the V1 trainer; empty where it does not run."""
    return r.text(f"{V1}trainer_mode", "sync") if r.flag("trainer.use_v1") else ""


def _pool(r: Reader) -> str | None:
    """Section that holds a rollout pool of its own."""
    if r.flag("actor_rollout_ref.hybrid_engine", True) and not fully_async(r) and v1_mode(r) != "separate_async":
        return None
    return "rollout." if isinstance(r.value("rollout"), dict) else ROLLOUT


def mode(r: Reader) -> str:
    """sync, or one of verl's ways to overlap: fully_async, one_step_off, separate_async, colocate_async."""
    if fully_async(r):
        return "fully_async"
    if v1_mode(r) in ("separate_async", "colocate_async"):
        return v1_mode(r)
    return "one_step_off" if _pool(r) is not None else "sync"


_STYLES = {"fully_async": "verl", "one_step_off": "slime", "separate_async": "verl_v1", "colocate_async": "verl_v1"}


def _trainer_gpus(r: Reader) -> int:
    return r.integer("trainer.nnodes", 1) * r.integer("trainer.n_gpus_per_node", 8)


def _generation(r: Reader) -> int | None:
    pool = _pool(r)
    if pool is None:
        return None
    per_node = r.integer(f"{pool}n_gpus_per_node") or r.integer("trainer.n_gpus_per_node", 8)
    return (r.integer(f"{pool}nnodes") or 1) * per_node


def _nodes(gpus: int, r: Reader, pool: str) -> Changes:
    of_trainer = r.integer("trainer.n_gpus_per_node", 8)
    per_node = min(r.integer(f"{pool}n_gpus_per_node") or of_trainer, of_trainer)  # both pools have the same nodes
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
    rest, apart = _trainer_gpus(r) + (_generation(r) or 0) - value, {"actor_rollout_ref.hybrid_engine": False}
    return {**apart, **_nodes(value, r, pool), **(_nodes(rest, r, "trainer.") if rest > 0 else {})}


def _prompts(r: Reader) -> int:
    if fully_async(r):
        return r.integer(MINI, 1) * r.integer(f"{ASYNC}require_batches", 1)
    return r.integer("data.train_batch_size", 1)


def _write_prompts(value: int, r: Reader) -> Changes:
    if not fully_async(r):
        return {"data.train_batch_size": value}
    mini = r.integer(MINI, 1)
    return {f"{ASYNC}require_batches": value // mini} if value % mini == 0 else {}


def _lag(r: Reader) -> int | None:
    return 1 if mode(r) in ("one_step_off", "separate_async", "colocate_async") else None


def _staleness(r: Reader) -> float | None:
    return r.number(f"{ASYNC}staleness_threshold") if fully_async(r) else None


def _update_every(r: Reader) -> int | None:
    if fully_async(r):
        return r.integer(f"{ASYNC}trigger_parameter_sync_step", 1)
    return r.integer(f"{V1}separate_async.parameter_sync_step", 1) if mode(r) == "separate_async" else None


def _write_update_every(value: int, r: Reader) -> Changes:
    if fully_async(r):
        return {f"{ASYNC}trigger_parameter_sync_step": value}
    return {f"{V1}separate_async.parameter_sync_step": value} if mode(r) == "separate_async" else {}


def _in_flight(r: Reader) -> bool | None:
    return r.flag(f"{ASYNC}partial_rollout", True) if fully_async(r) else None


def _replicas(r: Reader) -> int:
    gpus = 1
    for name in ("tensor_model", "pipeline_model"):
        gpus *= r.integer(f"{ROLLOUT}{name}_parallel_size", 1)
    return max(1, (_generation(r) or 1) // (gpus * r.integer(f"{ROLLOUT}data_parallel_size", 1)))


def _groups(r: Reader) -> int | None:
    """verl's sample of asynchronous training is a prompt with all its responses."""
    each = r.integer(f"{ASYNC}concurrent_samples_per_replica") if fully_async(r) else 0
    return each * _replicas(r) or None


def _write_groups(value: int | None, r: Reader) -> Changes:
    if not fully_async(r) or value is None or value % _replicas(r):
        return {}
    return {f"{ASYNC}concurrent_samples_per_replica": value // _replicas(r)}


def _v1(r: Reader) -> bool:
    return mode(r) in ("separate_async", "colocate_async")


def _max_age(r: Reader) -> int | None:
    return r.integer(f"{V1}sampler.max_off_policy_threshold") or None if _v1(r) else None


def _stale(r: Reader) -> str | None:
    given = r.text(f"{V1}sampler.max_off_policy_strategy") if _v1(r) else ""
    return None if not given else "drop" if given.startswith("drop") else "train"


def _only(active: Any, key: str) -> Any:
    return lambda value, r: {key: value} if active(r) else {}


LOOP_ROWS = (
    Row(
        "workload.prompts_per_step",
        ("data.train_batch_size", MINI, f"{ASYNC}require_batches"),
        _prompts,
        _write_prompts,
    ),
    Row(
        "cluster.num_gpus",
        ("trainer.nnodes", "trainer.n_gpus_per_node"),
        lambda r: _trainer_gpus(r) + (_generation(r) or 0),
        _write_gpus,
    ),
    Row(
        "cluster.generation_gpus",
        (
            "actor_rollout_ref.hybrid_engine",
            *(f"{pool}{key}" for pool in ("rollout.", ROLLOUT) for key in ("nnodes", "n_gpus_per_node")),
        ),
        _generation,
        _write_generation,
    ),
    Row(
        "loop.mode",
        ("trainer.use_v1", f"{V1}trainer_mode", "actor_rollout_ref.hybrid_engine"),
        lambda r: "sync" if mode(r) == "sync" else "async",
    ),
    Row("loop.style", (f"{V1}trainer_mode",), lambda r: _STYLES.get(mode(r))),
    Row("loop.policy_lag", (f"{V1}trainer_mode",), _lag),
    Row("loop.overlap", (f"{V1}trainer_mode",), lambda r: False if mode(r) == "colocate_async" else None),
    Row(
        "loop.staleness_fraction",
        (f"{ASYNC}staleness_threshold",),
        _staleness,
        _only(fully_async, f"{ASYNC}staleness_threshold"),
    ),
    Row(
        "loop.update_every",
        (f"{ASYNC}trigger_parameter_sync_step", f"{V1}separate_async.parameter_sync_step"),
        _update_every,
        _write_update_every,
    ),
    Row(
        "loop.in_flight_updates",
        (f"{ASYNC}partial_rollout",),
        _in_flight,
        _only(fully_async, f"{ASYNC}partial_rollout"),
    ),
    Row("loop.max_in_flight_groups", (f"{ASYNC}concurrent_samples_per_replica",), _groups, _write_groups),
    Row(
        "loop.max_age",
        (f"{V1}sampler.max_off_policy_threshold",),
        _max_age,
        _only(_v1, f"{V1}sampler.max_off_policy_threshold"),
    ),
    Row("loop.stale", (f"{V1}sampler.max_off_policy_strategy",), _stale),
)
