"""A scenario simulated with some of its causes of time taken away, or with faults put in, on the same drawn work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from rlsim.attribution.causes import Cause
from rlsim.costs.prices import PriceInputs, ScenarioPrices, priced
from rlsim.loading.scenario import vary
from rlsim.projection.variant import SimulatedVariant
from rlsim.schema.scenario import Scenario
from rlsim.simulation.run import simulate
from rlsim.workload.draw import draw


def with_changes(scenario: Scenario, causes: Sequence[Cause]) -> Scenario:
    """The scenario under the keys that ``causes`` change. Raises InputError where these contradict it."""
    for cause in causes:
        scenario = vary(scenario, cause.changes) if cause.changes else scenario
    return scenario


def simulate_changed(scenario: Scenario, causes: Sequence[Cause]) -> SimulatedVariant:
    """Every replication of ``scenario`` with each of ``causes`` applied: to its keys, its drawn work and its prices.

    Raises Infeasible where it cannot run so, and InputError where it makes no sense.
    """
    scenario = with_changes(scenario, causes)
    inputs = PriceInputs(scenario)
    found_prices, traces, first_steps = [], [], []
    for replication in range(scenario.simulation.replications):
        workload = draw(scenario, replication, inputs.draft_plan)
        prices = priced(inputs, workload)
        for cause in causes:
            workload, prices = cause.workload(workload), cast(ScenarioPrices, cause.prices(prices))
        found_prices.append(prices)
        traces.append(simulate(scenario, workload, prices))
        first_steps.append(workload.steps[scenario.measured_steps.start])
    return SimulatedVariant(scenario, first_steps[0], tuple(found_prices), tuple(traces), draft_plan=inputs.draft_plan)
