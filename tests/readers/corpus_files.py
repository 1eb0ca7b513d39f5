"""The corpus: configurations written for these tests, and the keys that they must cover between them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
CORPUS = sorted((path.parent.name, path) for path in FOLDER.glob("*/*.yaml"))
IDS = [f"{framework}/{path.stem}" for framework, path in CORPUS]

DOCUMENTED = {
    "nemo-rl": """
cluster.{num_nodes,gpus_per_node,segment_size} grpo.{num_prompts_per_step,num_generations_per_prompt}
grpo.{use_dynamic_sampling,batch_multiplier,dynamic_sampling_max_gen_batches,max_rollout_turns}
grpo.async_grpo.{enabled,max_trajectory_age_steps,in_flight_weight_updates}
grpo.async_grpo.recompute_kv_cache_after_weight_updates
async_rl.sampler.{name,max_lookahead_versions,max_staleness_versions}
async_rl.{max_inflight_prompts,max_buffered_rollouts,min_groups_for_streaming_train}
loss_fn.{force_on_policy_ratio,reference_policy_kl_penalty}
grpo.{seq_logprob_error_threshold,skip_reference_policy_logprobs_calculation}
policy.{model_name,precision,train_global_batch_size,train_micro_batch_size,logprob_batch_size}
policy.{max_total_sequence_length,make_sequence_length_divisible_by,offload_optimizer_for_logprob}
policy.sequence_packing.{enabled,train_mb_tokens,logprob_mb_tokens,algorithm}
policy.dynamic_batching.{enabled,train_mb_tokens,logprob_mb_tokens,sequence_length_round}
policy.megatron_cfg.{enabled,sequence_parallel,num_layers_in_first_pipeline_stage,num_layers_in_last_pipeline_stage}
policy.megatron_cfg.{tensor_model,pipeline_model,context,expert_model,expert_tensor}_parallel_size
policy.megatron_cfg.{activation_checkpointing,recompute_granularity,recompute_modules,defer_fp32_logits}
policy.megatron_cfg.fp8_cfg.{enabled,fp8,fp8_recipe,fp8_param}
policy.megatron_cfg.{moe_token_dispatcher_type,moe_enable_deepep,mtp_num_layers}
policy.megatron_cfg.optimizer.{optimizer,use_precision_aware_optimizer,use_distributed_optimizer}
policy.megatron_cfg.optimizer.{optimizer_cpu_offload,optimizer_offload_fraction}
policy.dtensor_cfg.{enabled,_v2,tensor_parallel_size,context_parallel_size,sequence_parallel}
policy.dtensor_cfg.{activation_checkpointing,cpu_offload}
policy.draft.{enabled,model_name,loss_weight,num_layers,aux_layer_indices}
policy.generation.{backend,max_new_tokens,temperature,top_p,top_k,refit_transport}
policy.generation.colocated.{enabled,resources.num_nodes,resources.gpus_per_node}
policy.generation.vllm_cfg.{tensor_parallel_size,pipeline_parallel_size,expert_parallel_size,precision,is_mx}
policy.generation.vllm_cfg.{quantization_ignored_layer_kws,kv_cache_dtype,async_engine,gpu_memory_utilization}
policy.generation.vllm_cfg.{max_model_len,enforce_eager,enable_prefix_caching}
policy.generation.vllm_kwargs.{max_num_seqs,max_num_batched_tokens,moe_backend}
policy.generation.vllm_kwargs.speculative_config.{method,model,num_speculative_tokens,draft_tensor_parallel_size}
data.{train.dataset_name,dataset_name,max_input_seq_length}
""",
    "verl": """
trainer.{nnodes,n_gpus_per_node,balance_batch,use_v1,v1.trainer_mode,v1.separate_async.parameter_sync_step}
trainer.v1.sampler.{max_off_policy_threshold,max_off_policy_strategy} actor_rollout_ref.hybrid_engine
data.{train_batch_size,gen_batch_size,max_prompt_length,max_response_length} actor_rollout_ref.rollout.n
actor_rollout_ref.actor.{ppo_mini_batch_size,ppo_epochs,ppo_micro_batch_size_per_gpu,use_dynamic_bsz}
actor_rollout_ref.actor.{ppo_max_token_len_per_gpu,use_kl_loss,use_rollout_log_probs,strategy}
actor_rollout_ref.{rollout,ref}.{log_prob_micro_batch_size_per_gpu,log_prob_use_dynamic_bsz}
actor_rollout_ref.{rollout,ref}.log_prob_max_token_len_per_gpu algorithm.use_kl_in_reward
actor_rollout_ref.rollout.calculate_log_probs actor_rollout_ref.actor.ulysses_sequence_parallel_size
actor_rollout_ref.actor.fsdp_config.{fsdp_size,param_offload,optimizer_offload}
actor_rollout_ref.actor.megatron.{tensor_model,pipeline_model,context,expert_model,expert_tensor}_parallel_size
actor_rollout_ref.actor.megatron.{virtual_pipeline_model_parallel_size,param_offload,grad_offload,optimizer_offload}
actor_rollout_ref.actor.megatron.override_transformer_config.recompute_{granularity,method,num_layers}
actor_rollout_ref.ref.megatron.{tensor_model_parallel_size,param_offload}
actor_rollout_ref.model.{path,use_remove_padding,enable_gradient_checkpointing}
actor_rollout_ref.model.mtp.{enable,enable_train,enable_rollout,method,num_speculative_tokens}
actor_rollout_ref.model.mtp.speculative_{algorithm,num_steps,eagle_topk,num_draft_tokens}
actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.{method,model,num_speculative_tokens}
actor_rollout_ref.rollout.engine_kwargs.sglang.speculative_{algorithm,num_steps}
actor_rollout_ref.rollout.{name,mode,tensor_model_parallel_size,data_parallel_size,expert_parallel_size}
actor_rollout_ref.rollout.{pipeline_model_parallel_size,gpu_memory_utilization,max_num_seqs,max_num_batched_tokens}
actor_rollout_ref.rollout.{max_model_len,enforce_eager,free_cache_engine,enable_prefix_caching}
actor_rollout_ref.rollout.{enable_chunked_prefill,dtype,quantization}
actor_rollout_ref.rollout.multi_turn.{enable,max_user_turns,max_assistant_turns}
actor_rollout_ref.rollout.checkpoint_engine.{backend,update_weights_bucket_megabytes}
rollout.{nnodes,n_gpus_per_node,total_rollout_steps}
async_training.{staleness_threshold,trigger_parameter_sync_step,require_batches,partial_rollout}
async_training.concurrent_samples_per_replica
""",
}
"""Documented keys (NeMo-RL v0.7, verl 1dda039b9), braces for alternatives."""


def documented(framework: str) -> list[str]:
    """Every documented key of a framework."""
    return [key for word in DOCUMENTED[framework].split() for key in _expanded(word)]


def _expanded(word: str) -> list[str]:
    pieces = [part.strip("{}").split(",") for part in re.findall(r"\{[^}]*\}|[^{}]+", word)]
    return ["".join(choice) for choice in itertools.product(*pieces)]
