"""NeMo-RL's cluster and loop: nodes, colocation, asynchronous GRPO and the single controller."""

from __future__ import annotations

import math
from typing import Any

from rlsim.readers.frameworks.rows import Changes, Reader, Row

ASYNC = "grpo.async_grpo."
CONTROLLER = "async_rl."
SAMPLER = "async_rl.sampler."
COLOCATED = "policy.generation.colocated."
RESOURCES = "policy.generation.colocated.resources."
IN_ORDER = "in_order"
RACK_NODE_GPUS = 4
"""GPUs of a tray of GB200 or GB300 NVL72."""


def controller(r: Reader) -> bool:
    """Whether the single controller runs the loop: its section is there and the older one is null."""
    return isinstance(r.value("async_rl"), dict) and not isinstance(r.value("grpo.async_grpo"), dict)


def asynchronous(r: Reader) -> bool:
    """Whether generation runs beside training."""
    return controller(r) or r.flag(f"{ASYNC}enabled")


def _nodes(gpus: int, r: Reader) -> Changes:
    """Nodes of the configuration's size where they divide the GPUs, else of the largest size that does."""
    per_node = math.gcd(gpus, r.integer("cluster.gpus_per_node", 1))
    size = gpus if gpus < r.integer("cluster.gpus_per_node", 1) else per_node
    return {"cluster.num_nodes": gpus // size, "cluster.gpus_per_node": size}


def _gpus(r: Reader) -> int:
    return r.integer("cluster.num_nodes", 1) * r.integer("cluster.gpus_per_node", 1)


def _generation(r: Reader) -> int | None:
    if r.flag(f"{COLOCATED}enabled", True):
        return None
    per_node = r.integer(f"{RESOURCES}gpus_per_node") or r.integer("cluster.gpus_per_node", 1)
    return (r.integer(f"{RESOURCES}num_nodes") or 1) * per_node


def _write_generation(gpus: int | None, r: Reader) -> Changes:
    if gpus is None:
        return {f"{COLOCATED}enabled": True}
    per_node = r.integer("cluster.gpus_per_node", 1)
    nodes = gpus // per_node if gpus % per_node == 0 else 1
    return {
        f"{COLOCATED}enabled": False,
        f"{RESOURCES}num_nodes": nodes,
        f"{RESOURCES}gpus_per_node": gpus // nodes,
    }


def _write_mode(value: str, r: Reader) -> Changes:
    if value == "sync" and controller(r):
        return {"async_rl": None}
    return {f"{ASYNC}enabled": value == "async"}


def _lag(r: Reader) -> int | None:
    if not asynchronous(r):
        return None
    if not controller(r):
        return r.integer(f"{ASYNC}max_trajectory_age_steps", 1)
    versions = r.integer(f"{SAMPLER}max_lookahead_versions")
    return versions or r.integer(f"{SAMPLER}max_staleness_versions", 1)


def _write_lag(value: int, r: Reader) -> Changes:
    if not asynchronous(r):
        return {}
    if not controller(r):
        return {f"{ASYNC}max_trajectory_age_steps": max(1, value)}
    ahead = "max_lookahead_versions" if r.integer(f"{SAMPLER}max_lookahead_versions") else "max_staleness_versions"
    return {f"{SAMPLER}{ahead}": max(1, value)}


def _asynchronous_flag(name: str, target: str) -> Row:
    """A flag of asynchronous GRPO, which synchronous scenarios leave alone."""
    key = f"{ASYNC}{name}"

    def read(r: Reader) -> bool | None:
        return r.flag(key) if asynchronous(r) and not controller(r) else None

    def write(value: Any, r: Reader) -> Changes:
        return {key: value} if asynchronous(r) and not controller(r) else {}

    return Row(target, (key,), read, write)


def _in_flight(r: Reader) -> bool | None:
    """The synchronous engine cannot publish weights under running requests: NeMo-RL then waits for all of them."""
    if not asynchronous(r) or controller(r):
        return None
    return r.flag(f"{ASYNC}in_flight_weight_updates") and r.flag("policy.generation.vllm_cfg.async_engine")


def _write_in_flight(value: bool, r: Reader) -> Changes:
    if not asynchronous(r) or controller(r):
        return {}
    out: Changes = {f"{ASYNC}in_flight_weight_updates": value}
    return {**out, "policy.generation.vllm_cfg.async_engine": True} if value else out


def _membership(r: Reader) -> str | None:
    if not controller(r):
        return None
    return "target" if r.text(f"{SAMPLER}name", IN_ORDER) == IN_ORDER else "first_done"


def _max_age(r: Reader) -> int | None:
    if _membership(r) != "first_done":
        return None
    return r.integer(f"{SAMPLER}max_staleness_versions") or None


def _in_flight_groups(r: Reader) -> int | None:
    return r.integer(f"{CONTROLLER}max_inflight_prompts") or None if controller(r) else None


def _write_placement(value: str | None, r: Reader) -> Changes:
    """Nodes of a segment: those of an NVL72 domain that NeMo-RL's recipes take (16 of 18), else the node itself."""
    nodes = 16 if r.integer("cluster.gpus_per_node", 1) == RACK_NODE_GPUS else 1
    return {"cluster.segment_size": nodes if value == "aligned" else None}


LOOP_ROWS = (
    Row("cluster.num_gpus", ("cluster.num_nodes", "cluster.gpus_per_node"), _gpus, _nodes),
    Row(
        "cluster.generation_gpus",
        (f"{COLOCATED}enabled", f"{RESOURCES}num_nodes", f"{RESOURCES}gpus_per_node"),
        _generation,
        _write_generation,
    ),
    Row(
        "cluster.placement",
        ("cluster.segment_size",),
        lambda r: "aligned" if r.value("cluster.segment_size") else None,
        _write_placement,
    ),
    Row(
        "loop.mode",
        (f"{ASYNC}enabled", "grpo.async_grpo", "async_rl"),
        lambda r: "async" if asynchronous(r) else "sync",
        _write_mode,
    ),
    Row(
        "loop.policy_lag",
        (
            f"{ASYNC}max_trajectory_age_steps",
            f"{SAMPLER}max_lookahead_versions",
            f"{SAMPLER}max_staleness_versions",
        ),
        _lag,
        _write_lag,
    ),
    Row("loop.style", ("grpo.async_grpo", "async_rl"), lambda r: "nemo_rl" if asynchronous(r) else None),
    Row("loop.in_flight_updates", (f"{ASYNC}in_flight_weight_updates",), _in_flight, _write_in_flight),
    _asynchronous_flag("recompute_kv_cache_after_weight_updates", "loop.recompute_kv"),
    Row("loop.membership", (f"{SAMPLER}name",), _membership),
    Row("loop.max_age", (f"{SAMPLER}max_staleness_versions",), _max_age),
    Row(
        "loop.max_in_flight_groups",
        (f"{CONTROLLER}max_inflight_prompts",),
        _in_flight_groups,
        lambda value, r: {f"{CONTROLLER}max_inflight_prompts": value} if controller(r) else {},
    ),
)
