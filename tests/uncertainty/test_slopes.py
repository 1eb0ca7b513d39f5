"""Slopes are those of the tables that the answer was priced with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlsim.costs.overheads import overheads_after, overheads_of
from rlsim.costs.trainer_prices import TrainedBatch, step_cost
from rlsim.hardware.fitted import fitted_of
from rlsim.hardware.tables import OperatorTables
from rlsim.hardware.terms import moved
from rlsim.loading import load_scenario
from rlsim.simulated import simulate_variant
from rlsim.uncertainty.slopes import STEP, phase_slopes

TERM = "training/dense_efficiency"


def test_tables_in_place_of_the_profiles_own_have_slopes_of_their_own() -> None:
    scenario = load_scenario("quickstart", ["simulation.replications=1", "workload.prompts_per_step=16"])
    tables = OperatorTables.load("gb200_nvl72", "vllm")
    assert tables is not None
    run, own = simulate_variant(scenario, tables), simulate_variant(scenario)
    slopes = phase_slopes(run)
    assert slopes.train[TERM] != pytest.approx(phase_slopes(own).train[TERM], rel=1e-3)
    fitted = fitted_of(scenario)
    batch = TrainedBatch.of(run.first_step.trained_tokens, run.first_step.generated_samples)
    after = overheads_after(overheads_of(scenario, fitted), scenario, moved(fitted, {TERM: STEP}), "training")
    times = [
        step_cost(replace(run.inputs.trainer, overheads=overheads), batch).train.seconds
        for overheads in (run.inputs.trainer.overheads, after.training)
    ]
    assert slopes.train[TERM] == pytest.approx(float(np.log(times[1] / times[0])) / STEP)
