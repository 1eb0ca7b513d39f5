"""Scenarios as overrides: export after import is the identity, and what is written reads as it was meant."""

import re
from pathlib import Path
from typing import Any

import pytest
from corpus_files import CORPUS, FOLDER, IDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_import_rules import OPENRLHF

from rlsim.cli.readers import FrameworkName
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.exporting import export_scenario, mean_sample
from rlsim.readers.frameworks.importing import import_config, keys_of, read_config
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.registry import framework_of
from rlsim.readers.frameworks.targets import default_of
from rlsim.schema.scenario import Scenario

ASKED = Asked(
    hardware="gb200_nvl72", mean_prompt_tokens=20, mean_response_tokens=100.0, response_log_sigma=0.5,
    acceptance_length=1.5, mean_turns=1.5, observation_tokens=5, environment_s=1.0, usable_group_share=0.9,
)  # fmt: skip
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "workload.prompts_per_step": st.sampled_from([8, 16, 24, 64]),
    "workload.generations_per_prompt": st.sampled_from([4, 8, 16]),
    "workload.max_sequence_tokens": st.sampled_from([2048, 4096]),
    "engine.tensor_parallel": st.sampled_from([1, 2, 4, 8]),
    "engine.max_running_sequences": st.integers(1, 4096),
    "engine.max_batched_tokens": st.integers(512, 65536),
    "engine.gpu_memory_utilization": st.sampled_from([0.5, 0.75, 0.9]),
    "engine.cuda_graphs": st.booleans(),
    "engine.prefix_caching": st.booleans(),
    "trainer.tensor_parallel": st.sampled_from([1, 2, 4]),
    "trainer.pipeline_parallel": st.sampled_from([1, 2]),
    "trainer.context_parallel": st.sampled_from([1, 2]),
    "trainer.reference_logprobs": st.booleans(),
    "trainer.recompute": st.sampled_from(["none", "full"]),
    "trainer.lora_rank": st.sampled_from([8, 64]),
    "loop.policy_lag": st.integers(1, 4),
    "loop.staleness_fraction": st.sampled_from([0.0, 0.25, 1.0]),
    "loop.update_every": st.integers(1, 4),
    "loop.max_age": st.integers(1, 9),
    "loop.in_flight_updates": st.booleans(),
    "speculation.draft_length": st.integers(1, 5),
}
LEFT_TO_STACK = ("loop.refit_method",)
"""A transfer that the cluster takes by itself is not written."""


def reimported(framework: str, text: str, folder: Path) -> Scenario:
    (folder / "patched.yaml").write_text(text)
    return import_config(framework, folder / "patched.yaml", asked=ASKED).scenario


def comparable(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(exclude={"name", "question"})


@pytest.mark.parametrize(("framework", "path"), CORPUS, ids=IDS)
def test_export_after_import_changes_no_key_with_or_without_a_base(framework: str, path: Path, tmp_path: Path) -> None:
    scenario = import_config(framework, path, asked=ASKED).scenario
    answer = export_scenario(scenario, framework, read_config(framework, path))
    assert (answer.overrides, answer.left) == ((), ())
    assert comparable(reimported(framework, answer.config, tmp_path)) == comparable(scenario)
    adapter = framework_of(framework)
    tree = read_config(framework, path)
    answer = export_scenario(scenario, framework)
    assert answer.left[-1].startswith(adapter.model)
    (tmp_path / "patched.yaml").write_text(answer.config)
    mean = mean_sample(scenario)
    read = keys_of(adapter, Reader(read_config(framework, tmp_path / "patched.yaml"), mean))
    told = {word.split("=")[0] for line in answer.left for word in line.partition(" does so by ")[0].split(", ")}
    for key, value in keys_of(adapter, Reader(tree, mean)).items():
        assert key in told or key in LEFT_TO_STACK or read.get(key, default_of(key)) == value, key
    assert told <= {"loop.mode", "loop.style", "loop.membership", "loop.policy_lag", "loop.max_in_flight_groups",
                    "loop.max_age", "loop.stale", "loop.update_every", "loop.overlap", "cluster.generation_gpus",
                    "cluster.num_gpus", "engine.attention_data_parallel", "engine.tensor_parallel",
                    "cluster.placement", "speculation.draft: name the checkpoint of your draft",
                    "workload.agent: state turns and tools in your own files",
                    f"{adapter.model}: name your checkpoint of "
                    f"{scenario.model.name}"}  # fmt: skip


def test_rules_that_undo_each_other_end_in_what_has_no_counterpart() -> None:
    path = next(path for _, path in CORPUS if path.stem == "nemo_rl_dapo")
    wanted = vary(import_config("nemo-rl", path, asked=ASKED).scenario,
                  {"trainer.tensor_parallel": 1, "trainer.pipeline_parallel": 2})  # fmt: skip
    answer = export_scenario(wanted, "nemo-rl", read_config("nemo-rl", path))
    assert [text.partition(" ")[0] for text in answer.left] == ["trainer.pipeline_parallel=2"]
    assert "policy.dtensor_cfg.tensor_parallel_size=1" in answer.overrides and "enabled" not in str(answer.overrides)


def test_what_a_backend_cannot_do_is_left_and_writes_nothing() -> None:
    path, words = FOLDER / "verl" / "verl_fsdp.yaml", ["actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B"]
    scenario = import_config("verl", path, words, lenient=True).scenario
    for key in ("trainer.expert_parallel", "trainer.tensor_parallel"):
        answer = export_scenario(vary(scenario, {key: 2}), "verl", read_config("verl", path, words))
        assert answer.overrides == () and answer.left == (f"{key}=2 has no counterpart; the configuration says 1",)
        wanted = vary(scenario, {key: 2, "trainer.backend": "megatron"})
        written = " ".join(export_scenario(wanted, "verl", read_config("verl", path, words)).overrides)
        assert f"{key.partition('.')[2].replace('parallel', 'model_parallel_size')}=2" in written


def test_an_asynchronous_nemo_rl_has_an_engine_that_takes_requests_and_whole_nodes() -> None:
    """NeMo-RL's loop stops without either (algorithms/grpo.py:902-909 and 4119 at 7ea279abf)."""
    path = next(path for _, path in CORPUS if path.stem == "base")
    scenario = vary(
        import_config("nemo-rl", path, asked=ASKED).scenario, {"cluster.num_gpus": 32, "trainer.expert_parallel": 2}
    )
    node = int(scenario.hardware.gpus_per_node)
    for gpus, told in ((2 * node, []), (2 * node + 2, [f"cluster.generation_gpus={2 * node + 2}"])):
        wanted = vary(scenario, {"lag": 1, "cluster.generation_gpus": gpus, "cluster.training_gpus": 32 - gpus})
        answer = export_scenario(wanted, "nemo-rl", read_config("nemo-rl", path))
        assert "policy.generation.vllm_cfg.async_engine=true" in " ".join(answer.overrides)
        told_of = [text.partition(" ")[0] for text in answer.left]
        assert [text for text in told_of if text.startswith("cluster.")] == told
        # The asynchronous engine deals requests out in turn; a synchronous loop's lag of 0 is nothing to say.
        assert "engine.dispatch=static" in told_of and "loop.policy_lag" not in str(told_of)


def exported(folder: Path, framework: str, text: str, changes: dict[str, Any]) -> tuple[set[str], str, Scenario]:
    """Overrides, what was left, and the scenario of the patched configuration."""
    path = folder / ("run.yaml" if ":" in text else "run.sh")
    path.write_text(text)
    scenario = vary(import_config(framework, path, asked=ASKED).scenario, changes)
    answer = export_scenario(scenario, framework, read_config(framework, path))
    return set(answer.overrides), " ".join(answer.left), reimported(framework, answer.config, folder)


SLIME = (
    "python3 train.py --hf-checkpoint Qwen/Qwen3-8B --rollout-batch-size 32 --n-samples-per-prompt 8 "
    "--actor-num-gpus-per-node 8 --rollout-max-response-len 4096 "
)
SKYRL = (
    "python -m {} trainer.policy.model.path=Qwen/Qwen3-8B trainer.strategy=fsdp trainer.train_batch_size=64 "
    "trainer.policy_mini_batch_size=64 trainer.placement.policy_num_gpus_per_node={gpus} "
    "trainer.placement.ref_num_gpus_per_node={gpus} trainer.placement.colocate_all={colocated} "
    "generator.inference_engine.num_engines=4 generator.inference_engine.tensor_parallel_size={tensor} "
    "generator.n_samples_per_prompt=8 generator.sampling_params.max_generate_length=2048 "
)
ROLL = (
    "pretrain: Qwen/Qwen3-30B-A3B\nrollout_batch_size: 64\nnum_return_sequences_in_group: 8\nresponse_length: 2048\n"
    "actor_train: {device_mapping: 'list(range(0,8))', training_args: "
    "{per_device_train_batch_size: 2, gradient_accumulation_steps: 32}}\n"
    "actor_infer: {device_mapping: 'list(range(0,8))', strategy_args: {strategy_name: vllm}}\n"
    "reference: {device_mapping: 'list(range(0,8))'}\n"
)
LAGGED = {"lag": 1, "cluster.generation_gpus": 4, "cluster.training_gpus": 4}


def test_programs_that_overlap_are_told_to_the_launcher(tmp_path: Path) -> None:
    """slime's and SkyRL's are programs of their own: their exports set the GPUs alone and left a synchronous loop."""
    _, left, again = exported(tmp_path, "slime", SLIME + "--colocate", LAGGED)
    assert "entry=train_async.py: yours to tell the launcher" in left and "loop.mode" not in left
    assert (again.loop.mode, again.loop.lag, again.cluster.training) == ("async", 1, 4)
    # The words alone kept the engines on the trainer's GPUs.
    assert "--colocate: leave it out of your command" in left
    # On shared GPUs it stops (train_async.py:12 at 624b824a8).
    apart = SLIME.replace("train.py", "train_async.py") + "--rollout-num-gpus 8"
    words, left, again = exported(tmp_path, "slime", apart, {"lag": 0})
    assert "--colocate" in words and "entry=train.py: yours to tell the launcher" in left
    assert again.loop.mode == "sync"
    together = SKYRL.format("skyrl.train.entrypoints.main_base", gpus=8, colocated="true", tensor=2)
    _, left, again = exported(tmp_path, "skyrl", together, LAGGED)
    assert "entry=examples.train.async.main_async" in left and "loop.mode" not in left
    assert (again.loop.mode, again.loop.lag, again.cluster.training) == ("async", 1, 4)


def test_stages_of_slime_have_layers_that_megatron_takes(tmp_path: Path) -> None:
    layers = SLIME + "--colocate --num-layers 36 --pipeline-model-parallel-size "
    last = "--decoder-last-pipeline-num-layers"
    words, left, _ = exported(tmp_path, "slime", layers + "1", {"trainer.pipeline_parallel": 8})
    assert words == {"--pipeline-model-parallel-size 8", f"{last} 1"} and not left  # 7 x 5 + 1
    words, left, _ = exported(tmp_path, "slime", layers + f"8 {last} 1", {"trainer.pipeline_parallel": 4})
    assert words == {"--pipeline-model-parallel-size 4"} and left == f"{last}: leave it out of your command"


def test_engines_and_models_beside_the_policy_have_the_gpus_that_skyrl_asks_for(tmp_path: Path) -> None:
    """It stops at engines on a part of shared GPUs (train/utils/utils.py:462 at a9564572e)."""
    together = SKYRL.format("skyrl.train.entrypoints.main_base", gpus=8, colocated="true", tensor=2)
    engines = "generator.inference_engine"
    words, left, _ = exported(tmp_path, "skyrl", together, {"engine.tensor_parallel": 4})
    assert words == {f"{engines}.tensor_parallel_size=4", f"{engines}.num_engines=2"} and not left
    words, left, _ = exported(tmp_path, "skyrl", together, {"cluster.num_gpus": 16})
    assert words == {
        f"{engines}.num_engines=8",
        "trainer.placement.policy_num_nodes=2",
        "++trainer.placement.ref_num_nodes=2",
    }
    words, left, _ = exported(tmp_path, "skyrl", together, LAGGED)
    assert {"trainer.placement.ref_num_gpus_per_node=4", f"{engines}.num_engines=2"} < words


def test_a_fully_asynchronous_skyrl_keeps_its_bounds_and_becomes_synchronous(tmp_path: Path) -> None:
    """Workers have a batch and no more than may be under way (train/fully_async_trainer.py:353-358 at a9564572e)."""
    fully = "trainer.fully_async.enabled=true trainer.fully_async.max_staleness_steps=4 "
    fully += "trainer.fully_async.num_parallel_generation_workers=256"
    apart = SKYRL.format("examples.train.fully_async.main_fully_async", gpus=4, colocated="false", tensor=1) + fully
    words, left, again = exported(tmp_path, "skyrl", apart, {"loop.policy_lag": 1, "loop.max_in_flight_groups": None})
    workers = "trainer.fully_async.num_parallel_generation_workers=128"
    assert words == {"trainer.fully_async.max_staleness_steps=1", workers}
    words, left, again = exported(tmp_path, "skyrl", apart, {"lag": 0})
    assert {"trainer.fully_async.enabled=false", "trainer.placement.policy_num_gpus_per_node=8"} < words
    assert "entry=skyrl.train.entrypoints.main_base" in left
    # Its engines' log-probs are of the asynchronous loop alone, which a plan of a synchronous one took along.
    assert vary(import_config("skyrl", tmp_path / "run.sh", asked=ASKED).scenario, {"lag": 0}).policy_logprobs
    assert (again.loop.mode, again.cluster.num_gpus, again.policy_logprobs) == ("sync", 8, True)


def test_roll_says_its_lag_by_a_ratio_its_experts_by_a_switch_and_its_reference_by_the_trainers_gpus(
    tmp_path: Path,
) -> None:
    changes = {**LAGGED, "lag": 2, "engine.tensor_parallel": 2, "engine.expert_parallel": 2}
    words, left, again = exported(tmp_path, "roll", ROLL, changes)
    config = "actor_infer.strategy_args.strategy_config"
    assert {"async_generation_ratio=2.0", f"++{config}.enable_expert_parallel=true"} < words
    assert {f"{part}.device_mapping=list(range(0,4))" for part in ("actor_train", "reference")} < words
    # A lag given to its synchronous recipe is that of its own loop.
    assert left == ""
    assert (again.loop.batches_ahead, again.engine.expert_parallel) == (2.0, 2)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize(("framework", "path"), CORPUS, ids=IDS)
@given(data=st.data())
def test_a_changed_scenario_reads_back(framework: str, path: Path, tmp_path: Path, data: st.DataObject) -> None:
    scenario = import_config(framework, path, asked=ASKED).scenario
    unused = () if scenario.speculation.active else ("speculation.",)
    unused += () if scenario.loop.mode == "async" else ("loop.",)
    usable = [key for key in sorted(CHANGES) if not key.startswith(unused)]
    keys = data.draw(st.lists(st.sampled_from(usable), min_size=1, max_size=4, unique=True))
    changes = {key: data.draw(CHANGES[key], label=key) for key in keys}
    try:
        wanted = vary(scenario, changes)
    except InputError:
        return
    answer = export_scenario(wanted, framework, read_config(framework, path))
    told = " ".join(answer.left)
    (tmp_path / "patched.yaml").write_text(answer.config)
    read = keys_of(framework_of(framework),
                   Reader(read_config(framework, tmp_path / "patched.yaml"), mean_sample(wanted)))  # fmt: skip
    ruled = {rule.target for rule in framework_of(framework).rules}
    for key, value in changes.items():
        if (
            key in ruled
            and f"{key}=" not in told
            and value != getattr(getattr(scenario, key.split(".")[0]), key.split(".")[1])
        ):
            assert read[key] == value
    again = export_scenario(wanted, framework, read_config(framework, tmp_path / "patched.yaml"))
    assert again.overrides == ()


def test_only_what_differs_is_overridden_interpolations_keep_their_meaning_and_further_keys_open() -> None:
    path = FOLDER / "nemo-rl" / "base.yaml"
    scenario = vary(import_config("nemo-rl", path, asked=ASKED).scenario,
                    {"engine.tensor_parallel": 4, "workload.max_sequence_tokens": 2048})  # fmt: skip
    answer = export_scenario(scenario, "nemo-rl", read_config("nemo-rl", path))
    assert answer.overrides == (
        "policy.generation.vllm_cfg.tensor_parallel_size=4", "policy.max_total_sequence_length=2048",
        "policy.sequence_packing.logprob_mb_tokens=2048", "policy.sequence_packing.train_mb_tokens=1024",
    )  # fmt: skip
    assert answer.left == ()
    applied = read_config("nemo-rl", path, list(answer.overrides))
    assert keys_of(framework_of("nemo-rl"), Reader(applied))["trainer.micro_batch_tokens"] == 1024
    imported = import_config("nemo-rl", path, asked=ASKED).scenario
    scenario = vary(
        imported,
        {"loop.mode": "async", "loop.policy_lag": 3, "cluster.generation_gpus": 8, "engine.dispatch": "round_robin"},
    )
    answer = export_scenario(scenario, "nemo-rl", read_config("nemo-rl", path))
    assert answer.left == ()
    words = set(answer.overrides)
    assert {"grpo.async_grpo.enabled=true", "grpo.async_grpo.max_trajectory_age_steps=3"} < words
    assert "policy.generation.colocated.enabled=false" in words
    assert "policy.generation.vllm_cfg.async_engine=true" in words
    assert "++policy.generation.vllm_kwargs.max_num_seqs=1024" in words  # the asynchronous engine's own is 128


def test_a_bundled_scenario_becomes_a_recipe_and_comes_back_and_what_no_key_says_is_told(tmp_path: Path) -> None:
    scenario = load_scenario("qwen235b_512")
    answer = export_scenario(scenario, "nemo-rl")
    assert answer.left == ("speculation.draft: name the checkpoint of your draft",
                           "policy.model_name: name your checkpoint of Qwen3-235B-A22B")  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(answer.config)
    back = import_config("nemo-rl", tmp_path / "recipe.yaml", asked=Asked(model="qwen3-235b-a22b")).scenario
    same = ("engine.tensor_parallel", "engine.expert_parallel", "engine.weight_precision", "trainer.pipeline_parallel",
            "trainer.expert_parallel", "trainer.recompute", "cluster.num_gpus", "workload.prompts_per_step",
            "speculation.draft_length")  # fmt: skip
    for key in same:
        section, name = key.split(".")
        assert getattr(getattr(back, section), name) == getattr(getattr(scenario, section), name), key
    answer = export_scenario(vary(load_scenario("quickstart"), {"engine.dispatch": "shared_queue"}), "nemo-rl")
    assert any(sentence.startswith("engine.dispatch=shared_queue has no counterpart") for sentence in answer.left)


@pytest.mark.parametrize("framework", ["swift", "trl"])
def test_words_alone_generate_with_vllm_train_all_weights_and_are_options_of_the_program(framework: str) -> None:
    found = export_scenario(load_scenario("quickstart"), framework)
    assert "--use_vllm" in found.overrides and not any("launcher" in word for word in (*found.overrides, found.config))
    assert any(line.endswith("=8: yours to tell the launcher") for line in found.left)
    assert not any(line.startswith("trainer.lora_rank") for line in found.left)


SPLIT = {"cluster.generation_gpus": 4, "cluster.training_gpus": 4}
WRITTEN: list[tuple[str, dict[str, Any], set[str], str]] = [
    # Without either option slime has no GPUs for its engines (slime/ray/placement_group.py).
    ("slime", {}, {"--colocate"}, "cluster"),
    ("miles", {}, {"--colocate"}, "cluster"),
    ("slime", SPLIT, {"--rollout-num-gpus 4"}, "cluster"),
    ("slime", {"trainer.optimizer": "muon"}, {"--optimizer muon"}, "trainer.optimizer"),
    ("prime-rl", {"trainer.optimizer": "muon"}, {"--trainer.optim.type muon"}, "trainer.optimizer="),
    ("roll", {}, {"adv_estimator=grpo"}, "trainer.critic"),
    ("roll", {"trainer.critic": True}, {"adv_estimator=gae"}, "trainer.critic"),
    ("easyr1", {}, {"data.max_prompt_length=512", "data.max_response_length=3584"}, "workload"),
    ("easyr1", {"workload.max_response_tokens": 3000}, {"data.max_prompt_length=1096"}, "workload"),
    ("easyr1", {}, {"worker.actor.micro_batch_size_per_device_for_update=1"}, "trainer.micro_batch"),
    ("swift", {}, {"--gradient_accumulation_steps 64"}, "trainer.global_batch"),
    ("swift", {"trainer.reference_logprobs": False}, {"--beta 0.0"}, "trainer.reference"),
    ("prime-rl", {"trainer.precision": "fp8"}, {"--trainer.model.quantization.type fp8"}, "trainer.precision"),
    ("areal", {"trainer.backend": "fsdp", "trainer.pipeline_parallel": 1, "trainer.optimizer_on_host": True},
     {"++actor.fsdp.offload_params=true"}, "trainer.optimizer_on_host"),
    ("roll", {"trainer.optimizer_on_host": True},
     {"++actor_train.strategy_args.strategy_config.optimizer_cpu_offload=true"}, "trainer.optimizer_on_host"),
    ("roll", {"trainer.sequence_packing": True}, {"++actor_train.use_sequence_packing=true"}, "trainer.sequence"),
    ("roll", {"engine.weight_precision": "fp8_block"},
     {"++actor_infer.strategy_args.strategy_config.quantization=fp8"}, "engine.weight_precision"),
    ("slime", {"engine.kv_precision": "fp8"}, {"--sglang-kv-cache-dtype fp8_e4m3"}, "engine.kv_precision"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "changes", "words", "none_left_of"), WRITTEN)
def test_an_export_without_a_configuration_is_a_whole_one(
    framework: str, changes: dict[str, Any], words: set[str], none_left_of: str
) -> None:
    answer = export_scenario(vary(load_scenario("quickstart"), changes), framework)
    assert words <= set(answer.overrides)
    assert not [line for line in answer.left if line.startswith(none_left_of)]


@pytest.mark.parametrize("framework", [one.value for one in FrameworkName])
def test_an_export_names_no_checkpoint_of_a_shipped_configuration(framework: str) -> None:
    answer = export_scenario(load_scenario("quickstart"), framework)
    key = framework_of(framework).model
    assert not [word for word in answer.overrides if re.match(rf"[-+]*{re.escape(key)}[ =]", word)]
    assert any(line.startswith(f"{key}: name your checkpoint") for line in answer.left)


def test_an_option_that_must_go_from_a_script_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{OPENRLHF} --train.colocate_all --train.async_enable\n")
    tree = read_config("openrlhf", tmp_path / "run.sh")
    scenario = import_config("openrlhf", tmp_path / "run.sh", asked=ASKED).scenario
    answer = export_scenario(vary(scenario, {"lag": 0}), "openrlhf", tree)
    # It was left away without a word: the run would have stayed asynchronous.
    assert "--train.async_enable: leave it out of your command" in answer.left
    assert "async" not in " ".join(answer.overrides)


def test_a_lag_is_said_by_the_key_that_the_framework_has_for_it() -> None:
    path = next(path for _, path in CORPUS if path.stem == "verl_fully_async")
    scenario = import_config("verl", path, asked=ASKED).scenario
    answer = export_scenario(vary(scenario, {"lag": 1}), "verl", read_config("verl", path))
    # A plan of a lag had no counterpart where a share of a batch says the same.
    assert "async_training.staleness_threshold=1" in answer.overrides and "lag" not in str(answer.left)


def test_a_filter_of_groups_that_no_key_turns_on_is_told() -> None:
    given = vary(load_scenario("quickstart"), {"workload.usable_group_share": 0.6})
    (told,) = [line for line in export_scenario(given, "slime").left if line.startswith("workload.usable_group_share")]
    assert "turn on the filter" in told
    # NeMo-RL's is a switch, which the export turns on.
    found = export_scenario(vary(given, {"workload.generated_batch_factor": 2.0}), "nemo-rl")
    assert "grpo.use_dynamic_sampling=true" in found.overrides
    assert not [line for line in found.left if line.startswith("workload.usable")]


STATED = {
    "loop": {"mode": "async", "policy_lag": 1}, "cluster.generation_gpus": 4, "trainer.activations_on_host": True,
    "trainer.recompute": "full", "loop.membership": "first_done",
}  # fmt: skip


@pytest.mark.parametrize("framework", FrameworkName)
def test_what_a_framework_has_no_option_for_is_told(framework: str) -> None:
    plain = load_scenario("quickstart", ["speculation.method=none"])
    left = " ".join(export_scenario(vary(plain, STATED), framework).left)
    targets = {rule.target for rule in framework_of(framework).rules}
    for key in ("loop.mode", "trainer.activations_on_host", "loop.membership"):
        assert (f"{key}=" in left) or key in targets
    assert "loop.membership=first_done" in left  # a rule of a style, no option
    assert "membership" not in " ".join(export_scenario(plain, framework).left)
