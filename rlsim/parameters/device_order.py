"""Which device is better than which by their datasheets, as a prior of what groups of measured times deviate by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rlsim.files.lookup import catalogue
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.profile import load_profile

DeviceOrder = Mapping[str, Mapping[str, float]]
"""By device, each worse device with the least factor between their kernels' times, as a logarithm of at least 0."""


def shipped_order() -> DeviceOrder:
    """Order of the profiles that come with rlsim."""
    return order_of([load_profile(name) for name in sorted(catalogue("hardware_profiles"))])


def order_of(profiles: Iterable[HardwareProfile]) -> DeviceOrder:
    """Order of ``profiles``: one is better than another that it equals or exceeds in every rate, on the same host."""
    known = list(profiles)
    return {
        better.name: found
        for better in known
        if (found := {worse.name: _least_gain(better, worse) for worse in known if _exceeds(better, worse)})
    }


def _rates(profile: HardwareProfile) -> tuple[float, ...]:
    nvfp4 = 0.0 if profile.nvfp4_flops is None else float(profile.nvfp4_flops)
    links = profile.nvlink_bandwidth_bytes_per_s, profile.network_bandwidth_bytes_per_s
    return (*_kernel_rates(profile), nvfp4, *map(float, links))


def _kernel_rates(profile: HardwareProfile) -> tuple[float, ...]:
    """What every kernel is bound by."""
    return float(profile.memory_bandwidth_bytes_per_s), float(profile.bf16_flops), float(profile.fp8_flops)


def _exceeds(better: HardwareProfile, worse: HardwareProfile) -> bool:
    pairs = list(zip(_rates(better), _rates(worse), strict=True))
    return (
        better.host_cpu == worse.host_cpu
        and all(mine >= other for mine, other in pairs)
        and any(mine > other for mine, other in pairs)
    )


def _least_gain(better: HardwareProfile, worse: HardwareProfile) -> float:
    return math.log(min(a / b for a, b in zip(_kernel_rates(better), _kernel_rates(worse), strict=True)))


def ordered_mean(device: str, measured: Mapping[str, float], order: DeviceOrder) -> float:
    """Mean deviation of a group on ``device``, where it was never measured, in logarithms.

    measured: mean deviations of the same group on other devices. The mean of the population, 0, moved as little as it
    takes to keep times in the order of the datasheets: no deviation measured on one device alone makes a better one
    slower, or a worse one faster.
    """
    worse = order.get(device, {})
    high = min((measured[name] + gain for name, gain in worse.items() if name in measured), default=math.inf)
    better = {name: gains[device] for name, gains in order.items() if device in gains and name in measured}
    low = max((measured[name] - gain for name, gain in better.items()), default=-math.inf)
    return (low + high) / 2 if low > high else min(max(0.0, low), high)
