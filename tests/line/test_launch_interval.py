"""Launches beyond the captured graphs: their share of a rollout, their interval, and what the answer says of them."""

import math

import numpy as np
import pytest

from rlsim.costs.interface import EngineCounters
from rlsim.loading.scenario import load_scenario
from rlsim.projection.assumptions import warnings_of
from rlsim.projection.summary import phase_parts, variant_of
from rlsim.projection.uncertainty.predictive import prediction_of
from rlsim.projection.uncertainty.slopes import LAUNCH
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.results.record import P90_DEVIATIONS

SMALL = ("simulation.replications=1", "workload.prompts_per_step=16", "trainer.global_batch_samples=512")
EAGER = ("engine.max_captured_tokens=8", "hardware.eager_launch_s.value=1e-4", "speculation.method=none")


def simulated(*settings: str) -> SimulatedVariant:
    return simulate_variant(load_scenario("quickstart", [*SMALL, *settings]))


@pytest.fixture(scope="module")
def eager() -> SimulatedVariant:
    return simulated(*EAGER)


@pytest.fixture(scope="module")
def captured() -> SimulatedVariant:
    return simulated("speculation.method=none")


def test_the_share_of_launches_is_that_of_the_counted_seconds(eager: SimulatedVariant) -> None:
    costs, counters = eager.prices.engine, EngineCounters(16)
    counters.count(16, 5, 100.0)
    waiting = 5 * costs.components["eager launches"].seconds[16]
    assert costs.launch_share(counters) == pytest.approx(waiting / sum(part.seconds for part in costs.parts(counters)))
    assert costs.launch_share(EngineCounters(16)) == 0.0
    within = EngineCounters(16)
    within.count(8, 5, 100.0)
    assert costs.launch_share(within) == 0.0


def test_a_factor_of_two_of_the_launches_widens_the_interval_of_the_rollout(
    eager: SimulatedVariant, captured: SimulatedVariant
) -> None:
    share = eager.prices.engine.launch_share(eager.counters)
    assert 0.1 < share < 1.0
    slopes = {name: prediction_of(run).slopes.generation for name, run in (("eager", eager), ("captured", captured))}
    assert slopes["eager"][LAUNCH.name] == share and LAUNCH.name not in slopes["captured"]
    found = {name: variant_of(run, phase_parts(run)) for name, run in (("eager", eager), ("captured", captured))}

    def width(name: str, phase: str) -> float:
        interval = found[name].phases[phase]
        return float(np.log(interval.high / interval.low))

    launches = 2 * P90_DEVIATIONS * LAUNCH.spread * share
    assert width("eager", "generation_s") == pytest.approx(
        math.hypot(width("captured", "generation_s"), launches), rel=0.25
    )
    assert width("eager", "refit_s") == pytest.approx(width("captured", "refit_s"))


def test_the_answer_says_that_it_hangs_on_the_launches(eager: SimulatedVariant, captured: SimulatedVariant) -> None:
    told = " ".join(warnings_of(eager))
    assert "(8 tokens, engine.max_captured_tokens) and launch eagerly" in told
    assert "of the variance of the step hangs on it" in told
    assert "launch eagerly" not in " ".join(warnings_of(captured))
