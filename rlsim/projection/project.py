"""project(): a candidate against the autoregressive baseline on the same drawn work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rlsim.loading.scenario import as_scenario, scenario_digest
from rlsim.projection.assumptions import (
    assumptions_of,
    caveats_of,
    deciding_guess,
    doubtful_memory,
    warnings_of,
)
from rlsim.projection.efficiency import measured_beside
from rlsim.projection.precision import precise
from rlsim.projection.summary import (
    around_phase,
    memory_of,
    phase_parts,
    price_usd,
    provenance_of,
    speedups,
    timed,
    tokens_per_s_per_gpu,
    variant_of,
)
from rlsim.projection.try_first import try_first
from rlsim.projection.tuned import tuned_step_s
from rlsim.projection.uncertainty.nearest import support_of
from rlsim.projection.variant import SimulatedVariant, extended, simulate_variant
from rlsim.results import Projection
from rlsim.results.memory import MemoryUse
from rlsim.results.record import Interval
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.tables.fingerprint import tables_held
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import list_profiles, load_profile

Progress = Callable[[int, int], None]


def baseline_of(scenario: Scenario) -> Scenario:
    """``scenario`` without speculation."""
    return Scenario.model_validate({**dict(scenario), "speculation": Speculation()})


@tables_held()
def project(
    scenario: Scenario | Path | str,
    progress: Progress | None = None,
    tables: OperatorTables | None = None,
    timeline: bool = True,
) -> Projection:
    """Simulate ``scenario`` and its autoregressive baseline, replication by replication on the same drawn work.

    progress: called with (done, total) simulated variants. tables: operator tables in place of the profile's own.
    timeline: with the spans and curves that its files and pictures show.
    Raises Infeasible where a configuration cannot run and InputError where it makes no sense.
    """
    scenario = as_scenario(scenario)
    # Without speculation a scenario is its own baseline, simulated once: all ratios are then 1 to the bit.
    variants = [baseline_of(scenario), scenario] if scenario.speculation.active else [baseline_of(scenario)]
    each, seen = scenario.replications, progress or (lambda done, total: None)

    def simulated(place: int) -> SimulatedVariant:
        def advance(done: int, work: object) -> None:
            seen(place * each + done, len(variants) * each)

        return simulate_variant(variants[place], tables, advance, detailed=timeline)

    runs = [simulated(place) for place in range(len(variants))]
    # As exact as the candidate alone is elsewhere: every command has one prediction of it.
    runs[-1] = precise(runs[-1], lambda done, total: seen(done, len(variants) * total))
    count, beside = len(runs[-1].traces), replace(runs[0], control=runs[-1].control)
    runs[0] = extended(beside, count, lambda done, total: seen(count + done, 2 * total)) if runs[1:] else runs[-1]
    # Other tables are a study of their own, which asks for no advice.
    return _answer(scenario, runs[0], runs[-1], len(variants) if tables is None else 0)


@tables_held()
def projected_step(scenario: Scenario) -> tuple[Interval, float, dict[str, MemoryUse]]:
    """Step (s), tokens/s per GPU and memory of the candidate, as :func:`project` has them, without all that it says
    besides: for many cells of a grid. Raises as it does."""
    run = precise(simulate_variant(scenario, detailed=False))
    return around_phase(run, "step"), tokens_per_s_per_gpu(run), memory_of(run)


def _answer(scenario: Scenario, base: SimulatedVariant, cand: SimulatedVariant, variants: int) -> Projection:
    parts = phase_parts(cand)
    rollout_speedup, end_to_end_speedup = speedups(timed(base), timed(cand))
    return Projection(
        **about(scenario),
        baseline=variant_of(base, phase_parts(base)),
        candidate=variant_of(cand, parts),
        rollout_speedup=rollout_speedup.interval,
        end_to_end_speedup=end_to_end_speedup.interval,
        provenance=provenance_of(parts),
        assumptions=assumptions_of(cand),
        warnings=warnings_of(cand),
        support=support_of(cand),
        measured_efficiency=measured_beside(scenario),
        try_first=try_first(cand, parts, variants),
        tuned_step_s=tuned_step_s(cand) if variants else None,
        caveats=(*doubtful_memory(cand), *caveats_of(scenario), *deciding_guess(cand)),
        missing=scenario.missing_parts,
    )


def mode_of(scenario: Scenario) -> str:
    """What a loop does: its mode, or the one half that it has."""
    loop = scenario.loop
    return "supervised" if loop.supervised else "rollouts_alone" if loop.rollouts_alone else loop.mode


def identity(scenario: Scenario) -> dict[str, Any]:
    """Which scenario an answer is of, in the fields that every answer has."""
    name, trained = scenario.hardware.name, scenario.training_hardware
    return {
        "scenario": scenario.name,
        "digest": scenario_digest(scenario),
        "mode": mode_of(scenario),
        "num_gpus": scenario.cluster.num_gpus,
        "model": scenario.model.name,
        "hardware": name if trained is None else f"{name} (training: {trained.name})",
    }


def _price_source(scenario: Scenario) -> str:
    """Where the price of the GPUs comes from; a value that is not the shipped profile's is the scenario's own."""
    agent = scenario.workload.agent
    if agent is not None and agent.nodes is not None and agent.nodes.price_per_hour_usd:
        return "with workload.agent.nodes"
    for device in (scenario.hardware, scenario.training_device):
        given = device.price_per_gpu_hour_usd
        if device.name in list_profiles():
            known = load_profile(device.name).price_per_gpu_hour_usd
            # An override changes the value and leaves the profile's source beside it, which would then be wrong.
            if given.source == known.source and given.value != known.value:
                return "stated by the scenario"
    return scenario.hardware.price_per_gpu_hour_usd.source


def about(scenario: Scenario) -> dict[str, Any]:
    """What an answer says of its scenario, by the fields of :class:`rlsim.results.projection.About`."""
    return {
        **identity(scenario),
        "question": scenario.question,
        "seed": scenario.simulation.seed,
        "price_per_gpu_hour_usd": price_usd(scenario),
        "price_source": _price_source(scenario),
        "asked": scenario,
    }
