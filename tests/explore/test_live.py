"""Sliders over a warm scenario: the quick answer near the exact one, the exact one that of project, the page safe."""

import json
import shlex
import threading
from http.client import HTTPConnection

import pytest

from rlsim.errors import Infeasible, InputError
from rlsim.explore.live import Live, sliders_of
from rlsim.explore.live import live as widget
from rlsim.explore.server import Explorer
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project


@pytest.fixture(scope="module", params=["quickstart", "qwen8b_async_lag1"])
def warm(request) -> Live:
    return Live(load_scenario(request.param), request.param)


def start_of(warm: Live) -> dict[str, float]:
    return {slider.key: slider.values[slider.start] for slider in warm.sliders}


def test_what_is_settled_is_what_the_command_gives(warm: Live) -> None:
    moved = warm.settle({**start_of(warm), "k": 2.0})
    _, command, name, *words = shlex.split(moved.command)
    same = project(load_scenario(name, words))
    assert command == "project" and moved.exact
    assert moved.candidate.step_s[0] == same.candidate.step_s.mean
    assert moved.baseline is not None and moved.baseline.step_s[0] == same.baseline.step_s.mean


def test_a_move_is_near_what_it_settles_on_and_the_baseline_stays_where_only_drafts_move(warm: Live) -> None:
    for slider in warm.sliders:
        given = {**start_of(warm), slider.key: slider.values[slider.start - 1]}
        quick, exact = warm.move(given), warm.settle(given)
        assert quick.command == exact.command
        assert quick.candidate.step_s[0] == pytest.approx(exact.candidate.step_s[0], rel=0.15)
        assert warm.move(given) == exact  # kept
    assert not warm.move({**start_of(warm), "k": 0.0}).exact and warm.move(start_of(warm)).exact
    settled = warm.settle(start_of(warm))
    assert warm.move({**start_of(warm), "k": 1.0}).baseline == settled.baseline
    with pytest.raises(InputError, match="has no slider"):
        warm.move({"engine.name": 1.0})
    with pytest.raises(InputError, match="must lie between"):
        warm.move({"k": 99.0})


@pytest.fixture
def server(warm: Live):
    made = Explorer(warm, idle_s=60.0)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join(10)


def asked(server: Explorer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def test_the_page_answers_its_own_browser_alone(server: Explorer) -> None:
    base = f"/{server.token}/"
    assert server.server_address[0] == "127.0.0.1"
    assert asked(server, base)[0] == 200
    status, about = asked(server, base + "about")
    assert status == 200 and json.loads(about)["sliders"][0]["key"] == "k"
    status, moved = asked(server, base + "settle?n=1&k=2")
    assert status == 200 and json.loads(moved)["exact"]
    hostile = {"move?n=2&k=99": 400, "move?n=2&k=2.5": 400, "move?n=2&x.y=1": 400, "move?k=1": 400,
               "move?n=2&k=nan": 400, "move?n=inf": 400, "move?n=2&k=3&k=4": 400, "move": 400, "other": 404,
               "../x": 404, "move?" + "a" * 3000: 414}  # fmt: skip
    for path, expected in hostile.items():
        status, text = asked(server, base + path)
        assert (status, "Traceback" in text) == (expected, False), path
    assert asked(server, "/wrong/move?n=3&k=2")[0] == 404
    assert asked(server, "/")[0] == 404
    assert asked(server, "*")[0] == asked(server, "ftp://[/x")[0] == 400
    assert asked(server, base, "POST")[0] == asked(server, base, "BREW")[0] == 405
    assert asked(server, base, host="evil.example")[0] == 403


def test_of_moves_that_wait_the_newest_is_answered(server: Explorer) -> None:
    asked(server, f"/{server.token}/settle?n=1&k=1")
    server.newest = 9
    assert asked(server, f"/{server.token}/move?n=8&k=2")[0] == 409
    assert asked(server, f"/{server.token}/move?n=10&k=2")[0] == 200
    asked(server, f"/{server.token}/about")  # loaded anew: counts from the beginning
    assert asked(server, f"/{server.token}/move?n=1&k=2")[0] == 200


def test_a_server_that_nobody_asks_ends(warm: Live) -> None:
    made = Explorer(warm, idle_s=0.05)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_sliders_in_a_notebook_follow() -> None:
    box = widget("quickstart")
    *controls, answer = box.children
    before = answer.value
    controls[0].value = 1.0
    assert answer.value != before and "k=1" in answer.value


def test_the_share_that_generates_is_one_of_the_gpus_beside_a_reference_pool() -> None:
    words = ["cluster.reference_gpus=4", "cluster.num_gpus=36", "trainer.reference_logprobs=true"]
    scenario = load_scenario("qwen8b_async_lag1", words)
    share = next(one for one in sliders_of(scenario) if one.key == "generation_share")
    now = share.values[share.start]
    assert vary(scenario, {"generation_share": now}).cluster.generation == scenario.cluster.generation


def test_a_command_holds_the_words_that_the_page_was_started_with() -> None:
    words = ["cluster.num_gpus=16", "speculation.draft_length=5", "workload.prompts_per_step=32"]
    warm = Live(load_scenario("quickstart", words), "quickstart", words)
    for given in ({}, {"k": 2.0}, {"k": 2.0, "cluster.num_gpus": 8.0}):
        moved = warm.settle(given)
        _, _, name, *said = shlex.split(moved.command)
        assert project(load_scenario(name, said)).candidate.step_s.mean == moved.candidate.step_s[0]


def test_acceptance_stays_that_of_the_draft_length_it_was_stated_at() -> None:
    warm = Live(load_scenario("quickstart"), "quickstart")
    slider = next(one for one in warm.sliders if one.key == "speculation.acceptance_length")
    assert slider.label == "acceptance length at k=3"
    lower = slider.values[slider.start - 1]
    # One step of the slider at k=8 is no leap from the length at k=8 down to that at k=3.
    at, below = (warm.settle({"k": 8.0, slider.key: value}) for value in (slider.values[slider.start], lower))
    assert at.candidate.step_s[0] < below.candidate.step_s[0] < 1.1 * at.candidate.step_s[0]
    _, _, name, *said = shlex.split(below.command)
    assert project(load_scenario(name, said)).candidate.step_s.mean == below.candidate.step_s[0]
    assert warm.settle({"k": 0.0, slider.key: lower}).command == "rlsim project quickstart k=0"


def test_of_no_drafts_nothing_is_compared() -> None:
    verdict = Live(load_scenario("quickstart"), "quickstart").move({"k": 0.0}).verdict
    assert "x of" not in verdict
    plain = Live(load_scenario("sizing"), "sizing")
    assert plain.settle({}).baseline is None and plain.move({"cluster.num_gpus": 16.0}).baseline is None


@pytest.mark.parametrize("name", ["quickstart", "coding_agent_64", "search_agent_16", "mlperf_grpo"])
def test_sliders_reach_what_the_layout_allows_alone(name: str) -> None:
    scenario = load_scenario(name)
    for slider in sliders_of(scenario):
        assert slider.values == tuple(sorted(slider.values)) and len(slider.values) > 1
        for value in slider.values:
            vary(scenario, {slider.key: int(value) if value.is_integer() and "mean" not in slider.key else value})
    turns = [one.label for one in sliders_of(scenario) if "response" in one.label]
    assert not turns or ("of a turn" in turns[0]) == (scenario.workload.agent is not None)


def test_what_cannot_run_names_no_key_that_the_page_set_by_itself() -> None:
    large = [
        "model=qwen3-32b",
        "cluster.num_gpus=32",
        "engine.tensor_parallel=4",
        "trainer.tensor_parallel=4",
        "trainer.recompute=full",
    ]
    warm = Live(load_scenario("sizing", large), "sizing", large)
    with pytest.raises(Infeasible) as refused:
        for gpus in reversed(warm.sliders[0].values):
            warm.move({"cluster.num_gpus": gpus})
    assert "simulation." not in str(refused.value)
