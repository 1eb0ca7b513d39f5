"""One of many equal pools in place of all engines of a lagged loop."""

import numpy as np
import pytest

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection import scale
from rlsim.projection.scale import carried, pool_of, pools_of
from rlsim.projection.summary import phase_estimate
from rlsim.projection.variant import replicated, simulate_variant, so_many
from rlsim.schema.scenario import Scenario
from rlsim.workload.draw import DrawnWorkload, draw

CONSTANT = "workload.response_tokens={kind: constant, tokens: 1000}"
AGENTS = (
    "workload.agent={turns: {kind: constant, turns: 3}, max_environments: 512, "
    "environment_s: {kind: lognormal, mean_s: 2, log_sigma: 0.5}}"
)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of a size that a test can simulate beside the whole."""
    monkeypatch.setattr(scale, "MOST_SAMPLES", 2**12)
    monkeypatch.setattr(scale, "LEAST", 4)


def large(*keys: str) -> Scenario:
    """64 engines and 128 prompts of 4 samples a step."""
    split = ["cluster.num_gpus=128", "cluster.generation_gpus=64", "cluster.training_gpus=64", "loop.mode=async"]
    batch = ["workload.prompts_per_step=128", "workload.generations_per_prompt=4", "trainer.global_batch_samples=null"]
    return load_scenario("quickstart", [*split, "loop.policy_lag=1", *batch, "speculation.method=none", *keys])


def test_all_engines_are_simulated_where_they_are_few_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pools_of(large()) == 8
    for keys in (("simulation.exact=true",), ("simulation.replications=2",), ("workload.prompts_per_step=8",)):
        assert pools_of(large(*keys)) == 1
    # A store belongs to no pool where its rate is shared as well.
    store = "engine.kv_offload={capacity_bytes: 1e9, shared: true"
    for rate, alone in (("", False), (", store_bytes_per_s: 1e11", True)):
        assert (pools_of(large("workload.agent={}", f"{store}{rate}}}")) == 1) == alone
    # Nothing that divides engines and prompts alike; a limit on what is in flight that divides less.
    assert pools_of(large("workload.prompts_per_step=127")) == 1
    assert pools_of(large("loop.max_in_flight_groups=136")) == 4
    assert pools_of(load_scenario("quickstart", ["workload.prompts_per_step=4096"])) == 1
    monkeypatch.undo()
    assert pools_of(large()) == 1


def test_fewer_replications_of_a_search_keep_the_pool() -> None:
    one = large()
    assert pools_of(replicated(one, 1)) == pools_of(vary(one, so_many(one, 3))) == pools_of(one)
    for keys in ("simulation.replications=4", "simulation.exact=true"):
        assert pools_of(replicated(large(keys), 1)) == 1


@pytest.mark.parametrize("keys", [(), ("loop.style=verl_v1",), ("loop.style=skyrl", "engine.dispatch=shared_queue")])
def test_engines_that_do_all_alike_are_as_one_pool_says(keys: tuple[str, ...]) -> None:
    sampled, whole = (
        simulate_variant(large(CONSTANT, *keys, more)) for more in ("simulation.exact=false", "simulation.exact=true")
    )
    assert [step.seconds for step in sampled.every_step] == pytest.approx([step.seconds for step in whole.every_step])
    for name in ("samples", "generated_tokens", "total_tokens", "staleness"):
        assert [getattr(s, name) for s in sampled.every_step] == [getattr(s, name) for s in whole.every_step]
    assert sampled.counters.iterations_at == whole.counters.iterations_at
    assert sampled.traces[0].ledger == whole.traces[0].ledger
    assert phase_estimate(sampled, "step").carried == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("keys", [(), (AGENTS,)])
def test_halves_hold_what_their_pool_does(keys: tuple[str, ...]) -> None:
    one = large(*keys)
    work = draw(pool_of(one, pools_of(one)), 0)
    halves = scale._halves(work)

    def tokens(each: DrawnWorkload) -> list[np.ndarray]:
        return [np.asarray(step.rollouts[0].generated.response_tokens) for step in each.steps]

    for whole, first, second in zip(tokens(work), *map(tokens, halves), strict=True):
        assert np.array_equal(whole, np.concatenate([first, second]))
    pool = pool_of(one, 2 * pools_of(one)).workload
    assert all(step.rollouts[0].batch.samples == pool.samples_per_step for half in halves for step in half.steps)
    if pool.agent is not None:
        assert pool.agent.max_environments == 512 // (2 * pools_of(one))


def test_what_is_carried_lies_between_its_growths(monkeypatch: pytest.MonkeyPatch) -> None:
    one, doublings = large(), 3
    mean, deviation = carried(one)
    assert sum(0.5**n for n in range(1, doublings + 1)) < mean - deviation < mean + deviation < doublings
    assert carried(large(AGENTS))[0] > mean  # times that nothing cuts
    monkeypatch.setattr(scale, "BOUNDED_GROWTH", scale.LEAST_GROWTH + 1e-9)
    assert carried(one) == pytest.approx((0.875, 0.0), abs=1e-6)


@pytest.mark.parametrize("keys", [
    ("loop.style=nemo_rl",), *(pytest.param(one, marks=pytest.mark.nightly)
                               for one in (("loop.style=areal",), (AGENTS, "loop.style=slime"))),
])  # fmt: skip
def test_all_engines_lie_within_the_stated_error(keys: tuple[str, ...]) -> None:
    """Of twenty seeds together, whose own errors add up in squares; three standard errors of the mean."""
    misses, errors = [], []
    for seed in range(20):
        found, whole = (
            phase_estimate(simulate_variant(large(*keys, f"simulation.seed={seed}", more), tokens=False), "step")
            for more in ("simulation.exact=null", "simulation.exact=true")
        )
        misses.append(found.mean / whole.mean - 1.0)
        errors.append(np.hypot(found.error, whole.error))
    assert abs(np.mean(misses)) <= np.mean(errors)
    assert np.mean(np.abs(misses) <= 1.645 * np.array(errors)) >= 0.75
