"""Launch scripts and command lines as they are: followed for their words, never executed."""

from pathlib import Path

import pytest

from rlsim import vary
from rlsim.cli import main
from rlsim.errors import InputError
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.readers.frameworks.importing import import_config, read_config
from rlsim.readers.shell.script import commands_of

VERL = """#!/usr/bin/env bash
#SBATCH --nodes=4
set -xeuo pipefail
NNODES=${NNODES:-${SLURM_NNODES:-1}}
INFER=${INFER_BACKEND:-vllm}
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
response=$((1024 * 3)); n=8
case "${DEVICE}" in
    gpu) tp=${ROLLOUT_TP:-2} ;;
    *) tp=16 ;;
esac
if [ "$INFER" = vllm ] && [[ $n -gt 4 ]]; then EXTRA=(actor_rollout_ref.rollout.enforce_eager=True); else EXTRA=(); fi
DATA=(
    data.train_batch_size=128  # prompts
    data.max_prompt_length=1024
    data.max_response_length=$response
)
EXTRA+=("trainer.logger=['console']" algorithm.adv_estimator=grpo)
touch harm
python3 -m verl.trainer.main_ppo "${DATA[@]}" \\
    actor_rollout_ref.model.path="$HOME/models/Qwen3-8B" actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=$tp actor_rollout_ref.rollout.n=$n \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.7 trainer.nnodes=$NNODES trainer.n_gpus_per_node=8 \\
    ${EXTRA[@]} "$@"
"""
SLIME = """
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/m.sh"
ARGS=( --hf-checkpoint /models/Qwen3-4B --rollout-batch-size 32 --n-samples-per-prompt 8
  --rollout-max-response-len 4096 --rollout-max-prompt-len 1024 --global-batch-size 128
  --use-dynamic-batch-size --max-tokens-per-gpu 9216 --use-kl-loss )
ray job submit --runtime-env-json="{\\"a\\": 1}" -- python3 train_async.py --actor-num-nodes 1 \\
  --actor-num-gpus-per-node 4 --rollout-num-gpus 4 --rollout-num-gpus-per-engine 2 ${MODEL_ARGS[@]} ${ARGS[@]} \\
  --sglang-mem-fraction-static 0.7 --tensor-model-parallel-size 2 --sglang-disable-overlap-schedule
"""
NEMO_RL = """
defaults: grpo_math_1B.yaml
policy:
  model_name: Qwen/Qwen3-8B
  max_total_sequence_length: 8192
  generation: {max_new_tokens: 1024}
cluster: {gpus_per_node: 8}
"""
OPENRLHF = """python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 8 \\
 --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --train.colocate_all --vllm.gpu_memory_utilization 0.5 \\
 --actor.model_name_or_path Qwen/Qwen3-8B --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 \\
 --train.batch_size 512 --data.max_len 4096 --rollout.max_new_tokens 3072 --ds.packing_samples --ds.zero_stage 3 \\
 --actor.gradient_checkpointing_enable --train.dynamic_batch_enable --algo.advantage.estimator group_norm \\
 --ds.enable_sleep
"""
AREAL = """
cluster: {n_nodes: 1, n_gpus_per_node: 8}
rollout: {backend: "sglang:d2t2", max_concurrent_rollouts: 64, max_head_offpolicyness: 2}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor: {backend: "fsdp:d4", path: Qwen/Qwen3-4B, ppo_n_minibatches: 2, gradient_checkpointing: true, kl_ctl: 0.0,
  mb_spec: {max_tokens_per_mb: 10240}}
sglang: {mem_fraction_static: 0.8}
train_dataset: {batch_size: 64, max_length: 512}
"""
PRIME = """
seq_len = 4096
[model]
name = "Qwen/Qwen3-4B-Thinking-2507"
[deployment]
num_train_gpus = 4
num_infer_gpus = 4
[orchestrator]
batch_size = 256
group_size = 16
max_off_policy_steps = 4
[orchestrator.concurrency]
max_inflight = 512
[inference.vllm]
tensor_parallel_size = 2
"""
ROLL = """
pretrain: Qwen/Qwen3-4B
num_gpus_per_node: 8
rollout_batch_size: 64
num_return_sequences_in_group: 8
prompt_length: 1024
response_length: 3072
async_generation_ratio: 1
adv_estimator: reinforce
actor_train:
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 32}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 2, recompute_granularity: full}
  device_mapping: list(range(0,4))
actor_infer:
  strategy_args: {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.8, tensor_parallel_size: 2}}
  device_mapping: list(range(4,8))
"""
RECIPES = {
    "verl": ("run.sh", VERL, {
        "workload.prompts_per_step": 128, "workload.generations_per_prompt": 8, "workload.max_sequence_tokens": 4096,
        "cluster.num_gpus": 32, "trainer.global_batch_samples": 512, "engine.tensor_parallel": 2,
        "engine.cuda_graphs": False, "engine.gpu_memory_utilization": 0.7, "trainer.micro_batch_tokens": 8192,
    }),
    "slime": ("run.sh", SLIME, {
        "workload.prompts_per_step": 32, "workload.generations_per_prompt": 8, "workload.max_sequence_tokens": 5120,
        "cluster.num_gpus": 8, "cluster.generation_gpus": 4, "loop.style": "slime", "engine.tensor_parallel": 2,
        "trainer.tensor_parallel": 2, "trainer.global_batch_samples": 128, "trainer.reference_logprobs": True,
        "engine.overlap_scheduling": False,
    }),
    "openrlhf": ("run.sh", OPENRLHF, {
        "workload.prompts_per_step": 128, "workload.generations_per_prompt": 8, "workload.max_sequence_tokens": 4096,
        "cluster.num_gpus": 8, "cluster.generation_gpus": None, "trainer.backend": "fsdp", "trainer.recompute": "full",
        "engine.gpu_memory_utilization": 0.5, "trainer.micro_batch_tokens": 16192, "trainer.critic": False,
    }),
    "areal": ("a.yaml", AREAL, {
        "workload.prompts_per_step": 64, "workload.generations_per_prompt": 4, "cluster.num_gpus": 8,
        "cluster.generation_gpus": 4, "loop.style": "areal", "loop.policy_lag": 2, "loop.max_in_flight_groups": 64,
        "engine.name": "sglang", "engine.tensor_parallel": 2, "trainer.global_batch_samples": 128,
        "trainer.reference_logprobs": False,
    }),
    "prime-rl": ("p.toml", PRIME, {
        "workload.prompts_per_step": 16, "workload.generations_per_prompt": 16, "cluster.num_gpus": 8,
        "loop.style": "prime_rl", "loop.max_age": 4, "loop.max_in_flight_groups": 32, "engine.tensor_parallel": 2,
        "trainer.optimizer_on_host": True, "trainer.logits_chunk_tokens": 8192, "trainer.flash_attention_2": False,
    }),
    "roll": ("r.yaml", ROLL, {
        "workload.prompts_per_step": 64, "workload.generations_per_prompt": 8, "cluster.num_gpus": 8,
        "cluster.generation_gpus": 4, "loop.style": "roll", "loop.staleness_fraction": 1.0,
        "trainer.global_batch_samples": 64, "trainer.recompute": "full", "engine.tensor_parallel": 2,
    }),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository to work in."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.sh").write_text(
        "MODEL_ARGS=(\n   --swiglu\n   --num-layers 36\n   --vocab-size 151936\n)\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def value(scenario: object, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(scenario, section), name)


@pytest.mark.parametrize("framework", RECIPES)
def test_every_framework_means_what_its_words_say_and_export_changes_only_those(framework: str, folder: Path) -> None:
    name, text, expected = RECIPES[framework]
    (folder / name).write_text(text)
    found = import_config(framework, Path(name))
    assert {key: value(found.scenario, key) for key in expected} == expected
    assert found.accounting.of("not_understood") == ()
    assert not (folder / "harm").exists()
    scenario, base = found.scenario, read_config(framework, Path(name))
    same = export_scenario(scenario, framework, base)
    assert (same.overrides, same.left) == ((), ())
    changed = export_scenario(vary(scenario, {"engine.gpu_memory_utilization": 0.55}), framework, base)
    assert len(changed.overrides) == 1 and "0.55" in changed.overrides[0]
    assert changed.overrides[0].startswith("--") == (framework in ("slime", "openrlhf", "prime-rl"))


def test_a_script_that_left_its_repository_means_the_same(folder: Path) -> None:
    words = "model_engine=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"
    words += " actor_rollout_ref.actor.megatron.param_offload=True"
    (folder / "run.sh").write_text(VERL.replace('"$@"', f'{words} "$@"'))
    found = import_config("verl", Path("run.sh"))
    trainer = found.scenario.trainer
    assert (trainer.backend, trainer.tensor_parallel, trainer.offload) == ("megatron", 4, True)
    back = export_scenario(
        vary(found.scenario, {"trainer.backend": "fsdp", "trainer.tensor_parallel": 1, "trainer.offload": False}),
        "verl",
        read_config("verl", Path("run.sh")),
    )
    assert not back.left
    again = import_config("verl", Path("run.sh"), back.overrides).scenario.trainer
    assert (again.backend, again.offload) == ("fsdp", False)
    (folder / "run.sh").write_text(SLIME)
    assert not any("m.sh" in note for note in read_config("slime", Path("run.sh")).notes)
    (folder / "models" / "m.sh").unlink()
    assert "m.sh, which the script reads, is not there: what it sets is left out" in " ".join(
        read_config("slime", Path("run.sh")).notes
    )


@pytest.mark.parametrize("framework", ["verl", "slime", "openrlhf", "nemo-rl"])
def test_the_cap_of_a_response_is_taken_over(framework: str, folder: Path) -> None:
    name, text, _ = {**RECIPES, "nemo-rl": ("n.yaml", NEMO_RL, {})}[framework]
    (folder / name).write_text(text)
    workload = import_config(framework, Path(name), asked=Asked(mean_response_tokens=500)).scenario.workload
    assert workload.max_response_tokens == {"verl": 3072, "slime": 4096, "openrlhf": 3072, "nemo-rl": 1024}[framework]
    assert workload.max_response_tokens < workload.max_sequence_tokens - workload.prompt_tokens.tokens


@pytest.mark.parametrize("framework", RECIPES)
def test_the_cap_of_a_response_is_handed_back(framework: str, folder: Path) -> None:
    name, text, _ = RECIPES[framework]
    (folder / name).write_text(text)
    asked = Asked(mean_response_tokens=200)
    scenario = vary(import_config(framework, Path(name), asked=asked).scenario, {"workload.max_response_tokens": 640})
    found = export_scenario(scenario, framework, read_config(framework, Path(name)))
    words = [word for line in found.overrides for word in line.split(" " if line.startswith("--") else None, 1)]
    again = import_config(framework, Path(name), words, asked=asked).scenario.workload
    assert (again.max_response_tokens, again.max_sequence_tokens) == (640, scenario.workload.max_sequence_tokens)
    assert found.left == ()


def test_variables_command_lines_and_what_a_script_leaves_open(folder: Path) -> None:
    (folder / "run.sh").write_text(VERL)
    found = import_config(
        "verl", Path("run.sh"), ["NNODES=2", "ROLLOUT_TP=4", "actor_rollout_ref.rollout.n=16"]
    ).scenario
    assert (found.cluster.num_gpus, found.engine.tensor_parallel, found.workload.generations_per_prompt) == (16, 4, 16)
    (folder / "run.sh").write_text(VERL.replace("trainer.nnodes=$NNODES", "trainer.nnodes=$WORLD"))
    with pytest.raises(InputError, match=r"trainer\.nnodes: must be a whole number, got '\$WORLD'"):
        import_config("verl", Path("run.sh"))
    assert import_config("verl", Path("run.sh"), ["WORLD=2"]).scenario.cluster.num_gpus == 16
    (folder / "x.yaml").write_text("policy: {model_name: Qwen/Qwen3-8B}\ncluster: {gpus_per_node: 8}\n")
    words = ["run", "examples/run_grpo.py", "--config", "x.yaml", "grpo.num_prompts_per_step=64", "cluster.num_nodes=2"]
    found = import_config("nemo-rl", Path("uv"), words).scenario
    assert (found.workload.prompts_per_step, found.cluster.num_gpus) == (64, 16)
    words = (
        "launch --num_processes 4 grpo.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --use_vllm"
        " --gradient_accumulation_steps 4 --num_generations 8 --max_completion_length 1024 --vllm_mode colocate"
    )
    found = import_config("trl", Path("accelerate"), words.split()).scenario
    assert (found.workload.prompts_per_step, found.cluster.num_gpus, found.trainer.global_batch_samples) == (4, 4, 32)


def test_skyrls_layouts_unknown_keys_and_ppo_of_nemo_rl(folder: Path) -> None:
    common = "trainer.policy.model.path=Qwen/Qwen3-8B trainer.placement.policy_num_gpus_per_node=8 "
    flat = common + "generator.num_inference_engines=4 generator.inference_engine_tensor_parallel_size=2"
    nested = common + "generator.inference_engine.num_engines=4 generator.inference_engine.tensor_parallel_size=2"
    read = []
    for name, words in (("flat", flat), ("nested", nested)):
        (folder / f"{name}.sh").write_text(f"uv run -m skyrl.train.entrypoints.main_base {words}\n")
        read.append(import_config("skyrl", Path(f"{name}.sh")))
    assert read[0].scenario.engine == read[1].scenario.engine and read[1].scenario.engine.tensor_parallel == 2
    assert any("another release" in note for note in read[0].accounting.notes)
    (folder / "c.yaml").write_text(
        "policy: {model_name: Qwen/Qwen3-8B, rollout_parallel_degree: 4}\n"
        "new_backend: {tensor_size: 2, verbose: true}\n"
    )
    with pytest.raises(InputError, match=r"rollout_parallel_degree.*tensor_size.*--lenient"):
        import_config("nemo-rl", Path("c.yaml"))
    kept = import_config("nemo-rl", Path("c.yaml"), lenient=True).accounting
    assert {one.key for one in kept.of("not_understood")} >= {"new_backend.tensor_size", "new_backend.verbose"}
    (folder / "c.yaml").write_text(
        "ppo: {num_prompts_per_step: 64, num_generations_per_prompt: 2, ppo_epochs: 4, async_ppo: {enabled: true}}\n"
        "policy: {model_name: Qwen/Qwen3-8B, train_global_batch_size: 64,\n"
        "  generation: {colocated: {enabled: false, resources: {gpus_per_node: 4}}}}\n"
        "value: {model_name: Qwen/Qwen3-8B}\ncluster: {gpus_per_node: 8}\n"
    )
    s = import_config("nemo-rl", Path("c.yaml"), ["ppo.num_prompts_per_step=32"]).scenario
    assert (s.workload.prompts_per_step, s.workload.generations_per_prompt) == (32, 2)
    assert (s.trainer.critic, s.trainer.epochs, s.loop.mode, s.cluster.generation) == (True, 4, "async", 4)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("backend: trtllm, trtllm_cfg: {tensor_parallel_size: 4, max_batch_size: 64}",
         {"engine.name": "trtllm", "engine.tensor_parallel": 4, "engine.max_running_sequences": 64}),
        ("backend: megatron, mcore_generation_config: {tensor_model_parallel_size: 2, expert_model_parallel_size: 4}",
         {"engine.tensor_parallel": 4, "engine.attention_data_parallel": 2, "engine.expert_parallel": 4}),
        ("quant_cfg: configs/nvfp4_mlp_only.yaml, real_quant: true", {"engine.weight_precision": "nvfp4"}),
        ("vllm_kwargs: {compilation_config: {cudagraph_capture_sizes: [1, 8, 64]}}",
         {"engine.max_captured_tokens": 64}),
    ],
)  # fmt: skip
def test_nemo_rls_engines_are_read_from_their_own_section(keys: str, expected: dict[str, object], folder: Path) -> None:
    (folder / "c.yaml").write_text(
        f"policy: {{model_name: Qwen/Qwen3-30B-A3B, generation: {{{keys}}}}}\ncluster: {{gpus_per_node: 8}}\n"
    )
    scenario = import_config("nemo-rl", Path("c.yaml"), asked=Asked(hardware="b200_sxm")).scenario
    assert {key: value(scenario, key) for key in expected} == expected


def test_a_shell_is_followed_in_its_words(folder: Path) -> None:
    (folder / "s.sh").write_text(
        "f() { local a=$1; prog --f \"$a\" \"${2:-none}\"; }\nf one\n"
        "for x in 1 2; do prog --x $x; done\nread -r -d '' T <<'EOF' || true\n$raw\nEOF\nprog --t \"$T\"\n"
        "name=Qwen3-8B-Base; prog ${name%-Base} ${name/8B/4B} ${name,,} ${#name} $'a\\tb'\n"
        "A=(a 'b c'); A+=(d); prog \"${A[@]}\" ${#A[@]}\n(( k = 2 * 3 )); prog $k $((k > 5 ? 1 : 0)) $((+ -3)) "
        "<<< \"in\"\n"
        "if which gpu >/dev/null; then prog gpu; else prog none; fi\nprog a | tee log && prog b\n"
        "bash -c 'prog text'; bash inner.sh parameter; exit 0; prog never\n"
    )  # fmt: skip
    (folder / "inner.sh").write_text("prog $1\n")
    words = [argv[1:] for argv in commands_of(Path("s.sh")) if argv[0] == "prog"]
    assert words == [
        ["--f", "one", "none"], ["--x", "1"], ["--x", "2"], ["--t", "$raw"],
        ["Qwen3-8B", "Qwen3-4B-Base", "qwen3-8b-base", "13", "a\tb"], ["a", "b c", "d", "3"],
        ["6", "1", "-3"], ["none"], ["a"], ["b"], ["text"], ["parameter"],
    ]  # fmt: skip


HARMFUL = {"quote": "python3 -m verl.trainer.main_ppo a='x\n", "bracket": "A=$(( 1 + \n",
           "recursion": "f() { f; f; }\nf\n", "itself": "source run.sh\nsource run.sh\n",
           "growth": "a=xxxxxxxxxxxxxxxx\n" + "a=$a$a$a$a\n" * 40, "array": "a=(x)\n" + 'a+=("${a[@]}")\n' * 40,
           "deep": "if true; then\n" * 200, "nested": "echo " + "$(echo " * 200 + ")" * 200,
           "outside": "source ../../etc/passwd.sh\nbash /etc/harm.sh\n",
           "pattern": f"a={'x' * 200_000}\nprog ${{a##*y}}\n", "power": "x=$((9 ** 9 ** 9 ** 9))\nprog $x\n",
           "binary": "\x00\x01"}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_a_hostile_script_ends_in_one_message(name: str, folder: Path) -> None:
    (folder / "run.sh").write_text(HARMFUL[name])
    with pytest.raises(InputError) as told:
        import_config("verl", Path("run.sh"))
    assert len(str(told.value)) < 500 and "\n" not in str(told.value)


def test_a_file_at_the_wrong_door_is_told_the_right_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "n.yaml").write_text(
        "policy: {model_name: Qwen/Qwen3-8B, generation: {backend: vllm}}\ncluster: {num_nodes: 1}\n"
    )
    with pytest.raises(SystemExit) as end:
        main(["project", "n.yaml"])
    assert end.value.code == 2 and "rlsim import nemo-rl n.yaml" in capsys.readouterr().err
    (folder / "run.sh").write_text(VERL)
    with pytest.raises(InputError, match="rlsim import verl"):
        import_config("skyrl", Path("run.sh"))


def test_what_a_program_would_print_stays_open(tmp_path):
    """An option whose value only a program knows keeps its place and says how to give it; ``seq`` is reckoned."""
    script = tmp_path / "open.sh"
    script.write_text(
        'N=$(nvidia-smi -L | wc -l)\nif [ -z "$N" ]; then M=1; fi\nfor pid in $(pgrep x); do kill $pid; done\n'
        'read -ra L <<< "$N"; A=($(ls) z)\n'
        "prog --a $(python3 conf.py x) --b `hostname` --c $N ${N:-8} $M $(seq 16 8 40) "
        "$(seq 2) $(echo -n yes) ${L[@]} ${A[@]}\n"
    )
    assert commands_of(script)[-1] == [
        "prog", "--a", "$(python3 conf.py x)", "--b", "$(hostname)", "--c", "$N", "8", "1",
        "16", "24", "32", "40", "1", "2", "yes", "z",
    ]  # fmt: skip
    script.write_text(SLIME.replace("parallel-size 2", "parallel-size $TP").replace('source "', 'true "'))
    with pytest.raises(InputError, match=r"tensor_model_parallel_size.*add TP=VALUE behind it"):
        import_config("slime", script)


GROUPS = """sglang:
  - name: default
    server_groups:
      - {worker_type: prefill, num_gpus: 2, overrides: {ep_size: 1, chunked_prefill_size: 4096}}
      - {worker_type: decode, num_gpus: 2, num_gpus_per_engine: 2, overrides: {ep_size: 1, max_running_requests: 96}}
"""


@pytest.mark.parametrize("written", [True, False])
def test_groups_of_engines_are_read_where_a_script_or_a_file_holds_them(folder: Path, written: bool) -> None:
    here = f'FILE=$(mktemp x.XX)\ncat > "${{FILE}}" <<CFG\n{GROUPS}CFG\n' if written else "FILE=groups.yaml\n"
    (folder / "groups.yaml").write_text(GROUPS)
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models" / "m.sh").write_text("MODEL_ARGS=()\n")
    (folder / "s.sh").write_text(here + SLIME.rstrip("\n") + ' --sglang-config "$FILE"\n')
    found = import_config("slime", Path("s.sh"), asked=Asked(hardware="h100_sxm"))
    engine = found.scenario.engine
    assert engine.prefill is not None
    assert (engine.prefill.gpus, engine.tensor_parallel, engine.max_running_sequences) == (2, 2, 96)
    assert [part.part for part in found.scenario.missing] == [
        "what engines that prefill set themselves (chunked_prefill_size=4096)"
    ]


def test_groups_that_no_option_says_stay_named(folder: Path) -> None:
    larger = GROUPS.replace("2, num_gpus_per_engine: 2", "4, num_gpus_per_engine: 4")
    (folder / "groups.yaml").write_text(larger)
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models" / "m.sh").write_text("MODEL_ARGS=()\n")
    (folder / "s.sh").write_text(SLIME.rstrip("\n") + " --sglang-config groups.yaml\n")
    found = import_config("slime", Path("s.sh"), asked=Asked(hardware="h100_sxm"))
    assert "groups of engines in groups.yaml" in found.scenario.missing[0].part
