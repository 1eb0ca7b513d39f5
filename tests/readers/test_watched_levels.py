"""A watch of runs whose level is not what the scenario expects, or holds a validation that no timer tells."""

from collections.abc import Mapping

import numpy as np
import pytest

from rlsim.attribution.check import check
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.readers.logs.changes import Level, changes_of, relative
from rlsim.readers.logs.naming import PHASES
from rlsim.readers.logs.reading import RunLog, read_text_log
from rlsim.readers.logs.watching import Watcher
from rlsim.results.check import Check
from rlsim.results.watch import WatchLine
from rlsim.schema.scenario import Scenario
from tests.readers.test_watching import SMALL, console, usual_s


def test_a_validation_that_no_timer_tells_hides_no_change_of_a_step() -> None:
    rng, missed = np.random.default_rng(2), 0
    for _ in range(50):
        step = 220.0 * np.exp(0.03 * rng.standard_normal(60))
        step[9::10] += 80.0  # as ms-swift and slime tell it
        log = RunLog("run", "made", tuple(range(1, 61)), {"step": step}, {"step": ("step",)})
        assert changes_of(log)[0] == ()
        step[40:] *= 1.3
        found = changes_of(log)[0]
        missed += not (found and 39 <= found[0].since <= 42 and found[0].found <= 48)
    assert missed <= 2


def test_phases_moved_from_another_mix_fit_into_their_step() -> None:
    before, after = {"step": 36.0, "generation": 14.0, "train": 3.5, "refit": 18.5}, {"generation": 23.0, "step": 45.0}
    levels = Level(1, 10, before), Level(11, 10, before | after)
    expected = {"step": 90.0, "generation": 60.0, "train": 11.0, "refit": 18.8}
    found = relative(*levels, expected, PHASES)
    assert found["generation"] == pytest.approx(60.0 * 23.0 / 14.0)
    assert sum(found.values()) - found["step"] <= found["step"] == pytest.approx(90.0 + 60.0 * 9.0 / 14.0)
    # Where the mix is as expected the step moves by its own ratio.
    alike = relative(*levels, {name: 2 * value for name, value in before.items()}, PHASES)
    assert alike["step"] == pytest.approx(90.0)


def lines_of(watcher: Watcher, text: str) -> list[WatchLine]:
    out: list[WatchLine] = []
    for n in range(1, len(text.splitlines()) + 1):
        out += watcher.lines(read_text_log("".join(text.splitlines(keepends=True)[:n]), "run"))
    return out


def test_an_alarm_says_how_far_a_phase_moved_or_why_no_fault_is_named() -> None:
    usual = usual_s()
    slow = usual | {"gen": 2.2 * usual["gen"], "update_actor": 0.6 * usual["update_actor"]}
    slow["step"] = sum(slow[name] for name in usual if name != "step")
    text = console(range(1, 21), usual) + console(range(21, 41), slow)
    scenario = load_scenario("quickstart", SMALL)
    alarm = next(line for line in lines_of(Watcher(scenario, check), text) if line.alarm)
    assert {one.quantity for one in alarm.moved} >= {"generation"}
    # Seconds that the check compares are of no step of the run.
    assert " is expected" not in alarm.remark

    def refused(
        scenario: Scenario, measured: Mapping[str, float], noise: Mapping[str, float], *, own_level: bool = False
    ) -> Check:
        if own_level:
            raise InputError("phases do not fit")
        return check(scenario, measured, noise)

    alarm = next(line for line in lines_of(Watcher(scenario, refused), text) if line.alarm)
    assert alarm.suspects == () and "no fault can be named: phases do not fit" in alarm.remark
