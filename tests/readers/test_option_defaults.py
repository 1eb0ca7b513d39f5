"""What an option is where a configuration does not say: what the framework's documented defaults say, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from rlsim.readers.frameworks import adapters
from rlsim.readers.frameworks.files import SHIPPED, shipped_layer
from rlsim.readers.frameworks.options import Option, Options
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.trees import ConfigTree, lookup, stacked

MODULES = [
    name
    for _, name, _ in iter_modules(adapters.__path__)
    if any(
        isinstance(made, type) and issubclass(made, Options) and made.__module__.endswith(f".{name}")
        for made in vars(import_module(f"{adapters.__name__}.{name}")).values()
    )
]
NOTHING = (0, "", None, [], ())
REQUIRED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    ("", ("policy.model_name", "model.name", "trainer.policy.model.path", "actor_rollout_ref.model.path")),
    (0, ("data.max_input_seq_length", "policy.dynamic_batching.train_mb_tokens",
        "policy.dynamic_batching.logprob_mb_tokens", "policy.generation.max_new_tokens", "grpo.max_rollout_turns",
        "policy.sequence_packing.train_mb_tokens", "policy.sequence_packing.logprob_mb_tokens",
        "policy.generation.vllm_cfg.max_model_len", "generator.max_input_length")),
    (1, ("policy.train_micro_batch_size", "trainer.policy_mini_batch_size",
        "actor_rollout_ref.actor.ppo_mini_batch_size", "data.train_batch_size", "data.max_prompt_length",
        "data.max_response_length", "actor_rollout_ref.rollout.tensor_model_parallel_size")),
    (False, ("policy.megatron_cfg.optimizer.use_precision_aware_optimizer", "policy.sequence_packing.enabled",
            "trainer.gradient_checkpointing", "actor_rollout_ref.model.use_remove_padding",
            "actor_rollout_ref.model.enable_gradient_checkpointing")),
)  # fmt: skip
"""Keys of which the shipped defaults have a value and the code nothing: a whole configuration without them is without
what they switch on."""
ONE = ("parallel_size", "_size", "nnodes", "num_nodes", "turns", "replicas", "replicate", "tp", "_replica", "engines")
"""How keys end of which there is always at least one."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "areal": {"actor.mb_spec.n_mbs": 1, "actor.lora_rank": 32, "actor.prox_logp_method": "recompute"},
    "easyr1": {"worker.actor.model.enable_gradient_checkpointing": True, "worker.actor.ppo_epochs": 1},
    "nemo_rl_options": {
        "async_rl.sampler.name": "in_order", "async_rl.sampler.max_lookahead_versions": 1,
        "policy.dtensor_cfg.lora_cfg.dim": 8, "policy.megatron_cfg.peft.dim": 8,
        "policy.megatron_cfg.linear_ce_fusion_chunk_size": 4096,
        "policy.megatron_cfg.fused_linear_logprobs_chunk_size": 4096,
    },
    "openrlhf": {"ds.zero_stage": 2, "ref.num_gpus_per_node": 8},
    "prime_rl": {
        "deployment.num_train_nodes": 1, "trainer.model.impl": "auto", "trainer.model.lora.rank": 16,
        "trainer.model.optim_cpu_offload": True,
    },
    "roll": {"num_return_sequences_in_group": 1, "response_length": 1024, "init_kl_coef": 0.2, "max_turns": 10},
    "roll_options": {
        "actor_infer.strategy_args.strategy_name": "vllm", "actor_infer.num_gpus_per_worker": 1,
        "actor_train.strategy_args.strategy_name": "megatron_train", "actor_train.infer_batch_size": 16,
        "actor_train.max_tokens_per_microbatch_in_infer": 1,
        "actor_train.training_args.per_device_train_batch_size": 8,
        "actor_train.training_args.gradient_accumulation_steps": 1,
    },
    "skyrl_options": {
        "trainer.fully_async.max_staleness_steps": 4, "generator.inference_engine.async_engine": True,
        "trainer.algorithm.dynamic_sampling.max_sample_batches": 30,
    },
    "slime": {
        "rollout_max_response_len": 1024, "sglang_server_concurrency": 512, "sglang_speculative_eagle_topk": 1,
        "train_backend": "megatron", "num_steps_per_rollout": 1,
    },
    "swift": {
        "launcher.program": "swift", "rlhf_type": "dpo", "train_type": "lora", "vllm_mode": "server",
        "vllm_enable_prefix_caching": True, "global_batch_size": 16, "recompute_granularity": "selective",
    },
    "trl": {"vllm_importance_sampling_correction": True, "max_length": 1024, "lora_r": 16},
    "verl_options": {
        "async_training.require_batches": 1, "async_training.trigger_parameter_sync_step": 1,
        "async_training.partial_rollout": True, "do_search": True, "trainer.balance_batch": True,
        "trainer.v1.trainer_mode": "sync", "trainer.v1.separate_async.num_warmup_batches": 1,
        "trainer.v1.colocate_async.num_warmup_batches": 1,
        "actor_rollout_ref.rollout.engine_kwargs.sglang.max_prefill_tokens": 16384,
    },
    "verl_sft": {"data.max_token_len_per_gpu": 8192},
    "verl_values": {"model_engine": "dp"},
}  # fmt: skip
"""What the frameworks' parsers and dataclasses take (the sources that defaults/NAME.yaml cites), where that is
something and no shipped tree has the key."""


def options_of(module: str) -> Iterator[Option[Any]]:
    """The options with a default that a module's classes declare."""
    for made in vars(import_module(f"{adapters.__name__}.{module}")).values():
        if isinstance(made, type) and issubclass(made, Options) and made.__module__.endswith(f".{module}"):
            yield from (member for member in vars(made).values() if isinstance(member, Option) and member.stated)


def tree_of(module: str) -> ConfigTree:
    """The documented defaults of a module's framework; empty where none are shipped under its name."""
    stem = module.removesuffix("_options").removesuffix("_values")
    shipped = (SHIPPED / f"{stem}.yaml").exists()
    return stacked([shipped_layer(stem)], stem) if shipped else ConfigTree(stem, {})


@pytest.mark.parametrize("module", MODULES)
def test_a_default_is_the_documented_one_or_nothing(module: str) -> None:
    shipped, stated = tree_of(module), DEFAULTS.get(module, {})
    found = {option.key: option for option in options_of(module)}
    assert stated.keys() <= found.keys()
    for key, option in found.items():
        alone = option.read(Reader(ConfigTree("nothing", {})))
        if lookup(shipped.values, key) is not None:
            documented = option.read(Reader(shipped))
            assert alone == documented or any(alone is value and key in keys for value, keys in REQUIRED), key
        elif key in stated:
            assert alone == stated[key] and type(alone) is type(stated[key]), key
        else:
            assert (alone == 1 and key.endswith(ONE) and type(alone) is int) or alone in NOTHING, key
