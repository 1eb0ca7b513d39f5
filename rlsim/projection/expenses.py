"""What seconds of a scenario's cluster cost: money and energy."""

from __future__ import annotations

from rlsim.schema.scenario import Scenario
from rlsim.units import SECONDS_PER_HOUR


def price_usd(scenario: Scenario) -> float:
    """Price of a GPU for an hour (hardware.price_per_gpu_hour_usd)."""
    return scenario.hardware.price_per_gpu_hour_usd.value


def cost_usd(scenario: Scenario, seconds: float) -> float:
    """Price of all GPUs of the scenario for ``seconds``, busy or not."""
    return scenario.cluster.num_gpus * price_usd(scenario) * seconds / SECONDS_PER_HOUR


def energy_j(scenario: Scenario, seconds: float) -> float:
    """Energy in joules of all GPUs at their power limit (hardware.power_w) for ``seconds``: an upper bound."""
    return scenario.cluster.num_gpus * scenario.hardware.power_w.value * seconds
