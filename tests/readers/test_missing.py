"""What a run has and a scenario lacks is said first; turns, teachers and options of an import are never dropped."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rlsim
from rlsim.errors import InputError
from rlsim.loading.scenario import dump_scenario, load_scenario, scenario_digest, scenario_of_text, vary
from rlsim.projection.variant import simulate_variant
from rlsim.readers.frameworks.asked import Asked
from rlsim.readers.frameworks.importing import import_config
from rlsim.readers.frameworks.missing import STARTED
from rlsim.readers.frameworks.registry import framework_of
from rlsim.report.text.findings import headline
from rlsim.schema.base import changed
from rlsim.schema.keys import keys_named
from rlsim.schema.scenario import Scenario

PRIME = """
seq_len = 8192
[model]
name = "Qwen/Qwen3-4B-Instruct-2507"
[deployment]
num_train_gpus = 1
num_infer_gpus = 1
[orchestrator]
batch_size = 256
group_size = 16
[orchestrator.train.sampling]
max_completion_tokens = 768
[[orchestrator.train.source]]
name = "sort"
[orchestrator.train.source.env.taskset]
id = "alphabet-sort"
"""
TURNS = "min_turns = 3\nmax_turns = 5\n"
SKYRL = (
    "trainer.policy.model.path=Qwen/Qwen3-32B", "trainer.placement.policy_num_gpus_per_node=8",
    "trainer.train_batch_size=64", "trainer.policy_mini_batch_size=64", "generator.n_samples_per_prompt=4",
    "generator.inference_engine.num_engines=4", "generator.inference_engine.tensor_parallel_size=2",
    "generator.inference_engine.engine_init_kwargs.max_model_len=32768",
    "harbor_trial_config.agent.kwargs.max_turns=25",
)  # fmt: skip
VERL = (
    "data.train_batch_size=64", "data.max_prompt_length=1024", "data.max_response_length=2048",
    "actor_rollout_ref.model.path=Qwen/Qwen3-1.7B", "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24576",
    "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "trainer.n_gpus_per_node=8", "trainer.nnodes=1",
)  # fmt: skip
TEACHER = (
    "distillation.enabled=true", "distillation.n_gpus_per_node=4", "distillation.nnodes=1",
    "distillation.teacher_models.teacher.model_path=Qwen/Qwen3-32B",
)  # fmt: skip


def prime(tmp_path: Path, more: str = "", asked: Asked | None = None) -> Scenario:
    """The import of prime-rl's file."""
    path = tmp_path / "x.toml"
    path.write_text(PRIME + more)
    return import_config("prime-rl", path, asked=asked).scenario


def verl(*words: str) -> Scenario:
    """The import of a command line of verl."""
    command = ("-m", "verl.trainer.main_ppo", *VERL, *words)
    return import_config("verl", Path("python3"), command).scenario


@pytest.mark.parametrize("framework", [name for name in STARTED if name not in ("vime", "miles")])
def test_the_table_names_keys_of_scenarios(framework: str) -> None:
    framework_of(framework)
    for entry in STARTED[framework]:
        assert entry.get("step", "longer") in ("longer", "shorter", "either")
        assert all(keys_named(key) for key in entry.get("keys", ()))


def test_an_agent_of_unknown_turns_is_the_first_line_and_falls_when_it_is_stated(tmp_path: Path) -> None:
    scenario = prime(tmp_path)
    assert scenario.missing_parts and "turns" in scenario.missing_parts[0]
    once = rlsim.vary(scenario, {"simulation.replications": 1, "simulation.steps": 1, "simulation.warmup_steps": 0})
    assert headline(rlsim.project(once)).startswith("Without the further turns")
    stated = rlsim.vary(scenario, {"workload.agent": {"turns": {"kind": "constant", "turns": 3}, "max_turns": 3}})
    assert not stated.missing


def test_turns_that_a_file_states_are_simulated_in_every_style(tmp_path: Path) -> None:
    scenario = prime(tmp_path, TURNS)
    agent: Any = scenario.workload.agent
    assert (agent.turns.mean_turns, agent.max_turns, scenario.missing) == (4.0, 5, ())
    # The style cancels old groups; trajectories that are too old end by themselves, and the loop goes on.
    assert scenario.loop.asynchrony.stale == "cancel"
    quick = {"simulation.replications": 1, "simulation.steps": 4, "simulation.warmup_steps": 4}
    slow = {"workload.agent.environment_s": {"kind": "constant", "seconds": 60.0}}
    plain, waiting = (simulate_variant(rlsim.vary(scenario, quick, more)) for more in ({}, slow))
    assert sum(step.seconds for step in waiting.every_step) > sum(step.seconds for step in plain.every_step)


def test_turns_of_harbor_and_of_verl_whatever_enable_says() -> None:
    command = ("-m", "skyrl.train.entrypoints.main_base", *SKYRL)
    harbor = import_config("skyrl", Path("python"), command).scenario.workload
    assert harbor.agent is not None and harbor.agent.max_turns == 25 and harbor.max_sequence_tokens == 32768
    agent = verl("actor_rollout_ref.rollout.multi_turn.max_assistant_turns=8").workload.agent
    assert agent is not None and agent.max_turns == 8
    assert verl().workload.agent is None


def test_mean_turns_add_turns_and_never_shorten_the_work(tmp_path: Path) -> None:
    asked = Asked(mean_turns=4, observation_tokens=500, environment_s=20, refuse_idle=True)
    single, several = prime(tmp_path), prime(tmp_path, asked=asked)
    agent: Any = several.workload.agent
    assert agent.turns.mean_turns == 4 and agent.environment_s.seconds == 20
    mean: Any = several.workload.response_tokens
    one: Any = single.workload.response_tokens
    assert 4 * mean.mean_tokens >= one.mean_tokens


@pytest.mark.parametrize(
    ("option", "given"),
    [("observation_tokens", 5), ("environment_s", 1.0), ("acceptance_length", 2.0), ("usable_group_share", 0.5)],
)
def test_an_option_without_effect_is_refused(option: str, given: float, tmp_path: Path) -> None:
    asked = replace(Asked(refuse_idle=True), **{option: given})
    with pytest.raises(InputError, match=f"--{option.replace('_', '-')} is without effect"):
        prime(tmp_path, asked=asked)


def test_a_teacher_of_verl_is_a_pool_on_gpus_of_its_own() -> None:
    (pool,) = verl(*TEACHER).pools
    scenario = verl(*TEACHER)
    assert (pool.role, pool.model.name, pool.gpus, pool.tensor_parallel) == ("teacher", "Qwen3-32B", 4, 2)
    assert (scenario.cluster.num_gpus, scenario.cluster.policy_gpus, scenario.missing) == (12, 8, ())
    assert not verl(*TEACHER[1:]).pools  # not enabled


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("distillation.teacher_models", "7"),
        ("distillation.teacher_models.teacher", "[1]"),
        ("distillation.teacher_models.teacher.model_path", "3"),
        ("distillation.teacher_models.teacher.num_replicas", "many"),
        ("distillation.teacher_models.teacher.num_replicas", "0"),
        ("distillation.teacher_models.teacher.inference.tensor_model_parallel_size", "two"),
        ("distillation.nnodes", "{a: 1}"),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_key(key: str, value: str) -> None:
    with pytest.raises(InputError, match=re.escape(key)):
        verl(*TEACHER, f"{key}={value}")


def test_a_missing_part_is_no_part_of_the_digest_and_names_keys_that_exist() -> None:
    given = rlsim.load_scenario("quickstart")
    lacking = rlsim.vary(given, {"missing": [{"part": "a judge"}]})
    assert scenario_digest(lacking) == scenario_digest(given)
    with pytest.raises(InputError, match=r"unknown key 'workload\.agnt'"):
        rlsim.vary(given, {"missing": [{"part": "a judge", "keys": ["workload.agnt"]}]})


def test_the_tower_of_a_model_that_sees_is_missing_wherever_its_name_stands_and_falls_with_it() -> None:
    seeing = load_scenario("quickstart", ["model=Qwen/Qwen2.5-VL-7B-Instruct"])
    text = load_scenario("quickstart", ["model=qwen2.5-7b"])
    assert (changed(seeing.model, vision=None), text.missing) == (text.model, ())
    assert [one.part for one in seeing.missing] == [
        "the images that Qwen2.5-VL-7B-Instruct sees (state workload.images)"
    ]
    images = {"workload.images.tokens": 100, "workload.prompt_tokens": {"kind": "constant", "tokens": 200}}
    assert vary(seeing, images).missing == ()
    assert vary(seeing, "simulation.seed=3").missing == seeing.missing
    assert vary(seeing, "model=qwen3-8b").missing == ()
    assert scenario_of_text(dump_scenario(seeing), "copy").missing == seeing.missing


ROLL = """
pretrain: Qwen/Qwen3-8B
num_gpus_per_node: 8
rollout_batch_size: 64
response_length: 4096
actor_train: {device_mapping: "list(range(0,8))", training_args: {per_device_train_batch_size: 1}}
actor_infer: {device_mapping: "list(range(0,8))", generating_args: {max_new_tokens: 512}}
"""
RULE = "rewards: {math: {worker_cls: x.MathRuleRewardWorker, model_args: {model_name_or_path: Qwen/Qwen3-235B-A22B}}}\n"


def roll(tmp_path: Path, more: str) -> Scenario:
    """The import of ROLL's file."""
    path = tmp_path / "x.yaml"
    path.write_text(ROLL + more)
    return import_config("roll", path).scenario


def test_the_tokenizer_of_a_rule_is_no_reward_model_and_a_judge_that_infers_is_one(tmp_path: Path) -> None:
    assert roll(tmp_path, RULE).missing == ()
    judged = roll(tmp_path, RULE.replace("{worker_cls", "{judge_model_type: inference, worker_cls"))
    assert [one.part for one in judged.missing] == ["the judge Qwen/Qwen3-235B-A22B"]


JUDGE = """
rewards: {llm_judge: {judge_model_type: KIND, model_args: {model_name_or_path: Qwen/Qwen3-4B}SERVED}}
"""
SERVED = """, generating_args: {max_new_tokens: 512}, device_mapping: "GPUS",
  strategy_args: {strategy_name: vllm, strategy_config: {tensor_parallel_size: 2}}"""


@pytest.mark.parametrize("kind", ["inference", "cluster"])
def test_a_judge_of_roll_is_a_pool_on_its_gpus_or_the_trainers(tmp_path: Path, kind: str) -> None:
    model = "reward_model: {model_args: {model_name_or_path: Qwen/Qwen3-4B}SERVED}\n"
    text = JUDGE if kind == "inference" else JUDGE.replace("SERVED", "") + model
    for gpus, own in (("list(range(8,12))", 4), ("list(range(6,8))", 0)):
        found = roll(tmp_path, text.replace("KIND", kind).replace("SERVED", SERVED.replace("GPUS", gpus)))
        assert [(pool.model.name, pool.role, pool.gpus, pool.tensor_parallel, pool.generated_tokens)
                for pool in found.pools] == [("Qwen3-4B", "judge", own, 2, 256)]  # fmt: skip
        assert found.cluster.num_gpus == 8 + own and not found.missing
    unplaced = roll(tmp_path, text.replace("KIND", kind).replace("SERVED", ""))
    assert not unplaced.pools and [one.part for one in unplaced.missing] == ["the judge Qwen/Qwen3-4B"]


def test_the_turns_of_an_agent_stay_within_what_bounds_them(tmp_path: Path) -> None:
    agent = "max_actions_per_traj: 4\ntrain_env_manager: {group_size: 8}\nmax_tokens_per_step: "
    for cap in (64, 300):
        response = roll(tmp_path, f"{agent}{cap}\n").workload.response_tokens
        assert response.mean_tokens <= cap
    assert roll(tmp_path, f"{agent}9999\n").workload.response_tokens.mean_tokens <= 512  # as each request


@pytest.mark.parametrize(("path", "missing"), [("Qwen/Qwen3-1.7B", 0), ("Qwen/Qwen3-4B", 1)])
def test_a_critic_of_the_policys_own_model_is_of_no_other_size(path: str, missing: int) -> None:
    assert len(verl("algorithm.adv_estimator=gae", f"critic.model.path={path}").missing) == missing


def test_a_reward_model_of_verl_is_a_pool_unless_a_function_asks_it() -> None:
    words = ("reward_model.enable=True", "reward_model.model.path=Qwen/Qwen3-4B", "reward_model.use_reward_loop=True")
    found = verl(*words, "reward_model.rollout.tensor_model_parallel_size=2")
    assert [(pool.model.name, pool.gpus, pool.runs_on, pool.tensor_parallel) for pool in found.pools] == [
        ("Qwen3-4B", 0, "engine", 2)
    ]
    assert not found.missing
    assert verl(*words[:2], "reward_model.use_reward_loop=False").pools[0].runs_on == "trainer"
    asked = verl(*words, "custom_reward_function.path=judge.py")
    assert not asked.pools and "the reward model Qwen/Qwen3-4B" in [one.part for one in asked.missing]


VERL_LINE = " ".join(["python -m verl.trainer.main_ppo", *VERL]).replace("Qwen/Qwen3-1.7B", "{}")
SEEING: list[tuple[str, str, str]] = [
    ("verl", VERL_LINE + " data.image_key=images", "sh"),
    ("verl", VERL_LINE + " data.train_files=/data/geo3k/train.parquet", "sh"),
    ("slime", "python3 train.py --hf-checkpoint {} --colocate --rollout-batch-size 32 --n-samples-per-prompt 8 "
              "--multimodal-keys '{{\"image\": \"images\"}}'", "sh"),
    ("prime-rl", '[model]\nname = "{}"\n[model.vlm]\nvision_encoder_attr = "model.visual"\n', "toml"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "text", "ending"), SEEING)
def test_images_are_missing_once_whether_the_checkpoint_is_called_after_its_sight(
    framework: str, text: str, ending: str, tmp_path: Path
) -> None:
    def images(checkpoint: str) -> list[str]:
        path = tmp_path / f"run.{ending}"
        path.write_text(text.format(checkpoint))
        return [one.part for one in import_config(framework, path).scenario.missing if "images" in one.part]

    assert images("Qwen/Qwen3.5-4B") == ["the images of its prompts"]
    assert images("Qwen/Qwen3-VL-4B-Instruct") == ["the images that Qwen3-VL-4B-Instruct sees (state workload.images)"]


def test_players_of_a_game_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    players = "".join(f'[orchestrator.train.source.env.player{i}.harness]\nid = "null"\n' for i in (0, 1))
    path.write_text(PRIME.replace("alphabet-sort", "checkers") + players)
    assert any("turns" in one.part for one in import_config("prime-rl", path).scenario.missing)


def test_an_environment_without_a_harness_has_no_further_turns(tmp_path: Path) -> None:
    def turns(harness: str) -> bool:
        source = f'[orchestrator.train.source.env.agent.harness]\nid = "{harness}"\n'
        path = tmp_path / "x.toml"
        path.write_text(PRIME.replace("alphabet-sort", "math-env") + source)
        return any("turns" in one.part for one in import_config("prime-rl", path).scenario.missing)

    assert not turns("null")
    assert turns("bash")


def test_engines_serve_the_packed_weights_that_training_fakes() -> None:
    words = [
        *SKYRL,
        "trainer.policy.model.path=someone/Qwen3-32B-INT4-RTN",
        "trainer.policy.model.fake_int4_qat.enabled=true",
    ]
    found = import_config("skyrl", Path("python3"), ["-m", "skyrl.train.entrypoints.main_base", *words]).scenario
    assert found.engine.weight_precision == "int4"
    assert any("fake quantisation" in one.part for one in found.missing)


@pytest.mark.parametrize(("name", "missing"), [("Qwen3-8B", 0), ("Qwen3-8B-AWQ", 1), ("Qwen3-8B-GPTQ-awq", 1)])
def test_a_policy_of_four_bits_by_its_name_says_so_and_another_model_does_not(name: str, missing: int) -> None:
    found = verl(f"actor_rollout_ref.model.path=Qwen/{name}")
    assert ["4-bit" in one.part for one in found.missing] == [True] * missing
    assert not vary(found, {"model": "qwen3-4b"}).missing


FAKED = "OPEN_TRAINING_INT4_FAKE_QAT_FLAG"


def test_fake_quantisation_that_a_launch_switches_on_is_missing(tmp_path: Path) -> None:
    words = "train.py --hf-checkpoint Qwen/Qwen3-8B --colocate --rollout-batch-size 32 --n-samples-per-prompt 8"
    for value in ("1", "0"):
        environment = f'{{"env_vars": {{"X": "y", "{FAKED}": "{value}"}}}}'
        (tmp_path / "run.sh").write_text(f"ray job submit --runtime-env-json='{environment}' -- python3 {words}\n")
        (tmp_path / "run.py").write_text(
            f"from launch import execute_train\nexecute_train(train_args='{words[9:]}', "
            f"extra_env_vars={{**{{'{FAKED}': '{value}'}}}})\n"
        )
        for framework, name in (("slime", "run.sh"), ("miles", "run.py")):
            found = import_config(framework, tmp_path / name).scenario.missing
            assert ["fake quantisation" in one.part for one in found] == [True] * int(value)


def test_the_router_of_prime_rl_says_where_a_turn_goes(tmp_path: Path) -> None:
    for policy, routing in (("consistent_hash", "sticky"), ("round_robin", "least_loaded")):
        found = prime(tmp_path, TURNS + f'[inference.router]\npolicy = "{policy}"\n')
        assert found.engine.session_routing == routing
