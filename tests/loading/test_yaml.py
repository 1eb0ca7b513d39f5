"""Strict YAML and the messages of validation errors."""

import math
from pathlib import Path
from typing import Any, Literal, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from rlsim.errors import InputError
from rlsim.files.yaml import parse_value, parse_yaml, read_yaml
from rlsim.schema.base import Fraction01, PositiveInt, Strict
from rlsim.schema.messages import as_input_error


class Engine(Strict):
    tensor_parallel: PositiveInt = 1
    share: Fraction01 = 1.0


class Constant(Strict):
    kind: Literal["constant"] = "constant"
    tokens: PositiveInt = 1


class Lognormal(Strict):
    kind: Literal["lognormal"]
    mean_tokens: float = Field(ge=1)


class Root(Strict):
    engine: Engine = Engine()
    length: Constant | Lognormal = Field(default=Constant(), discriminator="kind")
    mode: Literal["sync", "async"] = "sync"
    rates: tuple[Fraction01, ...] = ()
    lag: int = Field(default=0, le=4)

    @model_validator(mode="after")
    def _lag_needs_async(self) -> Self:
        if self.lag and self.mode == "sync":
            raise ValueError("lag needs mode async")
        return self


def _message(values: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as raised:
        Root.model_validate(values)
    message = str(as_input_error(raised.value, "s.yaml", Root))
    assert message.startswith("s.yaml: ")
    assert "\n" not in message
    return message.removeprefix("s.yaml: ")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E9", 1e9),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("010", 10),
        ("1_000", 1000),
        ("198_674.5", 198674.5),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("no", "no"),
        ("off", "off"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("1e", "1e"),
        ("v1", "v1"),
        ("'1'", "1"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    parsed = parse_yaml(f"x: {text}", "s")["x"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_infinity_and_nan_are_floats_which_records_then_refuse() -> None:
    parsed = parse_yaml("a: .inf\nb: -.inf\nc: .nan", "s")
    assert (parsed["a"], parsed["b"]) == (math.inf, -math.inf)
    assert math.isnan(parsed["c"])
    assert _message({"engine": {"share": math.inf}}).startswith("engine.share: must be a finite number")


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(min_value=-(10**18), max_value=10**18))
def test_every_number_survives(value: float) -> None:
    assert parse_value(repr(value), "s") == value


def test_merge_keys_and_anchors_work() -> None:
    parsed = parse_yaml("base: &b {k: 1}\nmine:\n  <<: *b\n  j: 2", "s")
    assert parsed["mine"] == {"k": 1, "j": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: duplicate key 'a'"),
        ("e:\n  k: 1\n  k: 2", "line 3, column 3: duplicate key 'k'"),
        ("1: a", "line 1, column 1: a key must be a name, got '1'"),
        ("[1]: a", "got a collection"),
        ("a: !!python/object/apply:os.system [ls]", "line 1, column 4: could not determine a constructor"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("a: [1", "line 1"),
        ("a: *missing", "undefined alias"),
        ("", "empty"),
        ("# only a comment", "empty"),
        ("- 1", "got a list"),
        ("just words", "got the single value 'just words'"),
        ("a: &x [*x]", "more than 1000000 values"),
        ("[" * 20_000, "not valid YAML"),
        ("a: \x07", "special characters"),
    ],
)
def test_bad_documents(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_yaml(text, "s.yaml")
    assert message in str(raised.value)
    assert str(raised.value).startswith("s.yaml: ")
    assert "\n" not in str(raised.value)


def test_expanding_aliases_are_stopped() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(InputError, match="aliases are expanded"):
        parse_yaml("\n".join(lines), "s")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: no such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="is a folder"):
        read_yaml(tmp_path)


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_yaml(path) == {"a": 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engin": {}}, "unknown key 'engin'; did you mean 'engine'?"),
        ({"engine": {"tensor_paralel": 2}}, "'engine.tensor_paralel'; did you mean 'engine.tensor_parallel'?"),
        ({"tensor_parallel": 2}, "unknown key 'tensor_parallel'; did you mean 'engine.tensor_parallel'?"),
        ({"engine": {"zzz": 2}}, "unknown key 'engine.zzz'; valid here: tensor_parallel, share"),
        ({"engine": {"tensor_parallel": 0}}, "engine.tensor_parallel: must be above 0, got 0"),
        ({"engine": {"tensor_parallel": "8 GPUs"}}, "engine.tensor_parallel: must be a whole number, got '8 GPUs'"),
        ({"engine": {"tensor_parallel": True}}, "engine.tensor_parallel: must be a whole number, got True"),
        ({"engine": {"share": 1.5}}, "engine.share: must be at most 1.0, got 1.5"),
        ({"engine": {"share": "80%"}}, "engine.share: must be a number, got '80%'"),
        ({"engine": 3}, "engine: must be a mapping of keys to values, got 3"),
        ({"mode": "asynch"}, "mode: must be one of 'sync' or 'async', got 'asynch'"),
        ({"rates": [0.5, 1.5]}, "rates[1]: must be at most 1.0, got 1.5"),
        ({"rates": 0.5}, "rates: must be a list, got 0.5"),
        ({"length": {"kind": "lognormal"}}, "length.mean_tokens: is required"),
        ({"length": {"kind": "lognormal", "mean_token": 3, "mean_tokens": 3}}, "did you mean 'length.mean_tokens'?"),
        ({"length": {"kind": "constant", "tokens": 0}}, "length.tokens: must be above 0, got 0"),
        ({"length": {"kind": "gamma"}}, "length: has 'kind' 'gamma'; it must be one of 'constant', 'lognormal'"),
        ({"length": {"tokens": 3}}, "length: needs the key 'kind'"),
        ({"lag": 5}, "lag: must be at most 4, got 5"),
        ({"lag": 1}, "lag needs mode async"),
    ],
)
def test_validation_messages(values: dict[str, Any], message: str) -> None:
    assert message in _message(values)


def test_many_problems_are_counted() -> None:
    message = _message({"a1": 1, "a2": 1, "a3": 1, "a4": 1, "a5": 1})
    assert message.count("unknown key") == 3
    assert message.endswith("(and 2 more)")


def test_unknown_keys_come_before_what_they_leave_missing() -> None:
    message = _message({"length": {"kind": "lognormal", "mean_token": 3.0}})
    assert message.index("did you mean 'length.mean_tokens'?") < message.index("length.mean_tokens: is required")


def test_lists_become_tuples_and_integers_floats() -> None:
    root = Root.model_validate({"rates": [1, 0.5], "engine": {"share": 1}})
    assert root.rates == (1.0, 0.5)
    assert isinstance(root.engine.share, float)
    with pytest.raises(ValidationError, match="frozen"):
        root.lag = 3
