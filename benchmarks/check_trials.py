"""How often ``rlsim check`` names a fault that was put in: ``python benchmarks/check_trials.py [--page]``.

A trial takes a shipped scenario and a fault of the catalogue that moves its step by a tenth or more, at a severity
drawn between its mildest and its gravest. The scenario with the fault is simulated with draws of its own, every phase
gets noise of 5 %, and the check of the *unchanged* scenario sees those phases alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlsim.attribution.check import check
from rlsim.attribution.faults import Faulty, Pattern, pattern_of
from rlsim.attribution.likelihood import NOISE, phase_factors
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.moves import Fault, faults
from rlsim.projection.variant import simulate_variant
from rlsim.results.check import Check
from rlsim.schema.scenario import Scenario

PAGE = Path(__file__).parent.parent / "docs" / "check_trials.md"
SCENARIOS = (
    "quickstart", "qwen235b_512", "qwen235b_2048", "qwen8b_rl_think", "qwen8b_rl_zero", "qwen8b_async_lag1",
    "verl_dapo_7b", "mlperf_grpo",
)  # fmt: skip
VISIBLE = 0.1
"""Share of the step by which a fault must move it to be put in: what costs less nobody looks for."""
TRIALS = 200
KINDS = ("phases", "phases + figures", "phases, model off")
"""What a trial's check sees: phases; figures of the engine's log too; phases that the model also misses by a draw of
its own error."""


@dataclass(frozen=True)
class Trial:
    """One fault put in. place: of its group, 1 the first, 0 where it is in none; alone: its place among single
    explanations; group: size of its group. healthy: whether "healthy" was named before it."""

    scenario: str
    fault: str
    kind: str
    place: int
    alone: int
    group: int

    @property
    def named(self) -> bool:
        """In the first or second group."""
        return 1 <= self.place <= 2

    @property
    def strictly(self) -> bool:
        """The first or second explanation itself."""
        return 1 <= self.alone <= 2


def place_of(fault: str, found: Check) -> tuple[int, int, int]:
    """Place of the fault's group, its own place, and the size of its group; ``healthy`` takes a place of its own."""
    groups = [(group.probability, [one.name for one in group.members]) for group in found.groups]
    entries = sorted([*groups, (found.healthy, ["healthy"]), (found.unlisted, ["unlisted"])], key=lambda one: -one[0])
    singles = [(one.probability, one.name) for group in found.groups for one in group.members]
    order = sorted([*singles, (found.healthy, "healthy"), (found.unlisted, "unlisted")], reverse=True)
    place = next((i for i, (_, names) in enumerate(entries, start=1) if fault in names), 0)
    alone = next((i for i, (_, name) in enumerate(order, start=1) if name == fault), 0)
    return place, alone, len(entries[place - 1][1]) if place else 0


def visible(faulty: Faulty) -> list[Fault]:
    """Faults that move the step of a scenario enough at their gravest."""
    out = []
    for fault in faults():
        if fault.missing(faulty.scenario):
            continue
        found = [faulty.with_fault(fault, severity) for severity in fault.severities or (1.0,)]
        if any(one is not None and _moved(one, faulty.healthy) for one in found):
            out.append(fault)
    return out


def _moved(pattern: Pattern, healthy: Pattern) -> bool:
    return abs(pattern.step_s / healthy.step_s - 1.0) >= VISIBLE


def injected(scenario: Scenario, healthy_s: float, fault: Fault, rng: np.random.Generator) -> Pattern | None:
    """The scenario with the fault, drawn anew; None where it cannot run or its step hardly moves."""
    severity = 1.0
    if fault.severities and fault.whole:
        severity = float(rng.choice(fault.severities))
    elif fault.severities:
        low, high = sorted((fault.severities[0], fault.severities[-1]))
        severity = math.exp(rng.uniform(math.log(low), math.log(high)))
    own = vary(scenario, {"simulation.seed": int(rng.integers(1, 2**31))})
    try:
        cause = fault.of(own, severity, healthy_s)
        found = None if cause is None else pattern_of(simulate_variant(own, changes=[cause]))
    except (Infeasible, InputError):
        return None
    return found if found is not None and abs(found.step_s / healthy_s - 1.0) >= VISIBLE else None


def trials(
    names: Sequence[str] = SCENARIOS,
    count: int = TRIALS,
    seed: int = 0,
    kinds: Sequence[str] = KINDS,
    told: Callable[[int], object] = lambda done: None,
) -> list[Trial]:
    """``count`` faults put in, dealt to scenarios in turn, each checked in every kind."""
    rng = np.random.default_rng(seed)
    scenarios = {name: load_scenario(name) for name in names}
    faulties = {name: Faulty(scenario) for name, scenario in scenarios.items()}
    known = {name: visible(faulty) for name, faulty in faulties.items()}
    factors = {name: phase_factors(simulate_variant(scenario)) for name, scenario in scenarios.items()}
    healthy = {name: pattern_of(simulate_variant(scenario)).step_s for name, scenario in scenarios.items()}
    out: list[Trial] = []
    for number in range(count):
        name = names[number % len(names)]
        pattern = None
        while pattern is None:
            fault = known[name][int(rng.integers(len(known[name])))]
            pattern = injected(scenarios[name], healthy[name], fault, rng)
        for kind in kinds:
            measured = _measured(pattern, kind, factors[name], rng)
            found = check(scenarios[name], measured, NOISE, faulties[name])
            out.append(Trial(name, fault.name, kind, *place_of(fault.name, found)))
        told(number + 1)
    return out


def _measured(
    pattern: Pattern, kind: str, factors: Mapping[str, np.ndarray], rng: np.random.Generator
) -> dict[str, float]:
    """The phases with noise, and what else the kind of trial shows."""
    noisy = {name: value * math.exp(rng.normal(0.0, NOISE)) for name, value in pattern.phases.items()}
    if kind == "phases, model off":
        draw = int(rng.integers(len(factors["step"])))
        noisy = {name: value * float(factors[name][draw]) for name, value in noisy.items()}
    if kind == "phases + figures":
        noisy |= {name: value * math.exp(rng.normal(0.0, 0.02)) for name, value in pattern.figures.items()}
    return noisy


def share(of: Sequence[Trial], holds: Callable[[Trial], bool]) -> str:
    """How many of the trials hold, in percent."""
    return f"{100 * sum(map(holds, of)) / len(of):.0f} %" if of else "-"


HEAD = """# How often `rlsim check` names the fault

Written by `python benchmarks/check_trials.py --page`, which also prints a table by fault. {count} trials: a shipped
scenario in turn, a fault of the catalogue (`rlsim/projection/faults.yaml`, {catalogue} entries) that moves its step by
{visible} or more, a severity drawn between its mildest and its gravest, responses drawn anew, {noise} noise on every
phase.

Faults with the same pattern of phases cannot be separated by phases; they form one group where each expected phase
differs by less than the noise. *Named*: the group of the fault is the first or second. *Strictly*: the fault itself is.
"Healthy" and "not on the list" take places of their own.

"""
SAYS = {
    "phases": "phases with noise",
    "phases + figures": "also what the engine's log tells (response length, running requests, inter-token latency)",
    "phases, model off": "phases that the model misses by a draw of its own error besides",
}


TAIL = """\

## Published pathologies

Threads of users that give numbers; `tests/attribution/test_check.py` holds each to what stands here.

- OpenRLHF 647, Awesome-ML-SYS-Tutorial 169 (weight updates of 80 and 200 s): slow in the weight update, and the first
  group holds faults of transfers alone.
- training-gym 94 to 97 (a weight update of 58 minutes), marin 8936 (147 of 217 s): slow in the weight update, "not
  on the list", since no fault of the catalogue is as grave.
- UniRL 94 (drafts make a rollout on H20 half as long again): drafts rejected more often than stated come first, with
  `k=0` as a cure.
- NVIDIA-NeMo/RL 2790 (0.8 % MFU of training): healthy, as 1.0 % is expected of 64 short samples on 512 GPUs (device and
  lengths assumed).
- slime 1072 (four times the step of another framework): slow, and what to measure next; no phases are given.
- NVIDIA-NeMo/RL 933, marin 8653, EasyR1 39: not enough numbers.
"""


def tables(found: Sequence[Trial], scenarios: Sequence[str]) -> str:
    """The tables of the page."""
    lines = ["| the check sees | trials | first group | named (first or second) | strictly first | strictly named |"
             " faults in the group |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for kind in KINDS:
        of = [one for one in found if one.kind == kind]
        size = np.mean([one.group for one in of if one.place])
        lines.append(
            f"| {SAYS[kind]} | {len(of)} | {share(of, lambda one: one.place == 1)} "
            f"| **{share(of, lambda one: one.named)}** | {share(of, lambda one: one.alone == 1)} "
            f"| {share(of, lambda one: one.strictly)} | {size:.1f} |"
        )
    plain = [one for one in found if one.kind == KINDS[0]]
    lines += ["", "## By scenario, from phases with noise", "", "| scenario | trials | named | strictly named |"
              " faults it can have | of which visible |", "|---|---|---|---|---|---|"]  # fmt: skip
    for name in scenarios:
        of = [one for one in plain if one.scenario == name]
        faulty = Faulty(load_scenario(name))
        possible = sum(not fault.missing(faulty.scenario) for fault in faults())
        lines.append(
            f"| {name} | {len(of)} | {share(of, lambda one: one.named)} | {share(of, lambda one: one.strictly)} "
            f"| {possible} | {len(visible(faulty))} |"
        )
    lines += ["", "## By fault", "", "| fault | trials | named | strictly named |", "|---|---|---|---|"]
    for fault in sorted({one.fault for one in plain}):
        of = [one for one in plain if one.fault == fault]
        named, strictly = share(of, lambda one: one.named), share(of, lambda one: one.strictly)
        lines.append(f"| {fault.replace('_', ' ')} | {len(of)} | {named} | {strictly} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the trials; print or write their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    found = trials(SCENARIOS, given.trials, given.seed)
    told = tables(found, SCENARIOS)
    numbers = {"count": given.trials, "catalogue": len(faults())}
    head = HEAD.format(**numbers, visible=f"{100 * VISIBLE:.0f} %", noise=f"{100 * NOISE:.0f} %")
    if given.page:
        PAGE.write_text(head + told.partition("\n## By fault")[0] + TAIL, encoding="utf-8", newline="\n")
    print(told)


if __name__ == "__main__":
    main()
