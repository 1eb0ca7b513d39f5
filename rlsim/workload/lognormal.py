"""Means of lognormal lengths that are cut, and roots of what increases."""

import math
from collections.abc import Callable


def limited_lognormal_mean(location: float, sigma: float, cap: float) -> float:
    """E[min(X, cap)] for ln X normal with mean ``location`` and standard deviation ``sigma``; tokens.

    Limited expected value of the lognormal (Klugman, Panjer, Willmot, Loss Models, appendix A.5.1).

    >>> round(limited_lognormal_mean(7.0, 0.0, 2000.0), 3) == round(math.exp(7.0), 3)
    True
    """
    if sigma == 0:
        return min(math.exp(min(location, 700.0)), cap)  # exp overflows beyond 709
    # Both tails by erfc: 1 - Phi would lose all digits where the cap lies far out.
    z = (math.log(cap) - location) / sigma
    below = math.erfc((sigma - z) / math.sqrt(2)) / 2
    mean = math.exp(location + sigma * sigma / 2) * below if below > 0 else 0.0
    return mean + cap * math.erfc(z / math.sqrt(2)) / 2


def increasing_root(function: Callable[[float], float]) -> float:
    """Root of an increasing function in -30..60 (logarithms of tokens or scales) by bisection, to 1e-12."""
    # Bisection and not Newton: the truncated mean is flat where nearly all lengths reach the cap.
    low, high = -30.0, 60.0
    while high - low > 1e-12 * max(1.0, abs(low)):
        middle = 0.5 * (low + high)
        if middle in (low, high):  # no double lies between them
            break
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return high
