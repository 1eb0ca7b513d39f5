"""Rules of an answer's parts: what adds up, what is a mean, what a simulation that is settled leaves unsettled."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from rlsim.attribution.check import WIDE, _cannot_tell
from rlsim.attribution.faults import figures_of
from rlsim.loading.scenario import load_scenario
from rlsim.projection.efficiency import efficiency_of
from rlsim.projection.summary import _statistics, cost_usd, phase_parts, price_usd
from rlsim.projection.uncertainty.estimate import Estimate
from rlsim.projection.uncertainty.features import VALUES
from rlsim.projection.uncertainty.predictive import DRAWS
from rlsim.projection.uncertainty.response import step_response
from rlsim.projection.variant import COMPARED_CYCLES, SimulatedVariant, compared, searched, simulate_variant
from rlsim.readers.logs.contribution import _compared
from rlsim.readers.logs.growth import DEVIATIONS
from rlsim.results import Interval
from rlsim.schema.scenario import Scenario

SMALL = ("simulation.replications=2", "workload.prompts_per_step=16", "trainer.global_batch_samples=512")
LAG = ("loop.mode=async", "cluster.generation_gpus=4")
TURNS = (
    "workload.agent={turns: {kind: constant, turns: 3}, environment_s: {kind: lognormal, mean_s: 40, log_sigma: 0.5}%s}"
)


def small(*keys: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, *keys])


RUNS = {
    "sync": (), "lag": LAG, "agents": (TURNS % "",), "lagged agents": (*LAG, TURNS % ""),
    "thrown away": ("workload.usable_group_share=0.5",),
}  # fmt: skip


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> SimulatedVariant:
    return simulate_variant(small(*RUNS[request.param]))


def test_the_parts_of_a_phase_add_up_to_it(run: SimulatedVariant) -> None:
    found = dict[str, float]()
    for part in phase_parts(run):
        found[part.phase] = found.get(part.phase, 0.0) + part.seconds
    assert found.keys() <= run.phases_s.keys()
    for name, seconds in found.items():
        assert seconds == pytest.approx(run.phases_s[name], rel=1e-6), name


def test_statistics_are_of_a_step_and_an_engine(run: SimulatedVariant) -> None:
    found, scenario = _statistics(run), run.scenario
    thrown_away = scenario.workload.usable_group_share
    assert (found.rollouts is None) == (thrown_away is None or thrown_away == 1)
    assert found.rollouts is None or found.rollouts > 1
    agent = scenario.workload.agent
    assert (found.turns is None) == (found.environment_queue_s is None) == (agent is None)
    assert found.loaded_tokens is None
    # An iteration takes its kernels' time at some batch, a step has more than one, an engine goes through them alone.
    figures, table = figures_of(run), run.prices.iteration
    assert table.step_s[1:].min() <= figures["iteration_s"] <= (table.step_s + table.attention_s.max(axis=1)).max()
    assert ("response_tokens" in figures) == (agent is None)
    busy_s = figures["iteration_s"] * found.decode_iterations / found.replicas
    assert busy_s < run.phases_s["generation_s"]


def test_rewards_and_environments_are_a_part_of_the_wait_for_the_rollout(run: SimulatedVariant) -> None:
    """Environments of 40 s a turn leave engines idle, which no error of the engine's model moves."""
    waits = step_response(run)
    assert waits.rewards_s <= run.phases_s["generation_s"]
    if run.scenario.workload.agent is not None and run.scenario.loop.mode == "sync":
        assert waits.rewards_s > 40


def test_nodes_of_sandboxes_cost_what_they_cost_beside_any_number_of_gpus() -> None:
    with_nodes = TURNS % ", nodes: {count: 3, places: 500, price_per_hour_usd: 2.5}"
    for gpus in (8, 16):
        both = [
            small(one, "engine.dispatch=round_robin", f"cluster.num_gpus={gpus}") for one in (TURNS % "", with_nodes)
        ]
        free, paid = (cost_usd(one, 1800.0) for one in both)
        assert paid - free == pytest.approx(3 * 2.5 / 2)
        shares = [price_usd(both[1], count) - price_usd(both[0], count) for count in (0, gpus, 2 * gpus)]
        assert shares == pytest.approx([7.5 / gpus, 7.5 / gpus, 7.5 / (2 * gpus)])


def test_replicas_share_the_samples_of_a_step_up_to_their_places() -> None:
    one, two = (small(*LAG[:1], f"cluster.generation_gpus={n}", f"cluster.num_gpus={n + 4}") for n in (4, 8))
    running = VALUES["running"]
    assert running(one) == pytest.approx(one.workload.samples_per_step / one.replicas * 1.0)
    assert two.replicas == 2 * one.replicas and running(two) == pytest.approx(float(running(one)) / 2)
    full = small(*LAG[:1], "cluster.generation_gpus=4", "cluster.num_gpus=8", "engine.max_running_sequences=2")
    assert running(full) == 2


def test_a_settled_simulation_widens_its_interval_by_less_than_six_percent() -> None:
    factors = np.exp(0.1 * norm.ppf((np.arange(DRAWS) + 0.5) / DRAWS))
    own = Estimate(1.0, factors, np.ones(1), 0.0, 1)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        settled = Estimate(1.0, factors, np.ones(1), middle, 10_000).settled
        low, high = (middle, high) if settled else (low, middle)
    assert 1.02 < math.hypot(own.model_error, low) / own.model_error < 1.06
    assert own.settled and Estimate(1.0, np.ones(DRAWS), np.ones(1), 0.0, 1).settled


def test_healthy_runs_grow_by_chance_once_in_a_million() -> None:
    assert 1e-7 < 2 * norm.sf(DEVIATIONS) < 1e-6


def test_a_verdict_lacks_what_makes_the_step_unsure_by_more_than_a_factor() -> None:
    one = small()
    assert _cannot_tell(one, Interval(1.4, 1.0, WIDE)) == "" == _cannot_tell(one, Interval(1.0, 1.0, 1.0))
    assert _cannot_tell(one, Interval(1.4, 1.0, 1.01 * WIDE))


@pytest.mark.parametrize("name", ["train", "logprob"])
def test_seconds_below_those_of_the_peak_are_objected_to(name: str) -> None:
    scenario = small()
    use = {one.phase: one for one in efficiency_of(simulate_variant(scenario))}[f"{name}_s"]
    peak_s = use.mfu * simulate_variant(scenario).phases_s[f"{name}_s"]
    for seconds, objected in ((0.93 * peak_s, True), (1.07 * peak_s, False)):
        objections, lines = _compared(scenario, {name: seconds})  # type: ignore[dict-item]
        assert any("of the GPUs' peak" in one for one in objections) == objected
        assert len(lines) == 1 and "predicted" in lines[0]


@pytest.mark.parametrize(
    ("keys", "stated", "cheap"),
    [
        # As many replications as have 24 cycles of steps, of a lagged loop two; a search takes one of at most 8 steps.
        ((), (8, None), (1, None)),
        (("simulation.steps=10",), (2, 10), (1, 8)),
        (("simulation.steps=30",), (1, 24), (1, 8)),
        ((*LAG, "simulation.steps=3"), (2, 4), (1, 3)),
        ((*LAG, "loop.policy_lag=4"), (2, 16), (1, None)),
        ((*LAG, "simulation.steps=30"), (1, 24), (1, 8)),
        (("simulation.replications=9", "simulation.steps=30"), (9, 30), (1, 8)),
    ],
)
def test_alternatives_are_compared_on_as_much_work_as_tells_them_apart(
    keys: tuple[str, ...], stated: tuple[int, int | None], cheap: tuple[int, int | None]
) -> None:
    one = load_scenario("quickstart", [*SMALL[1:], *keys])
    assert COMPARED_CYCLES == 24
    for found, wanted in ((compared(one), stated), (searched(one), cheap)):
        assert (found.replications, found.simulation.steps) == wanted


def test_a_fitted_slope_costs_degrees_of_freedom_and_exactness() -> None:
    """Cochran, Sampling Techniques, chapter 7: n - 2 degrees are left, and the variance grows by 1 / (n - 3)."""
    parts = np.array([9.0, 11.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0])
    plain, *fitted = (Estimate.of(10.0, np.ones(DRAWS), parts, fitted=count) for count in (0, 3, 4, 6, 20))
    assert (plain.degrees, plain.error) == (7, fitted[0].error) and plain.error == pytest.approx(
        parts.std(ddof=1) / 8**0.5 / 10
    )
    for found, count in zip(fitted[1:], (4, 6, 20), strict=True):
        assert found.degrees == min(7, count - 2)
        assert found.error == pytest.approx(plain.error * math.sqrt(1 + 2 / (count - 3)))
