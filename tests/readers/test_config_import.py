"""Configurations as scenarios: the corpus, what each key became, inheritance, overrides."""

from operator import attrgetter
from pathlib import Path

import pytest
from corpus_files import CORPUS, FOLDER, IDS

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.importing import import_config, read_config

NEMO = FOLDER / "nemo-rl"
VERL = FOLDER / "verl"


def written(folder: Path, text: str, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("framework", "path"), CORPUS, ids=IDS)
def test_every_configuration_imports_whole_and_projects(framework: str, path: Path, tmp_path: Path) -> None:
    got = import_config(framework, path, asked=Asked(hardware="gb200_nvl72"), strict=True)
    assert got.accounting.of("used") and not got.accounting.of("not_understood")
    assert {account.key for account in got.accounting.keys} == set(read_config(framework, path).given)
    again = load_scenario(written(tmp_path, got.text))
    assert again == got.scenario
    small = vary(again, "simulation.replications=1", "simulation.steps=1", "simulation.warmup_steps=0")
    assert project(small).candidate.step_s.mean > 0


MEANT = {
    ("nemo-rl", "base"): {
        "cluster.num_gpus": 16, "cluster.colocated": True, "loop.mode": "sync", "workload.prompts_per_step": 8,
        "workload.generations_per_prompt": 4, "trainer.global_batch_samples": 32, "trainer.micro_batch_tokens": 1024,
        "trainer.logprob_micro_batch_tokens": 2048, "trainer.tensor_parallel": 2, "trainer.expert_parallel": 8,
        "trainer.recompute": "full", "trainer.optimizer_bytes_per_parameter": 8, "trainer.policy_logprobs": False,
        "trainer.reference_logprobs": True, "engine.dispatch": "static", "engine.max_running_sequences": 1024,
        "engine.max_batched_tokens": 8192,
    },
    ("nemo-rl", "async"): {
        "cluster.generation": 8, "cluster.training": 8, "loop.mode": "async", "loop.policy_lag": 2,
        "loop.style": "nemo_rl", "loop.in_flight_updates": True, "loop.recompute_kv": True,
        "loop.refit_method": "nccl_reshard", "engine.dispatch": "round_robin", "engine.max_running_sequences": 64,
        "engine.max_batched_tokens": 2048, "engine.weight_precision": "fp8", "engine.kv_precision": "fp8",
        "speculation.method": "eagle3", "speculation.draft_length": 3, "trainer.recompute": "selective",
        "trainer.policy_logprobs": True, "trainer.moe_dispatcher": "deepep",
    },
    ("nemo-rl", "controller"): {
        "loop.style": "nemo_rl_windowed", "loop.policy_lag": 3, "loop.max_age": 3, "loop.max_in_flight_groups": 12,
        "engine.tensor_parallel": 16, "engine.attention_data_parallel": 2, "engine.expert_parallel": 16,
    },
    ("verl", "fully_async"): {
        "cluster.generation": 16, "cluster.training": 8, "workload.prompts_per_step": 16,
        "trainer.global_batch_samples": 32, "loop.style": "verl", "loop.asynchrony.batches_ahead": 0.5,
        "loop.asynchrony.update_every": 2, "loop.asynchrony.at_update": "recompute",
        "loop.max_in_flight_groups": 4 * 8, "policy_logprobs": False,
    },
    ("verl", "separate"): {"loop.update_every": 1, "loop.max_age": 3, "loop.stale": "drop"},  # a span of 4: an age of 3
    ("verl", "colocate"): {"cluster.colocated": True, "loop.overlap": False, "trainer.sequence_packing": False},
    ("verl", "megatron"): {
        "trainer.critic": True, "trainer.pipeline_parallel": 2, "trainer.virtual_stages": 2, "trainer.mtp_layers": 1,
        "engine.tensor_parallel": 16, "engine.attention_data_parallel": 2, "engine.name": "sglang",
        "speculation.method": "mtp", "speculation.draft_length": 2,
    },
    ("skyrl", "fully_async"): {
        "loop.style": "skyrl", "loop.policy_lag": 2, "loop.max_in_flight_groups": 16, "cluster.generation": 8,
        "cluster.training": 8, "trainer.lora_rank": 32, "workload.agent.max_turns": 2, "stack.name": "skyrl",
    },
}  # fmt: skip


@pytest.mark.parametrize(("framework", "name"), MEANT)
def test_a_configuration_means_what_its_keys_say(framework: str, name: str) -> None:
    found = import_config(framework, FOLDER / framework / f"{name}.yaml").scenario
    expected = MEANT[framework, name]
    assert {key: attrgetter(key)(found) for key in expected} == expected


def test_requests_of_verl_that_are_not_kept_are_drained_and_an_override_mapping_replaces_its_parent() -> None:
    waits = import_config("verl", VERL / "fully_async.yaml", ["async_training.partial_rollout=false"]).scenario
    assert waits.loop.asynchrony.at_update == "drain"
    key = "+actor_rollout_ref.model.override_config.attn_implementation="
    for words, older in ([], True), ([f"{key}flash_attention_3"], False), ([f"{key}sdpa"], True):
        assert import_config("verl", VERL / "fsdp.yaml", words).scenario.training_features.flash_attention_2 is older
    values = read_config("nemo-rl", NEMO / "async.yaml").values
    assert "moe_backend" not in values["policy"]["generation"]["vllm_kwargs"]
    assert "_override_" not in values["policy"]["generation"]["vllm_kwargs"]


@pytest.mark.parametrize("framework", ["slime", "areal"])
def test_a_batch_that_no_default_says_is_asked_for_by_its_key(framework: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as told:
        import_config(framework, written(tmp_path, "{}\n"), asked=Asked(model="qwen2.5-1.5b"))
    assert len(str(told.value)) < 400 and "as a scenario" not in str(told.value)


def test_overrides_set_add_and_delete_as_the_command_line_does() -> None:
    words = ["grpo.num_prompts_per_step=16", "+policy.nothing_known=3",
             "++policy.generation.vllm_kwargs.max_num_seqs=32", "~logger.wandb"]  # fmt: skip
    got = import_config("nemo-rl", NEMO / "base.yaml", words)
    assert got.scenario.workload.prompts_per_step == 16
    assert got.scenario.engine.max_running_sequences == 32
    assert got.scenario.trainer.global_batch_samples == 64  # it interpolates the number of prompts
    assert [account.key for account in got.accounting.of("not_understood")] == ["policy.nothing_known"]
    assert "NOT UNDERSTOOD: policy.nothing_known=3" in got.accounting.summary()
    assert not any(account.key.startswith("logger.wandb.") for account in got.accounting.keys)
    assert {account.origin for account in got.accounting.keys if account.key == "grpo.num_prompts_per_step"} == {
        "command line"
    }


@pytest.mark.parametrize(("words", "named"), [
    (["grpo.num_prompt_per_step=3"], "did you mean 'grpo.num_prompts_per_step'?"),
    (["~grpo.num_prompt_per_step"], "unknown key"),
    (["grpo.num_prompts_per_step"], "is not KEY=VALUE"),
    (["grpo.num_prompts_per_step=many"], "grpo.num_prompts_per_step: must be a whole number, got 'many'"),
    (["policy.generation.vllm_cfg.enforce_eager=perhaps"], "must be true or false"),
    (["policy.model_name=org/unheard-of"], "policy.model_name: 'org/unheard-of' has no model card; give --model"),
    (["policy.generation.backend=hf"], "policy.generation.backend: 'hf' is not simulated"),
    (["policy.max_total_sequence_length=${policy.train_micro_batch_size.x}"], "cannot be resolved"),
    (["policy.max_total_sequence_length=${eval:1}"], "needs the resolver 'eval'"),
])  # fmt: skip
def test_a_wrong_override_is_told_by_key(words: list[str], named: str) -> None:
    with pytest.raises(InputError) as error:
        import_config("nemo-rl", NEMO / "base.yaml", words)
    assert named in str(error.value) and str(error.value).count("\n") == 0


def test_a_misspelt_key_never_hides_and_a_configuration_without_rl_says_so(tmp_path: Path) -> None:
    text = "loss_fn: {force_on_policy_ratios: true, ratio_clip_max: 0.3}\npolicy: {model_name: Qwen/Qwen3-8B}\n"
    got = import_config("nemo-rl", written(tmp_path, text))
    (wrong,) = got.accounting.of("not_understood")
    assert (wrong.key, wrong.detail) == (
        "loss_fn.force_on_policy_ratios", "did you mean loss_fn.force_on_policy_ratio?",
    )  # fmt: skip
    with pytest.raises(InputError, match="force_on_policy_ratios"):
        import_config("nemo-rl", tmp_path / "config.yaml", strict=True)
    text = "policy: {model_name: Qwen/Qwen3-8B}\nrm: {val_batches: 2}\n"
    with pytest.raises(InputError, match="reward modelling"):
        import_config("nemo-rl", written(tmp_path, text))


def test_a_real_parent_beside_the_recipe_takes_the_place_of_the_shipped_tree(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "recipes").mkdir()
    written(tmp_path, "grpo: {num_prompts_per_step: 4}\npolicy: {model_name: Qwen/Qwen3-8B}\n", "grpo_math_1B.yaml")
    recipe = written(tmp_path / "recipes", "defaults: ../grpo_math_1B.yaml\ngrpo: {num_generations_per_prompt: 128}\n")
    got = import_config("nemo-rl", recipe)
    assert got.scenario.workload.prompts_per_step == 4 and not got.accounting.notes
    assert {account.origin for account in got.accounting.keys} == {
        str(recipe), str(recipe.parent / "../grpo_math_1B.yaml"),
    }  # fmt: skip


def test_hydra_groups_beside_the_file_are_laid_into_their_packages(tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    written(tmp_path / "actor", "defaults: [common, _self_]\nppo_mini_batch_size: 16\n", "dp_actor.yaml")
    written(tmp_path / "actor", "ppo_mini_batch_size: 32\nuse_dynamic_bsz: true\n", "common.yaml")
    text = (
        "defaults:\n  - ppo_trainer\n  - model_engine: dp\n  - actor@actor_rollout_ref.actor: ${model_engine}_actor\n"
        "  - optional nothing: here\n  - _self_\n"
        "data: {train_batch_size: 64}\nactor_rollout_ref: {model: {path: Qwen/Qwen3-8B}}\n"
    )
    got = import_config("verl", written(tmp_path, text))
    values = read_config("verl", tmp_path / "config.yaml").values
    assert values["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == 16
    assert got.scenario.trainer.micro_batch_tokens == 16384
    assert any("model_engine/dp.yaml is not there" in note for note in got.accounting.notes)


def test_guessed_values_fit_fall_when_stated_and_an_assumed_device_holds_the_layout() -> None:
    """A stated one is kept, though the trainer does not fit it."""
    words = ("actor_rollout_ref.model.path=Qwen/Qwen3-32B", "trainer.nnodes=1")
    assumed = import_config("verl", VERL / "verl_fsdp.yaml", words)
    assert assumed.scenario.hardware.name == "h200_sxm" and "too small for its layout" in assumed.text
    stated = import_config("verl", VERL / "verl_fsdp.yaml", words, Asked(hardware="h100_sxm"))
    assert stated.scenario.hardware.name == "h100_sxm"
    actor = "actor_rollout_ref.actor"
    words = (f"{actor}.ppo_max_token_len_per_gpu=700", f"{actor}.use_dynamic_bsz=true")
    found = import_config("verl", VERL / "verl_fsdp.yaml", words).scenario
    assert found.workload.response_tokens.mean_tokens < found.trainer.micro_batch_tokens
    assert import_config("nemo-rl", NEMO / "nemo_rl_dapo.yaml").scenario.workload.usable_group_share < 1
    path = NEMO / "async.yaml"
    assumed = {key for one in import_config("nemo-rl", path).scenario.assumptions for key in one.keys}
    assert {"hardware", "workload.response_tokens", "workload.prompt_tokens"} < assumed
    assert "speculation.first_acceptance" in assumed
    asked = Asked(
        hardware="h200_sxm", mean_prompt_tokens=50, mean_response_tokens=300.0, response_log_sigma=0.5,
        acceptance_length=2.5, model="qwen3-14b",
    )  # fmt: skip
    told = import_config("nemo-rl", path, asked=asked).scenario
    assert told.assumptions == () and told.hardware.name == "h200_sxm" and told.model.name == "Qwen3-14B"
    assert told.speculation.acceptance_length == 2.5


def test_drafters_of_one_pass_and_schedules_are_those_of_the_engine() -> None:
    drafts = "++policy.generation.vllm_kwargs.speculative_config."
    stated = ("method=dflash", "num_speculative_tokens=7", "draft_tensor_parallel_size=1",
              "num_speculative_tokens_per_batch_size=[[1,16,7],[17,64,0]]")  # fmt: skip
    speculation = import_config("nemo-rl", NEMO / "base.yaml", [drafts + one for one in stated]).scenario.speculation
    assert (speculation.method, speculation.draft_length, speculation.draft_tensor_parallel) == ("dflash", 7, 1)
    assert (speculation.policy, speculation.schedule) == ("by_schedule", ((1, 16, 7), (17, 64, 0)))
