"""Engine families and their releases: which one stands for which, files, and what a scenario says of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from engine_set import ENGINES, content, family

from rlsim.costs.engine.hosts import engine_host, rollout_host
from rlsim.costs.engine.releases import SCHEDULING_S
from rlsim.errors import InputError
from rlsim.files.reading import data_folder
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario, scenario_digest
from rlsim.parameters.sets import load_engine_parameters, load_parameters, own_sets
from rlsim.projection.project import project
from rlsim.schema.base import changed
from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import LayerKernels, version_order
from rlsim.schema.speculation import Speculation

SMALL = ["simulation.replications=1", "workload.prompts_per_step=16", "trainer.global_batch_samples=512"]


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(content(**changes)))
    return path


def quickstart_with(folder: Path, reference: dict[str, Any] | str) -> Path:
    """The quickstart in ``folder``, with ``reference`` as its engine parameters; a relative path counts from there."""
    document = yaml.safe_load((data_folder("scenarios") / "quickstart.yaml").read_text())
    document["simulation"] = {**document.get("simulation", {}), "engine_parameters": reference}
    own = folder / "scenario.yaml"
    own.write_text(yaml.safe_dump(document))
    return own


def test_releases_compare_by_numbers_and_small_kernels_follow_layers_and_precision() -> None:
    assert version_order("0.10.0") > version_order("0.9.2")
    assert version_order("v0.5.10.post1") > version_order("0.5.9")
    assert version_order("1.3.0rc2") > version_order("1.2")
    layers = LayerKernels(block_fp8_s=1e-6, fp8_s=2e-6, nvfp4_s=3e-6, latent_s=4e-6, indexer_s=5e-6, recurrent_s=6e-6)
    expected = {
        ("qwen3-8b", "bf16"): 0.0, ("qwen3-8b", "fp8"): 36 * 2e-6, ("qwen3-8b", "fp8_block"): 36 * 1e-6,
        ("gpt-oss-120b", "mxfp4"): 0.0, ("deepseek-v3", "nvfp4"): 61 * (3e-6 + 4e-6),
        ("deepseek-v3.2", "fp8_block"): 61 * (1e-6 + 4e-6 + 5e-6), ("qwen3.5-397b-a17b", "bf16"): 45 * 6e-6,
    }  # fmt: skip
    found = {key: layers.seconds(load_card(key[0]), key[1]) for key in expected}
    assert found == pytest.approx(expected)
    host = engine_host(Engine(weight_precision="fp8"), load_card("qwen3-8b"), changed(ENGINES, layers=layers))
    assert host.layers_s == pytest.approx(36 * 2e-6)


@pytest.mark.parametrize(("engine", "expected"), [
    ({}, (0.003, 3e-5)),
    ({"name": "sglang"}, (0.002, 3e-5)),
    ({"host_iteration_s": 0.0}, (0.0, 3e-5)),
    ({"host_sequence_s": 0.0, "version": "0.11.0"}, (0.003 + SCHEDULING_S, 0.0)),
])  # fmt: skip
def test_an_engine_takes_its_family_and_stated_keys_win(engine: dict[str, Any], expected: tuple[float, float]) -> None:
    found = engine_host(Engine(**engine), load_card("qwen3-8b"), ENGINES)
    assert (found.iteration_s, found.sequence_s) == expected
    assert (found.overlap_s, found.network_hop_s) == (1e-6, 2e-5)
    assert (found.drafting_iteration_s, found.drafting_sequence_s) == (5e-4, 4e-6)


def test_speculation_adds_its_own_host_time_and_a_rollout_engine_that_of_its_framework() -> None:
    host = engine_host(Engine(), load_card("qwen3-8b"), ENGINES)
    assert host.seconds(np.array([0.0, 10.0]), False) == pytest.approx([0.003, 0.0033])
    assert host.seconds(np.array([0.0, 10.0]), True) == pytest.approx([0.0035, 0.00384])
    fitted = load_parameters()
    for version, served_s in ((None, 0.003), ("0.11.0", 0.003)):
        given = load_scenario("quickstart", [] if version is None else [f"engine.version={version}"])
        added = fitted.host(fitted.release("vllm", given.engine_version), 1, 1, True, given.hardware.host_cpu)
        found = rollout_host(given, fitted, ENGINES)
        assert (found.iteration_s, found.sequence_s) == pytest.approx((served_s + added[0], added[1]))


RECURRENT = {"name": "sglang", "version": "0.5.8"}


@pytest.mark.parametrize(("engine", "card", "drafting", "ahead"), [
    (RECURRENT, "qwen3-next-80b-a3b", {}, False),
    ({**RECURRENT, "prefix_caching": False}, "qwen3-next-80b-a3b", {}, True),
    ({**RECURRENT, "overlap_scheduling": True}, "qwen3-next-80b-a3b", {}, True),
    ({"name": "vllm"}, "qwen3-next-80b-a3b", {}, True),
    ({**RECURRENT, "overlap_scheduling": False}, "qwen3-8b", {}, True),
    (RECURRENT, "qwen3-8b", {}, True),
    (RECURRENT, "qwen3-next-80b-a3b", {"method": "eagle3"}, False),
    ({**RECURRENT, "version": "0.5.15"}, "qwen3-next-80b-a3b", {}, True),
])  # fmt: skip
def test_the_cache_of_recurrent_states_keeps_hosts_from_working_ahead(
    engine: dict[str, Any], card: str, drafting: dict[str, Any], ahead: bool
) -> None:
    speculation = Speculation(**drafting, draft_length=3, acceptance_length=2.0) if drafting else Speculation()
    sets = [
        changed(ENGINES, families=tuple(changed(one, unhidden_s=seconds) for one in ENGINES.families))
        for seconds in (0.007, 0.0)
    ]
    found, plain = (engine_host(Engine(**engine), load_card(card), one, speculation) for one in sets)
    assert found.iteration_s - plain.iteration_s == pytest.approx(0.0 if ahead else 0.007)


def test_a_scenario_names_its_set_its_digest_holds_it_and_one_without_the_engine_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    named = load_scenario("quickstart", ["simulation.engine_parameters=start"])
    assert own_sets(named).engines == load_engine_parameters("start")
    assert own_sets(load_scenario("quickstart", [f"simulation.engine_parameters={path}"])).engines == ENGINES
    for reference in (content(), str(path), "own.yaml"):
        assert own_sets(load_scenario(str(quickstart_with(tmp_path, reference)))).engines == ENGINES
    plain, same = load_scenario("quickstart"), load_scenario("quickstart", ["simulation.engine_parameters=serving"])
    own = load_scenario("quickstart", [f"simulation.engine_parameters={write(tmp_path)}"])
    assert scenario_digest(plain) == scenario_digest(same) != scenario_digest(own)
    path = write(tmp_path, families=[family("vllm")])
    assert load_scenario("quickstart", [f"simulation.engine_parameters={path}"]).engine.name == "vllm"
    with pytest.raises(InputError, match=r"simulation\.engine_parameters round .* engine\.name sglang, only vllm"):
        load_scenario("quickstart", [f"simulation.engine_parameters={path}", "engine.name=sglang"])


@pytest.mark.parametrize("key", ["parameters", "engine_parameters"])
def test_an_empty_set_is_the_default(key: str) -> None:
    given = load_scenario("quickstart", [f"simulation.{key}=null"])
    assert getattr(given.simulation, key) == getattr(load_scenario("quickstart").simulation, key) is not None


@pytest.mark.parametrize(("settings", "said"), [
    ([], "fitted: round, of vllm over its releases; what the RL framework adds is nemo_rl's of vllm"),
    (["engine.name=trtllm", "engine.version=1.0.0"], "fitted: round, of trtllm over its releases; what"),
    (["engine.host_iteration_s=0.002"], "iteration: 2 ms + "),
    (["engine.host_iteration_s=0.002"], "engine.host_sequence_s; stated)"),
])  # fmt: skip
def test_assumptions_name_where_host_time_comes_from(tmp_path: Path, settings: list[str], said: str) -> None:
    given = load_scenario("quickstart", [*SMALL, f"simulation.engine_parameters={write(tmp_path)}", *settings])
    told = " ".join(project(given).assumptions)
    assert said in told
