"""NeMo-RL's keys that rlsim has no use for, by reason."""

from __future__ import annotations

from rlsim.readers.frameworks.rows import listed

IRRELEVANT = listed(
    {
        "logging": {
            "": "logger",
            "policy.megatron_cfg": "moe_per_layer_logging",
            "policy.generation.vllm_cfg": "enable_vllm_metrics_logger vllm_metrics_logger_interval",
            "policy.generation.vllm_kwargs": "disable_log_stats disable_log_requests",
        },
        "checkpoint": {
            "": "checkpointing",
            "policy.megatron_cfg": "force_overwrite_initial_ckpt",
            "policy": "checkpoint",
        },
        "validation": {
            "grpo": (
                "num_val_generations_per_prompt val_period val_at_start val_at_end max_val_samples val_batch_size"
            ),
            "data": "validation",
        },
        "learning": {
            "": "loss_fn",
            "grpo": (
                "normalize_rewards use_leave_one_out_baseline overlong_filtering reward_scaling reward_shaping "
                "adv_estimator seed max_num_steps max_num_epochs calculate_advantages_on_gpu advantage_clip_low "
                "advantage_clip_high invalid_tool_call_advantage malformed_thinking_advantage"
            ),
            "policy": "optimizer scheduler max_grad_norm",
            "policy.draft": "loss_weight",
            "policy.megatron_cfg": (
                "moe_router_enable_expert_bias scheduler freeze_moe_router moe_router_load_balancing_type "
                "moe_router_bias_update_rate moe_aux_loss_coeff mtp_loss_scaling_factor mtp_detach_heads "
                "train_iters"
            ),
            "policy.megatron_cfg.optimizer": (
                "lr min_lr weight_decay adam_beta1 adam_beta2 adam_eps sgd_momentum clip_grad params_dtype bf16 fp16"
            ),
            "policy.megatron_cfg.peft": (
                "alpha dropout lora_A_init_method lora_B_init_method lora_dtype dropout_position"
            ),
            "policy.dtensor_cfg.lora_cfg": "alpha dropout lora_A_init dropout_position lora_dtype",
        },
        "numerics": {
            "policy.megatron_cfg": "pipeline_dtype moe_router_dtype layernorm_epsilon apply_rope_fusion",
            "policy": "hf_config_overrides",
            "policy.generation.vllm_cfg": (
                "quantization_ignored_layer_kws num_first_layers_in_bf16 num_last_layers_in_bf16 "
                "pow2_weight_scaling_factors pow2_activation_scaling_factors"
            ),
            "policy.generation.vllm_kwargs": "logprobs_mode",
        },
        "data": {
            "": "data",
            "policy": "tokenizer",
            "policy.generation.vllm_cfg": "hf_overrides skip_tokenizer_init load_format",
            "policy.generation.vllm_kwargs": "hf_overrides limit_mm_per_prompt",
        },
        "sampling": {
            "policy.generation": (
                "temperature top_p top_k stop_token_ids stop_strings ignore_eos bad_words _pad_token_id"
            ),
        },
        "environment": {
            "": "env",
        },
        "launch": {
            "policy.megatron_cfg": "env_vars converter_type",
            "policy.dtensor_cfg": "env_vars",
            "policy.generation": "port_range_low port_range_high",
            "policy.generation.vllm_cfg": (
                "env_vars http_server_serving_chat_kwargs expose_http_server tool_parser_plugin"
            ),
            "cluster": "master_port_range port_range_low port_range_high",
            "policy": "worker_extension_cls",
            "policy.generation.vllm_kwargs.compilation_config": "cache_dir",
        },
        "derived": {
            "policy": "generation_batch_size make_sequence_length_divisible_by",
            "policy.dtensor_cfg": "_v2 sequence_parallel",
            "policy.megatron_cfg": "sequence_parallel",
            "policy.sequence_packing": "sequence_length_round sequence_length_pad_multiple",
        },
    }
)
"""Sections and keys without an effect on the time of a step: a word for the reason, the section, names in it."""
NOT_SIMULATED = listed(
    {
        "layout": {
            "policy.megatron_cfg": (
                "expert_tensor_parallel_size num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage "
                "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split "
                "distributed_data_parallel_config"
            ),
            "policy.dtensor_cfg": "custom_parallel_plan defer_fsdp_grad_sync dp_replicate_size",
        },
        "kernels": {
            "policy.megatron_cfg": (
                "cuda_graph_impl cuda_graph_scope moe_permute_fusion moe_grouped_gemm bias_activation_fusion "
                "attention_backend gradient_accumulation_fusion use_linear_ce_fusion_loss "
                "linear_ce_fusion_chunk_size moe_shared_expert_overlap moe_hybridep_num_sms "
                "use_fused_weighted_squared_relu"
            ),
            "policy.sequence_packing": "fuse_loss",
            "policy.generation.vllm_kwargs": (
                "moe_backend attention_backend compilation_config cudagraph_capture_sizes all2all_backend "
                "mamba_ssm_cache_dtype"
            ),
            "policy.generation.vllm_cfg": "distributed_executor_backend use_deep_gemm use_activation_scales",
            "policy.dtensor_cfg": "automodel_kwargs",
        },
        "memory": {
            "policy.megatron_cfg": (
                "empty_unused_memory_level defer_fp32_logits recompute_modules fine_grained_activation_offloading"
            ),
            "policy.dtensor_cfg": "clear_cache_every_n_steps cpu_offload",
            "policy": "logprob_chunk_size offload_optimizer_for_logprob",
            "policy.megatron_cfg.optimizer": (
                "optimizer_cpu_offload optimizer_offload_fraction use_distributed_optimizer"
            ),
        },
        "precision": {
            "policy.megatron_cfg.fp8_cfg": "fp8 fp8_recipe fp8_param",
        },
        "batching": {
            "policy.sequence_packing": "algorithm",
            "policy.dynamic_batching": "sequence_length_round",
        },
        "drafter": {
            "policy.generation.vllm_kwargs.speculative_config": (
                "draft_tensor_parallel_size prompt_lookup_max prompt_lookup_min disable_by_batch_size"
            ),
            "policy.draft": "model_name num_layers aux_layer_indices",
            "policy.megatron_cfg": "mtp_use_repeated_layer",
        },
        "modules": {
            "policy.megatron_cfg.peft": "target_modules exclude_modules match_all_linear use_triton a2a_experimental",
            "policy.dtensor_cfg.lora_cfg": (
                "target_modules exclude_modules match_all_linear use_triton a2a_experimental"
            ),
        },
        "transfer": {
            "policy": "refit_buffer_size_gb",
        },
        "controller": {
            "async_rl": "max_buffered_rollouts min_groups_for_streaming_train",
            "": "data_plane",
        },
        "backend": {
            "policy.generation": "mcore_generation_config sglang_cfg dynamo_cfg",
        },
    }
)
"""Keys that may change the time of a step and that no scenario key says."""
