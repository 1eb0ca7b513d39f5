"""Slopes are those of the tables that the answer was priced with."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlsim.costs.overheads import overheads_after, overheads_of
from rlsim.costs.trainer.layout import TrainedBatch
from rlsim.costs.trainer.training import step_cost
from rlsim.loading.scenario import load_scenario
from rlsim.parameters.terms import fitted_of, moved
from rlsim.projection.uncertainty import slopes
from rlsim.projection.uncertainty.predictive import between, log_draws, posterior_of
from rlsim.projection.uncertainty.slopes import LAUNCH, STEP, phase_slopes
from rlsim.projection.variant import simulate_variant
from rlsim.results.record import P90_DEVIATIONS
from rlsim.tables.operators import OperatorTables

TERM = "training/dense_efficiency"


def test_tables_in_place_of_the_profiles_own_have_slopes_of_their_own() -> None:
    scenario = load_scenario("quickstart", ["simulation.replications=1", "workload.prompts_per_step=16"])
    tables = OperatorTables.load("gb200_nvl72", "vllm")
    run, own = simulate_variant(scenario, tables), simulate_variant(scenario)
    found = phase_slopes(run)
    assert found.train[TERM] != pytest.approx(phase_slopes(own).train[TERM], rel=1e-3)
    fitted = fitted_of(scenario)
    batch = TrainedBatch.of(run.first_step.trained_tokens, run.first_step.generated_samples)
    after = overheads_after(overheads_of(scenario, fitted), scenario, moved(fitted, {TERM: STEP}), "training")
    times = [
        step_cost(replace(run.inputs.trainer, overheads=overheads), batch).train.seconds
        for overheads in (run.inputs.trainer.overheads, after.training)
    ]
    assert found.train[TERM] == pytest.approx(float(np.log(times[1] / times[0])) / STEP)


def test_the_points_of_a_rollout_stand_for_all_of_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate_variant(load_scenario("quickstart", ["simulation.replications=1"]))
    found = phase_slopes(run).generation
    monkeypatch.setattr(slopes, "POINTS", 100_000)
    exact = phase_slopes(run).generation
    for name, slope in exact.items():
        assert found[name] == pytest.approx(slope, rel=2e-3, abs=1e-5), name


def test_what_nobody_measured_spreads_as_far_as_the_text_says() -> None:
    posterior = posterior_of(load_scenario("quickstart"))
    # Launches of operators: a factor of two either way at 90 %, before any evidence.
    assert math.exp(P90_DEVIATIONS * LAUNCH.spread) == pytest.approx(2.0, rel=0.02)
    # A family of groups without a measurement: Student's t with a scale of 0.15; 5 % of it lie beyond 1.943 scales.
    low, high = between(log_draws(posterior, {}, {"a family that nobody measured: one": 1.0}))
    assert (high - low) / 2 == pytest.approx(0.15 * 1.943, rel=0.06)
