"""Money and energy of a step, from the price and the power limit of the hardware profile."""

from __future__ import annotations

from rlsim.schema.scenario import Scenario

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0


def cost_usd(scenario: Scenario, seconds: float) -> float:
    """Price of all GPUs of the scenario for ``seconds``, busy or not (hardware.price_per_gpu_hour_usd)."""
    return scenario.cluster.num_gpus * scenario.hardware.price_per_gpu_hour_usd.value * seconds / SECONDS_PER_HOUR


def energy_j(scenario: Scenario, seconds: float) -> float:
    """Energy in joules of all GPUs at their power limit (hardware.power_w) for ``seconds``: an upper bound."""
    return scenario.cluster.num_gpus * scenario.hardware.power_w.value * seconds


def price_notes(*scenarios: Scenario) -> str:
    """What costs rest on: the price per GPU-hour of each device, and where it comes from."""
    lines = []
    for scenario in scenarios:
        price = scenario.hardware.price_per_gpu_hour_usd
        lines.append(
            f"Costs at {price.value:g} USD per GPU-hour of {scenario.hardware.name} ({price.source}; "
            "hardware.price_per_gpu_hour_usd)."
        )
    return "\n" + "\n".join(dict.fromkeys(lines)) + "\n"
