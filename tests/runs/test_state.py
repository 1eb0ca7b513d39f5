"""What a checkpoint writes and what a validation takes."""

import pytest
from small_runs import CONSTANT, small

import rlsim
from rlsim.runs.chapters import state_bytes


def test_the_state_is_weights_and_optimizer_and_a_validation_takes_the_generation_of_a_step() -> None:
    plain = state_bytes(small())
    assert state_bytes(small({"trainer.critic": True})) == 2 * plain
    assert state_bytes(small({"trainer.lora_rank": 16})) < 0.1 * plain
    each = 2 + small().trainer.optimizer_bytes_per_parameter
    assert plain == pytest.approx(8.03e9 * each, rel=0.01)
    side = rlsim.run(small(CONSTANT, {"run.checkpoint": {"every_steps": 2, "bytes_per_s": plain / 5}}), 6).candidate
    assert list(side.ledger.values())[1].seconds.mean == pytest.approx(3 * 5.0)
    assert list(side.ledger.values())[1].events == 3
    scenario = small(CONSTANT, {"run.validation": {"every_steps": 2, "samples": 32}})
    side = rlsim.run(scenario, 6).candidate
    validation = side.ledger["validation"]
    assert validation.events == 3
    # A step's groups share prefilled prompts, which single samples do not.
    assert validation.seconds.mean / 3 == pytest.approx(side.steps["generation_s"][0], rel=0.03)
    assert validation.seconds.low < validation.seconds.mean
    few = {"run.validation": {"every_steps": 2, "samples": 3}}  # on eight replicas
    assert rlsim.run(small(CONSTANT, few), 2).candidate.ledger["validation"].seconds.mean > 0
