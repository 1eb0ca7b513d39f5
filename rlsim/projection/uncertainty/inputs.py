"""What a scenario leaves open and nobody measured: values that its author guessed, and what an engine captures.

Guesses are assumptions with a ``log_spread``; what the phases make of one is the difference to one replication on the
same draws with the guess a spread lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rlsim.costs.engine.prices import EngineInputs, decode_points_s
from rlsim.costs.prices import PriceInputs
from rlsim.loading.scenario import vary
from rlsim.projection.uncertainty.slopes import points_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.schema.base import changed
from rlsim.schema.scenario import ACCEPTANCE, PROMPT, RESPONSE, Assumption, Scenario
from rlsim.units import FloatArray

OTHER_LIMIT = 2.0
"""Factor by which what an engine captures may be larger or smaller than its default: one standard deviation either way.
Assumption: releases and frameworks set 256, 512 and 1,024 tokens."""
CAPTURED = "how much is captured: half or double the largest CUDA graph (assumed)"


@dataclass(frozen=True)
class OpenInput:
    """An input that is not known. key: that states it. above, below: what a standard deviation more or less of it adds
    to the logarithm of the time of each phase. most: standard deviations up to which it can be larger. stepped: nothing
    changes within a standard deviation, and no more beyond it.
    """

    name: str
    key: str
    above: Mapping[str, float]
    below: Mapping[str, float]
    most: float = math.inf
    stepped: bool = False

    def moves(self, phase: str, normals: FloatArray) -> FloatArray:
        """What draws of the input add to the logarithm of the time of ``phase``."""
        above, below = self.above.get(phase, 0.0), self.below.get(phase, 0.0)
        if self.stepped:
            return np.select([normals > 1.0, normals < -1.0], [above, below], 0.0)
        return np.where(normals > 0, np.minimum(normals, self.most) * above, -normals * below)


def open_inputs(run: SimulatedVariant) -> tuple[OpenInput, ...]:
    """The inputs that ``run`` leaves open and that change its phases."""
    found = [_guess(run, one) for one in run.scenario.assumptions if one.log_spread is not None]
    return tuple(one for one in (*found, _captured(run)) if any(one.above.values()) or any(one.below.values()))


def guesses_of(scenario: Scenario) -> tuple[str, ...]:
    """What was guessed, in words such as ``4,042 response tokens``."""
    return tuple(_told(scenario, one.keys[0]) for one in scenario.assumptions if one.log_spread is not None)


def _told(scenario: Scenario, key: str) -> str:
    value = _value(scenario, key)
    what = {RESPONSE: "response tokens", PROMPT: "prompt tokens"}.get(key)
    return f"a first acceptance of {value:.3g}" if what is None else f"{value:,.0f} {what}"


def _value(scenario: Scenario, key: str) -> float:
    """The guessed number: mean tokens, or the acceptance of the first position; 0 where the key holds none."""
    if key == ACCEPTANCE:
        return scenario.speculation.first_acceptance or 0.0
    length = scenario.workload.response_tokens if key == RESPONSE else scenario.workload.prompt_tokens
    return float(length.tokens if length.kind == "constant" else length.mean_tokens or 0.0)


def _guess(run: SimulatedVariant, assumption: Assumption) -> OpenInput:
    """The response of the phases to a guess, from one replication with less of it."""
    scenario, key, spread = run.scenario, assumption.keys[0], assumption.log_spread or 0.0
    value = _value(scenario, key)
    name = f"{_told(scenario, key)}: guessed"
    if not value or (key == ACCEPTANCE and not scenario.speculation.active):
        return OpenInput(name, key, {}, {})
    if key == ACCEPTANCE:
        odds = value / max(1.0 - value, 1e-9) * math.exp(-spread)
        changed, most = {key: odds / (1.0 + odds)}, math.inf
    else:
        length = scenario.workload.response_tokens if key == RESPONSE else scenario.workload.prompt_tokens
        number = "tokens" if length.kind == "constant" else "mean_tokens"
        less = max(1.0, value * math.exp(-spread))
        changed = {f"{key}.{number}": round(less) if number == "tokens" else less}
        most = max(0.0, math.log(0.9 * scenario.workload.max_sequence_tokens / value)) / spread
    one = simulate_variant(
        vary(scenario, {**changed, "simulation.replications": 1}),
        stretch=run.stretch,
    )
    before, after = _phase_s(run), _phase_s(one)
    slopes = {phase: math.log(before[phase] / after[phase]) for phase in before if before[phase] and after[phase]}
    return OpenInput(name, key, slopes, {phase: -slope for phase, slope in slopes.items()}, most)


def _phase_s(run: SimulatedVariant) -> dict[str, float]:
    """Mean seconds of the first replication's phases; of an asynchronous one, of the engines' work."""
    steps, names = run.steps[0], ("generation", "logprob", "train")
    mean = {name: sum(step.phases[f"{name}_s"] for step in steps) / len(steps) for name in names}
    if run.scenario.loop.mode == "async":
        mean["generation"] = sum(part.seconds for part in run.prices.engine.parts(run.traces[0].counters))
    return mean


def _captured(run: SimulatedVariant) -> OpenInput:
    """What a larger or smaller largest graph would change, where nobody states it."""
    engine, sides = run.scenario.engine, dict[float, dict[str, float]]()
    sequences, contexts, counts = points_of(run.counters)
    if engine.max_captured_tokens is not None or not engine.cuda_graphs or not len(counts):
        return OpenInput(CAPTURED, "engine.max_captured_tokens", {}, {})
    inputs = PriceInputs(run.scenario).engine

    def seconds(limit: float) -> float:
        stated = engine_with(inputs, max(1, round(limit)))
        return float(counts @ decode_points_s(stated, sequences, contexts)) + run.counters.prefill_s

    now = run.prices.engine.captured_tokens
    base_s = seconds(now)
    for factor in (OTHER_LIMIT, 1 / OTHER_LIMIT):
        change = math.log(seconds(now * factor) / base_s)
        sides[factor] = {"generation": change} if abs(change) > 1e-6 else {}
    key = "engine.max_captured_tokens"
    return OpenInput(CAPTURED, key, sides[OTHER_LIMIT], sides[1 / OTHER_LIMIT], stepped=True)


def engine_with(inputs: EngineInputs, captured_tokens: int) -> EngineInputs:
    """The same engine with another largest captured graph."""
    return replace(inputs, engine=changed(inputs.engine, max_captured_tokens=captured_tokens))
