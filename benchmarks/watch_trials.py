"""How often ``rlsim watch`` names a fault that begins within a run: ``python benchmarks/watch_trials.py``.

A run of a shipped scenario is simulated, and from its 21st step on with a fault of the catalogue that moves the step by
a tenth or more. Every phase of every step gets noise of 5 %; the run is written with the metric names of one framework
after another and read back by a watch of the unchanged scenario. Healthy runs of 200 steps, and runs whose responses
grow by a quarter, follow.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from rlsim.attribution.check import check
from rlsim.attribution.faults import Faulty
from rlsim.files.yaml import lists_beside
from rlsim.loading.scenario import load_scenario
from rlsim.projection.moves import Fault, faults
from rlsim.readers.logs import naming
from rlsim.readers.logs.reading import read_text_log
from rlsim.readers.logs.watching import Watcher
from rlsim.results.check import Check
from rlsim.results.watch import WatchLine
from rlsim.schema.scenario import Scenario

BEGIN, STEPS, HEALTHY_STEPS, HEALTHY_RUNS = 20, 40, 200, 100
NOISE, VISIBLE, LONGER, SOON = 0.05, 0.1, 1.25, 10
FRAMEWORKS = ("NeMo-RL", "verl", "slime, miles and vime", "SkyRL", "OpenRLHF", "ROLL", "AReaL", "rlsim")
"""Whose logs name every phase; the others name the step alone, which tells a fault from another by nothing."""


def written(framework: str, steps: list[Mapping[str, float]]) -> str:
    """JSON lines with the framework's names: the first metric of each quantity holds all of it."""
    rows = lists_beside(naming.__file__)["frameworks"][framework]["rows"]
    names: dict[str, str] = {}
    for quantity, first, *_ in rows:
        # AReaL's step is the sum of its timers, and what it waits for is generation.
        if framework != "AReaL" or quantity != "step":
            names.setdefault("generation" if framework == "AReaL" and "exposed" in quantity else quantity, first)
    lines = [
        json.dumps({"step": n} | {names[name]: value for name, value in step.items() if name in names})
        for n, step in enumerate(steps, start=1)
    ]
    return "\n".join(lines) + "\n"


def noisy(
    phases: Mapping[str, float], count: int, rng: np.random.Generator, tokens: float
) -> list[Mapping[str, float]]:
    """Steps of a run: noise on every phase, and a step of their sum and what lies between them."""
    rest = phases["step"] - sum(value for name, value in phases.items() if name != "step")
    out = []
    for _ in range(count):
        one = {n: v * np.exp(NOISE * rng.standard_normal()) for n, v in phases.items() if n != "step"}
        out.append(
            one | {"step": sum(one.values()) + rest, "response_tokens": tokens * np.exp(0.02 * rng.standard_normal())}
        )
    return out


class Beside:
    """A watch whose checks are kept and share their simulations."""

    def __init__(self, scenario: Scenario, faulty: Faulty) -> None:
        self.checks: list[Check] = []
        self.watcher = Watcher(scenario, self._explain)
        self._faulty = faulty

    def _explain(self, scenario: Scenario, measured: Mapping[str, float], noise: Mapping[str, float]) -> Check:
        same = scenario == self._faulty.scenario or scenario.workload == self._faulty.scenario.workload
        self.checks.append(check(scenario, measured, noise, self._faulty if same else None))
        return self.checks[-1]

    def seen(self, text: str) -> list[WatchLine]:
        """Lines of the whole run."""
        return self.watcher.lines(read_text_log(text, "trial"))


def place_of(found: Check, fault: Fault) -> int:
    """Of the fault's group, 1 the first; 0 of none."""
    places = [n for n, group in enumerate(found.groups, start=1) if fault.name in [one.name for one in group.members]]
    return places[0] if places else 0


def faults_of(faulty: Faulty, severities: int) -> Iterator[tuple[Fault, Mapping[str, float]]]:
    """Faults that move the step enough to be looked for, mild to grave, with their phases."""
    for fault in faults():
        # A misstated scenario is no fault that begins within a run.
        if fault.misstated or fault.missing(faulty.scenario):
            continue
        for severity in (fault.severities or (1.0,))[-severities:]:
            found = faulty.with_fault(fault, severity)
            if found is not None and found.step_s > (1 + VISIBLE) * faulty.healthy.step_s:
                yield fault, found.phases


def main() -> None:
    """Run all trials and print their shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--severities", type=int, default=3)
    parser.add_argument("--scenario", default="quickstart")
    chosen = parser.parse_args()
    scenario, rng = (
        load_scenario(chosen.scenario, ["speculation.method=none", "simulation.replications=2"]),
        np.random.default_rng(7),
    )
    faulty = Faulty(scenario)
    healthy, tokens = faulty.healthy.phases, faulty.healthy.figures["response_tokens"]
    tally, missed = Counter[str](), Counter[str]()
    for count, (fault, phases) in enumerate(faults_of(faulty, chosen.severities)):
        framework = FRAMEWORKS[count % len(FRAMEWORKS)]
        text = written(framework, [*noisy(healthy, BEGIN, rng, tokens), *noisy(phases, STEPS - BEGIN, rng, tokens)])
        beside = Beside(scenario, faulty)
        alarmed = any(line.alarm for line in beside.seen(text))
        named = len(beside.checks) > 1 and 1 <= place_of(beside.checks[1], fault) <= 2
        tally.update(trials=1, alarmed=alarmed, named=named)
        missed.update([] if named else [fault.name])
    print(f"faults: {tally['trials']}, alarm in {tally['alarmed']}, first or second group in {tally['named']}")
    print("not named:", dict(missed))
    quiet = soon = 0
    for run in range(HEALTHY_RUNS):
        framework = FRAMEWORKS[run % len(FRAMEWORKS)]
        beside = Beside(scenario, faulty)
        quiet += not any(
            line.alarm for line in beside.seen(written(framework, noisy(healthy, HEALTHY_STEPS, rng, tokens)))
        )
        longer = [*noisy(healthy, BEGIN, rng, tokens), *noisy(healthy, BEGIN, rng, LONGER * tokens)]
        lines = Watcher(None, beside._explain).lines(read_text_log(written("verl", longer), "longer"))
        soon += any(m.quantity == "response_tokens" and line.step <= BEGIN + SOON for line in lines for m in line.moved)
    print(f"healthy runs of {HEALTHY_STEPS} steps left alone: {quiet} of {HEALTHY_RUNS}")
    print(f"responses {LONGER:g} times as long found within {SOON} steps: {soon} of {HEALTHY_RUNS}")


if __name__ == "__main__":
    main()
