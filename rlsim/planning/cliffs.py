"""cliffs(): the values of one key around a scenario beyond which something else begins."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from rlsim.costs.engine.capture import captured_sizes
from rlsim.costs.memory import check_fits, surely
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import as_scenario
from rlsim.loading.variation import Overrides
from rlsim.planning.fitting import DOUBLINGS, HUNDREDTHS, refusal, value_now
from rlsim.projection.moves import varied
from rlsim.projection.precision import answered
from rlsim.projection.summary import mean_value
from rlsim.projection.variant import SimulatedVariant, searched, simulate_variant
from rlsim.results.fitting import Cliff, CliffKind, Cliffs
from rlsim.schema.scenario import Scenario

CAPTURED = "engine.max_captured_tokens"
PROMPTS, GENERATIONS = "workload.prompts_per_step", "workload.generations_per_prompt"


class _State(Struct, frozen=True):
    """What holds at a value: why it does not run, its step in seconds, and what each kind of cliff changes, in words:
    empty where a kind's usual case holds."""

    refused: str = ""
    step_s: float = 0.0
    kinds: dict[CliffKind, str] = {}


def cliffs(scenario: Scenario | Path | str, key: str, progress: Callable[[int], object] = abs) -> Cliffs:
    """The nearest cliff of each kind on either side of a key's value, the nearest one first.

    key: a whole number, a share (found to a hundredth) or another number (to a hundredth of its value). Memory ends as
    in :func:`~rlsim.planning.fitting.largest_that_fit`; the rest is seen in simulations of drawn work, with as many
    updates in a step as now. progress: called with 1 for each simulation. Between the value and a cliff its kind is
    taken to change once. Raises InputError for a key without such a number, Infeasible where the scenario cannot run.
    """
    scenario = as_scenario(scenario)
    now = value_now(scenario, key)
    if now is None and key == CAPTURED:
        now = simulate_variant(searched(scenario), tokens=False).prices.engine.captured_tokens
    if now is None:
        varied(scenario, {key: 1})  # a key that does not exist is answered with the nearest
    if isinstance(now, bool) or not isinstance(now, int | float) or now <= 0:
        raise InputError(f"--cliffs {key}: its value is {now!r}; a number above 0 is needed")
    base, sure = searched(scenario), surely(scenario)
    unit = 1 if isinstance(now, int) else HUNDREDTHS if now <= 1 else now / 100
    states: dict[int, _State] = {}

    def at(place: int) -> _State:
        if place not in states:
            states[place] = _state(base, sure, {key: place * unit, **_batch(scenario, key, place)})
            progress(1)
        return states[place]

    def value(place: int) -> float:
        return round(place * unit, 10)

    check_fits(sure)
    place = round(now / unit)
    if here := at(place).refused:
        raise InputError(f"--cliffs {key}: {scenario.name} cannot run as it is: {here}")
    step_s = answered(scenario).mean
    scale = step_s / at(place).step_s
    found = []
    for kind, last, beyond in _edges(at, place):
        after = at(beyond)
        found.append(
            Cliff(
                kind=kind,
                value=value(last),
                beyond=value(beyond),
                text=after.refused or _text(kind, at(last), after),
                step_s=scale * at(last).step_s,
                beyond_step_s=None if after.refused else scale * after.step_s,
            )
        )
    found.sort(key=lambda one: abs(np.log(one.beyond / now)) if one.beyond > 0 else np.inf)
    return Cliffs(scenario=scenario.name, key=key, now=now, step_s=step_s, cliffs=tuple(found))


def _edges(at: Callable[[int], _State], now: int) -> Iterator[tuple[CliffKind, int, int]]:
    """Kinds with the last place before a cliff and the first one beyond it, on either side."""
    for side in (1, -1):
        most = now * (2**DOUBLINGS - 1) if side > 0 else now - 1
        edge = _edge(lambda place: bool(at(place).refused), now, side, most)
        if edge is not None:
            yield "end", edge, edge + side
        # Beyond what runs nothing else can be seen.
        within = most if edge is None else abs(edge - now)
        kinds = at(now).kinds
        for kind in kinds:
            last = _edge(lambda place: at(place).kinds.get(kind) != kinds[kind], now, side, within)  # noqa: B023
            if last is not None:
                yield kind, last, last + side


def _edge(other: Callable[[int], bool], now: int, side: int, most: int) -> int | None:
    """The last place before ``other`` holds, at most ``most`` places away; None where it does not hold up to there."""
    near, far = 0, min(1, most)
    while far and not other(now + side * far):
        if far >= most:
            return None
        near, far = far, min(2 * far, most)
    while far - near > 1:
        middle = (near + far) // 2
        near, far = (near, middle) if other(now + side * middle) else (middle, far)
    return now + side * near if far else None


def _batch(scenario: Scenario, key: str, value: int) -> dict[str, int]:
    """The batch of an update where a step has other samples, so that it has as many updates."""
    batch, workload = scenario.trainer.global_batch_samples, scenario.workload
    if batch is None or key not in (PROMPTS, GENERATIONS):
        return {}
    other = workload.generations_per_prompt if key == PROMPTS else workload.prompts_per_step
    return {"trainer.global_batch_samples": max(1, value * other * batch // workload.samples_per_step)}


def _state(base: Scenario, sure: Scenario, changes: Overrides) -> _State:
    try:
        if refused := refusal(varied(sure, changes)):
            return _State(refused)
        run = simulate_variant(varied(base, changes), tokens=False)
    except InputError as error:
        return _State(str(error))
    except Infeasible as error:
        return _State(error.reason)
    return _State("", mean_value(run, lambda step: step.seconds), _kinds(run))


def _kinds(run: SimulatedVariant) -> dict[CliffKind, str]:
    scenario, counters = run.scenario, run.counters
    engine, workload = scenario.released_engine, scenario.workload
    live = int(np.max(np.flatnonzero(counters.iterations_at), initial=1))
    most = engine.most_running
    started = workload.samples_per_step * workload.launch_factor
    if scenario.loop.mode == "async":
        started *= max(1.0, scenario.loop.asynchrony.pace)
    share = started / scenario.replicas
    evicted = counters.preemptions > 0 or (workload.agent is None and live < min(most, int(share)))
    return {
        "graphs": _graph(scenario, run.prices.engine.captured_tokens, live),
        "waiting": "sequences wait for a place in an engine" if share > most else "",
        "cache": "the cache overflows: sequences wait for it or are evicted" if evicted else "",
    }


def _graph(scenario: Scenario, captured: int, live: int) -> str:
    """The captured size that the largest batch is padded to."""
    tokens = live * (1 + (scenario.speculation.draft_length if scenario.speculation.active else 0))
    if not scenario.engine.cuda_graphs:
        return ""
    if tokens > captured:
        return "the largest batches run without a captured CUDA graph"
    sizes = captured_sizes(captured)
    return f"the largest batches run in the CUDA graph of {int(sizes[np.searchsorted(sizes, tokens)]):,} tokens"


def _text(kind: CliffKind, before: _State, after: _State) -> str:
    now, then = before.kinds.get(kind, ""), after.kinds[kind]
    return then or f"no longer: {now}"
