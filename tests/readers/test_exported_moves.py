"""What users of a framework can do of the moves: options that make them, other programs, or the reason why not."""

from pathlib import Path

import pytest

from rlsim.loading.scenario import vary
from rlsim.projection.moves import move_named
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.readers.frameworks.importing import import_config, read_config
from rlsim.readers.frameworks.trees import ConfigTree
from rlsim.schema.scenario import Scenario

ASKED = Asked(hardware="h100_sxm", mean_prompt_tokens=100, mean_response_tokens=500.0, response_log_sigma=0.8)
SPLIT = {"generation_share": 0.5}
CONFIGS = {
    "verl": (
        "run.sh",
        "python3 -m verl.trainer.main_ppo data.train_batch_size=64 data.max_prompt_length=512 "
        "data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.n=8 "
        "actor_rollout_ref.model.use_remove_padding=true actor_rollout_ref.rollout.name=vllm "
        "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_dynamic_bsz=true "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1 trainer.n_gpus_per_node=8 trainer.nnodes=1\n",
    ),
    "skyrl": (
        "run.sh",
        "python -m skyrl.train.entrypoints.main_base trainer.placement.policy_num_gpus_per_node=8 "
        "generator.inference_engine.num_engines=8 trainer.policy.model.path=Qwen/Qwen2.5-1.5B-Instruct "
        "generator.batched=true\n",
    ),
    "skyrl split": (
        "run.sh",
        "python -m examples.train.fully_async.main_fully_async trainer.placement.policy_num_gpus_per_node=4 "
        "trainer.placement.ref_num_gpus_per_node=4 trainer.placement.colocate_all=false "
        "generator.inference_engine.num_engines=4 trainer.policy.model.path=Qwen/Qwen2.5-1.5B-Instruct "
        "trainer.fully_async.enabled=true\n",
    ),
    "skyrl megatron": (
        "run.sh",
        "python -m skyrl.train.entrypoints.main_base trainer.placement.policy_num_gpus_per_node=8 "
        "generator.inference_engine.num_engines=8 trainer.policy.model.path=Qwen/Qwen3-8B trainer.strategy=megatron\n",
    ),
    "slime": (
        "run.sh",
        "python3 train.py --hf-checkpoint Qwen/Qwen3-4B --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate "
        "--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 4096 --global-batch-size 256 "
        "--use-dynamic-batch-size --max-tokens-per-gpu 8192 --rollout-num-gpus-per-engine 2\n",
    ),
    "swift": (
        "run.sh",
        "megatron rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B --num_generations 8 --global_batch_size 64 "
        "--max_completion_length 1024 --max_length 512 --use_vllm true --vllm_mode colocate\n",
    ),
    "nemo-rl": (
        "run.yaml",
        "defaults: grpo_math_1B.yaml\npolicy: {model_name: Qwen/Qwen2.5-1.5B}\n"
        "cluster: {gpus_per_node: 8, num_nodes: 2}\n",
    ),
}  # fmt: skip


def imported(name: str, folder: Path) -> tuple[str, Scenario, ConfigTree]:
    framework, (file, text) = name.split()[0], CONFIGS[name]
    (folder / file).write_text(text)
    return framework, import_config(framework, folder / file, asked=ASKED).scenario, read_config(
        framework, folder / file
    )  # fmt: skip


OPTIONS = [
    ("verl", "async_first_done", SPLIT, ["trainer.v1.trainer_mode=separate_async", "parameter_sync_step=2",
                                         "checkpoint_engine.backend=nccl", "actor_rollout_ref.rollout.nnodes=1"]),
    ("verl", "async_lag2", SPLIT, ["trainer.v1.separate_async.num_warmup_batches=2"]),
    ("verl", "partial_rollouts", {}, ["trainer.v1.trainer_mode=colocate_async"]),
    ("skyrl", "least_loaded", {}, ["router_init_kwargs.policy=sticky_least_loaded", "generator.batched=false"]),
    ("skyrl", "larger_graphs", {}, ["engine_init_kwargs.max_cudagraph_capture_size="]),
    ("skyrl split", "reference_pool", {}, ["trainer.placement.colocate_policy_ref=false", "ref_num_gpus_per_node=1"]),
    ("skyrl split", "other_split", {}, ["policy_num_gpus_per_node=6", "ref_num_gpus_per_node=6"]),
    ("skyrl megatron", "fp8_training", {}, ["transformer_config_kwargs.fp8=hybrid"]),
    ("slime", "fp8_training", {}, ["--fp8-format e4m3", "--fp8-recipe blockwise"]),
    ("slime", "no_offload", {}, ["--no-offload-train"]),
    ("swift", "fp8_training", {}, ["--fp8_format hybrid"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "move", "more", "words"), OPTIONS)
def test_a_move_that_a_framework_has_options_for_is_written(
    name: str, move: str, more: dict[str, float], words: list[str], tmp_path: Path
) -> None:
    framework, scenario, base = imported(name, tmp_path)
    assert not move_named(move).missing(scenario)
    wanted = vary(scenario, {**move_named(move).ways(scenario)[0], **more})
    answer = export_scenario(wanted, framework, base)
    assert answer.left == ()
    assert [word for word in words if word not in " ".join(answer.overrides)] == []


PROGRAMS = [
    ("verl", "async_in_order", SPLIT, "verl.experimental.one_step_off_policy.main_ppo"),
    ("skyrl", "async_first_done", SPLIT, "examples.train.fully_async.main_fully_async"),
    ("slime", "partial_rollouts", {}, "--partial-rollout"),
    ("nemo-rl", "async_first_done", SPLIT, "examples/run_grpo_single_controller.py"),
]


@pytest.mark.parametrize(("name", "move", "more", "program"), PROGRAMS)
def test_a_loop_that_another_program_runs_is_told_in_one_line(
    name: str, move: str, more: dict[str, float], program: str, tmp_path: Path
) -> None:
    framework, scenario, base = imported(name, tmp_path)
    wanted = vary(scenario, {**move_named(move).ways(scenario)[0], **more})
    left = export_scenario(wanted, framework, base).left
    (told,) = [line for line in left if line.startswith(("loop.", "cluster.generation_gpus"))]
    keys, _, by = told.partition(f": {framework} does so by ")
    assert "loop." in keys and program in by


LACKING = {
    "verl": ["tail_batching", "shared_queue", "reference_pool", "migration", "fast_refit", "fp8_training"],
    "skyrl": ["reference_pool", "partial_rollouts", "tail_batching", "streaming", "shared_queue", "migration",
              "fused_kernels", "fast_refit", "fp8_training"],
    "slime": ["async_first_done", "async_lag2", "tail_batching", "streaming", "shared_queue", "reference_pool",
              "migration", "fast_refit"],
}  # fmt: skip


@pytest.mark.parametrize("name", LACKING)
def test_a_move_that_a_framework_cannot_make_says_what_it_does(name: str, tmp_path: Path) -> None:
    framework, imports, _ = imported(name, tmp_path)
    scenario = vary(imports, {"trainer.reference_logprobs": True})
    for move in map(move_named, LACKING[name]):
        kinds = (framework, f"{framework} {scenario.trainer.backend}", f"{framework} shared")
        assert move.missing(scenario) in [move.lacking.get(kind) for kind in kinds], move.name
        # A stack of servers names no framework: nothing is known of it.
        assert move.missing(vary(scenario, "stack=servers")) not in move.lacking.values()


def test_an_option_for_a_backend_alone_is_lacking_for_the_other(tmp_path: Path) -> None:
    _, scenario, _ = imported("skyrl", tmp_path)
    assert "Megatron-Core alone" in move_named("fp8_training").missing(scenario)
    _, scenario, _ = imported("skyrl megatron", tmp_path)
    assert not move_named("fp8_training").missing(scenario)


def test_an_order_of_prompts_that_no_option_says_is_told(tmp_path: Path) -> None:
    framework, scenario, base = imported("nemo-rl", tmp_path)
    wanted = vary(scenario, move_named("tail_batching").ways(scenario)[0])
    assert [line for line in export_scenario(wanted, framework, base).left if "workload.tail_batching" in line]
