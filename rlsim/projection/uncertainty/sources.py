"""What the interval of a step comes from: its variance by sources that people can act on, and what settles each.

To first order the logarithm of the step is a sum of contributions, one for every source: its fitted terms and group
deviations times what the step makes of them. A source's share is cov(contribution, sum) / var(sum). Shares add up to 1
also where sources are correlated; one that the data tie to others with opposite sign can be negative. What the step
makes of a phase is averaged over its draws: the coefficients of the best linear predictor of a function of normal
variables are its mean derivatives (Stein 1981, doi:10.1214/aos/1176345632), which holds where an asynchronous step
changes from one pace to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.operators.groups import family_of, phase_groups, refit_method, series
from rlsim.costs.users import UNKNOWN
from rlsim.files.yaml import lists_beside
from rlsim.parameters.posterior import Posterior
from rlsim.projection.uncertainty.predictive import (
    DRAWS,
    PHASES,
    Prediction,
    cached_with_run,
    open_draws,
    parted_draws,
    posterior_of,
    prediction_of,
)
from rlsim.projection.uncertainty.slopes import LAUNCH
from rlsim.projection.variant import SimulatedVariant
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Stack
from rlsim.units import FloatArray

Kind = Literal["launches", "iterations", "training", "transfers", "steps", "inputs"]
"""What would be measured: the host's launches, rows of a table of that kind, or a guessed input of the scenario."""

_LISTS = lists_beside(__file__)
TRANSFER_TERMS = ("steps/colocated_tensor_s",)
LAYER_HOST = ("moe_host_layer_s", "expert_host_s", "bf16_expert_host_share", "graph_host_share", "overlap_host_factor",
              "static_host_share", "host_factor")  # fmt: skip
TRAINING_STEP_TERMS = ("dense_efficiency", "fsdp_efficiency")


class Origin(Struct, frozen=True):
    """A source. text: what it is. kind: what measures it. assumed: whether no measurement says anything of it."""

    text: str
    kind: Kind
    assumed: bool = False


def origin_of(name: str, scenario: Scenario, posterior: Posterior) -> Origin:
    """The source that a term or a group of ``scenario`` belongs to."""
    # Terms are paths (engines/vllm/iteration_s), groups are "family: member".
    if ":" not in name:
        source = _source_of_term(name)
    else:
        family = family_of(name)
        known, new = next(found for head, found in _LISTS["families"].items() if family.startswith(head))
        source = known if posterior.place(name) is not None else new
    text, kind = _LISTS["sources"][source]
    # What no measurement holds is drawn anew and is a source apart from what is known of its parts.
    return Origin(text.format(**_words(scenario)), kind, source == "launches" or source.startswith("new "))


def _source_of_term(name: str) -> str:
    if name == LAUNCH.name:
        return "launches"
    last = name.rpartition("/")[2]
    if name.startswith("transfers/") or name in TRANSFER_TERMS:
        return "transfers"
    if last in LAYER_HOST:
        return "layers"
    if name.startswith("training/") or last in TRAINING_STEP_TERMS:
        return "training"
    return "iterations" if name.startswith("engines/") else "rollouts"


def _words(scenario: Scenario) -> dict[str, object]:
    """Values of a scenario by the names that the texts of sources use."""
    engine, stack, trained = scenario.engine, scenario.stack, scenario.training_stack
    return {
        "engine": engine.name,
        "version": f" {scenario.engine_version}" if scenario.engine_version else "",
        "released": f"{engine.name} {series(scenario.engine_version or '')}".strip(),
        "tensor": engine.tensor_parallel,
        "model": scenario.model.name,
        "device": scenario.hardware.name,
        "framework": "other frameworks" if stack is None else f"{stack.framework} {stack.release or ''}".strip(),
        "trainer": _trainer_name(trained),
        "method": refit_method(scenario),
        "refit": scenario.refit_framework,
    }


def _trainer_name(stack: Stack | None) -> str:
    """What trains, as a clause names it; software that nobody names is the reader's."""
    if stack is None:
        return "other frameworks"
    return "your framework" if stack.framework == UNKNOWN else stack.framework


def settle(origin: Origin, scenario: Scenario) -> tuple[str, str]:
    """The measurement that would settle a source of ``scenario``, in a clause, and the command that takes it in."""
    clause, command = _LISTS["settled"][origin.kind]
    return clause.format(**_words(scenario)), command


STEP = 1e-3
"""Relative change of the finite differences."""


class Source(Struct, frozen=True, eq=False):
    """One source. draws: what it adds to the logarithm of the step, shape (DRAWS,). share: of the variance.

    name, settle, command: what it is, what would settle it, and the command that takes that in. kind: what measures it.
    assumed: whether no measurement says anything of it.
    """

    name: str
    kind: Kind
    share: float
    settle: str
    command: str
    assumed: bool
    draws: FloatArray

    @property
    def fields(self) -> dict[str, Any]:
        """Its fields in an answer, by name."""
        names = ("kind", "share", "assumed", "settle", "command")
        return {"source": self.name, **{name: getattr(self, name) for name in names}}


@cached_with_run
def sources_of(run: SimulatedVariant) -> tuple[Source, ...]:
    """Sources of the variance of a step, largest share first."""
    scenario, posterior = run.scenario, posterior_of(run.scenario)
    prediction = prediction_of(run)
    parts, weights = step_parts(scenario, posterior, prediction), mean_shares(prediction)
    opened = {
        Origin(one.name, "launches" if one.stepped else "inputs", True): sum(
            weights[phase] * moves[phase] for phase in PHASES
        )
        for one, moves in open_draws(run)
    }
    # The reshape is for a scenario without any part: np.array of nothing has one axis.
    draws = np.array([*parted_draws(posterior, list(parts.values())), *opened.values()]).reshape(-1, DRAWS)
    shares = covariance_shares(draws)
    found = [
        Source(origin.text, origin.kind, share, *settle(origin, scenario), origin.assumed, each)
        for origin, share, each in zip((*parts, *opened), shares.tolist(), draws, strict=True)
        if each.any()
    ]
    return tuple(sorted(found, key=lambda source: -source.share))


def covariance_shares(draws: FloatArray) -> FloatArray:
    """Covariance of each row of ``draws`` with their sum, over the variance of the sum; shares of nothing are 0."""
    whole = draws.sum(axis=0)
    variance = float(np.var(whole))
    covariances = (draws - draws.mean(axis=1, keepdims=True)) @ (whole - whole.mean()) / draws.shape[1]
    return covariances / variance if variance > 0 else np.zeros(len(draws))


def step_parts(
    scenario: Scenario, posterior: Posterior, prediction: Prediction
) -> dict[Origin, tuple[dict[str, float], dict[str, float]]]:
    """By origin, derivatives of the step's logarithm by terms, and its coefficients of groups."""
    shares, groups = mean_shares(prediction), phase_groups(scenario)
    out: dict[Origin, tuple[dict[str, float], dict[str, float]]] = {}
    for phase in PHASES:
        for name, slope in getattr(prediction.slopes, phase).items():
            terms, _ = out.setdefault(origin_of(name, scenario, posterior), ({}, {}))
            terms[name] = terms.get(name, 0.0) + shares[phase] * slope
        for name in groups[phase]:
            _, own = out.setdefault(origin_of(name, scenario, posterior), ({}, {}))
            own[name] = own.get(name, 0.0) + shares[phase]
    return out


def mean_shares(prediction: Prediction) -> dict[str, float]:
    """Derivatives of the step's logarithm by those of its phases, mean over the draws."""
    response, factors, out = prediction.response, prediction.factors, dict[str, float]()
    for phase in PHASES:
        more = response.seconds(replace(factors, **{phase: getattr(factors, phase) * (1 + STEP)}))
        out[phase] = float(np.mean(np.log(more / prediction.step_s))) / float(np.log1p(STEP))
    return out


def shares_by_kind(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares of a step by the kind of measurement that concerns them."""
    return {
        "iteration": shares["generation"],
        "training": shares["logprob"] + shares["train"],
        "transfer": shares["transfer"],
    }
