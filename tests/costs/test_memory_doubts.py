"""What is asked about as it is though its memory may not do, and what makes that more or less likely."""

from dataclasses import replace

import builders
import pytest

from rlsim.costs.memory import check_no_worse, safe_bytes, trainer_fits, update_parts
from rlsim.errors import Infeasible
from rlsim.loading.scenario import vary
from rlsim.projection.project import project
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Scenario
from rlsim.schema.stated import RESPONSE, Assumption

GUESS = Assumption(text="a guessed response", keys=(RESPONSE,), log_spread=0.6)
COUNTED = Assumption(text="so many samples", keys=("trainer.micro_batch_tokens",))


def sized(needed: float, **trainer: object) -> Scenario:
    """An FSDP trainer that takes ``needed`` times what its GPUs have, in the middle of what may be."""
    own = {"backend": "fsdp", "recompute": "full", "micro_batch_tokens": 8192, **trainer}
    given = builders.scenario("qwen3-8b", "h100_sxm", cluster={"num_gpus": 8}, trainer=own)
    given = vary(given, {"simulation.replications": 1})  # with the stack that a loaded scenario has
    held = safe_bytes(given, update_parts(given), 0.5)
    memory = given.hardware.memory_bytes.model_copy(update={"value": held / needed})
    return replaced(given, {"hardware": replaced(given.hardware, {"memory_bytes": memory})})


def test_an_allocator_out_of_memory_gives_back_part_of_its_slack() -> None:
    given = sized(1.0)
    parts = update_parts(given)
    assert parts.slack and safe_bytes(given, parts, 0.5) == pytest.approx(parts.total - parts.slack / 2)
    tidy = replace(parts, slack=None)
    assert safe_bytes(given, tidy, 0.5) == pytest.approx(parts.total - parts.slack)
    assert trainer_fits(given, tidy) > trainer_fits(given, parts) == pytest.approx(0.5)


def test_samples_of_a_guessed_length_are_as_unsure_as_the_guess() -> None:
    given = sized(1.3)
    parts = update_parts(given)
    doubts = [
        trainer_fits(replaced(given, {"assumptions": assumptions}), parts)
        for assumptions in ((), (GUESS,), (COUNTED,), (GUESS, COUNTED))
    ]
    assert doubts[0] == doubts[1] == doubts[2] < 0.1 < doubts[3] < 0.5


def test_another_value_of_a_guess_is_as_unsure_as_the_guess() -> None:
    doubtful = replaced(sized(1.4), {"assumptions": (GUESS, COUNTED)})
    assert "the training GPUs' memory enough with" in project(doubtful, timeline=False).caveats[0]


def test_what_hardly_fits_is_answered_with_the_doubt_first_and_what_cannot_is_refused() -> None:
    answer = project(sized(1.1), timeline=False)
    assert "the training GPUs' memory enough with" in answer.caveats[0]
    assert not any("enough with" in one for one in project(sized(0.7), timeline=False).caveats)
    with pytest.raises(Infeasible, match="does not fit"):
        project(sized(1.5), timeline=False)
    with pytest.raises(Infeasible, match="does not fit"):
        project(vary(sized(1.1), {"simulation.fit_probability": 0.5}), timeline=False)


def test_a_change_needs_an_even_chance_unless_it_fits_as_surely_as_before() -> None:
    doubtful = sized(1.1)
    more, less = (vary(doubtful, {"trainer.micro_batch_tokens": tokens}) for tokens in (12288, 4096))
    check_no_worse(doubtful, less)
    with pytest.raises(Infeasible):
        check_no_worse(doubtful, more)
    check_no_worse(sized(0.5), vary(sized(0.5), {"trainer.micro_batch_tokens": 9000}))


def test_a_change_that_fits_is_taken_though_the_scenario_as_it_is_cannot_run() -> None:
    trainer = {"backend": "fsdp", "recompute": "full", "global_batch_samples": 8}
    stuck = vary(builders.scenario("qwen3-8b", "h100_sxm", cluster={"num_gpus": 16}, trainer=trainer), {})
    with pytest.raises(Infeasible, match="ranks"):
        update_parts(stuck)
    check_no_worse(stuck, vary(stuck, {"cluster.num_gpus": 8}))
