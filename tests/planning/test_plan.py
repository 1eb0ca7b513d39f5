"""Plans: the optimum of an exhaustive search, bounds that bound, constraints that bind."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest

from rlsim.costs.engine_prices import engine_prices
from rlsim.costs.prices import price_inputs
from rlsim.errors import Infeasible, InputError
from rlsim.loading import load_scenario, vary
from rlsim.planning import plan
from rlsim.planning.bounds import engine_rates, lagged_bound_s, rollout_bound_s, rollout_works
from rlsim.planning.evaluate import evaluate_assignment
from rlsim.planning.execution import executor
from rlsim.planning.goals import Goal
from rlsim.planning.planner import default_limits, pareto_front
from rlsim.planning.search import bounded_cells, simulate_cell
from rlsim.planning.space import Limits, build_space, drafter_of
from rlsim.planning.variation import varied
from rlsim.projection import project
from rlsim.schema.scenario import Scenario

SYNC = Limits((8,), (0,), draft_lengths=(1, 3, 5))
BOTH = Limits((8,), (0, 1), draft_lengths=(2,), shares=(0.5,))


def exhaustive(scenario: Scenario, limits: Limits) -> dict[float, dict[str, str]]:
    """Step times of every combination of pool, engine and trainer, each simulated."""
    space = build_space(scenario, limits)
    out = {}
    for number, pool in enumerate(space.pools):
        for engine, trainer in itertools.product(space.engines[number], space.trainers[number]):
            assignment = {**pool.assignment, **engine, **trainer}
            outcome = simulate_cell((scenario, assignment))
            if outcome.status == "ok":
                out[outcome.step_s[0]] = assignment
    return out


@pytest.mark.parametrize(("limits", "missed"), [(SYNC, 1e-9), (BOTH, 2e-3)], ids=["sync", "sync and lag 1"])
def test_exhaustive_search_confirms_the_optimum(tiny: Scenario, limits: Limits, missed: float) -> None:
    """Asynchronous steps wait for the trainer's next look at the buffer, here every millisecond of a 2 s step."""
    scenario = vary(tiny, "loop.poll_s=0.001")
    steps = exhaustive(scenario, limits)
    answer = plan(scenario, limits=limits, draws=0)
    assert len(steps) >= 100
    assert min(row.step_s for row in answer.ranked) <= min(steps) * (1 + missed)
    assert answer.simulated < len(steps) / 5
    assert answer.exhaustive


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_no_plan_is_faster_than_its_bound(tiny: Scenario, lag: int) -> None:
    limits = Limits((8, 16), (lag,), draft_lengths=(1, 4))
    with executor() as run:
        cells = bounded_cells(tiny, build_space(tiny, limits), run)
        outcomes = [simulate_cell((tiny, cell.assignment)) for cell in cells[:: max(1, len(cells) // 40)]]
    shown = cells[:: max(1, len(cells) // 40)]
    ratios = [o.step_s[0] / cell.bound_s for cell, o in zip(shown, outcomes, strict=True) if o.status == "ok"]
    assert len(ratios) > 10
    assert min(ratios) >= 1 - 1e-9


@pytest.mark.parametrize("overrides", [(), ("engine.tensor_parallel=8",), ("workload.response_tokens.log_sigma=0.05",)])
def test_a_rollout_takes_at_least_its_bound_and_less_than_three_times_it(overrides: tuple[str, ...]) -> None:
    scenario = load_scenario("qwen8b_rl_zero", ("simulation.replications=1", *overrides))
    rates = engine_rates(engine_prices(price_inputs(scenario).engine).table)
    bound = rollout_bound_s(rates, rollout_works(scenario, 0)[0], 32 // scenario.engine.tensor_parallel)
    generation = evaluate_assignment(scenario, {}, with_baseline=False).values["generation_s"]
    assert 1 <= generation / bound < 3  # type: ignore[operator]


def test_bounds_fall_with_lag_replicas_and_speed(tiny: Scenario) -> None:
    rates, work = engine_rates(engine_prices(price_inputs(tiny).engine).table), rollout_works(tiny, 0)[0]
    bounds = [lagged_bound_s(rates, work, 4, lag, 1.0) for lag in (1, 2, 4, 8)]
    assert bounds == sorted(bounds, reverse=True)
    assert rollout_bound_s(rates, work, 8) <= rollout_bound_s(rates, work, 4)
    assert lagged_bound_s(rates, work, 4, 1, 100.0) == 100.0
    assert np.all(np.diff(np.diff(rates.rate) / np.diff(rates.batch)) <= 1e-9)


def test_best_yaml_is_the_best_plan(tiny: Scenario, tmp_path: pytest.TempPathFactory) -> None:
    from pathlib import Path

    from rlsim.planning.plan_files import write_plan

    folder = Path(str(tmp_path))
    answer = plan(tiny, limits=SYNC, draws=0)
    write_plan(answer, folder)
    assert {path.name for path in folder.iterdir()} == {"ranked.csv", "best.yaml", "plan.json", "pareto.png"}
    again = project(load_scenario(folder / "best.yaml"))
    assert again.candidate.step_s.mean == pytest.approx(float(answer.best.values["step_s"]))


def test_near_plans_pareto_front_and_current_scenario(tiny: Scenario) -> None:
    answer = plan(tiny, limits=replace(SYNC, sizes=(8, 16, 32)), draws=0)
    best = answer.ranked[0].step_s
    assert all(row.step_s <= 1.03 * best for row in answer.near)
    costs = [float(row.values["cost_per_step_usd"]) for row in answer.pareto]
    times = [row.step_s for row in answer.pareto]
    assert costs == sorted(costs)
    assert times == sorted(times, reverse=True)
    assert {int(row.values["num_gpus"]) for row in answer.by_group} == {8, 16, 32}
    assert pareto_front(answer.ranked)[-1].step_s == best
    assert answer.current is not None
    assert answer.current["step_s"] >= 0.99 * float(answer.best.values["step_s"])


@pytest.mark.parametrize(
    ("objective", "unit_of"),
    [
        ("step_time", lambda v, s: v["step_s"]),
        ("tokens_per_s", lambda v, s: v["tokens_per_s"]),
        ("steps_per_day", lambda v, s: 86400 / v["step_s"]),
        ("time_to_n_steps", lambda v, s: 50 * v["step_s"]),
        ("cost_per_step", lambda v, s: v["cost_per_step_usd"]),
        ("energy_per_step", lambda v, s: v["energy_per_step_j"]),
    ],
)
def test_objectives_have_their_units_and_price_prefers_small_clusters(tiny: Scenario, objective: str, unit_of) -> None:  # type: ignore[no-untyped-def]
    goal = Goal(objective, steps=50)  # type: ignore[arg-type]
    answer = plan(tiny, goal=goal, limits=replace(SYNC, sizes=(8, 32), draft_lengths=(3,)), draws=0)
    assert answer.objective_value == pytest.approx(unit_of(answer.best.values, tiny), rel=0.01)
    dear = "per_step" in objective
    assert (answer.best.values["num_gpus"] == 8) == dear


def test_the_smallest_cluster_that_reaches_a_target(tiny: Scenario) -> None:
    sizes = (4, 8, 16, 32)
    best = {}
    for gpus in sizes:
        try:
            best[gpus] = plan(tiny, limits=Limits((gpus,), (0,), draft_lengths=(3,)), draws=0).ranked[0].step_s
        except Infeasible:
            continue
    smallest, next_one = sorted(best)[:2]
    target = 0.5 * (best[smallest] + best[next_one])
    goal = Goal("gpus", target_step_s=target)
    answer = plan(tiny, goal=goal, limits=Limits(sizes, (0,), draft_lengths=(3,)), draws=0)
    assert answer.objective_value == next_one
    with pytest.raises(Infeasible, match="keeps to the target step time"):
        plan(tiny, goal=Goal("gpus", target_step_s=1e-3), limits=Limits((8,), (0,), draft_lengths=(3,)), draws=0)


def test_constraints_bind_with_the_nearest_miss(tiny: Scenario) -> None:
    limits = replace(SYNC, draft_lengths=(3,))
    free = plan(tiny, limits=limits, draws=0)
    step = free.ranked[0].step_s
    assert plan(tiny, goal=Goal(steps=10, deadline_s=10 * step * 1.01), limits=limits, draws=0).ranked
    with pytest.raises(Infeasible, match="no plan keeps to the deadline; the nearest is 8 GPUs") as miss:
        plan(tiny, goal=Goal(steps=10, deadline_s=10 * step * 0.5), limits=limits, draws=0)
    assert miss.value.needed == pytest.approx(step)
    with pytest.raises(Infeasible, match="no plan keeps to the budget"):
        plan(tiny, goal=Goal(steps=10, budget_usd=1e-6), limits=limits, draws=0)
    with pytest.raises(Infeasible, match="leaves less than 97% of device memory free"):
        plan(tiny, limits=replace(limits, memory_headroom=0.97), draws=0)


def test_a_model_that_fits_nowhere_names_the_nearest_miss() -> None:
    scenario = load_scenario("qwen235b_512")
    with pytest.raises(Infeasible, match="no plan fits; the nearest miss is") as miss:
        plan(scenario, limits=Limits((1,), (0,)), draws=0)
    assert miss.value.needed > miss.value.available > 0


def test_memory_headroom_holds_for_every_plan(tiny: Scenario) -> None:
    answer = plan(tiny, limits=replace(SYNC, memory_headroom=0.25), draws=0)
    for row in answer.ranked:
        used = max(float(row.values["generation_memory_bytes"]), float(row.values["training_memory_bytes"]))
        assert used <= 0.75 * tiny.hardware.memory_bytes.value


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (Goal(budget_usd=5.0), "--budget-usd needs --steps"),
        (Goal(deadline_s=5.0), "--deadline-hours needs --steps"),
        (Goal("time_to_n_steps"), "time_to_n_steps needs --steps"),
        (Goal("gpus"), "belong together"),
        (Goal(target_step_s=3.0), "belong together"),
        (Goal(steps=0), "must be above 0"),
        (Goal("speed"), "must be one of"),  # type: ignore[arg-type]
    ],
)
def test_contradictions_are_said(tiny: Scenario, goal: Goal, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(tiny, goal=goal)
    with pytest.raises(InputError, match="must be auto"):
        plan(tiny, method="guess")


def test_further_drafters_join_the_space(tiny: Scenario) -> None:
    perfect = drafter_of("suffix:0.99:1.0")
    answer = plan(tiny, limits=replace(SYNC, draft_lengths=(3,), methods=(perfect,)), draws=0)
    assert "suffix k=3" in {row.name.split(", ")[3] for row in answer.ranked}
    for text in ("mtp", "mtp:high", ":0.5", "mtp:0.5:0.9:1"):
        with pytest.raises(InputError, match="--drafter"):
            drafter_of(text)


def test_the_order_of_plans_is_surer_the_further_they_are_apart(tiny: Scenario) -> None:
    from rlsim.planning.confidence import ranking_confidence

    plans = [("k3", {"k": "3"}), ("same", {"k": "3"}), ("none", {"k": "0"})]
    with executor() as run:
        same, none = ranking_confidence(tiny, plans, 16, run)
    assert (same.wins, same.ratio_low, same.ratio_high) == (0.5, 1.0, 1.0)
    assert none.wins == 1.0
    assert none.ratio_low > 1.0


def test_sampled_search_comes_close_to_the_optimum(tiny: Scenario) -> None:
    limits = replace(SYNC, draft_lengths=(1, 2, 3, 4))
    sampled = plan(tiny, limits=limits, method="optuna", draws=0)
    assert not sampled.exhaustive
    assert sampled.ranked[0].step_s <= 1.02 * plan(tiny, limits=limits, draws=0).ranked[0].step_s


def test_the_plan_does_not_depend_on_the_number_of_jobs(tiny: Scenario) -> None:
    answers = [plan(tiny, limits=replace(SYNC, draft_lengths=(3,)), draws=4, jobs=jobs) for jobs in (1, 2)]
    assert {**answers[0].as_dict(), "simulated": 0} == {**answers[1].as_dict(), "simulated": 0}


def test_default_limits_follow_the_scenario(tiny: Scenario, lagged: Scenario) -> None:
    assert default_limits(tiny) == Limits((8,), (0, 1))
    deep = vary(lagged, "loop.policy_lag=3", "simulation.warmup_steps=4")
    assert default_limits(deep).lags == (0, 1, 2, 3)
    assert default_limits(tiny, Goal("gpus", target_step_s=1.0)).sizes == (1, 2, 4, 8, 16, 32, 64)


def test_a_plan_is_a_valid_scenario_and_its_changes_give_it(tiny: Scenario) -> None:
    from rlsim.planning.planner import changes

    answer = plan(tiny, limits=BOTH, draws=0)
    assert vary(tiny, *changes(tiny, answer.best)) == varied(tiny, answer.best.assignment)


def test_a_miss_in_the_simulation_is_told_once_in_its_own_unit(tiny: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise Infeasible("one sequence exceeds the KV cache of a replica", 4000, 3000, "tokens")

    for name in ("simulate", "baseline_times"):
        monkeypatch.setattr(sys.modules["rlsim.planning.evaluate"], name, full)
    with pytest.raises(Infeasible) as told:
        plan(tiny, limits=Limits((8,), (0,)), draws=0)
    assert (told.value.needed, told.value.available, told.value.unit) == (4000, 3000, "tokens")
    assert str(told.value).count("needed") == 1
