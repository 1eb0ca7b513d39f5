"""Fixed prices, and worlds in which every time can be reckoned by hand."""

from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st
from msgspec import Struct

from rlsim.costs.interface import IterationTable, PhaseCost, Prices, StepCost
from rlsim.loading.scenario import load_scenario
from rlsim.schema.asynchrony import STYLES
from rlsim.schema.scenario import Scenario
from rlsim.simulation.clock import Clock
from rlsim.simulation.generation import Generation
from rlsim.simulation.run import simulate
from rlsim.simulation.trace import Process, StepRecord, Trace
from rlsim.workload.batches import Batch, Generated
from rlsim.workload.draw import DrawnStep, DrawnWorkload, draw

PROMPT = 10
LIMITS = ("loop.staleness_fraction=0.5", "loop.staleness_fraction=1.7", "loop.queue_batches=0", "loop.queue_batches=2")
AT_UPDATE = ("loop.in_flight_updates=false", "loop.recompute_kv=true", "loop.restart_requests=true")


class FixedCosts(Struct, frozen=True, dict=True):
    """Phases of fixed length; an engine iteration takes ``iteration_s`` whatever its batch, prefill is free by default:
    ``prefill_token_s`` a token and ``prefill_pair_s`` a pair of it and a token before it (or half of itself).

    A response of n tokens thus takes (n - 1) iterations. The defaults are sums of powers of two: times are exact.
    """

    iteration_s: float = 0.25
    prefill_token_s: float = 0.0
    prefill_pair_s: float = 0.0
    slots: int = 4096
    data_s: float = 1.0
    prepare_s: float = 2.0
    refit_s: float = 0.5
    wake_s: float = 0.125
    logprob_s: float = 3.0
    train_s: float = 4.0

    @cached_property
    def iteration(self) -> IterationTable:
        """The same for all replicas."""
        step = np.full(self.slots + 1, self.iteration_s)
        step[0] = 0.0
        grid = np.array([0.0, 1e6])
        prefill = np.tile(self.prefill_token_s * grid, (2, 1))
        counts = np.array([0.0, float(self.slots)])
        return IterationTable(
            step, 1000.0, np.zeros((self.slots + 1, 2)), grid, counts, prefill, 1, 1_000_000, self.slots, 1e12,
            prefill_context_s=self.prefill_pair_s * np.array([0.0, 1000.0]),
        )  # fmt: skip

    @property
    def trainer_s(self) -> float:
        return self.data_s + self.logprob_s + self.train_s

    def prices(self, workload: DrawnWorkload, replicas: int) -> Prices:
        step = StepCost(PhaseCost(self.data_s), PhaseCost(self.logprob_s), PhaseCost(self.train_s))
        fixed = (PhaseCost(self.prepare_s), PhaseCost(self.refit_s), PhaseCost(self.wake_s))
        steps = (step,) * workload.trained
        return Prices(self.iteration, replicas, *fixed, steps, lambda lengths, generated: step, 0.0, None, None)


class World(Struct, frozen=True):
    """A scenario with its drawn work and fixed prices."""

    scenario: Scenario
    workload: DrawnWorkload
    prices: Prices


def world_of(
    costs: FixedCosts,
    *overrides: str,
    lag: int = 0,
    prompts: int = 4,
    size: int = 2,
    tokens: int = 401,
    replicas: int = 2,
    lengths: dict[int, list[int]] | None = None,
) -> World:
    """A small loop, synchronous at lag 0. lengths: response tokens of the samples of some steps in place of ``tokens``.

    Without rounding by polls (poll_s=0), 12 steps, no warm-up; ``overrides`` come last.
    """
    keys: dict[str, Any] = {"workload.prompts_per_step": prompts, "workload.generations_per_prompt": size,
                            "workload.prompt_tokens": f"{{kind: constant, tokens: {PROMPT}}}",
                            "workload.response_tokens": f"{{kind: constant, tokens: {tokens}}}",
                            "trainer.global_batch_samples": "null", "loop.mode": "async" if lag else "sync",
                            "loop.policy_lag": lag, "loop.poll_s": 0, "speculation": "{method: none}",
                            "simulation.steps": 12, "simulation.warmup_steps": 0}  # fmt: skip
    scenario = load_scenario("qwen8b_async_lag1", [*(f"{key}={value}" for key, value in keys.items()), *overrides])
    workload = draw(scenario, 0)
    drawn = list(workload.steps)
    for step, responses in (lengths or {}).items():
        count = len(responses)
        batch = Batch(np.full(count, PROMPT), np.asarray(responses), np.arange(count) // size)
        drawn[step] = DrawnStep((Generated(batch, np.ones(count, dtype=np.bool_)),), (batch.response_tokens - 1,))
    workload = DrawnWorkload(tuple(drawn), workload.trained)
    return World(scenario, workload, costs.prices(workload, replicas))


@st.composite
def rules(draw: st.DrawFn) -> tuple[str, ...]:
    """Overrides of a lagged loop that go together: a style or single rules, of any framework or of none."""
    limits = st.sampled_from([(), ("loop.policy_lag=0",), *(("loop.policy_lag=0", one) for one in LIMITS)])
    found = [*draw(limits), f"loop.update_every={draw(st.sampled_from([1, 1, 2, 3]))}"]
    found += draw(st.sampled_from([[], ["loop.overlap=false"]]))
    found += draw(st.sampled_from([[], [], ["loop.max_in_flight_groups=9"]]))
    if draw(st.booleans()):
        return (*found, f"loop.style={draw(st.sampled_from(sorted(STYLES)))}")
    found.append(f"loop.start_unit={draw(st.sampled_from(['group', 'group', 'sample', 'batch']))}")
    found += draw(st.sampled_from([[], *([one] for one in AT_UPDATE)]))
    if draw(st.booleans()):
        found.append("loop.membership=first_done")
        found += draw(st.sampled_from([[], *([f"loop.stale={one}", "loop.max_age=1"] for one in ("drop", "cancel"))]))
    return tuple(found)


def run(world: World, detailed: bool = True) -> Trace:
    return simulate(world.scenario, world.workload, world.prices, Trace(detailed))


def steps(costs: FixedCosts, *overrides: str, **keys: Any) -> list[StepRecord]:
    return run(world_of(costs, *overrides, **keys)).steps


class Driven:
    """A generator without a trainer; the test acts in its place, at times in seconds."""

    def __init__(self, world: World) -> None:
        self.clock = Clock()
        self.generation = Generation(self.clock, world.scenario, world.workload, world.prices, Trace())
        self.clock.process(self.generation.run())

    def at(self, time_s: float) -> Generation:
        self.clock.run(until=self.clock.at(time_s))
        return self.generation

    def waited(self, process: Process) -> float:
        self.clock.run(until=self.clock.process(process))
        return self.clock.now
