"""Scenarios that extend others, and the places that messages name."""

from pathlib import Path

import jsonschema
import yaml
from small_scenario import SMALL, message

from rlsim.loading.extends import MAX_PARENTS
from rlsim.loading.scenario import load_scenario, scenario_digest, scenario_json_schema

ASSUMED = """\
assumptions:
  - {text: lengths are guessed, keys: [workload.response_tokens]}
  - {text: acceptance is guessed, keys: [speculation.acceptance_length]}
  - a plain one
"""


def child(folder: Path, text: str, name: str = "child.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_children_change_what_they_name_and_keep_the_rest(small: Path, tmp_path: Path) -> None:
    path = child(small.parent, "extends: small.yaml\nspeculation: {draft_length: 5}\ncluster:\n  num_gpus: 16\n")
    changed = load_scenario(small, ["speculation.draft_length=5", "cluster.num_gpus=16"])
    assert load_scenario(path).model_dump(exclude={"question"}) == changed.model_dump(exclude={"question"})
    assert scenario_digest(load_scenario(path)) == scenario_digest(changed)
    assert load_scenario(path).question == "small with speculation.draft_length=5, cluster.num_gpus=16"
    check = jsonschema.Draft202012Validator(scenario_json_schema())
    whole = yaml.safe_load(SMALL)
    assert check.is_valid(whole)
    assert check.is_valid({"extends": "quickstart", "workload": {"prompts_per_step": 8}})
    assert not check.is_valid({name: value for name, value in whole.items() if name != "cluster"})
    assert not check.is_valid({**whole, "workload": {"prompts_per_step": 8}})
    assert not check.is_valid({"extends": "quickstart", "workload": {"prompt_per_step": 8}})
    text = "extends: quickstart\nname: mine\nquestion: And mine?\nworkload:\n  response_tokens: {mean_tokens: 900}\n"
    found = load_scenario(child(tmp_path, text))
    parent = load_scenario("quickstart")
    assert (found.name, found.question) == ("mine", "And mine?")
    assert found.workload.response_tokens.mean_tokens == 900  # type: ignore[union-attr]
    assert found.workload.response_tokens.log_sigma == parent.workload.response_tokens.log_sigma  # type: ignore[union-attr]
    rates = "speculation: {acceptance_length: null, position_acceptance: [0.8, 0.6, 0.4]}\n"
    base = child(tmp_path, f"extends: quickstart\n{rates}", "rates.yaml")
    fewer = "extends: rates.yaml\nspeculation: {draft_length: 2, position_acceptance: [0.9, 0.5]}\n"
    assert load_scenario(base).speculation.position_acceptance == (0.8, 0.6, 0.4)
    assert load_scenario(child(tmp_path, fewer)).speculation.position_acceptance == (0.9, 0.5)
    path = child(
        small.parent, "extends: small.yaml\nengine: {}\nworkload: {response_tokens: {kind: constant, tokens: 9}}\n"
    )
    assert load_scenario(path).workload.response_tokens.model_dump() == {"kind": "constant", "tokens": 9}
    small.write_text(SMALL + ASSUMED)
    path = child(small.parent, "extends: small.yaml\nspeculation: {acceptance_length: 3}\nassumptions: [mine]\n")
    assert [one.text for one in load_scenario(path).assumptions] == ["lengths are guessed", "a plain one", "mine"]


def test_relative_paths_count_from_the_file_that_names_them(small: Path, tmp_path: Path) -> None:
    card = Path("scenarios/models/qwen3-8b.yaml").read_text().replace("num_layers: 36", "num_layers: 30")
    child(tmp_path / "parts", card, "card.yaml")
    child(tmp_path / "parts", "output_tokens\n7\n", "lengths.csv")
    text = SMALL.replace("qwen3-8b", "card.yaml").replace(
        "{kind: lognormal, mean_tokens: 400}", "{kind: trace, path: lengths.csv}"
    )
    child(tmp_path / "parts", text, "base.yaml")
    middle = child(tmp_path, "extends: parts/base.yaml\nengine: {tensor_parallel: 2}\n", "middle.yaml")
    found = load_scenario(child(tmp_path / "other", "extends: ../middle.yaml\nmodel: {num_layers: 28}\n"))
    assert load_scenario(middle).model.num_layers == 30
    assert (found.model.num_layers, found.engine.tensor_parallel) == (28, 2)
    assert found.workload.response_tokens.path == str((tmp_path / "parts" / "lengths.csv").resolve())  # type: ignore[union-attr]


def test_cycles_depth_and_missing_parents_are_refused(tmp_path: Path) -> None:
    child(tmp_path, "extends: b.yaml\n", "a.yaml")
    child(tmp_path, "name: b\nextends: a.yaml\n", "b.yaml")
    assert "b.yaml: line 2, column 1: extends: the files extend each other in a circle" in message(tmp_path / "a.yaml")
    itself = child(tmp_path, "extends: child.yaml\n")
    assert "in a circle" in message(itself)
    for number in range(MAX_PARENTS + 1):
        child(tmp_path, f"extends: deep{number + 1}.yaml\n", f"deep{number}.yaml")
    child(tmp_path, SMALL, f"deep{MAX_PARENTS}.yaml")
    assert load_scenario(tmp_path / "deep0.yaml").name == "small"
    child(tmp_path, f"extends: deep{MAX_PARENTS + 1}.yaml\n", f"deep{MAX_PARENTS}.yaml")
    child(tmp_path, SMALL, f"deep{MAX_PARENTS + 1}.yaml")
    assert f"more than {MAX_PARENTS} files extend each other" in message(tmp_path / "deep0.yaml")
    assert "absent.yaml: no such file" in message(child(tmp_path, "extends: absent.yaml\n"))
    assert "nearest: quickstart" in message(child(tmp_path, "extends: quickstar\n"))
    assert "must be a file or the name of a scenario, got 5" in message(child(tmp_path, "extends: 5\n"))
    assert "unknown key 'extends'" in message("quickstart", "extends=quickstart")


def test_messages_name_the_place_in_the_file_that_holds_the_key_or_what_an_override_replaces(small: Path) -> None:
    told = message(small, "workload.prompts_per_step=0")
    assert "in place of line 6, column 3: workload.prompts_per_step: must be at least 1, got 0" in told
    assert "line" not in message(small, "engine.tensor_parallel=0")
    path = child(small.parent, "extends: small.yaml\nengine:\n  tensor_parallel: 0\n")
    assert message(path).startswith(f"{path}: line 3, column 3: engine.tensor_parallel: must be at least 1, got 0")
    small.write_text(SMALL.replace("mean_tokens: 400", "mean_tokens: -4"))
    child(small.parent, "extends: small.yaml\nengine: {tensor_parallel: 2}\n")
    told = message(path.parent / "child.yaml")
    assert f"{small}, line 8, column 38: workload.response_tokens.mean_tokens: must be at least 1.0, got -4" in told
    small.write_text(SMALL.replace("qwen3-8b", "qwen3-9b"))
    assert message(small).startswith(f"{small}: line 2, column 1: model: unknown model 'qwen3-9b'")
    small.write_text(SMALL + "assumptions:\n  - fine\n  - {text: bad, keys: [engine.x]}\n")
    assert f"{small}: line 13, column 5: assumptions[1]: unknown key 'engine.x'" in message(small)
