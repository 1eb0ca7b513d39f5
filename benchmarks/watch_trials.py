"""How often ``rlsim watch`` names a fault: ``python benchmarks/watch_trials.py [--every N]``.

Runs of shipped scenarios are simulated with work of their own, healthy and with each fault of the catalogue that moves
the step by a tenth or more, at three severities from the mildest such to the gravest. Every phase of every step gets
noise of 5 %; the run is written in the format of each of twelve frameworks (framework_logs.py) and read back by a watch
of the unchanged scenario: with the fault from its 21st step on, and from its first. Healthy runs of 200 steps, and
runs whose responses grow by a quarter, follow. --every: one trial in so many.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks import framework_logs as logs
from rlsim.attribution.check import check
from rlsim.attribution.faults import Faulty, printed_phases
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.effects import longer_responses
from rlsim.projection.moves import Fault, faults
from rlsim.projection.variant import simulate_variant
from rlsim.readers.logs.reading import read_text_log
from rlsim.readers.logs.watching import Watcher
from rlsim.results.check import Check
from rlsim.results.watch import WatchLine
from rlsim.schema.scenario import Scenario
from rlsim.workload.batches import expected_prompt_tokens

BEGIN, STEPS, HEALTHY_STEPS, HEALTHY_RUNS = 20, 40, 200, 120
NOISE, VISIBLE, LONGER, SOON, SEVERITIES = 0.05, 0.1, 1.25, 10, 3
SYNC, ASYNC = ("quickstart", "speculation.method=none"), ("qwen8b_async_lag1",)
FRAMEWORKS: Mapping[str, tuple[logs.Writer, tuple[str, ...]]] = {
    "NeMo-RL": (logs.nemo, SYNC), "verl": (logs.verl, SYNC), "slime": (logs.slime, ASYNC), "miles": (logs.slime, SYNC),
    "vime": (logs.slime, SYNC), "SkyRL": (logs.skyrl_rows, SYNC), "prime-rl": (logs.prime_rl_rows, ASYNC),
    "AReaL": (logs.areal, ASYNC), "OpenRLHF": (logs.openrlhf, SYNC), "ROLL": (logs.roll, ASYNC),
    "trl": (logs.trl_rows, SYNC), "ms-swift": (logs.swift_rows, SYNC),
}  # fmt: skip
"""Whose format is written, of a run of which scenario. Consoles that name the step alone (those of prime-rl, trl and
ms-swift) tell a fault from another by nothing: their exported metrics stand for them."""


class Trial(NamedTuple):
    """A fault put into a run. place: of its group where the watch names it, 0 where it does not; size: of its group;
    shown: whether the line names it."""

    framework: str
    fault: str
    begins: str
    alarmed: bool
    place: int
    size: int
    shown: bool


_faulties: list[tuple[Scenario, Faulty]] = []


def faulty_of(scenario: Scenario) -> Faulty:
    """Simulations of a scenario under faults, made once."""
    if (found := next((faulty for known, faulty in _faulties if known == scenario), None)) is None:
        _faulties.append((scenario, found := Faulty(scenario)))
    return found


class Beside:
    """A watch of a scenario whose checks share their simulations. alarmed: its first alarm, and the check behind it."""

    def __init__(self, scenario: Scenario) -> None:
        self.last: Check | None = None
        self.alarmed: tuple[WatchLine, Check] | None = None
        self.watcher = Watcher(scenario, self._explain)

    def _explain(
        self, scenario: Scenario, measured: Mapping[str, float], noise: Mapping[str, float], *, own_level: bool = False
    ) -> Check:
        self.last = check(scenario, measured, noise, faulty_of(scenario), own_level=own_level)
        return self.last

    def seen(self, text: str) -> list[WatchLine]:
        """Lines of the whole run, which is read again after each of its steps."""
        log, lines = read_text_log(text, "trial"), list[WatchLine]()
        for count in range(1, len(log.steps) + 1):
            values = {name: one[:count] for name, one in log.values.items()}
            lines += self.watcher.lines(replace(log, steps=log.steps[:count], values=values))
            if self.alarmed is None and self.last is not None and lines and lines[-1].alarm:
                self.alarmed = lines[-1], self.last
        return lines


@cache
def scenario_of(named: tuple[str, ...]) -> Scenario:
    """A shipped scenario, of one replication."""
    return load_scenario(named[0], [*named[1:], "simulation.replications=1"])


@cache
def truth(
    named: tuple[str, ...], fault: str = "", severity: float = 1.0, longer: float = 1.0, seed: int = 1,
    count: int = STEPS,
) -> list[dict[str, float]]:  # fmt: skip
    """Simulated steps of a scenario with a fault or longer responses, on work of its own."""
    scenario = vary(scenario_of(named), {"simulation.seed": seed, "simulation.steps": count})
    cause = longer_responses(scenario, longer) if longer != 1.0 else None
    if fault:
        known = next(one for one in faults() if one.name == fault)
        cause = known.of(scenario, severity, faulty_of(scenario_of(named)).healthy.step_s)
    run = simulate_variant(scenario, changes=[] if cause is None else [cause])
    prompt = expected_prompt_tokens(scenario.workload)
    return [
        {
            **printed_phases(one, scenario),
            "prompt_tokens": prompt,
            "response_tokens": one.total_tokens / one.samples - prompt,
        }
        for one in run.every_step
    ]


def noisy(steps: Sequence[Mapping[str, float]], rng: np.random.Generator) -> Iterator[dict[str, float]]:
    """Steps with noise on every phase; a step is their sum and what lies between them."""
    for step in steps:
        seconds = {name: value for name, value in step.items() if name != "step" and not name.endswith("tokens")}
        found = {name: value * float(np.exp(NOISE * rng.standard_normal())) for name, value in seconds.items()}
        yield {**step, **found, "step": step["step"] - sum(seconds.values()) + sum(found.values())}


def written(writer: logs.Writer, steps: Sequence[Mapping[str, float]], rng: np.random.Generator) -> str:
    """A run in a framework's format."""
    return "".join(writer(n, step) for n, step in enumerate(noisy(steps, rng), start=1))


def faults_of(named: tuple[str, ...]) -> Iterator[tuple[Fault, float]]:
    """Faults that move the step enough to be looked for, each at SEVERITIES severities of those that do."""
    faulty = faulty_of(scenario_of(named))
    for fault in faults():
        # A misstated scenario is no fault of a run.
        if fault.misstated or fault.missing(faulty.scenario):
            continue
        found = [(severity, faulty.with_fault(fault, severity)) for severity in fault.severities or (1.0,)]
        seen = [at for at, one in found if one is not None and one.step_s > (1 + VISIBLE) * faulty.healthy.step_s]
        if seen:
            between = np.geomspace(seen[0], seen[-1], SEVERITIES).tolist()
            yield from ((fault, severity) for severity in (np.resize(seen, SEVERITIES) if fault.whole else between))


def place_of(found: Check, fault: Fault) -> tuple[int, int]:
    """Of the fault's group, 1 the first, 0 of none, and its size."""
    for place, group in enumerate(found.groups, start=1):
        if fault.name in (names := [one.name for one in group.members]):
            return place, len(names)
    return 0, 0


def trial(framework: str, fault: Fault, severity: float, begins: str, rng: np.random.Generator) -> Trial:
    """A watch of a run with the fault."""
    writer, named = FRAMEWORKS[framework]
    faulty, healthy = truth(named, fault.name, severity, seed=int(rng.integers(2, 5))), truth(named)
    steps = faulty if begins == "first" else [*healthy[:BEGIN], *faulty[: STEPS - BEGIN]]
    beside = Beside(scenario_of(named))
    beside.seen(written(writer, steps, rng))
    if beside.alarmed is None:
        return Trial(framework, fault.name, begins, False, 0, 0, False)
    line, found = beside.alarmed
    shown = fault.name in [one.name for one in line.suspects] or fault.name.replace("_", " ") in line.remark
    return Trial(framework, fault.name, begins, True, *place_of(found, fault), shown)


def share(of: Sequence[Trial], holds: Callable[[Trial], bool]) -> str:
    """How many of the trials hold, in percent."""
    return f"{100 * sum(map(holds, of)) / len(of):.0f} %" if of else "-"


def table(found: Sequence[Trial]) -> str:
    """Shares by framework and of all, as Markdown."""
    lines = ["| format of | trials | alarmed | first or second | shown on the line | faults of the group |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for name in (*FRAMEWORKS, "all"):
        for begins in ("21st", "first"):
            of = [one for one in found if name in (one.framework, "all") and one.begins == begins]
            size = float(np.mean([one.size for one in of if one.place] or [0]))
            lines.append(
                f"| {name}, from the {begins} step | {len(of)} | {share(of, lambda one: one.alarmed)} "
                f"| {share(of, lambda one: 1 <= one.place <= 2)} | {share(of, lambda one: one.shown)} | {size:.1f} |"
            )
    return "\n".join(lines)


def left_alone(rng: np.random.Generator, runs: int) -> tuple[int, int, int]:
    """Healthy runs without an alarm, runs whose other lengths were found soon, and such without an alarm."""
    quiet = soon = other_work = 0
    names = list(FRAMEWORKS)
    for run in range(runs):
        writer, named = FRAMEWORKS[names[run % len(names)]]
        healthy = truth(named, seed=11 + run // len(names) % 2, count=HEALTHY_STEPS)
        beside = Beside(scenario_of(named))
        beside.seen(written(writer, healthy, rng))
        quiet += beside.alarmed is None
        # The cap of the asynchronous scenario leaves no room for longer ones.
        grown = truth(named, longer=LONGER if named == SYNC else 1 / LONGER, seed=3)[:BEGIN]
        beside = Beside(scenario_of(named))
        lines = beside.seen(written(writer, [*healthy[:BEGIN], *grown], rng))
        moved = [(line.step, one.quantity) for line in lines for one in line.moved]
        soon += any(name == "response_tokens" and BEGIN < step <= BEGIN + SOON for step, name in moved)
        other_work += beside.alarmed is None
    return quiet, soon, other_work


def main() -> None:
    """Run all trials and print their shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    rng, found = np.random.default_rng(chosen.seed), list[Trial]()
    asked = [(name, *one) for name, (_, named) in FRAMEWORKS.items() for one in faults_of(named)]
    for name, fault, severity in asked[:: chosen.every]:
        found += [trial(name, fault, severity, begins, rng) for begins in ("21st", "first")]
    print(table(found))
    for begins in ("21st", "first"):
        missed = Counter(one.fault for one in found if one.begins == begins and not 1 <= one.place <= 2)
        silent = Counter(one.fault for one in found if one.begins == begins and not one.alarmed)
        print(f"from the {begins} step: not named {dict(missed)}, of these not alarmed {dict(silent)}")
    runs = HEALTHY_RUNS // chosen.every
    quiet, soon, other_work = left_alone(rng, runs)
    print(f"healthy runs of {HEALTHY_STEPS} steps left alone: {quiet} of {runs}")
    print(f"responses {LONGER:g} times as long, or as short, found within {SOON} steps: {soon} of {runs};")
    print(f"these left alone: {other_work} of {runs}")


if __name__ == "__main__":
    main()
