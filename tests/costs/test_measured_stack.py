"""A stack measured whole: its points come back, lines lie between, and a scenario that it is not of is refused."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlsim.costs.interface import EngineCounters
from rlsim.costs.measured import measured_costs, measured_iterations, pass_s
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, scenario_digest
from rlsim.projection.project import project
from rlsim.schema.engine import Engine
from rlsim.schema.parameters import MeasuredStack
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation

SIZES, CONTEXTS = (1, 4, 16), (100, 300)
STACK: dict[str, Any] = {
    "name": "bench", "source": "made up", "model": "Llama-3.1-8B",
    "iterations": [
        ["none" if k == 0 else "ngram", k, n, c, 0.01 + 0.001 * n + 0.002 * k + 1e-6 * n * c]
        for k in (0, 2, 6) for n in SIZES for c in CONTEXTS
    ],
    "prefill": [[16, 0.01], [64, 0.04]],
    "logprob": [[n, t, 1e-4 * n * t] for n in (1, 2) for t in (100, 300)],
    "update": [[n, t, 3e-4 * n * t] for n in (1, 2) for t in (100, 300)],
    "optimizer_s": 0.5, "hand_over_s": 0.25, "error": 0.1,
}  # fmt: skip
WORDS = [
    "cluster.num_gpus=1", "workload.prompts_per_step=2", "workload.generations_per_prompt=2",
    "workload.prompt_tokens={kind: constant, tokens: 16}", "workload.response_tokens={kind: constant, tokens: 84}",
    "workload.max_sequence_tokens=200", "speculation.method=none", "trainer.sequence_packing=false",
    "trainer.pipeline_parallel=1", "trainer.global_batch_samples=4", "trainer.micro_batch_samples=2",
    "trainer.policy_logprobs=true", "trainer.reference_logprobs=false", "loop.driver_sample_s=0.0",
    "engine.prefix_caching=false", "engine.chunked_prefill=false", "trainer.micro_batch_tokens=null",
]  # fmt: skip


def stack(**changes: Any) -> MeasuredStack:
    return MeasuredStack.model_validate({**STACK, **changes})


def scenario(**changes: Any) -> Scenario:
    base = load_scenario("quickstart", [*WORDS, "engine.gpu_memory_utilization=0.9", "hardware=gb200_nvl72"])
    simulation = base.simulation.model_copy(update={"measured_stack": stack(**changes), "replications": 1})
    return base.model_copy(update={"simulation": simulation})


def test_measured_points_come_back_others_lie_on_lines_and_passes_are_bilinear() -> None:
    found = measured_iterations(stack(), "ngram")
    for k in (0, 2, 4, 6, 7):
        plain, token = found.at(k, np.array([1.0, 2.0, 16.0, 20.0]))
        n = np.array([1, 2, 16, 20])
        assert plain == pytest.approx(0.01 + 0.001 * n + 0.002 * k)
        assert token == pytest.approx(1e-6 * n)
    points = stack().update
    for samples, length in ((1, 100), (2, 300), (1.5, 200), (4, 400)):
        assert pass_s(points, samples * length, length) == pytest.approx(3e-4 * samples * length)


def test_the_table_of_a_replica_prices_decoding_and_prefill() -> None:
    speculation = Speculation(method="ngram", draft_length=2, acceptance_length=1.5)
    costs = measured_costs(stack(), Engine(chunked_prefill=False), speculation, (16, 400.0, 1e6))
    table = costs.table
    assert table.step_s[0] == 0
    assert table.step_s[4] + table.attention_s[4, 10] == pytest.approx(0.018 + 4e-6 * 10 * table.context_step_tokens)
    assert np.interp([16, 40, 64], table.prefill_grid_tokens, table.prefill_s[0]) == pytest.approx([0.01, 0.025, 0.04])
    assert not table.chunked_prefill
    counters = EngineCounters(16)
    counters.count(4, 10, 200.0)
    parts = costs.parts(counters)
    assert sum(part.seconds for part in parts) == pytest.approx(10 * (0.018 + 4e-6 * 200))
    assert all(part.measured == 1.0 for part in parts)


def test_a_projection_is_what_the_points_say_and_groups_of_other_measurements_move_nothing() -> None:
    side = project(scenario()).candidate
    iterations = [0.01 + 0.004 + 4e-6 * (16 + done) for done in range(1, 84)]
    assert side.phases.generation_s.mean == pytest.approx(0.04 + sum(iterations), rel=0.01)
    assert side.phases.logprob_s.mean == pytest.approx(2 * 1e-4 * 200)
    assert side.phases.train_s.mean == pytest.approx(2 * 3e-4 * 200 + 0.5)
    assert side.phases.prepare_s.mean == 0.25
    assert side.step_s.high / side.step_s.mean == pytest.approx(np.exp(1.645 * 0.1), rel=0.08)
    assert project(scenario()).provenance.measured > 0.99
    narrow = project(scenario(error=0.0)).candidate.step_s
    assert narrow.low == pytest.approx(narrow.high)


@pytest.mark.parametrize(("changes", "told"), [
    ({"model": "qwen3-8b"}, "bench was measured with model qwen3-8b, not Llama-3.1-8B"),
    ({"iterations": STACK["iterations"][:6]}, "has no iterations with speculation.method ngram, only none"),
])  # fmt: skip
def test_what_was_not_measured_is_refused(changes: dict[str, Any], told: str) -> None:
    asked = scenario(**changes)
    drafts = Speculation(method="ngram", draft_length=2, acceptance_length=1.5)
    with pytest.raises(InputError, match=told):
        project(asked.model_copy(update={"speculation": drafts}))


def test_one_device_generates_and_one_trains_and_the_digest_counts_the_points() -> None:
    asked = scenario()
    assert scenario_digest(asked) != scenario_digest(scenario(optimizer_s=0.6))
    larger = asked.cluster.model_copy(update={"num_gpus": 4})
    with pytest.raises(InputError, match="the cluster has 4 and 4"):
        project(asked.model_copy(update={"cluster": larger}))


@pytest.mark.parametrize(("changes", "told"), [
    ({"iterations": STACK["iterations"][:-1]}, "ngram 6 needs every number of sequences at every context once"),
    ({"iterations": [["none", 2, 1, 100, 0.1]]}, "method none cannot have 2 drafted tokens"),
    ({"update": STACK["update"][:-1]}, "update needs every number of samples at every length once"),
    ({"optimizer_s": -1.0}, "greater than or equal to 0"),
])  # fmt: skip
def test_incomplete_grids_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        stack(**changes)
