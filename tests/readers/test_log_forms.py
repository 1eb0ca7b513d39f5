"""Records of every framework in every form: read to the digit (damaged ones: test_damaged_logs.py)."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.framework_logs import CONSOLES
from rlsim.attribution.check import check
from rlsim.loading.scenario import load_scenario
from rlsim.readers.logs.naming import frameworks
from rlsim.readers.logs.reading import read_log, read_text_log
from rlsim.readers.logs.steady import steady_of, with_facts
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Assumption
from tests.readers.log_forms import FORMS, Made

STEPS = range(3, 9)


def record(made: Callable[[int], Made]) -> str:
    return "".join(made(n)[0] for n in STEPS)


@pytest.mark.parametrize("name", FORMS)
def test_a_record_is_read_to_the_digit(name: str) -> None:
    log = read_text_log(record(FORMS[name]), name).of_loop("sync")
    assert len(log.steps) == len(STEPS) and log.framework in frameworks()
    assert log.steps in (tuple(STEPS), tuple(range(1, 7)))  # consoles without numbers are counted
    for place, n in enumerate(STEPS):
        found = {quantity: values[place] for quantity, values in log.values.items()}
        expected = FORMS[name](n)[1]
        assert {quantity: found[quantity] for quantity in expected} == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", FORMS)
def test_phases_of_a_synchronous_step_add_up_to_no_more_than_it(name: str) -> None:
    log = read_text_log(record(FORMS[name]), name).of_loop("sync")
    parts = sum(log.values[one] for one in ("generation", "logprob", "train", "refit", "data") if one in log.values)
    assert (parts <= log.values["step"] * (1 + 1e-9)).all()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_a_loop_waits_for_is_generation_or_exposed(mode: str) -> None:
    for name in ("AReaL", "verl", "ROLL", "slime"):
        log = read_text_log(record(FORMS[name]), name).of_loop(mode)  # type: ignore[arg-type]
        names = [one for one in ("generation", "exposed_generation") if one in log.values]
        assert names == ["generation" if mode == "sync" else "exposed_generation"]
    # What is left of the asynchronous trainer's clock beside its own work, not the generation that overlaps with it.
    busy = read_text_log(record(FORMS["OpenRLHF"]), "busy").of_loop("async")
    step = busy.values["step"]
    assert busy.values["exposed_generation"].tolist() == (step - 14.0 - 6.5 - 6.0).tolist()


def test_tables_in_words_and_decimals_with_a_comma() -> None:
    text = "| phase | seconds |\n|---|---:|\n| rollout | 40,25 s |\n| update | 350 ms |\n| **total** | 80.7 |\n"
    found = {name: float(values[0]) for name, values in read_text_log(text, "table").values.items()}
    assert found == pytest.approx({"step": 80.7, "generation": 40.25, "train": 0.35})
    text = "| step | generation | train | total |\n|---|---|---|---|\n| 1 | 40 | 20 | 70 |\n| 2 | 41 | 20 | 71 |\n"
    assert read_text_log(text, "rows").values["step"].tolist() == [70, 71]
    text = "Step;timing_s/step;timing_s/gen (ms)\n1;40,5;20250\n"
    log = read_text_log(text, "semicolons")
    assert (log.values["step"][0], log.values["generation"][0]) == (40.5, 20.25)


@pytest.mark.parametrize("form", CONSOLES)
def test_colours_of_a_console_change_nothing(form: str) -> None:
    text = "".join(FORMS[form](step)[0] for step in STEPS)
    coloured = re.sub(r"\d+\.\d+", "\x1b[1;33m\\g<0>\x1b[0m", text)
    plain, found = read_text_log(text, "plain"), read_text_log(coloured, "coloured")
    assert coloured != text and found.steps == plain.steps
    assert {name: one.tolist() for name, one in found.values.items()} == {
        n: v.tolist() for n, v in plain.values.items()
    }


def test_closing_summaries_and_counters() -> None:
    text = "wandb: Run summary:\nwandb:   timing_s/gen 40.0\nwandb:   timing_s/step 80.25\n"
    assert read_text_log(text, "wandb").values["step"].tolist() == [80.25]
    text = '# HELP x\nvllm:num_requests_running{engine="0"} 12.0\ntiming_s_step 40.5\n'
    log = read_text_log(text, "prometheus")
    assert (log.values["step"][0], log.values["running_sequences"][0]) == (40.5, 12)


def test_validation_within_a_step_is_taken_off_it_and_beside_it_not() -> None:
    def rows(held: float) -> str:
        lines = [
            f"step:{n} - timing_s/step:{40 + held * (n % 3 == 0)} - timing_s/testing:{30 if n % 3 == 0 else 0}\n"
            for n in range(1, 10)
        ]
        return "".join(lines)

    for held, remarked in ((30.0, True), (0.0, False)):
        log = read_text_log(rows(held), "validated")
        assert set(log.values["step"].tolist()) == {40}
        assert bool(log.remarks) == remarked


def test_folders_of_mlflow_and_of_text(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "metrics" / "timing_s"
    folder.mkdir(parents=True)
    (folder / "step").write_text("1700000000 40.5 1\n1700000040 41.5 2\n")
    log = read_log(tmp_path / "run")
    assert (log.form, log.values["step"].tolist()) == ("MLflow", [40.5, 41.5])
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, steps in (("train.log.1", (1, 2)), ("train.log", (3, 4))):
        (texts / name).write_text("".join(FORMS["verl"](n)[0] for n in steps))
    assert read_log(texts).steps == (1, 2, 3, 4)


def test_what_a_log_tells_replaces_what_was_guessed_and_nothing_that_was_stated() -> None:
    guess = Assumption(text="a guess", keys=("workload.response_tokens",), log_spread=0.7)
    other = Assumption(text="another", keys=("workload.prompt_tokens",), log_spread=0.7)
    given = load_scenario("quickstart", ["speculation.method=none"])
    steady = steady_of(read_text_log(record(FORMS["verl"]), "log"))
    _, taken = with_facts(given, steady, stated=False)
    assert [one.key for one in taken if "response" in one.key] == []
    guessed = replaced(given, {"assumptions": (guess, other)})
    known, taken = with_facts(guessed, steady, stated=False)
    assert known.assumptions == () and known.workload.response_tokens.mean_tokens == 700.5
    assert "workload.response_tokens.mean_tokens" in [one.key for one in taken]


def test_more_than_the_peak_is_no_share_of_it_but_a_remark() -> None:
    given = load_scenario("quickstart", ["speculation.method=none", "simulation.replications=2"])
    found = check(given, {"step": 60.0, "train": 0.5})
    assert all(one.mfu is None or one.mfu <= 1 for one in found.phases)
    assert any("more than its GPUs can do" in one for one in found.remarks)
