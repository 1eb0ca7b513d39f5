"""What a projection does not know for sure: uncertain inputs as ranges of scenario keys, each with its reason.

A draw moves every input uniformly within its range (in the logarithm where the range is a factor). The ranges are
assumptions themselves; ``key=low:high`` overrides one or adds another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlsim.costs.overheads import overheads_of
from rlsim.costs.refit_methods import tensor_s
from rlsim.costs.weight_transfer import job_of
from rlsim.errors import InputError
from rlsim.hardware.parameters import fitted_of
from rlsim.planning.variation import Overrides, check_key
from rlsim.schema.scenario import Scenario
from rlsim.workload.acceptance import acceptance_of

FloatArray = NDArray[np.float64]

ACCEPTED = "accepted_tokens_factor"
"""Not a scenario key: scales all position acceptances, and with them acceptance length - 1."""
EFFICIENCY = "trainer.device_efficiency_factor"
"""Not a scenario key: scales the efficiencies of dense and of expert layers from their values in effect, up to 1."""

HOST_FACTOR = 2.0
"""Host times are round assumptions; published engines differ by about this factor either way."""
DEVICE_FACTOR = 1.15
"""Modelled kernels and links: spread of achieved efficiencies between shapes of the measured tables."""
EFFICIENCY_FACTOR = 1.2
"""Training frameworks on one model and device differ by about this factor in published throughput."""
OVERLAP_SPREAD = 0.3
"""What hidden communication costs differs so much between the kinds that the fit to training steps puts together."""
LINK_FACTOR = 1.25
"""Achieved share of a link's rate between message sizes and libraries."""
ACCEPTANCE_SPREAD = 0.10
"""Relative range of the drafted tokens accepted: published lengths of one drafter differ so much between math sets."""
MEAN_LENGTH_FACTOR = 1.15
"""Mean response length: it drifts by more over a training run, and is rarely known better beforehand."""
LOG_SIGMA_SPREAD = 0.25
"""Relative range of the spread of log lengths; published runs give means, seldom shapes."""
CORRELATION_SPREAD = 0.3
"""Range of the correlation of lengths inside a prompt group, which no published run tells."""


@dataclass(frozen=True)
class UncertainInput:
    """A scenario key between two values. log: uniform in the logarithm. reason: why the range is what it is."""

    key: str
    low: float
    high: float
    log: bool = False
    reason: str = ""

    def at(self, quantile: float) -> float:
        """Value at a quantile 0..1."""
        if self.log:
            return math.exp(math.log(self.low) + quantile * (math.log(self.high) - math.log(self.low)))
        return self.low + quantile * (self.high - self.low)


def uncertain_inputs(scenario: Scenario, overrides: Sequence[str] = ()) -> tuple[UncertainInput, ...]:
    """Uncertain inputs that matter to ``scenario``; overrides: ``key=low:high`` each. Raises InputError."""
    found = [*_host(scenario), *_device(scenario), *_workload(scenario), *_speculation(scenario)]
    named = {item.key: item for item in found}
    for text in overrides:
        item = _parse(text)
        named[item.key] = item
        if item.key in _efficiencies(scenario):
            named.pop(EFFICIENCY, None)
    return tuple(named.values())


def _factor(key: str, value: float, factor: float, reason: str) -> UncertainInput:
    return UncertainInput(key, value / factor, value * factor, True, reason)


def _efficiencies(scenario: Scenario) -> Mapping[str, float]:
    """Efficiencies of training in effect, by the key that states each."""
    now = overheads_of(scenario, fitted_of(scenario)).training
    out = {"trainer.device_efficiency": now.dense_speed * now.dense_efficiency}
    if scenario.model.moe is None:
        return out
    return {**out, "trainer.moe_device_efficiency": now.moe_speed * now.dense_efficiency}


def _host(scenario: Scenario) -> list[UncertainInput]:
    """Host times and efficiencies that no operator table holds, around the values in effect."""
    now = overheads_of(scenario, fitted_of(scenario))
    moe, per_tensor_s = scenario.model.moe is not None, tensor_s(job_of(scenario), now.refit)
    out = [
        _factor("engine.host_iteration_s", now.engine.iteration_s, HOST_FACTOR, "host work per iteration"),
        _factor("engine.host_sequence_s", now.engine.sequence_s, HOST_FACTOR, "host work per sequence"),
        _factor("loop.driver_sample_s", scenario.loop.driver_sample_s, HOST_FACTOR, "driver work per sample"),
        _factor("loop.refit_tensor_s", per_tensor_s, HOST_FACTOR, "host time per weight tensor of a refit"),
        _factor("loop.refit_fixed_s", now.refit.fixed_s, HOST_FACTOR, "fixed time of a refit"),
        _factor(EFFICIENCY, 1.0, EFFICIENCY_FACTOR, "share of the kernels' speed that the training framework reaches"),
    ]
    if moe:
        out.append(
            _factor("trainer.moe_host_layer_s", now.training.moe_host_layer_s, HOST_FACTOR, "host floor of a MoE layer")
        )
    else:
        out.append(_factor("trainer.host_launch_s", scenario.trainer.host_launch_s, HOST_FACTOR, "launch in training"))
    own = now.training.overlap_cost
    low, high = max(0.0, own - OVERLAP_SPREAD), min(1.0, own + OVERLAP_SPREAD)
    reason = "what communication beside computation costs it"
    out.append(UncertainInput("simulation.training_parameters.overlap_cost", low, high, False, reason))
    return [item for item in out if item.high > item.low]


def _device(scenario: Scenario) -> list[UncertainInput]:
    hardware = scenario.hardware
    factors = {
        "bf16_flops": (DEVICE_FACTOR, "efficiency of modelled matrix kernels"),
        "fp8_flops": (DEVICE_FACTOR, "efficiency of modelled matrix kernels"),
        "memory_bandwidth_bytes_per_s": (DEVICE_FACTOR, "efficiency of modelled memory-bound kernels"),
        "nvlink_bandwidth_bytes_per_s": (LINK_FACTOR, "achieved rate of modelled collectives"),
        "nvlink_latency_s": (LINK_FACTOR, "latency of modelled collectives"),
        "network_bandwidth_bytes_per_s": (LINK_FACTOR, "achieved rate of the network"),
        "eager_launch_s": (LINK_FACTOR, "host time of an eager launch"),
    }
    if "fp8" not in (scenario.engine.weight_precision, scenario.trainer.precision):
        del factors["fp8_flops"]
    return [
        _factor(f"hardware.{name}.value", float(getattr(hardware, name)), factor, reason)
        for name, (factor, reason) in factors.items()
    ]


def _workload(scenario: Scenario) -> list[UncertainInput]:
    length, rho = scenario.workload.response_tokens, scenario.workload.group_correlation
    low, high = max(0.0, rho - CORRELATION_SPREAD), min(1.0, rho + CORRELATION_SPREAD)
    out = [UncertainInput("workload.group_correlation", low, high, False, "unpublished")]
    mean = getattr(length, "mean_tokens", None)
    if mean is not None:
        highest = min(mean * MEAN_LENGTH_FACTOR, 0.9 * scenario.workload.max_sequence_tokens)
        item = UncertainInput(
            "workload.response_tokens.mean_tokens", mean / MEAN_LENGTH_FACTOR, highest, True, "mean length"
        )
        out += [item] if item.high > item.low else []
    sigma = getattr(length, "log_sigma", 0.0)
    if sigma > 0:
        low, high = sigma * (1 - LOG_SIGMA_SPREAD), min(3.0, sigma * (1 + LOG_SIGMA_SPREAD))
        out.append(
            UncertainInput("workload.response_tokens.log_sigma", low, high, False, "shape of the length distribution")
        )
    return out


def _speculation(scenario: Scenario) -> list[UncertainInput]:
    if not scenario.speculation.active:
        return []
    return [
        UncertainInput(
            ACCEPTED,
            1 - ACCEPTANCE_SPREAD,
            1 + ACCEPTANCE_SPREAD,
            False,
            "drafted tokens accepted, relative to the scenario",
        )
    ]


def _parse(text: str) -> UncertainInput:
    key, equals, span = text.partition("=")
    low, colon, high = span.partition(":")
    if not equals or not colon:
        raise InputError(f"--uncertain '{text}' is not KEY=LOW:HIGH, such as engine.host_iteration_s=0.001:0.003")
    if key not in (ACCEPTED, EFFICIENCY):
        check_key(key, f"--uncertain {text}")
    try:
        bounds = float(low), float(high)
    except ValueError as error:
        raise InputError(f"--uncertain {text}: LOW and HIGH must be numbers") from error
    if not bounds[0] < bounds[1]:
        raise InputError(f"--uncertain {text}: LOW must be below HIGH")
    return UncertainInput(key, *bounds, reason="given")


def drawn_overrides(scenario: Scenario, inputs: Sequence[UncertainInput], quantiles: FloatArray) -> Overrides:
    """Overrides of ``scenario`` with every input at its quantile, in order."""
    out: Overrides = {}
    for item, quantile in zip(inputs, quantiles, strict=True):
        value = item.at(float(quantile))
        if item.key == ACCEPTED:
            out |= _scaled_acceptance(scenario, value)
        elif item.key == EFFICIENCY:
            out |= {key: min(1.0, now * value) for key, now in _efficiencies(scenario).items()}
        else:
            out[item.key] = value
    return out


def _scaled_acceptance(scenario: Scenario, factor: float) -> Overrides:
    speculation = scenario.speculation
    if not speculation.active:
        return {}
    match = speculation.match_probability if speculation.method in ("ngram", "suffix") else 1.0
    rates = acceptance_of(speculation).position_rates / (match or 1.0)
    return {
        "speculation.acceptance_length": None,
        "speculation.first_acceptance": None,
        "speculation.position_acceptance": [float(p) for p in np.minimum(rates * factor, 1.0)],
    }
