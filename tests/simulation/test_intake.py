"""Shortcuts of a lagged loop change nothing: few replacements of stale groups, groups that are waited for together."""

import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.projection import scale
from rlsim.projection.variant import simulate_variant
from rlsim.simulation.intake import Intake
from rlsim.simulation.trace import StepRecord

LOOPS = {  # where engines get ahead, groups turn stale
    "some stale": ("prime_rl", 6, "0.75"),
    "few stale": ("prime_rl", 8, "0.25"),
    "waits": ("skyrl", 1, "0.5"),
    "oldest first": ("areal", 1, "0.75"),
}


def steps(loop: str) -> list[StepRecord]:
    style, age, share = LOOPS[loop]
    keys = ["loop.mode=async", f"loop.style={style}", f"loop.max_age={age}", f"generation_share={share}"]
    short = "simulation={replications: 1, steps: 8, warmup_steps: 8}"
    small = ["workload.prompts_per_step=8", "trainer.global_batch_samples=null"]
    return simulate_variant(load_scenario("quickstart", [*small, short, *keys])).every_step


@pytest.mark.parametrize("loop", LOOPS)
def test_shortcuts_of_a_lagged_loop_change_nothing(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = steps(loop)
    monkeypatch.setattr(scale, "FEW_STALE_BATCHES", 0)  # too few for whoever drops any: all are drawn then
    assert steps(loop) == found
    monkeypatch.setattr(Intake, "takes_all_from", lambda self, oldest: False)
    assert steps(loop) == found
