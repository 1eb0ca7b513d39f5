"""ms-swift's launch scripts: trl's and Megatron's words under names of their own, processes from the environment."""

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.readers.frameworks.importing import Imported, import_config

GRPO = """CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 \\
swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --use_vllm true --vllm_mode {mode} \\
 --vllm_tensor_parallel_size 2 --max_length 1024 --max_completion_length 2048 --per_device_train_batch_size 4 \\
 --gradient_accumulation_steps 2 --num_generations 8 {more}
"""
MEGATRON = """NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-30B-A3B --use_vllm true \\
 --vllm_mode colocate --tuner_type full --tensor_model_parallel_size 2 --expert_model_parallel_size 4 \\
 --global_batch_size 64 --micro_batch_size 2 --steps_per_generation 4 --num_generations 8 --max_length 2048 \\
 --max_completion_length 2048 --recompute_granularity full {more}
"""
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
GKD = """NPROC_PER_NODE=8 swift rlhf --rlhf_type gkd --model Qwen/Qwen3-1.7B --teacher_model Qwen/Qwen3-32B \\
 --tuner_type full --use_vllm true --vllm_mode colocate --max_length 1024 --max_completion_length 1024 \\
 --per_device_train_batch_size 4 --deepspeed zero3
"""


def imported(folder: Path, text: str, *words: str) -> Imported:
    script = folder / "run.sh"
    script.write_text(text)
    return import_config("swift", script, words)


def test_a_grpo_script_counts_completions_on_the_processes_of_its_environment(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO.format(mode="colocate", more="--deepspeed zero2")).scenario
    assert (found.cluster.num_gpus, found.cluster.colocated, found.engine.tensor_parallel) == (4, True, 2)
    assert (found.workload.prompts_per_step, found.trainer.global_batch_samples) == (4 * 4 * 2 // 8, 4 * 4 * 2)
    assert (found.workload.max_sequence_tokens, found.trainer.lora_rank, found.trainer.zero_stage) == (3072, 8, 2)
    assert found.trainer.reference_logprobs  # beta is 0.04 where none is stated
    assert not imported(tmp_path, GRPO.format(mode="colocate", more="--beta 0")).scenario.trainer.reference_logprobs
    more = imported(tmp_path, GRPO.format(mode="server", more="--steps_per_generation 8 --tuner_type full")).scenario
    assert (more.cluster.num_gpus, more.cluster.generation_gpus, more.trainer.lora_rank) == (6, 2, None)
    assert more.workload.prompts_per_step * 8 == 4 * 4 * 8 and more.loop.mode == "sync"
    assert more.trainer.zero_stage == 0  # neither DeepSpeed nor FSDP
    ahead = imported(tmp_path, GRPO.format(mode="server", more="--async_generate true")).scenario
    assert (ahead.loop.mode, ahead.loop.policy_lag) == ("async", 1)


def test_megatron_counts_its_own_batch(tmp_path: Path) -> None:
    found = imported(tmp_path, MEGATRON.format(more="")).scenario
    trainer = found.trainer
    assert (trainer.backend, trainer.tensor_parallel, trainer.expert_parallel) == ("megatron", 2, 4)
    assert (trainer.global_batch_samples, found.workload.prompts_per_step, trainer.lora_rank) == (64, 32, None)
    assert (trainer.recompute, trainer.sequence_packing, trainer.zero_stage) == ("full", True, None)


def test_megatrons_memory_and_precision_are_its_options(tmp_path: Path) -> None:
    plain = imported(tmp_path, MEGATRON.format(more="")).scenario.trainer
    assert (plain.sequence_parallel, plain.gradient_overlap, plain.precision) == (False, False, "bf16")
    assert (plain.optimizer_bytes_per_parameter, plain.virtual_stages, plain.pipeline_balance) == (12, 1, None)
    more = (
        "--sequence_parallel true --overlap_grad_reduce true --use_precision_aware_optimizer true --exp_avg_dtype bf16 "
        "--fp8_format e4m3 --use_distributed_optimizer false --recompute_granularity selective "
        "--recompute_modules moe_act mlp"
    )
    own = imported(tmp_path, MEGATRON.replace("--recompute_granularity full", "").format(more=more)).scenario.trainer
    assert (own.sequence_parallel, own.gradient_overlap, own.precision, own.zero_stage) == (True, True, "fp8", 0)
    assert (own.optimizer_bytes_per_parameter, own.recompute_modules) == (8, ("mlp", "moe_act"))


def test_megatrons_other_options_are_read(tmp_path: Path) -> None:
    plain = imported(tmp_path, MEGATRON.format(more="")).scenario.trainer
    assert (plain.gradient_precision, plain.optimizer, plain.mtp_layers, plain.moe_dispatcher) == (
        "fp32", "adam", 0, "alltoall")  # fmt: skip
    more = (
        "--main_grads_dtype bf16 --optimizer dist_muon --mtp_num_layers 1 --moe_enable_deepep true --fp4_format e2m1 "
        "--use_megatron_fsdp true"
    )
    own = imported(tmp_path, MEGATRON.replace("Qwen/Qwen3-30B-A3B", NEXT).format(more=more)).scenario.trainer
    assert (own.gradient_precision, own.optimizer, own.mtp_layers, own.moe_dispatcher) == (
        "bf16", "muon", 1, "deepep")  # fmt: skip
    assert (own.precision, own.zero_stage) == ("nvfp4", 3)
    partly = imported(
        tmp_path, MEGATRON.format(more="--use_megatron_fsdp true --data_parallel_sharding_strategy optim_grads")
    ).scenario
    assert partly.trainer.zero_stage == 2


def test_vllms_options_are_read(tmp_path: Path) -> None:
    moe = GRPO.replace("Qwen/Qwen2.5-7B-Instruct", NEXT)
    plain = imported(tmp_path, moe.format(mode="colocate", more="")).scenario
    assert (plain.engine.expert_parallel, plain.engine.lora_rank, plain.speculation.method) == (1, 0, "none")
    more = (
        "--vllm_enable_expert_parallel true --vllm_enable_lora true --lora_rank 16 --experts_impl eager "
        '--vllm_speculative_config \'{{"method":"qwen3_next_mtp","num_speculative_tokens":2}}\' --vllm_quantization fp8'
    )
    own = imported(tmp_path, moe.replace("{more}", more).format(mode="colocate")).scenario
    assert (own.engine.expert_parallel, own.engine.lora_rank, own.engine.weight_precision) == (2, 16, "fp8")
    assert (own.speculation.method, own.speculation.draft_length) == ("mtp", 2)
    assert (own.trainer.expert_products, own.trainer.frozen_vision) == ("loop", True)
    assert not imported(
        tmp_path, GRPO.format(mode="colocate", more="--freeze_vit false")
    ).scenario.trainer.frozen_vision


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ("--tuner_type boft", "the tuner boft, which trains less than all weights"),
        ("--tuner_type full --freeze_llm true", "the frozen language model"),
        ("--tuner_type full --use_galore true", "the projected states of GaLore's optimizer"),
        ("--tuner_type full --lisa_activated_layers 2", "LISA, which trains 2 layers at a time"),
    ],
)
def test_what_trains_less_than_all_weights_is_missing(more: str, part: str, tmp_path: Path) -> None:
    assert part in [one.part for one in imported(tmp_path, GRPO.format(mode="colocate", more=more)).scenario.missing]


def test_turns_and_teachers_are_simulated_or_said(tmp_path: Path) -> None:
    turns = imported(tmp_path, GRPO.format(mode="colocate", more="--multi_turn_scheduler s --max_turns 3")).scenario
    assert turns.workload.agent is not None and turns.workload.agent.max_turns == 3
    unbounded = imported(tmp_path, GRPO.format(mode="colocate", more="--multi_turn_scheduler tool_loop")).scenario
    assert any("the further turns of tool_loop" in text for text in unbounded.missing_parts)
    (pool,) = imported(tmp_path, GKD).scenario.pools
    assert (pool.role, pool.model.name, pool.gpus) == ("teacher", "Qwen3-32B", 0)
    with pytest.raises(InputError, match="teacher_model_server: the teacher behind http://t:1"):
        imported(tmp_path, GKD.replace("--teacher_model Qwen/Qwen3-32B", "--teacher_model_server http://t:1"))


def test_what_generates_nothing_is_refused_and_trl_is_not_taken_for_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rlhf_type: 'kto' is not simulated; known: grpo, gkd"):
        imported(tmp_path, "swift rlhf --rlhf_type kto --model Qwen/Qwen3-8B")
    script = tmp_path / "run.sh"
    script.write_text(GRPO.format(mode="colocate", more=""))
    with pytest.raises(InputError, match="is swift's; rlsim import swift"):
        import_config("trl", script)
