"""What an answer says of a model's own layers."""

from rlsim.loading.scenario import load_scenario
from rlsim.projection.model_assumptions import model_assumptions

HYBRID = ("model=qwen3.5-9b", "engine.tensor_parallel=2", "trainer.tensor_parallel=2")


def told(*changes: str, running: int | None = None) -> str:
    return " ".join(model_assumptions(load_scenario("quickstart", changes), running))


def test_a_plain_model_within_its_window_has_none() -> None:
    assert told() == ""


def test_long_sequences_name_the_scaling_that_they_rely_on() -> None:
    assert "yarn" not in told(*HYBRID)
    assert "rely on yarn, with which its publisher states 1,010,000" in told(
        *HYBRID, "workload.max_sequence_tokens=500000"
    )
    beyond = told(*HYBRID, "workload.max_sequence_tokens=1048576")
    assert "exceed the native window of 262,144" in beyond and "1,010,000 at most" in beyond


def test_states_that_limit_an_engine_are_told() -> None:
    assert "24 of 32 mixers" in told(*HYBRID)
    assert "runs 7 sequences at once" in told(*HYBRID, running=7)
    assert "at once" not in told(*HYBRID, running=10**6)
