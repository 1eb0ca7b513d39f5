"""One scenario to its numbers, or to the reason why it has none."""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.draft_policy import counted
from rlsim.costs.memory import check_fits, check_no_worse, surely
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import scenario_digest
from rlsim.loading.variation import Overrides
from rlsim.projection.moves import fairly_split, varied
from rlsim.projection.precision import Anchor
from rlsim.projection.project import baseline_of
from rlsim.projection.summary import (
    Timed,
    cost_usd,
    energy_j,
    iteration_tokens,
    mean_value,
    memory_of,
    phase_parts,
    simulated_estimate,
    speedups,
    timed,
    tokens_per_s_per_gpu,
)
from rlsim.projection.uncertainty.estimate import Estimate
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.results import PHASES, Interval, PhasePart
from rlsim.results.record import interval
from rlsim.results.sweep import Mean, StepNumbers
from rlsim.schema.scenario import Scenario

BASELINES_CACHED = 256

STEP_PHASES = {
    "sync": ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s"),
    "async": ("exposed_generation_s", "data_s", "logprob_s", "train_s", "refit_s"),
}
"""Phases that add up to a step."""


def step_phases(scenario: Scenario) -> tuple[str, ...]:
    """Phases that add up to a step of ``scenario``: of a streaming one with the generation that it waits for."""
    names = STEP_PHASES[scenario.loop.mode]
    if not scenario.loop.streaming:
        return names
    return tuple("exposed_generation_s" if name == "generation_s" else name for name in names)


class Seen(Struct, frozen=True):
    """What a search needs of a scenario: GPUs, mean step in seconds and bytes per GPU, as StepNumbers have them.

    given_up: it was not simulated to its end; a step takes more than step_s then, and memory may be fuller.
    """

    num_gpus: int
    step_s: Mean
    generation_memory_bytes: float
    training_memory_bytes: float
    given_up: bool = False


class Cell(Struct, frozen=True):
    """What a scenario came to: its numbers, or ``error``, why it has none. timed: mean times with draws around them.
    seen: in place of numbers where no more was asked for. step: its mean with the simulation's own error at least."""

    numbers: StepNumbers | None = None
    timed: Timed | None = None
    error: Infeasible | InputError | None = None
    seen: Seen | None = None
    step: Estimate | None = None

    @property
    def status(self) -> Literal["ok", "infeasible", "invalid"]:
        """Whether it has numbers, cannot run, or is no scenario."""
        if self.error is None:
            return "ok"
        return "infeasible" if isinstance(self.error, Infeasible) else "invalid"

    @property
    def reason(self) -> str:
        """Why it has no numbers, in one line; empty where it has."""
        return "" if self.error is None else str(self.error).removeprefix("infeasible: ")


def _simulated(scenario: Scenario) -> Cell:
    """``scenario`` over its replications, without a baseline. Raises Infeasible and InputError."""
    run = simulate_variant(scenario, tokens=False)
    found = timed(run)
    return Cell(_numbers(scenario, run, found.interval), found, step=found.step)


# Baselines alone: the cells of a grid share few of them, while each cell itself comes once.
_simulated_once = lru_cache(maxsize=BASELINES_CACHED)(_simulated)


def evaluate_overrides(base: Scenario, overrides: Overrides, with_baseline: bool = True) -> Cell:
    """Numbers of ``base`` with ``overrides`` against its baseline on the same drawn work, or why it cannot run."""
    try:
        scenario = varied(base, fairly_split(base, overrides))
        check_no_worse(base, scenario)
        # Cells that share their baseline simulate it once; without speculation they are it.
        before = None if scenario.speculation.active and not with_baseline else _simulated_once(baseline_of(scenario))
        cell = _simulated(scenario) if scenario.speculation.active or before is None else before
    except (Infeasible, InputError) as error:
        return Cell(error=error)
    assert cell.numbers is not None
    if cell is before:  # under the name of the scenario that was asked for
        cell = replace(cell, numbers=dataclasses.replace(cell.numbers, digest=scenario_digest(scenario)))
    return _beside(scenario, cell, before) if with_baseline and before is not None else cell


def evaluate_means(base: Scenario, overrides: Overrides, offered: bool = False) -> Cell:
    """``base`` with ``overrides``, without its baseline and without intervals: what a search of many cells needs.

    offered: it must fit as surely as what a plan offers.
    """
    try:
        scenario = varied(base, overrides)
        if offered:
            _check_offered(scenario)
        else:
            check_no_worse(base, scenario)
        run = simulate_variant(scenario, tokens=False)
    except (Infeasible, InputError) as error:
        return Cell(error=error)
    step = simulated_estimate(run, "step")
    return Cell(_numbers(scenario, run, Mean(step.mean)), step=step)


def see(base: Scenario, overrides: Overrides, within_s: float) -> Cell:
    """GPUs, mean step and memory of a plan that may be offered, in half the time of :func:`evaluate_means`. within_s:
    longest step of interest."""
    try:
        scenario = varied(base, overrides)
        _check_offered(scenario)
        run = simulate_variant(scenario, tokens=False, within_s=within_s)
    except (Infeasible, InputError) as error:
        return Cell(error=error)
    used = {pool: use.total_bytes for pool, use in memory_of(run).items()}
    given_up = any(len(steps) < len(run.scenario.measured_steps) for steps in run.steps)
    # A simulation is given up once its steps take longer than within_s: that bound is all that is known of it.
    step_s = within_s if given_up else mean_value(run, lambda step: step.seconds)
    return Cell(seen=Seen(scenario.cluster.num_gpus, Mean(step_s), used["generation"], used["training"], given_up))


def _check_offered(scenario: Scenario) -> None:
    """Raise Infeasible where an engine and a trainer, of which each may fit beside the least of the other, fit less
    surely beside each other than a plan promises."""
    check_fits(surely(scenario), engine=False)


def beside_baseline(scenario: Scenario, cell: Cell, by: Anchor | None) -> Cell:
    """``cell``, whose seconds are :func:`carried` over, with the numbers of the baseline of ``scenario``, carried over
    too. Raises Infeasible and InputError."""
    return _beside(scenario, cell, carried(_simulated_once(baseline_of(scenario)), by))


def _beside(scenario: Scenario, cell: Cell, before: Cell) -> Cell:
    """A cell of ``scenario`` with the numbers of its baseline and the speed-ups over it."""
    assert cell.numbers is not None and cell.timed is not None and before.timed is not None
    rollout, end_to_end = speedups(before.timed, cell.timed)
    numbers = dataclasses.replace(
        cell.numbers,
        baseline_step_s=before.timed.step_s,
        baseline_cost_per_step_usd=cost_usd(scenario, before.timed.step_s),
        rollout_speedup=rollout.interval,
        end_to_end_speedup=end_to_end.interval,
    )
    return replace(cell, numbers=numbers)


def carried(cell: Cell, by: Anchor | None) -> Cell:
    """``cell`` with all its seconds carried over to what ``project`` answers, as they are without an anchor."""
    numbers, found = cell.numbers, cell.timed
    if by is None or numbers is None or cell.step is None:
        return cell
    scale = by.carried(cell.step).scale
    times = {name: scale * getattr(numbers, name) for name in (*PHASES, "cost_per_step_usd", "energy_per_step_j")}
    rates = {name: getattr(numbers, name) / scale for name in ("tokens_per_s", "tokens_per_s_per_gpu")}
    numbers = dataclasses.replace(numbers, step_s=numbers.step_s.times(scale), **times, **rates)
    if found is not None:
        found = replace(found, generation=found.generation.times(scale), step=found.step.times(scale))
    return replace(cell, numbers=numbers, timed=found)


def _numbers(scenario: Scenario, run: SimulatedVariant, step_s: Interval | Mean) -> StepNumbers:
    """Numbers of a simulated scenario without those of a baseline. scenario: as asked for; it may have warmed up for
    longer."""

    def phase_s(name: str) -> float:
        return mean_value(run, lambda step: step.phases[name])

    phases = {name: phase_s(name) for name in PHASES}
    used = {pool: use.total_bytes for pool, use in memory_of(run).items()}
    per_gpu = tokens_per_s_per_gpu(run)
    cluster, speculation = scenario.cluster, scenario.speculation
    return StepNumbers(
        num_gpus=cluster.num_gpus,
        generation_gpus=cluster.generation,
        training_gpus=cluster.training,
        reference_gpus=cluster.reference_gpus,
        method=speculation.method if speculation.active else "none",
        draft_length=speculation.draft_length if speculation.active else 0,
        acceptance_length=interval(iteration_tokens(run)).mean,
        policy_lag=scenario.loop.lag,
        step_s=step_s,
        **phases,
        tokens_per_s=per_gpu * cluster.num_gpus,
        tokens_per_s_per_gpu=per_gpu,
        cost_per_step_usd=cost_usd(scenario, step_s.mean),
        energy_per_step_j=energy_j(scenario, step_s.mean),
        generation_memory_bytes=used.get("generation", 0.0),
        training_memory_bytes=used.get("training", 0.0),
        eager_share=_eager_share(run),
        captured_tokens=run.prices.engine.captured_tokens,
        limit=limit_of(scenario, phases, phase_parts(run)),
        baseline_step_s=None,
        baseline_cost_per_step_usd=None,
        rollout_speedup=None,
        end_to_end_speedup=None,
        digest=scenario_digest(scenario),
    )


def _eager_share(run: SimulatedVariant) -> float:
    """Share of the iterations beyond the largest captured graph; none where graphs are off."""
    engine = run.prices.engine
    if not run.scenario.engine.cuda_graphs:
        return 0.0
    return engine.eager_share(counted(engine, run.counters).iterations_at)


def limit_of(scenario: Scenario, phases: Mapping[str, float], parts: Iterable[PhasePart]) -> str:
    """The longest phase of the step and its largest part, such as ``generation: experts (memory)``."""
    phase = max(step_phases(scenario), key=lambda name: phases[name])
    # Exposed generation has no parts of its own: they are those of the whole phase.
    shown = "generation_s" if phase == "exposed_generation_s" else phase
    inside = [share for share in parts if share.phase == shown]
    if not inside:
        return shown.removesuffix("_s")
    largest = max(inside, key=lambda share: share.seconds)
    return f"{shown.removesuffix('_s')}: {largest.name} ({largest.bound})"
