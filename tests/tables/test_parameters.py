"""Fitted parameters: files, look-up of host times, and who wins over whom."""

from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from engine_set import ENGINES, family
from engine_set import content as engines

from rlsim.costs.engine.layers import GRAPH_NODE_S
from rlsim.costs.overheads import Overheads, overheads_of
from rlsim.errors import InputError
from rlsim.evidence.hierarchy import Design, fit_spreads, solve
from rlsim.files.reading import data_folder
from rlsim.loading.scenario import load_scenario
from rlsim.parameters.sets import (
    DEFAULT,
    Fitted,
    load_engine_parameters,
    load_parameters,
    load_training_parameters,
    load_transfer_parameters,
    shipped,
)
from rlsim.parameters.terms import Term, current, limits_of, moved, value_of
from rlsim.projection.project import project
from rlsim.projection.uncertainty.evidence import Evidence
from rlsim.schema.engine_parameters import OTHER
from rlsim.schema.parameters import GlobalParameters

ENGINE_SETS = sorted(path.stem for path in (data_folder("calibration") / "engines").glob("*.yaml"))
HOSTS = [{"engine": "vllm", "version": "1.0", "iteration_s": 0.004},
         {"engine": "vllm", "version": "2.0", "iteration_s": 0.002},
         {"engine": "sglang", "version": "0.5", "iteration_s": 0.001}]  # fmt: skip


def content(**changes: Any) -> dict[str, Any]:
    fit = {"command": "c", "rows": 1, "data_digest": "d", "median_error": 0.1, "p90_error": 0.2}
    return {
        "name": "round", "description": "round values", "engine_hosts": HOSTS, "sequence_s": 1e-5,
        "fit": {**fit, "held_out_median_error": {"model": 0.1}}, "in_process_iteration_s": 1e-3,
        "in_process_sequence_s": 2e-5, "executor_s": 2e-3, "node_executor_s": 3e-3,
        "host_cpu_factors": {"x86": 1.0, "Grace": 1.5}, "dense_efficiency": 0.5, "fsdp_efficiency": 0.8,
        "moe_host_layer_s": 5e-3, "colocated_tensor_s": 1e-4, "step_error": 0.1, "speedup_error": 0.05, **changes,
    }  # fmt: skip


def made(**changes: Any) -> GlobalParameters:
    return GlobalParameters.model_validate(content(**changes))


def write(folder: Path, **changes: Any) -> str:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(content(**changes)))
    return str(path)


@pytest.mark.parametrize(("load", "name", "told"), [
    (load_parameters, "nothing", f"'nothing'.*{DEFAULT}"),
    (load_engine_parameters, "servings", "'servings'.*nearest: serving;"),
    (load_engine_parameters, "zzz", ", ".join(ENGINE_SETS)),
    (load_transfer_parameters, "measuered", "measured"),
])  # fmt: skip
def test_an_unknown_name_lists_what_there_is(load, name, told):
    with pytest.raises(InputError, match=told):
        load(name)


def transfers(**changes: Any) -> dict[str, Any]:
    return {**load_transfer_parameters("start").model_dump(mode="json"), **changes}


FAMILY = load_transfer_parameters("start").families[0].model_dump(mode="json")
WRONG = [(load_parameters, content, {"dense_efficiency": 1.2}, "dense_efficiency"),
         (load_parameters, content, {"dense_efficiency": 0.0}, "dense_efficiency"),
         (load_parameters, content, {"sequence_s": -1e-6}, "sequence_s"),
         (load_parameters, content, {"host_cpu_factors": {"x86": 0.0}}, "host_cpu_factors"),
         (load_parameters, content, {"engine_hosts": []}, "engine_hosts"),
         (load_parameters, content, {"engine_hosts": [{**HOSTS[0], "iteration_s": "fast"}]}, "iteration_s"),
         (load_parameters, content, {"step_error": 1.5}, "step_error"),
         (load_parameters, content, {"executor": 1.0}, "executor"),
         (load_engine_parameters, engines, {"network_hop_s": -1}, "network_hop_s"),
         (load_engine_parameters, engines, {"network_hops_s": 1}, "did you mean 'network_hop_s'"),
         (load_engine_parameters, engines, {"families": []}, "families"),
         (load_engine_parameters, engines, {"families": [family("vlm")]}, "families[0].engine"),
         (load_engine_parameters, engines, {"families": [family("vllm", overlap_s="1us")]}, "families[0].overlap_s"),
         (load_engine_parameters, engines, {"families": [family("vllm", error=1.5)]}, "families[0].error"),
         (load_transfer_parameters, transfers, {"families": []}, "families"),
         (load_transfer_parameters, transfers, {"families": [FAMILY, FAMILY]}, "families"),
         (load_transfer_parameters, transfers, {"families": [FAMILY, {**FAMILY, "framework": OTHER}]}, "families"),
         (load_transfer_parameters, transfers, {"error": 2.0}, "error"),
         (load_transfer_parameters, transfers, {"assumed": ["speed"]}, "assumed names speed"),
         (load_transfer_parameters, transfers, {"extra": 1}, "extra")]  # fmt: skip


@pytest.mark.parametrize(("load", "base", "changes", "named"), WRONG)
def test_wrong_values_name_file_and_key(load, base, changes, named, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(base(**changes)))
    with pytest.raises(InputError) as caught:
        load(str(path))
    told = str(caught.value)
    assert named in told and "own.yaml" in told
    assert len(told) <= 600 and told.count("\n") < 3


MISSING = {key: value for key, value in content().items() if key != "fsdp_efficiency"}


@pytest.mark.parametrize(("text", "named"), [(yaml.safe_dump(MISSING), "fsdp_efficiency"), ("- 1\n", ""), (None, "")])
def test_a_file_that_is_no_set_is_named_with_the_key_that_it_lacks(text, named, tmp_path):
    path = tmp_path / "own.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=rf"own\.yaml.*{named}"):
        load_parameters(str(path))


@pytest.mark.parametrize(("engine", "version", "iteration_s"), [
    ("vllm", "1.0", 0.004), ("vllm", "2.0", 0.002), ("vllm", None, 0.002), ("vllm", "9.9", 0.002),
    ("vllm", "1.5", 0.004), ("vllm", "0.1", 0.004), ("sglang", None, 0.001), ("trtllm", None, 0.001),
])  # fmt: skip
def test_host_time_by_release_with_the_newest_as_default(engine, version, iteration_s):
    assert made().host(made().release(engine, version), 1, 1, False, "Intel Xeon (x86)") == (iteration_s, 1e-5)


@pytest.mark.parametrize(("gpus", "nodes", "in_process", "iteration_s", "sequence_s"), [
    (1, 1, False, 2e-3, 1e-5), (8, 1, False, 4e-3, 1e-5), (16, 2, False, 7e-3, 1e-5), (1, 1, True, 3e-3, 3e-5),
    (8, 1, True, 5e-3, 3e-5),
])  # fmt: skip
def test_host_time_grows_with_what_the_engine_spreads_over(gpus, nodes, in_process, iteration_s, sequence_s):
    assert made().host(made().release("vllm", "2.0"), gpus, nodes, in_process, "x86") == pytest.approx(
        (iteration_s, sequence_s)
    )


@pytest.mark.parametrize(("cpu", "factor"), [("NVIDIA Grace", 1.5), ("grace", 1.5), ("x86_64", 1.0), ("POWER", 1.0)])
def test_host_time_scales_with_the_processor(cpu, factor):
    found = made().host(made().release("vllm", "2.0"), 1, 1, False, cpu)
    assert found == pytest.approx((2e-3 * factor, 1e-5 * factor))


def sets(steps: GlobalParameters) -> Fitted:
    """Round values for RL steps and engines; training terms where every fit starts."""
    return Fitted(steps, ENGINES, load_training_parameters("start"), load_transfer_parameters())


def efficiencies(found: Overheads) -> tuple[float, float]:
    """Speed of dense and of expert layers over that of the operator tables."""
    own = found.training
    return own.dense_speed * own.dense_efficiency, own.moe_speed * own.dense_efficiency


def test_overheads_come_from_the_fit_where_nothing_is_stated():
    fitted = made()
    quickstart = load_scenario("quickstart")
    found = overheads_of(quickstart, sets(fitted))
    version = quickstart.engine_version
    added_s, framework_sequence_s = fitted.host(fitted.release("vllm", version), 1, 1, True,
                                                quickstart.hardware.host_cpu)  # fmt: skip
    served_s = ENGINES.family("vllm").iteration_s
    assert found.engine.iteration_s == pytest.approx(served_s + added_s)
    assert found.engine.sequence_s == pytest.approx(framework_sequence_s)
    assert (found.engine.overlap_s, found.engine.network_hop_s) == (1e-6, 2e-5)
    assert (found.training.dense_speed, found.training.moe_speed) == (0.5, 0.5)
    assert found.source == "round"
    fsdp = overheads_of(load_scenario("quickstart", ["trainer.backend=fsdp", "trainer.pipeline_parallel=1"]),
                        sets(fitted))  # fmt: skip
    assert (fsdp.training.dense_speed, fsdp.training.moe_speed) == (0.5, 0.5)
    update = fsdp.training.of_update
    assert (update.dense_speed, update.moe_speed) == pytest.approx((0.4, 0.4))
    assert found.training.of_update == found.training


@pytest.mark.parametrize(("key", "name"), [
    ("engine.host_iteration_s", "engine.iteration_s"),
    ("engine.host_sequence_s", "engine.sequence_s"),
    ("trainer.moe_host_layer_s", "training.moe_host_layer_s"),
    ("loop.refit_tensor_s", "refit.tensor_s"),
    ("loop.refit_fixed_s", "refit.fixed_s"),
])  # fmt: skip
@pytest.mark.parametrize("value", [0.0, 0.321])
def test_a_stated_key_wins_over_the_fit(key, name, value):
    found = overheads_of(load_scenario("quickstart", [f"{key}={value}"]), sets(made()))
    assert attrgetter(name)(found) == value


@pytest.mark.parametrize("value", [0.321, 1.0, 1.2])
def test_a_stated_efficiency_is_that_of_all_layers_and_one_of_experts_theirs(value):
    given = load_scenario("quickstart", [f"trainer.device_efficiency={value}"])
    assert efficiencies(overheads_of(given, sets(made()))) == pytest.approx((value, value))
    apart = load_scenario("quickstart", [f"trainer.device_efficiency={value}", "trainer.moe_device_efficiency=0.25"])
    assert efficiencies(overheads_of(apart, sets(made()))) == pytest.approx((value, 0.25))


def test_a_scenario_names_its_set_dispatch_shares_the_process_and_stacks_name_transfers(tmp_path):
    fitted = sets(made())
    apart = overheads_of(load_scenario("quickstart", ["engine.dispatch=round_robin"]), fitted)
    stated = overheads_of(load_scenario("quickstart", ["engine.in_process=false"]), fitted)
    shared = overheads_of(load_scenario("quickstart"), fitted)
    assert apart == stated
    assert shared.engine.iteration_s == pytest.approx(apart.engine.iteration_s + 1e-3)
    for settings, framework in (
        ([], "nemo_rl"), (["stack=verl"], "verl"), (["stack=verl", "loop.refit_framework=other"], "other"),
    ):  # fmt: skip
        given = load_scenario("quickstart", settings)
        assert overheads_of(given, sets(made())).refit.family.framework == framework
    keys = ["simulation.replications=1", "workload.prompts_per_step=16", "trainer.global_batch_samples=512"]
    own, default = (project(load_scenario("quickstart", [*keys, *extra]))
                    for extra in ([f"simulation.parameters={write(tmp_path, dense_efficiency=0.1)}"], []))  # fmt: skip
    assert own.baseline.phases["train_s"].mean > 2 * default.baseline.phases["train_s"].mean
    assert any("round" in text for text in own.assumptions)


@pytest.mark.parametrize(("name", "low", "high"), [
    ("steps/executor_s", 0.0, np.inf),
    ("steps/host/vllm/0.17.1", 0.0, np.inf),
    ("steps/dense_efficiency", 0.3, 1.0),
    ("steps/host_cpu_factors.Grace", 0.8, np.inf),
    ("training/graph_host_share", 0.0, 1.0),
    ("training/dense_efficiency", 0.0, np.inf),
])  # fmt: skip
def test_a_term_moves_up_to_its_limits_and_no_further(name: str, low: float, high: float) -> None:
    def value(fitted: Fitted) -> float:
        head, *path = name.split("/")
        if path[0] == "host":
            return next(host.iteration_s for host in fitted.steps.engine_hosts if host.version == path[2])
        return value_of(getattr(fitted, head), path[0])

    least, most = limits_of(shipped(), name)
    for limit, reached, way in ((least, low, -1.0), (most, high, 1.0)):
        if np.isfinite(limit):
            assert value(moved(shipped(), {name: limit})) == pytest.approx(reached)
            assert value(moved(shipped(), {name: limit + way})) == pytest.approx(reached)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_no_more_of_a_kernel_hides_than_an_empty_one_takes(engine: str) -> None:
    name = f"engines/{engine}/overlap_s"
    least, most = limits_of(shipped(), name)
    reached = moved(shipped(), {name: most}).engines.family(engine).overlap_s
    assert (least, reached) == (-np.inf, pytest.approx(GRAPH_NODE_S))
    assert 0 < current().engines.family(engine).overlap_s <= GRAPH_NODE_S * (1 + 1e-5)


def test_a_fit_holds_terms_on_the_bounds_of_the_sets_around_which_it_was_made() -> None:
    sets, name = shipped(), "engines/sglang/overlap_s"
    rows = [Evidence("iteration", str(n), 3.0, {name: 1.0}, {}) for n in range(20)]
    design = Design.of(rows, [Term(name, 1.0)], sets)
    spreads, weights = fit_spreads(design)
    assert solve(design, spreads, weights).mean[0] == pytest.approx(limits_of(sets, name)[1])
    free = Design.of(rows, [Term(name, 1.0)])
    assert solve(free, *fit_spreads(free)).mean[0] == pytest.approx(3.0, rel=0.1)
