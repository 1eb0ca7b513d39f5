"""verl's keys that rlsim has no use for, by reason."""

from __future__ import annotations

_A, _R, _F = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.ref."
_MODEL, _M = "actor_rollout_ref.model.", "actor_rollout_ref.actor.megatron."

IRRELEVANT = {
    "logging": (
        "trainer.project_name", "trainer.experiment_name", "trainer.logger", "trainer.log_val_generations",
        "trainer.rollout_data_dir", "trainer.validation_data_dir", f"{_R}trace", f"{_R}disable_log_stats",
        "global_profiler", f"{_A}profiler", f"{_F}profiler", f"{_R}profiler", f"{_R}prometheus", "trainer.profile_steps",
        "transfer_queue.metrics", f"{_R}skip_dump_dir", "trainer.rollout_trace_dir",
    ),
    "checkpoint": (
        "trainer.save_freq", "trainer.resume_mode", "trainer.resume_from_path", "trainer.default_local_dir",
        "trainer.default_hdfs_dir", "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep",
        "trainer.del_local_ckpt_after_load", "trainer.esi_redundant_time", f"{_A}checkpoint", "critic.checkpoint",
        "trainer.remove_previous_ckpt_in_save", f"{_M}dist_checkpointing_path", f"{_M}use_dist_checkpointing",
        f"{_A}load_weight", f"{_M}dist_checkpointing_prefix", f"{_M}dist_ckpt_optim_fully_reshardable",
        f"{_R}checkpoint_engine.custom_backend_module",
    ),
    "validation": ("trainer.test_freq", "trainer.val_before_train", "trainer.val_only", f"{_R}val_kwargs",
                   "data.val_files", "data.val_batch_size", "data.val_max_samples"),
    "learning": (
        "algorithm", "trainer.total_epochs", "trainer.total_training_steps", "trainer.critic_warmup",
        "rollout.total_rollout_steps", "rollout.total_epochs", "rollout.test_freq", f"{_A}optim", f"{_A}policy_loss",
        *(f"{_A}{key}" for key in (
            "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "entropy_coeff", "kl_loss_coef",
            "kl_loss_type", "loss_agg_mode", "loss_scale_factor", "grad_clip", "shuffle", "data_loader_seed",
            "freeze_vision_tower", "tau_pos", "tau_neg", "calculate_entropy", "calculate_sum_pi_squared",
            "sum_pi_squared_checkpointing")),
        f"{_M}seed", f"{_MODEL}lora_alpha", f"{_R}seed", f"{_MODEL}mtp.loss_scaling_factor",
        f"{_MODEL}mtp.mtp_loss_scaling_factor", f"{_MODEL}mtp.detach_encoder", "trainer.balance_batch",
        "critic.optim", "critic.cliprange_value", "critic.grad_clip", "critic.loss_agg_mode", "critic.shuffle",
    ),
    "data": ("data", f"{_MODEL}tokenizer_path", f"{_MODEL}custom_chat_template", f"{_MODEL}hf_config_path",
             f"{_MODEL}external_lib", f"{_MODEL}trust_remote_code", f"{_MODEL}use_shm", f"{_R}limit_images",
             f"{_R}load_format", f"{_MODEL}override_config", f"{_R}skip_tokenizer_init", f"{_MODEL}_target_"),
    "sampling": tuple(f"{_R}{key}" for key in ("temperature", "top_k", "top_p", "do_sample", "ignore_eos",
                                               "repetition_penalty", "over_sample_rate")),
    "environment": (
        "reward_model", "reward", "custom_reward_function", f"{_R}agent", f"{_R}multi_turn.tool_config_path",
        f"{_R}multi_turn.interaction_config_path", f"{_R}multi_turn.format", f"{_R}multi_turn.use_inference_chat_template",
        f"{_R}multi_turn.tokenization_sanity_check_mode", f"{_R}multi_turn.max_parallel_calls",
        f"{_R}multi_turn.max_tool_response_length", f"{_R}multi_turn.tool_response_truncate_side",
        f"{_R}multi_turn.num_repeat_rollouts", "sandbox_fusion",
    ),
    "launch": ("ray_kwargs", "ray_init", "trainer.device", "trainer.ray_wait_register_center_timeout", "model_engine",
               "trainer.use_legacy_worker_impl", f"{_A}nccl_timeout", "actor_rollout_ref.nccl_timeout", "_target_",
               f"{_A}_target_", f"{_R}_target_", f"{_F}_target_", f"{_A}router_replay", f"{_R}server"),
    "derived": (
        f"{_R}prompt_length", f"{_R}response_length", f"{_A}rollout_n", f"{_F}rollout_n", f"{_A}ppo_mini_batch_size_per_gpu",
        f"{_A}ppo_micro_batch_size", f"{_R}log_prob_micro_batch_size", f"{_F}log_prob_micro_batch_size",
        f"{_M}sequence_parallel", f"{_M}use_mbridge", f"{_M}vanilla_mbridge", f"{_M}use_distributed_optimizer",
        f"{_A}use_remove_padding", f"{_F}use_remove_padding", f"{_A}ppo_infer_max_token_len_per_gpu",
        f"{_A}ppo_infer_micro_batch_size_per_gpu", f"{_A}use_fused_kernels_backend", f"{_F}strategy", f"{_A}fsdp_config.strategy",
        f"{_F}fsdp_config.strategy", f"{_A}megatron.strategy", f"{_F}ulysses_sequence_parallel_size",
        f"{_A}fsdp_config.ulysses_sequence_parallel_size",
    ),
}  # fmt: skip
"""Sections and keys without an effect on the time of a step: a word for the reason, then what it covers."""

NOT_SIMULATED = {
    "reference": (f"{_F}megatron", f"{_F}fsdp_config", f"{_F}log_prob_micro_batch_size_per_gpu",
                  f"{_F}log_prob_use_dynamic_bsz", f"{_F}log_prob_max_token_len_per_gpu", f"{_F}entropy_from_logits_with_chunking",
                  f"{_F}entropy_checkpointing", f"{_F}use_torch_compile"),
    "critic": ("critic",),
    "layout": (f"{_M}expert_tensor_parallel_size", f"{_A}fsdp_config.fsdp_size", f"{_A}fsdp_config.reshard_after_forward",
               f"{_A}fsdp_config.wrap_policy", f"{_A}fsdp_config.forward_prefetch", f"{_M}override_ddp_config",
               f"{_M}override_mcore_model_config", f"{_A}veomni", f"{_A}torchtitan"),
    "kernels": (f"{_A}use_torch_compile", f"{_A}fsdp_config.use_torch_compile", f"{_MODEL}use_liger",
                f"{_MODEL}use_fused_kernels", f"{_MODEL}fused_kernel_options", f"{_M}override_transformer_config",
                f"{_R}cudagraph_capture_sizes", f"{_R}engine_kwargs", f"{_MODEL}tiled_mlp", f"{_A}use_prefix_grouper"),
    "memory": (f"{_R}free_cache_engine", f"{_MODEL}enable_activation_offload", f"{_A}fsdp_config.offload_policy",
               f"{_A}entropy_from_logits_with_chunking", f"{_A}entropy_checkpointing", f"{_R}layered_summon",
               f"{_R}enable_sleep_mode"),
    "precision": (f"{_R}dtype", f"{_A}fsdp_config.model_dtype", f"{_A}fsdp_config.dtype", f"{_M}dtype",
                  f"{_A}fsdp_config.mixed_precision", f"{_R}quantization_config_file", f"{_A}qat"),
    "modules": (f"{_MODEL}target_modules", f"{_MODEL}exclude_modules", f"{_MODEL}lora_adapter_path", f"{_MODEL}lora"),
    "drafter": (f"{_MODEL}mtp.speculative_eagle_topk", f"{_MODEL}mtp.speculative_num_draft_tokens"),
    "transfer": (f"{_R}checkpoint_engine.update_weights_bucket_megabytes", f"{_R}checkpoint_engine.engine_kwargs",
                 f"{_R}update_weights_bucket_megabytes", "transfer_queue", f"{_R}checkpoint_engine.update_weights_bucket_mb"),
    "scheduling": (f"{_R}scheduling_policy", f"{_R}max_num_partial_prefills", f"{_R}logprobs_mode",
                   f"{_R}multi_stage_wake_up", f"{_R}skip_rollout", "async_training.compute_prox_log_prob",
                   "async_training.use_trainer_do_validate", "async_training.use_rollout_log_probs",
                   "async_training.checkpoint_engine", "async_training.parallel_validate_and_rollout", f"{_R}agent.num_workers"),
}  # fmt: skip
"""Keys that may change the time of a step and that no scenario key says."""
