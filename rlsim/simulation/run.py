"""simulate(): time passes over drawn work at known prices; no cost model, table or random number is reached."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from rlsim.costs.interface import Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.synchronous import run_synchronous
from rlsim.simulation.trace import Trace
from rlsim.workload.draw import DrawnWorkload


def simulate(scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace | None = None) -> Trace:
    """What one replication of ``scenario`` does with its drawn work: warm-up and measured steps.

    trace: to be filled with as much as it asks for, default without spans and curves. Raises Infeasible where a sample
    exceeds a replica's KV cache.
    """
    trace = trace or Trace()
    trace.kv_capacity_tokens = prices.replicas * prices.iteration.kv_capacity_tokens
    loop = run_synchronous
    if scenario.loop.mode == "async":  # modules that it alone needs
        from rlsim.simulation.asynchronous import run_asynchronous as loop
    with _cycles_left_alone():
        loop(scenario, workload, prices, trace)
    return trace


@contextmanager
def _cycles_left_alone() -> Iterator[None]:
    """No search for reference cycles meanwhile: the simulation makes many small objects and no cycles among them, and
    the searches through all that live are a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
