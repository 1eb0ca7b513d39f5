"""Scenario files: references, overrides, messages and the way back to YAML."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import SMALL, message

from rlsim.errors import InputError
from rlsim.files.lookup import catalogue
from rlsim.files.yaml import parse_yaml
from rlsim.loading.models import load_card
from rlsim.loading.scenario import dump_scenario, find_scenario, load_scenario, vary
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile
from rlsim.workload.acceptance import acceptance_of

CONTRACT_SCENARIOS = {
    *("quickstart", "qwen8b_async_lag1", "qwen8b_rl_think", "qwen8b_rl_zero", "qwen235b_512", "qwen235b_2048")
}


# references


def test_paths_count_from_the_scenarios_folder(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, layers in ((tmp_path, 7), (tmp_path / "elsewhere", 9)):
        folder.mkdir(exist_ok=True)
        card = load_card("qwen3-8b").model_dump(mode="json") | {"num_layers": layers}
        (folder / "card.yaml").write_text(
            "".join(f"{key}: {value}\n".replace("None", "null") for key, value in card.items())
        )
    small.write_text(SMALL.replace("qwen3-8b", "card.yaml"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_scenario(small).model.num_layers == 7


def test_drafts_are_cards_or_models_whose_acceptance_belongs_to_its_length(small: Path, tmp_path: Path) -> None:
    words = ["speculation.method=draft_model", "speculation.draft=llama-3.1-8b", "speculation.acceptance_length=2.5"]
    with pytest.raises(InputError, match=r"vocabulary of 128,256 .*speculation\.heterogeneous_vocabulary true"):
        load_scenario(small, words)
    scenario = load_scenario(small, [*words, "speculation.heterogeneous_vocabulary=true"])
    assert scenario.speculation.draft.kind == "draft_model"
    assert scenario.speculation.draft.hidden_size == load_card("llama-3.1-8b").hidden_size
    (tmp_path / "head.yaml").write_text(
        "{kind: eagle3, hidden_size: 64, num_heads: 4, num_kv_heads: 2, head_dim: 16, intermediate_size: 9, source: t}"
    )
    scenario = load_scenario(small, ["speculation.draft=head.yaml", "speculation.draft.num_layers=2"])
    assert (scenario.speculation.draft.hidden_size, scenario.speculation.draft.num_layers) == (64, 2)
    # Positions keep their acceptance, whatever changes the draft length: override, word or extending file.
    own = acceptance_of(load_scenario(small).speculation).position_rates
    (tmp_path / "child.yaml").write_text(f"extends: {small}\nspeculation: {{draft_length: 5}}\n")
    longer = [load_scenario(small, [word]) for word in ("speculation.draft_length=5", "k=5")]
    longer += [load_scenario(tmp_path / "child.yaml"), vary(load_scenario(small), {"speculation": {"draft_length": 5}})]
    for one in longer:
        assert one.speculation == longer[0].speculation
        assert one.speculation.acceptance_at_draft_length == 3
        np.testing.assert_allclose(acceptance_of(one.speculation).position_rates[:3], own, rtol=1e-12)
        assert acceptance_of(one.speculation).mean > 2.55
    assert vary(longer[0], "k=3").speculation == load_scenario(small).speculation
    stated = vary(longer[0], "speculation.acceptance_length=3.2").speculation
    assert (stated.draft_length, stated.acceptance_at_draft_length) == (5, None)
    assert acceptance_of(stated).mean == pytest.approx(3.2)


@pytest.mark.parametrize("change", ["speculation.method=ngram", "speculation.method=draft_model"])
def test_another_drafter_does_not_keep_an_acceptance(small: Path, change: str) -> None:
    with pytest.raises(InputError, match=r"stated for another drafter \(eagle3\).*acceptance_length=2.5 if"):
        load_scenario(small, [change, "speculation.draft=qwen3-0.6b"])
    assert load_scenario(small, [change, "speculation.draft=qwen3-0.6b", "speculation.acceptance_length=2.5"])
    assert load_scenario(small, ["speculation.method=none"])


@pytest.mark.parametrize("name", ["quickstart", "quickstart.yaml", "scenarios/quickstart.yaml", "QuickStart"])
def test_bundled_scenarios_are_found_from_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_scenario(name) == catalogue("scenarios")["quickstart"]


def test_a_file_goes_before_a_bundled_scenario(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small.rename(tmp_path / "quickstart")
    assert load_scenario("quickstart").name == "small"


# overrides


def test_overrides_are_yaml_values_later_ones_win_and_reach_into_references(small: Path) -> None:
    scenario = load_scenario(
        small,
        ["engine.host_iteration_s=1e-6", "engine.tensor_parallel=4", "engine.tensor_parallel=2",
         "engine.cuda_graphs=false", "trainer.micro_batch_tokens=null", "speculation.acceptance_length=null",
         "speculation.position_acceptance=[0.9, 0.8, 0.7]", "workload.response_tokens={kind: constant, tokens: 5}"],
    )  # fmt: skip
    assert scenario.engine.host_iteration_s == 1e-6
    assert scenario.engine.tensor_parallel == 2
    assert scenario.engine.cuda_graphs is False
    assert scenario.speculation.position_acceptance == (0.9, 0.8, 0.7)
    assert scenario.workload.response_tokens.model_dump() == {"kind": "constant", "tokens": 5}
    scenario = load_scenario(small, ["model.num_layers=4", "hardware.memory_bytes.value=1e11"])
    assert scenario.model == load_card("qwen3-8b").model_copy(update={"num_layers": 4})
    assert scenario.hardware.memory_bytes.value == 1e11


def test_vary_validates_again_and_an_aliased_section_leaves_the_other_alone(small: Path, tmp_path: Path) -> None:
    scenario = load_scenario(small)
    varied = vary(scenario, "cluster.num_gpus=16", "hardware=gb200_nvl72")
    assert (varied.cluster.num_gpus, varied.hardware.name) == (16, "gb200_nvl72")
    assert scenario == load_scenario(small)
    assert vary(scenario) == scenario
    with pytest.raises(
        InputError, match=r"scenario 'small' with cluster.num_gpus=-7: cluster.num_gpus: must be at least 1, got -7"
    ):
        vary(scenario, "cluster.num_gpus=-7")
    path = tmp_path / "alias.yaml"
    path.write_text(
        SMALL.replace("response_tokens: {kind: lognormal, mean_tokens: 400}",
                      "prompt_tokens: &length {kind: constant, tokens: 9}\n  response_tokens: *length"),
    )  # fmt: skip
    scenario = load_scenario(path, ["workload.response_tokens.tokens=11"])
    assert scenario.workload.prompt_tokens.model_dump()["tokens"] == 9
    assert scenario.workload.response_tokens.model_dump()["tokens"] == 11


# messages

BAD_OVERRIDES = {
    "speculation.draft_length=-1": "speculation.draft_length: must be at least 0, got -1",
    "speculation.acceptance_length=5": "acceptance_length must lie between 1 and draft_length + 1 = 4; got 5",
    "speculation.acceptance_length=0.5": "speculation.acceptance_length: must be at least 1",
    "speculation.method=eagle4": "'draft_model', 'dflash', 'dspark', 'ngram' or 'suffix', got 'eagle4'",
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
    "workload.response_tokens=twelve": "workload.response_tokens: must be a mapping of keys to values, got 'twelve'",
    "workload.prompts_per_step.x=3": "'workload.prompts_per_step' holds a value, not further keys",
    "loop.mode=fast": "loop.mode: must be one of 'sync' or 'async', got 'fast'",
    "loop={mode: async, policy_lag: 1}": "loop.mode async needs a split cluster",
    "loop.policy_lag=2": "policy_lag must be 0 with mode sync", "nonsense.key=3": "unknown key 'nonsense'",
    "engine.zzz=2": "unknown key 'engine.zzz'; valid here: name, version, tensor_parallel",
    "engine.gpu_memory_utilization=1.5": "engine.gpu_memory_utilization: must be at most 1.0, got 1.5",
    "speculation.position_acceptance=0.5": "speculation.position_acceptance: must be a list, got 0.5",
    "speculation.position_acceptance=[0.5, 0.4, x]": "speculation.position_acceptance[2]: must be a number, got 'x'",
    "workload.response_tokens={kind: lognormal}": "workload.response_tokens.mean_tokens: is required",
    "workload.response_tokens={kind: lognormal, mean_token: 3}": "did you mean 'workload.response_tokens.mean_tokens'?",
    "workload.response_tokens={tokens: 3}": "workload.response_tokens: needs the key 'kind'",
    "hardware=gb999": "hardware: unknown hardware profile 'gb999'", "hardware=gb20_nvl72": "nearest: gb200_nvl72",
    "hardware=absent.yaml": "absent.yaml",
    "model=qwen3-9b": "model: unknown model 'qwen3-9b'; nearest: qwen3.5-9b, qwen3-8b",
    "model.nun_layers=4": "unknown key 'model.nun_layers'; did you mean 'model.num_layers'?",
    "model=~nobody-here/card.yaml": "model: '~nobody-here/card.yaml' cannot be a path",
    'model="a\\0b.yaml"': "cannot be a path", "model=5": "model: must be a mapping of keys to values, got 5",
    "model=[1": "model=[1: line 1, column", "model=!!python/object/apply:os.getcwd []": "python/object",
    "no_equals_sign": "'no_equals_sign' is not KEY=VALUE", "=3": "'=3' is not KEY=VALUE",
    "engine..x=3": "'engine..x=3' is not KEY=VALUE",
}  # fmt: skip


@pytest.mark.parametrize("override", BAD_OVERRIDES)
def test_a_bad_override_gets_one_message_naming_key_and_bound(small: Path, override: str) -> None:
    assert BAD_OVERRIDES[override] in message(small, override)


@pytest.mark.parametrize(("content", "expected"), [
    (b"", "empty"),
    (b"- 1\n", "expected a mapping of keys to values, got a list"),
    (b"just text\n", "expected a mapping of keys to values"),
    (b"name: a\nname: b\n", "line 2, column 1: duplicate key 'name'"),
    (SMALL.replace("num_gpus: 8", "num_gpus: 8, num_gpus: 9").encode(), "line 4, column 24: duplicate key 'num_gpus'"),
    (b"\x00\x01", "not a text file"),
    (b"\xff\xfe\x9c", "not a text file"),
    (b"a: [1,\n", "line 2"),
    (b"a: !!python/object/apply:os.getcwd []\n", "python/object"),
    (b"name: a\n---\nname: b\n", "line 2"),
    (b"name: a\n", "model, hardware, cluster, workload: are required"),
    (SMALL.replace("num_gpus", "gpus").encode(), "cluster.gpus"),
    (f"{SMALL}tensor_parallel: 2\n".encode(), "unknown key 'tensor_parallel'; did you mean 'engine.tensor_parallel'?"),
])  # fmt: skip
def test_an_unusable_file_gets_one_message_naming_it(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    text = message(path)
    assert expected in text
    assert text.startswith(str(path))


def test_missing_files_are_told_and_shipped_scenarios_survive_the_round_trip(tmp_path: Path) -> None:
    assert message(tmp_path / "absent.yaml") == f"{tmp_path}/absent.yaml: no such file"
    assert message(tmp_path) == f"{tmp_path}: is a folder; expected a file"
    assert message("qwen235b_51").startswith(
        "qwen235b_51: no such file, and unknown scenario 'qwen235b_51'; nearest: qwen235b"
    )
    bundled = catalogue("scenarios")
    assert set(bundled) >= CONTRACT_SCENARIOS
    for path in bundled.values():
        scenario = load_scenario(path)
        resolved = tmp_path / path.name
        resolved.write_text(dump_scenario(scenario))
        assert load_scenario(resolved) == scenario, path.name


# the way back


BASE = Scenario.model_validate(
    parse_yaml(SMALL, "small")
    | {"model": load_card("qwen3-8b").model_dump(), "hardware": load_profile("h100_sxm").model_dump()}
)

AWKWARD_UNICODE = ("\x85 a", "\u2028", "\ufeff#")
# Text that YAML readers like to take for something else, and anything else that can stand in a name.
AWKWARD = st.sampled_from(
    ["1e-6", "08", "1_000", "null", "~", "yes", "2025-01-01", "1:30", "0x1f", ".5", "<<", "=", *AWKWARD_UNICODE]
)


@given(name=st.text(min_size=1, max_size=50) | AWKWARD, seconds=st.floats(0, 1e6), graphs=st.booleans())
def test_every_scenario_survives_the_round_trip(name: str, seconds: float, graphs: bool) -> None:
    document = BASE.model_dump(mode="json")
    document["name"] = name
    document["workload"]["environment_s"] = seconds
    document["engine"]["cuda_graphs"] = graphs
    scenario = Scenario.model_validate(document)
    assert Scenario.model_validate(parse_yaml(dump_scenario(scenario), "dump")) == scenario
