"""SFT and DPO of every framework that has them: one update of a batch of a data set, chosen and rejected in pairs."""

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.projection.project import project
from rlsim.readers.frameworks.asked import SAMPLE_SHARE, Asked
from rlsim.readers.frameworks.importing import import_config
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Trainer

NEMO = """
policy: {model_name: Qwen/Qwen3-8B, train_global_batch_size: 64, train_micro_batch_size: 2,
  max_total_sequence_length: 2048, dtensor_cfg: {enabled: true}, sequence_packing: {enabled: false}}
cluster: {num_nodes: 1, gpus_per_node: 8}
"""
ROLL = """
pretrain: Qwen/Qwen2.5-7B
sequence_length: 2048
TRAIN:
  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 4}
  strategy_args: {strategy_name: fsdp2_train}
  device_mapping: list(range(0,8))
"""
COMMANDS = {
    "openrlhf": "deepspeed --num_gpus 8 --module openrlhf.cli.train_KIND --train.batch_size 64 "
    "--train.micro_batch_size 2 --data.max_len 2048 --model.model_name_or_path Qwen/Qwen3-8B --ds.zero_stage 3",
    "swift": "NPROC_PER_NODE=8 swift KIND --model Qwen/Qwen3-8B --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --max_length 2048 --tuner_type full --deepspeed zero3",
    "trl": "accelerate launch --use_fsdp --num_processes 8 trl/scripts/KIND.py --model_name_or_path Qwen/Qwen3-8B "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 2048",
}


def recipe(folder: Path, framework: str, kind: str, more: str = "") -> Path:
    if framework in COMMANDS:
        command = COMMANDS[framework].replace(
            "KIND", "rlhf --rlhf_type dpo" if (framework, kind) == ("swift", "dpo") else kind
        )
        (folder / "run.sh").write_text(f"{command} {more}\n")
        return folder / "run.sh"
    text = NEMO + f"{kind}: {{max_num_epochs: 1}}\n"
    if framework == "roll":
        keys = "chosen_key: chosen\n" if kind == "dpo" else "response_key: output\n"
        text = ROLL.replace("TRAIN", "actor_train" if kind == "dpo" else "sft_train") + keys
    (folder / "config.yaml").write_text(text)
    return folder / "config.yaml"


def imported(folder: Path, framework: str, kind: str, more: str = "", asked: Asked | None = None) -> Scenario:
    return import_config(framework, recipe(folder, framework, kind, more), asked=asked).scenario


@pytest.mark.parametrize("kind", ["sft", "dpo"])
@pytest.mark.parametrize("framework", ["nemo-rl", "roll", *COMMANDS])
def test_a_step_is_one_update_of_the_batch_on_all_gpus(tmp_path: Path, framework: str, kind: str) -> None:
    found, pair = imported(tmp_path, framework, kind), 2 if kind == "dpo" else 1
    assert found.loop.supervised and found.cluster.num_gpus == found.cluster.training == 8
    assert (found.workload.prompts_per_step, found.workload.generations_per_prompt) == (64, pair)
    assert found.workload.max_sequence_tokens == 2048 and found.trainer.global_batch_samples is None
    assert found.trainer.micro_batch_samples == 2 * pair
    assert found.trainer.reference_logprobs is (kind == "dpo") and not found.policy_logprobs
    phases = project(found).candidate.phases
    assert (phases.logprob_s.mean > 0) is (kind == "dpo") and phases.train_s.mean > 0 == phases.generation_s.mean


def test_lengths_of_a_data_set_are_assumed_of_its_cap_or_as_asked(tmp_path: Path) -> None:
    found = imported(tmp_path, "nemo-rl", "sft")
    room = 2048 - found.workload.prompt_tokens.tokens
    assert found.workload.response_tokens.mean_tokens == round(SAMPLE_SHARE * room)
    assert any(one.log_spread == 0.66 and "data set" in one.text for one in found.assumptions)
    asked = imported(tmp_path, "nemo-rl", "sft", asked=Asked(mean_response_tokens=300.0))
    assert asked.workload.response_tokens.mean_tokens == 300.0
    assert not any("data set" in one.text for one in asked.assumptions)


@pytest.mark.parametrize("framework", ["swift", "trl"])
def test_a_packed_data_set_fills_its_rows(tmp_path: Path, framework: str) -> None:
    found = imported(tmp_path, framework, "sft", "--packing true")
    lengths = found.workload.prompt_tokens.tokens, found.workload.response_tokens.tokens
    assert sum(lengths) == found.workload.max_sequence_tokens
    assert found.trainer.sequence_packing and found.trainer.micro_batch_tokens == 2 * found.workload.max_sequence_tokens


def test_log_probs_that_were_computed_before_cost_a_step_nothing(tmp_path: Path) -> None:
    assert not imported(tmp_path, "trl", "dpo", "--precompute_ref_log_probs true").trainer.reference_logprobs


@pytest.mark.parametrize(("trainer", "packing"), [
    ("fsdp_sft_trainer", "use_remove_padding=true"), ("sft_trainer", "data.use_dynamic_bsz=false"),
])  # fmt: skip
def test_verl_knows_its_supervised_trainers_by_their_programs(tmp_path: Path, trainer: str, packing: str) -> None:
    model = "model.partial_pretrain" if trainer.startswith("fsdp") else "model.path"
    (tmp_path / "run.sh").write_text(
        f"torchrun --nnodes=2 --nproc_per_node=4 -m verl.trainer.{trainer} data.train_batch_size=64 {packing} "
        f"data.micro_batch_size_per_gpu=2 data.max_length=2048 {model}=Qwen/Qwen3-8B\n"
    )
    found = import_config("verl", tmp_path / "run.sh").scenario
    assert found.loop.supervised and found.cluster.num_gpus == 8 and found.workload.samples_per_step == 64
    assert found.trainer.sequence_packing and found.trainer.micro_batch_tokens >= found.workload.max_sequence_tokens


def test_what_is_no_update_of_a_data_set_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("deepspeed --module openrlhf.cli.train_rm --train.batch_size 64\n")
    with pytest.raises(InputError, match="starts no training of openrlhf"):
        import_config("openrlhf", tmp_path / "run.sh")


@pytest.mark.parametrize("framework", ["slime", "miles"])
def test_slime_trains_on_given_samples_with_all_its_gpus(tmp_path: Path, framework: str) -> None:
    (tmp_path / "run.sh").write_text(
        "python3 train.py --hf-checkpoint Qwen/Qwen3-8B --actor-num-nodes 1 --actor-num-gpus-per-node 8 "
        "--rollout-batch-size 64 --global-batch-size 64 --loss-type sft_loss --debug-train-only "
        "--tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 8192\n"
    )
    found = import_config(framework, tmp_path / "run.sh").scenario
    assert found.loop.supervised and found.cluster.num_gpus == found.cluster.training == 8
    assert (found.workload.prompts_per_step, found.workload.generations_per_prompt) == (64, 1)


def test_a_pipeline_of_rollouts_alone_trains_nothing(tmp_path: Path) -> None:
    text = ROLL.replace("TRAIN", "actor_train") + "actor_infer: {device_mapping: 'list(range(0,4))'}\n"
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "none.yaml").write_text(text.replace("device_mapping: list(range(0,8))", "device_mapping: null"))
    # By its program or, started by any other, by a trainer without GPUs.
    (tmp_path / "run.sh").write_text("python start_agentic_rollout_pipeline.py --config_path . --config_name config\n")
    for name in ("run.sh", "none.yaml"):
        found = import_config("roll", tmp_path / name).scenario
        assert found.loop.rollouts_alone and found.cluster.num_gpus == found.cluster.generation == 4
        assert found.trainer == Trainer()


def test_an_evaluation_of_skyrl_is_a_batch_of_rollouts_alone(tmp_path: Path) -> None:
    words = (
        "trainer.policy.model.path=Qwen/Qwen3-8B trainer.train_batch_size=8 generator.inference_engine.num_engines=4"
    )
    (tmp_path / "run.sh").write_text(
        f"python -m skyrl.train.entrypoints.main_generate {words} trainer.eval_batch_size=96 "
        "generator.eval_n_samples_per_prompt=2 generator.eval_sampling_params.max_generate_length=2048\n"
    )
    found = import_config("skyrl", tmp_path / "run.sh").scenario
    assert found.loop.rollouts_alone and found.cluster.num_gpus == 4
    assert (found.workload.prompts_per_step, found.workload.generations_per_prompt) == (96, 2)
    assert found.workload.max_response_tokens == 2048
