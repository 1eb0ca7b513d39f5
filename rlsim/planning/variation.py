"""From an assignment of keys to a checked scenario, with three keys that stand for several.

``k`` drafts that many tokens under the scenario's own acceptance process (0: no speculation), where
``speculation.draft_length`` alone would keep the acceptance length. ``lag`` is the policy lag; 0 is synchronous on
shared GPUs, 1 and more asynchronous on split pools. ``generation_share`` splits the cluster. A split cluster that
changes its size without a new split keeps its share.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel

from rlsim.errors import InputError, shortened
from rlsim.loading import vary
from rlsim.schema.messages import nearest_key
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.speculation.acceptance import acceptance_of

DERIVED_KEYS = ("k", "lag", "generation_share")
DEFAULT_GENERATION_SHARE = 0.5
"""Share of generating GPUs where a synchronous scenario on shared GPUs becomes asynchronous without a split."""
ASYNC_MEASURED_STEPS = 3
"""Fewest steps after the warm-up of an asynchronous cell; rounded up to whole cycles of ``lag`` steps."""


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


def varied(scenario: Scenario, assignment: Mapping[str, str]) -> Scenario:
    """``scenario`` with the assigned values, validated as a file would be. Raises InputError."""
    return vary(scenario, *overrides_of(scenario, assignment))


def overrides_of(scenario: Scenario, assignment: Mapping[str, str]) -> list[str]:
    """Overrides ``a.b=value`` that put ``assignment`` into effect, derived keys resolved. Raises InputError."""
    out = [f"{key}={value}" for key, value in assignment.items() if key not in DERIVED_KEYS]
    if "k" in assignment:
        out += _drafting(scenario.speculation, _whole(assignment, "k"))
    if "lag" in assignment:
        out += _lagging(scenario, _whole(assignment, "lag"))
    return out + _splitting(scenario, assignment)


def _whole(assignment: Mapping[str, str], key: str) -> int:
    try:
        value = int(assignment[key])
    except ValueError as error:
        raise InputError(f"{key}={assignment[key]}: must be a whole number") from error
    if value < 0:
        raise InputError(f"{key}={value}: must be at least 0")
    return value


def _drafting(speculation: Speculation, k: int) -> list[str]:
    if k == 0:
        return ["speculation.method=none", "speculation.draft_length=0"]
    if not speculation.active:
        raise InputError("k needs a scenario with speculation (method and acceptance), or give speculation.* keys")
    rates = ", ".join(repr(float(p)) for p in extended_rates(speculation, k))
    return [
        f"speculation.draft_length={k}",
        "speculation.acceptance_length=null",
        "speculation.first_acceptance=null",
        f"speculation.position_acceptance=[{rates}]",
    ]


def extended_rates(speculation: Speculation, draft_length: int) -> list[float]:
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
    return [float(p) for p in np.clip(cumulative, 0.0, 1.0)]


def _lagging(scenario: Scenario, lag: int) -> list[str]:
    if lag == 0:
        out = ["loop.mode=sync", "loop.policy_lag=0", "cluster.generation_gpus=null", "cluster.training_gpus=null"]
        return out + (["loop.refit=auto"] if scenario.loop.refit != "auto" else [])
    warmup = max(scenario.simulation.warmup_steps, lag + 1)
    steps = lag * -(-max(scenario.simulation.steps, ASYNC_MEASURED_STEPS) // lag)
    out = [
        "loop.mode=async",
        f"loop.policy_lag={lag}",
        f"simulation.warmup_steps={warmup}",
        f"simulation.steps={steps}",
    ]
    return out + (["loop.refit=auto"] if scenario.loop.refit == "colocated" else [])


def _splitting(scenario: Scenario, assignment: Mapping[str, str]) -> list[str]:
    """The split of the pools, where it follows from a share."""
    given = {"cluster.generation_gpus", "cluster.training_gpus"} & assignment.keys()
    if "generation_share" in assignment and given:
        raise InputError(f"generation_share and {min(given)} contradict each other; give one of them")
    if given or assignment.get("lag") == "0":
        return []
    cluster = scenario.cluster
    own = DEFAULT_GENERATION_SHARE if cluster.colocated else cluster.generation / cluster.num_gpus
    wanted = "generation_share" in assignment or (
        "lag" in assignment if cluster.colocated else bool({"cluster.num_gpus", "lag"} & assignment.keys())
    )
    if not wanted:
        return []
    share = _share(assignment.get("generation_share", str(own)))
    gpus = _number(scenario, assignment, "cluster", "num_gpus")
    generation = split_gpus(
        gpus, share, _gpus_of(scenario, assignment, "engine"), _gpus_of(scenario, assignment, "trainer")
    )
    return [f"cluster.generation_gpus={generation}", f"cluster.training_gpus={gpus - generation}"]


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError as error:
        raise InputError(f"generation_share={text}: must be a number between 0 and 1") from error
    if not 0 < share < 1:
        raise InputError(f"generation_share={text}: must lie between 0 and 1")
    return share


def _number(scenario: Scenario, assignment: Mapping[str, str], section: str, key: str) -> int:
    text = assignment.get(f"{section}.{key}")
    if text is None:
        return int(getattr(getattr(scenario, section), key))
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"{section}.{key}: must be a whole number, got '{text}'") from error


def _gpus_of(scenario: Scenario, assignment: Mapping[str, str], section: str) -> int:
    sizes = ("tensor_parallel", "pipeline_parallel") + (("context_parallel",) if section == "trainer" else ())
    return int(np.prod([_number(scenario, assignment, section, size) for size in sizes]))


def split_gpus(num_gpus: int, share: float, replica_gpus: int, shard_gpus: int) -> int:
    """Generating GPUs nearest to ``share`` of ``num_gpus`` that replicas fill and that leave whole training shards.

    Where nothing fits both, the nearest number of whole replicas: validation then names what does not divide.
    """
    wanted = share * num_gpus
    candidates = [n for n in range(replica_gpus, num_gpus, replica_gpus) if (num_gpus - n) % shard_gpus == 0]
    if not candidates:
        return min(max(1, round(wanted / replica_gpus)) * replica_gpus, max(1, num_gpus - 1))
    return min(candidates, key=lambda n: (abs(n - wanted), n))
