"""A journal of the real loop through the simulation: its work, its seconds, the simulation's rules.

Iterations take what those of equal batch and prompt tokens took in the mean, the trainer's phases what they took. Where
the steps then agree, loop and simulation follow the same rules; where the iterations by batch agree, one by one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlsim.calibration.loop_stack import LoopStacks, scenario_of, settings_of
from rlsim.costs.interface import IterationTable, Part, PhaseCost, Prices, StepCost
from rlsim.errors import InputError
from rlsim.files.reading import TABLE_BYTES, read_text, shown_path
from rlsim.files.records import dataclass
from rlsim.schema.scenario import Scenario
from rlsim.simulation.run import simulate
from rlsim.units import FloatArray
from rlsim.workload.batches import Batch, Generated
from rlsim.workload.draw import DrawnStep, DrawnWorkload

if TYPE_CHECKING:
    from bench.loop.settings import LoopSettings

Events = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Replay:
    """Seconds of the measured steps as journalled and as simulated, and iterations of them by decoding sequences."""

    measured_s: tuple[float, ...]
    simulated_s: tuple[float, ...]
    measured_iterations: Mapping[int, int]
    simulated_iterations: Mapping[int, int]

    @property
    def error(self) -> float:
        """Mean simulated step over the mean measured one, less 1."""
        return sum(self.simulated_s) / sum(self.measured_s) - 1.0


def read_journal(path: Path) -> tuple[LoopSettings, list[dict[str, Any]]]:
    """Settings and events of a journal that ``python -m bench.loop --journal`` or check-loop wrote."""
    try:
        first, *events = (json.loads(line) for line in read_text(path, TABLE_BYTES).splitlines())
        return settings_of(first["settings"]), events
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{shown_path(path)}: is no journal of the loop ({str(error)[:60]})") from error


def undisturbed(events: Events) -> list[dict[str, Any]]:
    """The events with CPU time in place of seconds where that is less: what a core of their own would have taken.

    But for weights handed over between two processes, of which one waits.
    """
    out = []
    for one in events:
        told = "cpu_s" in one and one.get("phase") != "refit_s"
        out.append({**one, "seconds": min(one["seconds"], one["cpu_s"])} if told else dict(one))
    return out


def replay(stacks: LoopStacks, settings: LoopSettings, events: Events) -> Replay:
    """Simulate what a journal tells. stacks: of the loop's model, for its rules alone.

    A synchronous loop is simulated step by step, each on its own iterations, a lagged one as a whole.
    """
    scenario, steps = scenario_of(stacks, settings), [one for one in events if one["event"] == "step"]
    measured = range(settings.warmup_steps, settings.trained_steps)
    told = tuple(float(one["seconds"]) for one in steps if one["step"] in measured)
    if settings.placement == "split":
        found = _simulated(scenario, settings, events, range(settings.generated_steps), settings.trained_steps)
        return Replay(told, found[0][settings.warmup_steps :], _counted(events), found[1])
    seconds, counts, own = list[float](), Counter[int](), Counter[int]()
    for one in (step for step in steps if step["step"] in measured):
        begin, end = one["at_s"], one["at_s"] + one["seconds"]
        inside = [e for e in events if e.get("step") == one["step"] or begin <= e["at_s"] <= end]
        took, by_batch = _simulated(scenario, settings, inside, range(one["step"], one["step"] + 1), 1)
        seconds += took
        counts.update(by_batch)
        own.update(_counted(inside))
    return Replay(told, tuple(seconds), own, counts)


def _simulated(
    scenario: Scenario, settings: LoopSettings, events: Events, numbers: range, trained: int
) -> tuple[tuple[float, ...], Counter[int]]:
    drawn = tuple(_drawn(settings, events, step) for step in numbers)
    costs = tuple(_costs(events, step) for step in numbers[:trained])
    hand_over = _phase(events, "refit_s" if settings.placement == "split" else "prepare_s", None)
    simulation = scenario.simulation.model_copy(update={"warmup_steps": 0, "steps": trained})
    asked = scenario.model_copy(update={"simulation": simulation})

    def batch(total_tokens: FloatArray, generated: int) -> StepCost:
        raise AssertionError("batches of the loop are known beforehand")

    table = _table(settings, _measured(settings, events))
    prices = Prices(table, 1, hand_over, hand_over, PhaseCost(0.0), costs, batch)
    trace = simulate(asked, DrawnWorkload(drawn, trained), prices)
    counts = Counter({n: count for n, count in enumerate(trace.counters.iterations_at) if count})
    return tuple(step.seconds for step in trace.steps), counts


def _drawn(settings: LoopSettings, events: Events, step: int) -> DrawnStep:
    """The samples of a step with the iterations that each took; as many as tokens where it had not ended."""
    lengths = settings.response_lengths()[step]
    took = {one["sample"]: one["iterations"] for one in events if one["event"] == "sample"}
    first = step * settings.batch
    iterations = np.array([took.get(first + row, length - 1) for row, length in enumerate(lengths.tolist())])
    group = np.repeat(np.arange(settings.prompts), settings.samples)
    batch = Batch(np.full(settings.batch, settings.prompt_tokens), lengths, group)
    return DrawnStep((Generated(batch, np.ones(settings.batch, dtype=np.bool_)),), (iterations,))


def _measured(settings: LoopSettings, events: Events) -> Events:
    """Iterations in the measured steps alone, where these hold every size: a machine changes its pace."""
    steps = [one for one in events if one["event"] == "step" and one["step"] >= settings.warmup_steps]
    begin, end = steps[0]["at_s"], steps[-1]["at_s"] + steps[-1]["seconds"]
    own = [one for one in events if one["event"] in ("iteration", "idle", "publish") and begin <= one["at_s"] <= end]
    kinds = [any(one.get("decoding") for one in own), any(one.get("prefill_tokens") for one in own)]
    return own if all(kinds) else events


def _table(settings: LoopSettings, events: Events) -> IterationTable:
    """Mean seconds of iterations by decoding sequences and of prefills by tokens."""
    done = _until_next(events)
    step = _means([(one["decoding"], one["seconds"]) for one in done if one["decoding"]])
    fill = _means([(one["prefill_tokens"], one["seconds"]) for one in done if one["prefill_tokens"]])
    n = np.arange(settings.running + 1, dtype=np.float64)
    step_s = np.interp(n, list(step), list(step.values()))
    step_s[0] = 0.0
    grid, added = np.array([0.0, *fill]), np.array([0.0, *fill.values()])
    return IterationTable(
        step_s, 1e6, np.zeros((settings.running + 1, 2)), grid, np.zeros(1), added[None, :],
        tokens_per_sequence=settings.queries, max_batched_tokens=max(settings.budget_tokens, 1),
        max_running_sequences=settings.running, kv_capacity_tokens=1e9, chunked_prefill=False,
    )  # fmt: skip


def _until_next(events: Events) -> list[Mapping[str, Any]]:
    """Iterations that last until the engine's next act: what passes between two of them belongs to the first."""
    acts = [one for one in events if one["event"] in ("iteration", "idle", "publish")]
    ends = [one["at_s"] for one in acts[1:]]
    timed = [{**one, "seconds": max(one["seconds"], end - one["at_s"])} for one, end in zip(acts, ends, strict=False)]
    return [one for one in (*timed, *acts[-1:]) if one["event"] == "iteration"]


def _means(pairs: Sequence[tuple[int, float]]) -> dict[float, float]:
    """Mean of the seconds at each size, smallest size first."""
    found: dict[int, list[float]] = {}
    for size, seconds in pairs:
        found.setdefault(size, []).append(seconds)
    return {float(size): float(np.mean(found[size])) for size in sorted(found)}


def _costs(events: Events, step: int) -> StepCost:
    return StepCost(*(_phase(events, name, step) for name in ("data_s", "logprob_s", "train_s")))


def _phase(events: Events, name: str, step: int | None) -> PhaseCost:
    """Seconds of a phase in a step, or its mean over all."""
    own = [
        one["seconds"]
        for one in events
        if one["event"] == "phase" and one["phase"] == name and step in (None, one["step"])
    ]
    return PhaseCost.of([Part(name, float(np.mean(own)), "host")]) if own else PhaseCost(0.0)


def _counted(events: Events) -> Counter[int]:
    return Counter(one["decoding"] for one in events if one["event"] == "iteration" and one["decoding"])
