"""SkyRL's keys that rlsim has no use for, by reason."""

from __future__ import annotations

from rlsim.readers.frameworks.rows import listed

IRRELEVANT = listed(
    {
        "logging": {
            "trainer": (
                "project_name run_name logger dump_data_batch dump_eval_results log_path tracker_commit_each_step"
            ),
        },
        "checkpoint": {
            "trainer": (
                "ckpt_path ckpt_interval max_ckpts_to_keep resume_mode resume_path hf_save_interval export_path"
            ),
        },
        "validation": {
            "trainer": "eval_batch_size eval_before_train eval_interval",
            "generator": "eval_sampling_params eval_n_samples_per_prompt",
        },
        "learning": {
            "trainer": "algorithm epochs seed update_ref_every_epoch critic_mini_batch_size",
            "trainer.policy": "optimizer_config",
            "trainer.critic": "optimizer_config",
            "generator": "zero_reward_on_non_stop apply_overlong_filtering",
            "trainer.policy.model.lora": "alpha dropout",
        },
        "data": {
            "": "data",
            "trainer": "tokenizer",
            "generator": "chat_template chat_template_kwargs",
        },
        "sampling": {
            "generator.sampling_params": (
                "temperature top_p top_k min_p logprobs stop repetition_penalty additional_kwargs"
            ),
        },
        "environment": {
            "": "environment",
            "generator": "use_conversation_multi_turn append_eos_token_after_stop_str_in_multi_turn",
        },
        "launch": {
            "generator": (
                "enable_http_endpoint http_endpoint_host http_endpoint_port remote_inference_engine_urls "
                "run_engines_locally vllm_v1_disable_multiproc"
            ),
            "": "_target_ dispatcher",
        },
    }
)
"""Sections and keys without an effect on the time of a step: a word for the reason, the section, names in it."""
NOT_SIMULATED = listed(
    {
        "reference": {
            "trainer": "ref",
            "trainer.placement": "ref_num_nodes ref_num_gpus_per_node colocate_policy_ref",
        },
        "critic": {
            "trainer": "critic",
            "trainer.placement": "critic_num_nodes critic_num_gpus_per_node",
        },
        "layout": {
            "trainer.policy": "megatron_config fsdp_config",
        },
        "kernels": {
            "trainer": "flash_attn gradient_checkpointing_use_reentrant",
            "trainer.policy": "use_torch_compile",
            "generator": "engine_init_kwargs fully_sharded_loras",
        },
        "memory": {
            "trainer": "disable_fast_tokenizer",
            "trainer.policy": "record_memory",
        },
        "precision": {
            "trainer": "bf16",
            "generator": "model_dtype",
        },
        "transfer": {
            "generator": "weight_sync_backend override_existing_update_group weight_transfer_threshold_cuda_ipc_GB",
        },
        "modules": {
            "trainer.policy.model": "lora",
            "trainer": "target_modules exclude_modules",
        },
    }
)
"""Keys that may change the time of a step and that no scenario key says."""
