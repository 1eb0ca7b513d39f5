"""The search behind plans: the optimum of an exhaustive one, bounds that bound, and what is given up on the way."""

import itertools
import math

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from rlsim.costs.engine.prices import engine_prices, engine_times
from rlsim.costs.prices import PriceInputs
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning import plan, search
from rlsim.planning.bounds import (
    Candidate,
    TrainerTask,
    bounded_candidates,
    engine_rates,
    fastest_trainers,
    lagged_bound_s,
    rollout_works,
    spread_bound_s,
    tighter_s,
)
from rlsim.planning.evaluate import Cell, Seen, see
from rlsim.planning.execution import executor
from rlsim.planning.objective import Objective
from rlsim.planning.plan import default_limits
from rlsim.planning.search import Contest, Simulated, checked, simulate_once
from rlsim.planning.space import (
    Engine,
    EngineLayout,
    GpuSplit,
    InfeasiblePart,
    Layout,
    SearchLimits,
    TrainerLayout,
    build_space,
)
from rlsim.projection.uncertainty.response import CHAIN
from rlsim.projection.variant import searched, simulate_variant
from rlsim.results.sweep import Mean
from rlsim.schema.asynchrony import STYLES
from rlsim.schema.scenario import Scenario

SYNC = SearchLimits((8,), (0,), draft_lengths=(1, 3, 5))
BOTH = SearchLimits((8,), (0, 1), draft_lengths=(2,), shares=(0.5,))


def exhaustive(scenario: Scenario, limits: SearchLimits) -> list[float]:
    space = build_space(scenario, limits)
    out = []
    for number, split in enumerate(space.splits):
        for engine, trainer in itertools.product(space.engines[number], space.trainers[number]):
            numbers = simulate_once((scenario, Layout(split, engine, trainer).overrides(), math.inf)).numbers
            if numbers is not None:
                out.append(numbers.step_s.mean)
    return out


@pytest.mark.parametrize(("limits", "missed"), [(SYNC, 1e-9), (BOTH, 2e-3)], ids=["sync", "sync and lag 1"])
def test_exhaustive_search_confirms_the_optimum(tiny: Scenario, limits: SearchLimits, missed: float) -> None:
    """Asynchronous steps wait for the trainer's next look at the buffer, here every millisecond of a 2 s step."""
    scenario = vary(tiny, "loop.poll_s=0.001", "simulation.replications=1")
    steps = exhaustive(scenario, limits)
    answer = plan(scenario, limits=limits)
    assert len(steps) >= 100
    assert min(row.step_s for row in answer.ranked) <= min(steps) * (1 + missed)
    assert answer.simulated < len(steps) / 5


def no_plan_beats_its_bound(scenario: Scenario, limits: SearchLimits) -> None:
    """Of some forty plans that are spread over the space, those that may lack memory too."""
    scenario = vary(scenario, {"simulation.fit_probability": 0.5})
    with executor() as run:
        cells = bounded_candidates(scenario, build_space(scenario, limits), run)
    shown = cells[:: max(1, len(cells) // 40)]
    results = [simulate_once((scenario, cell.layout.overrides(), math.inf)).numbers for cell in shown]
    ratios = [found.step_s.mean / cell.bound_s for cell, found in zip(shown, results, strict=True) if found]
    assert len(ratios) >= 10
    assert min(ratios) >= 1 - 1e-9


EVEN = ("workload.prompts_per_step=120", "workload.generations_per_prompt=4", "trainer.global_batch_samples=null")
"""Samples of an update that 20 and 24 GPUs divide."""


def test_pools_of_nemo_rl_are_whole_nodes_and_fsdp_splits_no_products(tiny: Scenario) -> None:
    limits = SearchLimits((32,), (1,), draft_lengths=())

    def found(*words: str) -> tuple[set[int], set[int]]:
        space = build_space(vary(tiny, "cluster.num_gpus=32", "k=0", *EVEN, *words), limits)
        trainers = {one.tensor for number in space.usable for one in space.trainers[number]}
        return {space.splits[number].generation for number in space.usable}, trainers

    sizes, tensors = found("stack=nemo_rl-0.7")
    assert sizes == {8, 16, 24} and {1, 2} < tensors
    sizes, tensors = found("stack=verl", "trainer.backend=fsdp", "trainer.pipeline_parallel=1")
    assert {8, 12, 16, 20, 24} == sizes and tensors == {1}


def test_ranks_have_equal_parts_of_an_update_where_a_stack_stops_otherwise(tiny: Scenario) -> None:
    def trained(gpus: int, lag: int, stack: str) -> set[int]:
        scenario = searched(vary(tiny, f"stack={stack}", f"cluster.num_gpus={gpus}", "k=0"))
        space = build_space(scenario, SearchLimits((gpus,), (lag,), draft_lengths=()))
        with executor() as run:
            found = bounded_candidates(scenario, space, run)
        return {one.layout.split.training // one.layout.trainer.shards for one in found}

    # 32 samples on 2 + 6 GPUs: NeMo-RL's shard_by_batch_size stops, slime deals them out all the same.
    for stack in ("nemo_rl-0.7", "verl", "skyrl"):
        assert all(32 % ranks == 0 for ranks in trained(8, 1, stack))
    assert any(32 % ranks for ranks in trained(8, 1, "slime"))
    assert trained(12, 0, "nemo_rl-0.7")  # no layout of 12 GPUs has such ranks


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_no_plan_is_faster_than_its_bound(tiny: Scenario, lag: int) -> None:
    no_plan_beats_its_bound(tiny, SearchLimits((8, 16), (lag,), draft_lengths=(1, 4)))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("lag", [0, 1])
def test_bounds_leave_the_fastest_trainer_of_all(tiny: Scenario, model: str, lag: int) -> None:
    scenario = vary(tiny, f"model={model}", "simulation.replications=1", "simulation.fit_probability=0.5")
    space = build_space(scenario, SearchLimits((16,), (lag,), shares=(0.5,)))
    with executor() as run:
        found = fastest_trainers(scenario, space, run)
    assert found
    for number, (trainer, _) in found.items():
        trainers = tuple(space.trainers[number])
        task = TrainerTask(scenario, space.splits[number], space.engines[number][0], trainers)
        rising = [list(tighter_s(inputs)) for inputs in task.inputs()]
        assert len(rising) > 10 and all(bounds == sorted(bounds) for bounds in rising)
        assert trainer == min(zip((bounds[-1] for bounds in rising), trainers, strict=True))[1]


QUICK = ("nemo_rl", "nemo_rl_windowed", "verl", "skyrl", "areal", "slime_fully_async")
"""Styles whose bounds are looked at with every change; those of all others each night."""
RULES = [*(pytest.param((f"loop.style={style}",), marks=() if style in QUICK else pytest.mark.nightly, id=style)
           for style in STYLES), ("loop.style=verl", "loop.update_every=4"),
         ("loop.style=nemo_rl", "loop.update_every=4"), ("loop.style=slime", "loop.update_every=2"),
         ("loop.style=nemo_rl", "loop.max_in_flight_groups=32"),
         ("loop.style=skyrl", "loop.max_age=1", "loop.stale=drop"), ("loop.overlap=false",)]  # fmt: skip


@pytest.mark.parametrize("keys", RULES, ids=" ".join)
def test_no_plan_is_faster_than_its_bound_whatever_the_rules(lagged: Scenario, keys: tuple[str, ...]) -> None:
    scenario = vary(lagged, *keys, "simulation.steps=12", "simulation.replications=1")
    no_plan_beats_its_bound(scenario, SearchLimits((8,), (2,), draft_lengths=(2,)))


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("objective", [
    Objective(), pytest.param(Objective("cost_per_step", steps=100, deadline_s=9000.0), marks=pytest.mark.nightly),
])  # fmt: skip
def test_a_plan_without_the_rest_is_the_same(
    lagged: Scenario, objective: Objective, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans that the search gave up are simulated to their end where they might count; here never, or always."""
    limits, looks = SearchLimits((8, 16), (0, 1, 2), draft_lengths=(0, 2)), list[Cell]()
    monkeypatch.setattr(search, "see", lambda *given: looks.append(see(*given)) or looks[-1])
    if counted:
        monkeypatch.setattr(search, "_none_counts", lambda *given: False)
    shown, bare = (plan(lagged, objective=objective, limits=limits, rest=rest) for rest in (True, False))
    assert bare.to_json() == shown.to_json() and shown.rest and not bare.rest
    given_up = sum(cell.seen.given_up for cell in looks if cell.seen)
    assert given_up >= 5 and len(looks) - shown.simulated == given_up * counted


def test_a_plan_that_does_not_fit_excludes_none_that_does(tiny: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation sees more memory in use than what the bounds know: here in all plans that are fast."""
    scenario, least_s = vary(tiny, "simulation.replications=1"), 0.0

    def tell(candidate: Candidate, cell: Cell) -> Simulated | InfeasiblePart:
        found = checked(candidate, cell)
        if not isinstance(found, Simulated):
            return found
        small = InfeasiblePart(candidate.layout.overrides(), "too little memory", 2.0, 1.0, "bytes")
        return small if found.mean_s < least_s else found

    monkeypatch.setattr(search, "checked", tell)
    fastest_s = plan(scenario, limits=SYNC).best.numbers.step_s.mean
    least_s = 1.3 * fastest_s
    assert plan(scenario, limits=SYNC).best.numbers.step_s.mean >= least_s


def test_the_scenarios_own_draft_length_is_among_those_of_a_search(lagged: Scenario) -> None:
    scenario = vary(lagged, "speculation={method: suffix, draft_length: 16, acceptance_length: 4}")
    space = build_space(scenario, SearchLimits((8,), (1,)))
    assert {one.draft_length for engines in space.engines.values() for one in engines} == {*range(8), 16}


def seen(gpus: int, tensor: int, step_s: float, given_up: bool = False) -> Simulated:
    layout = Layout(GpuSplit(gpus, 1, gpus // 2, gpus // 2), Engine(EngineLayout(tensor), 3), TrainerLayout())
    return Simulated(Seen(gpus, Mean(step_s), 0.0, 0.0, given_up), None, Candidate(layout, 1, 0.0))


@pytest.mark.parametrize(("gpus", "share", "kept", "counts"), [
    (8, 1.03, 1, False), (8, 1.02, 1, True), (16, 1.7, 1, False), (16, 1.03, 1, True), (16, 1.03, 3, False),
    (32, 9.0, 1, True),
])  # fmt: skip
def test_what_was_given_up_counts_near_the_best(
    lagged: Scenario, gpus: int, share: float, kept: int, counts: bool
) -> None:
    """Of its group, 100 s on 8 and 60 s on 16 GPUs, or of all that keep the constraints: the first, or all of three."""
    contest, best = Contest(lagged, Objective(), default_limits(lagged)), {8: 100.0, 16: 60.0, 32: 50.0}
    whole = [seen(8, 1, 100.0), seen(8, 2, 110.0), seen(16, 1, 60.0)]
    plans = [*whole, seen(gpus, 4, share * best[gpus], given_up=True)]
    assert search._none_counts(contest, plans, whole[:kept]) is not counts


def test_a_lagged_loop_is_given_up_once_its_mean_step_must_be_longer(lagged: Scenario) -> None:
    scenario = vary(lagged, "simulation.steps=12")
    whole = simulate_variant(scenario, tokens=False).steps[0]
    mean_s, steps = np.mean([step.seconds for step in whole]), []
    for share in (0.5, 0.9, 1.01):
        found = simulate_variant(scenario, tokens=False, within_s=share * mean_s).steps[0]
        assert [step.seconds for step in found] == [step.seconds for step in whole[: len(found)]]
        steps.append(len(found))
    assert 1 == steps[0] < steps[1] < steps[2] == 12


@pytest.mark.parametrize("name", ["quickstart", "qwen235b_512", "qwen8b_async_lag1"])
def test_a_search_prices_the_iterations_of_the_answer(name: str) -> None:
    inputs = PriceInputs(load_scenario(name)).engine
    for sequences in (40, 8, 64, 17):
        one = replace(inputs, max_sequences=sequences)
        for host in (one.host, replace(one.host, iteration_s=0.02, factor=1.1)):
            asked = replace(one, host=host)
            own, cut = engine_prices(asked).table, engine_times(asked).table
            assert all(np.array_equal(getattr(own, key), value) for key, value in asdict(cut).items())


FEW_LONG_SAMPLES = (
    "workload.generations_per_prompt=4", "trainer.micro_batch_tokens=8192", "trainer.recompute=full",
    "workload.max_sequence_tokens=8192", "cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async",
    "simulation.replications=1", "speculation={method: none}",
)  # fmt: skip


@pytest.mark.parametrize("style", ["loop.style=nemo_rl", "loop.style=verl"])
@pytest.mark.parametrize("window", [(), ("simulation.warmup_steps=2", "simulation.steps=2")])
@pytest.mark.parametrize("prompts", [4, 16])
def test_no_window_of_a_lagged_loop_beats_its_bound(style: str, window: tuple[str, ...], prompts: int) -> None:
    """A step of the window may have waited for its straggler before the window: no bound may charge it there again."""
    for lag, mean, sigma in itertools.product((1, 2, 4), (300, 1500), (1.0, 1.6)):
        lags = () if style.endswith("verl") else (f"loop.policy_lag={lag}",)
        lengths = f"workload.response_tokens={{kind: lognormal, mean_tokens: {mean}, log_sigma: {sigma}}}"
        batch = (f"workload.prompts_per_step={prompts}", f"trainer.global_batch_samples={4 * prompts}")
        seed = f"simulation.seed={lag % 2}"
        scenario = load_scenario("quickstart", (*FEW_LONG_SAMPLES, *batch, lengths, seed, style, *lags, *window))
        inputs = PriceInputs(scenario)
        rates = engine_rates(engine_prices(inputs.engine).table)
        works = [rollout_works(scenario, step)[0] for step in scenario.measured_steps]
        run = simulate_variant(scenario)
        seconds = [step.seconds for step in run.steps[0]]
        trainer_s = np.mean([sum(step.phases[name] for name in CHAIN) for step in run.steps[0]])
        bound_s = lagged_bound_s(rates, works, 4, scenario, float(trainer_s))
        assert bound_s <= np.mean(seconds) * (1 + 1e-9), (lag, mean, sigma)
        assert bound_s >= 0.94 * trainer_s


@pytest.mark.parametrize("keys", [
    "loop.update_every=4", "loop.max_in_flight_groups=256", "loop.style=slime loop.update_every=2",
])  # fmt: skip
def test_a_bound_knows_how_many_batches_may_be_in_flight(keys: str) -> None:
    """Of a pool that few batches leave idle, however many the style allows by itself."""
    small = ("workload.prompts_per_step=64", "workload.generations_per_prompt=1", "trainer.global_batch_samples=null")
    scenario = load_scenario("qwen8b_async_lag1", (*small, *keys.split(), "simulation.replications=1"))
    rates = engine_rates(engine_times(PriceInputs(scenario).engine).table)
    works = [rollout_works(scenario, step)[0] for step in scenario.measured_steps]
    replicas = scenario.cluster.generation // scenario.engine.gpus_per_replica
    step_s = np.mean([step.seconds for step in simulate_variant(scenario, tokens=False).steps[0]])
    assert 0.2 * step_s < lagged_bound_s(rates, works, replicas, scenario, 0.0) <= step_s


def test_the_bound_of_an_engine_is_its_own_whichever_others_are_bounded_with_it(tiny: Scenario) -> None:
    """Where drafts follow the live batch and samples accept apart, the work itself depends on the engine."""
    varied = ("speculation.policy=by_batch", "speculation.variation.prompt_spread=1.5", "simulation.replications=1")
    scenario = vary(tiny, *varied)
    space = build_space(scenario, SearchLimits((8,), (0,), draft_lengths=(5,)))
    with executor() as run:
        together = {one.layout.engine: one.bound_s for one in bounded_candidates(scenario, space, run)}
        for number in space.usable:
            for engine in space.engines[number]:
                alone = replace(space, engines={**space.engines, number: [engine]})
                (found,) = bounded_candidates(scenario, alone, run)
                assert together[engine] == found.bound_s
    assert len(together) > 1


def test_a_lagged_pool_is_charged_with_no_more_than_the_drawn_work() -> None:
    """However many are in flight: of all of it the measured steps hold a share, at the engine's best batch size."""
    few = ("workload.prompts_per_step=512", "trainer.global_batch_samples=null", "loop.style=nemo_rl")
    scenario = load_scenario("quickstart", (*FEW_LONG_SAMPLES, *few, "loop.policy_lag=8"))
    rates = engine_rates(engine_prices(PriceInputs(scenario).engine).table)
    works = [rollout_works(scenario, step)[0] for step in scenario.measured_steps[:4]]
    whole_s = np.mean([spread_bound_s(rates, work, 4) for work in works])
    assert 0.5 * whole_s < lagged_bound_s(rates, works, 4, scenario, 0.0) <= whole_s
