"""Stacks of software: files, what they set, what a stated key wins over, and how the trainer's terms follow."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rlsim.costs.overheads import training_overheads
from rlsim.errors import InputError
from rlsim.files.reading import data_folder
from rlsim.loading.scenario import load_scenario, scenario_digest, vary
from rlsim.parameters.sets import DEFAULT_STACK, load_stack, load_transfer_parameters, own_sets
from rlsim.parameters.terms import fitted_of
from rlsim.schema.trainer import StackFeatures

STACKS = sorted(path.stem for path in (data_folder("calibration") / "stacks").glob("*.yaml"))


@pytest.mark.parametrize("name", STACKS)
def test_committed_stacks_load_under_their_own_name_and_say_where_they_are_from(name: str) -> None:
    found = load_stack(name)
    assert found.name == name
    assert found.sources
    if found.release is not None:
        assert found.name.startswith(f"{found.framework}-{found.release}")


def test_a_stack_sets_engine_placement_log_probs_and_features() -> None:
    given = load_scenario("quickstart")
    assert given.stack == load_stack(DEFAULT_STACK)
    assert given.engine_version == "0.20.0"
    assert load_scenario("quickstart", ["stack=null"]).stack == given.stack
    old, new = (load_scenario("qwen235b_512", [f"stack=nemo_rl-{v}", "cluster.placement=null"]) for v in ("0.5", "0.7"))
    assert (old.engine_version, old.rack_aligned, old.policy_logprobs) == ("0.11.2", False, True)
    assert (new.engine_version, new.rack_aligned, new.policy_logprobs) == ("0.20.0", True, False)
    stated = ["engine.version=0.17.1", "cluster.placement=aligned", "trainer.policy_logprobs=false"]
    own = vary(old, *stated)
    assert (own.engine_version, own.rack_aligned, own.policy_logprobs) == ("0.17.1", True, False)
    assert vary(old, "engine.name=sglang").engine_version is None
    assert vary(old, "cluster.num_gpus=64").rack_aligned
    given = load_scenario("quickstart", ["trainer.global_batch_samples=null"])
    assert not given.policy_logprobs
    for key in ("trainer.global_batch_samples=512", "trainer.epochs=2"):
        assert vary(given, key).policy_logprobs
    split = {"cluster.generation_gpus": 4, "cluster.training_gpus": 4, "loop.mode": "async", "loop.policy_lag": 1}
    assert vary(given, split).policy_logprobs
    rack, node = load_scenario("qwen235b_512", ["stack=nemo_rl-0.7"]), load_scenario("quickstart")
    assert (rack.training_features.moe_dispatcher, node.training_features.moe_dispatcher) == ("hybridep", "alltoall")
    own = vary(rack, "trainer.moe_dispatcher=deepep", "trainer.cuda_graphs=true")
    assert own.training_features == StackFeatures(
        moe_dispatcher="deepep",
        cuda_graphs="modules",
        flash_attention_2=False,
        logits_bytes=14,
        gradient_precision="bf16",
    )
    assert vary(rack, "trainer.stack=megatron_bridge-26.06").training_features.fused_cross_entropy
    assert vary(rack, "trainer.stack=megatron_bridge-26.06").engine_version == rack.engine_version


def test_a_measured_framework_has_its_own_terms_and_rl_trainers_those_of_rl_steps() -> None:
    fitted = fitted_of(given := load_scenario("qwen235b_512"))
    own = training_overheads(given, fitted)
    assert (own.dense_speed, own.moe_speed) == (fitted.steps.dense_efficiency,) * 2
    assert own.moe_host_layer_s == fitted.steps.moe_host_layer_s
    bridge = vary(given, "trainer.stack=megatron_bridge-25.09", "trainer.precision=fp8")
    found, terms = training_overheads(bridge, fitted), fitted.training
    framework = terms.framework("megatron_bridge")
    assert (found.dense_speed, found.moe_speed) == (framework.speed, framework.speed)
    host = framework.host_factor * terms.host_cpu_factors["Grace"]
    assert found.moe_host_layer_s == pytest.approx(terms.moe_host_layer_s * host * terms.graph_host_share)
    assert found.expert_host_s == pytest.approx(terms.expert_host_s * host)
    held_up = (1200 / 2500e12 / (700 / 989e12)) ** terms.power_exponent
    assert found.wide_efficiency == pytest.approx(terms.dense_efficiency * held_up)
    assert found.grouped_efficiency == pytest.approx(terms.grouped_efficiency * held_up * terms.fp8_gain)
    assert found.permute_passes == pytest.approx(terms.permute_passes * terms.flex_permute)
    fused = training_overheads(vary(bridge, "trainer.fused_grouped_mlp=true"), fitted)
    assert fused.grouped_efficiency == pytest.approx(found.grouped_efficiency * terms.fused_grouped_gain)
    in_bf16 = training_overheads(vary(bridge, "trainer.fused_grouped_mlp=true", "trainer.precision=bf16"), fitted)
    assert in_bf16.grouped_efficiency == pytest.approx(found.grouped_efficiency / terms.fp8_gain)
    assert in_bf16.expert_host_s == pytest.approx(found.expert_host_s * terms.bf16_expert_host_share)
    beside = training_overheads(vary(bridge, "trainer.cuda_graphs=none", "trainer.exchange_overlap=true"), fitted)
    assert beside.moe_host_layer_s == pytest.approx(terms.moe_host_layer_s * host * terms.overlap_host_factor)
    dropped = training_overheads(vary(bridge, "trainer.token_drop=true", "trainer.fp8_attention=true"), fitted)
    assert dropped.expert_host_s == pytest.approx(found.expert_host_s * terms.static_host_share)
    assert dropped.attention_speed == terms.fp8_attention_gain
    ultra = training_overheads(vary(bridge, "hardware=gb300_nvl72", "trainer.precision=nvfp4"), fitted)
    assert ultra.dense_efficiency == pytest.approx(ultra.wide_efficiency * 1.5 * terms.nvfp4_gain)


def test_stacks_and_transfer_sets_by_path_name_and_key(tmp_path: Path) -> None:
    own = {"name": "ours", "description": "d", "framework": "nemo_rl", "release": "0.7"}
    path = tmp_path / "ours.yaml"
    path.write_text(yaml.safe_dump(own))
    assert load_scenario("quickstart", [f"stack={path}"]).training_features == StackFeatures(flash_attention_2=False)
    with pytest.raises(InputError, match="nearest: nemo_rl-0"):
        load_scenario("quickstart", ["stack=nemo_rl-0.66"])
    path.write_text(yaml.safe_dump({**own, "placment": "aligned"}))
    with pytest.raises(InputError, match=r"ours\.yaml.*did you mean 'placement'"):
        load_scenario("quickstart", [f"stack={path}"])
    plain = load_scenario("quickstart")
    own = load_scenario("quickstart", [f"simulation.transfer_parameters={write(tmp_path, name='own')}"])
    assert own_sets(plain).transfers.name == "measured"
    assert own_sets(own).transfers.name == "own"
    assert scenario_digest(plain) != scenario_digest(own)


def write(folder: Path, **changes: Any) -> str:
    content = {**load_transfer_parameters("start").model_dump(mode="json"), **changes}
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)
