"""What a scenario leaves open and nobody measured: values that its author guessed, and what an engine captures.

Guesses are assumptions with a ``log_spread``; what the phases make of one is the difference to one replication on the
same draws with the guess a spread lower.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.draft_policy import tokens_factor
from rlsim.costs.engine.prices import decode_points_s
from rlsim.costs.memory import engine_spread, memory_share
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import vary
from rlsim.parameters.posterior import NONE
from rlsim.parameters.users import user_runs_of
from rlsim.projection.uncertainty.slopes import points_of
from rlsim.projection.uncertainty.user_inputs import (
    HOST,
    LINK,
    Curve,
    deviation_spreads,
    host_curve,
    known_phases,
    layout_groups,
    link_curve,
    moved_along,
)
from rlsim.projection.variant import SimulatedVariant, replicated, searched, simulate_variant
from rlsim.schema.base import changed, replaced
from rlsim.schema.scenario import Scenario
from rlsim.schema.stated import ACCEPTANCE, RESPONSE
from rlsim.schema.workload import stated_mean
from rlsim.units import FloatArray
from rlsim.workload.draw import Stretch
from rlsim.workload.file_cache import cached_with_files

WIDE, FAR_END = 0.8, 1.645
"""Standard deviation of a guess's logarithm beyond which more of it is simulated too, and the deviations at which: the
upper end of a 90 % interval."""
OTHER_LIMIT = 2.0
"""Factor by which what an engine captures may be larger or smaller than its default: one standard deviation either way.
Assumption: releases and frameworks set 256, 512 and 1,024 tokens."""
NETWORK = "the network between nodes: not stated (cluster.fabric)"
ENGINE_HOST = "the host of the engines: not stated (engine.host, engine.host_slowdown)"
STATED_HOST = "the host of the engines: its class or its speed is stated and not its time (engine.host_iteration_s)"
USERS = "simulation.user_runs"
DEVIATION = "what {} takes in users' runs beyond tuned ones"
OTHER_OVERLAP = 0.15
"""Standard deviation of workload.routing_overlap around its default: independent routing, 1, lies two of them above,
and as far below what samples of one prompt may share (Jaccard 0.65, arXiv 2604.17182). Assumption."""
OVERLAP = "experts that drafted tokens share: not stated (workload.routing_overlap)"
HALVED_AT_SPREADS = 2.0
"""Standard deviations at which a head accepts half as many tokens beyond the contexts of its training: EAGLE-3.1 claims
up to twice the acceptance length of EAGLE-3 on long contexts (vLLM blog of 2026-07-13). Assumption; never more."""
REACH = "acceptance behind contexts longer than the drafter knows (speculation.trained_context_tokens)"
ROOM = "room of the engines' cache: known within the spread of its memory (engine.gpu_memory_utilization)"
CAPTURED = "how much is captured: half or double the largest CUDA graph (assumed)"


class OpenInput(Struct, frozen=True):
    """An input that is not known. key: that states it. above, below: what a standard deviation more or less of it adds
    to the logarithm of the time of each phase. most: standard deviations up to which it can be larger. stepped: nothing
    changes within a standard deviation, and no more beyond it. curve: in place of both, by points of the input.
    """

    name: str
    key: str
    above: Mapping[str, float]
    below: Mapping[str, float]
    most: float = math.inf
    stepped: bool = False
    curve: Curve = {}

    def moves(self, phase: str, normals: FloatArray) -> FloatArray:
        """Change of the logarithm of the time of ``phase`` in each draw of the input."""
        if self.curve:
            return moved_along(self.curve, phase, normals)
        above, below = self.above.get(phase, 0.0), self.below.get(phase, 0.0)
        if self.stepped:
            return np.select([normals > 1.0, normals < -1.0], [above, below], 0.0)
        return np.where(normals > 0, np.minimum(normals, self.most) * above, -normals * below)

    def without(self, phases: Collection[str]) -> OpenInput:
        """The input, which moves none of ``phases``."""
        above = {phase: one for phase, one in self.above.items() if phase not in phases}
        below = {phase: one for phase, one in self.below.items() if phase not in phases}
        curve = {phase: one for phase, one in self.curve.items() if phase not in phases}
        return OpenInput(self.name, self.key, above, below, self.most, self.stepped, curve)


def open_inputs(run: SimulatedVariant) -> tuple[OpenInput, ...]:
    """The inputs that ``run`` leaves open and that change its phases."""
    known = known_phases(run.scenario)
    guesses, users = ([one.without(known) for one in part] for part in (_guesses(run), _of_users(run)))
    every = (*guesses, _captured(run), _overlap(run), _reach(run), _room(run), *users)
    return tuple(one for one in every if one.curve or any(one.above.values()) or any(one.below.values()))


def _guesses(run: SimulatedVariant) -> list[OpenInput]:
    guessed = run.scenario.assumptions
    return [_guess(run, one.keys[0], one.log_spread) for one in guessed if one.log_spread is not None]


def layout_spreads(run: SimulatedVariant) -> dict[str, float]:
    """By phase with a group of this layout, the standard deviation of the logarithm of all that a log of the run itself
    would show."""
    ends, shown = np.array([1.0, -1.0]), [*_guesses(run), *_of_users(run)]
    moves = {phase: [one.moves(phase, ends) for one in shown] for phase in layout_groups(run.scenario)}
    return {phase: math.hypot(*((up - down) / 2 for up, down in found)) for phase, found in moves.items()}


def _of_users(run: SimulatedVariant) -> list[OpenInput]:
    """What a run of a user leaves open: network, host, and deviations of its phases."""
    spreads = deviation_spreads(run)
    deviations = [
        OpenInput(DEVIATION.format(phase), f"{USERS} {phase}", {phase: above}, {phase: -below})
        for phase, (above, below) in spreads.items()
    ]
    engine = run.scenario.engine
    host = ENGINE_HOST if engine.host is None and engine.host_slowdown is None else STATED_HOST
    curves = {NETWORK: (LINK, link_curve(run)), host: (HOST, host_curve(run))}
    return [*(OpenInput(name, key, {}, {}, curve=curve) for name, (key, curve) in curves.items() if curve), *deviations]


def _length(scenario: Scenario, key: str) -> tuple[str, float]:
    """Key of the mean of a guessed length, and its value in tokens; 0 where none is stated."""
    length = scenario.workload.response_tokens if key == RESPONSE else scenario.workload.prompt_tokens
    name = "tokens" if length.kind == "constant" else "mean_tokens"
    return f"{key}.{name}", stated_mean(length)


def guesses_of(scenario: Scenario) -> tuple[str, ...]:
    """The guessed inputs in words, such as ``4,042 response tokens``."""
    return tuple(_guess_text(scenario, one.keys[0]) for one in scenario.assumptions if one.log_spread is not None)


def _guess_text(scenario: Scenario, key: str) -> str:
    if key == ACCEPTANCE:
        return f"a first acceptance of {scenario.speculation.first_acceptance or 0.0:.3g}"
    turns = " a turn" if key == RESPONSE and scenario.workload.agent is not None else ""
    return f"{_length(scenario, key)[1]:,.0f} {'response' if key == RESPONSE else 'prompt'} tokens{turns}"


def _guess(run: SimulatedVariant, key: str, spread: float) -> OpenInput:
    """The response of the phases to a guess, from one replication with less of it."""
    scenario = run.scenario
    name, number, less, most = f"{_guess_text(scenario, key)}: guessed", key, 0.0, math.inf
    if key != ACCEPTANCE:
        number, value = _length(scenario, key)
        if value:
            less = max(1.0, value * math.exp(-spread))
            # Means close to the cap have no distribution (workload.lengths): the draws stop short of it.
            most = max(0.0, math.log(0.9 * _longest(scenario, key) / value)) / spread
    elif scenario.speculation.active and (value := scenario.speculation.first_acceptance or 0.0):
        # The spread is of the odds, so that no draw passes 1; an acceptance of 1 has infinite ones.
        odds = value / max(1.0 - value, 1e-9) * math.exp(-spread)
        less = odds / (1.0 + odds)
    if not less:
        return OpenInput(name, key, {}, {})
    slopes = _moves(run, number, less)
    above = {phase: -move for phase, move in slopes.items()}  # linear in the logarithm, which spares a simulation
    if key != ACCEPTANCE and spread > WIDE and most > 0:
        reach = min(FAR_END, most)
        with suppress(Infeasible):
            above = {
                phase: move / reach for phase, move in _moves(run, number, value * math.exp(reach * spread)).items()
            }
    return OpenInput(name, key, above, slopes, most)


def _moves(run: SimulatedVariant, number: str, value: float) -> dict[str, float]:
    """What another value of a guess adds to the logarithm of the time of each phase, from one replication."""
    # Without what users' runs take beyond tuned ones, which moves no phase with a guess: both answers share the moves.
    one = searched(vary(run.scenario, {"simulation.user_runs": NONE}) if user_runs_of(run.scenario) else run.scenario)
    # Another value of a guess is a guess still: as unsure of its memory, which would else be refused.
    moved = vary(one, {number: round(value) if number.endswith(".tokens") else value})
    moved = replaced(moved, {"assumptions": run.scenario.assumptions})
    # A run on the work of a search has that replication already.
    simulated = not run.changes and one == replicated(run.scenario, one.replications)
    before = _phase_s(run) if simulated else dict(_moved_s(one, run.stretch))
    after = dict(_moved_s(moved, run.stretch))
    return {phase: math.log(after[phase] / before[phase]) for phase in before if before[phase] and after[phase]}


@cached_with_files(32)
def _moved_s(scenario: Scenario, stretch: Stretch) -> tuple[tuple[str, float], ...]:
    """Mean seconds of phases. Cached: a run asks again once it has more replications or a control, which takes a fifth
    of the time of an imported agent recipe."""
    return tuple(_phase_s(simulate_variant(scenario, stretch=stretch, tokens=False)).items())


def _longest(scenario: Scenario, key: str) -> float:
    """Most tokens of a response, or what its cap (or mean, where it has none of its own) leaves of a sample to a
    prompt."""
    workload = scenario.workload
    if key == RESPONSE:
        return workload.longest_response_tokens
    response = workload.max_response_tokens or _length(scenario, RESPONSE)[1]
    return max(1.0, workload.max_sequence_tokens - response)


def _phase_s(run: SimulatedVariant) -> dict[str, float]:
    """Mean seconds of the first replication's phases; of an asynchronous one, of the engines' work."""
    steps, names = run.steps[0], ("generation", "logprob", "train")
    mean = {name: sum(step.phases[f"{name}_s"] for step in steps) / len(steps) for name in names}
    if run.scenario.loop.mode == "async":
        mean["generation"] = sum(part.seconds for part in run.prices.engine.parts(run.traces[0].counters))
    return mean


def _overlap(run: SimulatedVariant) -> OpenInput:
    """Response of generation to other experts of drafted tokens; none where the scenario states them or has none."""
    inputs, sides = run.inputs.engine, dict[float, dict[str, float]]()
    sequences, contexts, counts = points_of(run.counters)
    if run.scenario.workload.routing_overlap is not None or inputs.routing_overlap == 1.0 or not len(counts):
        return OpenInput(OVERLAP, "workload.routing_overlap", {}, {})

    def seconds(overlap: float) -> float:
        other = replace(inputs, routing_overlap=overlap)
        return float(counts @ decode_points_s(other, sequences, contexts)) + run.counters.prefill_s

    base_s = seconds(inputs.routing_overlap)
    for move in (OTHER_OVERLAP, -OTHER_OVERLAP):
        sides[move] = {"generation": math.log(seconds(inputs.routing_overlap + move) / base_s)}
    most = (1.0 - inputs.routing_overlap) / OTHER_OVERLAP
    return OpenInput(OVERLAP, "workload.routing_overlap", sides[OTHER_OVERLAP], sides[-OTHER_OVERLAP], most)


def beyond_reach(run: SimulatedVariant) -> float:
    """Share of verifications behind contexts (means of batches) that the stated acceptance does not speak of."""
    drafting = run.scenario.speculation
    trend = drafting.variation is not None and drafting.variation.trend_per_1k_tokens
    sequences, contexts, counts = points_of(run.counters)
    if drafting.reach_tokens is None or trend or not len(counts):
        return 0.0
    return float((sequences * counts) @ (contexts > drafting.reach_tokens) / (sequences @ counts))


def _reach(run: SimulatedVariant) -> OpenInput:
    """Response of generation to fewer accepted tokens behind long contexts; none where drafts never get there."""
    share, drawn = beyond_reach(run), [step.tokens_per_verification for step in run.steps[0]]
    tokens = float(np.mean(drawn)) * tokens_factor(run.prices.engine, run.counters)
    less = min(2.0 ** (1.0 / HALVED_AT_SPREADS), tokens)
    below = {"generation": math.log(1.0 + share * (less - 1.0))} if share else {}
    return OpenInput(REACH, "speculation.trained_context_tokens", {}, below)


def _room(run: SimulatedVariant) -> OpenInput:
    """Response of generation to a cache that has more or less room than counted, from a replication of each; none where
    it is never nearly full."""
    scenario, memory, key = run.scenario, run.prices.engine_memory, "engine.gpu_memory_utilization"
    spread, total = engine_spread(scenario), scenario.hardware.memory_bytes.value
    fullest = max(trace.peak_kv_tokens for trace in run.traces) / memory.kv_capacity_tokens
    if scenario.loop.supervised or memory.kv_bytes * (1 - fullest) > FAR_END * spread:
        return OpenInput(ROOM, key, {}, {})
    share, step = memory_share(scenario), spread / total
    above, below = _moves_of_room(run, min(step, 1 - share)), _moves_of_room(run, -min(step, share))
    return OpenInput(ROOM, key, above, below)


def _moves_of_room(run: SimulatedVariant, more: float) -> dict[str, float]:
    """What ``more`` of a GPU's memory for the engine adds to the logarithm of generation; where that cannot run,
    what the half or the quarter of it does."""
    share = memory_share(run.scenario)
    for part in (1.0, 0.5, 0.25):
        with suppress(Infeasible, InputError):
            moved = _moves(run, "engine.gpu_memory_utilization", share + part * more)
            return {"generation": moved.get("generation", 0.0)}
    return {}


def _captured(run: SimulatedVariant) -> OpenInput:
    """Response of generation to a larger or smaller largest graph; none where the scenario states it."""
    engine, sides = run.scenario.engine, dict[float, dict[str, float]]()
    sequences, contexts, counts = points_of(run.counters)
    if engine.max_captured_tokens is not None or not engine.cuda_graphs or not len(counts):
        return OpenInput(CAPTURED, "engine.max_captured_tokens", {}, {})
    inputs = run.inputs.engine

    def seconds(limit: float) -> float:
        engine = changed(inputs.engine, max_captured_tokens=max(1, round(limit)))
        stated = replace(inputs, engine=engine)
        return float(counts @ decode_points_s(stated, sequences, contexts)) + run.counters.prefill_s

    now = run.prices.engine.captured_tokens
    base_s = seconds(now)
    for factor in (OTHER_LIMIT, 1 / OTHER_LIMIT):
        change = math.log(seconds(now * factor) / base_s)
        # Below that the sums differ by their rounding alone: nothing runs beyond either limit.
        sides[factor] = {"generation": change} if abs(change) > 1e-6 else {}
    key = "engine.max_captured_tokens"
    return OpenInput(CAPTURED, key, sides[OTHER_LIMIT], sides[1 / OTHER_LIMIT], stepped=True)
