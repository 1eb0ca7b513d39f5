"""A cache whose room is hardly enough makes the step uncertain, one with room to spare does not."""

import pytest

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.projection.uncertainty.inputs import ROOM, OpenInput, open_inputs
from rlsim.projection.variant import simulate_variant
from rlsim.schema.scenario import Scenario

WORDS = ["k=0", "simulation.replications=1", "workload.prompts_per_step=64", "engine.version=0.20.0"]


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("quickstart", WORDS)


def room_of(scenario: Scenario) -> OpenInput | None:
    found = [one for one in open_inputs(simulate_variant(scenario)) if one.name == ROOM]
    return found[0] if found else None


def test_only_a_cache_that_is_nearly_full_leaves_its_room_open(scenario: Scenario) -> None:
    assert room_of(scenario) is None
    # Whatever is beyond the weights is hardly enough for two long sequences.
    full = vary(scenario, {"engine.gpu_memory_utilization": 0.26})
    found = room_of(full)
    assert found is not None
    assert found.above["generation"] < 0 < found.below["generation"]
    roomy, tight = (project(one).candidate.step_s for one in (scenario, full))
    assert tight.mean > roomy.mean
    assert tight.high / tight.low > roomy.high / roomy.low
