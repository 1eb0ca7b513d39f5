"""What a scenario states without knowing it for sure: inputs as ranges of scenario keys, each with its reason.

The model's own uncertainty is that of ``projection.uncertainty``. The ranges are assumptions; ``key=low:high``
overrides one or adds another.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rlsim.errors import InputError
from rlsim.loading.overrides import value_at
from rlsim.loading.variation import Overrides, check_key
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray
from rlsim.workload.acceptance import acceptance_of

ACCEPTED = "accepted_tokens_factor"
"""Not a scenario key: scales all position acceptances, and with them acceptance length - 1."""
ACCEPTANCE_SPREAD = 0.10
"""Relative range of the drafted tokens accepted: published lengths of one drafter differ so much between math sets."""
MEAN_LENGTH_FACTOR = 1.15
"""Mean response length: it drifts by more over a training run, and is rarely known better beforehand."""
LOG_SIGMA_SPREAD = 0.25
"""Relative range of the spread of log lengths; published runs give means, seldom shapes."""
CORRELATION_SPREAD = 0.3
"""Range of the correlation of lengths inside a prompt group, which no published run states."""


class UncertainInput(Struct, frozen=True):
    """A scenario key between two values. log: uniform in the logarithm. reason: why the range is what it is.

    own: the scenario's value; None where it states none. given: by the user.
    """

    key: str
    low: float
    high: float
    log: bool = False
    reason: str = ""
    own: float | None = None
    given: bool = False

    def at(self, quantile: float) -> float:
        """Value at a quantile 0..1."""
        if self.log:
            return math.exp(math.log(self.low) + quantile * (math.log(self.high) - math.log(self.low)))
        return self.low + quantile * (self.high - self.low)

    @property
    def centred(self) -> bool:
        """Whether the scenario's own value lies between both."""
        return self.own is not None and self.low < self.own < self.high

    @property
    def places(self) -> FloatArray:
        """Quantiles of the low end, the scenario's own value (else the middle) and the high end; shape (3,)."""
        middle = 0.5
        if self.own is not None and self.centred:
            low, own, high = (math.log(v) if self.log else v for v in (self.low, self.own, self.high))
            middle = (own - low) / (high - low)
        return np.array([0.0, middle, 1.0])

    @property
    def simulated(self) -> tuple[float, ...]:
        """Quantiles to simulate: those at which the scenario as it is does not stand."""
        return (0.0, 1.0) if self.centred else (0.0, 0.5, 1.0)


def uncertain_inputs(scenario: Scenario, overrides: Sequence[str] = ()) -> tuple[UncertainInput, ...]:
    """Stated inputs that matter to ``scenario``; overrides: ``key=low:high`` each. Raises InputError."""
    given = (_parse(text, scenario) for text in overrides)
    return tuple({item.key: item for item in (*_assumed(scenario), *given)}.values())


def _assumed(scenario: Scenario) -> list[UncertainInput]:
    """Ranges of what a scenario states of its workload and its drafts."""
    length, rho = scenario.workload.response_tokens, scenario.workload.group_correlation
    low, high = max(0.0, rho - CORRELATION_SPREAD), min(1.0, rho + CORRELATION_SPREAD)
    out = [UncertainInput("workload.group_correlation", low, high, False, "unpublished", rho)]
    mean = getattr(length, "mean_tokens", None)
    if mean is not None and mean < scenario.workload.longest_response_tokens:
        low = mean / MEAN_LENGTH_FACTOR
        # No distribution that is cut at a cap has a mean close to it: solve_distribution refuses one that reaches it.
        high = min(mean * MEAN_LENGTH_FACTOR, 0.9 * scenario.workload.longest_response_tokens)
        reason = "mean length drifts over a run"
        out += [UncertainInput("workload.response_tokens.mean_tokens", low, high, True, reason, mean)]
    sigma = getattr(length, "log_sigma", 0.0)
    # 3 is the schema's bound on log_sigma.
    low, high = sigma * (1 - LOG_SIGMA_SPREAD), min(3.0, sigma * (1 + LOG_SIGMA_SPREAD))
    out.append(UncertainInput("workload.response_tokens.log_sigma", low, high, False, "shape of the lengths", sigma))
    if scenario.speculation.active:
        reason, low, high = "accepted drafts, relative to the scenario", 1 - ACCEPTANCE_SPREAD, 1 + ACCEPTANCE_SPREAD
        out.append(UncertainInput(ACCEPTED, low, high, False, reason, 1.0))
    # A constant length has no spread to vary, and a mean near its cap no room above it.
    return [item for item in out if item.low < item.high]


def _parse(text: str, scenario: Scenario) -> UncertainInput:
    key, equals, span = text.partition("=")
    low, colon, high = span.partition(":")
    if not equals or not colon:
        raise InputError(f"--uncertain '{text}' is not KEY=LOW:HIGH, such as engine.host_iteration_s=0.001:0.003")
    if key != ACCEPTED:
        check_key(key, f"--uncertain {text}")
    try:
        bounds = float(low), float(high)
    except ValueError as error:
        raise InputError(f"--uncertain {text}: LOW and HIGH must be numbers") from error
    if not bounds[0] < bounds[1]:
        raise InputError(f"--uncertain {text}: LOW must be below HIGH")
    return UncertainInput(key, *bounds, reason="given", own=_stated_value(scenario, key), given=True)


def _stated_value(scenario: Scenario, key: str) -> float | None:
    """The value that ``scenario`` states for a key; None without one."""
    # A bool is an int to Python, and no range of numbers holds it.
    value = 1.0 if key == ACCEPTED else value_at(scenario, key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def drawn_overrides(scenario: Scenario, inputs: Sequence[UncertainInput], quantiles: FloatArray) -> Overrides:
    """Overrides of ``scenario`` with every input at its quantile, in order."""
    out: Overrides = {}
    for item, quantile in zip(inputs, quantiles, strict=True):
        value = item.at(float(quantile))
        if item.key == ACCEPTED:
            out |= _scaled_acceptance(scenario, value)
        else:
            out[item.key] = value
    return out


def _scaled_acceptance(scenario: Scenario, factor: float) -> Overrides:
    speculation = scenario.speculation
    if not speculation.active:
        return {}
    match = speculation.match_probability if speculation.method in ("ngram", "suffix") else 1.0
    # position_acceptance is of iterations with a proposal: the share of these is taken out again.
    rates = acceptance_of(speculation).position_rates / (match or 1.0)
    return {
        # Only one of the three ways to state an acceptance may be given.
        "speculation.acceptance_length": None,
        "speculation.first_acceptance": None,
        "speculation.position_acceptance": [float(p) for p in np.minimum(rates * factor, 1.0)],
    }
