"""Names and numbers as people read them: shared by the text, the picture and the timeline."""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import dataclass

from rlsim.results import Arm, Projection, Quantity
from rlsim.units import GIB

METHODS = {
    "none": "autoregressive",
    "eagle3": "EAGLE-3",
    "mtp": "MTP head",
    "draft_model": "draft model",
    "ngram": "n-gram",
    "suffix": "suffix decoding",
}
PHASE_LABELS = {
    "data": "data",
    "prepare": "prepare",
    "generation": "generation",
    "logprob": "log-prob",
    "train": "train",
    "refit": "refit",
    "exposed_generation": "exposed generation",
    "other": "other",
}
ABBREVIATIONS = {"kv": "KV", "cuda": "CUDA", "gpu": "GPU", "gpus": "GPUs", "moe": "MoE", "lm": "LM"}
SYNC_PHASES = ("data", "prepare", "generation", "logprob", "train")
"""What a synchronous step adds up."""
ASYNC_PHASES = ("exposed_generation", "data", "prepare", "logprob", "train", "refit")
"""What the trainer's step adds up to when generation runs beside it."""
PACE_SHARE = 0.05
"""Waiting below this share of an asynchronous step means that the trainer sets the pace."""
NOTABLE_SHARE = 0.005
"""Differences and rests below this share of a step are rounding to a reader."""


@dataclass(frozen=True)
class Piece:
    """One phase on the path of a step: its name without unit and its seconds in one arm."""

    phase: str
    seconds: float


def phase_name(raw: str) -> str:
    """A phase without its unit suffix: ``generation_s`` and ``generation`` are the same phase."""
    return raw.removesuffix("_s")


def phase_label(raw: str) -> str:
    """A phase as readers call it; unknown names lose their underscores."""
    name = phase_name(raw)
    return PHASE_LABELS.get(name) or plain(name)


def speculates(arm: Arm) -> bool:
    """Whether anything is drafted."""
    return arm.method != "none" and arm.draft_length > 0


def arm_label(arm: Arm) -> str:
    """``EAGLE-3, k=3, acceptance length 3.00`` or ``autoregressive``."""
    if not speculates(arm):
        return METHODS["none"]
    method = METHODS.get(arm.method, arm.method)
    return f"{method}, k={arm.draft_length}, acceptance length {arm.acceptance_length.mean:.2f}"


def is_async(projection: Projection) -> bool:
    """Whether generation runs beside the trainer."""
    return projection.mode == "async"


def step_pieces(arm: Arm, asynchronous: bool) -> list[Piece]:
    """The phases whose sum is the step, in order; what they leave of it (or exceed it by) is the piece ``other``."""
    names = ASYNC_PHASES if asynchronous else SYNC_PHASES
    pieces = [Piece(name, arm.phases[f"{name}_s"].mean) for name in names]
    rest = arm.step_s.mean - sum(piece.seconds for piece in pieces)
    if abs(rest) > NOTABLE_SHARE * arm.step_s.mean:
        pieces.append(Piece("other", rest))
    return pieces


def waiting_share(arm: Arm) -> float:
    """Share of an asynchronous step in which the trainer waits for generation."""
    return arm.phases["exposed_generation_s"].mean / arm.step_s.mean if arm.step_s.mean else 0.0


def trainer_sets_pace(arm: Arm) -> bool:
    """Whether generation hides behind the trainer in an asynchronous step."""
    return waiting_share(arm) < PACE_SHARE


def plain(name: str) -> str:
    """An identifier as words, abbreviations in their usual case: ``kv_cache`` is ``KV cache``."""
    return " ".join(ABBREVIATIONS.get(word, word) for word in name.split("_"))


def decimals_for(largest: float) -> int:
    """Decimals that give a column led by ``largest`` three to four significant digits."""
    if largest <= 0 or not math.isfinite(largest):
        return 1
    return min(9, max(1, 3 - math.floor(math.log10(largest))))


def fixed(value: float, decimals: int) -> str:
    """Fixed decimals with thousands separators; a positive value that would print as zero becomes ``<0.1``."""
    least = 10.0**-decimals
    if 0 < abs(value) < least / 2:
        return f"<{least:.{decimals}f}"
    return f"{value:,.{decimals}f}"


def number(value: float) -> str:
    """Four significant digits without exponent where that stays readable; integers stay integers."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 1e9 or magnitude < 1e-4:
        return f"{value:.3g}"
    if magnitude >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(magnitude)))}f}".rstrip("0").rstrip(".")


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


def percent(share: float) -> str:
    """A share as whole percent; what is there but rounds to nothing says so."""
    if 0 < share < 0.005:
        return "<1 %"
    return f"{share:.0%}".replace("%", " %")


def ratio(baseline: float, candidate: float) -> str:
    """Speedup ``baseline / candidate`` as ``1.62x``; ``-`` where either is missing."""
    if baseline <= 0 or candidate <= 0:
        return "-"
    value = baseline / candidate
    return f"{value:.2f}x" if value < 100 else f"{value:.0f}x" if value < 1000 else ">999x"


def times(quantity: Quantity) -> str:
    """A speedup with its interval: ``2.41x [2.35, 2.47]``."""
    return f"{quantity.mean:.2f}x [{quantity.low:.2f}, {quantity.high:.2f}]"


def verdict(quantity: Quantity) -> str:
    """``shortens``, ``lengthens``, ``unclear`` where the interval holds 1, ``unchanged`` within NOTABLE_SHARE of 1."""
    if abs(quantity.mean - 1) < NOTABLE_SHARE and not quantity.low < 1 < quantity.high:
        return "unchanged"
    return "shortens" if quantity.low > 1 else "lengthens" if quantity.high < 1 else "unclear"


def headline(projection: Projection) -> str:
    """The answer in one sentence."""
    where = f"on {projection.num_gpus:,} {projection.hardware}"
    arm = projection.candidate
    if not speculates(arm):
        step = arm.step_s
        return (
            f"No speculative decoding is configured: a step takes {seconds(step.mean)} "
            f"[{seconds(step.low)}, {seconds(step.high)}] {where}."
        )
    rollout, step = projection.rollout_speedup, projection.end_to_end_speedup
    clauses = (_clause(rollout, "the rollout"), _clause(step, "the step"))
    if verdict(rollout) == verdict(step):
        text = _joined(rollout, step)
    else:
        neither = {verdict(rollout), verdict(step)} == {"unclear", "unchanged"}
        text = f"{clauses[0]} {'and' if neither else 'but'} {clauses[1]}"
    return f"Speculative decoding ({arm_label(arm)}) {text} {where}."


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters that keep a number and its interval together."""
    glued = re.sub(r"\S+ \[[^\]]*\]", lambda found: found.group().replace(" ", "\N{NO-BREAK SPACE}"), text)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in textwrap.wrap(glued, width)]


def hanging(text: str, indent: int, width: int, label: str = "") -> list[str]:
    """Wrapped lines at ``indent`` spaces, of which the first begins with ``label``."""
    blank = " " * indent
    first = label or blank
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=blank, break_on_hyphens=False)


def _joined(rollout: Quantity, step: Quantity) -> str:
    verb = verdict(rollout)
    if verb == "unclear":
        return f"changes neither the rollout ({times(rollout)}) nor the step ({times(step)}) beyond the 90 % interval"
    if verb == "unchanged":
        return f"changes neither the rollout ({times(rollout)}) nor the step ({times(step)})"
    if verb == "lengthens":
        return f"slows the rollout down, speedup {times(rollout)}, and the step, {times(step)},"
    return f"shortens the rollout {times(rollout)} and the step {times(step)}"


def _clause(quantity: Quantity, what: str) -> str:
    verb = verdict(quantity)
    if verb == "unclear":
        return f"does not change {what} beyond the 90 % interval ({times(quantity)})"
    if verb == "unchanged":
        return f"does not change {what} ({times(quantity)})"
    if verb == "lengthens":
        return f"slows {what} down, speedup {times(quantity)},"
    return f"shortens {what} {times(quantity)}"
