"""A user's own rows as evidence: one, a few, contradictory, degenerate, many."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from measured_tables import ROW, row, write

from rlsim.errors import InputError
from rlsim.evidence.compare import Learned, learn, validate_table
from rlsim.evidence.steps import scenario_of
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.report.text.validation import learned_text
from rlsim.results import Variant
from rlsim.schema.scenario import Scenario
from tests.evidence.test_structure import ITERATION, TRAINING

Command = Callable[..., tuple[int, str, str]]


def expected_s(**changes: str) -> float:
    return project(scenario_of(row(**changes))).candidate.step_s.mean


def test_one_row_moves_its_prediction_most_of_the_way_narrows_it_and_moves_its_neighbours(tmp_path: Path) -> None:
    measured_s = 1.4 * expected_s()
    found = learn(write(tmp_path / "own.csv", [row(total_step_time_s=f"{measured_s:.3f}")]))
    (time,) = found.times
    assert time.kind == "step" and time.measured_s == pytest.approx(measured_s, rel=1e-3)
    before, after = (abs(np.log(one.mean / measured_s)) for one in (time.expected, time.now))
    assert after < 0.4 * before
    widths = (np.log(one.high / one.low) for one in (time.now, time.expected))
    assert next(widths) < 0.5 * next(widths)
    assert time.now.low <= measured_s <= time.now.high
    (tmp_path / "own.npz").write_bytes(found.posterior.to_bytes())

    def with_own(scenario: Scenario) -> float:
        own = vary(scenario, {"simulation.posterior": str(tmp_path / "own.npz")})
        return project(own).candidate.step_s.mean / project(scenario).candidate.step_s.mean

    same, other = scenario_of(row()), load_scenario("qwen235b_512", ["simulation.replications=1"])
    assert with_own(same) > 1.18
    assert with_own(scenario_of(row(prompts_per_step="16"))) > 1.15
    assert with_own(other) == pytest.approx(1.0, abs=0.05)


def test_what_contradicts_and_rows_that_say_nothing_are_told(tmp_path: Path) -> None:
    usual_s = expected_s()
    far = learn(write(tmp_path / "far.csv", [row(total_step_time_s=f"{15 * usual_s:.3f}")]))
    assert far.times[0].tail < 0.02 and "contradicts the measurements of others" in far.times[0].remark
    split = [row(id=f"r{n}", total_step_time_s=f"{factor * usual_s:.3f}") for n, factor in enumerate((1, 1, 1, 1, 5))]
    told = [time.remark for time in learn(write(tmp_path / "split.csv", split)).times]
    assert "contradicts the other rows" in told[4] and not any(told[:4])
    rows = [{**TRAINING, "id": f"r{n}", "step_time_s": f"{20 + n % 7}"} for n in range(60)]
    rows += [{**TRAINING, "id": "r3"}, {**TRAINING, "id": "zero", "step_time_s": "0"}]
    rows += [{**TRAINING, "id": "text", "step_time_s": "fast"}, {**TRAINING, "id": "gpu", "gpu": "abacus"}]
    found = learn(write(tmp_path / "own.csv", rows))
    assert len(found.times) == 60 and len(found.skipped) >= 3
    assert np.isfinite(found.posterior.factor).all()
    assert "3 rows not used" in learned_text(found) or "4 rows not used" in learned_text(found)


@pytest.mark.parametrize(("cells", "kind"), [(ITERATION, "iteration"), (TRAINING, "training")])
def test_any_kind_of_time_is_evidence(cells: dict[str, str], kind: str, tmp_path: Path) -> None:
    assert [time.kind for time in learn(write(tmp_path / "own.csv", [cells])).times] == [kind]


@pytest.mark.parametrize("changes", [{"total_step_time_s": "0"}, {"total_step_time_s": "nan"}, {"gpu": "abacus"}])
def test_nothing_to_learn_from_is_said(changes: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"own\.csv: none of its rows can be used: own-run"):
        learn(write(tmp_path / "own.csv", [row(**changes)]))


def test_the_command_writes_what_a_scenario_can_name(run: Command, tmp_path: Path) -> None:
    table, out = write(tmp_path / "own.csv", [ROW]), tmp_path / "own.npz"
    code, told, _ = run("calibrate", "own", table, "--out", out)
    assert code == 0 and "own-run" in told and str(out) in told
    first = out.read_bytes()
    assert run("calibrate", "own", table, "--out", out)[0] == 0 and out.read_bytes() == first
    assert load_scenario("quickstart", [f"simulation.posterior={out}"]).simulation.posterior == str(out.resolve())
    code, _, err = run("calibrate", "own", table, "--out", tmp_path / "own.yaml")
    assert (code, len(err.strip().splitlines())) == (2, 1) and ".npz" in err
    assert not (tmp_path / "own.yaml").exists()


Run = Callable[..., tuple[int, str, str]]


def test_text_and_files_or_one_json_object_and_nothing_else(run: Run, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [row(), row(id="-2+3", model="none")])
    code, out, err = run("validate", table, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "2 rows of kind steps, 1 simulated, 1 skipped" in out
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "validation.json", "rows.csv", "scatter.png", "ratios.png",
    }  # fmt: skip
    with (tmp_path / "out" / "rows.csv").open(newline="") as file:
        assert [cells["id"] for cells in csv.DictReader(file)] == ["own-run", "'-2+3"]
    table = write(tmp_path / "t.csv", [row()])
    code, out, err = run("validate", table, "--json", "--seed", 3)
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["rows"][0]["id"] == "own-run"
    assert out != run("validate", table, "--json", "--seed", 4)[1]


@pytest.mark.parametrize("words", ["validate t.csv --json", "validate table t.csv --json"])
def test_the_command_for_a_table_need_not_be_named(run: Run, tmp_path: Path, words: str) -> None:
    table = write(tmp_path / "t.csv", [row()])
    code, out, err = run(*(str(table) if word == "t.csv" else word for word in words.split()))
    assert (code, err) == (0, "") and json.loads(out)["rows"][0]["id"] == "own-run"


QUICKSTART = {
    "id": "my_8b", "model": "llama-3.1-8b", "gpu": "h100", "num_gpus": "8", "on_off_policy": "sync",
    "prompts_per_step": "64", "generations_per_prompt": "32", "max_seq_len": "4096", "avg_seq_len": "800",
    "train_pp": "2", "train_gbs": "512", "train_mb_tokens": "4096", "logprob_mb_tokens": "16384",
}  # fmt: skip
"""The run of scenario quickstart without drafts, as a measured row."""
PLAIN = {"speculation.method": "none"}
TIMES = {"generation_s": "generation", "logprob_s": "logprob", "train_s": "train"}


def taken_in(rows: list[dict[str, str]], folder: Path, scenario: Scenario) -> tuple[Learned, Variant]:
    found = learn(write(folder / "own.csv", rows))
    (folder / "own.npz").write_bytes(found.posterior.to_bytes())
    return found, project(vary(scenario, {"simulation.posterior": str(folder / "own.npz")})).candidate


def test_a_projection_fed_back_stays_where_it_was_and_is_surer(tmp_path: Path) -> None:
    scenario = load_scenario("quickstart", PLAIN)
    before = project(scenario).candidate
    phases = {name: f"{before.phases[name].mean:.4f}" for name in TIMES}
    cells = {**QUICKSTART, "total_step_time_s": f"{before.step_s.mean:.4f}", **phases}
    table = write(tmp_path / "same.csv", [cells])
    (compared,) = validate_table(table).rows
    found, after = taken_in([cells], tmp_path, scenario)
    # One run has one prediction, whoever is asked.
    assert compared.predicted == pytest.approx(before.step_s.mean, rel=1e-3)
    assert found.times[0].expected.mean == pytest.approx(before.step_s.mean, rel=1e-3)
    assert after.step_s.mean == pytest.approx(before.step_s.mean, rel=2e-3)
    for name in TIMES:
        assert after.phases[name].mean == pytest.approx(before.phases[name].mean, rel=5e-3)
    assert np.log(after.step_s.high / after.step_s.low) < 0.5 * np.log(before.step_s.high / before.step_s.low)


def test_equal_rows_end_near_their_time_and_a_total_alone_moves_to_it(tmp_path: Path) -> None:
    scenario = load_scenario("quickstart", PLAIN)
    slow = {**QUICKSTART, "total_step_time_s": "135", "generation_s": "60", "logprob_s": "27", "train_s": "38"}
    _, once = taken_in([slow], tmp_path, scenario)
    _, thrice = taken_in([{**slow, "id": f"r{n}"} for n in range(3)], tmp_path, scenario)
    assert once.step_s.low <= 135 <= once.step_s.high and thrice.step_s.low <= 135 <= thrice.step_s.high
    assert abs(thrice.step_s.mean - 135) < abs(once.step_s.mean - 135) < 0.03 * 135
    # A faster run than is expected: the effect of its deviations on a step is not linear.
    total = {**QUICKSTART, "total_step_time_s": "90"}
    found, after = taken_in([total], tmp_path, scenario)
    assert after.step_s.low <= 90 <= after.step_s.high
    assert found.times[0].now.mean == pytest.approx(after.step_s.mean, rel=0.01)


@pytest.mark.parametrize(("cells", "told"), [
    ({**ITERATION, "tpot_ms": "0.009", "decode_step_ms_est": ""}, "tpot_ms is .* times below.*seconds for mill"),
    ({**QUICKSTART, "total_step_time_s": "105300"}, "total_step_time_s is .* times above.*milliseconds for seconds"),
])  # fmt: skip
def test_a_column_in_another_unit_is_named_and_nothing_is_learnt(
    cells: dict[str, str], told: str, tmp_path: Path
) -> None:
    table = write(tmp_path / "own.csv", [cells])
    with pytest.raises(InputError, match=told):
        learn(table)
    assert re.search(told, validate_table(table).remarks[-1])
