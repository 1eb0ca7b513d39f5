"""Typed rules of frameworks: they fit the schema and their tables, and wrong values end in a message."""

import ast
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from single_rules import expect_return, imported, written

from rlsim.errors import InputError
from rlsim.readers import frameworks
from rlsim.readers.frameworks import adapters
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.readers.frameworks.files import SHIPPED
from rlsim.readers.frameworks.framework import TABLES
from rlsim.readers.frameworks.importing import import_config, read_config
from rlsim.readers.frameworks.options import Option, Options, Part, integer, text
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.registry import framework_of
from rlsim.readers.frameworks.rules import Rules, solved
from rlsim.readers.frameworks.targets import TARGETS, Target, Workload
from rlsim.readers.frameworks.trees import ConfigTree
from rlsim.schema.scenario import Scenario

SLIME = (
    "python3 train.py --hf-checkpoint Qwen/Qwen3-8B --colocate --rollout-batch-size 32 --n-samples-per-prompt 8 "
    "--rollout-max-response-len 4096 "
)
TRL = "python grpo.py --model_name_or_path Qwen/Qwen3-8B --use_vllm --num_generations 8 "
SIZES = {"workload.prompts_per_step": 64, "workload.generations_per_prompt": 16}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "slime": (SLIME, SIZES),
    "trl": (TRL, SIZES),
    "swift": (
        "NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --use_vllm true --vllm_mode colocate "
        "--global_batch_size 64 --max_length 1024 --max_completion_length 2048",
        {**SIZES, "engine.tensor_parallel": 2, "trainer.tensor_parallel": 2, "trainer.epochs": 2},
    ),
    "easyr1": (
        "worker: {actor: {model: {model_path: Qwen/Qwen3-8B}, global_batch_size: 128}, rollout: {n: 8}}\n"
        "data: {max_prompt_length: 1024, max_response_length: 2048}\ntrainer: {n_gpus_per_node: 8}\n",
        {**SIZES, "cluster.num_gpus": 16, "trainer.global_batch_samples": 512, "trainer.context_parallel": 2,
         "trainer.reference_logprobs": False, "engine.tensor_parallel": 4},
    ),
    "openrlhf": (
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --vllm.num_engines 4 "
        "--vllm.tensor_parallel_size 2 --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --data.max_len 4096 "
        "--rollout.max_new_tokens 3072 --ds.packing_samples --train.dynamic_batch_enable --train.async_enable",
        {**SIZES, "cluster.generation_gpus": 4, "cluster.num_gpus": 20, "trainer.micro_batch_tokens": 20480,
         "workload.max_response_tokens": 2048, "loop.queue_batches": 2, "trainer.critic": False},
    ),
    "prime-rl": (
        'seq_len = 8192\nmodel = {name = "Qwen/Qwen3-30B-A3B"}\norchestrator = {batch_size = 256, group_size = 8}\n'
        "deployment = {num_train_gpus = 8, num_infer_gpus = 4}\ninference.vllm = {tensor_parallel_size = 2}\n",
        {"cluster.generation_gpus": 8, "cluster.num_gpus": 16, "workload.max_sequence_tokens": 4096,
         "trainer.micro_batch_tokens": 4096, "workload.prompts_per_step": 64, "trainer.global_batch_samples": 512,
         "engine.tensor_parallel": 4, "trainer.expert_parallel": 4, "trainer.optimizer_on_host": False},
    ),
    "areal": (
        'rollout: {backend: "sglang:d4t2", max_head_offpolicyness: 2}\ngconfig: {n_samples: 4, max_new_tokens: 1024}\n'
        'actor: {backend: "megatron:d2t2p2", path: Qwen/Qwen3-8B, ppo_n_minibatches: 2, mb_spec: {n_mbs: 2}}\n'
        "train_dataset: {batch_size: 64, max_length: 512}\n",
        # SGLang's two, which AReaL's section of vLLM has no option for, go with it.
        {"engine.name": "vllm", "engine.max_batched_tokens": None, "engine.chunked_prefill": None,
         "engine.tensor_parallel": 4, "cluster.generation_gpus": 16, "cluster.num_gpus": 32,
         "trainer.global_batch_samples": 64, "loop.policy_lag": 3, "trainer.micro_batch_tokens": 8192},
    ),
    "roll": (
        "pretrain: Qwen/Qwen3-8B\nrollout_batch_size: 64\nnum_return_sequences_in_group: 8\nresponse_length: 2048\n"
        "async_generation_ratio: 1\nactor_train: {device_mapping: 'list(range(0,8))', training_args: "
        "{per_device_train_batch_size: 2, gradient_accumulation_steps: 32}}\n"
        "actor_infer: {device_mapping: 'list(range(8,16))'}\n",
        {**SIZES, "cluster.generation_gpus": 4, "cluster.num_gpus": 12, "engine.name": "sglang",
         "loop.staleness_fraction": 0.5, "trainer.global_batch_samples": 256, "engine.tensor_parallel": 2},
    ),
}  # fmt: skip
NAMES = [path.stem.replace("_", "-") for path in TABLES.glob("*.yaml")]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_target_has_the_type_of_the_schema(target: Target[Any]) -> None:
    *sections, name = target.key.split(".")
    record: Any = Scenario
    for section in sections:
        annotation = record.model_fields[section].annotation
        record = next(one for one in (*get_args(annotation), annotation) if hasattr(one, "model_fields"))
    field = record.model_fields[name].annotation
    (mine,) = get_args(target.__orig_class__)  # type: ignore[attr-defined]

    def kinds(one: Any) -> set[Any]:
        return {inner for outer in get_args(one) or (one,) for inner in get_args(outer) or (outer,)} - {type(None)}

    assert kinds(mine) == kinds(field)


@pytest.mark.parametrize("name", NAMES)
def test_a_key_is_read_or_has_an_entry_that_tells_why_not(name: str) -> None:
    known = framework_of(name)
    entries = {
        entry for table in (known.irrelevant, known.not_simulated) for group in table.values() for entry in group
    }
    assert not entries & known.declared
    for module in modules(name):
        for option in [
            option for cls in sections(module) for option in vars(cls).values() if isinstance(option, Option)
        ]:
            section = any(key.startswith(f"{option.key}.") for key in known.known)
            assert option.decides or section or known.why(option.key), option.key


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_inherits_from_nothing_lies_over_a_tree_that_is_there(name: str) -> None:
    known = framework_of(name)
    trees = {*known.start, *known.start_asynchronous, *(tree for under in known.shipped.values() for tree in under)}
    assert known.start and all((SHIPPED / f"{tree}.yaml").exists() for tree in trees)


@pytest.mark.parametrize("name", NAMES)
def test_every_declared_option_is_asked_for(name: str) -> None:
    used = {node.attr for module in modules(name) for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.Attribute)}  # fmt: skip
    for module in modules(name):
        declared = {name for cls in sections(module) for name, one in vars(cls).items() if isinstance(one, Option)}
        assert not declared - used


def modules(name: str) -> list[ModuleType]:
    """Modules of a framework: of the adapters, whose folder is full, or of the one around it."""
    return [
        import_module(f"{room.__name__}.{path.stem}")
        for room in (adapters, frameworks)
        for path in Path(room.__path__[0]).glob(f"{name.replace('-', '_')}*.py")
    ]


def sections(module: ModuleType) -> list[type[Options]]:
    return [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Options)]


WRONG = [
    ("slime", SLIME + "--sglang-speculative-algorithm NGRAM --sglang-speculative-num-steps 3",
     "sglang_speculative_algorithm: 'ngram' is not simulated; known: EAGLE3"),
    ("slime", SLIME + "--recompute-granularity odd", "recompute_granularity: 'odd' is not simulated; known: full"),
    ("slime", SLIME + "--rollout-max-context-len 8192 --rollout-max-prompt-len 4 8",
     "rollout_max_prompt_len: must be a whole number, got [4, 8]"),
    ("slime", SLIME + "--actor-num-gpus-per-node --n-samples-per-prompt 8",
     "actor_num_gpus_per_node: must be a whole number, got True"),
    ("trl", TRL + "--num_processes", "num_processes: must be a whole number, got True"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words", "message"), WRONG)
def test_a_wrong_value_is_named_with_its_option(name: str, words: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        import_config(name, written(tmp_path, name, words), lenient=True)
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "stack"), [("slime", "slime"), ("vime", "slime"), ("miles", "miles")])
def test_a_framework_with_a_stack_of_its_own_is_imported_with_it(name: str, stack: str, tmp_path: Path) -> None:
    found = imported(tmp_path, name, SLIME).scenario
    assert found.stack is not None and found.stack.name == stack and not found.stack.tuned
    assert found.refit_framework == stack


def test_slime_offloads_a_trainer_that_shares_its_gpus_alone(tmp_path: Path) -> None:
    apart = SLIME.replace("--colocate", "--rollout-num-gpus 8")
    for run, stated in ((SLIME, True), (SLIME + "--no-offload-train ", True), (apart, False)):
        assert ("offload:" in imported(tmp_path, "slime", run).text) == stated


def test_a_key_that_decides_is_understood_and_names_what_it_decides(tmp_path: Path) -> None:
    found = imported(tmp_path, "trl", TRL + "--num_processes 4")
    assert found.scenario.cluster.num_gpus == 4
    by_key = {one.key: one for one in found.accounting.keys}
    assert by_key["num_processes"].status == "used" and "cluster.num_gpus" in by_key["num_processes"].detail
    found = imported(tmp_path, "slime", SLIME + "--global-batch-size 64 --sglang-cuda-graph-bs 1 2")
    by_key = {one.key: one for one in found.accounting.keys}
    assert by_key["n_samples_per_prompt"].detail == "workload.generations_per_prompt"
    assert by_key["sglang_cuda_graph_bs"].detail == "engine.max_captured_tokens"
    assert found.scenario.engine.max_captured_tokens == 2


@pytest.mark.parametrize("name", RUNS)
def test_an_export_over_its_own_configuration_changes_nothing(name: str, tmp_path: Path) -> None:
    text, changes = RUNS[name]
    scenario = imported(tmp_path, name, text).scenario
    answer = export_scenario(scenario, name, read_config(name, written(tmp_path, name, text)))
    assert (answer.overrides, answer.left) == ((), ())
    expect_return(tmp_path, name, text, changes)


class Inner(Options, section="a.b"):
    size = integer(3)
    other = integer(name="other_name")


class Whole(Options):
    inner = Part(Inner)
    word = text("x")


def reader(values: dict[str, Any]) -> Reader:
    return Reader(ConfigTree("here", values))


def test_an_option_has_the_name_of_its_section_its_default_and_its_kind() -> None:
    assert [option.key for option in Whole.every()] == ["a.b.size", "a.b.other_name", "word"]
    c = Whole(reader({"a": {"b": {"other_name": 8.0}}}))
    assert (c.inner.size, c.inner.other, c.word) == (3, 8, "x")
    assert Whole(reader({})).inner.other is None
    with pytest.raises(InputError, match=r"here: a\.b\.size: must be a whole number, got 'many'"):
        assert Whole(reader({"a": {"b": {"size": "many"}}})).inner.size


@pytest.mark.parametrize(("read", "wanted", "written"), [
    (lambda c: c.inner.size, 5, 5), (lambda c: c.inner.size // 4, 5, 20), (lambda c: c.inner.size * 3 + 7, 22, 5),
    (lambda c: max(1, c.inner.size - 9), 4, 13), (lambda c: c.inner.size * 2, 5, None),
    (lambda c: c.inner.size / 4, 1.5, 6), (lambda c: min(c.inner.size, 64), 8.0, 8), (lambda c: 7, 8, None),
    (lambda c: c.inner.size if c.inner.size > 64 else None, 32, None),
])  # fmt: skip
def test_a_write_is_what_its_reading_needs_or_nothing(read: Any, wanted: float, written: int | None) -> None:
    rule = Rules(Whole)(Workload.generated_batch_factor).by(Inner.size, read)
    changes = solved(rule, Inner.size, wanted, reader({}))
    assert changes == ([] if written is None else [("a.b.size", written)])
    assert all(type(value) is int for _, value in changes)
    assert rule.write(wanted, reader({})) == ({} if written is None else {"a.b.size": written})


def test_values_that_do_not_fit_each_other_end_in_a_message_with_both() -> None:
    rule = Rules(Whole)(Workload.generated_batch_factor).rule(lambda c: c.inner.size / (c.inner.other or 0))
    with pytest.raises(InputError, match=r"here: a\.b\.other_name=0, a\.b\.size=3: of a kind that rlsim cannot reckon"):
        rule.read(reader({"a": {"b": {"size": 3, "other_name": 0}}}))


def test_what_a_key_refers_to_decides_the_same() -> None:
    r = reader({"a": {"b": {"size": "${c}"}}, "c": "${d}", "d": 4})
    assert Rules(Whole)(Workload.prompts_per_step).same(Inner.size).read(r) == 4
    assert {key: r.purposes(key) for key in ("a.b.size", "c", "d", "e")} == {
        **dict.fromkeys(("a.b.size", "c", "d"), ("workload.prompts_per_step",)), "e": ()}  # fmt: skip


def test_the_comparison_of_checkouts_finds_what_differs(script: Any, tmp_path: Path) -> None:
    compared = script("scripts/importer_equality")
    run = {"path": str(written(tmp_path, "slime", SLIME)), "words": [], "root": None, "first": 0, "step": 40}
    one = compared.answers("slime", run)
    assert one["over"][0] == [] and one["changed"]
    assert compared.compare([one], [one], [run])[1] == []
    other = compared.answers("slime", {**run, "words": ["--rollout-batch-size", "64"]})
    kinds = {line.split()[0] for line in compared.compare([one], [other], [run])[1]}
    assert kinds == {"DOCUMENT", "EXPORT", "CHANGED"}
