"""Values of Python expressions that can be told without executing anything: arithmetic, texts, containers, and the
methods and builtins that only look at them. Whatever else is asked for is :class:`Unknown`."""

from __future__ import annotations

import ast
import operator
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlsim.errors import InputError

MOST_CHARACTERS = 1_000_000
"""Of a text that a script builds. Launchers have below 20,000."""
MOST_ITEMS = 10_000
"""Of a list that a script builds."""
MOST_BITS = 4096
"""Of a whole number that a script computes."""
OPEN, CLOSE = "\x02", "\x03"
"""Around the name of what is not known inside a text."""


@dataclass(frozen=True)
class Unknown:
    """What only running the script would tell. name: the expression's, for messages."""

    name: str

    def __str__(self) -> str:
        return f"{OPEN}{self.name}{CLOSE}"


@dataclass
class Scope:
    """Names and values; those of the scope around it are seen too. doubtful: a condition in it was not known."""

    names: dict[str, Any]
    above: Scope | None = None
    doubtful: bool = False

    def find(self, name: str) -> Any:
        """The value of a name; Unknown where nothing binds it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.above
        return Unknown(name)


@dataclass(frozen=True)
class Function:
    """A function or a lambda of a script. record: of a method what it is called on."""

    node: ast.FunctionDef | ast.Lambda
    scope: Scope
    record: Any = None


@dataclass(frozen=True)
class Class:
    """A class of a script."""

    node: ast.ClassDef
    scope: Scope
    bases: tuple[Any, ...]


@dataclass
class Record:
    """An object of a class of a script."""

    of: Class
    held: dict[str, Any] = field(default_factory=dict)


METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(["lower", "upper", "strip", "lstrip", "rstrip", "split", "join", "replace", "startswith"]),
    list: frozenset(["append", "extend", "index", "count", "insert", "copy"]),
    dict: frozenset(["get", "items", "keys", "values", "update", "setdefault", "copy", "pop"]),
    tuple: frozenset(["index", "count"]),
    set: frozenset(["add", "union"]),
}
"""Methods that are called as they are."""
BUILTINS: Mapping[str, Callable[..., Any]] = {
    "str": str, "int": int, "float": float, "bool": bool, "len": len, "min": min, "max": max, "sum": sum, "abs": abs,
    "round": round, "any": any, "all": all, "dict": dict, "range": range, "Path": str, "quote": shlex.quote,
    "list": lambda *of: [*(of[0] if of else ())], "tuple": lambda *of: tuple(of[0] if of else ()),
    "set": lambda *of: set(of[0] if of else ()), "sorted": lambda of: sorted(of),
    "zip": lambda *of: [*zip(*of, strict=False)], "enumerate": lambda of: [*enumerate(of)],
}  # fmt: skip
"""Functions that are called as they are; a path counts as its text."""
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitOr: operator.or_, ast.BitAnd: operator.and_, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
UNFIT = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError)
"""What Python raises where values do not fit; the result is not known then."""


def known(*values: Any) -> bool:
    """Whether all of the values are known."""
    return not any(isinstance(value, Unknown) for value in values)


def plain(value: Any) -> bool:
    """Whether a value is a number, a text, true, false or none."""
    return value is None or isinstance(value, str | int | float)


def flat(value: Any) -> bool:
    """Whether a value is plain or holds plain ones alone: others may refer to each other without end."""
    held = [*value, *value.values()] if isinstance(value, dict) else value
    return plain(value) or (isinstance(held, list | tuple | set | range) and all(map(plain, held)))


def bounded(value: Any) -> Any:
    """``value``. Raises InputError where it is larger than any launcher's."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise InputError("computes a number that no launcher needs")
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise InputError(f"builds a text of more than {MOST_CHARACTERS:,} characters")
    if isinstance(value, list | tuple | dict | set | range) and len(value) > MOST_ITEMS:
        raise InputError(f"builds a list of more than {MOST_ITEMS:,} entries")
    return value


def binary(kind: type[ast.operator], left: Any, right: Any, name: str) -> Any:
    """The value of a binary operation; a text keeps what is known of it, and a path grows by ``/``."""
    if kind is ast.Add and isinstance(left, str | Unknown) and isinstance(right, str | Unknown):
        return bounded(f"{left}{right}") if known(left) or known(right) else Unknown(name)
    if kind is ast.Div and isinstance(left, str) and isinstance(right, str):
        return bounded(f"{left}/{right}")
    if not known(left, right) or kind not in _BINARY:
        return Unknown(name)
    if isinstance(left, str) and kind is ast.Mod:  # a width in it would be as long as it says
        return Unknown(name)
    if kind is ast.Mult and not all(isinstance(one, int | float) for one in (left, right)):
        text, times = (right, left) if isinstance(left, int) else (left, right)
        if not isinstance(times, int) or not isinstance(text, str | list) or len(text) * times > MOST_ITEMS:
            return Unknown(name)
    # Asked before it is computed: the power itself may be larger than the memory.
    if kind is ast.Pow and not (abs(left) <= MOST_BITS and abs(right) <= 64):
        return Unknown(name)
    return bounded(_BINARY[kind](left, right))


def compared(kind: type[ast.cmpop], left: Any, right: Any) -> Any:
    """Whether a comparison holds."""
    if kind in (ast.Is, ast.IsNot):
        return _COMPARED[kind](left, right)
    return _COMPARED[kind](left, right) if flat(left) and flat(right) else Unknown("comparison")


def method(of: Any, name: str, given: list[Any], named: dict[str, Any]) -> Any:
    """The result of a method of a plain value."""
    adding = isinstance(of, list) and name in ("append", "extend", "insert")
    if type(of) not in METHODS or name not in METHODS[type(of)] or not (adding or all(map(flat, given))):
        return Unknown(name)
    # Asked before it is made: each replacement can make a text so many times as long.
    if name in ("replace", "join"):
        parts: Iterable[Any] = given if name == "replace" else [*given[0], *[of] * len(given[0])]
        longest = sum(len(str(part)) for part in parts) * (len(of) if name == "replace" else 1)
        if longest > MOST_CHARACTERS:
            return Unknown(name)
    if name == "join":
        given = [[str(part) for part in given[0]]]
    found = getattr(of, name)(*given, **named)
    bounded(of)
    return bounded([*found] if name in ("items", "keys", "values") else found)


def builtin(name: str, given: list[Any], named: dict[str, Any]) -> Any:
    """The result of a builtin that only looks at values."""
    if name == "str" and len(given) == 1 and isinstance(given[0], Unknown):
        return str(given[0])
    nested = name in ("len", "list", "tuple", "dict", "zip", "enumerate")
    if not all(known(one) if nested else flat(one) for one in (*given, *named.values())):
        return Unknown(name)
    return bounded(BUILTINS[name](*given, **named))
