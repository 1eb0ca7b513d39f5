"""Names and numbers as people read them."""

import math
from collections.abc import Iterable

from rlsim.files.yaml import lists_beside
from rlsim.results import Interval, Variant
from rlsim.units import GIB, JOULES_PER_KWH

NAMES = lists_beside(__file__)
"""What keys of answers are called in reports, in the order in which they are shown; phases with their colours."""
METHODS: dict[str, str] = NAMES["methods"]
PHASE_LABELS: dict[str, str] = {phase: label for phase, (label, _) in NAMES["phases"].items()}
ASYNC_LABELS = {**PHASE_LABELS, "generation_s": "generation (busy)", "refit_s": "refit pause"}
"""Where generation runs beside the trainer: its busy time is no part of the step, its wait and the pause are."""


def phase_label(phase: str, asynchronous: bool) -> str:
    """A phase of the contract, or ``other``, as readers call it."""
    return (ASYNC_LABELS if asynchronous else PHASE_LABELS)[phase]


def variant_label(arm: Variant) -> str:
    """``EAGLE-3, k=3`` or ``autoregressive``."""
    return f"{METHODS[arm.method]}, k={arm.draft_length}" if arm.speculates else METHODS["none"]


def arm_label(arm: Variant) -> str:
    """``EAGLE-3, k=3, acceptance length 3.00``, ``EAGLE-3, k=3, no verification`` or ``autoregressive``."""
    if not arm.speculates:
        return variant_label(arm)
    length = arm.acceptance_length.mean  # 0 where responses of one token leave nothing to verify
    return f"{variant_label(arm)}, {f'acceptance length {length:.2f}' if length else 'no verification'}"


def decimals_for(largest: float, digits: int = 3) -> int:
    """Decimals that give a column led by ``largest`` as many significant digits, or one more."""
    if largest <= 0 or not math.isfinite(largest):
        return digits - 2
    return min(9, max(digits - 2, digits - math.floor(math.log10(largest))))


def fixed(value: float, decimals: int) -> str:
    """Fixed decimals with thousands separators; a positive value that would print as zero becomes ``<0.1``."""
    least = 10.0**-decimals
    if 0 < abs(value) < least / 2:
        return f"<{least:.{decimals}f}"
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"  # plus zero: -0.0 and -0.5 are printed without a sign


def number(value: float) -> str:
    """Four significant digits without exponent where that stays readable; integers stay integers."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    # Beyond these the zeros are harder to read than an exponent.
    if magnitude >= 1e9 or magnitude < 1e-4:
        return f"{value:.3g}"
    if magnitude >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(magnitude)))}f}".rstrip("0").rstrip(".")


def beside_tuned(tuned: Interval, own: Interval) -> str:
    """A step tuned as the recipes of a stack's makers beside those of users' runs, in one sentence."""
    return (
        f"Tuned as its makers' recipes, on the network of the datasheet, it would take {seconds(tuned.mean)}; "
        f"runs like this one take {seconds(own.low)} to {seconds(own.high)}."
    )


def seconds(value: float) -> str:
    """A duration with its unit, three significant digits: ``312 s``, ``8.40 s``, ``12.0 ms``."""
    magnitude = abs(value)
    if magnitude == 0:
        return "0 s"
    scale, unit = (1.0, "s") if magnitude >= 0.1 else (1e3, "ms") if magnitude >= 1e-4 else (1e6, "us")
    scaled = value * scale
    digits = min(2, max(0, 2 - math.floor(math.log10(abs(scaled)))))
    return f"{scaled:,.{digits}f} {unit}"


def gibibytes(value: float) -> str:
    """Bytes as GiB with one decimal, without the unit."""
    return fixed(value / GIB, 1)


def kwh(joules: float) -> str:
    """Joules as kWh without the unit: one decimal, or one significant digit of what would print as zero."""
    value = joules / JOULES_PER_KWH
    return f"{value:.1f}" if value >= 0.05 or value == 0 else f"{value:.1g}"


def counted(count: int, noun: str) -> str:
    """How many of what: ``1 cell``, ``2,000 cells``."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def percent(share: float, decimals: int = 0) -> str:
    """A share in percent; what is there but rounds to nothing says so."""
    return f"{fixed(100 * share, decimals)} %"


def signed_percent(share: float, decimals: int = 0) -> str:
    """A change in percent, with its sign: ``+4.2 %``."""
    return f"{100 * share:+.{decimals}f} %"


def ratio(baseline: float, candidate: float) -> str:
    """Speedup ``baseline / candidate`` as ``1.62x``; ``-`` where either is missing."""
    if baseline <= 0 or candidate <= 0:
        return "-"
    value = baseline / candidate
    return f"{value:.2f}x" if value < 100 else f"{value:.0f}x" if value < 1000 else ">999x"


def times(quantity: Interval) -> str:
    """A speedup with its interval: ``2.41x [2.35, 2.47]``."""
    return f"{quantity.mean:.2f}x [{quantity.low:.2f}, {quantity.high:.2f}]"


def price_remark(usd_per_gpu_hour: Iterable[float], source: str = "") -> str:
    """The price behind all amounts of money, and where it comes from."""
    shown = " or ".join(sorted({f"{price:.2f}" for price in usd_per_gpu_hour}))
    return f"USD at {shown} per GPU and hour (hardware.price_per_gpu_hour_usd{source and f', {source}'})"
