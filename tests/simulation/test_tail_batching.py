"""Tail batching (RollPacker): short rounds race for a step's batch, long rounds run what they put off."""

from pathlib import Path

import numpy as np
import pytest
from fixed_costs import PROMPT, FixedCosts, World, run, world_of
from msgspec.structs import replace

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.runs.run import run as run_whole
from rlsim.schema.asynchrony import CYCLE_ROUNDS, rounds_per_cycle
from rlsim.workload.batches import Batch, Generated, draw_rollouts, first_done
from rlsim.workload.draw import DrawnStep, DrawnWorkload
from rlsim.workload.lengths import Place

KEY = "workload.tail_batching"
HEAVY = "workload.response_tokens={kind: lognormal, mean_tokens: 800, log_sigma: 1.3}"


def factors(prompts: float, samples: float) -> str:
    return f"{KEY}={{prompts_factor: {prompts}, samples_factor: {samples}}}"


def world(lengths: list[list[int]], size: int, *overrides: str, prompts: int, started: int, replicas: int = 2) -> World:
    """Steps of given responses, ``started`` samples for each prompt, of which ``size`` are trained on."""
    found = world_of(FixedCosts(), *overrides, prompts=prompts, size=size, replicas=replicas)
    steps = []
    for responses in lengths:
        count = len(responses)
        batch = Batch(np.full(count, PROMPT), np.asarray(responses), np.arange(count) // started)
        steps.append(DrawnStep((Generated(batch, np.ones(count, dtype=np.bool_)),), (batch.response_tokens - 1,)))
    work = DrawnWorkload(tuple(steps), len(steps))
    return replace(found, workload=work, prices=FixedCosts().prices(work, replicas))


def test_stragglers_are_paid_for_once_and_complete_samples_make_room() -> None:
    """4 of 5 prompts are trained on; the straggler of each of 4 short rounds runs in the long one."""
    short = [401] * 8 + [4001] * 2
    found = run(world([short] * 10, 2, factors(1.25, 1), prompts=4, started=2))
    seconds = [step.phases["generation_s"] for step in found.steps]
    assert seconds == [100.0] * 4 + [1000.0] + [100.0] * 4 + [1000.0]
    assert [step.samples for step in found.steps] == [8] * 10
    assert [step.total_tokens for step in found.steps[:5]] == [8 * (401 + PROMPT)] * 4 + [8 * (4001 + PROMPT)]
    # An aborted straggler has as many tokens as those that end the round, and those of the iteration in progress.
    for step in found.steps[:4]:
        assert 10 * 401 <= step.generated_tokens <= 10 * 401 + 2
    assert found.steps[4].generated_tokens == 8 * 4001
    responses = [401, 101, 201] * 4
    (step,) = run(world([responses], 2, factors(1, 1.5), prompts=4, started=3)).steps
    assert step.phases["generation_s"] == 50.0
    assert step.total_tokens == 4 * (101 + 201 + 2 * PROMPT)
    assert 4 * (101 + 201 + 201) <= step.generated_tokens <= 4 * (101 + 201 + 202)
    # Samples that lost leave their slots after the iteration in progress: what waits starts 300 iterations earlier.
    costs = FixedCosts(slots=2)
    given = world([[101, 401, 101, 101]], 1, factors(1, 2), prompts=2, started=2, replicas=1)
    (step,) = run(replace(given, prices=costs.prices(given.workload, 1))).steps
    assert step.phases["generation_s"] == 2 * 100 * costs.iteration_s + costs.iteration_s


def test_tokens_of_a_cycle_are_trained_on_or_discarded_and_long_rounds_run_what_was_put_off() -> None:
    trace = run(world_of(FixedCosts(), HEAVY, factors(1.5, 1.5), prompts=8, size=4, replicas=3))
    ledger = trace.ledger
    assert ledger is not None
    assert ledger.generated == ledger.consumed + ledger.discarded
    assert ledger.discarded > 0
    assert (ledger.stale, ledger.regenerated, ledger.in_flight) == (0, 0, 0)
    assert ledger.generated == pytest.approx(sum(step.generated_tokens for step in trace.steps))
    assert ledger.consumed == sum(step.total_tokens - step.samples * PROMPT for step in trace.steps)
    assert all(step.samples == 32 and step.staleness == {0: 32} for step in trace.steps)
    found = world_of(FixedCosts(), HEAVY, factors(1.5, 1.25), prompts=8, size=4)
    trace, drawn = run(found), found.workload.steps
    assert [step.samples for step in trace.steps] == [32] * 12
    put_off = []
    for number in (0, 1):
        batch = drawn[number].rollouts[0].batch
        finish_s = batch.response_tokens.astype(float)  # equal iterations: who is shorter is done first
        lost = set(range(12)) - set(batch.group[first_done(batch, finish_s, 8, 4)].tolist())
        put_off += [batch.response_tokens.reshape(12, 5)[group, :4].sum() for group in sorted(lost)]
    assert trace.steps[2].generated_tokens == sum(put_off)


@pytest.mark.parametrize("set_up", [("quickstart",), ("qwen8b_rl_zero", "engine.dispatch=shared_queue")])
def test_factors_of_one_are_the_plain_loop_bit_for_bit(set_up: tuple[str, ...]) -> None:
    name, *more = set_up
    plain = load_scenario(name, [*more, "simulation.replications=2"])
    neutral = vary(plain, {KEY: {"prompts_factor": 1, "samples_factor": 1}})
    a, b = (project(one) for one in (plain, neutral))
    assert a.candidate == b.candidate
    assert a.baseline == b.baseline
    assert a.assumptions == b.assumptions


@pytest.mark.parametrize("dispatch", ["static", "round_robin", "least_loaded", "shared_queue"])
def test_equal_input_gives_equal_bits_with_either_core(dispatch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = HEAVY, factors(1.25, 1.5), f"engine.dispatch={dispatch}", "simulation.steps=5"
    given = world_of(FixedCosts(slots=24, prefill_token_s=1e-4), *keys, prompts=8, size=4)
    first, again = run(given), run(given)
    monkeypatch.setattr("rlsim.simulation.kernel.engines.library", lambda: None)
    monkeypatch.setattr("rlsim.simulation.rollout.library", lambda: None)
    python = run(given)
    assert first.steps == again.steps == python.steps
    assert first.ledger == again.ledger == python.ledger
    assert first.counters.iterations_at == python.counters.iterations_at


def test_more_samples_leave_the_first_ones_of_a_prompt_as_they_are() -> None:
    plain = load_scenario("quickstart", [HEAVY])
    raced = vary(plain, {KEY: {"prompts_factor": 1.25, "samples_factor": 1.25}})
    (a,), (b,) = (draw_rollouts(one.workload, Place(0, 0, 0)) for one in (plain, raced))
    assert (raced.workload.launched_prompts, raced.workload.launched_generations) == (80, 40)
    first = b.batch.response_tokens.reshape(80, 40)[:64, :32].ravel()
    assert np.array_equal(first, a.batch.response_tokens)
    assert b.trained.sum() == 64 * 32


@pytest.mark.parametrize(("prompts", "put_off", "rounds"),
                         [(64, 0, 1), (64, 16, 5), (64, 64, 2), (10, 20, 3), (64, 20, 21), (100, 1, 101)])  # fmt: skip
def test_a_cycle_returns_to_an_empty_queue(prompts: int, put_off: int, rounds: int) -> None:
    assert rounds_per_cycle(prompts, put_off) == rounds


@pytest.mark.parametrize("put_off", [3, 7, 50, 253, 900, 2500])
def test_a_cycle_of_awkward_numbers_is_short_and_nearly_whole(put_off: int) -> None:
    prompts = 1009
    rounds = rounds_per_cycle(prompts, put_off)
    assert rounds <= max(CYCLE_ROUNDS, 1 + -(-prompts // put_off))
    long = round(rounds * put_off / (prompts + put_off))
    assert long / rounds == pytest.approx(put_off / (prompts + put_off), rel=0.12)


def test_whole_cycles_are_measured_and_an_answer_names_the_paper_and_the_cycle() -> None:
    scenario = load_scenario("quickstart", [factors(1.25, 1), "simulation.warmup_steps=2", "simulation.steps=6"])
    assert scenario.measured_steps == range(2, 12)
    assert scenario.cycle_steps == 5
    answer = project(load_scenario("quickstart", [factors(1.25, 1.25), "simulation.replications=1"]))
    (told,) = [line for line in answer.assumptions if "2509.21009" in line]
    assert "80 prompts x 40 samples" in told
    assert "5 rounds" in told
    ledger = answer.candidate.ledger
    assert ledger is not None
    assert ledger.discarded > 0


def test_a_whole_run_races_too_and_ends_within_a_cycle(tmp_path: Path) -> None:
    keys = [factors(1.25, 1.25), "simulation.replications=1", "workload.prompts_per_step=32"]
    answer = run_whole(load_scenario("quickstart", keys), steps=7, out=tmp_path)
    side = answer.candidate
    assert len(side.steps["step_s"]) == 7
    assert side.samples == 7 * 32 * 32
    assert side.tokens is not None
    assert side.tokens.discarded > 0
    seconds = side.steps["generation_s"]
    assert seconds[4] == max(seconds)  # the fifth round is the long one
