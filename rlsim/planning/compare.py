"""Two scenarios side by side: what differs in them, what differs in the answer, and which phase explains it."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from rlsim.loading.differences import differences
from rlsim.loading.scenario import as_scenario, vary
from rlsim.planning.evaluate import step_phases
from rlsim.projection.assumptions import warnings_of
from rlsim.projection.precision import precise
from rlsim.projection.summary import cost_usd, energy_j, phase_parts, price_usd, speedups, timed, variant_of
from rlsim.projection.uncertainty.estimate import NEGLIGIBLE, SHARP, Estimate
from rlsim.projection.uncertainty.inputs import guesses_of
from rlsim.projection.variant import SimulatedVariant, extended, simulate_variant
from rlsim.projection.verdict import PLAIN_HOST, backing, host_decides, unmeasured_winner
from rlsim.report.format import seconds
from rlsim.results import Variant
from rlsim.results.planning import Comparison, PhaseChange
from rlsim.schema.scenario import Scenario

MOST = 8
"""Times the replications asked for that a comparison simulates at most: some seconds on the shipped scenarios."""


class _Side(Struct, frozen=True):
    arm: Variant
    warnings: tuple[str, ...]


def compare(first: Scenario | Path | str, second: Scenario | Path | str) -> Comparison:
    """Simulate both as they are (no baselines), and on until their own error is small beside the model's or MOST times
    the replications are done. Raises Infeasible where one cannot run."""
    first, second = as_scenario(first), as_scenario(second)
    variants = [precise(simulate_variant(first))]
    # Same scenario and seed, same answer: the second simulation is spared where only names differ.
    variants.append(precise(simulate_variant(second)) if differences(first, second) else variants[0])
    asked = [len(run.traces) for run in variants]
    # Of equal numbers, so that they pair; those that a scenario states are kept.
    variants = [run if run.scenario.simulation.replications else extended(run, max(asked)) for run in variants]
    ratio = _ratio(variants)
    while not ratio.settled and 2 * len(variants[0].traces) <= MOST * max(asked):
        variants = [extended(run, 2 * len(run.traces)) for run in variants]
        ratio = _ratio(variants)
    runs = (_side(variants[0]), _side(variants[1]))
    replications = max(len(run.traces) for run in variants)
    phases = _phases((first, second), runs)
    largest = max(phases, key=lambda change: abs(change.after_s - change.before_s))
    # Each warning once, with the sides that it is true of.
    warned: dict[str, list[str]] = {}
    for side, run in zip("AB", runs, strict=True):
        for text in dict.fromkeys(run.warnings):
            warned.setdefault(text, []).append(side)
    paired = len(variants[0].traces) == len(variants[1].traces) and first.simulation.seed == second.simulation.seed
    return Comparison(
        names=(first.name, second.name),
        modes=(first.loop.mode, second.loop.mode),
        differences=differences(first, second),
        step_s=(runs[0].arm.step_s, runs[1].arm.step_s),
        speedup=ratio.interval,
        b_faster=ratio.above(1.0),
        replications=replications,
        more_replications=_more(ratio, replications),
        # Draws depend on workload, seed and replication alone; with these equal both sides meet the same work.
        paired=first.workload == second.workload and paired,
        phases=phases,
        explained_by=largest.phase if largest.after_s != largest.before_s else None,
        cost_per_step_usd=(cost_usd(first, runs[0].arm.step_s.mean), cost_usd(second, runs[1].arm.step_s.mean)),
        energy_per_step_j=(energy_j(first, runs[0].arm.step_s.mean), energy_j(second, runs[1].arm.step_s.mean)),
        price_per_gpu_hour_usd=(price_usd(first), price_usd(second)),
        warnings=tuple(f"{' and '.join(side)}: {text}" for text, side in warned.items()),
        verdict=_verdict((first, second), (runs[0].arm.step_s.mean, runs[1].arm.step_s.mean)),
    )


def _ratio(variants: Sequence[SimulatedVariant]) -> Estimate:
    return speedups(*(timed(run) for run in variants))[1]


def _more(ratio: Estimate, replications: int) -> int:
    """Further replications after which the error of a ratio would be small beside the model's."""
    if ratio.settled:
        return 0
    wanted = max(SHARP * ratio.model_error, NEGLIGIBLE)
    # A standard error falls with the square root of what it is the mean of.
    return math.ceil(replications * ((ratio.error / wanted) ** 2 - 1.0))


def _verdict(scenarios: tuple[Scenario, Scenario], steps_s: tuple[float, float]) -> tuple[str, ...]:
    """What the order of two scenarios must be read with, where they run on different devices."""
    devices = (scenarios[0].hardware, scenarios[1].hardware)
    names = ("A", "B") if scenarios[0].name == scenarios[1].name else (scenarios[0].name, scenarios[1].name)
    if devices[0].name == devices[1].name:
        return ()

    def plain_s(place: int) -> float | None:
        steps = simulate_variant(vary(scenarios[place], {"hardware.host_cpu": PLAIN_HOST})).every_step
        return float(np.mean([step.seconds for step in steps]))

    fastest = int(steps_s[1] < steps_s[0])
    other = f"{names[1 - fastest]}, {seconds(steps_s[1 - fastest])} on {devices[1 - fastest].name}"
    measured = "" if backing(devices[1 - fastest]) else other
    return (*unmeasured_winner(devices[fastest], measured), *host_decides(devices, steps_s, names, plain_s))


def _side(run: SimulatedVariant) -> _Side:
    guesses = [f"a guess, which the interval holds: {text}." for text in guesses_of(run.scenario)]
    return _Side(variant_of(run, phase_parts(run)), (*guesses, *warnings_of(run)))


def _phases(scenarios: tuple[Scenario, Scenario], runs: tuple[_Side, _Side]) -> tuple[PhaseChange, ...]:
    """Serial phases of both; waiting for an asynchronous generator stands beside synchronous generation."""
    sides = [
        {
            name.replace("exposed_", "").replace("refit", "prepare").removesuffix("_s"): run.arm.phases[name].mean
            for name in step_phases(scenario)
        }
        for scenario, run in zip(scenarios, runs, strict=True)
    ]
    # Shares of the signed difference: they add up to 1, and a phase that works against it has a negative one.
    total = runs[1].arm.step_s.mean - runs[0].arm.step_s.mean
    out = []
    for phase in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = sides[0].get(phase, 0.0), sides[1].get(phase, 0.0)
        share = (after - before) / total if total else None
        out.append(PhaseChange(phase=phase, before_s=before, after_s=after, share=share))
    return tuple(out)
