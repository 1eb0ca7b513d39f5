"""A synchronous step whose trainer begins on samples that are done while others are generated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_costs import FixedCosts, run, steps, world_of
from hypothesis import given
from hypothesis import strategies as st

import rlsim.costs.trainer
from rlsim.costs.interface import Part, PhaseCost, StepCost
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.planning.evaluate import step_phases
from rlsim.planning.plan import plan
from rlsim.projection.project import project
from rlsim.report.text import findings
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Trainer
from rlsim.simulation.streaming import PER_STEP, PER_UPDATE, streamed
from rlsim.simulation.trace import StepRecord

STREAMING = "loop.streaming=true"
LOGNORMAL = "workload.response_tokens={kind: lognormal, mean_tokens: 300, log_sigma: 1.0}"
LENGTHS = [401, 101, 201, 301, 401, 101, 201, 301]


def cost(logprob_s: float = 3.0, train_s: float = 4.0, optimizer_s: float = 0.0, swap_s: float = 0.0) -> StepCost:
    update = PhaseCost.of([Part("products", train_s, "compute"), Part("optimizer", optimizer_s, "memory")])
    passes = PhaseCost.of([Part("products", logprob_s, "compute"), Part("reference swap", swap_s, "host link")])
    return StepCost(PhaseCost(1.0), passes, update)


def both(**keys: Any) -> tuple[StepRecord, StepRecord]:
    """The plain step and the streaming one."""
    keys = {"lengths": {0: LENGTHS}, **keys}
    costs = keys.pop("costs", FixedCosts())
    one, other = (steps(costs, "simulation.steps=1", *more, **keys)[0] for more in ([], [STREAMING]))
    return one, other


def test_trainers_fast_slow_and_by_hand() -> None:
    plain, streaming = both(costs=FixedCosts(logprob_s=0.0, train_s=0.0))
    assert streaming.seconds == plain.seconds == 2 + 100 + 1
    streaming = both(costs=FixedCosts(logprob_s=300.0, train_s=400.0))[1]
    assert streaming.phases["exposed_generation_s"] == 25.0
    assert streaming.seconds == pytest.approx(2 + 25 + 700 + 1)
    assert streaming.overlapped_s == 0.0
    # Equal samples are done at 0, 1 and 10 s: 7 s of work in thirds, idle between the second and the third.
    tokens, third = np.full(3, 100.0), 7 / 3
    found = streamed(np.array([10.0, 0.0, 1.0]), tokens, cost(), Trainer())
    assert found.overlapped_s == pytest.approx(2 * third)
    assert found.exposed_s == pytest.approx(10 - 2 * third)
    longer = streamed(np.array([10.0, 0.0, 1.0]), np.array([100.0, 100.0, 1200.0]), cost(14, 14), Trainer())
    assert (longer.exposed_s, longer.overlapped_s) == (0.0, 0.0)
    # Two updates of 1 s each: the first one hides beside generation, that behind the last sample does not.
    finish_s, tokens = np.array([0.0, 0.0, 0.0, 100.0]), np.full(4, 10.0)
    two = streamed(finish_s, tokens, cost(4, 4, optimizer_s=2), Trainer(global_batch_samples=2))
    one = streamed(finish_s, tokens, cost(4, 4, optimizer_s=2), Trainer())
    assert two.overlapped_s == pytest.approx(3 * 2 + 1)
    assert one.overlapped_s == pytest.approx(3 * 2)
    for found in (one, two):
        assert found.exposed_s == pytest.approx(100 - found.overlapped_s)
    finish_s, tokens = np.array([0.0, 100.0]), np.full(2, 10.0)
    found = streamed(finish_s, tokens, cost(4, 8, swap_s=5), Trainer(epochs=2))
    assert found.overlapped_s == pytest.approx((4 + 8 / 2) / 2)


@given(finish_s=st.lists(st.floats(0, 1000), min_size=1, max_size=40), seconds=st.tuples(*[st.floats(0, 500)] * 4),
       data=st.data())  # fmt: skip
def test_streaming_lies_between_the_longer_of_both_and_their_sum(
    finish_s: list[float], seconds: tuple[float, ...], data: st.DataObject
) -> None:
    samples = len(finish_s)
    tokens = np.array(data.draw(st.lists(st.integers(1, 5000), min_size=samples, max_size=samples)), dtype=float)
    batch = data.draw(st.sampled_from([n for n in range(1, samples + 1) if samples % n == 0]))
    given_cost = cost(*seconds)
    work_s = given_cost.logprob.seconds + given_cost.train.seconds
    found = streamed(np.array(finish_s), tokens, given_cost, Trainer(global_batch_samples=batch))
    assert min(finish_s) - 1e-9 <= found.exposed_s <= max(finish_s) + 1e-9
    assert -1e-9 <= found.overlapped_s <= work_s + 1e-9
    assert found.exposed_s + work_s >= max(finish_s) - 1e-6


@pytest.mark.parametrize("name", ["plain", "dynamic", "rewards"])
def test_phases_add_up_and_no_step_is_longer_than_the_plain_one(name: str) -> None:
    more = {
        "plain": [],
        "dynamic": ["workload.usable_group_share=0.5"],
        "rewards": ["workload.environment_s=7", "workload.generated_batch_factor=1.5"],
    }[name]
    costs = FixedCosts(logprob_s=30.0, train_s=60.0)
    keys = {"prompts": 8, "size": 4}
    plain, streaming = (steps(costs, LOGNORMAL, *more, *key, **keys) for key in ([], [STREAMING]))
    for before, after in zip(plain, streaming, strict=True):
        exposed_s = after.phases["exposed_generation_s"]
        serial = sum(after.phases[one] for one in ("prepare_s", "data_s", "logprob_s", "train_s"))
        assert after.seconds == pytest.approx(serial + exposed_s)
        assert after.seconds < before.seconds
        assert exposed_s < after.phases["generation_s"] == before.phases["generation_s"]
        assert (after.samples, after.total_tokens, after.staleness) == (
            before.samples, before.total_tokens, before.staleness
        )  # fmt: skip


def test_the_timeline_shows_waiting_and_work_and_the_end_has_parts_of_trainers() -> None:
    trace = run(world_of(FixedCosts(), LOGNORMAL, STREAMING))
    for step in trace.steps:
        own = [s for s in trace.spans if s.step == step.step and s.actor == "trainer"]
        assert [s.phase for s in own] == ["prepare_s", "exposed_generation_s", "logprob_s", "train_s", "data_s"]
        assert own[-1].end_s == pytest.approx(step.end_s)
    assert all(span.start_s >= 0 for span in trace.spans)
    folder = Path(rlsim.costs.trainer.__file__).parent
    sources = "".join((folder / f"{name}.py").read_text() for name in ("training", "layer", "critic"))
    assert all(f'"{name}"' in sources for name in (*PER_UPDATE, *PER_STEP))
    names = {part.name for part in project(split()).candidate.parts if part.phase == "train_s"}
    assert set(PER_UPDATE) <= names


def split(*overrides: str) -> Scenario:
    keys = ["loop={mode: sync}", "simulation={seed: 0, replications: 2}", LOGNORMAL.replace("300", "3000")]
    return load_scenario("qwen8b_async_lag1", [*keys, *overrides])


def test_an_answer_adds_up_and_is_shorter_with_its_interval() -> None:
    plain, streaming = (project(split(*more)).candidate for more in ([], [STREAMING]))
    assert streaming.step_s.mean < plain.step_s.mean
    assert streaming.phases["generation_s"] == plain.phases["generation_s"]
    assert streaming.phases["exposed_generation_s"].mean < plain.phases["exposed_generation_s"].mean
    for arm, exposed in ((plain, "generation_s"), (streaming, "exposed_generation_s")):
        found = findings.step_phases(arm, asynchronous=False)
        assert exposed in found
        assert sum(found.values()) == pytest.approx(arm.step_s.mean)
        assert arm.step_s.low < arm.step_s.mean < arm.step_s.high
        low, mean, high = (getattr(arm.phases["exposed_generation_s"], end) for end in ("low", "mean", "high"))
        assert 0 <= low < mean < high
    (told,) = [line for line in project(split(STREAMING)).assumptions if "2504.15930" in line]
    assert "loop.streaming" in told


def test_phases_of_a_streaming_scenario_for_which_there_is_no_plan() -> None:
    assert "generation_s" in step_phases(split())
    assert "exposed_generation_s" in step_phases(split(STREAMING))
    assert len(step_phases(split(STREAMING))) == len(step_phases(split()))
    with pytest.raises(InputError, match=r"loop\.streaming"):
        plan(split(STREAMING))
