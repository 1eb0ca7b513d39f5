"""A value model beside the policy, as parts of the phases that it works in."""

from rlsim.costs.interface import Part, PhaseCost


def critic_parts(name: str, cost: PhaseCost, swap_s: float) -> list[Part]:
    """A value model's pass or update as one part, and the swap around it."""
    longest = max(cost.parts, key=lambda part: part.seconds)
    return [Part(name, cost.seconds, longest.bound), Part("value model swap", swap_s, "host link")]
