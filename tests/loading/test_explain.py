"""rlsim explain, and the description of every key behind it."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path

from rlsim.cli.commands import app_of
from rlsim.loading.explain import ONE_STEP, explain
from rlsim.loading.scenario import load_scenario
from rlsim.schema.keys import all_keys, keys_named
from rlsim.schema.messages import is_key
from rlsim.schema.scenario import Scenario

Run = Callable[..., tuple[int, str, str]]


def test_every_key_has_a_type_and_a_meaning_and_every_command_with_a_scenario_a_name() -> None:
    for key in all_keys():
        assert is_key(key.dotted, Scenario)
        assert key.kind and "typing" not in key.kind and "class" not in key.kind, key
        assert key.description or key.dotted.endswith(".kind"), key
    takes = {command.callback.__name__ for command in app_of().registered_commands
             if command.callback is not None and "words" in inspect.signature(command.callback).parameters}  # fmt: skip
    # explain names what the others use, import has words of its own, export simulates nothing.
    assert takes - {"explain", "import_config", "export"} == set(ONE_STEP)


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


def test_the_command(run: Run) -> None:
    code, out, err = run("explain", "speculation.draft_length", "quickstart", "speculation.draft_length=5")
    assert (code, err) == (0, "")
    for words in ("k: tokens drafted", "whole number; at least 0, at most 32", "default: 0", "in quickstart: 5"):
        assert words in out
    assert json.loads(run("explain", "engine", "--json")[1])["kinds"][0]["section"] is True
    code, out, err = run("explain", "speculaton")
    assert (code, out) == (2, "") and "did you mean 'speculation'" in err
