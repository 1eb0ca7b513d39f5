"""The smallest inputs that public threads and recipes failed with, each with the value that it states."""

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.readers.frameworks.importing import Imported, import_config
from tests.readers.test_missing import VERL

ROLLOUT = "actor_rollout_ref.rollout"


def verl(*words: str, program: str = "verl.trainer.main_ppo") -> Imported:
    """The import of a command line of verl."""
    return import_config("verl", Path("python3"), ("-m", program, *VERL, *words))


def imported(tmp_path: Path, framework: str, name: str, text: str) -> Imported:
    """The import of a file of this text."""
    (tmp_path / name).write_text(text)
    return import_config(framework, tmp_path / name)


def test_an_adapter_of_verls_megatron_is_trained_alone() -> None:
    found = verl("actor_rollout_ref.actor.strategy=megatron", "actor_rollout_ref.model.lora.rank=32").scenario
    assert (found.trainer.backend, found.trainer.lora_rank) == ("megatron", 32)
    given = verl("actor_rollout_ref.model.lora_adapter_path=/an/adapter").scenario
    assert any("adapter" in part for part in given.missing_parts)


def test_engines_on_gpus_of_their_own_take_the_share_that_is_stated_for_them() -> None:
    words = ("actor_rollout_ref.hybrid_engine=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=8")
    shares = (f"{ROLLOUT}.gpu_memory_utilization=0.45", f"{ROLLOUT}.standalone_gpu_memory_utilization=0.7")
    program = "verl.experimental.fully_async_policy.fully_async_main"
    found = [verl(*words, *shares[:count], program=program).scenario.engine for count in (1, 2)]
    assert [one.gpu_memory_utilization for one in found] == [0.45, 0.7]


def test_hydras_own_targets_hold_nothing_of_a_run() -> None:
    assert not verl(f"+{ROLLOUT}.checkpoint_engine._target_=verl.x").accounting.heavy


@pytest.mark.parametrize(
    ("checkpoint", "precision"),
    [("DeepSeek-R1", "fp8_block"), ("Kimi-K2-Thinking", "int4"), ("Qwen3-8B-INT4", "int4"), ("Qwen3-8B", "bf16")],
)
def test_a_checkpoint_is_served_in_the_precision_that_it_is_published_in(
    checkpoint: str, precision: str, tmp_path: Path
) -> None:
    words = "--actor-num-nodes 16 --actor-num-gpus-per-node 8 --rollout-num-gpus-per-engine 32 --colocate "
    text = f"python3 train.py --hf-checkpoint models/{checkpoint} {words} --rollout-batch-size 64\n"
    assert imported(tmp_path, "slime", "run.sh", text).scenario.engine.weight_precision == precision


def test_the_tool_agent_of_areal_has_its_turns_within_its_own_bound(tmp_path: Path) -> None:
    text = """
rollout: {backend: "sglang:d4p1t1", max_head_offpolicyness: 2, consumer_batch_size: 16}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor: {backend: "fsdp:d4p1t1", path: Qwen/Qwen3-8B}
train_dataset: {batch_size: 16, max_length: 512}
tir: {max_turns: 2, max_length: 3000, tool_timeout: 30}
"""
    work = imported(tmp_path, "areal", "x.yaml", text).scenario.workload
    assert work.agent is not None and (work.agent.max_turns, work.max_sequence_tokens) == (2, 3000)


def test_prime_rl_of_april_2026_has_its_group_cap_and_memory(tmp_path: Path) -> None:
    text = """
seq_len = 8192
model = {name = "openai/gpt-oss-20b"}
deployment = {num_train_gpus = 4, num_infer_gpus = 4}
orchestrator = {batch_size = 128, rollouts_per_example = 16, sampling = {max_tokens = 256}}
inference = {enable_lora = true, gpu_memory_utilization = 0.7, model = {max_model_len = 2048}}
trainer = {model = {lora = {rank = 16}}}
"""
    found = imported(tmp_path, "prime-rl", "x.toml", text)
    work, engine = found.scenario.workload, found.scenario.engine
    assert (work.prompts_per_step, work.generations_per_prompt, work.max_response_tokens) == (8, 16, 256)
    assert (engine.gpu_memory_utilization, found.scenario.trainer.lora_rank) == (0.7, 16)
    assert not found.accounting.of("not_understood")


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_a_script_of_ms_swift_is_said_to_be_one(framework: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is swift's; rlsim import swift"):
        imported(tmp_path, framework, "run.sh", "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B\n")
