"""Rules of verl's, SkyRL's and NeMo-RL's tables that hang on a mode: the engine, the number of turns, bypass_mode."""

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from corpus_files import FOLDER

from rlsim.loading.scenario import vary
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.readers.frameworks.importing import Imported, import_config, read_config

ASKED = Asked(hardware="h200_sxm", mean_prompt_tokens=100, mean_response_tokens=200.0, acceptance_length=1.5)
BYPASS, NAME = "++algorithm.rollout_correction.bypass_mode", "actor_rollout_ref.rollout.name"
ROLLOUT, ACTOR = "++actor_rollout_ref.rollout", "++actor_rollout_ref.actor"
OPTIMIZER, MODEL = f"{ACTOR}.optim.override_optimizer_config", "++actor_rollout_ref.model"
MCORE = "++policy.megatron_cfg"
DDP = f"{MCORE}.distributed_data_parallel_config"
KWARGS, CORE = f"{ROLLOUT}.engine_kwargs", f"{ACTOR}.megatron.override_transformer_config"
SGLANG = (f"{NAME}=sglang",)
MULTI = ("generator.max_turns=6", "generator.max_input_length=29000", "trainer.max_prompt_length=6000",
         "generator.sampling_params.max_generate_length=3000")  # fmt: skip
ENGINES = "generator.inference_engine"
SIZES = (f"{ACTOR}.use_dynamic_bsz=false", f"{ROLLOUT}.log_prob_use_dynamic_bsz=false",
         f"{ACTOR}.ulysses_sequence_parallel_size=1", f"{ACTOR}.ppo_micro_batch_size=256",
         f"{ROLLOUT}.log_prob_micro_batch_size=512")  # fmt: skip
KEPT = "async_rl.recompute_kv_cache_after_weight_updates"
PENALTY = "loss_fn.reference_policy_kl_penalty=0"
GATED = ("async_rl.sampler.name=in_order", "async_rl.sampler.max_lookahead_versions=0")
REWARDED = ("++data.default.env_name=reward_model", "++env.reward_model.resources={num_nodes: 2, gpus_per_node: 2}")
DISTILLED = "++on_policy_distillation"
TEACHERS = (f"{DISTILLED}.enabled=true", f"{DISTILLED}.non_colocated_teachers.enabled=true",
            f"{DISTILLED}.teacher_model_by_agent_name={{a: x/y, b: x/z, c: x/y}}",
            f"{DISTILLED}.non_colocated_teachers.teacher_overrides={{b: {{num_nodes: 2}}}}")  # fmt: skip
RULES: list[tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    ("verl_fsdp", (f"{ACTOR}.use_rollout_log_probs=true", f"{ROLLOUT}.calculate_log_probs=true"),
     {"trainer.policy_logprobs": True}, {"trainer.policy_logprobs": False}),
    ("verl_fsdp", (f"{BYPASS}=true",), {"trainer.policy_logprobs": False}, {"trainer.policy_logprobs": True}),
    ("separate", (f"{BYPASS}=true",), {"trainer.policy_logprobs": False}, {}),
    ("one_step_off", (f"{BYPASS}=true",), {"trainer.policy_logprobs": False}, {}),
    ("verl_fully_async", (f"{BYPASS}=false",), {"trainer.policy_logprobs": True}, {"trainer.policy_logprobs": False}),
    ("verl_fsdp", (*SGLANG, f"{KWARGS}.sglang.kv_cache_dtype=fp8_e5m2", f"{KWARGS}.vllm.kv_cache_dtype=auto",
                   f"{ROLLOUT}.max_num_batched_tokens=32768"),
     {"engine.kv_precision": "fp8", "engine.chunked_prefill": False, "engine.max_batched_tokens": 8192},
     {"engine.kv_precision": "bf16", "engine.max_batched_tokens": 4096, "engine.chunked_prefill": True}),
    ("verl_fsdp", (*SGLANG, f"{KWARGS}.vllm.kv_cache_dtype=fp8"), {"engine.kv_precision": "bf16"},
     {"engine.kv_precision": "fp8"}),
    ("verl_fsdp", (f"{NAME}=trtllm", f"{KWARGS}.trtllm.kv_cache_config.dtype=fp8", f"{ROLLOUT}.enforce_eager=true"),
     {"engine.kv_precision": "fp8", "engine.cuda_graphs": True, "engine.max_captured_tokens": 256}, {}),
    ("verl_fsdp", (*SGLANG, f"{KWARGS}.sglang.max_running_requests=64", f"{KWARGS}.sglang.disable_cuda_graph=true",
                   f"{KWARGS}.sglang.disable_radix_cache=true", f"{KWARGS}.sglang.mem_fraction_static=0.7",
                   f"{KWARGS}.sglang.chunked_prefill_size=-1", f"{KWARGS}.sglang.disable_overlap_schedule=true"),
     {"engine.max_running_sequences": 64, "engine.cuda_graphs": False, "engine.prefix_caching": False,
      "engine.gpu_memory_utilization": 0.7, "engine.max_batched_tokens": 16384, "engine.overlap_scheduling": False},
     {"engine.max_running_sequences": 32, "engine.cuda_graphs": True, "engine.gpu_memory_utilization": 0.6}),
    ("verl_fsdp", (*SGLANG, f"{KWARGS}.sglang.cuda_graph_max_bs=128"), {"engine.max_captured_tokens": 128}, {}),
    ("megatron", (f"{KWARGS}.sglang.cuda_graph_max_bs=32",), {"engine.max_captured_tokens": 32 * 3},
     {"engine.max_captured_tokens": 48}),
    ("verl_fsdp", (f"{KWARGS}.vllm.compilation_config.cudagraph_capture_sizes=[8,64]",),
     {"engine.max_captured_tokens": 64}, {"engine.max_captured_tokens": 48}),
    ("verl_fsdp", (f"{ROLLOUT}.cudagraph_capture_sizes=[8,32]",
                   f"{KWARGS}.vllm.compilation_config.cudagraph_capture_sizes=[8,64]"),
     {"engine.max_captured_tokens": 32}, {}),
    ("verl_fsdp", tuple(f"{KWARGS}.vllm.speculative_config.{one}" for one in (
        "method=eagle3", "num_speculative_tokens=5", "num_speculative_tokens_per_batch_size=[[1,16,5],[17,64,0]]")),
     {"speculation.policy": "by_schedule", "speculation.schedule": ((1, 16, 5), (17, 64, 0))}, {}),
    ("verl_megatron", (f"{CORE}.fp8=e4m3", f"{CORE}.moe_token_dispatcher_type=flex", f"{CORE}.moe_enable_deepep=true"),
     {"trainer.precision": "fp8", "trainer.moe_dispatcher": "deepep"},
     {"trainer.precision": "bf16", "trainer.moe_dispatcher": "alltoall"}),
    ("verl_megatron", (f"{CORE}.fp8=false", f"{CORE}.moe_token_dispatcher_type=flex",
                       f"{CORE}.moe_flex_dispatcher_backend=hybridep"),
     {"trainer.precision": "bf16", "trainer.moe_dispatcher": "hybridep"},
     {"trainer.precision": "fp8", "trainer.moe_dispatcher": "deepep"}),
    ("verl_megatron", (f"{CORE}.recompute_granularity=selective", f"{CORE}.recompute_modules=[moe_act,mla_up_proj]",
                       f"{CORE}.account_for_loss_in_pipeline_split=true",
                       f"{ACTOR}.megatron.override_ddp_config.overlap_grad_reduce=true"),
     {"trainer.recompute_modules": ("moe_act",), "trainer.pipeline_balance": "head", "trainer.gradient_overlap": True},
     {"trainer.recompute_modules": ("core_attn", "moe"), "trainer.gradient_overlap": False}),
    ("verl_megatron", (f"{OPTIMIZER}.use_precision_aware_optimizer=true", f"{ACTOR}.optim.exp_avg_dtype=bf16",
                       f"{ACTOR}.megatron.use_distributed_optimizer=false"),
     {"trainer.gradient_overlap": False, "trainer.optimizer_bytes_per_parameter": 8.0, "trainer.zero_stage": 0}, {}),
    ("controller", (f"{DDP}.grad_reduce_in_fp32=false",), {"trainer.gradient_precision": "bf16"},
     {"trainer.gradient_precision": "fp32"}),
    ("verl_megatron", (f"{ACTOR}.megatron.override_ddp_config.grad_reduce_in_fp32=false",),
     {"trainer.gradient_precision": "bf16"}, {}),
    # Megatron-Core's optimizer on the host is in FP32 whatever is asked for.
    ("verl_megatron", (f"{OPTIMIZER}.use_precision_aware_optimizer=true", f"{OPTIMIZER}.optimizer_cpu_offload=true"),
     {"trainer.optimizer_on_host": True, "trainer.optimizer_bytes_per_parameter": 12.0}, {}),
    ("verl_fsdp", (f"{MODEL}.enable_activation_offload=true", f"{KWARGS}.vllm.async_scheduling=false"),
     {"trainer.activations_on_host": True, "engine.async_scheduling": False},
     {"trainer.activations_on_host": False, "engine.async_scheduling": True}),
    ("controller", (f"{MCORE}.activation_checkpointing=true", f"{MCORE}.recompute_granularity=selective",
                    f"{MCORE}.recompute_modules=[mlp]", f"{MCORE}.optimizer.use_distributed_optimizer=false",
                    f"{DDP}.overlap_grad_reduce=false", f"{DDP}.grad_reduce_in_fp32=true"),
     {"trainer.gradient_precision": "fp32",
      "trainer.recompute": "selective", "trainer.recompute_modules": ("mlp",), "trainer.zero_stage": 0,
      "trainer.gradient_overlap": False}, {"trainer.gradient_overlap": True}),
    # 32 GPUs: 8 samples of 300 tokens train at once on each, below the longest one; 16 for log-probs are above it.
    ("verl_fsdp", SIZES, {"trainer.micro_batch_tokens": 4096, "trainer.logprob_micro_batch_tokens": 4800},
     {"trainer.micro_batch_tokens": 6000, "trainer.logprob_micro_batch_tokens": 6000}),
    ("verl_fsdp", (*SIZES, "actor_rollout_ref.model.use_remove_padding=false"),
     {"trainer.micro_batch_samples": 8, "trainer.logprob_micro_batch_samples": 16},
     {"trainer.micro_batch_samples": 4, "trainer.logprob_micro_batch_samples": 2}),
    ("padded", ("policy.model_name=Qwen/Qwen3-30B-A3B",),
     {"engine.attention_data_parallel": 1, "engine.tensor_parallel": 2},
     {"engine.attention_data_parallel": 4, "engine.expert_parallel": 8, "engine.tensor_parallel": 8}),
    ("padded", ("policy.logprob_batch_size=4",),
     {"trainer.micro_batch_samples": 2, "trainer.logprob_micro_batch_samples": 4},
     {"trainer.logprob_micro_batch_samples": 8}),
    ("padded", (), {"trainer.reference_logprobs": True}, {"trainer.reference_logprobs": False}),
    ("padded", (PENALTY,), {"trainer.reference_logprobs": False}, {"trainer.reference_logprobs": True}),
    ("controller", GATED, {"loop.mode": "sync", "cluster.generation_gpus": 64},
     {"loop.mode": "async", "loop.style": "nemo_rl_in_order", "loop.policy_lag": 1}),
    ("controller", (*GATED[:1], "async_rl.sampler.max_lookahead_versions=3", f"{KEPT}=true"),
     {"loop.policy_lag": 3, "loop.style": "nemo_rl_in_order", "loop.asynchrony.at_update": "recompute"},
     {"loop.policy_lag": 2, "loop.recompute_kv": False}),
    ("controller", (*REWARDED, "cluster.num_nodes=42"), {"cluster.num_gpus": 320}, {"cluster.num_gpus": 640}),
    ("controller", (*TEACHERS, "cluster.num_nodes=43"), {"cluster.num_gpus": 320}, {"cluster.num_gpus": 640}),
    ("padded", ("cluster.num_nodes=1", "cluster.gpus_per_node=6", *REWARDED), {"cluster.num_gpus": 4}, {}),
    ("skyrl", MULTI, {"workload.max_sequence_tokens": 32000}, {"workload.max_sequence_tokens": 20000}),
    ("skyrl", MULTI, {"workload.max_sequence_tokens": 32000}, {"workload.max_sequence_tokens": 7000}),
    ("skyrl", MULTI, {"workload.max_sequence_tokens": 32000}, {"workload.max_sequence_tokens": 4001}),
    ("skyrl", ("trainer.placement.colocate_all=false", f"{ENGINES}.num_engines=4", f"{ENGINES}.tensor_parallel_size=2",
               f"{ENGINES}.enable_pd=true", f"{ENGINES}.num_prefill=2"),
     {"engine.prefill.gpus": 4, "cluster.generation": 8}, {}),
    ("skyrl", (), {"workload.max_sequence_tokens": 1536}, {"workload.max_sequence_tokens": 4096}),
]  # fmt: skip


def test_gpus_of_a_reward_model_are_left_out_where_it_is_no_pool() -> None:
    for model, pooled in (("Qwen/Qwen3-4B", True), ("my/reward", False)):
        words = (*REWARDED, "cluster.num_nodes=42", f"++env.reward_model.model_name={model}")
        found = imported("controller", words)[2].scenario
        assert bool(found.pools) == pooled
        assert any("what they do is not simulated" in one.text for one in found.assumptions) != pooled


def imported(name: str, words: tuple[str, ...]) -> tuple[str, Path, Imported]:
    (path,) = FOLDER.glob(f"*/{name}.yaml")
    framework = path.parent.name
    return framework, path, import_config(framework, path, words, ASKED, lenient=True)


@pytest.mark.parametrize(("name", "words", "meant", "changed"), RULES)
def test_keys_mean_what_the_framework_does_with_them_and_come_back(
    name: str, words: tuple[str, ...], meant: dict[str, Any], changed: dict[str, Any], tmp_path: Path
) -> None:
    framework, path, got = imported(name, words)
    assert {key: attrgetter(key)(got.scenario) for key in meant} == meant
    base = read_config(framework, path, words)
    answer = export_scenario(got.scenario, framework, base)
    assert (answer.overrides, answer.left) == ((), ())
    answer = export_scenario(vary(got.scenario, changed), framework, base)
    assert not answer.left
    (tmp_path / "patched.yaml").write_text(answer.config)
    again = import_config(framework, tmp_path / "patched.yaml", asked=ASKED, lenient=True).scenario
    assert {key: attrgetter(key)(again) for key in changed} == changed


TOLD = [
    ("verl_fsdp", ("++reward_model.enable=true", "++reward_model.model.path=Qwen/Qwen3-32B"), "used", 2),
    ("verl_fsdp", ("++reward.reward_model.enable=true", "++reward.reward_model.model_path=a/b"), "not_simulated", 2),
    ("verl_fsdp", ("++reward_model.enable=false", "++reward_model.model.path=Qwen/Qwen3-32B"), "irrelevant", 2),
    ("verl_fsdp", (*SGLANG, f"{KWARGS}.vllm.kv_cache_dtype=fp8", f"{KWARGS}.vllm.block_size=32"), "irrelevant", 2),
    ("verl_fsdp", (f"{KWARGS}.vllm.async_scheduling=true",), "used", 1),
    ("verl_megatron", (f"{CORE}.fp8_recipe=blockwise", f"{CORE}.fp4=e2m1"), "not_simulated", 2),
    ("verl_fsdp", ("++actor_rollout_ref.ref.log_prob_micro_batch_size=64",), "not_simulated", 1),
    ("verl_fsdp", (f"{BYPASS}=true",), "used", 1),
    ("skyrl", MULTI[:2], "used", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words", "status", "count"), TOLD)
def test_what_is_not_simulated_is_told(name: str, words: tuple[str, ...], status: str, count: int) -> None:
    accounting = imported(name, words)[2].accounting
    stated = {word.lstrip("+").partition("=")[0] for word in words[-count:]}
    assert {one.status for one in accounting.keys if one.key in stated} == {status}


def test_one_step_off_begins_with_the_log_probs_of_the_rollout(tmp_path: Path) -> None:
    text = (FOLDER / "verl" / "one_step_off.yaml").read_text().replace("[ppo_trainer", "[one_step_off_ppo_trainer")
    (tmp_path / "config.yaml").write_text(text)
    assert import_config("verl", tmp_path / "config.yaml", asked=ASKED).scenario.policy_logprobs is False


def test_a_file_of_hydra_belongs_where_it_says_itself(tmp_path: Path) -> None:
    """verl's model_engine/megatron.yaml: its key is one of the root, not of a section of its group's name."""
    text = (FOLDER / "verl" / "verl_fsdp.yaml").read_text()
    listed = "defaults: [ppo_trainer, _self_, {engine: seen}, {rollout: many}]"
    (tmp_path / "config.yaml").write_text(text.replace("defaults: [ppo_trainer, _self_]", listed))
    for group in ("engine", "rollout"):
        (tmp_path / group).mkdir()
    (tmp_path / "engine" / "seen.yaml").write_text("# The engine.\n\n# @package _global_\nmodel_engine: megatron\n")
    (tmp_path / "rollout" / "many.yaml").write_text("# @package actor_rollout_ref.rollout\nmax_num_seqs: 77\n")
    found = import_config("verl", tmp_path / "config.yaml", asked=ASKED).scenario
    assert (found.trainer.backend, found.engine.max_running_sequences) == ("megatron", 77)


NEMO_ENGINES = [
    ("trtllm", {"engine.cuda_graphs": True, "engine.weight_precision": "fp8_block", "engine.max_running_sequences": 96,
                "engine.gpu_memory_utilization": 0.5}),
    ("sglang", {"engine.cuda_graphs": False, "engine.prefix_caching": True, "engine.weight_precision": "bf16",
                "engine.gpu_memory_utilization": 0.6, "engine.kv_precision": "fp8"}),
    ("megatron", {"engine.cuda_graphs": True, "engine.weight_precision": "bf16", "engine.max_running_sequences": 64,
                  "engine.prefix_caching": False}),
    ("vllm", {"engine.cuda_graphs": False, "engine.weight_precision": "fp8_block", "engine.prefix_caching": False,
              "engine.gpu_memory_utilization": 0.8, "engine.max_running_sequences": 7}),
]  # fmt: skip


@pytest.mark.parametrize(("backend", "meant"), NEMO_ENGINES)
def test_only_the_section_of_the_engine_that_generates_counts(
    backend: str, meant: dict[str, Any], tmp_path: Path
) -> None:
    """Recipes inherit vllm_cfg from a base whatever generates (NeMo-RL's grpo_math_1B_trtllm.yaml)."""
    path = FOLDER / "nemo-rl" / "padded.yaml"
    place = "++policy.generation"
    words = (
        f"{place}.backend={backend}", f"{place}.vllm_cfg.enforce_eager=true", f"{place}.vllm_cfg.precision=fp8",
        f"{place}.vllm_cfg.enable_prefix_caching=false", f"{place}.vllm_cfg.gpu_memory_utilization=0.8",
        f"{place}.vllm_kwargs.max_num_seqs=7",
        f"{place}.vllm_kwargs.speculative_config={{method: ngram, num_speculative_tokens: 3}}",
        f"{place}.trtllm_cfg={{precision: fp8, max_batch_size: 96, max_num_tokens: 4096, gpu_memory_utilization: 0.5,"
        " async_engine: true, tensor_parallel_size: 1}",
        f"{place}.sglang_cfg={{disable_cuda_graph: true, disable_radix_cache: false, mem_fraction_static: 0.6,"
        " kv_cache_dtype: fp8_e4m3}",
        f"{place}.mcore_generation_config={{max_requests: 64, enable_prefix_caching: false}}",
    )  # fmt: skip
    found = import_config("nemo-rl", path, words, ASKED).scenario
    assert {key: attrgetter(key)(found) for key in meant} == meant
    assert found.speculation.active is (backend == "vllm")
