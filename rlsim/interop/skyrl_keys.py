"""SkyRL's keys that rlsim has no use for, by reason."""

from __future__ import annotations

_T, _G = "trainer.", "generator."

IRRELEVANT = {
    "logging": (
        f"{_T}project_name",
        f"{_T}run_name",
        f"{_T}logger",
        f"{_T}dump_data_batch",
        f"{_T}dump_eval_results",
        f"{_T}log_path",
        f"{_T}tracker_commit_each_step",
    ),
    "checkpoint": (
        f"{_T}ckpt_path",
        f"{_T}ckpt_interval",
        f"{_T}max_ckpts_to_keep",
        f"{_T}resume_mode",
        f"{_T}resume_path",
        f"{_T}hf_save_interval",
        f"{_T}export_path",
    ),
    "validation": (
        f"{_T}eval_batch_size",
        f"{_T}eval_before_train",
        f"{_T}eval_interval",
        f"{_G}eval_sampling_params",
        f"{_G}eval_n_samples_per_prompt",
    ),
    "learning": (
        f"{_T}algorithm",
        f"{_T}epochs",
        f"{_T}seed",
        f"{_T}policy.optimizer_config",
        f"{_T}critic.optimizer_config",
        f"{_T}update_ref_every_epoch",
        f"{_G}zero_reward_on_non_stop",
        f"{_T}policy.model.lora.alpha",
        f"{_T}policy.model.lora.dropout",
        f"{_T}critic_mini_batch_size",
        f"{_G}apply_overlong_filtering",
    ),
    "data": ("data", f"{_T}tokenizer", f"{_G}chat_template", f"{_G}chat_template_kwargs"),
    "sampling": tuple(
        f"{_G}sampling_params.{key}"
        for key in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "logprobs",
            "stop",
            "repetition_penalty",
            "additional_kwargs",
        )
    ),
    "environment": (
        "environment",
        f"{_G}use_conversation_multi_turn",
        f"{_G}append_eos_token_after_stop_str_in_multi_turn",
    ),
    "launch": (
        f"{_G}enable_http_endpoint",
        f"{_G}http_endpoint_host",
        f"{_G}http_endpoint_port",
        f"{_G}remote_inference_engine_urls",
        f"{_G}run_engines_locally",
        "_target_",
        "dispatcher",
        f"{_G}vllm_v1_disable_multiproc",
    ),
}
"""Sections and keys without an effect on the time of a step: a word for the reason, then what it covers."""

NOT_SIMULATED = {
    "reference": (
        f"{_T}ref",
        f"{_T}placement.ref_num_nodes",
        f"{_T}placement.ref_num_gpus_per_node",
        f"{_T}placement.colocate_policy_ref",
    ),
    "critic": (f"{_T}critic", f"{_T}placement.critic_num_nodes", f"{_T}placement.critic_num_gpus_per_node"),
    "layout": (f"{_T}policy.megatron_config", f"{_T}policy.fsdp_config"),
    "kernels": (
        f"{_T}flash_attn",
        f"{_T}policy.use_torch_compile",
        f"{_G}engine_init_kwargs",
        f"{_T}gradient_checkpointing_use_reentrant",
        f"{_G}fully_sharded_loras",
    ),
    "memory": (f"{_T}disable_fast_tokenizer", f"{_T}policy.record_memory"),
    "precision": (f"{_T}bf16", f"{_G}model_dtype"),
    "transfer": (
        f"{_G}weight_sync_backend",
        f"{_G}override_existing_update_group",
        f"{_G}weight_transfer_threshold_cuda_ipc_GB",
    ),
    "modules": (f"{_T}policy.model.lora", f"{_T}target_modules", f"{_T}exclude_modules"),
}
"""Keys that may change the time of a step and that no scenario key says."""
