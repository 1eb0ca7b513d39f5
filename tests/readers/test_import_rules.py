"""Rules of single frameworks: which GPUs a model has, what an unset key means, what a key counts, bounds of agents."""

from pathlib import Path
from typing import Any

import pytest
from single_rules import expect_meaning, expect_return, imported, written

from rlsim.loading.scenario import vary
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.readers.frameworks.importing import import_config, read_config

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
SHARED = (
    ROLL.replace("Qwen3-8B", "Qwen3-30B-A3B")
    .replace("{", "{{")
    .replace("}", "}}")
    .replace("megatron_train}}", "megatron_train, strategy_config: {{tensor_model_parallel_size: 2{more}}}}}")
)
SPLIT = {"cluster.generation": 8, "cluster.training": 8}
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


def areal(train: str, actor: str) -> str:
    """The recipe with another trainer and more of its options."""
    return AREAL.replace("fsdp:d4", train).replace(LAST, f"{LAST}, {actor}" if actor != LAST else LAST)


VERL = (
    "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8 "
    "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.name=vllm "
)
VERL_SFT = (
    "count=$1\ntorchrun --nnodes=1 --nproc_per_node=${count} -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-8B "
    "data.micro_batch_size_per_gpu=4 engine=fsdp engine.ulysses_sequence_parallel_size=2 engine.use_mbridge=True "
)
VERL_LORA = VERL + "actor_rollout_ref.model.lora_rank=32 "
MERGED = VERL_LORA + "+actor_rollout_ref.model.lora.merge=True "
SKYRL = (
    "python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-4B trainer.strategy={} "
    "trainer.policy.model.lora.rank=16 trainer.placement.policy_num_gpus_per_node=8 "
    "generator.inference_engine.num_engines=8 generator.inference_engine.tensor_parallel_size=1 "
)
APPLIED = SKYRL.format("megatron") + "trainer.policy.megatron_config.lora_config.merge_lora=false "
VLLM = AREAL.replace("sglang:", "vllm:")
PRIME_VLLM = """
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
    ("openrlhf", OPENRLHF + "--train.colocate_all",
     {"loop.mode": "sync", "cluster.num_gpus": 8, "cluster.colocated": True, "cluster.reference_gpus": 0}),
    ("openrlhf", OPENRLHF + "--train.colocate_all --train.async_enable --train.partial_rollout_enable",
     {**SPLIT, "loop.mode": "async", "loop.style": "openrlhf_partial", "cluster.reference_gpus": 0}),
    ("openrlhf", OPENRLHF, {**SPLIT, "loop.mode": "sync", "cluster.reference_gpus": 8, "cluster.num_gpus": 24}),
    ("openrlhf", OPENRLHF + "--train.colocate_actor_ref", {**SPLIT, "cluster.reference_gpus": 0}),
    ("openrlhf", OPENRLHF + "--algo.kl.init_coef 0", {**SPLIT, "cluster.reference_gpus": 0}),
    ("openrlhf", OPENRLHF + "--train.async_enable --rollout.vllm_generate_batch_size 192",
     {"loop.mode": "async", "workload.generated_batch_factor": 1.5}),
    ("openrlhf", OLD, {**SPLIT, "workload.max_sequence_tokens": 4096, "workload.max_response_tokens": 3072,
                       "trainer.global_batch_samples": 256}),
    ("prime-rl", MOE, {"trainer.expert_parallel": 4}),
    ("prime-rl", f"{MOE}[trainer.model]\ndp_replicate = 2\n", {"trainer.expert_parallel": 2}),
    ("prime-rl", f"{MOE}[trainer.model]\nimpl = 'hf'\n", {"trainer.expert_parallel": 1}),
    ("prime-rl", PRIME.format("Qwen/Qwen3-8B"), {"trainer.expert_parallel": 1}),
    ("prime-rl", f"{MOE}[orchestrator.train.sampling]\nmax_completion_tokens = 4096\n",
     {"workload.prompt_tokens.tokens": 107}),
    ("slime", SLIME, {"engine.max_captured_tokens": 64, "engine.max_running_sequences": 512}),
    ("slime", SLIME + "--over-sampling-batch-size 48", {"workload.generated_batch_factor": 1.5}),
    ("slime", SLIME + "--sglang-speculative-algorithm DFLASH --sglang-speculative-num-draft-tokens 16",
     {"engine.max_captured_tokens": 64 * 16, "speculation.method": "dflash", "speculation.draft_length": 15}),
    ("slime", SLIME + DRAFTS + "--sglang-speculative-eagle-topk 1 --sglang-server-concurrency 100",
     {"engine.max_captured_tokens": 64 * 4, "speculation.queries": 4, "engine.max_running_sequences": 48}),
    ("slime", SLIME + DRAFTS + "--sglang-speculative-eagle-topk 2 --sglang-max-running-requests 900",
     {"engine.max_captured_tokens": 64 * 8, "speculation.tree_width": 2, "speculation.queries": 8,
      "engine.max_running_sequences": 512}),
    ("roll", SHARED.format(more=""), {"trainer.sequence_parallel": False}),
    ("roll", SHARED.format(more=", sequence_parallel: true"), {"trainer.sequence_parallel": True}),
    ("roll", SHARED.format(more=", expert_model_parallel_size: 4"), {"trainer.sequence_parallel": True}),
    ("slime", SLIME, {"policy_logprobs": False}),
    ("slime", SLIME + "--num-steps-per-rollout 2", {"policy_logprobs": True}),
    ("slime", SLIME + "--kl-coef 0.1", {"policy_logprobs": True}),
    ("slime", SLIME + "--use-kl-loss", {"policy_logprobs": False}),
    ("slime", SLIME + "--num-steps-per-rollout 2 --use-rollout-logprobs", {"policy_logprobs": False}),
    ("slime", SLIME + "--use-rollout-logprobs --get-mismatch-metrics", {"policy_logprobs": True}),
    ("miles", SLIME, {"policy_logprobs": True}),
    ("miles", SLIME + "--skip-actor-forward-only", {"policy_logprobs": False}),
    ("slime", SLIME + "--sglang-chunked-prefill-size 4096 --sglang-enable-mixed-chunk",
     {"engine.max_batched_tokens": 4096, "engine.chunked_prefill": True}),
    ("slime", SLIME + "--tensor-model-parallel-size 2 --use-precision-aware-optimizer --exp-avg-dtype fp16",
     {"trainer.sequence_parallel": False, "trainer.gradient_overlap": False,
      "trainer.optimizer_bytes_per_parameter": 8.0}),
    ("slime", SLIME + "--tensor-model-parallel-size 2 --sequence-parallel --use-precision-aware-optimizer "
     "--optimizer-cpu-offload --recompute-granularity selective --recompute-modules mlp moe",
     {"trainer.sequence_parallel": True, "trainer.optimizer_bytes_per_parameter": 12.0,
      "trainer.recompute_modules": ("mlp", "moe")}),
    ("prime-rl", PRIME_VLLM, {"trainer.activations_on_host": True, "engine.max_batched_tokens": None}),
    ("prime-rl", PRIME_VLLM.replace("vllm = {}", "vllm = {max_num_batched_tokens = 4096, kv_cache_dtype = 'fp8'}")
     + "[trainer.model]\nac_offloading = 'None'\n",
     {"trainer.activations_on_host": False, "engine.max_batched_tokens": 4096, "engine.kv_precision": "fp8"}),
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
    ("trl", TRL + "--use_vllm", {"cluster.colocated": True, "engine.max_batched_tokens": 4096, "policy_logprobs": True,
                                 "workload.max_response_tokens": 512, "workload.generations_per_prompt": 8}),
    ("trl", TRL + "--use_vllm --vllm_mode server", {"cluster.generation": 1, "engine.max_batched_tokens": None}),
    ("trl", TRL + "--use_vllm --vllm_importance_sampling_correction false", {"policy_logprobs": False}),
    ("trl", TRL + "--generation_batch_size 128", {"policy_logprobs": True, "workload.prompts_per_step": 16}),
    ("trl", TRL, {"policy_logprobs": False, "trainer.reference_logprobs": False, "trainer.fused_kernels": False}),
    ("trl", TRL + "--use_liger_kernel", {"trainer.fused_kernels": True}),
    ("verl", VERL, {"trainer.fused_kernels": False}),
    ("verl", VERL + "actor_rollout_ref.model.use_liger=True", {"trainer.fused_kernels": True}),
    # Four GPUs of workers may be half a node; a GB200's tray is what two of them are, or what a node is said to have.
    ("skyrl", SKYRL.format("fsdp").replace("=8", "=4"), {"cluster.num_gpus": 4, "hardware.name": "h100_sxm"}),
    ("skyrl", SKYRL.format("fsdp").replace("node=8", "node=4 trainer.placement.policy_num_nodes=2"),
     {"cluster.num_gpus": 8, "hardware.name": "gb200_nvl72"}),
    ("slime", SLIME + "--actor-num-gpus-per-node 4", {"cluster.num_gpus": 4, "hardware.name": "h100_sxm"}),
    ("slime", SLIME.replace("--colocate", "--rollout-num-gpus 4") + "--actor-num-gpus-per-node 4",
     {"cluster.num_gpus": 8, "hardware.name": "h100_sxm"}),
    ("slime", SLIME + "--actor-num-gpus-per-node 4 --num-gpus-per-node 4", {"hardware.name": "gb200_nvl72"}),
    ("openrlhf", OPENRLHF.replace("actor.num_gpus_per_node 8", "actor.num_gpus_per_node 4"),
     {"cluster.training": 4, "hardware.name": "h100_sxm"}),
    ("roll", ROLL + "num_gpus_per_node: 4", {"hardware.name": "gb200_nvl72"}),
    ("verl", VERL.replace("=8 ", "=4 ").replace("8B", "4B"), {"cluster.num_gpus": 4, "hardware.name": "h100_sxm"}),
    ("verl", VERL_LORA, {"trainer.lora_rank": 32, "engine.lora_rank": None, "released_engine.lora_rank": 32}),
    ("verl", MERGED, {"trainer.lora_rank": 32, "released_engine.lora_rank": 0}),
    ("skyrl", SKYRL.format("megatron"), {"trainer.lora_rank": 16, "released_engine.lora_rank": None}),
    ("skyrl", SKYRL.format("fsdp"), {"trainer.lora_rank": 16, "released_engine.lora_rank": 16}),
    ("skyrl", APPLIED, {"trainer.lora_rank": 16, "released_engine.lora_rank": 16}),
    ("verl", VERL, {"trainer.optimizer_bytes_per_parameter": 12}),
    ("verl", VERL + "+actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16",
     {"trainer.optimizer_bytes_per_parameter": 4}),
    ("verl", VERL, {"trainer.logits_bytes": 4}),
    ("verl", VERL + "actor_rollout_ref.actor.entropy_coeff=0.001", {"trainer.logits_bytes": 10}),
    ("trl", RLOO, {"policy_logprobs": True, "trainer.reference_logprobs": True, "workload.generations_per_prompt": 2,
                   "workload.prompts_per_step": 32}),
    ("trl", RLOO + "--beta 0 --num_generations 4",
     {"policy_logprobs": True, "trainer.reference_logprobs": False, "workload.generations_per_prompt": 4}),
    ("openrlhf", OPENRLHF.replace("Qwen3-8B", "Qwen3-30B-A3B") + "--actor.optim muon --ds.experts_implementation eager",
     {"trainer.optimizer": "muon", "trainer.expert_products": "loop", "trainer.frozen_vision": False}),
    ("openrlhf", OPENRLHF + "--actor.freeze_visual_encoder --ds.experts_implementation deepgemm",
     {"trainer.optimizer": "adam", "trainer.expert_products": "grouped", "trainer.frozen_vision": True}),
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
    ("verl", VERL_SFT, {"trainer.tensor_parallel": 1, "trainer.context_parallel": 2, "cluster.num_gpus": 8}),
    ("verl", VERL_SFT.replace("$1", "4"), {"cluster.num_gpus": 4}),
    # FSDP's weights and moments are of actor.dtype, Megatron-Core's options count under it alone.
    ("areal", AREAL, {"trainer.optimizer_bytes_per_parameter": 4.0, "trainer.recompute": "none",
                      "trainer.virtual_stages": 1, "engine.max_batched_tokens": 32768,
                      "engine.chunked_prefill": False, "loop.refit_method": "auto"}),
    ("areal", areal("fsdp:d4", "dtype: float32, megatron: {fp8_config: {}}, weight_update_mode: disk"),
     {"trainer.optimizer_bytes_per_parameter": 12.0, "trainer.precision": "bf16", "loop.refit_method": "disk"}),
    ("areal", areal("fsdp:d4", "fsdp: {per_layer_optim_step: true}, grad_reduce_dtype: bfloat16"),
     {"trainer.optimizer_on_host": True, "trainer.optimizer_step": "device", "trainer.gradient_precision": "bf16"}),
    ("areal", areal("megatron:d4", "gradient_checkpointing: true"),
     {"trainer.recompute": "full", "trainer.gradient_overlap": False, "trainer.zero_stage": None,
      "trainer.gradient_precision": "fp32", "trainer.optimizer_bytes_per_parameter": 12.0,
      "trainer.expert_tensor_parallel": 1}),
    ("areal", areal("megatron:d4", "megatron: {recompute_granularity: selective}"), {"trainer.recompute": "none"}),
    ("areal", areal("megatron:d4", "megatron: {bridge_type: megatron-bridge, recompute_granularity: selective, "
                    "recompute_modules: [mlp], fp8_config: {recipe: blockwise}}"),
     {"trainer.recompute": "selective", "trainer.recompute_modules": ("mlp",), "trainer.precision": "fp8"}),
    ("areal", areal("megatron:d4", "optimizer: {type: adam_bf16}, megatron: {ddp: {use_distributed_optimizer: false, "
                    "overlap_grad_reduce: true, grad_reduce_in_fp32: false}}"),
     {"trainer.optimizer_bytes_per_parameter": 6.0, "trainer.zero_stage": 0, "trainer.gradient_overlap": True,
      "trainer.gradient_precision": "bf16"}),
    ("areal", areal("megatron:d2p2", "megatron: {virtual_pipeline_parallel_size: 2}"), {"trainer.virtual_stages": 2}),
    ("areal", areal("megatron:(attn:d2t2|ffn:d1t2e2)", LAST).replace("Qwen3-4B", "Qwen3-30B-A3B"),
     {"trainer.expert_tensor_parallel": 2, "trainer.expert_parallel": 2, "trainer.tensor_parallel": 2}),
    ("areal", areal("archon:d2p2", "gradient_checkpointing: true"),
     {"trainer.recompute": "selective", "trainer.recompute_modules": ("layernorm", "mlp", "moe_act"),
      "trainer.virtual_stages": 2}),
    ("areal", areal("archon:d2p2", "gradient_checkpointing: true, archon: {ac_mode: full, pp_schedule: 1F1B}"),
     {"trainer.recompute": "full", "trainer.recompute_modules": (), "trainer.virtual_stages": 1}),
    ("areal", areal("fsdp:d4", "use_lora: true, lora_rank: 16"), {"engine.lora_rank": 16, "trainer.lora_rank": 16}),
    ("areal", AREAL.replace("Qwen3-4B", "Qwen3-4B-FP8"), {"engine.weight_precision": "fp8_block"}),
    ("areal", AREAL + "sglang: {kv_cache_dtype: fp8_e4m3, chunked_prefill_size: 4096, cuda_graph_bs: [1, 64]}",
     {"engine.kv_precision": "fp8", "engine.max_batched_tokens": 4096, "engine.max_captured_tokens": 64}),
    ("prime-rl", PRIME_VLLM, {"loop.refit_method": "auto", "loop.refit_precision": "bf16", "trainer.lora_rank": None}),
    ("prime-rl", PRIME_VLLM + LORA, {"loop.refit_method": "disk", "trainer.lora_rank": 16}),
    ("prime-rl", PRIME_VLLM + "[trainer.optim]\ntype = 'sign_sgd'", {"trainer.optimizer_bytes_per_parameter": 4.0}),
    ("prime-rl", PRIME_VLLM + "[trainer.model]\noptimization_dtype = 'bfloat16'",
     {"trainer.optimizer_bytes_per_parameter": 4.0}),
    ("prime-rl", PRIME_VLLM + "[weight_broadcast]\ntype = 'filesystem'", {"loop.refit_method": "disk"}),
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
    ("openrlhf", OPENRLHF, {"cluster.reference_gpus": 0, "cluster.num_gpus": 16}),
    ("openrlhf", OPENRLHF, {"cluster.reference_gpus": 4, "cluster.num_gpus": 20}),
    ("openrlhf", OPENRLHF + "--train.colocate_all --train.async_enable",
     {"cluster.num_gpus": 24, "cluster.generation_gpus": 16}),
    ("openrlhf", OPENRLHF + "--train.colocate_all",
     {"loop.mode": "async", "loop.style": "openrlhf", "cluster.num_gpus": 16, "cluster.generation_gpus": 8}),
    ("prime-rl", MOE, {"trainer.expert_parallel": 2}),
    ("slime", SLIME + DRAFTS + "--sglang-speculative-eagle-topk 1",
     {"engine.max_captured_tokens": 128, "engine.max_running_sequences": 600}),
    ("slime", SLIME, {"workload.max_sequence_tokens": 600, "workload.max_response_tokens": 300}),
    ("slime", SLIME, {"workload.max_sequence_tokens": 9000}),
    ("roll", ROLL, {"trainer.policy_logprobs": True}),
    ("roll", ROLL.replace("reinforce", "gigpo"), {"trainer.policy_logprobs": False}),
    # 32 mean samples of 619 tokens: prompts of 107 and half of 1,024.
    ("roll", ROLL.replace("actor_train:", "actor_train:\n  use_remove_padding: true"),
     {"trainer.logprob_micro_batch_tokens": 32 * 619}),
    ("roll", ROLL, {"trainer.recompute": "full"}),
    ("roll", ROLL, {"loop.mode": "async", "loop.style": "roll", "cluster.num_gpus": 16, "cluster.generation_gpus": 8}),
    ("roll", ROLL.replace("coef: 0", "coef: 0.1"), {"trainer.reference_logprobs": False}),
    ("verl", VERL, {"trainer.logits_chunk_tokens": 512}),
    ("slime", SLIME, {"trainer.optimizer_bytes_per_parameter": 10.0, "trainer.rank_balance": "tokens"}),
    ("areal", areal("megatron:d4", LAST), {"trainer.precision": "fp8", "trainer.policy_logprobs": True}),
    ("areal", AGENT, {"workload.max_sequence_tokens": 16384}),
    ("areal", AREAL, {"workload.max_sequence_tokens": 10240}),
    ("areal", areal("megatron:d4", LAST), {"trainer.recompute": "selective", "trainer.gradient_precision": "bf16"}),
    ("areal", areal("megatron:d4t2", LAST).replace("Qwen3-4B", "Qwen3-30B-A3B"),
     {"trainer.expert_parallel": 2, "trainer.expert_tensor_parallel": 2}),
    ("areal", AREAL + "max_tokens_per_trajectory: 4096", {"workload.max_response_tokens": 640}),
    ("prime-rl", PRIME_VLLM + LORA, {"trainer.lora_rank": 64}),
    ("prime-rl", GLM, {"trainer.expert_parallel": 16}),
    ("verl", VERL_LORA, {"engine.lora_rank": 0}),
    ("verl", VERL, {"trainer.optimizer_bytes_per_parameter": 4.0}),
    ("skyrl", SKYRL.format("megatron"), {"engine.lora_rank": 16}),
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


@pytest.mark.parametrize(("kind", "capacity_bytes", "shared"), [("native", 64e9, False), ("mooncake", 16e9, True)])
def test_kv_cache_on_the_host_is_priced_where_contexts_come_back(
    kind: str, capacity_bytes: float, shared: bool, tmp_path: Path
) -> None:
    tiers = f"type = '{kind}', cpu = {{num_bytes = 128_000_000_000}}, disk = {{path = '/scratch'}}"
    inference = f"inference = {{vllm = {{tensor_parallel_size = 2}}, kv_cache_offload = {{{tiers}}}}}"
    path = written(tmp_path, "prime-rl", PRIME_VLLM.replace("inference.vllm = {}", inference))
    found = import_config("prime-rl", path, asked=Asked(mean_turns=8)).scenario
    offload = found.engine.kv_offload
    assert offload is not None and (offload.capacity_bytes, offload.shared) == (capacity_bytes, shared)
    assert [one.part for one in found.missing] == ["the disk below the KV cache on the host"]
    moved = vary(found, {"engine.kv_offload.capacity_bytes": capacity_bytes / 2})
    answer = export_scenario(moved, "prime-rl", read_config("prime-rl", path))
    assert "--inference.kv_cache_offload.cpu.num_bytes 64000000000" in answer.overrides
    # A sample of one turn begins with nothing that was computed before.
    alone = import_config("prime-rl", path).scenario
    assert alone.engine.kv_offload is None and "the KV cache on the host" in [one.part for one in alone.missing]


@pytest.mark.parametrize(("flag", "own"), [("", 8), ("--train.colocate_all ", 0)])
def test_a_reward_model_is_a_pool_unless_a_function_scores_or_it_has_no_card(
    flag: str, own: int, tmp_path: Path
) -> None:
    text = f"{OPENRLHF}{flag}--reward.num_nodes 1 --reward.model_name_or_path "
    found = imported(tmp_path, "openrlhf", f"{text}Qwen/Qwen3-32B").scenario
    assert [(pool.model.name, pool.gpus, pool.runs_on) for pool in found.pools] == [("Qwen3-32B", own, "trainer")]
    scored = imported(tmp_path, "openrlhf", f"{text}Qwen/Qwen3-32B --reward.remote_url math.py").scenario
    assert not scored.pools and found.cluster.num_gpus == scored.cluster.num_gpus + own
    unknown = imported(tmp_path, "openrlhf", f"{text}my/reward").scenario
    assert [one.part for one in unknown.missing] == ["the reward model my/reward"]
    # Its own GPUs are left out exactly where no pool has them.
    left_out = [any("GPUs of reward models" in one.text for one in each.assumptions) for each in (found, unknown)]
    assert left_out == [False, own > 0]
