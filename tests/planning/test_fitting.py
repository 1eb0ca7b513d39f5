"""Settings that make a scenario fit: each does so alone, and the nearest of a key is named."""

import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.planning.fitting import fits, settings_that_fit
from rlsim.projection.moves import varied
from rlsim.schema.scenario import Scenario


@pytest.fixture(scope="module")
def quickstart() -> Scenario:
    return load_scenario("quickstart")


@pytest.mark.parametrize(
    "wrong", [{"engine.gpu_memory_utilization": 0.2}, {"trainer.micro_batch_tokens": 131072}], ids=["engine", "trainer"]
)
def test_each_setting_alone_makes_it_fit(quickstart: Scenario, wrong: dict[str, object]) -> None:
    scenario = varied(quickstart, wrong)
    assert not fits(scenario)
    found = settings_that_fit(scenario)
    assert found
    for setting in found:
        key, _, value = setting.partition("=")
        assert fits(load_scenario("quickstart", overrides=[f"{k}={v}" for k, v in wrong.items()] + [f"{key}={value}"]))


def test_a_lowered_setting_is_the_largest_that_fits(quickstart: Scenario) -> None:
    scenario = varied(quickstart, {"trainer.micro_batch_tokens": 131072})
    lowered = dict(one.split("=") for one in settings_that_fit(scenario))["trainer.micro_batch_tokens"]
    assert not fits(varied(scenario, {"trainer.micro_batch_tokens": 2 * int(lowered)}))


def test_what_fits_or_nothing_saves_has_none(quickstart: Scenario) -> None:
    assert settings_that_fit(quickstart) == []
    huge = {"model": "deepseek-v3", "cluster.num_gpus": 8}
    scenario = load_scenario("quickstart", overrides=[f"{k}={v}" for k, v in huge.items()])
    assert settings_that_fit(scenario) == []
