"""What a run loses: rates, equations and checkpoints, on steps of known times."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import CONSTANT, SPLIT, small

import rlsim
from rlsim.projection.uncertainty.response import StepResponse
from rlsim.runs.chapters import BlockRecord, state_bytes
from rlsim.runs.losses import Course, Losses, losses_of
from rlsim.schema.scenario import Scenario

STEP_S, GENERATION_S = 10.0, 6.0
REDO_S = 2.0


def course(steps: int, replications: int = 1) -> Course:
    """Synchronous steps of 10 s: 6 of generation, 1 of log-probs, 2 of training, 1 of all else."""
    response = StepResponse(GENERATION_S, 1.0, 2.0, 0.0, 1.0)
    block = BlockRecord(0, steps, asdict(response), [1.0], [1.0], 8.0, 300.0, REDO_S)
    times = {"step_s": STEP_S, "generation_s": GENERATION_S, "exposed_generation_s": GENERATION_S, "validation_s": 0.0}
    return Course({name: np.full((replications, steps), value) for name, value in times.items()}, (block,))


def lost(scenario: Scenario, steps: int = 400) -> Losses:
    return losses_of(scenario, course(steps))


def faulty(hours: float, every: int, mode: dict[str, Any], **keys: float) -> Scenario:
    checkpoint = {"every_steps": every, "seconds": 0.0}
    faults = {"gpu_hours_between": hours, "restart_s": 30.0, "replica_restart_s": 12.0, **keys}
    return small(mode, {"run.checkpoint": checkpoint, "run.faults": faults})


def test_failures_come_at_their_rate_and_undo_half_an_interval() -> None:
    rate = 8 / (2.0 * 3600)
    found = lost(faulty(2.0, 8, {}))
    restarts, again = found.totals["restarts"], found.totals["steps_again"]
    count = restarts.mean() / 30.0
    elapsed = 400 * STEP_S + restarts.mean() + again.mean()
    assert count == pytest.approx(rate * elapsed, rel=0.06)
    assert again.mean() / count == pytest.approx(8 * STEP_S / 2, rel=0.1)
    assert not found.totals["replica_faults"].any()


def test_a_lost_replica_costs_its_absence_over_all_replicas() -> None:
    split = {"cluster": {"num_gpus": 8, "generation_gpus": 4, "training_gpus": 4}}
    found = lost(faulty(0.5, 1, split))
    count = found.totals["replica_faults"] * 4 / (12.0 + REDO_S)
    assert np.allclose(count, np.rint(count))
    assert count.mean() == pytest.approx(4 / (0.5 * 3600) * 400 * GENERATION_S, rel=0.05)


def test_what_a_lost_replica_does_again_is_less_where_tokens_are_kept() -> None:
    def redo_s(keep: bool) -> float:
        from rlsim.runs.chapters import chapters_of, simulate_chapter

        scenario = faulty(5.0, 4, SPLIT, keep_tokens=keep)
        alone = scenario.model_copy(update={"simulation": scenario.simulation.model_copy(update={"replications": 1})})
        return simulate_chapter(alone, chapters_of(alone, 8)[0]).blocks[0].redo_s

    assert 0 < redo_s(True) < redo_s(False)


@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0])
def test_slow_nodes_everywhere_slow_everything_but_the_host(factor: float) -> None:
    found = lost(small({"run.slow_nodes": {"share": 1.0, "factor": factor}}), 10)
    assert found.totals["slow_nodes"] == pytest.approx(10 * (factor - 1) * (GENERATION_S + 3.0))


def test_a_slow_node_is_rare_on_few_nodes() -> None:
    found = lost(small({"run.slow_nodes": {"share": 0.01, "factor": 2.0}}))
    assert found.totals["slow_nodes"].mean() == pytest.approx(400 * 0.01 * 9.0, rel=0.1)


def test_stalls_come_with_their_probability() -> None:
    found = lost(small({"run.stalls": {"probability": 0.1, "seconds": 7.0}}))
    assert found.totals["stalls"].mean() == pytest.approx(400 * 0.1 * 7.0, rel=0.05)
    assert set(np.unique(found.totals["stalls"] % 7.0)) == {0.0}


@settings(max_examples=30)
@given(
    every=st.integers(1, 6),
    seconds=st.floats(0, 200),
    share=st.floats(0, 1),
    steps=st.integers(1, 40),
)
def test_checkpoints_wait_for_the_one_before(every: int, seconds: float, share: float, steps: int) -> None:
    checkpoint = {"every_steps": every, "seconds": seconds, "blocking_share": share}
    found = lost(small({"run.checkpoint": checkpoint}), steps).totals["checkpoints"]
    count = steps // every
    blocking = seconds * share
    waited = max(0.0, seconds - blocking - every * STEP_S)
    assert found == pytest.approx(count * blocking + max(0, count - 1) * waited, abs=1e-6)


def test_a_checkpoint_counts_only_when_it_is_complete() -> None:
    def again(share: float) -> float:
        checkpoint = {"every_steps": 4, "seconds": 35.0, "blocking_share": share}
        scenario = small({"run.checkpoint": checkpoint, "run.faults": {"gpu_hours_between": 4.0, "restart_s": 1.0}})
        found = lost(scenario)
        return float(found.totals["steps_again"].sum() / found.totals["restarts"].sum())

    # Written beside the steps it is complete when the next one is begun: 4 to 8 steps are undone. Else 0 to 4 are, and
    # what of its writing is done.
    assert again(0.0) == pytest.approx(6 * STEP_S, rel=0.1)
    assert again(1.0) == pytest.approx((4 * STEP_S + 35.0) / 2, rel=0.1)


def test_the_state_is_weights_and_optimizer() -> None:
    plain = state_bytes(small())
    assert state_bytes(small({"trainer.critic": True})) == 2 * plain
    assert state_bytes(small({"trainer.lora_rank": 16})) < 0.1 * plain
    each = 2 + small().trainer.optimizer_bytes_per_parameter
    assert plain == pytest.approx(8.03e9 * each, rel=0.01)
    side = rlsim.run(small(CONSTANT, {"run.checkpoint": {"every_steps": 2, "bytes_per_s": plain / 5}}), 6).candidate
    assert list(side.ledger.values())[1].seconds.mean == pytest.approx(3 * 5.0)
    assert list(side.ledger.values())[1].events == 3


def test_a_validation_of_a_step_takes_the_generation_of_a_step() -> None:
    scenario = small(CONSTANT, {"run.validation": {"every_steps": 2, "samples": 32}})
    side = rlsim.run(scenario, 6).candidate
    validation = side.ledger["validation"]
    assert validation.events == 3
    # A step's groups share prefilled prompts, which single samples do not.
    assert validation.seconds.mean / 3 == pytest.approx(side.steps["generation_s"][0], rel=0.03)
    assert validation.seconds.low < validation.seconds.mean
