"""``rlsim calibrate check-loop``: predict every configuration of the real loop, run it, and set both side by side.

A journal of the loop also goes through the simulation: its work, its seconds, the simulation's rules. Iterations take
what those of equal batch and prompt tokens took in the mean, the trainer's phases what they took. Where the steps then
agree, loop and simulation follow the same rules; where the iterations by batch agree, one by one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from rlsim.calibration import loop_stack
from rlsim.calibration.loop_stack import read_journal
from rlsim.costs.interface import IterationTable, Part, PhaseCost, Prices, StepCost
from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.files.yaml import lists_beside
from rlsim.projection.project import project
from rlsim.results.loop_check import LoopCheck, LoopRow, Pair, Speedup, scores_of
from rlsim.results.projection import PHASES, Variant
from rlsim.schema.base import changed
from rlsim.schema.scenario import Scenario
from rlsim.simulation.run import simulate
from rlsim.units import FloatArray
from rlsim.workload.batches import Batch, Generated
from rlsim.workload.draw import DrawnStep, DrawnWorkload

if TYPE_CHECKING:
    from bench.loop.settings import LoopSettings

SHARING_ROUNDS = 6
"""Passes of the fixed point of two halves that share a device; the shares settle within a per cent after three."""
LARGE = 0.1
"""Error of a step from which on its row says what took longer."""
Say = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Prediction:
    """What was predicted of a configuration (whose settings hold the lengths) before it ran, at the pace at which the
    parts were measured."""

    settings: LoopSettings
    over: str
    side: Variant

    def at(self, stacks: loop_stack.LoopStacks, pace: float) -> Prediction:
        """The prediction for a machine that is ``pace`` times slower now."""
        return predict(stacks.at(pace), self.settings, self.over)


def configurations(device: str = "cpu") -> list[tuple[LoopSettings, str]]:
    """Configurations of check.yaml for a device, with the name of that without drafts that each is compared with."""
    content = lists_beside(__file__, "check.yaml")
    common = asdict(loop_stack.common_settings(device)) | content["common"]
    stated = [{**common, **entry} for entry in content[device]]
    over = [entry.pop("speedup_over", "") for entry in stated]
    return [(loop_stack.settings_of(entry), name) for entry, name in zip(stated, over, strict=True)]


def check_loop(folder: Path, say: Say, measured: bool = False, device: str = "cpu", ran: bool = False) -> LoopCheck:
    """Measure the loop's parts into ``folder`` (or read them there where ``measured``), then predict and run all.

    Journals of the runs go to ``folder``/journals, or are read there where they ``ran`` before. Raises InputError where
    torch or the device is missing.
    """
    asked = configurations(device)
    stacks = loop_stack.measure_stacks(
        folder, lambda line: say(0, len(asked), f"measuring: {line}"), again=not (measured or ran), device=device
    )
    predictions = [predict(stacks, settings, over) for settings, over in asked]
    return run_predicted(stacks, predictions, folder, say, ran)


def settings_to_run(device: str) -> str:
    """JSON of all configurations with the lengths that predictions draw, for ``python -m bench.loop --settings``."""
    shown = []
    for settings, _ in configurations(device):
        lengths = loop_stack.drawn_lengths(settings)
        shown.append({**asdict(settings), "lengths": lengths})
    return json.dumps(shown) + "\n"


def predict(stacks: loop_stack.LoopStacks, settings: LoopSettings, over: str = "") -> Prediction:
    """Project the scenario of a configuration, whose lengths are then those that the scenario draws."""
    scenario = loop_stack.scenario_of(stacks, settings)
    found = project(scenario).candidate
    if settings.lag and settings.device == "cuda":
        # How long one half is at work decides how often the other one has to share the device, and the other way round.
        for _ in range(SHARING_ROUNDS):
            scenario = loop_stack.scenario_of(stacks, settings, _busy(found))
            found = project(scenario).candidate
    return Prediction(loop_stack.with_drawn_lengths(stacks, scenario, settings), over, found)


def _busy(found: Variant) -> tuple[float, float]:
    """Shares of a step in which generator and trainer are at work."""
    step_s, phases = found.step_s.mean, found.phases
    return min(1.0, phases.generation_s.mean / step_s), min(1.0, 1.0 - phases.exposed_generation_s.mean / step_s)


def run_predicted(
    stacks: loop_stack.LoopStacks, predictions: list[Prediction], folder: Path, say: Say, ran: bool = False
) -> LoopCheck:
    """Run what was predicted, one after the other and then backwards: a machine that grows slower meets all alike.

    ran: take the journals that lie in ``folder`` instead.
    """
    pace, done = loop_stack.pace_of(stacks), dict[str, list[LoopRow]]()
    order = [*predictions, *reversed(predictions)]
    for number, one in enumerate(order):
        say(number, len(order), one.settings.name)
        # Measured before each run, since a shared machine changes its pace between them.
        now = 1.0 if ran else pace()
        journals = folder / "journals" / f"round_{1 + number // len(predictions)}"
        tell = partial(say, number, len(order))
        if ran and not loop_stack.was_run(one.settings, journals):
            continue
        take = loop_stack.read_run if ran else partial(loop_stack.run_settings, say=tell)
        found, journal = take(one.settings, journals=journals)
        settings, events = read_journal(journal)
        # A process that waits for its GPU takes CPU time all the while.
        alone = replay(stacks, settings, events if settings.device == "cuda" else undisturbed(events))
        row = _loop_row(one.at(stacks, now), found, fmean(alone.simulated_s), now)
        done.setdefault(one.settings.name, []).append(row)
    say(len(order), len(order), "done")
    rows = {name: _merged(many) for name, many in done.items()}
    if not rows:
        raise InputError(f"{shown_path(folder / 'journals')}: holds no journal of a configuration of check-loop")
    compared = [_with_speedup(rows[one.settings.name], rows.get(one.over)) for one in predictions
                if one.settings.name in rows]  # fmt: skip
    return LoopCheck(device=str(stacks.measured["about"]["device"]), rows=tuple(compared), scores=scores_of(compared))


def _loop_row(prediction: Prediction, found: Mapping[str, Any], undisturbed_s: float, pace: float) -> LoopRow:
    side, phases = prediction.side, {}
    for name in PHASES:
        phases[name] = Pair(measured_s=found["phases"][name]["measured_s"], predicted_s=side.phases[name].mean)
    split = prediction.settings.placement == "split"
    idle_s = {"generator": side.step_s.mean - side.phases.generation_s.mean if split else 0.0,
              "trainer": side.phases.exposed_generation_s.mean if split else 0.0}  # fmt: skip
    return LoopRow(
        name=found["name"], measured_s=found["measured_s"], predicted_s=side.step_s.mean,
        interval=(side.step_s.low, side.step_s.high), phases=phases,
        idle={name: Pair(measured_s=found["idle"][name]["measured_s"], predicted_s=max(0.0, idle_s[name]))
              for name in idle_s},
        steps_s=tuple(found["steps_s"]), pace=pace,
        tokens_per_verification=(found["tokens_per_verification"], side.acceptance_length.mean),
        undisturbed_s=undisturbed_s, others_cpu_s=found["others_cpu_s"], steal_s=found["steal_s"],
        settings=found["settings"],
    )  # fmt: skip


def _merged(rows: list[LoopRow]) -> LoopRow:
    """Means over the rounds of a configuration, with the steps of all."""
    content = _mean([row.model_dump(exclude={"settings", "steps_s", "name", "why", "speedup"}) for row in rows])
    steps = tuple(seconds for row in rows for seconds in row.steps_s)
    return LoopRow(**content, name=rows[0].name, settings=rows[0].settings, steps_s=steps)


def _mean(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _mean([one[key] for one in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(_mean(parts) for parts in zip(*values, strict=True))
    return fmean(values)


def _with_speedup(row: LoopRow, over: LoopRow | None) -> LoopRow:
    """The row with its speed-up over one without drafts, and with why it misses."""
    speedup, generation = None, row.phases["generation_s"]
    if over is not None:
        plain = over.phases["generation_s"]
        predicted = plain.predicted_s / generation.predicted_s
        speedup = Speedup(
            measured=plain.measured_s / generation.measured_s,
            predicted=predicted,
            planned=predicted * row.pace / over.pace,
        )
    return LoopRow(**{**dict(row), "speedup": speedup, "why": _why(row)})


def _why(row: LoopRow) -> str:
    """The phase that a large miss comes from, and what else the machine did meanwhile."""
    if abs(row.error) < LARGE:
        return ""
    name, pair = max(row.phases.items(), key=lambda item: abs(item[1].measured_s - item[1].predicted_s))
    more = pair.measured_s - pair.predicted_s
    text = f"{name} took {abs(more):.2f} s {'more' if more > 0 else 'less'} than predicted"
    others = (row.others_cpu_s + row.steal_s) / row.measured_s
    if others > LARGE:
        text += f"; other processes and the hypervisor took {others:.1f} cores"
    return text


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


def undisturbed(events: Events) -> list[dict[str, Any]]:
    """The events with CPU time in place of seconds where that is less: what a core of their own would have taken.

    But for weights handed over between two processes, of which one waits.
    """
    out = []
    for one in events:
        alone = "cpu_s" in one and one.get("phase") != "refit_s"
        out.append({**one, "seconds": min(one["seconds"], one["cpu_s"])} if alone else dict(one))
    return out


def replay(stacks: loop_stack.LoopStacks, settings: LoopSettings, events: Events) -> Replay:
    """Measured steps of a journal beside their simulation. stacks: of the loop's model, for its rules alone.

    A synchronous loop is simulated step by step, each on its own iterations, a lagged one as a whole.
    """
    scenario, steps = loop_stack.scenario_of(stacks, settings), [one for one in events if one["event"] == "step"]
    measured = range(settings.warmup_steps, settings.trained_steps)
    measured_s = tuple(float(one["seconds"]) for one in steps if one["step"] in measured)
    if settings.placement == "split":
        found = _simulated(scenario, settings, events, range(settings.generated_steps), settings.trained_steps)
        return Replay(measured_s, found[0][settings.warmup_steps :], _counted(events), found[1])
    seconds, counts, measured_counts = list[float](), Counter[int](), Counter[int]()
    for one in (step for step in steps if step["step"] in measured):
        begin, end = one["at_s"], one["at_s"] + one["seconds"]
        inside = [e for e in events if e.get("step") == one["step"] or begin <= e["at_s"] <= end]
        took, by_batch = _simulated(scenario, settings, inside, range(one["step"], one["step"] + 1), 1)
        seconds += took
        counts.update(by_batch)
        measured_counts.update(_counted(inside))
    return Replay(measured_s, tuple(seconds), measured_counts, counts)


def _simulated(
    scenario: Scenario, settings: LoopSettings, events: Events, numbers: range, trained: int
) -> tuple[tuple[float, ...], Counter[int]]:
    drawn = tuple(_drawn(settings, events, step) for step in numbers)
    costs = tuple(_costs(events, step) for step in numbers[:trained])
    hand_over = _phase(events, "refit_s" if settings.placement == "split" else "prepare_s", None)
    # The journal holds its own warm-up steps, which are cut from the result.
    asked = changed(scenario, simulation=changed(scenario.simulation, warmup_steps=0, steps=trained))

    def batch(total_tokens: FloatArray, generated: int) -> StepCost:
        raise AssertionError("batches of the loop are known beforehand")

    table = _table(settings, _measured(settings, events))
    prices = Prices(table, 1, hand_over, hand_over, PhaseCost(0.0), costs, batch, 0.0, None, None)
    trace = simulate(asked, DrawnWorkload(drawn, trained), prices)
    counts = Counter({n: count for n, count in enumerate(trace.counters.iterations_at) if count})
    return tuple(step.seconds for step in trace.steps), counts


def _drawn(settings: LoopSettings, events: Events, step: int) -> DrawnStep:
    """The samples of a step with the iterations that each took; as many as tokens where it had not ended."""
    lengths = settings.response_lengths()[step]
    took = {one["sample"]: one["iterations"] for one in events if one["event"] == "sample"}
    first = step * settings.batch
    # The first token of a response comes with its prefill.
    iterations = np.array([took.get(first + row, length - 1) for row, length in enumerate(lengths.tolist())])
    group = np.repeat(np.arange(settings.prompts), settings.samples)
    batch = Batch(np.full(settings.batch, settings.prompt_tokens), lengths, group)
    return DrawnStep((Generated(batch, np.ones(settings.batch, dtype=np.bool_)),), (iterations,))


def _measured(settings: LoopSettings, events: Events) -> Events:
    """Iterations in the measured steps alone, where these hold every size: a machine changes its pace."""
    steps = [one for one in events if one["event"] == "step" and one["step"] >= settings.warmup_steps]
    begin, end = steps[0]["at_s"], steps[-1]["at_s"] + steps[-1]["seconds"]
    inside = [one for one in events if one["event"] in ("iteration", "idle", "publish") and begin <= one["at_s"] <= end]
    kinds = [any(one.get("decoding") for one in inside), any(one.get("prefill_tokens") for one in inside)]
    return inside if all(kinds) else events


def _table(settings: LoopSettings, events: Events) -> IterationTable:
    """Mean seconds of iterations by decoding sequences and of prefills by tokens."""
    done = _until_next(events)
    step = _means([(one["decoding"], one["seconds"]) for one in done if one["decoding"]])
    fill = _means([(one["prefill_tokens"], one["seconds"]) for one in done if one["prefill_tokens"]])
    n = np.arange(settings.running + 1, dtype=np.float64)
    step_s = np.interp(n, list(step), list(step.values()))
    # Without sequences there is no iteration; interp would give it the time of the smallest.
    step_s[0] = 0.0
    grid, added = np.array([0.0, *fill]), np.array([0.0, *fill.values()])
    return IterationTable(
        # Attention is in the measured iterations: a grid of zeros, its step beyond any context; the cache never fills.
        step_s, 1e6, np.zeros((settings.running + 1, 2)), grid, np.zeros(1), added[None, :],
        tokens_per_sequence=settings.queries, max_batched_tokens=max(settings.budget_tokens, 1),
        max_running_sequences=settings.running, kv_capacity_tokens=1e9, chunked_prefill=False,
    )  # fmt: skip


def _until_next(events: Events) -> list[Mapping[str, Any]]:
    """Iterations that last until the engine's next act: what passes between two of them belongs to the first."""
    acts = [one for one in events if one["event"] in ("iteration", "idle", "publish")]
    ends = [one["at_s"] for one in acts[1:]]
    # Acts have times of their own that may end before the next begins: the gap is host work of the first.
    timed = [{**one, "seconds": max(one["seconds"], end - one["at_s"])} for one, end in zip(acts, ends, strict=False)]
    return [one for one in (*timed, *acts[-1:]) if one["event"] == "iteration"]


def _means(pairs: Sequence[tuple[int, float]]) -> dict[float, float]:
    """Mean of the seconds at each size, smallest size first."""
    found: dict[int, list[float]] = {}
    for size, seconds in pairs:
        found.setdefault(size, []).append(seconds)
    return {float(size): float(np.mean(found[size])) for size in sorted(found)}


def _costs(events: Events, step: int) -> StepCost:
    data, logprob, train = (_phase(events, name, step) for name in ("data_s", "logprob_s", "train_s"))
    return StepCost(data, logprob, train)


def _phase(events: Events, name: str, step: int | None) -> PhaseCost:
    """Seconds of a phase in a step, or its mean over all."""
    seconds = [
        one["seconds"]
        for one in events
        if one["event"] == "phase" and one["phase"] == name and step in (None, one["step"])
    ]
    return PhaseCost.of([Part(name, float(np.mean(seconds)), "host")]) if seconds else PhaseCost(0.0)


def _counted(events: Events) -> Counter[int]:
    return Counter(one["decoding"] for one in events if one["event"] == "iteration" and one["decoding"])
