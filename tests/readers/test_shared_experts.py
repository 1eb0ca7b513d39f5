"""GPUs that share an expert: as stated, else as Megatron-Core takes it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from rlsim.readers.frameworks.importing import import_config
from rlsim.readers.frameworks.megatron import shared_experts


@dataclass
class Sizes:
    tensor_model_parallel_size: int
    expert_model_parallel_size: int
    expert_tensor_parallel_size: int | None = None
    pipeline_model_parallel_size: int = 1


@pytest.mark.parametrize(
    ("sizes", "gpus", "shared"),
    [
        (Sizes(4, 2, 1), 8, 1),
        (Sizes(4, 2), 8, 4),
        (Sizes(4, 2), None, 4),
        (Sizes(4, 4), 8, None),  # Megatron-Core stops on 8
        (Sizes(4, 2, pipeline_model_parallel_size=2), 8, None),
        (Sizes(4, 1), 8, None),
    ],
)
def test_unstated_they_are_those_of_a_layer_where_experts_are_spread(
    sizes: Sizes, gpus: int | None, shared: int | None
) -> None:
    assert shared_experts(sizes, gpus) == shared


SCRIPTS = {
    "swift": """NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-30B-A3B --use_vllm true \\
 --vllm_mode colocate --tensor_model_parallel_size 2 --expert_model_parallel_size 4 --global_batch_size 64 \\
 --micro_batch_size 2 --num_generations 8 --expert_tensor_parallel_size {size}
""",
    "verl": """python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer data.train_batch_size=64 \\
 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.n=8 \\
 actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
 actor_rollout_ref.actor.megatron.expert_model_parallel_size=4 \\
 actor_rollout_ref.actor.megatron.expert_tensor_parallel_size={size}
""",
}


@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_stated_size_is_read(framework: str, tmp_path: Path) -> None:
    for size in (1, 2):
        (tmp_path / "run.sh").write_text(SCRIPTS[framework].format(size=size))
        assert import_config(framework, tmp_path / "run.sh", ()).scenario.trainer.expert_tensor_parallel == size


def test_an_import_says_that_experts_are_whole_where_megatron_would_stop(tmp_path: Path) -> None:
    def said(experts: int, stated: str) -> list[str]:
        script = SCRIPTS["verl"].replace("expert_model_parallel_size=4", f"expert_model_parallel_size={experts}")
        (tmp_path / "run.sh").write_text(script.format(size=stated))
        found = import_config("verl", tmp_path / "run.sh", ()).scenario
        return [one.text for one in found.assumptions if "trainer.expert_tensor_parallel" in one.keys]

    assert len(said(8, "null")) == 1  # 2 x 8 GPUs of experts do not divide 8
    assert said(4, "null") == said(8, "1") == []
