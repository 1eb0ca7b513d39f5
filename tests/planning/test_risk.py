"""What is offered fits as surely as was asked, and what does not is named: one rule of all commands."""

import json
import re
from collections.abc import Callable

import pytest

from rlsim.costs.memory import check_fits, fit_probability, host_bytes, host_fits, safe_bytes, surely, update_parts
from rlsim.errors import Infeasible
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.new import Answers
from rlsim.planning.plan import plan
from rlsim.planning.size import PLAIN_TASK, Wanted, memory_share
from rlsim.planning.space import SearchLimits, build_space
from rlsim.projection.assumptions import doubtful_memory, warnings_of
from rlsim.projection.variant import simulate_variant
from rlsim.report.text.plan import render_plan
from rlsim.schema.scenario import Scenario

LIMITS = SearchLimits((8,), (0,), draft_lengths=(0,))


@pytest.fixture(scope="module")
def tight() -> Scenario:
    """A trainer whose own layout fits with two thirds."""
    scenario = load_scenario("quickstart", ["simulation.replications=1", "workload.prompts_per_step=16", "k=0"])
    available = scenario.training_device.memory_bytes.value
    sizes = [vary(scenario, {"trainer.micro_batch_tokens": 256 * n}) for n in range(8, 200)]
    needed = [safe_bytes(one, update_parts(one), 2 / 3) for one in sizes]
    return next(one for one, held in zip(reversed(sizes), reversed(needed), strict=True) if held <= available)


def test_a_layout_is_offered_only_where_it_fits_as_surely_as_asked(tight: Scenario) -> None:
    assert 0.6 < fit_probability(tight) < 0.95
    check_fits(tight)
    with pytest.raises(Infeasible, match="with a probability of 95 %"):
        check_fits(surely(tight))
    strict, even = (build_space(one, LIMITS) for one in (tight, vary(tight, {"simulation.fit_probability": 0.5})))
    assert set(strict.trainers[0]) < set(even.trainers[0])
    unsure = [part for part in strict.rejected if part.fits >= 0.5]
    assert len(unsure) >= len(even.trainers[0]) - len(strict.trainers[0]) > 0
    assert all(0.5 <= part.fits < 0.95 for part in unsure)


def test_a_plan_says_what_it_takes_and_what_it_leaves_out(tight: Scenario) -> None:
    safe, risky = plan(tight, limits=LIMITS), plan(vary(tight, {"simulation.fit_probability": 0.5}), limits=LIMITS)
    assert (safe.fit_probability, risky.fit_probability) == (0.95, 0.5)
    assert all(row.fits >= 0.95 for row in safe.finalists)
    assert [one.fits for one in safe.unsure] == sorted((one.fits for one in safe.unsure), reverse=True)
    assert "Not offered, since memory suffices with less than 95 %" in " ".join(render_plan(safe).split())
    assert safe.unsure and not risky.unsure
    # Also a plain layout has a name, with the GPUs that it would have.
    assert all(re.fullmatch(r"(trainer|engine)\.\w+=\d+.* on \d+ GPUs?", one.layout) for one in safe.unsure)
    memory = next(one for one in safe.constraints if one.constraint == "memory")
    assert memory.probability == pytest.approx(safe.best.fits)


def test_engine_and_trainer_fit_as_surely_beside_each_other_as_each_alone() -> None:
    answers = Answers.parse({"model": "qwen3-32b", "hardware": "a100_sxm", **PLAIN_TASK})
    wanted = Wanted(answers)
    pipelined = wanted.scenario("a100_sxm", 8, stages=4, recompute="full")
    found = plan(pipelined, limits=wanted.limits(8), rest=False)
    # Engines of two tensor-parallel ranks leave more behind while they sleep: 94.8 %.
    assert found.best.overrides["engine.tensor_parallel"] == 1
    assert all(row.fits >= 0.95 for row in found.finalists)
    # Of the layout that was offered the share of memory was refused: `rlsim size --deadline` ended without an answer.
    assert memory_share(vary(pipelined, found.best.overrides)).safe > 0.8


def test_a_trainer_is_offered_where_wide_engines_leave_room_on_its_hosts() -> None:
    answers = Answers.parse({"model": "deepseek-v3", "hardware": "gb300_nvl72", **PLAIN_TASK})
    wanted = Wanted(answers)
    scenario = wanted.scenario("gb300_nvl72", 256)
    space = build_space(scenario, wanted.limits(256))
    # 32 engines of eight GPUs keep 32 copies of the weights on 64 hosts while they sleep, engines of 32 a quarter.
    assert space.engines[0][0].layout.tensor == 8 and space.trainers[0]
    narrow, wide = (one.applied(vary(scenario, space.trainers[0][0].overrides())) for one in
                    (space.engines[0][0], max(space.engines[0], key=lambda one: one.layout)))  # fmt: skip
    assert host_bytes(narrow) > 1.9 * host_bytes(wide)
    check_fits(surely(wide))
    with pytest.raises(Infeasible, match="states on the host"):
        check_fits(surely(narrow))


def test_a_trainer_is_offered_beside_every_engine_where_one_is() -> None:
    answers = Answers.parse({"model": "nemotron-h-56b", "gpus": "8", "batch": "16x16", "response-tokens": "8000",
                             "hardware": "h20_3e"})  # fmt: skip
    wanted = Wanted(answers)
    scenario = wanted.scenario("h20_3e", 128)
    space = build_space(scenario, wanted.limits(128))
    for trainer in space.trainers[0][::8]:
        for engine in space.engines[0]:
            check_fits(surely(engine.applied(vary(scenario, trainer.overrides()))))
    # TP8 is the fastest beside TP1 and fits beside nothing larger: 128 GPUs took 770 s where 64 take 568.
    assert not any(str(one) == "TP8" for one in space.trainers[0])


def test_groups_reach_over_a_node_where_nothing_fits_within_one() -> None:
    answers = Answers.parse({"model": "deepseek-v3", "hardware": "h100_sxm", **PLAIN_TASK})
    wanted = Wanted(answers)
    # NeMo-RL trains it so (7ea279abf, recipes/llm/performance/dapo-deepseek-v3-64n8g.v2.yaml: TP32, EP32).
    wide, narrow = (build_space(wanted.scenario("h100_sxm", gpus), wanted.limits(gpus)) for gpus in (256, 512))
    sizes = {(one.layout.tensor, one.layout.pipeline) for one in wide.engines[0]}
    assert {(8, 4), (32, 1)} <= sizes and all(tensor * stages >= 32 for tensor, stages in sizes)
    assert [max(one.expert for one in each.trainers[0]) for each in (wide, narrow)] == [64, 8]
    # Dense models have stages alone, as all-reduces of every layer are slow over a network.
    dense = Wanted(Answers("llama-3.1-405b", "h100_sxm", 8, (8, 8), 500))
    found = {one.layout for one in build_space(dense.scenario("h100_sxm", 64), dense.limits(64)).engines[0]}
    assert {(one.tensor, one.pipeline) for one in found} == {(8, 2), (8, 4), (4, 4)}


def test_where_nothing_fits_the_nearest_miss_says_how_surely_it_must() -> None:
    words = ["model=llama-3.1-70b", "speculation.method=none", "speculation.draft_length=0"]
    with pytest.raises(Infeasible, match=r"no plan fits; .* with a probability of 95 %"):
        plan(load_scenario("quickstart", words), limits=LIMITS)


def test_the_nearest_miss_is_of_what_fits_nowhere() -> None:
    # Trainers that miss by less say nothing where some fit: it is the engine that stops every plan.
    words = ["cluster.num_gpus=16", "speculation.method=none", "speculation.draft_length=0", "k=0"]
    scenario = load_scenario("quickstart", [*words, "engine.gpu_memory_utilization=0.05"])
    space = build_space(scenario, SearchLimits((16,), (0,)))
    assert space.trainers[0] and not space.engines[0] and space.rejected
    assert not any(part.of_trainer for part in space.rejected)


def test_a_plan_looks_at_the_layout_that_is_there_across_nodes_too(tight: Scenario) -> None:
    wide = {"cluster.num_gpus": 32, "engine.tensor_parallel": 16, "trainer.tensor_parallel": 16}
    assert int(tight.hardware.nvlink_domain_gpus) < 16
    space = build_space(vary(tight, wide), SearchLimits((32,), (0,)))
    assert 16 in {one.layout.tensor for one in space.engines[0]}
    assert 16 in {one.tensor for one in space.trainers[0]}


def test_hosts_that_may_not_hold_what_is_offloaded_are_named(tight: Scenario) -> None:
    offloaded = vary(tight, {"trainer.optimizer_on_host": True})
    node = host_bytes(offloaded)
    for share, chance in ((0.95, "39 %"), (1.1, "70 %"), (2.0, None)):
        one = vary(offloaded, {"hardware.host_memory_bytes": share * node})
        assert fit_probability(one) <= host_fits(one)
        said = [text for text in warnings_of(simulate_variant(one)) if "hosts of the training GPUs" in text]
        assert [chance in text for text in said] == ([] if chance is None else [True])
    (clause,) = doubtful_memory(simulate_variant(vary(offloaded, {"hardware.host_memory_bytes": 0.95 * node})))
    assert clause == "the training nodes' host memory enough with 39 % alone"


def test_the_option_is_the_key(run: Callable[..., tuple[int, str, str]]) -> None:
    words = ("size", "quickstart", "--free", "trainer.micro_batch_tokens", "--json")
    found = [json.loads(run(*words, *more)[1]) for more in (["--risk", "0.2"], ["simulation.fit_probability=0.8"], [])]
    assert found[0] == found[1] and found[0]["fit_probability"] == 0.8
    assert found[2]["fit_probability"] == 0.95
    assert found[2]["keys"][0]["largest"] < found[0]["keys"][0]["largest"]
