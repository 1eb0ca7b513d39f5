"""Scenario files: references, overrides, messages and the way back to YAML."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlsim.datafiles import data_folder
from rlsim.errors import InputError
from rlsim.hardware.cards import load_card
from rlsim.hardware.lookup import catalogue
from rlsim.hardware.parameters import load_parameters
from rlsim.hardware.profile import load_profile
from rlsim.loading import (
    dump_scenario,
    find_scenario,
    load_scenario,
    scenario_digest,
    scenario_json_schema,
    vary,
)
from rlsim.loading_yaml import parse_yaml
from rlsim.schema.scenario import Scenario

SMALL = """\
name: small
model: qwen3-8b
hardware: h100_sxm
cluster: {num_gpus: 8}
workload:
  prompts_per_step: 4
  generations_per_prompt: 4
  response_tokens: {kind: lognormal, mean_tokens: 400}
  max_sequence_tokens: 2048
speculation: {method: eagle3, draft_length: 3, acceptance_length: 2.5}
"""

CONTRACT_SCENARIOS = (
    "quickstart",
    "qwen8b_async_lag1",
    "qwen8b_rl_think",
    "qwen8b_rl_zero",
    "qwen235b_512",
    "qwen235b_2048",
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def message(path: Path | str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


# references


def test_a_card_by_name_equals_the_card_itself(small: Path) -> None:
    assert load_scenario(small).model == load_card("qwen3-8b")


def test_paths_count_from_the_scenarios_folder_first(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, layers in ((tmp_path, 7), (tmp_path / "elsewhere", 9)):
        folder.mkdir(exist_ok=True)
        card = load_card("qwen3-8b").model_dump(mode="json") | {"num_layers": layers}
        (folder / "card.yaml").write_text(
            "".join(f"{key}: {value}\n".replace("None", "null") for key, value in card.items())
        )
    small.write_text(SMALL.replace("qwen3-8b", "card.yaml"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_scenario(small).model.num_layers == 7


def test_a_dense_model_card_serves_as_external_draft_model(small: Path) -> None:
    scenario = load_scenario(small, ["speculation.method=draft_model", "speculation.draft=llama-3.1-8b"])
    assert scenario.speculation.draft is not None
    assert scenario.speculation.draft.kind == "draft_model"
    assert scenario.speculation.draft.hidden_size == load_card("llama-3.1-8b").hidden_size


def test_a_drafter_card_file_is_taken_as_it_is(small: Path, tmp_path: Path) -> None:
    (tmp_path / "head.yaml").write_text(
        "{kind: eagle3, hidden_size: 64, num_heads: 4, num_kv_heads: 2, head_dim: 16, intermediate_size: 9, source: t}"
    )
    scenario = load_scenario(small, ["speculation.draft=head.yaml", "speculation.draft.num_layers=2"])
    assert scenario.speculation.draft is not None
    assert (scenario.speculation.draft.hidden_size, scenario.speculation.draft.num_layers) == (64, 2)


@pytest.mark.parametrize("name", ["quickstart", "quickstart.yaml", "scenarios/quickstart.yaml", "QuickStart"])
def test_bundled_scenarios_are_found_by_name_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_scenario(name) == catalogue("scenarios")["quickstart"]


def test_a_file_of_that_name_goes_before_a_bundled_scenario(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small.rename(tmp_path / "quickstart")
    assert load_scenario("quickstart").name == "small"


def test_the_contracts_scenarios_are_there_and_survive_the_round_trip(tmp_path: Path) -> None:
    bundled = catalogue("scenarios")
    assert set(CONTRACT_SCENARIOS) <= set(bundled)
    for path in bundled.values():
        scenario = load_scenario(path)
        resolved = tmp_path / path.name
        resolved.write_text(dump_scenario(scenario))
        assert load_scenario(resolved) == scenario, path.name


# overrides


def test_overrides_are_yaml_values_and_later_ones_win(small: Path) -> None:
    scenario = load_scenario(
        small,
        [
            "engine.host_iteration_s=1e-6",
            "engine.tensor_parallel=4",
            "engine.tensor_parallel=2",
            "engine.cuda_graphs=false",
            "trainer.micro_batch_tokens=null",
            "speculation.acceptance_length=null",
            "speculation.position_acceptance=[0.9, 0.8, 0.7]",
            "workload.response_tokens={kind: constant, tokens: 5}",
        ],
    )
    assert scenario.engine.host_iteration_s == 1e-6
    assert scenario.engine.tensor_parallel == 2
    assert scenario.engine.cuda_graphs is False
    assert scenario.speculation.position_acceptance == (0.9, 0.8, 0.7)
    assert scenario.workload.response_tokens.model_dump() == {"kind": "constant", "tokens": 5}


def test_an_override_reaches_into_a_reference(small: Path) -> None:
    scenario = load_scenario(small, ["model.num_layers=4", "hardware.memory_bytes.value=1e11"])
    assert scenario.model == load_card("qwen3-8b").model_copy(update={"num_layers": 4})
    assert scenario.hardware.memory_bytes.value == 1e11


def test_an_override_of_an_aliased_section_leaves_the_other_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "alias.yaml"
    path.write_text(
        SMALL.replace(
            "response_tokens: {kind: lognormal, mean_tokens: 400}",
            "prompt_tokens: &length {kind: constant, tokens: 9}\n  response_tokens: *length",
        )
    )
    scenario = load_scenario(path, ["workload.response_tokens.tokens=11"])
    assert scenario.workload.prompt_tokens.model_dump()["tokens"] == 9
    assert scenario.workload.response_tokens.model_dump()["tokens"] == 11


def test_vary_validates_again_and_leaves_the_original(small: Path) -> None:
    scenario = load_scenario(small)
    varied = vary(scenario, "cluster.num_gpus=16", "hardware=gb200_nvl72")
    assert (varied.cluster.num_gpus, varied.hardware.name) == (16, "gb200_nvl72")
    assert scenario == load_scenario(small)
    assert vary(scenario) == scenario
    with pytest.raises(
        InputError, match=r"scenario 'small' with cluster.num_gpus=-7: cluster.num_gpus: must be at least 1, got -7"
    ):
        vary(scenario, "cluster.num_gpus=-7")


# messages

BAD_OVERRIDES = {
    "speculation.draft_length=-1": "speculation.draft_length: must be at least 0, got -1",
    "speculation.acceptance_length=5": "acceptance_length must lie between 1 and draft_length + 1 = 4; got 5",
    "speculation.acceptance_length=0.5": "speculation.acceptance_length: must be at least 1",
    "speculation.method=eagle4": "'draft_model', 'ngram' or 'suffix', got 'eagle4'",
    "speculation.method=mtp": "speculation.method mtp needs a native MTP head; Qwen3-8B has none",
    "engine.tensor_parallel=7": "must divide the 8 generation GPUs",
    "engine.tensor_paralel=8": "unknown key 'engine.tensor_paralel'; did you mean 'engine.tensor_parallel'?",
    "engine.host_iteration_s=1.5ms": "engine.host_iteration_s: must be a number, got '1.5ms'",
    "engine.weight_precision=nvfp4": "engine.weight_precision nvfp4 is not supported by h100_sxm",
    "cluster.num_gpus=1e99": "cluster.num_gpus: must be a whole number, got 1e+99",
    "cluster.num_gpus=8GB": "cluster.num_gpus: must be a whole number, got '8GB'",
    "cluster.num_gpus=true": "cluster.num_gpus: must be a whole number, got True",
    "cluster.num_gpus=99999999999999999999999": "cluster.num_gpus: must be",
    "workload.prompts_per_step=abc": "workload.prompts_per_step: must be a whole number, got 'abc'",
    "workload.prompts_per_step=nan": "workload.prompts_per_step: must be a whole number, got 'nan'",
    "workload.environment_s=.nan": "workload.environment_s: must be a finite number",
    "workload.environment_s=.inf": "workload.environment_s: must be a finite number",
    "workload.response_tokens.kind=lognorm": "must be one of 'constant', 'lognormal', 'quantiles', 'trace'",
    "workload.response_tokens.sigma=3": "did you mean 'workload.response_tokens.log_sigma'?",
    "workload.response_tokens.mean_tokens=-4": "workload.response_tokens.mean_tokens: must be at least 1",
    "workload.response_tokens=12": "workload.response_tokens: must be a mapping of keys to values, got 12",
    "workload.prompts_per_step.x=3": "'workload.prompts_per_step' holds a value, not further keys",
    "loop.mode=fast": "loop.mode: must be one of 'sync' or 'async', got 'fast'",
    "loop={mode: async, policy_lag: 1}": "loop.mode async needs a split cluster",
    "loop.policy_lag=2": "policy_lag must be 0 with mode sync",
    "nonsense.key=3": "unknown key 'nonsense'",
    "hardware=gb999": "hardware: unknown hardware profile 'gb999'",
    "hardware=gb20_nvl72": "nearest: gb200_nvl72",
    "hardware=absent.yaml": "absent.yaml",
    "model=qwen3-9b": "model: unknown model 'qwen3-9b'; nearest: qwen3-8b",
    "model.nun_layers=4": "unknown key 'model.nun_layers'; did you mean 'model.num_layers'?",
    "model=~nobody-here/card.yaml": "model: '~nobody-here/card.yaml' cannot be a path",
    'model="a\\0b.yaml"': "cannot be a path",
    "model=5": "model: must be a mapping of keys to values, got 5",
    "model=[1": "--set model=[1",
    "model=!!python/object/apply:os.getcwd []": "python/object",
    "no_equals_sign": "'no_equals_sign' is not KEY=VALUE",
    "=3": "'=3' is not KEY=VALUE",
    "engine..x=3": "'engine..x=3' is not KEY=VALUE",
}


@pytest.mark.parametrize("override", BAD_OVERRIDES)
def test_a_bad_override_gets_one_message_naming_key_and_bound(small: Path, override: str) -> None:
    assert BAD_OVERRIDES[override] in message(small, override)


def test_tensor_parallelism_that_divides_the_gpus_but_not_the_heads(small: Path) -> None:
    text = message(small, "cluster.num_gpus=6", "engine.tensor_parallel=3")
    assert "engine.tensor_parallel (3) must divide the 32 attention heads of Qwen3-8B" in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b"- 1\n", "expected a mapping of keys to values, got a list"),
        (b"just text\n", "expected a mapping of keys to values"),
        (b"name: a\nname: b\n", "line 2: duplicate key 'name'"),
        (SMALL.replace("num_gpus: 8", "num_gpus: 8, num_gpus: 9").encode(), "line 4: duplicate key 'num_gpus'"),
        (b"\x00\x01", "not a text file"),
        (b"\xff\xfe\x9c", "not a text file"),
        (b"a: [1,\n", "line 2"),
        (b"a: !!python/object/apply:os.getcwd []\n", "python/object"),
        (b"name: a\n---\nname: b\n", "line 2"),
        (b"name: a\n", "model: is required"),
        (SMALL.replace("num_gpus", "gpus").encode(), "cluster.gpus"),
    ],
)
def test_an_unusable_file_gets_one_message_naming_it(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    text = message(path)
    assert expected in text
    assert text.startswith(str(path))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    assert message(tmp_path / "absent.yaml") == f"{tmp_path}/absent.yaml: no such file"
    assert message(tmp_path) == f"{tmp_path}: is a folder; expected a file"
    assert message("qwen235b_51").startswith(
        "qwen235b_51: no such file, and unknown scenario 'qwen235b_51'; nearest: qwen235b"
    )


# the way back


BASE = Scenario.model_validate(
    parse_yaml(SMALL, "small")
    | {"model": load_card("qwen3-8b").model_dump(), "hardware": load_profile("h100_sxm").model_dump()}
)

# Text that YAML readers like to take for something else, and anything else that can stand in a name.
AWKWARD = st.sampled_from(
    [
        "1e-6",
        "08",
        "1_000",
        "null",
        "~",
        "yes",
        "2025-01-01",
        "1:30",
        "0x1f",
        ".5",
        "<<",
        "=",
        "\x85 a",
        "\u2028",
        "\ufeff#",
    ]
)


@given(name=st.text(min_size=1, max_size=50) | AWKWARD, seconds=st.floats(0, 1e6), graphs=st.booleans())
def test_every_scenario_survives_the_round_trip(name: str, seconds: float, graphs: bool) -> None:
    document = BASE.model_dump(mode="json")
    document["name"] = name
    document["workload"]["environment_s"] = seconds
    document["engine"]["cuda_graphs"] = graphs
    scenario = Scenario.model_validate(document)
    assert Scenario.model_validate(parse_yaml(dump_scenario(scenario), "dump")) == scenario


def test_the_digest_follows_every_value_and_nothing_else(small: Path, tmp_path: Path) -> None:
    scenario = load_scenario(small)
    digest = scenario_digest(scenario)
    assert len(digest) == 16 and int(digest, 16) >= 0
    (tmp_path / "resolved.yaml").write_text(dump_scenario(scenario))
    assert scenario_digest(load_scenario(tmp_path / "resolved.yaml")) == digest
    others = ["simulation.seed=1", "hardware.memory_bytes.value=1e11", "engine.host_iteration_s=1e-6", "name=other"]
    assert len({digest, *(scenario_digest(vary(scenario, other)) for other in others)}) == 1 + len(others)


def test_a_trace_counts_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
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


def test_the_editor_schema_takes_references_and_refuses_unknown_keys() -> None:
    schema = scenario_json_schema()
    for owner, key in ((schema, "model"), (schema, "hardware"), (schema["$defs"]["Speculation"], "draft")):
        assert {"type": "string"} in owner["properties"][key]["anyOf"]
        assert owner["properties"][key]["description"]
    assert schema["additionalProperties"] is False
    assert {"name", "model", "hardware", "cluster", "workload"} == set(schema["required"])


# what an answer depends on


def test_parameters_are_part_of_the_scenario_and_of_its_digest(small: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    digests = []
    for efficiency in (0.5, 0.6):
        values = load_parameters().model_dump(mode="json") | {"dense_efficiency": efficiency}
        own.write_text(yaml.safe_dump(values))
        scenario = load_scenario(small, ["simulation.parameters=own.yaml"])
        assert scenario.simulation.parameters is not None
        assert scenario.simulation.parameters.dense_efficiency == efficiency
        digests.append(scenario_digest(scenario))
        (tmp_path / "dumped.yaml").write_text(dump_scenario(scenario))
        assert scenario_digest(load_scenario(tmp_path / "dumped.yaml")) == digests[-1]
    assert digests[0] != digests[1]
    given = load_scenario(small, ["simulation.parameters.dense_efficiency=0.6"])
    assert scenario_digest(given) == digests[1]


def test_the_digest_follows_the_tables_and_the_version(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path / "mine" / "vllm"
    shutil.copytree(data_folder("calibration") / "tables" / "h100_sxm" / "vllm", tables)
    scenario = load_scenario(small, ["hardware.operator_tables=./mine"])
    assert scenario.hardware.operator_tables == str(tmp_path / "mine")
    digests = {scenario_digest(scenario)}
    assert digests == {scenario_digest(load_scenario(small))}
    with (tables / "metadata.yaml").open("a") as file:
        file.write("\n")
    digests.add(scenario_digest(scenario))
    monkeypatch.setattr("rlsim.__version__", "99")
    digests.add(scenario_digest(scenario))
    assert len(digests) == 3


def test_tables_that_are_not_where_they_are_said_to_be(small: Path) -> None:
    text = message(small, "hardware.operator_tables=./absent")
    assert "hardware.operator_tables: no folder './absent' of measured tables" in text


# words that go with keys


WORDS = """question: Does it pay?
assumptions:
  - Always true.
  - {text: Short answers., keys: [workload.response_tokens, engine]}
"""


@pytest.mark.parametrize(
    ("override", "question", "left"),
    [
        ("simulation.seed=3", "Does it pay?", 2),
        ("cluster.num_gpus=16", "small with cluster.num_gpus=16", 2),
        ("workload.response_tokens.mean_tokens=300", "small with workload.response_tokens.mean_tokens=300", 1),
        ("engine={max_running_sequences: 64}", "small with engine={max_running_sequences: 64}", 1),
        ("question=Another one?", "Another one?", 2),
    ],
)
def test_what_was_said_of_overridden_keys_falls(small: Path, override: str, question: str, left: int) -> None:
    small.write_text(SMALL + WORDS)
    for scenario in (load_scenario(small, [override]), vary(load_scenario(small), override)):
        assert len(scenario.assumptions) == left
        assert scenario.question in (question, "")
    assert load_scenario(small, [override]).question == question
    assert load_scenario(small).assumptions[0].text == "Always true."


def test_an_assumption_names_keys_that_there_are(small: Path) -> None:
    small.write_text(SMALL + WORDS.replace("engine]", "engin]"))
    assert "assumptions[1]: unknown key 'engin'; did you mean 'engine'?" in message(small)


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


def test_a_release_is_a_number(small: Path) -> None:
    assert "engine.version: must be a release such as 0.17.1, got 'banana'" in message(small, "engine.version=banana")
    for release in ("0.11.0rc2", "v0.20.0.post1", "0.18.1+cu128"):
        assert load_scenario(small, [f"engine.version={release}"]).engine.version == release
