"""Scenarios that extend others, and the places that messages name."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import yaml
from small_scenario import SMALL, message

from rlsim.cli.commands import COMMANDS, loaded
from rlsim.loading.explain import ONE_STEP, explain
from rlsim.loading.extends import MAX_PARENTS
from rlsim.loading.scenario import load_scenario, scenario_digest, scenario_json_schema
from rlsim.schema.keys import all_keys, keys_named
from rlsim.schema.messages import is_key
from rlsim.schema.scenario import Scenario

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
    text = SMALL.replace("qwen3-8b", "card.yaml").replace("{kind: lognormal, mean_tokens: 400}",
                                                          "{kind: trace, path: lengths.csv}")  # fmt: skip
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


Run = Callable[..., tuple[int, str, str]]


def test_every_key_has_a_type_and_a_meaning_and_every_command_with_a_scenario_a_name() -> None:
    for key in all_keys():
        assert is_key(key.dotted, Scenario)
        assert key.kind and "typing" not in key.kind and "class" not in key.kind, key
        assert key.description or key.dotted.endswith(".kind"), key
    commands = {name: loaded(name) for name in COMMANDS}
    takes = {name for name, command in commands.items() if any(one.name == "words" for one in command.params)}
    # explain names what the others use, import has words of its own, export simulates nothing.
    assert takes - {"explain", "import", "export"} == set(ONE_STEP)


def test_keys_tell_bounds_defaults_sources_and_what_set_their_value(tmp_path: Path) -> None:
    (key,) = keys_named("speculation.draft_length")
    assert (key.kind, key.bounds, key.default) == ("whole number", "at least 0, at most 32", "0")
    (name,) = keys_named("name")
    assert (name.bounds, name.default) == ("at least 1 characters, at most 200 characters", None)
    assert keys_named("engine.host_iteration_s")[0].default_told == "fitted, by release and host processor"
    assert [one.record for one in keys_named("workload.response_tokens.mean_tokens")] == [
        *("LognormalLength", "QuantileLength", "TraceLength")
    ]
    assert keys_named("nothing") == ()
    assert explain("run.faults.restart_s").commands == ("run",)
    assert explain("question").commands == ()
    assert explain("engine.tensor_parallel").searched and explain("loop.poll_s").commands == ONE_STEP
    assert explain("cluster.num_gpus").source == "none: it must be given"
    assert "calibration/engines" in explain("simulation.engine_parameters").source
    assert explain("loop").below[:2] == ("loop.mode", "loop.style")
    child = tmp_path / "child.yaml"
    child.write_text("extends: quickstart\nengine:\n  tensor_parallel: 2\n")
    parent = load_scenario("quickstart")

    def told(key: str, *overrides: str) -> tuple[str, str]:
        found = explain(key, str(child), overrides).current
        return found.value, found.origin

    assert told("engine.tensor_parallel") == ("2", f"{child}, line 3, column 3")
    assert told("engine.tensor_parallel", "engine.tensor_parallel=4") == ("4", "the override engine.tensor_parallel=4")
    assert told("trainer.pipeline_parallel")[1].startswith("scenarios/quickstart.yaml, line ")
    value, origin = told("model.num_layers")
    assert value == str(parent.model.num_layers) and "quickstart.yaml, line" in origin
    assert told("engine.version") == ("null", "the default")
    assert explain("engine.version", str(child)).current.resolved == parent.engine_version
    becomes = {"trainer.gradient_precision": "bf16", "engine.max_batched_tokens": "16384", "loop.policy_lag": "0"}
    assert {key: explain(key, str(child)).current.resolved for key in becomes} == becomes
    assert explain("engine.max_batched_tokens", str(child), ["hardware=a100_sxm"]).current.resolved == "8192"


def test_the_command(run: Run) -> None:
    code, out, err = run("explain", "speculation.draft_length", "quickstart", "speculation.draft_length=5")
    assert (code, err) == (0, "")
    for words in ("k: tokens drafted", "whole number; at least 0, at most 32", "default: 0", "in quickstart: 5"):
        assert words in out
    assert json.loads(run("explain", "engine", "--json")[1])["kinds"][0]["section"] is True
    code, out, err = run("explain", "speculaton")
    assert (code, out) == (2, "") and "did you mean 'speculation'" in err
