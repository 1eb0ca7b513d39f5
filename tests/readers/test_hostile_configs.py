"""Configurations that mean harm: nothing is executed, nothing hangs, one message tells."""

import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_files import FOLDER

from rlsim.errors import InputError
from rlsim.readers.frameworks.importing import import_config

Command = Callable[..., tuple[int, str, str]]
MODEL = "policy: {model_name: Qwen/Qwen3-8B}\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n"
                                                            for n in range(1, 9))  # fmt: skip
DOUBLING = "".join(f"a{n}: ${{a{n + 1}}}${{a{n + 1}}}\n" for n in range(40)) + "a40: x\npolicy: {model_name: '${a0}'}\n"
LISTS = "".join(f"a{n}: ['${{a{n + 1}[0]}}${{a{n + 1}[0]}}']\n" for n in range(40))
CHAIN = "".join(f"a{n}: ${{a{n + 1}}}\n" for n in range(5000)) + "a5000: x\npolicy: {model_name: '${a0}'}\n"
HOSTILE = {
    "bomb": (BOMB, "more than"),
    "doubling": (DOUBLING, "references"),
    "doubling in lists": (LISTS + "a40: [x]\npolicy: {model_name: '${a0[0]}'}\n", "references"),
    "chain": (CHAIN, "references"),
    "circle": ("a: ${b}\nb: ${a}\npolicy: {model_name: '${a}'}\n", "refers to itself"),
    "own section": ("policy: {model_name: '${policy}'}\n", "refers to itself"),
    "nested name": ("b: x\npolicy: {model_name: '${${b}}'}\n", "does not resolve"),
    "tag": ("policy: !!python/object/apply:os.system ['touch harm']\n", "could not determine a constructor"),
    "deep": ("policy: " + "{a: " * 60 + "1" + "}" * 60 + "\n", "sections within each other"),
    "very deep": ("policy: " + "[" * 5000 + "]" * 5000 + "\n", "not valid YAML"),
    "list": ("- 1\n- 2\n", "expected a mapping"),
    "scalar": ("text\n", "expected a mapping"),
    "unfinished": ("policy: {model_name: '${a'}\n", "policy.model_name: has an interpolation that rlsim does not"),
    "missing": ("policy:\n  model_name: ???\n", "must be given"),
    "section as value": ("policy: 3\ngrpo: [1]\n", "policy: must be a section"),
    "value as section": ("grpo: {num_prompts_per_step: {a: 1}}\n" + MODEL, "must be a whole number"),
    "power": ("a: ${mul:${b}, ${b}}\nb: 1.0e+300\npolicy: {model_name: m, train_global_batch_size: '${a}'}\n", "whole"),
    "huge": (MODEL + "cluster: {num_nodes: 9999999999}\n", "num_gpus"),
    "beyond floats": (MODEL + "cluster: {num_nodes: 99999999999999999999}\n",
                      "cluster.num_nodes: must be a whole number of at most 2^53, got 99999999999999999999"),
    "negative": (MODEL + "grpo: {num_prompts_per_step: -4}\n", "prompts_per_step"),
    "defaults mapping": ("defaults: {a: b}\n", "is no path"),
    "itself": ("defaults: config.yaml\n", "inherits from itself"),
    "parent": ("defaults: ../other.yaml\n", "lies outside"),
    "absolute": ("defaults: /etc/passwd.yaml\n", "lies outside"),
    "absolute with a known name": ("defaults: /dev/grpo_math_1B.yaml\n" + MODEL, None),
    "device": ("defaults: /dev/zero\n", "lies outside"),
    "NUL": ('defaults: "a\\0.yaml"\n', "cannot be a path"),
    "no suffix": ("defaults: ./harm.pkl\n", "is no .yaml file"),
    "no engine GPUs": (MODEL[:-2] + ", generation: {vllm_cfg: {tensor_parallel_size: 0}}}\n",
                       "policy.generation.vllm_cfg.tensor_parallel_size: must be a whole number of at least 1, got 0"),
    "no tokens": (MODEL[:-2] + ", max_total_sequence_length: 0}\n",
                  "policy.max_total_sequence_length: must be a whole number of at least 1, got 0"),
    "null tokens": (MODEL[:-2] + ", max_total_sequence_length: null}\n",
                    "policy.max_total_sequence_length: must be a whole number of at least 1, got None"),
    "tokens beyond floats": (MODEL[:-2] + ", max_total_sequence_length: 1" + "0" * 400 + "}\n",
                             "policy.max_total_sequence_length: must be a whole number of at most 2^53, got 1000"),
    "missing parent": ("defaults: ./nothing.yaml\n", "no such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_configuration_ends_in_one_short_message(name: str, tmp_path: Path) -> None:
    text, told = HOSTILE[name]
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "harm.pkl").write_bytes(pickle.dumps({"policy": 1}))
    began = time.process_time()
    if told is None:
        assert import_config("nemo-rl", tmp_path / "config.yaml").accounting.notes
    else:
        with pytest.raises(InputError) as error:
            import_config("nemo-rl", tmp_path / "config.yaml")
        assert told in str(error.value) and len(str(error.value)) < 600
    assert time.process_time() - began < 20
    assert not (tmp_path / "harm").exists() and not Path("harm").exists()


def test_large_lines_are_refused_and_links_do_not_lead_out(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with path.open("w") as file:
        file.write("policy: ")
        for _ in range(100):
            file.write("x" * 2**20)
    with pytest.raises(InputError, match="larger than 1 MiB"):
        import_config("verl", path)
    (tmp_path / "outside.yaml").write_text("grpo: {num_prompts_per_step: 3}\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (tmp_path / "in" / "config.yaml").write_text("defaults: link.yaml\n" + MODEL)
    with pytest.raises(InputError, match="lies outside"):
        import_config("nemo-rl", tmp_path / "in" / "config.yaml")
    got = import_config("nemo-rl", tmp_path / "in" / "config.yaml", root=tmp_path,
                        overrides=["policy.train_global_batch_size=48"])  # fmt: skip
    assert got.scenario.workload.prompts_per_step == 3


def test_many_inherited_files_are_not_read_and_control_characters_reach_no_terminal(tmp_path: Path) -> None:
    for n in range(30):
        (tmp_path / f"f{n}.yaml").write_text(f"defaults: [f{n + 1}.yaml, f{n + 1}.yaml]\n")
    (tmp_path / "f30.yaml").write_text(MODEL)
    with pytest.raises(InputError, match="files are inherited"):
        import_config("nemo-rl", tmp_path / "f0.yaml")
    (tmp_path / "config.yaml").write_text(MODEL + '"gr\\e[31mpo": {"a\\nb: 1": 2}\n')
    got = import_config("nemo-rl", tmp_path / "config.yaml")
    assert "\x1b" not in got.text and "a\nb" not in got.accounting.summary()
    assert len(got.accounting.of("not_understood")) == 1


BASE = str(FOLDER / "nemo-rl" / "base.yaml")


def test_an_import_writes_tells_and_prints_the_same_bytes(run: Command, tmp_path: Path) -> None:
    out = tmp_path / "new" / "scenario.yaml"
    code, printed, told = run("import", "nemo-rl", BASE, "--hardware", "gb200_nvl72", "-o", str(out))
    assert code == 0 and printed.startswith("written: ")
    assert "0 not understood" in told
    assert "hardware: gb200_nvl72" in out.read_text()
    assert [path.name for path in out.parent.iterdir()] == ["scenario.yaml"]
    assert run("import", "nemo-rl", BASE) == run("import", "nemo-rl", BASE)
    code, printed, _ = run("import", "nemo-rl", BASE, "~logger", "--json")
    answer = json.loads(printed)
    assert code == 0 and answer["accounting"]["counts"]["used"] > 40
    assert len(answer["accounting"]["keys"]) == sum(answer["accounting"]["counts"].values())


def test_a_wrong_import_writes_nothing_an_export_two(run: Command, tmp_path: Path) -> None:
    out = tmp_path / "scenario.yaml"
    code, printed, told = run("import", "nemo-rl", BASE, "cluster.num_node=3", "-o", str(out))
    assert (code, printed) == (2, "") and told.count("\n") == 1
    assert "base.yaml" in told and "cluster.num_node" in told and "cluster.num_nodes" in told
    assert not out.exists() and list(tmp_path.iterdir()) == []
    assert run("import", "verl", BASE, "--config-name", "harm")[0] == 2
    scenario = tmp_path / "scenario.yaml"
    run("import", "nemo-rl", BASE, "-o", str(scenario))
    code, printed, told = run(
        "export", str(scenario), "--to", "nemo-rl", "--config", BASE, "--set", "cluster.num_gpus=32",
        "-o", str(tmp_path / "out"),
    )  # fmt: skip
    assert (code, printed, told) == (0, "cluster.num_nodes=4\n", "")
    assert (tmp_path / "out" / "overrides.txt").read_text() == printed
    again = tmp_path / "again.yaml"
    run("import", "nemo-rl", str(tmp_path / "out" / "config.yaml"), "-o", str(again))
    assert "num_gpus: 32" in again.read_text()
