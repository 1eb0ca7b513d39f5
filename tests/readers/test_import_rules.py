"""Rules of single frameworks: which GPUs a model has, what an unset key means, what a key counts."""

from pathlib import Path
from typing import Any

import pytest
from single_rules import expect_meaning, expect_return, imported

OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --actor.num_gpus_per_node 8 "
    "--vllm.num_engines 4 --vllm.tensor_parallel_size 2 --algo.advantage.estimator group_norm --train.batch_size 256 "
    "--rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --data.max_len 4096 --ref.num_nodes 1 "
    "--ref.num_gpus_per_node 8 "
)
OLD = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-8B --actor_num_gpus_per_node 8 --vllm_num_engines 4 "
    "--vllm_tensor_parallel_size 2 --advantage_estimator group_norm --train_batch_size 256 --n_samples_per_prompt 8 "
    "--rollout_batch_size 128 --prompt_max_len 1024 --generate_max_len 3072 --init_kl_coef 0 "
)
SLIME = (
    "python3 train.py --hf-checkpoint Qwen/Qwen3-8B --colocate --rollout-batch-size 32 --n-samples-per-prompt 8 "
    "--sglang-cuda-graph-max-bs 64 "
)
DRAFTS = (
    "--sglang-speculative-algorithm EAGLE3 --sglang-speculative-num-steps 3 --sglang-speculative-num-draft-tokens 8 "
)
PRIME = '[model]\nname = "{}"\n[deployment]\nnum_train_gpus = 4\nnum_infer_gpus = 4\n'
MOE = "seq_len = 4096\n" + PRIME.format("Qwen/Qwen3-30B-A3B")
ROLL = """
rollout_batch_size: 64
num_return_sequences_in_group: 8
adv_estimator: reinforce
init_kl_coef: 0
pretrain: Qwen/Qwen3-8B
actor_train:
  device_mapping: list(range(0,8))
  strategy_args: {strategy_name: megatron_train}
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 64}
actor_infer: {device_mapping: "list(range(0,8))"}
"""
SPLIT = {"cluster.generation": 8, "cluster.training": 8}
RULES: list[tuple[str, str, dict[str, Any]]] = [
    ("openrlhf", OPENRLHF + "--train.colocate_all",
     {"loop.mode": "sync", "cluster.num_gpus": 8, "cluster.colocated": True, "cluster.reference_gpus": 0}),
    ("openrlhf", OPENRLHF + "--train.colocate_all --train.async_enable --train.partial_rollout_enable",
     {**SPLIT, "loop.mode": "async", "loop.style": "openrlhf_partial", "cluster.reference_gpus": 0}),
    ("openrlhf", OPENRLHF, {**SPLIT, "loop.mode": "sync", "cluster.reference_gpus": 8, "cluster.num_gpus": 24}),
    ("openrlhf", OPENRLHF + "--train.colocate_actor_ref", {**SPLIT, "cluster.reference_gpus": 0}),
    ("openrlhf", OPENRLHF + "--algo.kl.init_coef 0", {**SPLIT, "cluster.reference_gpus": 0}),
    ("openrlhf", OLD, {**SPLIT, "workload.max_sequence_tokens": 4096, "workload.max_response_tokens": 3072,
                       "trainer.global_batch_samples": 256}),
    ("prime-rl", MOE, {"trainer.expert_parallel": 4}),
    ("prime-rl", f"{MOE}[trainer.model]\ndp_replicate = 2\n", {"trainer.expert_parallel": 2}),
    ("prime-rl", f"{MOE}[trainer.model]\nimpl = 'hf'\n", {"trainer.expert_parallel": 1}),
    ("prime-rl", PRIME.format("Qwen/Qwen3-8B"), {"trainer.expert_parallel": 1}),
    ("prime-rl", f"{MOE}[orchestrator.train.sampling]\nmax_completion_tokens = 4096\n",
     {"workload.prompt_tokens.tokens": 107}),
    ("slime", SLIME, {"engine.max_captured_tokens": 64, "engine.max_running_sequences": 512}),
    ("slime", SLIME + "--sglang-speculative-algorithm DFLASH --sglang-speculative-num-draft-tokens 16",
     {"engine.max_captured_tokens": 64 * 16, "speculation.method": "dflash", "speculation.draft_length": 15}),
    ("slime", SLIME + DRAFTS + "--sglang-speculative-eagle-topk 1 --sglang-server-concurrency 100",
     {"engine.max_captured_tokens": 64 * 4, "speculation.queries": 4, "engine.max_running_sequences": 48}),
    ("slime", SLIME + DRAFTS + "--sglang-speculative-eagle-topk 2 --sglang-max-running-requests 900",
     {"engine.max_captured_tokens": 64 * 8, "speculation.tree_width": 2, "speculation.queries": 8,
      "engine.max_running_sequences": 512}),
    ("slime", SLIME + "--prefill-num-servers 2", {"engine.prefill.gpus": 2}),
    ("slime", SLIME + "--sglang-cuda-graph-bs 1 2 4", {"engine.max_captured_tokens": 4}),
    ("roll", ROLL, {"policy_logprobs": False, "trainer.reference_logprobs": False}),
    ("roll", ROLL + "enable_old_logprobs_recompute: true", {"policy_logprobs": True}),
    ("roll", ROLL.replace("steps: 64", "steps: 32"), {"policy_logprobs": True}),
    ("roll", ROLL.replace("reinforce", "gigpo"), {"policy_logprobs": True}),
    ("roll", ROLL.replace("coef: 0", "coef: 0.1"), {"policy_logprobs": True, "trainer.reference_logprobs": True}),
    ("roll", ROLL.replace("reinforce", "gigpo") + "force_disable_old_logprobs_recompute: true",
     {"policy_logprobs": False}),
    ("roll", f"{ROLL}use_kl_loss: true\nenable_reference: false", {"trainer.reference_logprobs": True}),
    ("roll", ROLL.replace("_train}", "_train}\n  model_args: {ulysses_size: 2}").replace("megatron", "fsdp2"),
     {"trainer.context_parallel": 2, "trainer.global_batch_samples": 256}),
]  # fmt: skip
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("openrlhf", OPENRLHF, {"cluster.reference_gpus": 0, "cluster.num_gpus": 16}),
    ("openrlhf", OPENRLHF, {"cluster.reference_gpus": 4, "cluster.num_gpus": 20}),
    ("openrlhf", OPENRLHF + "--train.colocate_all --train.async_enable",
     {"cluster.num_gpus": 24, "cluster.generation_gpus": 16}),
    ("openrlhf", OPENRLHF + "--train.colocate_all",
     {"loop.mode": "async", "loop.style": "openrlhf", "cluster.num_gpus": 16, "cluster.generation_gpus": 8}),
    ("prime-rl", MOE, {"trainer.expert_parallel": 2}),
    ("slime", SLIME + DRAFTS + "--sglang-speculative-eagle-topk 1",
     {"engine.max_captured_tokens": 128, "engine.max_running_sequences": 600}),
    ("roll", ROLL, {"trainer.policy_logprobs": True}),
    ("roll", ROLL.replace("reinforce", "gigpo"), {"trainer.policy_logprobs": False}),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "text", "expected"), RULES)
def test_a_key_means_what_its_framework_makes_of_it(
    framework: str, text: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    expect_meaning(tmp_path, framework, text, expected)


@pytest.mark.parametrize(("framework", "text", "changes"), CHANGES)
def test_what_is_changed_is_written_and_read_back(
    framework: str, text: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    expect_return(tmp_path, framework, text, changes)


@pytest.mark.parametrize("flag", ["", "--train.colocate_all "])
def test_a_reward_model_is_told_as_not_simulated_unless_a_function_scores(flag: str, tmp_path: Path) -> None:
    text = f"{OPENRLHF}{flag}--reward.model_name_or_path Qwen/Qwen3-32B --reward.num_nodes 1 "
    for more, told in (("", 2), ("--reward.remote_url math.py", 0)):
        keys = [one.key for one in imported(tmp_path, "openrlhf", text + more).accounting.of("not_simulated")]
        assert len([key for key in keys if key.startswith("reward.")]) == told
