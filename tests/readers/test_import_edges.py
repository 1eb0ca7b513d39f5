"""Importers at their edges: what is assumed is told where it is and not elsewhere, kinds of values, words, bounds."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_import_rules as texts
from corpus_files import FOLDER
from event_files import event, event_file, simple
from single_rules import imported
from test_import_adapters import RUNS, reader

from rlsim.errors import InputError
from rlsim.loading.scenario import vary
from rlsim.readers.frameworks import files, trees
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.readers.frameworks.importing import import_config, read_config
from rlsim.readers.frameworks.options import Options, batches, flag, integer, integers, number, size, switch, text
from rlsim.readers.frameworks.rules import Rules
from rlsim.readers.frameworks.targets import Engine
from rlsim.readers.logs import tensorboard
from rlsim.readers.logs.tensorboard import Scalars, add_events

CRITIC = texts.OPENRLHF.replace("group_norm", "gae")
UNCOUNTED = texts.TRL.replace("--num_processes 8 ", "")
SWIFT = "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --per_device_train_batch_size 2 "
SFT = SWIFT.replace("rlhf --rlhf_type grpo", "sft")
DENSE = "seq_len = 4096\n" + texts.PRIME.format("Qwen/Qwen3-8B")
ASSUMED: list[tuple[str, str, str, str]] = [
    ("areal", "No key caps prompts", texts.AREAL.replace(", max_length: 512", ""), texts.AREAL),
    ("openrlhf", "GPUs of the critic", CRITIC, texts.OPENRLHF),
    ("openrlhf", "GPUs of the critic", CRITIC, f"{CRITIC}--train.colocate_critic_reward"),
    ("openrlhf", "GPUs of the critic", CRITIC, f"{CRITIC}--train.colocate_all"),
    ("prime-rl", "A step of 100000 tokens", f"{texts.MOE}[orchestrator]\ntoken_batch_size = 100000\n", texts.MOE),
    ("prime-rl", "Experts lie on 8 GPUs", texts.MOE, f"{texts.MOE}[trainer.model]\nep = 2\n"),
    ("prime-rl", "Experts lie on 8 GPUs", texts.MOE, DENSE),
    ("slime", "No option caps prompts", texts.SLIME, f"{texts.SLIME}--rollout-max-prompt-len 512"),
    ("slime", "No option caps prompts", texts.SLIME, f"{texts.SLIME}--rollout-max-context-len 5120"),
    ("slime", "SGLang chooses the length", f"{texts.SLIME}--sglang-speculative-algorithm EAGLE3", texts.SLIME),
    ("slime", "SGLang chooses the length", f"{texts.SLIME}--sglang-speculative-algorithm EAGLE3",
     texts.SLIME + texts.DRAFTS),
    ("trl", "No option caps prompts", texts.TRL, f"{texts.TRL}--max_prompt_length 512"),
    ("trl", "Generation by transformers", texts.TRL, f"{texts.TRL}--use_vllm"),
    ("trl", "vLLM's server is taken", f"{texts.TRL}--use_vllm --vllm_mode server", f"{texts.TRL}--use_vllm"),
    ("trl", "no number of processes", UNCOUNTED, texts.TRL),
    ("trl", "no number of processes", UNCOUNTED, f"{UNCOUNTED}--num_processes 4"),
    # 8 processes with 2 samples each, four times: 64 of an update.
    ("trl", "The 2 generations of", f"{texts.TRL}--generation_batch_size 32",
     f"{texts.TRL}--generation_batch_size 64"),
    ("roll", "Generation by transformers", RUNS["roll"][0].replace(
        "actor_infer: {", "actor_infer: {strategy_args: {strategy_name: hf_infer}, "), RUNS["roll"][0]),
    ("swift", "No option caps prompts", SWIFT, f"{SWIFT}--max_length 1024"),
    ("swift", "No option caps samples", SFT, SWIFT),
    ("swift", "No option caps samples", SFT, f"{SFT}--max_length 1024"),
    ("swift", "Generation by transformers", SWIFT, f"{SWIFT}--use_vllm true --vllm_mode colocate"),
    ("swift", "Generation by transformers", SWIFT, SFT),
    ("swift", "server of swift rollout", f"{SWIFT}--use_vllm true --vllm_mode server",
     f"{SWIFT}--use_vllm true --vllm_mode colocate"),
    ("swift", "Every sample of the distillation", SWIFT.replace("grpo", "gkd") + "--teacher_model Qwen/Qwen3-32B",
     SWIFT),
]  # fmt: skip
NEMO = "policy: {model_name: Qwen/%s%s}\ncluster: {num_nodes: 1, gpus_per_node: 8}\n"
NEMO_ASSUMED = [
    ("Training in float32", NEMO % ("Qwen3-8B", ", precision: float32")),
    ("vLLM stands in for the megatron", NEMO % ("Qwen3-8B", ", generation: {backend: megatron}")),
    ("take turns on the same GPUs", NEMO % ("Qwen3-8B", "") + "grpo: {async_grpo: {enabled: true}}\n"),
    ("Experts over more GPUs", NEMO % ("Qwen3-30B-A3B", ", generation: {vllm_cfg: {tensor_parallel_size: 2, "
                                                        "expert_parallel_size: 4}}")),
]  # fmt: skip


def assumed(folder: Path, framework: str, written: str) -> list[str]:
    if framework == "nemo-rl":
        (folder / "run.yaml").write_text(written)
        return [one.text for one in import_config(framework, folder / "run.yaml").scenario.assumptions]
    return [one.text for one in imported(folder, framework, written).scenario.assumptions]


@pytest.mark.parametrize(
    ("framework", "words", "there", "absent"),
    [*ASSUMED, *(("nemo-rl", words, there, NEMO % ("Qwen3-8B", "")) for words, there in NEMO_ASSUMED)],
)
def test_an_assumption_is_told_where_it_is_made_and_nowhere_else(
    framework: str, words: str, there: str, absent: str, tmp_path: Path
) -> None:
    told = [any(words in one for one in assumed(tmp_path, framework, each)) for each in (there, absent)]
    assert told == [True, False]


KINDS: list[tuple[str, Callable[[], Any], list[tuple[Any, Any]], list[Any]]] = [
    ("size", size, [(1, 1), (2.0, 2), (None, 1)], [0, -1, True, 1.5, "x", [1]]),
    ("integer", integer, [(0, 0), (8.0, 8), (2**53, 2**53), (-(2**53), -(2**53)), (None, None), ("", None)],
     [2**53 + 1, -(2**53) - 1, False, 0.5, "8x", []]),
    ("number", number, [(1, 1.0), (0.5, 0.5), (None, None)], [True, "x", [1.0]]),
    ("flag", flag, [("yes", True), ("off", False), (True, True), (False, False), (None, None)], [1, "x", []]),
    ("switch", switch, [("TRUE", True), ("1", True), (True, True), ("no", False), (2, False), (None, False)], []),
    ("text", text, [("a", "a"), ("", None), (None, None)], [1, True, "???", []]),
    ("integers", integers, [([1, 2], [1, 2]), (3, [3]), ([], []), (None, []), ("", [])],
     [[1, True], [1.5], "x", [[1]], 0.5]),
    ("batches", batches, [([[1, 2, 3], [4, 5, 6]], ((1, 2, 3), (4, 5, 6))), ([], ()), (None, ()), ("", ())],
     [[[1, 2]], [[1, 2, 3, 4]], [[1, 2, True]], [3], 3, "x"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "read", "refused"), KINDS, ids=[one[0] for one in KINDS])
def test_a_kind_reads_its_own_values_and_names_the_key_of_others(
    name: str, make: Callable[[], Any], read: list[tuple[Any, Any]], refused: list[Any]
) -> None:
    section = type("Section", (Options,), {"key": make()}, section="in")
    for given, meant in read:
        found = section(reader({"in": {"key": given}})).key
        assert found == meant and type(found) is type(meant)
    for given in refused:
        with pytest.raises(InputError, match=r"here: in\.key: must be "):
            _ = section(reader({"in": {"key": given}})).key


class Whole(Options):
    word = text()


def test_words_are_known_or_refused_with_those_that_are_and_the_first_is_written() -> None:
    of = Rules(Whole)(Engine.kv_precision)
    known = of.words(Whole.word, ("eight*", "fp8"), ("Eight", "fp8"), ("e8", "fp8"), ("full", "bf16"), (None, "nvfp4"))
    meant = {"eightfold": "fp8", "EIGHT": "fp8", "Full": "bf16", "": None, None: None}
    assert {word: known.reading(Whole(reader({"word": word}))) for word in meant} == meant
    with pytest.raises(InputError, match=r"here: word: 'nonsense' is not simulated; known: eight\*, Eight, e8, full$"):
        known.reading(Whole(reader({"word": "nonsense"})))
    written = {"fp8": {"word": "Eight"}, "bf16": {"word": "full"}, "nvfp4": {"word": None}, "int4": {}}
    assert {value: known.write(value, reader({})) for value in written} == written
    open_ = of.words(Whole.word, ("eight*", "fp8"), other="bf16")
    meant = {"eightfold": "fp8", "EIGHT": "bf16", "nonsense": "bf16", "": "bf16"}
    assert {word: open_.reading(Whole(reader({"word": word}))) for word in meant} == meant
    assert of.words(Whole.word, ("a", "fp8"), readonly=True).write("fp8", reader({})) == {}


@pytest.mark.parametrize("value", [None, False, "", {}, [], True, 1, "on", [1]], ids=repr)
def test_an_unknown_key_is_off_where_it_says_nothing_and_else_not_understood(value: Any, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(NEMO % ("Qwen3-8B", f", zzz_unheard: {value!r}".replace("None", "null")))
    (found,) = (one for one in import_config("nemo-rl", tmp_path / "run.yaml").accounting.keys if "zzz" in one.key)
    assert found.status == ("not_understood" if value else "irrelevant")


def test_a_share_of_less_than_one_group_is_one(tmp_path: Path) -> None:
    text = f"{DENSE}[orchestrator]\nbatch_size = %d\ngroup_size = 16\nconcurrency = {{max_inflight = %d}}\n"
    for samples, groups in ((8, 1), (16, 1), (40, 2)):
        found = imported(tmp_path, "prime-rl", text % (samples, samples)).scenario
        assert found.loop.max_in_flight_groups == found.workload.prompts_per_step == groups
        assert found.trainer.global_batch_samples == 16 * groups


@pytest.mark.parametrize("name", ["colocate", "separate"])
def test_the_smallest_lag_is_written_as_any_other(name: str, tmp_path: Path) -> None:
    read = (FOLDER / "verl" / f"{name}.yaml").read_text()
    (tmp_path / "config.yaml").write_text(read)
    start = import_config("verl", tmp_path / "config.yaml").scenario
    for steps in (3, 1):
        answer = export_scenario(vary(start, {"loop.policy_lag": steps}), "verl",
                                 read_config("verl", tmp_path / "config.yaml"))  # fmt: skip
        (tmp_path / "config.yaml").write_text(answer.config)
        assert import_config("verl", tmp_path / "config.yaml").scenario.loop.policy_lag == steps


@pytest.mark.parametrize("backend", ["megatron", "fsdp"])
def test_an_export_to_a_trainer_turns_the_other_one_off(backend: str, tmp_path: Path) -> None:
    """NeMo-RL asks for exactly one of both sections that is enabled."""
    on = {"megatron": backend != "megatron", "dtensor": backend == "megatron"}
    (tmp_path / "run.yaml").write_text(NEMO % ("Qwen3-8B", "".join(
        f", {name}_cfg: {{enabled: {str(one).lower()}}}" for name, one in on.items())))  # fmt: skip
    start = import_config("nemo-rl", tmp_path / "run.yaml").scenario
    assert start.trainer.backend != backend
    answer = export_scenario(vary(start, {"trainer.backend": backend}), "nemo-rl",
                             read_config("nemo-rl", tmp_path / "run.yaml"))  # fmt: skip
    (tmp_path / "run.yaml").write_text(answer.config)
    tree = read_config("nemo-rl", tmp_path / "run.yaml").values
    assert {name: trees.lookup(tree, f"policy.{name}_cfg.enabled") for name in on} == {
        n: not one for n, one in on.items()
    }


def test_a_file_of_hydra_says_where_others_lie_and_what_they_choose(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "base").mkdir(parents=True)
    (tmp_path / "elsewhere" / "base" / "one.yaml").write_text(f"# @package _global_\n{texts.ROLL}")
    (tmp_path / "elsewhere" / "base" / "two.yaml").write_text(
        f"# @package _global_\n{texts.ROLL}".replace("size: 64", "size: 128")
    )
    for option, count in (("one", 64), ("two", 128)):
        (tmp_path / "run.yaml").write_text(
            f"defaults:\n- base: one\n- override base: {option}\n- _self_\nhydra: {{searchpath: ['file://elsewhere']}}\n"
        )
        assert import_config("roll", tmp_path / "run.yaml").scenario.workload.prompts_per_step == count


def counted_events(records: int) -> Scalars:
    scalars = Scalars("log")
    add_events(
        scalars,
        event_file([event(step, {"a": simple(1.0)}) for step in range(records)]),
        "log",
        lambda done, size: None,
    )
    return scalars


def inherits(depth: int, folder: Path) -> None:
    for at in range(depth):
        (folder / f"f{at}.yaml").write_text(
            f"defaults: f{at + 1}.yaml\n" if at < depth - 1 else NEMO % ("Qwen3-8B", "")
        )
    import_config("nemo-rl", folder / "f0.yaml")


def valued(metrics: int, steps: int) -> None:
    scalars = Scalars("log")
    for step in range(steps):
        scalars.add_all(step, {f"m{at}": 1.0 for at in range(metrics)})


LIMITS: list[tuple[Any, str, int, Callable[[int, Path], Any]]] = [
    # The version of the format is a record, too.
    (tensorboard, "MOST_RECORDS", 4, lambda count, _: counted_events(count - 1)),
    (tensorboard, "MOST_VALUES", 6, lambda count, _: valued(1, count)),
    (tensorboard, "MOST_METRICS", 6, lambda count, _: valued(count, 2)),
    (files, "MAX_FILES", 3, inherits),
    (trees, "MAX_VALUES", 6, lambda count, _: trees.check_bounds([1] * (count - 1), "here")),
    (trees, "MAX_DEPTH", 2, lambda count, _: trees.check_bounds([[1]] if count == 2 else [[[1]]], "here")),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "most", "fill"), LIMITS, ids=[one[1] for one in LIMITS])
def test_a_limit_is_met_from_both_sides(
    module: Any, name: str, most: int, fill: Callable[[int, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, most)
    fill(most, tmp_path)
    with pytest.raises(InputError, match="more than"):
        fill(most + 1, tmp_path)


def test_a_scenario_that_is_refused_is_said_to_be_read_from_keys_of_the_user(tmp_path: Path) -> None:
    text = (FOLDER / "skyrl" / "skyrl.yaml").read_text()
    (tmp_path / "run.yaml").write_text(text.replace("policy_mini_batch_size: 64", "policy_mini_batch_size: 640"))
    with pytest.raises(InputError, match=r"global_batch_samples .*; read from .*'trainer.policy_mini_batch_size'"):
        import_config("skyrl", tmp_path / "run.yaml")


def test_dynamic_sampling_without_a_try_is_one_message(tmp_path: Path) -> None:
    text = (FOLDER / "nemo-rl" / "nemo_rl_dapo.yaml").read_text()
    (tmp_path / "nemo_rl_parent.yaml").write_text((FOLDER / "nemo-rl" / "nemo_rl_parent.yaml").read_text())
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=r"max_rollouts_per_step.*grpo.dynamic_sampling_max_gen_batches"):
        import_config("nemo-rl", tmp_path / "run.yaml", ["grpo.dynamic_sampling_max_gen_batches=0"])


BROKEN: list[tuple[str, str, str, str]] = [
    ("roll", "num_return_sequences_in_group: 8", "", "not given: [^;]*'num_return_sequences_in_group'"),
    ("roll", "actor_infer:", "actor_infer: [1]\nother:", "no section: 'actor_infer'"),
    ("roll", "in_group: 8", "in_group_1: 8", "'num_return_sequences_in_group_1' is not understood: did you mean 'num_"),
    ("roll", "per_device_train_batch_size: 2", "per_device_train_batch_size: 0", "yaml: [^;]*per_device_train_batch_s"),
    ("easyr1", "{actor:", "{actor_4:", "model_path: '' names no model.*'worker.actor_4.model.model_path' is not"),
    ("verl/separate", "method: eagle3, ", "", "not given: [^;]*speculative_config.method'"),
    ("verl/one_step_off", "train_batch_size:", "train_batch_size: 0, other:", "read from [^;]*'data.train_batch_size'"),
    (
        "nemo-rl/padded",
        "policy:",
        "own: []\ngrpo: {num_prompts_per_step: '${own.x}'}\npolicy:",
        "'own.x', and 'own' is",
    ),
    ("nemo-rl/padded", "policy:", "policy: 3\nother:", "run.yaml: policy: must be a section, got 3"),
    ("nemo-rl/padded", "policy:", "policy: []\nother:", r"run.yaml: policy: must be a section, got \[\]"),
    ("nemo-rl/base", "train_micro_batch_size: 1", "train_micro_batch_size: [1]", ", by .*'policy.train_micro_batch_s"),
    ("nemo-rl/base", "train_micro_batch_size: 1", "further: ['${a']", "yaml: policy.further.0.: cannot be read"),
    ("nemo-rl/padded", "./base.yaml", "''", "defaults: '' is no path of a file"),
    ("nemo-rl/controller", "defaults:", "defaults_2:", "by rlsim's defaults 'cluster.gpus_per_node'"),
    ("nemo-rl/controller", "defaults:", "defaults_2:", "'defaults_2' is not understood: did you mean 'defaults'?"),
    ("skyrl/fully_async", "use_sample_packing: ", "use_sample_packing: 7 #", "trainer.use_sample_packing: must be"),
]
"""What of a file is replaced by what, and words of its refusal: each names the user's key, beside another where two do
not fit."""


@pytest.mark.parametrize(("source", "old", "new", "words"), BROKEN)
def test_a_refusal_names_the_broken_key(source: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    framework, _, name = source.partition("/")
    for path in (FOLDER / framework).glob("*.yaml") if name else ():
        (tmp_path / path.name).write_text(path.read_text())
    text = (tmp_path / f"{name}.yaml").read_text() if name else RUNS[framework][0]
    assert old in text
    (tmp_path / "run.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=words):
        import_config(framework, tmp_path / "run.yaml")


@pytest.mark.parametrize("key", ["trainer.train_batch_size", "generator.n_samples_per_prompt"])
def test_a_key_that_is_missing_is_the_one_named(key: str, tmp_path: Path) -> None:
    given, name = (FOLDER / "skyrl" / "skyrl.yaml").read_text(), key.rpartition(".")[2]
    (tmp_path / "run.yaml").write_text(re.sub(rf"\b{name}: \d+", f"{name}: null", given))
    with pytest.raises(InputError, match=rf"run.yaml: {key}: must be given"):
        import_config("skyrl", tmp_path / "run.yaml")
