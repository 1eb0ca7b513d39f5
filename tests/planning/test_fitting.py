"""Settings that make a scenario fit: each does so alone, and the nearest of a key is named."""

import json
from collections.abc import Callable

import pytest

from rlsim.costs.memory import surely
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.cliffs import cliffs
from rlsim.planning.fitting import FREE, TOLERANCE, enough_places, fits, largest_that_fit, preflight, settings_that_fit
from rlsim.projection.moves import varied
from rlsim.projection.project import project
from rlsim.projection.summary import cost_usd
from rlsim.report.text.fitting import render_cliffs, render_enough, render_free, render_preflight
from rlsim.schema.scenario import Scenario

Command = Callable[..., tuple[int, str, str]]
TOO_LONG = "trainer.micro_batch_tokens=131072"


@pytest.fixture(scope="module")
def quickstart() -> Scenario:
    return load_scenario("quickstart")


@pytest.mark.parametrize(
    "wrong", [{"engine.gpu_memory_utilization": 0.2}, {"trainer.micro_batch_tokens": 131072}], ids=["engine", "trainer"]
)
def test_each_setting_alone_makes_it_fit(quickstart: Scenario, wrong: dict[str, object]) -> None:
    scenario = varied(quickstart, wrong)
    assert not fits(scenario)
    found = settings_that_fit(scenario)
    assert found
    for setting in found:
        key, _, value = setting.partition("=")
        assert fits(load_scenario("quickstart", overrides=[f"{k}={v}" for k, v in wrong.items()] + [f"{key}={value}"]))


def test_a_lowered_setting_is_the_largest_that_fits(quickstart: Scenario) -> None:
    scenario = varied(quickstart, {"trainer.micro_batch_tokens": 131072})
    lowered = dict(one.split("=") for one in settings_that_fit(scenario))["trainer.micro_batch_tokens"]
    assert not fits(varied(scenario, {"trainer.micro_batch_tokens": 2 * int(lowered)}))


def test_what_fits_or_nothing_saves_has_none(quickstart: Scenario) -> None:
    assert settings_that_fit(quickstart) == []
    huge = {"model": "deepseek-v3", "cluster.num_gpus": 8}
    scenario = load_scenario("quickstart", overrides=[f"{k}={v}" for k, v in huge.items()])
    assert settings_that_fit(scenario) == []


def test_the_largest_value_fits_and_the_next_does_not(quickstart: Scenario) -> None:
    found = largest_that_fit(quickstart)
    assert {one.key for one in found.keys} <= set(FREE) and len(found.keys) >= 3
    assert [one.room for one in found.keys] == sorted(one.room for one in found.keys)
    for one in found.keys:
        assert fits(varied(surely(quickstart), {one.key: int(one.largest)})) and one.largest >= one.now and one.limit
        assert not fits(varied(surely(quickstart), {one.key: int(one.largest) + 1}))
    assert all(len(line) <= 100 for line in render_free(found).splitlines())
    surer = largest_that_fit(vary(quickstart, "simulation.fit_probability=0.99"), ["trainer.micro_batch_tokens"]).keys[
        0
    ]
    plain = next(one for one in found.keys if one.key == surer.key)
    assert surer.largest < plain.largest


@pytest.mark.parametrize(("key", "message"), [
    ("trainer.micro_batch_token", "did you mean"), ("engine.name", "a number above 0"),
    ("engine.gpu_memory_utilization", "safe share"),
])  # fmt: skip
def test_a_key_that_cannot_be_freed_is_refused(quickstart: Scenario, key: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        largest_that_fit(quickstart, [key])
    with pytest.raises(Infeasible):
        largest_that_fit(vary(quickstart, TOO_LONG), [FREE[0]])


def test_preflight_is_the_projection_and_its_layout_is_more_likely_shorter(quickstart: Scenario) -> None:
    short = vary(quickstart, "simulation.replications=2")
    found, answer = preflight(short), project(short)
    assert found.runs and found.step_s == answer.candidate.step_s and found.memory == answer.candidate.memory
    dear = preflight(vary(short, "hardware.price_per_gpu_hour_usd=6"), layout=False)
    assert dear.usd_per_step == pytest.approx(2 * (found.usd_per_step or 0.0)) and dear.better is None
    assert found.better is None or (found.better.shorter or 0.0) > 0.5
    assert all(len(line) <= 100 for line in render_preflight(found).splitlines())


def test_a_launcher_stops_at_what_cannot_run(run: Command) -> None:
    code, out, err = run("preflight", "quickstart", TOO_LONG, "--no-layout", "--json")
    answer = json.loads(out)
    assert (code, err, answer["runs"]) == (3, "", False) and answer["reason"].startswith("infeasible: ")
    assert run("preflight", "quickstart", *answer["settings"][:1], "--no-layout", "simulation.replications=1")[0] == 0
    code, out, err = run("preflight", "quickstart", "trainer.micro_batch=1")
    assert (code, out) == (2, "") and err.count("\n") == 1
    code, out, err = run("size", "quickstart", "--free", "trainer.micro_batch_tokens", "--json")
    assert (code, err) == (0, "") and json.loads(out)["keys"][0]["key"] == "trainer.micro_batch_tokens"


PLACES = {
    "workload.agent": {
        "turns": {"kind": "constant", "turns": 8}, "max_turns": 8,
        "observation_tokens": {"kind": "constant", "tokens": 10},
        "environment_s": {"kind": "constant", "seconds": 30}, "max_environments": 40,
    },
    "workload.prompts_per_step": 16, "workload.generations_per_prompt": 8, "trainer.global_batch_samples": None,
    "workload.response_tokens": {"kind": "constant", "tokens": 20}, "speculation.method": "none",
    "simulation.replications": 1,
}  # fmt: skip


def test_enough_places_are_the_fewest_that_cost_no_time(quickstart: Scenario) -> None:
    """128 trajectories that generate for a moment between environments of 30 s need one each; with n of them the
    environments alone take 7 x 30 s x 128 / n."""
    scenario = varied(quickstart, PLACES)
    key = "workload.agent.max_environments"
    found = enough_places(scenario)
    (one,) = found.keys
    assert (one.key, one.now) == (key, 40) and 120 <= one.enough <= 128
    assert one.enough_step_s <= (1 + TOLERANCE) * one.unlimited_step_s and found.together_step_s == one.enough_step_s
    assert one.now_step_s >= 7 * 30 * 128 / 40 > one.unlimited_step_s
    assert one.now_step_s == pytest.approx(project(scenario).candidate.step_s.mean, rel=1e-4)
    fewer = enough_places(varied(scenario, {key: one.enough - 4}), [key]).keys[0]
    assert fewer.now_step_s > (1 + TOLERANCE) * fewer.unlimited_step_s
    assert f"{key}={one.enough}" in render_enough(found)
    # Nodes of 16 places hold the trajectories whole, so that as many sandboxes are enough; each is paid for.
    nodes = {"count": 2, "places": 16, "price_per_hour_usd": 36.0}
    dispatched = {key: None, "engine.dispatch": "round_robin", "workload.agent.nodes": nodes}
    held = varied(scenario, dispatched)
    assert cost_usd(held, 100) == pytest.approx(cost_usd(scenario, 100) + 2 * 36 / 36)
    assert [(one.now, one.enough) for one in enough_places(held).keys] == [(2, 8)]
    with pytest.raises(InputError, match="no limit on places"):
        enough_places(scenario, ["engine.max_running_sequences"])
    with pytest.raises(InputError, match="states no limit"):
        enough_places(quickstart)


def test_cliffs_lie_where_arithmetic_has_them_and_one_line_tells_each(quickstart: Scenario) -> None:
    """128 sequences, 16 of them in each of eight engines; memory ends where the largest value that fits is."""
    small = varied(quickstart, {
        "speculation.method": "none", "simulation.replications": 1, "workload.prompts_per_step": 16,
        "workload.generations_per_prompt": 8, "trainer.global_batch_samples": None, "engine.max_captured_tokens": 64,
    })  # fmt: skip
    places = 16 * 8 // small.replicas
    key = "engine.max_running_sequences"
    found = cliffs(small, key)
    one = next(one for one in found.cliffs if one.kind == "waiting")
    assert (one.value, one.beyond) == (places, places - 1) and one.beyond_step_s is not None
    end = next(one for one in found.cliffs if one.kind == "end" and one.beyond > found.now)
    assert end.value == largest_that_fit(small, [key]).keys[0].largest and end.beyond_step_s is None
    # Of 8 samples a prompt, so many prompts fill every engine's largest graph; the next one begins to run without.
    graphs = [one for one in cliffs(small, "engine.max_captured_tokens").cliffs if one.kind == "graphs"]
    below = next(one for one in graphs if one.beyond < 64)
    assert (below.value, below.beyond) == (places, places - 1) and "without a captured" in below.text
    assert len(render_cliffs(found).splitlines()) >= 1 + len(found.cliffs)
    distances = [abs(one.beyond - found.now) for one in found.cliffs if one.beyond > found.now]
    assert distances == sorted(distances)
    for wrong, message in (("engine.dispatch", "a number above 0"), ("engine.nothing", "unknown key")):
        with pytest.raises(InputError, match=message):
            cliffs(small, wrong)
