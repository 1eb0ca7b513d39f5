"""Fit of the global parameters: recovery of known ones, bounds, the file that comes out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.parameters.sets import load_parameters
from rlsim.schema.parameters import GlobalParameters
from rlsim.validation.fit import PARAMETERS, Observation, Parameter, StepFitProblem, get_value, simulate, with_values
from rlsim.validation.fit_steps import StepFit, fit_steps, problem_from, to_yaml
from rlsim.validation.rows import scenario_of

ROW = {
    "model": "Llama-3.1-8B", "gpu": "h100", "num_gpus": "8", "on_off_policy": "sync", "prompts_per_step": "4",
    "generations_per_prompt": "8", "max_seq_len": "1024", "avg_seq_len": "300", "train_pp": "1",
}  # fmt: skip
CHOSEN = (
    Parameter("sequence_s", 2e-5, 0.0, 2e-3),
    Parameter("dense_efficiency", 0.15, 0.3, 1.0),
    Parameter("in_process_iteration_s", 2e-3, 0.0, 0.02),
)


def _rows() -> list[dict[str, str]]:
    sizes = [("4", "8"), ("16", "8"), ("4", "32"), ("64", "8")]
    return [
        {**ROW, "id": f"r{i}", "prompts_per_step": p, "generations_per_prompt": g, "total_step_time_s": "1"}
        for i, (p, g) in enumerate(sizes)
    ]


def _problem(truth: GlobalParameters, start: GlobalParameters) -> StepFitProblem:
    scenarios = [scenario_of(row, replications=1) for row in _rows()]
    observations = [
        Observation(i, name, simulate((scenario, truth)).of(name), 1.0)
        for i, scenario in enumerate(scenarios)
        for name in ("step_s", "train_s", "prepare_s")
    ]
    return StepFitProblem(scenarios, observations, start, CHOSEN)


def test_known_parameters_are_found_again() -> None:
    start = load_parameters("start")
    wanted = np.array([8e-5, 0.5, 7e-3])
    problem = _problem(with_values(start, CHOSEN, wanted), start)
    x, residuals, _ = problem.fit(rounds=4)
    assert float(np.max(np.abs(residuals))) < 0.06  # the prior keeps a little of the start
    assert x[1:] == pytest.approx(wanted[1:], rel=0.06)


def test_left_out_rows_are_predicted_by_the_others() -> None:
    start = load_parameters("start")
    problem = _problem(with_values(start, CHOSEN, np.array([6e-5, 0.55, 6e-3])), start)
    x, base, slope = problem.fit(rounds=3)
    held = problem.held_out(x, base, slope, ["a", "a", "b", "b"])
    assert held.shape == (4,)
    assert float(np.max(np.abs(held))) < 0.1


def test_a_fit_stays_within_its_bounds() -> None:
    start = load_parameters("start")
    problem = _problem(with_values(start, CHOSEN, np.array([6e-5, 0.55, 6e-3])), start)
    base = np.full(len(problem.observations), 3.0)
    slope = np.ones((len(problem.observations), len(CHOSEN)))
    found = problem.solve_linear(problem.x0, base, slope, np.ones(len(base), dtype=np.bool_))
    for value, parameter in zip(found, CHOSEN, strict=True):
        assert parameter.low <= value <= parameter.high


def test_a_solution_at_a_bound_is_a_valid_set_of_parameters() -> None:
    start = load_parameters("start")
    problem = StepFitProblem([scenario_of(_rows()[0])], [Observation(0, "step_s", 1.0, 1.0)] * 20, start)
    rng = np.random.default_rng(0)
    rows = np.ones(20, dtype=np.bool_)
    for _ in range(50):
        base, slope = rng.normal(size=20), rng.normal(size=(20, len(PARAMETERS)))
        with_values(start, PARAMETERS, problem.solve_linear(problem.x0, base, slope, rows))


def test_rows_that_are_not_used_are_told_with_their_reason(tmp_path: Path) -> None:
    rows = [*_rows()[:2], *({**_rows()[2], "id": f"bad{i}"} for i in range(4))]
    rows[2]["model"], rows[3]["total_step_time_s"], rows[4]["prompts_per_step"] = "nobodys", "oops", "1000"
    rows[5]["total_step_time_s"] = "0"
    start = load_parameters("start")
    _, used, skipped = problem_from(_write(tmp_path / "t.csv", rows), start, map)
    assert len(used) + len(skipped) == len(rows)
    assert [name.split()[-1] for name in skipped] == ["bad0", "bad1", "bad2", "bad3"]
    for reason, part in zip(skipped.values(), ("no model card", "not a number", "more than", "above 0"), strict=True):
        assert part in reason
    found = StepFit(start, tuple(used), np.zeros(2), {}, skipped)
    assert "4 rows not used:" in found.text()
    assert re.search("bad1 +total_step_time_s is not a number: 'oops'", found.text())


def test_every_parameter_can_be_read_and_written() -> None:
    fitted = load_parameters()
    values = np.array([get_value(fitted, p.path) for p in PARAMETERS])
    assert with_values(fitted, PARAMETERS, values) == fitted
    changed = with_values(fitted, PARAMETERS, values + 0.01 * np.array([p.scale for p in PARAMETERS]))
    assert all(get_value(changed, p.path) > value for p, value in zip(PARAMETERS, values, strict=True))


def _write(path: Path, rows: list[dict[str, str]]) -> Path:
    names = list(rows[0])
    path.write_text("\n".join([",".join(names), *(",".join(row[name] for name in names) for row in rows)]) + "\n")
    return path


def test_own_steps_bring_the_error_down_and_give_a_file(tmp_path: Path) -> None:
    start = load_parameters("start")
    truth = with_values(start, CHOSEN, np.array([1e-4, 0.45, 9e-3]))
    rows = [
        {**row, "total_step_time_s": f"{simulate((scenario_of(row, replications=1), truth)).step_s:.3f}"}
        for row in _rows()
    ]
    found = fit_steps(_write(tmp_path / "mine.csv", rows), rounds=2)
    before = [
        abs(np.log(simulate((scenario_of(row, replications=1), start)).step_s / float(row["total_step_time_s"])))
        for row in rows
    ]
    assert float(np.median(np.abs(found.residuals))) < float(np.median(before)) / 2
    (tmp_path / "mine.yaml").write_text(to_yaml(found.parameters))
    assert load_parameters(str(tmp_path / "mine.yaml")) == found.parameters
    assert "4 steps: median error" in found.text()


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 2"):
        fit_steps(_write(tmp_path / "one.csv", _rows()[:1]))


def test_the_committed_fit_says_what_it_rests_on() -> None:
    record = load_parameters().fit
    assert record.rows >= 40
    assert record.median_error < 0.08 and record.p90_error < 0.20
    assert record.held_out_median_error["model"] < 0.20
