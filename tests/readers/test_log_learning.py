"""What the log of a run teaches: its predictions move to what was measured, and are then known better."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rlsim.attribution.faults import printed_phases
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.uncertainty.predictive import posterior_of, prediction_of
from rlsim.projection.uncertainty.user_inputs import known_phases, layout_groups
from rlsim.projection.variant import simulate_variant
from rlsim.readers.logs.answer import Asked, RunAnswer, answer_run
from rlsim.readers.logs.learning import Waited, waited
from rlsim.readers.logs.reading import RunLog
from rlsim.readers.logs.steady import steady_of
from rlsim.results import Interval
from rlsim.schema.scenario import Scenario

FEW = ("simulation.replications=1", "speculation.method=none")


def log_of_run(scenario: Scenario, ratios: Mapping[str, float], count: int = 20) -> RunLog:
    """A run that takes what is predicted, with phases as many times as long."""
    rng = np.random.default_rng(3)
    steps = [printed_phases(one, scenario) for one in simulate_variant(scenario).every_step]
    means = {name: float(np.mean([one[name] for one in steps])) for name in steps[0]}
    taken = {name: value * ratios.get(name, 1.0) for name, value in means.items()}
    taken["step"] = means["step"] + sum(taken[name] - means[name] for name in means if name != "step")
    values = {name: one * np.exp(0.02 * rng.standard_normal(count)) for name, one in taken.items() if one > 0}
    return RunLog("run", "made", tuple(range(1, count + 1)), values, {name: (name,) for name in values})


def step_of(answer: RunAnswer) -> tuple[float, Interval, Interval]:
    line = next(one for one in answer.phases if one.quantity == "step")
    assert line.before is not None and line.after is not None
    return line.measured.median, line.before, line.after


def width(value: Interval) -> float:
    return float(np.log(value.high / value.low))


@pytest.mark.parametrize("stack", ["slime", "nemo_rl-0.7"])
def test_a_users_run_is_predicted_as_it_was_measured_and_known_as_well(stack: str) -> None:
    scenario = load_scenario("quickstart", [f"stack={stack}", *FEW])
    log = log_of_run(scenario, {"generation": 1.5})
    answer = answer_run(log, scenario, Asked(what_ifs=("cluster.num_gpus=16 engine.tensor_parallel=2",)))
    measured, before, after = step_of(answer)
    assert after.mean == pytest.approx(measured, rel=0.04) and after.low < measured < after.high
    # A user's host and deviations are what its own log shows; those of another layout stay open.
    assert width(after) < (0.35 if stack == "slime" else 0.9) * width(before)
    other = answer.what_ifs[0]
    assert not other.reason and width(other.phases["step"]) > 1.3 * width(after)
    text = dict(answer.explained["generation"].by_source)
    assert sum(text.values()) == pytest.approx(np.log(1.5), abs=0.06)


def test_the_wait_of_a_trainer_tells_how_slowly_the_rollout_generates() -> None:
    scenario = load_scenario("qwen8b_async_lag1", [*FEW, "simulation.steps=4"])
    means = log_of_run(scenario, {}).values
    more_s = 0.3 * float(np.mean(means["step"]))
    told = dict(means) | {name: means[name] + more_s for name in ("step", "exposed_generation")}
    wait_s = float(np.median(told["exposed_generation"]))
    log = RunLog("run", "made", tuple(range(1, 21)), told, {name: (name,) for name in told})
    before = posterior_of(scenario)
    found = waited(scenario, steady_of(log), before)
    assert isinstance(found, Waited) and found.slower > 0.2 and 0 < found.error < 0.1
    answer = answer_run(log, scenario)
    line = next(one for one in answer.phases if one.quantity == "exposed_generation")
    assert line.before is not None and line.after is not None
    assert abs(line.after.mean - wait_s) < 0.35 * abs(line.before.mean - wait_s)
    assert "step" not in answer.explained and answer.explained["generation"].surprise == pytest.approx(
        found.slower, 0.2
    )
    # One that hardly waits says nothing of its generation, and neither does an environment.
    short = dict(told) | {"exposed_generation": np.full(20, 0.02 * wait_s)}
    assert waited(scenario, steady_of(RunLog("run", "made", log.steps, short, log.metrics)), before) is None
    slow = vary(scenario, "workload.environment_s=3")
    assert waited(slow, steady_of(log), before) is None


def test_a_posterior_knows_the_phases_of_the_layout_whose_log_it_was_learnt_from(tmp_path: Path) -> None:
    scenario = load_scenario("quickstart", ["stack=slime", *FEW])
    assert known_phases(scenario) == frozenset() and set(layout_groups(scenario)) == {
        "generation", "logprob", "train", "transfer"
    }  # fmt: skip
    answer = answer_run(log_of_run(scenario, {}), scenario)
    assert answer.posterior.fit["own_log"] == "run" and answer.posterior.spreads == posterior_of(scenario).spreads
    path = tmp_path / "mine.npz"
    path.write_bytes(answer.posterior.to_bytes())
    own = vary(scenario, {"simulation.posterior": str(path)})
    other = vary(own, {"engine.tensor_parallel": 2, "trainer.tensor_parallel": 2})
    assert known_phases(own) == set(layout_groups(scenario)) and known_phases(other) == frozenset()
    spreads = [float(prediction_of(simulate_variant(one)).factor("generation_s", 1.0).std()) for one in (own, other)]
    assert spreads[0] < 0.5 * spreads[1]
