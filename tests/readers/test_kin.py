"""Projects with another framework's words, or nearly: what they start is read as that framework's."""

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


OWN = """HERE="$(pwd)"
python3 -m verl.trainer.main_ppo --config-path="$HERE/cfg" --config-name=mine \\
  actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct trainer.n_gpus_per_node=8
"""


def test_a_script_of_a_sub_folder_runs_in_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cfg").mkdir()
    own = "data: {train_batch_size: 256}\nactor_rollout_ref: {rollout: {n: 16, multi_turn: {enable: true}}}\n"
    (tmp_path / "cfg" / "mine.yaml").write_text(own)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.sh").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    found = import_config("verl", Path("sub/run.sh")).scenario
    assert (found.workload.prompts_per_step, found.workload.generations_per_prompt) == (256, 16)
    assert found.workload.agent is not None
    monkeypatch.chdir(tmp_path / "sub")
    with pytest.raises(InputError, match=r"mine\.yaml is not there.*--root"):  # no defaults in place of a user's file
        import_config("verl", Path("run.sh"))


def test_a_page_out_of_its_repository_finds_what_it_inherits_or_says_where_it_stands(tmp_path: Path) -> None:
    clone = tmp_path / "RL" / "examples" / "configs" / "recipes"
    clone.mkdir(parents=True)
    sizes = "cluster: {gpus_per_node: 8, num_nodes: 2}\ngrpo: {num_prompts_per_step: 64}\n"
    (clone.parent / "base.yaml").write_text(f"defaults: grpo_math_1B.yaml\n{sizes}")
    page = tmp_path / "page.yaml"
    for parent, message in (("./base.yaml", "no such file as"), ("../base.yaml", "lies outside")):
        page.write_text(f"defaults: {parent}\npolicy: {{model_name: Qwen/Qwen3-8B}}\n")
        with pytest.raises(InputError, match=rf"{message}.*--root.*NVIDIA-NeMo/RL|{message}.*NVIDIA-NeMo/RL.*--root"):
            import_config("nemo-rl", page)
    found = import_config("nemo-rl", page, root=tmp_path / "RL").scenario
    assert (found.cluster.num_gpus, found.workload.prompts_per_step) == (16, 64)


def test_ragens_groups_of_environments_are_prompts_and_what_others_refer_to_is_used(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("""
model_path: Qwen/Qwen2.5-0.5B-Instruct
ppo_mini_batch_size: 32
actor_rollout_ref:
  model: {path: '${model_path}'}
  actor: {ppo_mini_batch_size: '${ppo_mini_batch_size}', ppo_micro_batch_size_per_gpu: 1}
  rollout: {tensor_model_parallel_size: 1, max_model_len: 3600, response_length: 400, rollout_filter_ratio: 0.25}
data: {max_prompt_length: null, max_response_length: null, train_batch_size: null}
trainer: {n_gpus_per_node: 1}
agent_proxy: {max_turn: 5}
es_manager: {train: {env_groups: 8, group_size: 16}}
ctx_manager: {generation: {gen_config: {response_length: '${actor_rollout_ref.rollout.response_length}'}}}
""")
    found = import_config("verl", tmp_path / "c.yaml")
    workload = found.scenario.workload
    assert (workload.prompts_per_step, workload.generations_per_prompt, workload.max_sequence_tokens) == (8, 16, 3600)
    assert (workload.max_response_tokens, found.scenario.trainer.global_batch_samples) == (400, 32)
    assert workload.agent is not None and workload.agent.max_turns == 5
    assert {one.key: one.status for one in found.accounting.keys}["ppo_mini_batch_size"] == "used"
    assert any("trains on 0.25 of the groups" in text for text in found.scenario.missing_parts)


def test_arctics_own_switch_shares_the_gpus(tmp_path: Path) -> None:
    words = (
        "trainer.placement.colocate_all=false trainer.placement.policy_num_gpus_per_node=8 trainer.train_batch_size=64 "
        "generator.inference_engine.num_engines=8 trainer.policy.model.path=Qwen/Qwen3-8B "
        "trainer.policy_mini_batch_size=64 generator.n_samples_per_prompt=4 "
    )
    command = f"python -m skyrl.train.entrypoints.main_base {words}"
    apart, shared = (
        run(tmp_path, "skyrl", command + more).scenario.cluster for more in ("", "trainer.arctic_rl.colocate=true")
    )
    assert (apart.num_gpus, apart.colocated) == (16, False)
    assert (shared.num_gpus, shared.colocated) == (8, True)


def test_tools_without_a_switch_and_workers_on_a_part_of_the_gpus_are_said(tmp_path: Path) -> None:
    tools = "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml"
    found = run(tmp_path, "verl", f"python3 -m verl.trainer.main_ppo {VERL.format(n=4)} {tools}").scenario
    assert any("further turns of an agent (tools.yaml)" in text for text in found.missing_parts)
    roll = """
pretrain: Qwen/Qwen2.5-7B-Instruct
rollout_batch_size: 64
num_return_sequences_in_group: 8
response_length: 2048
actor_train:
  device_mapping: 'list(range(0,{gpus}))'
  training_args: {{per_device_train_batch_size: 1, gradient_accumulation_steps: 32}}
actor_infer: {{device_mapping: 'list(range(0,16))'}}
"""
    for gpus, said in ((8, ("without training on 8 of the 16 GPUs alone: the real step is longer",)), (16, ())):
        (tmp_path / "roll.yaml").write_text(roll.format(gpus=gpus))
        assert import_config("roll", tmp_path / "roll.yaml").scenario.missing_parts == said
