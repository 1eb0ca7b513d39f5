"""Projects with another framework's words, or nearly: what they start is read as that framework's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.readers.frameworks.importing import Imported, import_config

VERL = """actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct data.train_batch_size=64 data.max_prompt_length=2048 \
data.max_response_length=500 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n={n} \
actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=8"""


def run(folder: Path, framework: str, command: str, *words: str) -> Imported:
    script = folder / "run.sh"
    script.write_text(command)
    return import_config(framework, script, words)


@pytest.mark.parametrize("program", ["-m examples.x.train_agent", "train.py", "-m agent_r1.trainer.main"])
def test_any_program_with_verls_words_is_read_as_its_trainer(tmp_path: Path, program: str) -> None:
    words = VERL.format(n=8)
    own = run(tmp_path, "verl", f"python3 -m verl.trainer.main_ppo {words}")
    other = run(tmp_path, "verl", f"accelerate launch {program} {words}")
    assert other.scenario == own.scenario
    assert any("has verl's words" in note for note in other.accounting.notes)
    assert not any("has verl's words" in note for note in own.accounting.notes)
    with pytest.raises(InputError, match="starts no training of verl"):
        run(tmp_path, "verl", f"python3 {program} model.path=Qwen/Qwen2.5-3B")


def test_search_r1_repeats_prompts_itself_and_searches_before_it_answers(tmp_path: Path) -> None:
    words = VERL.format(n=1) + " actor_rollout_ref.rollout.n_agent=5 max_turns=2 data.max_start_length=1024 "
    found = run(tmp_path, "verl", f"python3 -m verl.trainer.main_ppo {words}").scenario
    assert found.workload.generations_per_prompt == 5
    assert found.trainer.global_batch_samples == 32  # samples: verl multiplies by rollout.n alone
    assert found.workload.agent is not None and found.workload.agent.max_turns == 3
    single = run(tmp_path, "verl", f"python3 -m verl.trainer.main_ppo {words} do_search=false").scenario
    assert single.workload.agent is None


def test_rllm_trains_on_all_of_a_step_where_a_mini_batch_is_larger(tmp_path: Path) -> None:
    words = VERL.format(n=4).replace("data.train_batch_size=64", "data.train_batch_size=16")
    with pytest.raises(InputError, match="exceeds the 64 samples"):
        run(tmp_path, "verl", f"python3 train.py {words}")
    found = run(tmp_path, "verl", f"python3 train.py {words} rllm.agent.max_steps=6")
    assert found.scenario.trainer.global_batch_samples == 64
    assert found.scenario.workload.agent is not None and found.scenario.workload.agent.max_turns == 6
