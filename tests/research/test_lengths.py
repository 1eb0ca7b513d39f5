"""Mean responses of runs that publish none."""

import pytest

from research.lengths import MEAN_KEY, SCENARIO, MeasuredRun, compared, fitted_mean
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project

HEADER = "id,framework,model,placement,num_gpus,prompts_per_step,old_logprob_s,train_s,total_step_s\n"
ROW = "verl_7b_colocate_32,verl,Qwen2.5-Math-7B,colocated sync,32,512,107.71,269.8,790.1\n"


def test_a_known_mean_is_found_again_and_both_orders_are_compared() -> None:
    base, known = load_scenario(SCENARIO), 2345.0
    runs = []
    for colocated in (True, False):
        empty = MeasuredRun("run", 64, colocated, 1.0, 1.0, None)
        phases = project(vary(empty.scenario(base), {MEAN_KEY: known})).candidate.phases
        train_s = empty.updates(base) * phases.train_s.mean
        runs.append(MeasuredRun("run", 64, colocated, 100.0, train_s, phases.logprob_s.mean or None))
    assert fitted_mean(runs[:1], base) == pytest.approx(known, rel=0.02)
    assert fitted_mean(runs[1:], base) == pytest.approx(known, rel=0.02)
    assert compared(runs, base, known)[-1].startswith("64 GPUs: asynchronous 1.00x measured")
