"""Configurations of NeMo-RL, verl and SkyRL as scenarios and back."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsim.cli.main import main
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.project import project
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.exporting import Exported, export_scenario
from rlsim.readers.frameworks.importing import Imported, import_config, read_config

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(CORPUS.glob("*.yaml"))
HOPPER = Asked(hardware="h100_sxm")
SECTIONS = ("cluster", "workload", "engine", "trainer", "loop", "speculation")
START = "defaults: grpo_math_1B.yaml\npolicy: {model_name: Qwen/Qwen3-8B}\n"


def framework_of(path: Path) -> str:
    return "nemo-rl" if path.name.startswith("nemo") else path.stem.split("_")[0]


def imported(path: Path, *words: str, asked: Asked = HOPPER) -> Imported:
    return import_config(framework_of(path), path, words, asked)


def written(tmp_path: Path, text: str, name: str = "nemo.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_corpus_imports_with_every_key_accounted_for_and_projects(path: Path) -> None:
    """Every key of the documented tables of NeMo-RL v0.7.0 and verl 1dda039b9 is in one of these files."""
    found = imported(path)
    assert not found.accounting.of("not_understood")
    statuses = {account.status for account in found.accounting.keys}
    assert statuses <= {"used", "irrelevant", "not_simulated"}
    answer = project(vary(found.scenario, {"simulation.replications": 1, "simulation.steps": 1}))
    assert answer.candidate.step_s.mean > 0
    assert found.scenario.assumptions


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_export_after_import_is_the_identity(path: Path) -> None:
    """On the user's file nothing is overridden; on the framework's base the overrides give the scenario again."""
    framework, found = framework_of(path), imported(path)
    same = export_scenario(found.scenario, framework, read_config(framework, path))
    assert (same.overrides, same.left) == ((), ())
    assert again(export_scenario(found.scenario, framework), path, found) == {
        section: getattr(found.scenario, section) for section in SECTIONS
    }


def again(exported: Exported, path: Path, found: Imported) -> dict[str, object]:
    """The sections of a scenario that is imported from an export's overrides alone."""
    framework = framework_of(path)
    base = {"nemo-rl": START, "verl": "defaults: [ppo_trainer, _self_]\n", "skyrl": "{}\n"}[framework]
    if framework == "verl" and found.scenario.loop.mode == "async":
        base = "defaults: [fully_async_ppo_trainer, _self_]\n"
    start = path.parent.parent / f"_{path.name}"
    start.write_text(base, encoding="utf-8")
    try:
        prompts = found.scenario.workload.prompt_tokens
        asked = Asked(
            hardware="h100_sxm",
            model=found.scenario.model.name.lower(),
            mean_prompt_tokens=getattr(prompts, "tokens", None),
            mean_response_tokens=getattr(found.scenario.workload.response_tokens, "mean_tokens", None),
        )
        other = import_config(framework, start, exported.overrides, asked).scenario
    finally:
        start.unlink()
    return {section: getattr(other, section) for section in SECTIONS}


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.sampled_from([16, 32, 64]), size=st.sampled_from([4, 8]), tensor=st.sampled_from([1, 2, 4]),
    lag=st.integers(0, 3), drafted=st.integers(0, 5), keep=st.booleans(),
)  # fmt: skip
def test_what_an_override_says_is_what_the_scenario_says(prompts, size, tensor, lag, drafted, keep):
    words = [
        f"grpo.num_prompts_per_step={prompts}", f"grpo.num_generations_per_prompt={size}",
        f"policy.train_global_batch_size={prompts * size}",
        f"policy.generation.vllm_cfg.tensor_parallel_size={tensor}",
    ]  # fmt: skip
    if lag:
        words += [
            "grpo.async_grpo.enabled=true", "grpo.async_grpo.in_flight_weight_updates=true",
            f"grpo.async_grpo.max_trajectory_age_steps={lag}",
            f"grpo.async_grpo.recompute_kv_cache_after_weight_updates={str(not keep).lower()}",
            "policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.num_nodes=2",
            "policy.generation.colocated.resources.gpus_per_node=8", "policy.generation.vllm_cfg.async_engine=true",
        ]  # fmt: skip
    if drafted:
        section = "++policy.generation.vllm_kwargs.speculative_config"
        words += [f"{section}.method=eagle3", f"{section}.num_speculative_tokens={drafted}"]
    found = imported(CORPUS / "nemo_rl_parent.yaml", *words)
    scenario = found.scenario
    assert (scenario.workload.prompts_per_step, scenario.workload.generations_per_prompt) == (prompts, size)
    assert scenario.engine.tensor_parallel == tensor
    assert (scenario.loop.mode, scenario.loop.lag) == (("async", lag) if lag else ("sync", 0))
    if lag:
        assert scenario.loop.asynchrony.at_update == ("keep" if keep else "recompute")
    assert scenario.speculation.draft_length == drafted
    tree = read_config("nemo-rl", CORPUS / "nemo_rl_parent.yaml", words)
    assert export_scenario(scenario, "nemo-rl", tree).overrides == ()


def test_a_plan_goes_back_as_few_overrides() -> None:
    path = CORPUS / "nemo_rl_parent.yaml"
    better = vary(imported(path).scenario, {"engine.tensor_parallel": 4, "trainer.tensor_parallel": 4})
    found = export_scenario(better, "nemo-rl", read_config("nemo-rl", path))
    assert set(found.overrides) == {
        "policy.generation.vllm_cfg.tensor_parallel_size=4",
        "policy.megatron_cfg.tensor_model_parallel_size=4",
    }
    assert "tensor_parallel_size: 4" in found.config


def test_what_no_configuration_says_is_assumed_or_asked() -> None:
    path = CORPUS / "verl_fsdp.yaml"
    assumed = imported(path).scenario
    assert any("--mean-response-tokens" in one.text for one in assumed.assumptions)
    asked = imported(path, asked=Asked(hardware="h200_sxm", mean_response_tokens=900.0)).scenario
    assert asked.hardware.name == "h200_sxm"
    assert getattr(asked.workload.response_tokens, "mean_tokens", None) == 900.0
    assert not any("--mean-response-tokens" in one.text for one in asked.assumptions)


def test_an_assumed_device_holds_the_layout() -> None:
    """A stated one is kept, though the trainer does not fit it."""
    large = ("actor_rollout_ref.model.path=Qwen/Qwen3-32B", "trainer.nnodes=1")
    path = CORPUS / "verl_fsdp.yaml"
    assert imported(path, *large, asked=Asked()).scenario.hardware.name == "h200_sxm"
    assert "too small for its layout" in imported(path, *large, asked=Asked()).text
    assert imported(path, *large).scenario.hardware.name == "h100_sxm"


def test_a_guessed_length_fits_a_packed_micro_batch() -> None:
    path = CORPUS / "verl_fsdp.yaml"
    tokens = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=700"
    found = imported(path, tokens, "actor_rollout_ref.actor.use_dynamic_bsz=true").scenario
    mean = getattr(found.workload.response_tokens, "mean_tokens", None)
    assert mean is not None and mean < found.trainer.micro_batch_tokens


def test_a_file_of_another_kind_is_recognised(tmp_path: Path) -> None:
    nemo = written(tmp_path, "grpo: {num_prompts_per_step: 8}\npolicy: {generation: {backend: vllm}}\n")
    with pytest.raises(InputError, match="rlsim import nemo-rl"):
        import_config("verl", nemo, ("data.train_batch_size=8",), HOPPER)
    tuning = written(tmp_path, START + "sft: {val_batches: 2}\n")
    with pytest.raises(InputError, match="supervised fine-tuning"):
        import_config("nemo-rl", tuning, (), HOPPER)


def test_modes_of_the_frameworks_are_their_styles() -> None:
    loop = imported(CORPUS / "verl_fully_async.yaml").scenario.loop
    assert (loop.style, loop.staleness_fraction, loop.update_every) == ("verl", 0.5, 4)
    loop = imported(CORPUS / "nemo_rl_async.yaml").scenario.loop
    assert (loop.style, loop.policy_lag, loop.asynchrony.at_update) == ("nemo_rl", 2, "recompute")
    assert imported(CORPUS / "nemo_rl_dapo.yaml").scenario.workload.usable_group_share < 1


def test_unknown_keys_never_pass_silently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, START + "grpo: {num_prompt_per_step: 8}\nsurprise: {x: 1}\n")
    found = import_config("nemo-rl", path, (), HOPPER)
    told = {account.key: account.detail for account in found.accounting.of("not_understood")}
    assert set(told) == {"grpo.num_prompt_per_step", "surprise.x"}
    assert "num_prompts_per_step" in told["grpo.num_prompt_per_step"]
    with pytest.raises(InputError, match=r"num_prompt_per_step.*are not understood"):
        import_config("nemo-rl", path, (), HOPPER, strict=True)
    with pytest.raises(SystemExit) as end:
        main(["import", "nemo-rl", str(path), "--hardware", "h100_sxm", "-o", str(tmp_path / "out.yaml")])
    assert not end.value.code
    assert "NOT UNDERSTOOD" in capsys.readouterr().err
    assert load_scenario(tmp_path / "out.yaml").model.name == "Qwen3-8B"


def test_the_command_line_prints_json_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["import", "verl", str(CORPUS / "verl_fsdp.yaml"), "trainer.nnodes=8", "--hardware", "h100_sxm", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["accounting"]["counts"]["not_understood"] == 0
    assert "num_gpus: 64" in answer["scenario"]
    with pytest.raises(SystemExit):
        main(["export", "quickstart", "--to", "verl", "--out", str(tmp_path / "verl")])
    words = capsys.readouterr().out.split()
    assert (tmp_path / "verl" / "overrides.txt").read_text(encoding="utf-8").split() == words
    assert "actor_rollout_ref.rollout.n=" in " ".join(words)


HOSTILE = {
    "defaults: ../../../../etc/passwd\n": "outside|no .yaml|is not there",
    "defaults: /etc/hosts.yaml\n": "outside|is not there",
    "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)) + START: "",
    START + "x: !!python/object/apply:os.system ['true']\n": "",
    START + "grpo: {num_prompts_per_step: '${grpo.num_generations_per_prompt}', "
    "num_generations_per_prompt: '${grpo.num_prompts_per_step}'}\n": "",
    START + "grpo: {num_prompts_per_step: many}\n": "num_prompts_per_step",
    "policy: {model_name: nobody/nothing}\n": "model",
    "[1, 2]\n": "",
    "": "",
}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_end_with_one_message(tmp_path: Path, text: str) -> None:
    path, began = written(tmp_path, text), time.process_time()
    with pytest.raises(InputError) as error:
        import_config("nemo-rl", path, (), HOPPER)
    assert "\n" not in str(error.value)
    if HOSTILE[text]:
        assert error.match(HOSTILE[text])
    assert time.process_time() - began < 20


def test_files_that_inherit_in_a_circle_are_told(tmp_path: Path) -> None:
    written(tmp_path, "defaults: b.yaml\n", "a.yaml")
    written(tmp_path, "defaults: a.yaml\n", "b.yaml")
    with pytest.raises(InputError, match=r"a\.yaml|b\.yaml"):
        import_config("nemo-rl", tmp_path / "a.yaml", (), HOPPER)


def test_a_line_of_a_hundred_megabytes_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"x: {'y' * 100_000_000}\n")
    with pytest.raises(InputError):
        import_config("nemo-rl", path, (), HOPPER)
