"""Rules of trl, AReaL, prime-rl and verl: defaults that differ by algorithm, bounds of agents, layouts of launchers."""

from pathlib import Path
from typing import Any

import pytest
from single_rules import expect_meaning, expect_return

GRPO = (
    "accelerate launch --num_processes 8 {}.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 "
)
TRL, RLOO = GRPO.format("train_grpo"), GRPO.format("examples/scripts/rloo")
AREAL = """
cluster: {n_nodes: 1, n_gpus_per_node: 8}
rollout: {backend: "sglang:d4", max_head_offpolicyness: 2}
gconfig: {n_samples: 4, max_new_tokens: 1024, max_tokens: 8192}
actor: {backend: "fsdp:d4", path: Qwen/Qwen3-4B, ppo_n_minibatches: 2, kl_ctl: 0.0}
train_dataset: {batch_size: 64, max_length: 512}
"""
AGENT = AREAL.replace("ness: 2}", "ness: 2, agent: {mode: inline, engine_max_tokens: '${gconfig.max_tokens}'}}")
LAST = "kl_ctl: 0.0"
VERL = (
    "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8 "
    "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.name=vllm "
)
VLLM = AREAL.replace("sglang:", "vllm:")
PRIME = """
seq_len = 8192
model = {name = "Qwen/Qwen3-4B"}
deployment = {num_train_gpus = 4, num_infer_gpus = 4}
inference.vllm = {}
"""
LORA = "[trainer.model.lora]\n"
GLM = """
seq_len = 32768
trainer.model = {name = "zai-org/GLM-5", ep = 8}
deployment = {type = "multi_node", num_train_nodes = 16, num_infer_replicas = 2}
inference.deployment = {type = "disaggregated", prefill_nodes_per_replica = 4, decode_nodes_per_replica = 4}
[inference.vllm]
model = "zai-org/GLM-5-FP8"
"""
APART = 'type = "disaggregated", prefill_nodes_per_replica = 4, decode_nodes_per_replica = 4'
WIDE = GLM.replace(APART, 'type = "multi_node", num_nodes = 4') + "enable_expert_parallel = true\n"
RULES: list[tuple[str, str, dict[str, Any]]] = [
    ("trl", TRL + "--use_vllm", {"cluster.colocated": True, "engine.max_batched_tokens": 4096, "policy_logprobs": True,
                                 "workload.max_response_tokens": 512, "workload.generations_per_prompt": 8}),
    ("trl", TRL + "--use_vllm --vllm_mode server", {"cluster.generation": 1, "engine.max_batched_tokens": None}),
    ("trl", TRL + "--use_vllm --vllm_importance_sampling_correction false", {"policy_logprobs": False}),
    ("trl", TRL + "--generation_batch_size 128", {"policy_logprobs": True, "workload.prompts_per_step": 16}),
    ("trl", TRL, {"policy_logprobs": False, "trainer.reference_logprobs": False, "trainer.fused_kernels": False}),
    ("trl", TRL + "--use_liger_kernel", {"trainer.fused_kernels": True}),
    ("verl", VERL, {"trainer.fused_kernels": False}),
    ("verl", VERL + "actor_rollout_ref.model.use_liger=True", {"trainer.fused_kernels": True}),
    ("verl", VERL, {"trainer.logits_bytes": 4}),
    ("verl", VERL + "actor_rollout_ref.actor.entropy_coeff=0.001", {"trainer.logits_bytes": 10}),
    ("trl", RLOO, {"policy_logprobs": True, "trainer.reference_logprobs": True, "workload.generations_per_prompt": 2,
                   "workload.prompts_per_step": 32}),
    ("trl", RLOO + "--beta 0 --num_generations 4",
     {"policy_logprobs": True, "trainer.reference_logprobs": False, "workload.generations_per_prompt": 4}),
    ("areal", AREAL, {"workload.max_sequence_tokens": 1536, "engine.prefix_caching": False, "workload.agent": None,
                      "policy_logprobs": False, "trainer.micro_batch_tokens": 32 * (107 + 512)}),
    ("areal", AREAL.replace("8192", "1200"), {"workload.max_sequence_tokens": 1200}),
    ("areal", AREAL.replace(LAST, "mb_spec: {n_mbs: 8}"), {"trainer.micro_batch_tokens": 4 * (107 + 512)}),
    ("areal", AREAL + "sglang: {disable_radix_cache: false}", {"engine.prefix_caching": True}),
    ("areal", VLLM, {"engine.prefix_caching": False}),
    ("areal", VLLM + "vllm: {no_enable_prefix_caching: false}", {"engine.prefix_caching": True}),
    ("areal", AGENT + "econfig: {max_steps: 50}",
     {"workload.max_sequence_tokens": 8192, "workload.max_response_tokens": 1024, "workload.agent.max_turns": 50}),
    ("areal", AREAL + "max_tokens_per_trajectory: 4096", {"workload.max_sequence_tokens": 4096}),
    ("areal", AREAL.replace(LAST, "use_decoupled_loss: true, prox_logp_method: metrics"), {"policy_logprobs": True}),
    ("areal", AREAL.replace(LAST, "use_decoupled_loss: true, recompute_logprob: true, prox_logp_method: loglinear"),
     {"policy_logprobs": False}),
    ("areal", AREAL.replace(LAST, "recompute_logprob: true, prox_logp_method: loglinear"), {"policy_logprobs": True}),
    ("prime-rl", PRIME, {"loop.refit_method": "auto", "loop.refit_precision": "bf16", "trainer.lora_rank": None}),
    ("prime-rl", PRIME + LORA, {"loop.refit_method": "disk", "trainer.lora_rank": 16}),
    ("prime-rl", PRIME + "[weight_broadcast]\ntype = 'filesystem'", {"loop.refit_method": "disk"}),
    ("prime-rl", GLM + "[weight_broadcast]\ntype = 'nccl'\nquantize_in_weight_transfer = true",
     {"model.name": "GLM-5", "engine.weight_precision": "fp8_block", "engine.tensor_parallel": 32,
      "engine.attention_data_parallel": 32, "engine.expert_parallel": 32, "cluster.generation": 128,
      "loop.refit_precision": "engine"}),
    ("prime-rl", GLM, {"engine.prefill.gpus": 64, "engine.prefill.tensor_parallel": 32,
                       "engine.prefill.expert_parallel": 32, "cluster.generation": 128}),
    ("prime-rl", GLM + "enable_expert_parallel = false",
     {"engine.prefill.tensor_parallel": 1, "engine.prefill.expert_parallel": None, "engine.tensor_parallel": 1,
      "engine.expert_parallel": 1}),
    ("areal", VLLM + "vllm: {quantization: awq}", {"engine.weight_precision": "int4"}),
    ("areal", VLLM + "vllm: {quantization: gptq_marlin}", {"engine.weight_precision": "int4"}),
    ("prime-rl", WIDE + "tensor_parallel_size = 2",
     {"engine.tensor_parallel": 32, "engine.attention_data_parallel": 16, "cluster.generation": 64}),
]  # fmt: skip
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("areal", AGENT, {"workload.max_sequence_tokens": 16384}),
    ("areal", AREAL, {"workload.max_sequence_tokens": 10240}),
    ("areal", AREAL + "max_tokens_per_trajectory: 4096", {"workload.max_response_tokens": 640}),
    ("prime-rl", PRIME + LORA, {"trainer.lora_rank": 64}),
    ("prime-rl", GLM, {"trainer.expert_parallel": 16}),
]


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
