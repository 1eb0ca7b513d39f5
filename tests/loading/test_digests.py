"""Digests, words that overrides make stale, and what belongs to a resolved scenario."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml
from small_scenario import SMALL, message

from rlsim.files.reading import data_folder
from rlsim.loading.scenario import dump_scenario, load_scenario, scenario_digest, scenario_json_schema, vary
from rlsim.parameters.sets import load_parameters
from rlsim.projection.project import project
from rlsim.tables.fingerprint import tables_held


def test_the_digest_follows_every_value_and_traces_by_content(small: Path, tmp_path: Path) -> None:
    scenario = load_scenario(small)
    digest = scenario_digest(scenario)
    assert len(digest) == 16 and int(digest, 16) >= 0
    (tmp_path / "resolved.yaml").write_text(dump_scenario(scenario))
    assert scenario_digest(load_scenario(tmp_path / "resolved.yaml")) == digest
    others = ["simulation.seed=1", "hardware.memory_bytes.value=1e11", "engine.host_iteration_s=1e-6", "name=other"]
    assert len({digest, *(scenario_digest(vary(scenario, other)) for other in others)}) == 1 + len(others)
    digests = []
    for folder, lengths in (("a", "5\n7\n"), ("b", "5\n7\n"), ("c", "5\n8\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "lengths.csv").write_text("output_tokens\n" + lengths)
        path = tmp_path / folder / "s.yaml"
        path.write_text(SMALL.replace("{kind: lognormal, mean_tokens: 400}", "{kind: trace, path: lengths.csv}"))
        scenario = load_scenario(path)
        assert str(tmp_path / folder / "lengths.csv") in dump_scenario(scenario)
        digests.append(scenario_digest(scenario))
    assert digests[0] == digests[1] != digests[2]


def test_the_editor_schema_takes_references_refuses_unknown_keys_and_is_named_by_shipped_scenarios() -> None:
    schema = scenario_json_schema()
    for owner, key in ((schema, "model"), (schema, "hardware"), (schema["$defs"]["Speculation"], "draft")):
        assert {"type": "string"} in owner["properties"][key]["anyOf"]
        assert owner["properties"][key]["description"]
    assert schema["additionalProperties"] is False
    assert {"name", "model", "hardware", "cluster", "workload"} == set(schema["else"]["required"])
    folder = data_folder("scenarios")
    assert json.loads((folder / "scenario.schema.json").read_text()) == scenario_json_schema()
    check = jsonschema.Draft202012Validator(scenario_json_schema())
    for path in sorted(folder.glob("*.yaml")):
        assert path.read_text().splitlines()[0] == "# yaml-language-server: $schema=scenario.schema.json", path.name
        check.validate(yaml.safe_load(path.read_text()))


# what an answer depends on


def test_parameters_and_tables_that_change_are_in_the_digest(small: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    digests = []
    for efficiency in (0.5, 0.6):
        values = load_parameters().model_dump(mode="json") | {"dense_efficiency": efficiency}
        own.write_text(yaml.safe_dump(values))
        scenario = load_scenario(small, ["simulation.parameters=own.yaml"])
        assert scenario.simulation.parameters.dense_efficiency == efficiency
        digests.append(scenario_digest(scenario))
        (tmp_path / "dumped.yaml").write_text(dump_scenario(scenario))
        assert scenario_digest(load_scenario(tmp_path / "dumped.yaml")) == digests[-1]
    assert digests[0] != digests[1]
    given = load_scenario(small, ["simulation.parameters.dense_efficiency=0.6"])
    assert scenario_digest(given) == digests[1]
    tables = tmp_path / "mine"
    shutil.copytree(data_folder("calibration") / "tables" / "h100_sxm", tables)
    scenario = load_scenario(small, ["hardware.operator_tables=./mine", "simulation.replications=1"])
    before = project(scenario)
    other = data_folder("calibration") / "tables" / "gb200_nvl72" / "vllm" / "gemm.npz"
    with tables_held():
        held = scenario_digest(scenario)
        shutil.copy(other, tables / "vllm" / "gemm.npz")
        assert scenario_digest(scenario) == held == before.digest
    after = project(scenario)
    assert after.digest != before.digest
    assert after.candidate.phases["generation_s"].mean < 0.98 * before.candidate.phases["generation_s"].mean


def test_the_digest_follows_tables_and_version(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tmp_path / "mine" / "vllm"
    shutil.copytree(data_folder("calibration") / "tables" / "h100_sxm", tables.parent)
    scenario = load_scenario(small, ["hardware.operator_tables=./mine"])
    assert scenario.hardware.operator_tables == str(tmp_path / "mine")
    digests = {scenario_digest(scenario)}
    assert digests == {scenario_digest(load_scenario(small))}
    with (tables / "metadata.yaml").open("a") as file:
        file.write("\n")
    digests.add(scenario_digest(scenario))
    monkeypatch.setattr("rlsim.loading.scenario.installed_version", lambda: "99")
    digests.add(scenario_digest(scenario))
    assert len(digests) == 3


@pytest.mark.parametrize("changed", ["exchange of another device", "profile of the tables", "evidence"])
def test_the_digest_follows_it_all(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    """Tables of GB200 answer for experts on GB300, times of the H100 for an H20, and runs beside them tell support."""
    calibration, profiles = data_folder("calibration"), data_folder("hardware_profiles")
    shutil.copytree(calibration / "tables" / "gb200_nvl72", tmp_path / "tables" / "gb200_nvl72")
    for system in (calibration / "tables").iterdir():
        if system.name != "gb200_nvl72":
            (tmp_path / "tables" / system.name).symlink_to(system)
    shutil.copytree(profiles, tmp_path / "profiles")
    shutil.copy(calibration / "posterior" / "evidence.npz", tmp_path)
    scenario = load_scenario(small, ["hardware=" + ("gb300_nvl72" if "exchange" in changed else "h20_sxm")])
    monkeypatch.setattr("rlsim.tables.files.tables_folder", lambda: tmp_path / "tables")
    monkeypatch.setattr("rlsim.tables.fingerprint.tables_folder", lambda: tmp_path / "tables")
    monkeypatch.setattr("rlsim.files.lookup.data_folder", lambda name: tmp_path / "profiles")
    monkeypatch.setattr("rlsim.loading.scenario.evidence_path", lambda: tmp_path / "evidence.npz", raising=False)
    before = scenario_digest(scenario)
    assert scenario_digest(scenario) == before
    moved = {
        "exchange of another device": tmp_path / "tables" / "gb200_nvl72" / "trtllm" / "metadata.yaml",
        "profile of the tables": tmp_path / "profiles" / "h100_sxm.yaml",
        "evidence": tmp_path / "evidence.npz",
    }[changed]
    moved.write_bytes(moved.read_bytes() + b"\n")
    assert scenario_digest(scenario) != before


# words that go with keys


WORDS = """question: Does it pay?
assumptions:
  - Always true.
  - {text: Short answers., keys: [workload.response_tokens, engine]}
"""


@pytest.mark.parametrize(("override", "question", "left"), [
    ("simulation.seed=3", "Does it pay?", 2),
    ("cluster.num_gpus=16", "small with cluster.num_gpus=16", 2),
    ("workload.response_tokens.mean_tokens=300", "small with workload.response_tokens.mean_tokens=300", 1),
    ("engine={max_running_sequences: 64}", "small with engine={max_running_sequences: 64}", 1),
    ("question=Another one?", "Another one?", 2),
])  # fmt: skip
def test_what_was_said_of_overridden_keys_falls(small: Path, override: str, question: str, left: int) -> None:
    small.write_text(SMALL + WORDS)
    for scenario in (load_scenario(small, [override]), vary(load_scenario(small), override)):
        assert len(scenario.assumptions) == left
        assert scenario.question in (question, "")
    assert load_scenario(small, [override]).question == question
    assert load_scenario(small).assumptions[0].text == "Always true."


@pytest.mark.parametrize("order", [1, -1])
def test_another_kind_of_length_keeps_no_key_of_the_old_one(small: Path, tmp_path: Path, order: int) -> None:
    (tmp_path / "lengths.csv").write_text("5\n7\n")
    overrides = ["workload.response_tokens.kind=trace", "workload.response_tokens.path=lengths.csv"][::order]
    length = load_scenario(small, overrides).workload.response_tokens
    assert length.model_dump() == {
        "kind": "trace", "path": str(tmp_path / "lengths.csv"), "column": None, "mean_tokens": None,
    }  # fmt: skip
    same = load_scenario(small, ["workload.response_tokens.kind=lognormal"]).workload.response_tokens
    assert same == load_scenario(small).workload.response_tokens


def test_an_assumption_names_keys_that_there_are_and_a_release_is_a_number(small: Path) -> None:
    assert "engine.version: must be a release such as 0.17.1, got 'banana'" in message(small, "engine.version=banana")
    for release in ("0.11.0rc2", "v0.20.0.post1", "0.18.1+cu128"):
        assert load_scenario(small, [f"engine.version={release}"]).engine.version == release
    small.write_text(SMALL + WORDS.replace("engine]", "engin]"))
    assert "assumptions[1]: unknown key 'engin'; did you mean 'engine'?" in message(small)
