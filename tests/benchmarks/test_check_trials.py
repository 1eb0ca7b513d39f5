"""A sample of the trials behind docs/check_trials.md."""

from benchmarks.check_trials import SCENARIOS, TRIALS, Trial, place_of, tables, trials
from rlsim.attribution.check import check
from rlsim.loading.scenario import load_scenario

SAMPLE = ("quickstart", "qwen235b_512", "qwen8b_rl_think")


def test_faults_that_were_put_in_are_named() -> None:
    found = trials(SAMPLE, 45, seed=1, kinds=("phases",))
    named = sum(one.named for one in found)
    # 0.85 of 45 are 38; seven more misses than expected at 0.9 happen once in a thousand samples.
    assert named >= 35
    assert sum(one.strictly for one in found) >= 20
    assert all(one.group >= 1 for one in found if one.place)


def test_healthy_and_unlisted_take_places() -> None:
    found = check(load_scenario("quickstart"), {"step": 84.0, "generation": 24.6})
    assert found.likely_healthy
    first = found.groups[0].members[0].name
    assert place_of(first, found)[0] >= 2
    assert place_of("no such fault", found) == (0, 0, 0)


def test_the_page_has_all_tables() -> None:
    one = [Trial("quickstart", "eager", kind, 1, 3, 2) for kind in ("phases", "phases + figures", "phases, model off")]
    told = tables(one, ("quickstart",))
    assert "| eager | 1 | 100 % | 0 % |" in told
    assert told.count("**100 %**") == 3
    assert len(SCENARIOS) == 8 and TRIALS == 200
