"""The steady steps of a run: which they are, what its phases take in them, and the lengths and the acceptance that they
tell as keys of the scenario that describes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from rlsim.errors import InputError
from rlsim.loading.scenario import vary
from rlsim.readers.logs.banners import GPU, profile_of
from rlsim.readers.logs.naming import CHECKED, PHASES
from rlsim.readers.logs.reading import RunLog
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Scenario
from rlsim.schema.stated import ACCEPTANCE, PROMPT, RESPONSE
from rlsim.schema.workload import ConstantLength
from rlsim.units import FloatArray

FEWEST_TO_DROP = 4
"""Steps of a log from which on the first is dropped: it compiles, captures graphs and fills the buffers."""
SLOW = 1.5
"""Further steps at the beginning are dropped while one of WARMING takes so many times its median."""
WARMING = ("train", "logprob", "refit")
FEWEST_FOR_SPREAD = 5
"""Steps from which on the spread between them is taken from the log, below it from the simulated ones."""
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, of many normal values (Kendall and Stuart, vol. 1, 10.12)."""
DRIFT = 0.1
"""Difference between the medians of both halves of the steps, as a share, from which it is told."""


@dataclass(frozen=True)
class Measured:
    """What one phase takes over the steady steps, in seconds, or a length in tokens.

    low, high: 10th and 90th percentile of the steps. log_deviation: standard deviation of the steps' logarithms; None
    of too few. count: steps that tell it.
    """

    median: float
    mean: float
    low: float
    high: float
    log_deviation: float | None
    count: int

    @classmethod
    def of(cls, values: FloatArray) -> Measured:
        """Of at least one value."""
        low, high = np.percentile(values, (10, 90))
        above = values[values > 0]
        deviation = float(np.log(above).std(ddof=1)) if above.size >= FEWEST_FOR_SPREAD else None
        return cls(float(np.median(values)), float(values.mean()), float(low), float(high), deviation, values.size)

    def error(self, simulated: FloatArray) -> float:
        """Standard error of the logarithm of measured over simulated median, as far as their few steps leave it open.

        simulated: seconds of the simulated steps. Steps count as independent.
        """
        above = simulated[simulated > 0]
        drawn = float(np.log(above).std()) if above.size else 0.0
        own = drawn if self.log_deviation is None else self.log_deviation
        return MEDIAN_ERROR * math.sqrt(own**2 / self.count + drawn**2 / max(above.size, 1))


@dataclass(frozen=True, eq=False)
class Steady:
    """The steps of a run that count, and what is known of them. first, last: their numbers; dropped: those before;
    banners: what the log names of GPU and releases; span: steps that a record of the log holds."""

    first: int
    last: int
    dropped: int
    found: Mapping[str, Measured]
    remarks: tuple[str, ...]
    banners: Mapping[str, str] = field(default_factory=dict)
    span: int = 1


def steady_of(log: RunLog, chosen: tuple[int, int] | None = None) -> Steady:
    """The steady steps of ``log``. chosen: first and last number of the steps to take, default all after the warm-up.

    Raises InputError where no step is left.
    """
    steps = np.array(log.steps)
    kept = np.arange(steps.size) >= warmup_of(log) if chosen is None else (steps >= chosen[0]) & (steps <= chosen[1])
    found: dict[str, Measured] = {}
    for quantity, values in log.values.items():
        mine = values[kept & np.isfinite(values)]
        if mine.size:
            found[quantity] = Measured.of(mine)
    if not any(quantity in found for quantity in PHASES):
        first, last = chosen or (log.steps[0], log.steps[-1])
        told = f"it has steps {log.steps[0]} to {log.steps[-1]}"
        raise InputError(f"{log.where}: no step of {first}:{last} tells a time; {told}")
    numbers = steps[kept]
    before = int(np.count_nonzero(steps < numbers[0]))
    remarks = (*log.remarks, *_drifts(log, kept))
    return Steady(int(numbers[0]), int(numbers[-1]), before, found, remarks, log.banners, log.span)


def warmup_of(log: RunLog) -> int:
    """Steps at the beginning that are no steady ones."""
    count = len(log.steps)
    if count < FEWEST_TO_DROP:
        return 0
    most = 1
    for quantity in WARMING:
        values = log.values.get(quantity)
        if values is not None and np.isfinite(values).any():
            limit = SLOW * float(np.nanmedian(values))
            slow = sum(1 for _ in takewhile(lambda value: value > limit, values.tolist()))  # noqa: B023 - used at once
            most = max(most, slow)
    # What lasts longer than half of the steps is no warm-up.
    return min(most, count // 2)


def _drifts(log: RunLog, kept: np.ndarray) -> tuple[str, ...]:
    """Quantities that are another in the second half of the steps."""
    out = []
    for quantity in ("response_tokens", "train", "acceptance_length"):
        values = log.values.get(quantity)
        mine = np.zeros(0) if values is None else values[kept & np.isfinite(values)]
        if mine.size >= 2 * FEWEST_FOR_SPREAD:
            first, second = (float(np.median(half)) for half in np.array_split(mine, 2))
            if first > 0 and abs(second / first - 1) > DRIFT:
                out.append(
                    f"{quantity} moved from {first:.4g} to {second:.4g} between both halves of the steps: medians "
                    "stand for the middle, --steps FIRST:LAST takes a part"
                )
    return tuple(out)


LEAST_NOISE = 0.02
"""Deviation of a logged median's logarithm at least: what one run differs by from the next. Assumption."""


def measured_of(steady: Steady) -> tuple[dict[str, float], dict[str, float]]:
    """What a check takes of the steps: medians of times and means of lengths by name, and deviations of their
    logarithms."""
    taken: dict[str, Measured] = {name: one for name, one in steady.found.items() if name in CHECKED}
    errors = {
        # Standard error of a median, which shrinks with the steps of the log.
        name: max(LEAST_NOISE, MEDIAN_ERROR * one.log_deviation / one.count**0.5)
        for name, one in taken.items()
        if one.log_deviation is not None
    }
    # Work follows the mean of lengths; times have outliers, which a median leaves out.
    middle = {name: one.mean if name.endswith(("tokens", "length")) else one.median for name, one in taken.items()}
    return middle, errors


FACT_KEYS = {"response_tokens": RESPONSE, "prompt_tokens": PROMPT, "acceptance_length": ACCEPTANCE}
"""Keys of what a log tells of the work."""
HARDWARE = "hardware"
SAME = 0.02
"""Difference from what the scenario states, as a share, up to which its key stays as it is."""


@dataclass(frozen=True)
class Taken:
    """A key that the log sets. stated: in the scenario, None where it states none."""

    key: str
    stated: float | str | None
    measured: float | str

    @property
    def text(self) -> str:
        """The key with its value, and what the scenario had."""
        stated, measured = (
            one if one is None or isinstance(one, str) else f"{one:,.6g}" for one in (self.stated, self.measured)
        )
        return f"{self.key} = {measured}" + ("" if stated is None else f" (the scenario has {stated})")


def with_facts(scenario: Scenario, steady: Steady, stated: bool = True) -> tuple[Scenario, tuple[Taken, ...]]:
    """``scenario`` with the mean lengths and the acceptance length of the run, where it has others, and with its GPU
    and its engine's release where it guessed these; what it guessed is then known.

    stated: also in place of a response or an acceptance that somebody stated; prompts are as the run was given them.
    Raises InputError where these contradict the rest of it, as a mean response above the cap.
    """
    guessed = {key for one in scenario.assumptions if one.log_spread is not None for key in one.keys}
    known = {FACT_KEYS[name] for name in steady.found if name in FACT_KEYS}
    if scenario.workload.agent is not None:
        known -= {RESPONSE, PROMPT}
    if not scenario.speculation.active:
        known -= {ACCEPTANCE}
    known = known if stated else known & {PROMPT, *guessed}
    if profile_of(steady.banners.get(GPU, "")) is not None:
        known |= {HARDWARE}
    named = _named(scenario, steady.banners)
    taken = [*_lengths(scenario, steady, known), *_acceptance(scenario, steady, known), *named]
    changes: dict[str, float | str | None] = {one.key: one.measured for one in taken}
    if "speculation.acceptance_length" in changes:
        # A scenario states its acceptance in one of three ways (schema/speculation.py).
        changes |= {f"speculation.{name}": None for name in ("position_acceptance", "first_acceptance")}
    left = [
        one
        for one in scenario.assumptions
        if (one.log_spread is None and HARDWARE not in one.keys) or not known.intersection(one.keys)
    ]
    if not changes and len(left) == len(scenario.assumptions):
        return scenario, ()
    return replaced(vary(scenario, changes), {"assumptions": tuple(left)}), tuple(taken)


def _named(scenario: Scenario, banners: Mapping[str, str]) -> list[Taken]:
    """The GPU where the scenario guessed it, and the engine's release where it states none of its own."""
    out, profile, release = [], profile_of(banners.get(GPU, "")), banners.get(scenario.engine.name)
    guessed = any(HARDWARE in one.keys for one in scenario.assumptions)
    if guessed and profile not in (None, scenario.hardware.name):
        out.append(Taken(HARDWARE, scenario.hardware.name, str(profile)))
    if release is not None and scenario.engine.version is None and release != scenario.engine_version:
        out.append(Taken("engine.version", scenario.engine_version, release))
    return out


def _lengths(scenario: Scenario, steady: Steady, known: set[str]) -> list[Taken]:
    """Mean lengths; those of agents are of whole trajectories and tell no turn."""
    out = []
    for name in ("prompt_tokens", "response_tokens"):
        length, found = getattr(scenario.workload, name), steady.found.get(name)
        if found is None or FACT_KEYS[name] not in known:
            continue
        constant = isinstance(length, ConstantLength)
        stated = float(length.tokens) if constant else length.mean_tokens
        measured = float(max(1, round(found.mean))) if constant else found.mean
        if stated is None or abs(measured / stated - 1) > SAME:
            if measured >= scenario.workload.longest_response_tokens and name == "response_tokens":
                raise InputError(
                    f"the log's mean response of {measured:,.0f} tokens must be below the cap of the scenario, "
                    f"{scenario.workload.longest_response_tokens:,} (workload.max_sequence_tokens, max_response_tokens)"
                )
            key = f"workload.{name}.{'tokens' if constant else 'mean_tokens'}"
            out.append(Taken(key, stated, int(measured) if constant else float(f"{measured:.6g}")))
    return out


def _acceptance(scenario: Scenario, steady: Steady, known: set[str]) -> list[Taken]:
    found, given = steady.found.get("acceptance_length"), scenario.speculation
    if found is None or ACCEPTANCE not in known:
        return []
    if given.acceptance_length is not None and abs(found.mean / given.acceptance_length - 1) <= SAME:
        return []
    return [Taken("speculation.acceptance_length", given.acceptance_length, float(f"{found.mean:.5g}"))]
