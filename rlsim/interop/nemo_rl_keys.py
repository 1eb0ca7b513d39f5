"""NeMo-RL's keys that rlsim has no use for, by reason."""

from __future__ import annotations

_P, _M, _D = "policy.", "policy.megatron_cfg.", "policy.dtensor_cfg."
_G, _V, _K = "policy.generation.", "policy.generation.vllm_cfg.", "policy.generation.vllm_kwargs."

IRRELEVANT = {
    "logging": (
        "logger", f"{_M}moe_per_layer_logging", f"{_V}enable_vllm_metrics_logger",
        f"{_V}vllm_metrics_logger_interval", f"{_K}disable_log_stats", f"{_K}disable_log_requests",
    ),
    "checkpoint": ("checkpointing", f"{_M}force_overwrite_initial_ckpt", f"{_P}checkpoint"),
    "validation": ("grpo.val_period", "grpo.val_at_start", "grpo.val_at_end", "grpo.max_val_samples",
                   "grpo.val_batch_size", "data.validation"),
    "learning": (
        "loss_fn", "grpo.normalize_rewards", "grpo.use_leave_one_out_baseline", "grpo.overlong_filtering",
        "grpo.reward_scaling", "grpo.reward_shaping", "grpo.adv_estimator", "grpo.seed", "grpo.max_num_steps",
        "grpo.max_num_epochs", "grpo.calculate_advantages_on_gpu", "grpo.advantage_clip_low",
        "grpo.advantage_clip_high", "grpo.invalid_tool_call_advantage", "grpo.malformed_thinking_advantage",
        f"{_P}optimizer", f"{_P}scheduler", f"{_P}max_grad_norm", f"{_P}draft.loss_weight", f"{_M}scheduler",
        f"{_M}freeze_moe_router", f"{_M}moe_router_load_balancing_type", f"{_M}moe_router_bias_update_rate",
        f"{_M}moe_aux_loss_coeff", f"{_M}mtp_loss_scaling_factor", f"{_M}mtp_detach_heads", f"{_M}train_iters",
        *(f"{_M}optimizer.{key}" for key in (
            "lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "sgd_momentum", "clip_grad",
            "params_dtype", "bf16", "fp16")),
        *(f"{_M}peft.{key}" for key in (
            "alpha", "dropout", "lora_A_init_method", "lora_B_init_method", "lora_dtype", "dropout_position")),
        *(f"{_D}lora_cfg.{key}" for key in ("alpha", "dropout", "lora_A_init", "dropout_position", "lora_dtype")),
    ),
    "numerics": (
        f"{_M}pipeline_dtype", f"{_M}moe_router_dtype", f"{_M}layernorm_epsilon", f"{_M}apply_rope_fusion",
        f"{_P}hf_config_overrides", f"{_V}quantization_ignored_layer_kws", f"{_V}num_first_layers_in_bf16",
        f"{_V}num_last_layers_in_bf16", f"{_K}logprobs_mode", f"{_V}pow2_weight_scaling_factors",
        f"{_V}pow2_activation_scaling_factors",
    ),
    "data": ("data", f"{_P}tokenizer", f"{_V}skip_tokenizer_init", f"{_K}hf_overrides",
             f"{_K}limit_mm_per_prompt", f"{_V}load_format"),
    "sampling": tuple(f"{_G}{key}" for key in (
        "temperature", "top_p", "top_k", "stop_token_ids", "stop_strings", "ignore_eos", "bad_words", "_pad_token_id")),
    "environment": ("env",),
    "launch": (
        f"{_M}env_vars", f"{_D}env_vars", f"{_G}port_range_low", f"{_G}port_range_high", f"{_V}env_vars",
        f"{_V}http_server_serving_chat_kwargs", f"{_V}expose_http_server", f"{_M}converter_type", "cluster.master_port_range",
        f"{_P}worker_extension_cls", f"{_V}tool_parser_plugin", f"{_P}is_mtp_enabled", "grpo.deepscaler",
        f"{_K}compilation_config.cache_dir", "cluster.port_range_low", "cluster.port_range_high", f"{_M}is_lora",
    ),
    "derived": (f"{_P}generation_batch_size", f"{_P}make_sequence_length_divisible_by", f"{_D}_v2",
                f"{_M}sequence_parallel", f"{_D}sequence_parallel", f"{_P}sequence_packing.sequence_length_round",
                f"{_P}sequence_packing.sequence_length_pad_multiple"),
}  # fmt: skip
"""Sections and keys without an effect on the time of a step: a word for the reason, then what it covers."""

NOT_SIMULATED = {
    "layout": (
        f"{_M}expert_tensor_parallel_size", f"{_M}num_layers_in_first_pipeline_stage",
        f"{_M}num_layers_in_last_pipeline_stage", f"{_M}account_for_embedding_in_pipeline_split",
        f"{_M}account_for_loss_in_pipeline_split", f"{_D}custom_parallel_plan",
        f"{_M}distributed_data_parallel_config", f"{_D}defer_fsdp_grad_sync", f"{_D}dp_replicate_size",
    ),
    "kernels": (
        f"{_M}moe_permute_fusion", f"{_M}moe_grouped_gemm", f"{_M}bias_activation_fusion", f"{_M}attention_backend",
        f"{_M}gradient_accumulation_fusion", f"{_M}use_linear_ce_fusion_loss", f"{_M}linear_ce_fusion_chunk_size",
        f"{_M}moe_shared_expert_overlap", f"{_P}sequence_packing.fuse_loss", f"{_K}moe_backend",
        f"{_V}use_deep_gemm", f"{_K}attention_backend", f"{_K}compilation_config", f"{_D}automodel_kwargs",
        f"{_K}cudagraph_capture_sizes", f"{_M}moe_hybridep_num_sms", f"{_K}all2all_backend", f"{_K}mamba_ssm_cache_dtype",
        f"{_M}use_fused_weighted_squared_relu", f"{_V}use_activation_scales",
    ),
    "memory": (
        f"{_M}empty_unused_memory_level", f"{_M}defer_fp32_logits", f"{_D}clear_cache_every_n_steps",
        f"{_P}logprob_chunk_size", f"{_P}offload_optimizer_for_logprob", f"{_D}cpu_offload", f"{_M}recompute_modules",
        f"{_M}optimizer.optimizer_cpu_offload", f"{_M}optimizer.optimizer_offload_fraction",
        f"{_M}optimizer.use_distributed_optimizer", f"{_M}fine_grained_activation_offloading",
    ),
    "precision": (f"{_P}precision", f"{_M}fp8_cfg.fp8", f"{_M}fp8_cfg.fp8_recipe", f"{_M}fp8_cfg.fp8_param"),
    "batching": (
        f"{_P}sequence_packing.algorithm", f"{_P}dynamic_batching.sequence_length_round",
    ),
    "drafter": (
        f"{_K}speculative_config.draft_tensor_parallel_size", f"{_P}draft.model_name", f"{_P}draft.num_layers",
        f"{_P}draft.aux_layer_indices", f"{_M}mtp_use_repeated_layer", f"{_K}speculative_config.prompt_lookup_max",
        f"{_K}speculative_config.prompt_lookup_min", f"{_K}speculative_config.disable_by_batch_size",
    ),
    "modules": tuple(f"{section}{key}" for section in (f"{_M}peft.", f"{_D}lora_cfg.") for key in (
        "target_modules", "exclude_modules", "match_all_linear", "use_triton", "a2a_experimental")),
    "controller": ("async_rl.max_buffered_rollouts", "async_rl.min_groups_for_streaming_train", "data_plane"),
    "backend": (f"{_G}mcore_generation_config", f"{_G}sglang_cfg", f"{_G}dynamo_cfg"),
}  # fmt: skip
"""Keys that may change the time of a step and that no scenario key says."""
