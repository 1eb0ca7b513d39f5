"""verl's keys that rlsim has no use for, by reason."""

from __future__ import annotations

from rlsim.readers.frameworks.rows import listed

IRRELEVANT = listed(
    {
        "logging": {
            "trainer": (
                "project_name experiment_name logger log_val_generations rollout_data_dir validation_data_dir "
                "profile_steps rollout_trace_dir"
            ),
            "actor_rollout_ref.rollout": "trace disable_log_stats profiler prometheus skip_dump_dir",
            "": "global_profiler",
            "actor_rollout_ref.actor": "profiler",
            "actor_rollout_ref.ref": "profiler",
            "transfer_queue": "metrics",
        },
        "checkpoint": {
            "trainer": (
                "save_freq resume_mode resume_from_path default_local_dir default_hdfs_dir max_actor_ckpt_to_keep "
                "max_critic_ckpt_to_keep del_local_ckpt_after_load esi_redundant_time remove_previous_ckpt_in_save"
            ),
            "actor_rollout_ref.actor": "checkpoint load_weight",
            "critic": "checkpoint",
            "actor_rollout_ref.actor.megatron": (
                "dist_checkpointing_path use_dist_checkpointing dist_checkpointing_prefix "
                "dist_ckpt_optim_fully_reshardable"
            ),
            "actor_rollout_ref.rollout.checkpoint_engine": "custom_backend_module",
        },
        "validation": {
            "trainer": "test_freq val_before_train val_only",
            "actor_rollout_ref.rollout": "val_kwargs",
            "data": "val_files val_batch_size val_max_samples",
        },
        "learning": {
            "": "algorithm",
            "trainer": "total_epochs total_training_steps critic_warmup",
            "rollout": "total_rollout_steps total_epochs test_freq",
            "actor_rollout_ref.actor": (
                "optim policy_loss clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c entropy_coeff "
                "kl_loss_coef kl_loss_type loss_agg_mode loss_scale_factor grad_clip shuffle data_loader_seed "
                "freeze_vision_tower tau_pos tau_neg calculate_entropy calculate_sum_pi_squared "
                "sum_pi_squared_checkpointing"
            ),
            "actor_rollout_ref.actor.megatron": "seed",
            "actor_rollout_ref.model": "lora_alpha",
            "actor_rollout_ref.rollout": "seed",
            "actor_rollout_ref.model.mtp": "loss_scaling_factor mtp_loss_scaling_factor detach_encoder",
            "critic": "optim cliprange_value grad_clip loss_agg_mode shuffle",
        },
        "data": {
            "": "data",
            "actor_rollout_ref.model": (
                "tokenizer_path custom_chat_template hf_config_path external_lib trust_remote_code use_shm "
                "override_config _target_"
            ),
            "actor_rollout_ref.rollout": "limit_images load_format skip_tokenizer_init",
        },
        "sampling": {
            "actor_rollout_ref.rollout": (
                "temperature top_k top_p do_sample ignore_eos repetition_penalty over_sample_rate"
            ),
        },
        "environment": {
            "": "reward_model reward custom_reward_function sandbox_fusion",
            "actor_rollout_ref.rollout": "agent",
            "actor_rollout_ref.rollout.multi_turn": (
                "tool_config_path interaction_config_path format use_inference_chat_template "
                "tokenization_sanity_check_mode max_parallel_calls max_tool_response_length "
                "tool_response_truncate_side num_repeat_rollouts"
            ),
        },
        "launch": {
            "": "ray_kwargs ray_init model_engine _target_",
            "trainer": "device ray_wait_register_center_timeout use_legacy_worker_impl",
            "actor_rollout_ref.actor": "nccl_timeout _target_ router_replay",
            "actor_rollout_ref": "nccl_timeout",
            "actor_rollout_ref.rollout": "_target_ server",
            "actor_rollout_ref.ref": "_target_",
        },
        "derived": {
            "actor_rollout_ref.rollout": "prompt_length response_length log_prob_micro_batch_size",
            "actor_rollout_ref.actor": (
                "rollout_n ppo_mini_batch_size_per_gpu ppo_micro_batch_size use_remove_padding "
                "ppo_infer_max_token_len_per_gpu ppo_infer_micro_batch_size_per_gpu use_fused_kernels_backend"
            ),
            "actor_rollout_ref.ref": (
                "rollout_n log_prob_micro_batch_size use_remove_padding strategy ulysses_sequence_parallel_size"
            ),
            "actor_rollout_ref.actor.megatron": (
                "sequence_parallel use_mbridge vanilla_mbridge use_distributed_optimizer strategy"
            ),
            "actor_rollout_ref.actor.fsdp_config": "strategy ulysses_sequence_parallel_size",
            "actor_rollout_ref.ref.fsdp_config": "strategy",
        },
    }
)
"""Sections and keys without an effect on the time of a step: a word for the reason, the section, names in it."""
NOT_SIMULATED = listed(
    {
        "reference": {
            "actor_rollout_ref.ref": (
                "megatron fsdp_config log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz "
                "log_prob_max_token_len_per_gpu entropy_from_logits_with_chunking entropy_checkpointing "
                "use_torch_compile"
            ),
        },
        "critic": {
            "": "critic",
        },
        "layout": {
            "actor_rollout_ref.actor.megatron": (
                "expert_tensor_parallel_size override_ddp_config override_mcore_model_config"
            ),
            "actor_rollout_ref.actor.fsdp_config": "fsdp_size reshard_after_forward wrap_policy forward_prefetch",
            "actor_rollout_ref.actor": "veomni torchtitan",
        },
        "kernels": {
            "actor_rollout_ref.actor": "use_torch_compile use_prefix_grouper",
            "actor_rollout_ref.actor.fsdp_config": "use_torch_compile",
            "actor_rollout_ref.model": "use_liger use_fused_kernels fused_kernel_options tiled_mlp",
            "actor_rollout_ref.actor.megatron": "override_transformer_config",
            "actor_rollout_ref.rollout": "cudagraph_capture_sizes engine_kwargs",
        },
        "memory": {
            "actor_rollout_ref.rollout": "free_cache_engine layered_summon enable_sleep_mode",
            "actor_rollout_ref.model": "enable_activation_offload",
            "actor_rollout_ref.actor.fsdp_config": "offload_policy",
            "actor_rollout_ref.actor": "entropy_from_logits_with_chunking entropy_checkpointing",
        },
        "precision": {
            "actor_rollout_ref.rollout": "dtype quantization_config_file",
            "actor_rollout_ref.actor.fsdp_config": "model_dtype dtype mixed_precision",
            "actor_rollout_ref.actor.megatron": "dtype",
            "actor_rollout_ref.actor": "qat",
        },
        "modules": {
            "actor_rollout_ref.model": "target_modules exclude_modules lora_adapter_path lora",
        },
        "drafter": {
            "actor_rollout_ref.model.mtp": "speculative_eagle_topk speculative_num_draft_tokens",
        },
        "transfer": {
            "actor_rollout_ref.rollout.checkpoint_engine": (
                "update_weights_bucket_megabytes engine_kwargs update_weights_bucket_mb"
            ),
            "actor_rollout_ref.rollout": "update_weights_bucket_megabytes",
            "": "transfer_queue",
        },
        "scheduling": {
            "actor_rollout_ref.rollout": (
                "scheduling_policy max_num_partial_prefills logprobs_mode multi_stage_wake_up skip_rollout"
            ),
            "async_training": (
                "compute_prox_log_prob use_trainer_do_validate use_rollout_log_probs checkpoint_engine "
                "parallel_validate_and_rollout"
            ),
            "actor_rollout_ref.rollout.agent": "num_workers",
        },
    }
)
"""Keys that may change the time of a step and that no scenario key says."""
