"""Strict YAML."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlsim.errors import InputError
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


def test_a_projection_writes_nothing_but_byte_code_of_its_modules(tmp_path: Path) -> None:
    """So an edited profile or table cannot answer with what an earlier process found in it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "rlsim", "project", "quickstart", "--brief"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    sources = [Path("/", *path.relative_to(tmp_path).parts[:-1], f"{path.name.split('.')[0]}.py") for path in written]
    assert len(written) > 100 and all(path.suffix == ".pyc" for path in written)
    assert [source for source in sources if not source.is_file()] == []
