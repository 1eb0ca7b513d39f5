"""The fitted numbers as one vector: their names, how far each may lie from its value, and sets with some of them moved.

A term is moved by a deviation ``z``: most are positive and are multiplied by exp(z), those of RL steps, some of which
are zero, get z times a scale added. Names are paths: ``engines/vllm/iteration_s``, ``training/dense_efficiency``,
``training/prime_rl/speed``, ``transfers/nemo_rl/link_factor``, ``steps/moe_host_layer_s``.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import exp, inf, log
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rlsim.files.yaml import lists_beside
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior
from rlsim.parameters.sets import (
    Fitted,
    load_engine_parameters,
    load_parameters,
    load_training_parameters,
    load_transfer_parameters,
    own_sets,
    set_digest,
    shipped,
)
from rlsim.schema.base import Strict, replaced
from rlsim.schema.engine_parameters import EngineParameters, LayerKernels, TransferParameters
from rlsim.schema.parameters import GlobalParameters, TrainingParameters
from rlsim.schema.scenario import Scenario

START = "start"
"""Sets of the values that were assumed before anything was measured."""
_PRIORS = lists_beside(__file__, "spreads.yaml")
ENGINE_VALUES, FRAMEWORK_SPREAD = _PRIORS["engine_values"], _PRIORS["framework"]
TRAINING_SPREAD = {name: spread for name, (spread, *_) in _PRIORS["training"].items()}
TRAINING_BOUNDS = {name: (low, high) for name, (_, low, high) in _PRIORS["training"].items()}
"""Least and largest value that physics allows a term of training steps; one on its bound is a part that is missing."""
TRANSFER_FAMILY_SPREAD, STEP_SCALES = _PRIORS["transfer_family"], _PRIORS["steps"]
STEP_LEAST, SHARES, ENGINE_MOST = _PRIORS["least"], _PRIORS["shares"], _PRIORS["engine_most"]
ENGINE_VALUE_SPREAD = 0.7
"""Standard deviation of the logarithm of an engine's value around where its fit starts: a factor of two."""
TRANSFER_SPREAD = 0.8
ENGINE_HOST_SCALE = 2e-3
STEP_SPREAD = 1.0
"""Standard deviation of the deviation of a value fitted to RL steps before any step was measured, in units of their
scales. At 2 this, and not the ten terms, which lie half a unit from where they start, set the spread of their family:
what is left out is then predicted with intervals that score worse (Gneiting and Raftery's)."""
MODEL_FRAMEWORK = "megatron_bridge"
"""Framework whose own factors are 1: the terms of all are its."""

Record = TypeVar("Record", bound=Strict)


class Term(Struct, frozen=True):
    """One fitted number. spread, centre: of its deviation before anything was measured, standard deviation and mean."""

    name: str
    spread: float
    centre: float = 0.0


def term_family(name: str) -> str:
    """The family of a term among others of its kind, whose spread is fitted; "" for one of a kind.

    Factors of frameworks, values of transfers and of RL steps.
    """
    head, *rest = name.split("/")
    if head == "training" and len(rest) > 1:
        return f"term: framework {rest[-1]}"
    if head == "transfers":
        return "term: transfers" if len(rest) == 1 else f"term: transfer {rest[-1]}"
    if head == "steps":
        return "term: rollout release" if rest[0] == "host" else "term: rollouts"
    return ""


def terms_of(fitted: Fitted) -> tuple[Term, ...]:
    """Every term of the sets, centred at the values that were assumed before anything was measured."""
    return (*_engine_terms(fitted), *_training_terms(fitted), *_transfer_terms(fitted), *_step_terms(fitted))


def _engine_terms(fitted: Fitted) -> list[Term]:
    now, start = fitted.engines, load_engine_parameters(START)
    layers = dict.fromkeys(LayerKernels.model_fields, ENGINE_VALUE_SPREAD)
    out = _scaling("engines", {"network_hop_s": ENGINE_VALUE_SPREAD}, now, vars(start))
    out += _scaling("engines", layers, now.layers, vars(start.layers))
    for family in now.families:
        # An engine that the assumed set lacks is centred at its fitted values.
        before = start.family(family.engine) if family.engine in start.names else family
        spreads = dict.fromkeys(ENGINE_VALUES, ENGINE_VALUE_SPREAD)
        out += _scaling(f"engines/{family.engine}", spreads, family, vars(before))
    return out


def _training_terms(fitted: Fitted) -> list[Term]:
    now, start = fitted.training, load_training_parameters(START)
    out = _scaling("training", TRAINING_SPREAD, now, {name: value_of(start, name) for name in TRAINING_SPREAD})
    for one in now.frameworks:
        if one.framework != MODEL_FRAMEWORK:
            out += _scaling(f"training/{one.framework}", FRAMEWORK_SPREAD, one, dict.fromkeys(FRAMEWORK_SPREAD, 1.0))
    return out


def _transfer_terms(fitted: Fitted) -> list[Term]:
    now, start = fitted.transfers, load_transfer_parameters(START)
    spreads = dict.fromkeys(type(now.values).model_fields, TRANSFER_SPREAD)
    out = _scaling("transfers", spreads, now.values, vars(start.values))
    whole = {**dict.fromkeys(TRANSFER_FAMILY_SPREAD, 1.0), "fixed_s": now.values.fixed_s}
    for one in now.families:
        out += _scaling(f"transfers/{one.framework}", TRANSFER_FAMILY_SPREAD, one, whole)
    return out


def _step_terms(fitted: Fitted) -> list[Term]:
    now, start, out = fitted.steps, load_parameters(START), list[Term]()
    for host in now.engine_hosts:
        before = start.release(host.engine, host.version).iteration_s
        # Added and not multiplied: some of these times are 0, and a factor would hold them there.
        centre = (before - host.iteration_s) / ENGINE_HOST_SCALE
        out.append(Term(f"steps/host/{host.engine}/{host.version}", STEP_SPREAD, centre))
    for path, scale in STEP_SCALES.items():
        out.append(Term(f"steps/{path}", STEP_SPREAD, (value_of(start, path) - value_of(now, path)) / scale))
    return out


def _scaling(at: str, spreads: Mapping[str, float], held: Strict, start: Mapping[str, float]) -> list[Term]:
    """Terms that are multiplied, of the values that ``held`` has and the set ``at`` calls so.

    start: values before anything was measured; one of no time has nowhere to start from and stays where it is.
    """
    out = []
    for name, spread in spreads.items():
        now = value_of(held, name)
        out.append(Term(f"{at}/{name}", spread, log(start[name] / now) if now > 0 and start[name] > 0 else 0.0))
    return out


def value_of(parameters: Strict, path: str) -> float:
    """The value of a term: of a field, or of the entry of one (``host_cpu_factors.Grace``)."""
    name, _, key = path.partition(".")
    value = getattr(parameters, name)
    return float(value[key] if key else value)


def moved(fitted: Fitted, deviations: Mapping[str, float]) -> Fitted:
    """The sets with each named term moved by its deviation. Raises KeyError for a name that is none of theirs."""
    for name, z in deviations.items():
        if z:
            fitted = _moved(fitted, name, z)
    return fitted


def _moved(fitted: Fitted, name: str, z: float) -> Fitted:
    head, *path = name.split("/")
    if head == "engines":
        return replace(fitted, engines=_scaled(fitted.engines, path, z))
    if head == "training":
        return replace(fitted, training=_scaled(fitted.training, path, z))
    if head == "transfers":
        return replace(fitted, transfers=_transfers(fitted.transfers, path, z))
    return replace(fitted, steps=_steps(fitted.steps, "/".join(path), z))


_MEMBERS = {
    EngineParameters: ("families", "engine", "layers"),
    TrainingParameters: ("frameworks", "framework", ""),
    TransferParameters: ("families", "framework", "values"),
}
"""Where a record has members, what each of them is called by, and where values lie that are of none."""


def _scaled(record: Record, path: Sequence[str], z: float) -> Record:
    """``record`` with the value at ``path``, names of members and then of a field, times exp(z)."""
    name, *rest = path
    field, _, key = name.partition(".")
    if not rest and field not in type(record).model_fields:
        inner = _MEMBERS[type(record)][2]
        return replaced(record, {inner: _scaled(getattr(record, inner), path, z)})
    if not rest:
        held = getattr(record, field)
        value = (held[key] if key else held) * exp(z)
        # exp(z) may carry a share above 1.
        value = min(1.0, value) if name in SHARES else value
        return replaced(record, {field: {**held, key: value} if key else value})
    field, key, _ = _MEMBERS[type(record)]
    members = getattr(record, field)
    if not any(getattr(one, key) == name for one in members):
        raise KeyError("no such term")
    return replaced(
        record, {field: tuple(_scaled(one, rest, z) if getattr(one, key) == name else one for one in members)}
    )


def _transfers(transfers: TransferParameters, path: list[str], z: float) -> TransferParameters:
    out = _scaled(transfers, path, z)
    # Fixed times of frameworks are seconds and not factors: a move of the shared value must reach each of them.
    for family in transfers.families if path == ["fixed_s"] else ():
        out = _scaled(out, [family.framework, "fixed_s"], z)
    return out


def limits_of(fitted: Fitted, name: str) -> tuple[float, float]:
    """Deviations of a term within which its value moves: those of RL steps end at their least value, shares at 1, what
    physics bounds of an engine there."""
    head, *path = name.split("/")
    if head == "engines" and path[-1] in ENGINE_MOST:
        return -inf, log(ENGINE_MOST[path[-1]] / getattr(fitted.engines.family(path[0]), path[-1]))
    if head != "steps":
        last = path[-1] if path else ""
        held = {"engines": fitted.engines, "training": fitted.training, "transfers": fitted.transfers.values}.get(head)
        value = getattr(held, last, None) if len(path) == 1 and last in SHARES else None
        return -inf, inf if not value else log(1.0 / value)
    if path[0] == "host":
        host = next(one for one in fitted.steps.engine_hosts if (one.engine, one.version) == tuple(path[1:]))
        return -host.iteration_s / ENGINE_HOST_SCALE, inf
    value, scale = value_of(fitted.steps, path[0]), STEP_SCALES[path[0]]
    # Efficiencies are speeds relative to tuned pretraining, which nothing exceeds (schema/parameters.py).
    most = (1.0 - value) / scale if path[0].endswith("_efficiency") else inf
    return (STEP_LEAST.get(path[0], 0.0) - value) / scale, most


def _steps(steps: GlobalParameters, path: str, z: float) -> GlobalParameters:
    if path.startswith("host/"):
        hosts = list(steps.engine_hosts)
        place = {f"host/{host.engine}/{host.version}": place for place, host in enumerate(hosts)}[path]
        longer = max(0.0, hosts[place].iteration_s + ENGINE_HOST_SCALE * z)
        hosts[place] = replaced(hosts[place], {"iteration_s": longer})
        return replaced(steps, {"engine_hosts": tuple(hosts)})
    name, _, key = path.partition(".")
    after = max(STEP_LEAST.get(path, 0.0), value_of(steps, path) + STEP_SCALES[path] * z)
    after = min(1.0, after) if path.endswith("_efficiency") else after
    return replaced(steps, {name: {**getattr(steps, name), key: after} if key else after})


def fitted_of(scenario: Scenario) -> Fitted:
    """Fitted values of ``scenario``.

    Sets other than those that its posterior belongs to stay as they are; groups then keep their deviations only where
    all sets are those of the posterior.
    """
    posterior = load_posterior(scenario.simulation.posterior or DEFAULT)
    return with_posterior(own_sets(scenario), posterior)


def current() -> Fitted:
    """The fitted values of rlsim."""
    return with_posterior(shipped(), load_posterior(DEFAULT))


def with_posterior(sets: Fitted, posterior: Posterior | None) -> Fitted:
    """``sets`` moved by ``posterior``."""
    plain = replace(sets, posterior=None)
    return plain if posterior is None else _by_posterior(plain, posterior)


@lru_cache(maxsize=16)
def _by_posterior(sets: Fitted, posterior: Posterior) -> Fitted:
    known = {name: set_digest(one) == posterior.digests.get(name) for name, one in sets.sets.items()}
    # A term's name begins with that of its set.
    after = moved(sets, {name: z for name, z in posterior.shifts.items() if known.get(name.partition("/")[0])})
    return replace(after, posterior=posterior if all(known.values()) else None)
