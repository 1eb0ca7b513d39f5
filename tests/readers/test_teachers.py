"""A distillation is priced with its teacher or refused by the key that names it; never without a word."""

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.importing import import_config
from rlsim.schema.scenario import Scenario
from tests.readers.test_missing import PRIME, TEACHER, VERL

WORDS = (
    "--hf-checkpoint Qwen/Qwen3-1.7B --actor-num-gpus-per-node 2 --rollout-num-gpus 4 --rollout-batch-size 16 "
    "--n-samples-per-prompt 4 --use-opd --opd-type sglang"
)
SERVER = "CUDA_VISIBLE_DEVICES=7 python3 -m sglang.launch_server --model-path {} --port {} --tp {} > log 2>&1 &"
SKYRL = (
    "-m", "skyrl.train.entrypoints.main_base", "trainer.policy.model.path=Qwen/Qwen3-1.7B",
    "trainer.placement.policy_num_gpus_per_node=8", "trainer.train_batch_size=64",
    "trainer.policy_mini_batch_size=64", "generator.inference_engine.num_engines=8",
    "trainer.algorithm.use_kl_in_reward=true", "trainer.algorithm.use_kl_loss=false",
)  # fmt: skip


def imported(tmp_path: Path, framework: str, name: str, text: str, asked: Asked | None = None, lenient: bool = False):
    """The import of a file of this text."""
    (tmp_path / name).write_text(text)
    return import_config(framework, tmp_path / name, asked=asked, lenient=lenient).scenario


def pools(scenario: Scenario) -> list[tuple[str, int, int, float]]:
    """Model, GPUs, tensor parallelism and share of each pool."""
    return [(pool.model.name, pool.gpus, pool.tensor_parallel, pool.share) for pool in scenario.pools]


def verl(*words: str, asked: Asked | None = None, lenient: bool = False) -> Scenario:
    """The import of a command line of verl."""
    command = ("-m", "verl.trainer.main_ppo", *VERL, *words)
    return import_config("verl", Path("python3"), command, asked=asked, lenient=lenient).scenario


def test_a_teacher_without_a_card_is_refused_by_its_key_and_priced_where_its_model_is_given() -> None:
    key = "distillation.teacher_models.teacher.model_path"
    words = (*TEACHER[:3], f"{key}=org/unheard-of")
    with pytest.raises(InputError, match=rf"{key}: the teacher org/unheard-of .*--teacher-model.*--lenient"):
        verl(*words)
    left_out = verl(*words, lenient=True)
    assert not left_out.pools and "org/unheard-of" in left_out.missing_parts[0] and left_out.cluster.num_gpus == 8
    assert pools(verl(*words, asked=Asked(teacher_model="qwen3-32b"))) == [("Qwen3-32B", 4, 2, 1.0)]
    with pytest.raises(InputError, match="--teacher-model is without effect"):
        verl(asked=Asked(teacher_model="qwen3-32b", refuse_idle=True))


def test_one_teacher_of_verl_takes_its_whole_pool() -> None:
    place = "distillation.teacher_models.teacher_model"
    words = (*TEACHER[:3], f"{place}.model_path=Qwen/Qwen3-32B", f"{place}.num_replicas=0")
    assert pools(verl(*words, f"{place}.inference.tensor_model_parallel_size=1")) == [("Qwen3-32B", 4, 1, 1.0)]


def test_a_server_that_the_script_itself_starts_is_the_teacher_of_its_address(tmp_path: Path) -> None:
    start = 'serve() {\n  local log=l\n  SERVER\n  echo "$log"\n}\n'.replace("SERVER", SERVER.format("$1", "$2", 2))
    one = f"{SERVER.format('/m/Qwen3-32B', 13141, 1)}\npython3 train.py {WORDS} --rm-url http://127.0.0.1:13141/g\n"
    found = imported(tmp_path, "slime", "one.sh", one)
    assert (pools(found), found.cluster.num_gpus, found.missing) == ([("Qwen3-32B", 1, 1, 1.0)], 7, ())
    urls = "--opd-teacher-urls a=http://h:1/g b=http://h:2/g default=http://h:1/g"
    two = f"{start}X=$(serve /m/Qwen3-32B 1)\nY=$(serve /m/Qwen3-8B 2)\npython3 train.py {WORDS} {urls}\n"
    assert pools(imported(tmp_path, "miles", "two.sh", two)) == [("Qwen3-32B", 2, 2, 0.5), ("Qwen3-8B", 2, 2, 0.5)]


def test_a_teacher_behind_an_address_alone_is_refused_until_its_model_is_given(tmp_path: Path) -> None:
    text = f"python3 train.py {WORDS} --rm-url http://elsewhere:13141/g\n"
    with pytest.raises(InputError, match="opd_type: the teacher of on-policy distillation"):
        imported(tmp_path, "slime", "run.sh", text)
    asked = Asked(teacher_model="qwen3-32b", teacher_gpus=2)
    assert pools(imported(tmp_path, "slime", "run.sh", text, asked)) == [("Qwen3-32B", 2, 2, 1.0)]
    assert imported(tmp_path, "slime", "run.sh", text, lenient=True).missing_parts


def test_teachers_of_prime_rl_read_the_samples_of_their_environments(tmp_path: Path) -> None:
    teacher = 'name = "org/Qwen3-8B-RL"\nbase_url = "http://localhost:8001/v1"\n'
    second = (
        '[[orchestrator.train.source]]\nname = "other"\nratio = 3\n[orchestrator.train.source.algo]\ntype = "opd"\n'
    )
    found = imported(
        tmp_path, "prime-rl", "x.toml", f"{PRIME}{second}[orchestrator.train.source.algo.teacher]\n{teacher}"
    )
    assert pools(found) == [("Qwen3-8B", 1, 1, 0.75)]
    generates = f'{PRIME}[orchestrator.algo]\ntype = "sft"\n[orchestrator.algo.sampling.source]\n{teacher}'
    with pytest.raises(InputError, match="the generation by the teacher org/Qwen3-8B-RL is not simulated"):
        imported(tmp_path, "prime-rl", "x.toml", generates)
    # One of the policy's layers generates as the policy does.
    same = imported(tmp_path, "prime-rl", "x.toml", generates.replace("Qwen3-8B-RL", "Qwen3-4B-RL"))
    assert not same.pools and not any("generation" in one.part for one in same.missing)


def test_a_reference_of_other_layers_is_a_teacher_in_place_of_the_reference_pass() -> None:
    def skyrl(path: str) -> Scenario:
        return import_config("skyrl", Path("python3"), [*SKYRL, f"trainer.ref.model.path={path}"]).scenario

    taught, plain = skyrl("Qwen/Qwen3-4B"), skyrl("Qwen/Qwen3-1.7B-Base")
    assert (pools(taught), taught.trainer.reference_logprobs) == ([("Qwen3-4B", 0, 1, 1.0)], False)
    assert (pools(plain), plain.trainer.reference_logprobs) == ([], True)
    with pytest.raises(InputError, match=r"trainer\.ref\.model\.path: the reference or teacher /ckpts/step_90"):
        skyrl("/ckpts/step_90")


def test_areals_teacher_has_the_layout_and_gpus_of_its_backend(tmp_path: Path) -> None:
    text = """
rollout: {backend: "vllm:d1p1t1", max_head_offpolicyness: 2, consumer_batch_size: 16}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor: {backend: "fsdp:d1p1t1", path: Qwen/Qwen3-0.6B}
teacher: {backend: "fsdp:d1p1t4", path: Qwen/Qwen2.5-14B-Instruct}
train_dataset: {batch_size: 16, max_length: 512}
cluster: {n_gpus_per_node: 8}
"""
    found = imported(tmp_path, "areal", "x.yaml", text)
    assert (pools(found), found.cluster.num_gpus, found.missing) == ([("Qwen2.5-14B", 4, 4, 1.0)], 6, ())


def test_the_server_that_generates_for_ms_swift_has_its_own_gpus_and_turns(tmp_path: Path) -> None:
    serve = "swift rollout --model Qwen/Qwen3-1.7B --vllm_tensor_parallel_size 2 --vllm_data_parallel_size 2"
    train = (
        "NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model Qwen/Qwen3-1.7B --use_vllm true --vllm_mode server "
        "--per_device_train_batch_size 8 --num_generations 8 --max_completion_length 512\n"
    )
    found = imported(tmp_path, "swift", "a.sh", f"{serve} --multi_turn_scheduler gym --max_turns 10 &\n{train}")
    assert (found.cluster.num_gpus, found.cluster.generation_gpus, found.engine.tensor_parallel) == (8, 4, 2)
    assert found.workload.agent is not None and found.workload.agent.max_turns == 10
    alone = imported(tmp_path, "swift", "b.sh", train.replace("server", "server --vllm_server_pass_dataset true", 1))
    assert alone.workload.agent is None and any("turns" in part for part in alone.missing_parts)
