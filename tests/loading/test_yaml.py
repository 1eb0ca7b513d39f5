"""Strict YAML."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.files import kept as kept_files
from rlsim.files import yaml as files_yaml
from rlsim.files.archives import recalled_arrays
from rlsim.files.yaml import parse_yaml, read_yaml


@pytest.mark.parametrize(("text", "value"), [
    ("1e-6", 1e-6), ("1E9", 1e9), ("-2.5e+3", -2500.0), (".5", 0.5), ("1.", 1.0), ("010", 10), ("1_000", 1000),
    ("198_674.5", 198674.5), ("1:30", "1:30"), ("2026-01-31", "2026-01-31"), ("no", "no"), ("off", "off"),
    ("true", True), ("null", None), ("~", None), ("1e", "1e"), ("v1", "v1"), ("'1'", "1"),
])  # fmt: skip
def test_scalars(text: str, value: object) -> None:
    parsed = parse_yaml(f"x: {text}", "s")["x"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_infinities_merge_keys_marks_and_expanding_aliases(tmp_path: Path) -> None:
    parsed = parse_yaml("a: .inf\nb: -.inf\nc: .nan", "s")
    assert (parsed["a"], parsed["b"]) == (math.inf, -math.inf)
    assert math.isnan(parsed["c"])
    parsed = parse_yaml("base: &b {k: 1}\nmine:\n  <<: *b\n  j: 2", "s")
    assert parsed["mine"] == {"k": 1, "j": 2}
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(InputError, match="aliases are expanded"):
        parse_yaml("\n".join(lines), "s")
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_yaml(path) == {"a": 1}


@pytest.mark.parametrize(("text", "message"), [
    ("a: 1\nb: 2\na: 3", "line 3, column 1: duplicate key 'a'"),
    ("e:\n  k: 1\n  k: 2", "line 3, column 3: duplicate key 'k'"),
    ("1: a", "line 1, column 1: a key must be a name, got '1'"), ("[1]: a", "got a collection"),
    ("a: !!python/object/apply:os.system [ls]", "line 1, column 4: could not determine a constructor"),
    ("a: 1\n---\nb: 2", "line 2"), ("a: [1", "line 1"), ("a: *missing", "undefined alias"), ("", "empty"),
    ("# only a comment", "empty"),
    ("- 1", "got a list"), ("just words", "got the single value 'just words'"),
    ("a: &x [*x]", "more than 1000000 values"), ("[" * 20_000, "not valid YAML"), ("a: \x07", "special characters"),
])  # fmt: skip
def test_bad_documents(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_yaml(text, "s.yaml")
    assert message in str(raised.value)
    assert str(raised.value).startswith("s.yaml: ")
    assert "\n" not in str(raised.value)


def test_a_shipped_file_is_parsed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = files_yaml.parse_value
    monkeypatch.setattr(files_yaml, "parse_value", lambda text, *a, **k: parsed.append(text) or parse(text, *a, **k))
    monkeypatch.setattr(files_yaml, "delivered", lambda _: True)
    monkeypatch.setattr(kept_files.sys, "dont_write_bytecode", False)
    monkeypatch.setattr(kept_files.sys, "pycache_prefix", str(tmp_path / "kept"))
    path = tmp_path / "one.yaml"
    path.write_text("a: {b: [1, 2.5, x]}\n")
    assert [files_yaml.read_yaml(path) for _ in range(3)] == [{"a": {"b": [1, 2.5, "x"]}}] * 3
    assert len(parsed) == 1
    path.write_text("a: 2.0\n")
    assert files_yaml.read_yaml(path) == {"a": 2.0}
    for kept in (tmp_path / "kept").rglob("*.pyc"):
        kept.write_bytes(b"not what was kept")
    assert files_yaml.read_yaml(path) == {"a": 2.0}
    assert len(parsed) == 3
    path.write_text("a: [\n")
    with pytest.raises(InputError, match="line 2"):
        files_yaml.read_yaml(path)


def test_arrays_are_kept_as_they_are_until_what_they_follow_from_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files.sys, "dont_write_bytecode", False)
    monkeypatch.setattr(kept_files.sys, "pycache_prefix", str(tmp_path))
    arrays, made = {"a": np.arange(6.0).reshape(2, 3), "none": np.zeros((0, 2), np.int8), "b": np.array([3], "<u2")}, []
    for state, times, damaged in (
        (1, 1, None), (1, 1, None), ((2, "x"), 2, None), ((2, "x"), 2, None), (1, 3, None),
        (1, 4, b""), (1, 5, b"not what was kept"), (1, 6, b"\xff" * 200),
    ):  # fmt: skip
        for kept in () if damaged is None else tmp_path.rglob("*.pyc"):
            kept.write_bytes(damaged)
        again = recalled_arrays("some arrays", state, lambda state=state: made.append(state) or arrays)
        assert len(made) == times and list(again) == list(arrays)
        assert all(again[name].dtype == one.dtype and np.array_equal(again[name], one) for name, one in arrays.items())


ASKED = """
import hashlib, json
from pydantic import BaseModel, ValidationError
found, rebuild = [], BaseModel.model_rebuild.__func__
BaseModel.model_rebuild = classmethod(lambda cls, **given: found.append(cls.__name__) or rebuild(cls, **given))
from rlsim.loading.scenario import load_scenario
from rlsim.results import Projection
scenario = load_scenario("quickstart")
try:
    type(scenario).model_validate({**dict(scenario), "loop": {"lag": "no"}, "trainer": {"cuda_graphs": 3}})
except ValidationError as error:
    wrong = str(error)
told = [wrong, json.dumps(Projection.model_json_schema()), scenario.model_dump_json(), str(scenario)]
print(len(found), hashlib.sha256("".join(told).encode()).hexdigest())
"""


def test_schemas_are_found_once_an_installation_and_are_the_same_when_they_come_back(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def asked() -> list[str]:
        command = [sys.executable, "-c", ASKED]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    first, again = asked(), asked()
    assert int(first[0]) > 10 and int(again[0]) == 0
    assert again[1] == first[1]
    for kept in tmp_path.rglob("rlsim_schema_*.pyc"):
        kept.write_bytes(kept.read_bytes()[:-9])
    assert asked()[1] == first[1]
