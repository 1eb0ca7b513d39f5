"""``rlsim calibrate check-loop``: predict every configuration of the real loop, run it, and set both side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rlsim.calibration.loop_stack import (
    LoopStacks,
    measure_stacks,
    pace_of,
    run_settings,
    scenario_of,
    settings_of,
    with_drawn_lengths,
)
from rlsim.evidence.loop.replay import read_journal, replay, undisturbed
from rlsim.files.records import dataclass
from rlsim.files.yaml import lists_beside
from rlsim.projection.project import project
from rlsim.results.loop_check import LoopCheck, LoopRow, Pair, Speedup, scores_of
from rlsim.results.projection import PHASES, Variant

if TYPE_CHECKING:
    from bench.loop.settings import LoopSettings

LARGE = 0.1
"""Error of a step from which on its row says what took longer."""
Say = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Prediction:
    """What was said of a configuration before it ran, at the pace at which the parts were measured. lengths are in its
    settings."""

    settings: LoopSettings
    over: str
    side: Variant

    def at(self, stacks: LoopStacks, pace: float) -> Prediction:
        """What is said of it on a machine that is so many times slower now."""
        return predict(stacks.at(pace), self.settings, self.over)


def configurations() -> list[tuple[LoopSettings, str]]:
    """Configurations of check.yaml, with the name of that without drafts that each is compared with."""
    told = lists_beside(__file__, "check.yaml")
    stated = [{**told["common"], **one} for one in told["configurations"]]
    over = [one.pop("speedup_over", "") for one in stated]
    return [(settings_of(one), name) for one, name in zip(stated, over, strict=True)]


def check_loop(folder: Path, say: Say, measured: bool = False) -> LoopCheck:
    """Measure the loop's parts into ``folder`` (or read them there where ``measured``), then predict and run all.

    Journals of the runs go to ``folder``/journals. Raises InputError where torch is missing.
    """
    asked = configurations()
    stacks = measure_stacks(folder, lambda line: say(0, len(asked), f"measuring: {line}"), again=not measured)
    said = [predict(stacks, settings, over) for settings, over in asked]
    return run_predicted(stacks, said, folder, say)


def predict(stacks: LoopStacks, settings: LoopSettings, over: str = "") -> Prediction:
    """Project the scenario of a configuration, whose lengths are then those that the scenario draws."""
    scenario = scenario_of(stacks, settings)
    return Prediction(with_drawn_lengths(stacks, scenario, settings), over, project(scenario).candidate)


def run_predicted(stacks: LoopStacks, said: list[Prediction], folder: Path, say: Say) -> LoopCheck:
    """Run what was predicted, one after the other and then backwards: a machine that grows slower meets all alike."""
    pace, done = pace_of(stacks), dict[str, list[LoopRow]]()
    order = [*said, *reversed(said)]
    for number, one in enumerate(order):
        say(number, len(order), one.settings.name)
        now = pace()
        journals = folder / "journals" / f"round_{1 + number // len(said)}"
        found, journal = run_settings(one.settings, lambda line, at=number: say(at, len(order), line), journals)  # type: ignore[misc]
        settings, events = read_journal(journal)
        alone = replay(stacks, settings, undisturbed(events))
        row = _row(one.at(stacks, now), found, fmean(alone.simulated_s), now)
        done.setdefault(one.settings.name, []).append(row)
    say(len(order), len(order), "done")
    rows = {name: _merged(many) for name, many in done.items()}
    told = [_told(rows[one.settings.name], rows.get(one.over)) for one in said]
    return LoopCheck(device=str(stacks.measured["about"]["device"]), rows=tuple(told), scores=scores_of(told))


def _row(said: Prediction, found: Mapping[str, Any], undisturbed_s: float, pace: float) -> LoopRow:
    side, phases = said.side, {}
    for name in PHASES:
        phases[name] = Pair(measured_s=found["phases"][name]["measured_s"], predicted_s=side.phases[name].mean)
    split = said.settings.placement == "split"
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


def _told(row: LoopRow, over: LoopRow | None) -> LoopRow:
    """The row with its speed-up over one without drafts, and with why it misses."""
    speedup, generation = None, row.phases["generation_s"]
    if over is not None:
        plain = over.phases["generation_s"]
        told = plain.predicted_s / generation.predicted_s
        speedup = Speedup(
            measured=plain.measured_s / generation.measured_s, predicted=told, planned=told * row.pace / over.pace
        )
    return LoopRow(**{**dict(row), "speedup": speedup, "why": _why(row)})


def _why(row: LoopRow) -> str:
    """The phase that a large miss comes from, and what else the machine did meanwhile."""
    if abs(row.error) < LARGE:
        return ""
    name, pair = max(row.phases.items(), key=lambda item: abs(item[1].measured_s - item[1].predicted_s))
    more = pair.measured_s - pair.predicted_s
    told = f"{name} took {abs(more):.2f} s {'more' if more > 0 else 'less'} than predicted"
    others = (row.others_cpu_s + row.steal_s) / row.measured_s
    if others > LARGE:
        told += f"; other processes and the hypervisor took {others:.1f} cores"
    return told
