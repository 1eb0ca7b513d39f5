"""From overrides to a checked scenario, with three keys that stand for several.

``k`` drafts that many tokens under the scenario's own acceptance process (0: no speculation), where
``speculation.draft_length`` alone would keep the acceptance length. ``lag`` is the policy lag; 0 is synchronous on
shared GPUs, 1 and more asynchronous on split pools. ``generation_share`` splits the cluster. A split cluster that
changes its size without a new split keeps its share.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel

from rlsim.errors import InputError, shortened
from rlsim.loading import vary
from rlsim.schema.loop import ASYNCHRONOUS_KEYS, LIMITS
from rlsim.schema.messages import nearest_key
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.workload.acceptance import acceptance_of

Setting = bool | int | float | str | list[Any] | dict[str, Any] | None
Overrides = dict[str, Setting]
"""Values by dotted scenario key, as ``--set`` gives them, or by one of the derived keys."""

DERIVED_KEYS = ("k", "lag", "generation_share")
DEFAULT_GENERATION_SHARE = 0.5
"""Share of generating GPUs where a synchronous scenario on shared GPUs becomes asynchronous without a split."""


def check_key(key: str, where: str) -> None:
    """Raise InputError where ``key`` is neither a scenario key nor a derived one."""
    if key in DERIVED_KEYS or _known(Scenario, key.split(".")):
        return
    near = nearest_key(key, Scenario)
    hint = f"did you mean '{near}'?" if near else f"beside scenario keys there are {', '.join(DERIVED_KEYS)}"
    raise InputError(f"{where}: unknown key '{shortened(key)}'; {hint}")


def _known(annotation: Any, parts: Sequence[str]) -> bool:
    """Whether a type, or one of a union, has the nested fields ``parts``."""
    if not parts:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(parts[0])
        return field is not None and _known(field.annotation, parts[1:])
    return any(_known(argument, parts) for argument in get_args(annotation))


def varied(scenario: Scenario, overrides: Overrides) -> Scenario:
    """``scenario`` with the given values, validated as a file would be. Raises InputError."""
    return vary(scenario, resolved(scenario, overrides))


def resolved(scenario: Scenario, overrides: Overrides) -> Overrides:
    """Scenario keys that put ``overrides`` into effect, with no derived key left. Raises InputError."""
    out = {key: value for key, value in overrides.items() if key not in DERIVED_KEYS}
    if "k" in overrides:
        out |= _drafting(scenario.speculation, _whole(overrides, "k"))
    if "lag" in overrides:
        out |= _lagging(scenario, _whole(overrides, "lag"))
    return out | _splitting(scenario, overrides)


def _whole(overrides: Overrides, key: str) -> int:
    value = overrides[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{key}={value}: must be a whole number")
    if value < 0:
        raise InputError(f"{key}={value}: must be at least 0")
    return value


def _drafting(speculation: Speculation, k: int) -> Overrides:
    if k == 0:
        return {"speculation.method": "none", "speculation.draft_length": 0}
    if not speculation.active:
        raise InputError("k needs a scenario with speculation (method and acceptance), or give speculation.* keys")
    return {
        "speculation.draft_length": k,
        "speculation.acceptance_length": None,
        "speculation.first_acceptance": None,
        "speculation.position_acceptance": list(extended_rates(speculation, k)),
    }


@lru_cache(maxsize=256)
def extended_rates(speculation: Speculation, draft_length: int) -> tuple[float, ...]:
    """Cumulative acceptance P_1..P_k of ``speculation`` for another draft length, as ``position_acceptance`` takes it.

    Positions that the scenario has keep their rate; further ones continue with a_(i+1) = a_i d, d the ratio of the
    last two conditional acceptances (the scenario's acceptance_decay where it has one position only).
    """
    match = speculation.match_probability if speculation.method in ("ngram", "suffix") else 1.0
    rates = acceptance_of(speculation).position_rates / match if match else np.zeros(speculation.draft_length)
    conditional = [float(rates[0])]
    conditional += [float(b / a) if a > 0 else 0.0 for a, b in itertools.pairwise(rates)]
    decay = speculation.acceptance_decay
    if len(conditional) > 1 and speculation.position_acceptance is None and conditional[-2] > 0:
        decay = conditional[-1] / conditional[-2]
    while len(conditional) < draft_length:
        conditional.append(conditional[-1] * decay)
    cumulative = np.minimum.accumulate(np.cumprod(conditional[:draft_length]))
    return tuple(float(p) for p in np.clip(cumulative, 0.0, 1.0))


def _lagging(scenario: Scenario, lag: int) -> Overrides:
    if lag == 0:
        shared = {"cluster.generation_gpus": None, "cluster.training_gpus": None}
        refit = {} if scenario.loop.refit_method == "auto" else {"loop.refit_method": "auto"}
        return {"loop.mode": "sync", "loop.policy_lag": 0, **_synchronous(scenario), **shared, **refit}
    refit = {"loop.refit_method": "auto"} if scenario.loop.refit_method == "cuda_ipc" else {}
    same = scenario.loop.mode == "async" and scenario.loop.policy_lag == lag
    return {
        **({} if same else {"simulation.warmup_steps": None, "simulation.steps": None}),
        "loop.mode": "async",
        "loop.policy_lag": lag,
        **{f"loop.{key}": None for key in LIMITS if getattr(scenario.loop, key) is not None},
        **refit,
    }


def _synchronous(scenario: Scenario) -> Overrides:
    """Keys of lagged loops back at their defaults, where they are stated."""
    fields = type(scenario.loop).model_fields
    stated = (key for key in ASYNCHRONOUS_KEYS if getattr(scenario.loop, key) != fields[key].default)
    return {f"loop.{key}": fields[key].default for key in stated}


def _splitting(scenario: Scenario, overrides: Overrides) -> Overrides:
    """The split of the pools, where it follows from a share."""
    given = {"cluster.generation_gpus", "cluster.training_gpus"} & overrides.keys()
    if "generation_share" in overrides and given:
        raise InputError(f"generation_share and {min(given)} contradict each other; give one of them")
    if given or overrides.get("lag") == 0:
        return {}
    cluster = scenario.cluster
    own = DEFAULT_GENERATION_SHARE if cluster.colocated else cluster.generation / cluster.num_gpus
    wanted = "generation_share" in overrides or (
        "lag" in overrides if cluster.colocated else bool({"cluster.num_gpus", "lag"} & overrides.keys())
    )
    if not wanted:
        return {}
    share = _share(overrides.get("generation_share", own))
    gpus = _size(scenario, overrides, "cluster.num_gpus")
    generation = split_gpus(gpus, share, *(_group_gpus(scenario, overrides, part) for part in ("engine", "trainer")))
    return {"cluster.generation_gpus": generation, "cluster.training_gpus": gpus - generation}


def _share(value: Setting) -> float:
    if not isinstance(value, int | float):
        raise InputError(f"generation_share={value}: must be a number between 0 and 1")
    if not 0 < value < 1:
        raise InputError(f"generation_share={value}: must lie between 0 and 1")
    return value


def _size(scenario: Scenario, overrides: Overrides, key: str) -> int:
    section, _, name = key.partition(".")
    value = overrides.get(key, getattr(getattr(scenario, section), name))
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{key}: must be a whole number, got '{value}'")
    return value


def _group_gpus(scenario: Scenario, overrides: Overrides, section: str) -> int:
    """GPUs of a replica of the engine, or of a model-parallel shard of the trainer."""
    sizes = ("tensor", "pipeline") + (("context",) if section == "trainer" else ())
    return math.prod(_size(scenario, overrides, f"{section}.{size}_parallel") for size in sizes)


def split_gpus(num_gpus: int, share: float, replica_gpus: int, shard_gpus: int) -> int:
    """Generating GPUs nearest to ``share`` of ``num_gpus`` that replicas fill and that leave whole training shards.

    Where nothing fits both, the nearest number of whole replicas: validation then names what does not divide.
    """
    wanted = share * num_gpus
    candidates = [n for n in range(replica_gpus, num_gpus, replica_gpus) if (num_gpus - n) % shard_gpus == 0]
    if not candidates:
        return min(max(1, round(wanted / replica_gpus)) * replica_gpus, max(1, num_gpus - 1))
    return min(candidates, key=lambda n: (abs(n - wanted), n))
