"""Sliders over a warm scenario: the quick answer near the exact one, the exact one that of project, the page safe."""

import json
import shlex
import threading
from http.client import HTTPConnection

import pytest

from rlsim.errors import InputError
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
