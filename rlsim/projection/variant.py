"""One side of a comparison, simulated: the line draw -> price -> simulate, once for each replication."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.interface import EngineCounters
from rlsim.costs.prices import PriceInputs, ScenarioPrices
from rlsim.projection.change import Change, with_keys
from rlsim.projection.control import Control, batches_of, regression, seen_of
from rlsim.projection.scale import carried, on_enough_work, priced_pool, simulate_pool, whole_step
from rlsim.results import PHASES
from rlsim.schema.base import changed
from rlsim.schema.scenario import MAX_SIMULATED_STEPS, Scenario
from rlsim.simulation.trace import StepRecord, Trace
from rlsim.simulation.trajectories import AgentCounters
from rlsim.tables.operators import OperatorTables
from rlsim.units import FloatArray
from rlsim.workload.acceptance import DraftPlan
from rlsim.workload.draw import BEGINNING, DrawnStep, DrawnWorkload, Stretch

BALANCED = 0.03
"""Tokens that measured steps leave in flight, or take from there, as a share of those generated, in a settled loop."""
STOCKED_BATCHES = 3.0
"""Batches ahead beyond which what was started first may last longer than twice as many steps; with fewer a straggler in
or out of flight is as much as the start-up."""
LONGER_WARMUPS = 2
"""Times that the warm-up is doubled."""
COMPARED_CYCLES = 24
"""Most cycles on which alternatives are compared, on equal drawn work: their ratios are then known to some per cent
(coding_agent_64, verl_dapo_7b) or one (mlperf_grpo), where single steps of it differ by a third."""
SEARCH_REPLICATIONS = 1
"""A search compares alternatives on one drawn workload, the same for all."""
SEARCH_STEPS = 8
"""Most measured steps of it: on equal work few steps tell alternatives apart, and the leaders are simulated in full."""


class SimulatedVariant(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """A scenario with the prices and the trace of each replication; at most the first trace is detailed.

    inputs: what it was priced from. first_step: drawn work of the first measured step. stretch: the part of a run that
    was drawn. draft_plan: of draft lengths that follow the live batch. changes: made to drawn work and prices. control:
    of its drawn work, by which its measured steps are moved.
    """

    inputs: PriceInputs
    first_step: DrawnStep
    by_replication: tuple[ScenarioPrices, ...]
    traces: tuple[Trace, ...]
    stretch: Stretch = BEGINNING
    draft_plan: DraftPlan | None = None
    changes: tuple[Change, ...] = ()
    control: Control | None = None

    @property
    def scenario(self) -> Scenario:
        """The scenario as simulated, warm-up included."""
        return self.inputs.scenario

    @property
    def prices(self) -> ScenarioPrices:
        """Prices of the first replication; all replications agree but in the trainer's work by step."""
        return self.by_replication[0]

    @property
    def steps(self) -> list[list[StepRecord]]:
        """Measured steps of each replication."""
        return [trace.steps[self.scenario.measured_steps.start :] for trace in self.traces]

    @property
    def every_step(self) -> list[StepRecord]:
        """Measured steps of all replications."""
        return [step for steps in self.steps for step in steps]

    @cached_property
    def seen(self) -> list[FloatArray]:
        """What a control goes by, of the drawn work of each measured step, by replication."""
        first, measured = self.stretch.first, self.scenario.measured_steps
        steps = range(first + measured.start, first + measured.stop)
        return seen_of(self.scenario.workload, self.scenario.simulation.seed, len(self.traces), steps)

    @property
    def fitted_batches(self) -> int:
        """Batches of steps behind the regression that moves the values of steps; 0 where none does."""
        return 0 if self.control is None else len(self.traces) * batches_of(self.seen)

    def values(self, of: Callable[[StepRecord], float]) -> list[FloatArray]:
        """A value of the measured steps by replication, moved by the control where there is one: means of them are
        those to go by."""
        found = [np.array([float(of(step)) for step in steps]) for steps in self.steps]
        if self.control is None:
            return found
        slope, mean = regression(found, self.seen)[0], self.control.mean
        return [row - slope * (seen - mean) for row, seen in zip(found, self.seen, strict=True)]

    @cached_property
    def phases_s(self) -> dict[str, float]:
        """Mean seconds of each phase over all measured steps."""
        return {name: float(np.mean(np.concatenate(self.values(seconds_of(name))))) for name in PHASES}

    def moved(self, phase: str) -> float:
        """Mean seconds of a phase over those of the steps as simulated: what the control moved them by."""
        if self.control is None:
            return 1.0
        simulated_s = float(np.mean([step.phases[phase] for step in self.every_step]))
        return self.phases_s[phase] / simulated_s if simulated_s else 1.0

    @property
    def rewards_s(self) -> float:
        """Seconds of a synchronous step's generation phase in which its rewards are awaited."""
        rollouts = float(np.mean([step.rollouts for step in self.every_step]))
        return self.scenario.workload.environment_s * rollouts

    @cached_property
    def counters(self) -> EngineCounters:
        """What the engines did in all measured steps of all replications."""
        counters = EngineCounters()
        for trace in self.traces:
            counters.add(trace.counters)
        return counters

    def carried_s(self, name: str) -> float:
        """Standard deviation of the mean seconds of a phase, or of ``step``, that no further replication lessens; below
        0 where it may take less. By how far what was simulated of a cluster stands for all of it (projection/scale.py),
        0 where all was simulated; or by the error of the control."""
        if self.control is not None:
            values = [np.array([seconds_of(name)(step) for step in steps]) for steps in self.steps]
            return regression(values, self.seen)[0] * self.control.error
        added = [trace.doubling.get(name, 0.0) for trace in self.traces]
        return carried(self.scenario)[1] * float(np.mean(added))

    @property
    def unsettled(self) -> float:
        """Tokens that the measured steps left in flight, below 0 lived on, over those generated; 0 where the loop is
        settled (BALANCED), keeps no such stock, or has no ledger."""
        ledgers = [trace.ledger for trace in self.traces if trace.ledger is not None]
        generated = sum(ledger.generated for ledger in ledgers)
        if not generated or self.scenario.loop.batches_ahead <= STOCKED_BATCHES:
            return 0.0
        share = sum(ledger.in_flight for ledger in ledgers) / generated
        return share if abs(share) > BALANCED else 0.0

    @property
    def agents(self) -> AgentCounters:
        """What trajectories of several turns did besides generating, in all measured steps of all replications."""
        counters = AgentCounters()
        for trace in self.traces:
            counters.add(trace.agents)
        return counters


def seconds_of(name: str) -> Callable[[StepRecord], float]:
    """Seconds of a phase of the contract, or of ``step``."""
    return lambda step: step.seconds if name == "step" else step.phases[name]


def so_many(scenario: Scenario, replications: int) -> dict[str, Any]:
    """Overrides that ask for so many replications; the first ones draw the same work whatever their number. What is
    simulated of a replication stays, as it would not where a user states them."""
    asked = scenario.simulation
    whole: dict[str, Any] = {} if asked.exact is not None or asked.replications else {"simulation.exact": False}
    return {"simulation.replications": replications, **whole}


def replicated(scenario: Scenario, replications: int) -> Scenario:
    """The scenario with so many replications."""
    asked = {key.removeprefix("simulation."): value for key, value in so_many(scenario, replications).items()}
    return changed(scenario, simulation=changed(scenario.simulation, **asked))


def compared(scenario: Scenario) -> Scenario:
    """The scenario as answers compare it with others: as it states its replications, else the first ones and at most
    COMPARED_CYCLES cycles of them; of a lagged loop as many in two, since each starts up anew, which of a loop of 16
    steps a cycle takes twice as long as they do. Of a stated number, so that alternatives whose loops ask for others
    pair."""
    if scenario.simulation.replications is not None:
        return scenario
    cycle, steps, lagged = scenario.cycle_steps, len(scenario.measured_steps), scenario.loop.mode == "async"
    count = min(scenario.replications, math.ceil(COMPARED_CYCLES * cycle / steps))
    if steps <= COMPARED_CYCLES * cycle and not lagged:
        return replicated(scenario, count)
    if lagged and count > 2:
        count, steps = 2, count * steps // (2 * cycle) * cycle
    one = replicated(scenario, count)
    # Stated, since a synchronous alternative of a lagged loop would have a single step a replication.
    return changed(one, simulation=changed(one.simulation, steps=min(steps, COMPARED_CYCLES * cycle)))


@lru_cache(maxsize=2)  # what the parts of one answer begin with: a tenth of the simulations of a long loop
def compared_run(scenario: Scenario) -> SimulatedVariant:
    """The scenario simulated as answers compare it with others. Raises as :func:`simulate_variant`."""
    return simulate_variant(compared(scenario), tokens=False)


def searched(scenario: Scenario) -> Scenario:
    """The scenario as a search compares it with others: SEARCH_REPLICATIONS, and at most SEARCH_STEPS steps."""
    one = replicated(scenario, SEARCH_REPLICATIONS)
    asked, lagged = one.simulation.steps, one.loop.mode == "async"
    if asked is None and not (lagged and len(one.measured_steps) > SEARCH_STEPS):
        return one
    return changed(one, simulation=changed(one.simulation, steps=min(asked or SEARCH_STEPS, SEARCH_STEPS)))


def simulate_variant(
    scenario: Scenario,
    tables: OperatorTables | None = None,
    see: Callable[[int, DrawnWorkload], object] = lambda done, work: None,
    detailed: bool = False,
    stretch: Stretch = BEGINNING,
    tokens: bool = True,
    within_s: float | None = None,
    changes: Sequence[Change] = (),
) -> SimulatedVariant:
    """Draw, price and simulate every replication of ``scenario``; where it states no warm-up and is not settled after
    it, with twice the warm-up, and twice again.

    tables: in place of those that the hardware profile names. see: called with the number of replications done and the
    work of the last one, which is dropped. detailed: with spans and curves of the first replication. stretch: the part
    of a run to draw. tokens: with what became of tokens and how old they were; without, only where whether a loop is
    settled depends on it. within_s: for times alone, and given up where the mean step of a lagged loop is known to take
    longer. changes: made to its keys, its drawn work and its prices. Raises Infeasible where it cannot run and
    InputError where it makes no sense.
    """
    scenario = with_keys(scenario, changes)
    stocked = scenario.loop.batches_ahead > STOCKED_BATCHES  # how it settles takes the whole of it
    asked = Trace(False, tokens or stocked, math.inf if within_s is None or stocked else within_s)
    bare = within_s is not None
    for _ in range(LONGER_WARMUPS if scenario.simulation.warmup_steps is None else 0):
        found = _simulated(PriceInputs(scenario, tables, bare), see, detailed, stretch, asked, changes)
        warmup = 2 * scenario.measured_steps.start
        # A longer warm-up than the schema lets a file ask for is not taken: the answer then warns that it is unsettled.
        steps = warmup + len(scenario.measured_steps)
        if not found.unsettled or steps * scenario.replications > MAX_SIMULATED_STEPS:
            return found
        scenario = changed(scenario, simulation=changed(scenario.simulation, warmup_steps=warmup))
    return _simulated(PriceInputs(scenario, tables, bare), see, detailed, stretch, asked, changes)


def _simulated(
    inputs: PriceInputs,
    see: Callable[[int, DrawnWorkload], object],
    detailed: bool,
    stretch: Stretch,
    asked: Trace,
    changes: Sequence[Change],
) -> SimulatedVariant:
    prices, traces, first_steps, scenario = [], [], [], inputs.scenario
    for replication in range(scenario.replications):
        # Pictures show one replication: spans of the others would only fill the memory.
        one = Trace(detailed and replication == 0, asked.tokens, asked.within_s)
        workload, found, trace = _replication(inputs, replication, stretch, changes, one)
        prices.append(found)
        traces.append(trace)
        first_steps.append(whole_step(scenario, workload))
        see(replication + 1, workload)
    return SimulatedVariant(
        inputs, first_steps[0], tuple(prices), tuple(traces), stretch, inputs.draft_plan, tuple(changes)
    )


def _replication(
    inputs: PriceInputs, replication: int, stretch: Stretch, changes: Sequence[Change], asked: Trace
) -> tuple[DrawnWorkload, ScenarioPrices, Trace]:
    """Drawn work of a replication and its prices, with ``changes`` made to both, and what it does. asked: as much as
    its trace holds."""

    def run(workload: DrawnWorkload) -> tuple[DrawnWorkload, ScenarioPrices, Trace]:
        # Priced before the work changes: the trainer keeps the lengths that it really has.
        prices, trace = priced_pool(inputs, workload), Trace(asked.detailed, asked.tokens, asked.within_s)
        for change in changes:
            workload, prices = change.workload(workload), cast(ScenarioPrices, change.prices(prices))
        return workload, prices, simulate_pool(inputs.scenario, workload, prices, trace)

    return on_enough_work(inputs.scenario, replication, inputs.draft_plan, stretch, run)


def extended(
    run: SimulatedVariant, replications: int, progress: Callable[[int, int], object] = lambda done, total: None
) -> SimulatedVariant:
    """``run`` with so many replications: its own, and further ones simulated now. progress: called with (done, total)
    of them."""
    prices, traces = list(run.by_replication), list(run.traces)
    for replication in range(len(traces), replications):
        asked = Trace(False, traces[0].tokens)
        _, found, trace = _replication(run.inputs, replication, run.stretch, run.changes, asked)
        prices.append(found)
        traces.append(trace)
        progress(replication + 1, replications)
    return replace(run, by_replication=tuple(prices), traces=tuple(traces))
