"""The straight line: work is drawn, then priced, then time passes; parts and provenance say what the seconds are."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from rlsim.costs import prices
from rlsim.costs.engine import iteration
from rlsim.costs.engine import prices as engine_prices
from rlsim.costs.operators import collectives, operators
from rlsim.costs.prices import price
from rlsim.costs.trainer import training as trainer_prices
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.projection.summary import _generation, phase_parts, provenance_of
from rlsim.projection.variant import simulate_variant
from rlsim.schema.scenario import Scenario
from rlsim.simulation.run import simulate
from rlsim.workload import acceptance, batches
from rlsim.workload.batches import draw_batch, expected_prompt_tokens
from rlsim.workload.draw import draw
from rlsim.workload.lengths import Place

SCENARIOS = ("quickstart", "qwen8b_rl_zero", "qwen8b_rl_think", "qwen8b_async_lag1", "qwen235b_512", "qwen235b_2048")
LONG_PROMPTS = ("workload.prompt_tokens={kind: constant, tokens: 8000}", "workload.max_sequence_tokens=12000",
                "workload.generations_per_prompt=1", "workload.prompts_per_step=512", "trainer.context_parallel=2",
                "trainer.global_batch_samples=null", "trainer.micro_batch_tokens=null")  # fmt: skip
PREEMPTED = ("engine.gpu_memory_utilization=0.4", "engine.max_running_sequences=256")


def one(name: str, *overrides: str) -> Scenario:
    return load_scenario(name, ["simulation.replications=1", *overrides])


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_price_is_asked_and_nothing_is_drawn_while_time_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = one(name)
    workload = draw(scenario, 0)
    priced = price(scenario, workload)
    expected = simulate(scenario, workload, priced)

    def refused(*args: Any, **keys: Any) -> Any:
        raise AssertionError("asked while time passes")

    for owner in (operators.Operators, collectives.Collectives, iteration.IterationCosts):
        for attribute, value in vars(owner).items():
            if callable(value) and not attribute.startswith("__"):
                monkeypatch.setattr(owner, attribute, refused)
    for module, names in (
        (prices, ("price", "engine_prices", "step_cost")),
        (engine_prices, ("engine_prices",)),
        (iteration, ("build_iteration",)),
        (trainer_prices, ("step_cost",)),
        (batches, ("draw_rollouts", "draw_batch", "draw_iterations")),
        (acceptance, ("iterations_needed",)),
        (np.random, ("default_rng",)),
    ):
        for attribute in names:
            monkeypatch.setattr(module, attribute, refused)
    assert simulate(scenario, workload, priced).steps == expected.steps


@pytest.mark.parametrize(("name", "overrides"),
    [*((name, ()) for name in SCENARIOS), ("quickstart", LONG_PROMPTS), ("quickstart", PREEMPTED)])  # fmt: skip
def test_parts_of_generation_are_counted_and_not_stretched_to_fit(name: str, overrides: tuple[str, ...]) -> None:
    """What the engine's counters say a replica did comes to at most the phase; the rest is told as imbalance."""
    run = simulate_variant(one(name, *overrides))
    phase_s = float(np.mean([step.phases.generation_s for steps in run.steps for step in steps]))
    count = sum(len(steps) for steps in run.steps)
    counted = sum(part.seconds for part in run.prices.engine.parts(run.counters)) / count / run.prices.replicas
    assert counted <= 1.01 * phase_s
    assert sum(part.seconds for part in _generation(run, phase_s, count)) == pytest.approx(phase_s, rel=1e-9)
    assert sum(p.seconds for p in phase_parts(run) if p.phase == "generation_s") == pytest.approx(phase_s, rel=1e-9)


@pytest.mark.parametrize("key", ["trainer.device_efficiency", "trainer.host_launch_s", "engine.host_iteration_s"])
def test_no_fitted_or_assumed_factor_moves_a_second_into_measured(key: str) -> None:
    """Slower training or hosts add modelled seconds and leave the measured ones as they are."""
    values = {"trainer.device_efficiency": (0.6, 0.3)}.get(key, (1e-5, 3e-3))
    measured, total = [], []
    for value in values:
        run = simulate_variant(one("quickstart", f"{key}={value}", "simulation.steps=1"))
        parts = phase_parts(run)
        total.append(sum(part.seconds for part in parts))
        measured.append(sum(part.seconds * part.measured for part in parts))
    assert total[1] > 1.02 * total[0]
    assert measured[1] == pytest.approx(measured[0], rel=1e-3)


def test_a_third_of_the_quickstart_is_measured_and_large_iterations_are_warned_of() -> None:
    """Forward products at table speed and the engine's kernels; backward passes and hosts were never measured."""
    made = project(load_scenario("quickstart"))
    assert 0.2 < made.provenance.measured < 0.4
    assert sum(asdict(made.provenance).values()) == pytest.approx(1.0)
    half = [part.model_copy(update={"measured": 0.5 * part.measured}) for part in made.candidate.parts]
    assert provenance_of(half).measured == pytest.approx(0.5 * made.provenance.measured)
    scenario = load_scenario("quickstart", ["hardware.operator_tables=null", "simulation.replications=1"])
    assert project(scenario).provenance.measured == 0.0
    small, large = (project(one("qwen8b_rl_zero", f"engine.max_captured_tokens={n}")) for n in (64, 4096))
    assert small.candidate.statistics.eager_share > 0.1
    assert any("exceed the largest captured CUDA graph" in text for text in small.warnings)
    assert large.candidate.statistics.eager_share == 0.0
    assert not any("captured CUDA graph" in text for text in large.warnings)


@pytest.mark.parametrize("length", [
    "{kind: constant, tokens: 300}",
    "{kind: lognormal, mean_tokens: 500, log_sigma: 0.9}",
    "{kind: quantiles, quantiles: [0, 0.99, 1], tokens: [100, 100, 4000]}",
    "{kind: quantiles, quantiles: [0, 1], tokens: [50, 3000]}",
    "trace",
])  # fmt: skip
def test_priced_prompts_are_as_long_as_drawn_ones(length: str, tmp_path: Any) -> None:
    if length == "trace":
        path = tmp_path / "prompts.csv"
        path.write_text("prompt_tokens\n" + "8000\n" * 50)
        length = f"{{kind: trace, path: {path}, column: prompt_tokens}}"
    keys = [f"workload.prompt_tokens={length}", "workload.max_sequence_tokens=12000", "workload.prompts_per_step=4096"]
    scenario = one("quickstart", *keys, "workload.generations_per_prompt=1", "trainer.global_batch_samples=null")
    drawn = np.mean([draw_batch(scenario.workload, Place(0, step, 0)).prompt_tokens.mean() for step in range(4)])
    assert expected_prompt_tokens(scenario.workload) == pytest.approx(drawn, rel=0.05)
    assert prices.PriceInputs(scenario).engine.prompt_tokens == expected_prompt_tokens(scenario.workload)
