"""What engines do by themselves, by release: stated or not, and whether a newer release is ever slower."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rlsim.costs.engine.layers import Components
from rlsim.costs.engine.releases import draft_graph, schedules_ahead
from rlsim.schema.engine import Engine
from rlsim.schema.speculation import Speculation
from rlsim.units import FloatArray
from tests.costs import builders

EAGLE = {"method": "eagle3", "draft_length": 3, "acceptance_length": 2.5}
RELEASES = {
    "vllm": ("0.8.4", "0.10.0", "0.13.0", "0.17.1", "0.20.0", "0.25.1", "0.29.0", None),
    "sglang": ("0.4.0", "0.4.4", "0.5.3", "0.5.6", "0.5.12", "0.5.15", None),
    "trtllm": ("1.0.0", "1.2.0", None),
}
"""Releases of each engine, oldest first; None is the newest."""


def _iterations(model: str, speculation: dict[str, Any], **engine: Any) -> FloatArray:
    """Seconds of iterations of 1 to 64 sequences, of one size of graphs."""
    given = builders.scenario(
        model, engine={"max_captured_tokens": 1024, "tensor_parallel": 4, **engine}, speculation=speculation
    )
    return np.asarray(builders.Costs(given).iteration.step_s[1:65])


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("method", ["eagle3", "none"])
@pytest.mark.parametrize("name", list(RELEASES))
def test_no_newer_release_is_slower(name: str, method: str, model: str) -> None:
    drafts = EAGLE if method == "eagle3" else {}
    # What a framework adds to a release of vLLM was fitted release by release, and may rise.
    fixed = {"host_iteration_s": 1e-3, "host_sequence_s": 1e-5} if name == "vllm" else {}
    times = [_iterations(model, drafts, name=name, version=version, **fixed) for version in RELEASES[name]]
    for old, new in pairwise(times):
        assert (new <= old * (1 + 1e-9)).all()


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize(("name", "version"), [(n, v) for n, versions in RELEASES.items() for v in versions])
def test_stating_what_a_release_does_changes_nothing(name: str, version: str | None, model: str) -> None:
    given = builders.scenario(model, engine={"name": name, "version": version}, speculation=EAGLE)
    graph = draft_graph(given.engine, given.model, given.speculation)
    ahead = schedules_ahead(given.engine, given.model, given.speculation)
    plain = _iterations(model, EAGLE, name=name, version=version)
    stated = _iterations(model, {**EAGLE, "draft_graph": graph}, name=name, version=version, async_scheduling=ahead)
    assert stated == pytest.approx(plain)


@pytest.mark.parametrize("name", list(RELEASES))
def test_graphs_and_schedulers_that_work_ahead_never_cost_time(name: str) -> None:
    by_graph = [
        _iterations("qwen3-8b", {**EAGLE, "draft_graph": one}, name=name)
        for one in ("none", "piecewise", "full", "one")
    ]
    for slow, fast in pairwise(by_graph):
        assert (fast <= slow * (1 + 1e-9)).all()
    waits, ahead = (_iterations("qwen3-8b", EAGLE, name=name, async_scheduling=one) for one in (False, True))
    assert (ahead < waits).all()


@pytest.mark.parametrize(("name", "version", "model", "method", "graph"), [
    ("vllm", "0.17.1", "qwen3-8b", "eagle3", "piecewise"), ("vllm", "0.25.1", "qwen3-8b", "eagle3", "full"),
    ("vllm", "0.25.1", "qwen3-30b-a3b", "eagle3", "piecewise"), ("vllm", None, "qwen3-30b-a3b", "eagle3", "full"),
    ("vllm", "0.17.1", "qwen3-8b", "draft_model", "none"), ("sglang", None, "qwen3-8b", "eagle3", "one"),
    ("sglang", "0.4.0", "qwen3-8b", "eagle3", "none"), ("trtllm", "1.0.0", "qwen3-30b-a3b", "eagle3", "one"),
])  # fmt: skip
def test_an_engines_drafts_follow_release_method_and_model(
    name: str, version: str | None, model: str, method: str, graph: str
) -> None:
    engine, drafts = Engine(name=name, version=version), Speculation(**{**EAGLE, "method": method})  # type: ignore[arg-type]
    assert draft_graph(engine, builders.scenario(model).model, drafts) == graph


@pytest.mark.parametrize(("engine", "model", "drafts", "ahead"), [
    ({"version": "0.17.1"}, "qwen3-8b", {}, True), ({"version": "0.13.0"}, "qwen3-8b", {}, False),
    ({"version": "0.17.1"}, "qwen3-8b", EAGLE, True), ({}, "qwen3-8b", {**EAGLE, "method": "ngram"}, False),
    ({"version": "0.17.1"}, "qwen3-8b", {**EAGLE, "method": "draft_model"}, False),
    ({"name": "sglang", "version": "0.5.6"}, "qwen3-8b", EAGLE, True),
    ({"name": "sglang", "version": "0.5.3"}, "qwen3-8b", EAGLE, False),
    ({"name": "sglang"}, "qwen3-8b", {**EAGLE, "tree_width": 4, "verified_positions": 8}, False),
    ({"name": "sglang", "version": "0.5.8"}, "qwen3-next-80b-a3b", EAGLE, False),
    ({"name": "sglang"}, "qwen3-next-80b-a3b", {}, True), ({"name": "trtllm"}, "qwen3-8b", EAGLE, True),
])  # fmt: skip
def test_an_engines_scheduler_works_ahead_by_release_and_drafts(
    engine: dict[str, Any], model: str, drafts: dict[str, Any], ahead: bool
) -> None:
    assert schedules_ahead(Engine(**engine), builders.scenario(model).model, Speculation(**drafts)) == ahead


def _verified(model: str, queries: int, overlap: float) -> Components:
    """Parts of an iteration that verifies ``queries`` positions of each sequence."""
    drafts = {"method": "eagle3", "draft_length": queries - 1, "acceptance_length": 1.0} if queries > 1 else {}
    workload = {"routing_overlap": overlap}
    given = builders.scenario(model, workload=workload, speculation=drafts, engine={"tensor_parallel": 4})
    return builders.Costs(given).iteration_costs.components


def test_positions_verified_together_share_experts() -> None:
    sizes = np.array([1, 4, 16])
    alone, independent, shared, same = (
        _verified("qwen3-30b-a3b", queries, overlap)["experts"].seconds[sizes]
        for queries, overlap in ((1, 1.0), (4, 1.0), (4, 0.7), (4, 0.0))
    )
    assert (independent > shared).all() and (shared >= same).all()
    # All positions of a sequence at the same experts read the weights of one, which is the least that they take.
    assert same[0] < 1.1 * alone[0]
    assert (same >= alone * 0.99).all()
    dense = [_verified("qwen3-8b", 4, overlap)["feed-forward"].seconds[sizes] for overlap in (1.0, 0.5)]
    assert dense[0] == pytest.approx(dense[1])


@pytest.mark.parametrize(("engine", "hardware", "factor"), [
    ("sglang", "h200_sxm", 3.0), ("trtllm", "h200_sxm", 1.0), ("sglang", "b200_sxm", 1.0),
])  # fmt: skip
def test_latent_caches_are_read_for_each_position_by_sglang_on_hopper(
    engine: str, hardware: str, factor: float
) -> None:
    given = builders.deepseek(hardware, engine={"name": engine})
    layers = builders.layers(given)
    sequences, context = np.array([16.0]), np.array([4000.0])
    one, three = (layers.cached_attention(sequences, context, queries).seconds[0] for queries in (1, 3))
    assert three == pytest.approx(factor * one, rel=0.05)


def test_prefills_of_sglang_wait_twice_as_long_for_the_host_beside_drafts_until_the_device_takes_longer() -> None:
    def added_s(drafts: dict[str, Any]) -> FloatArray:
        given = builders.scenario("qwen3-30b-a3b", engine={"name": "sglang"}, speculation=drafts)
        return np.asarray(builders.Costs(given).iteration.prefill_s[1, 1:])

    ratio = added_s(EAGLE) / added_s({})
    assert ratio[0] == pytest.approx(2.0, rel=0.1)
    assert ratio[-1] == pytest.approx(1.0, abs=0.05)
