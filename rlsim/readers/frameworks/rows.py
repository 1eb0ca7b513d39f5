"""How a framework's configuration says the keys of a scenario: the rows of its table in ``keys/*.yaml``.

``target: KIND KEY`` or ``target: {KIND: KEY, option: ...}``: read and written by the kind and the options of
:class:`Plain`. ``target: [KEY, ...]``: by functions of the framework's module. ``section/name`` is a key of one of the
table's sections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from rlsim.errors import InputError, shortened
from rlsim.readers.frameworks.reader import Reader

Changes = dict[str, Any]
"""Configuration keys with the values to write."""
Test = Callable[[Reader], bool]
Read = Callable[[Reader], Any]
Write = Callable[[Any, Reader], Changes]
Kind = Literal["integer", "number", "flag", "not", "words", "product", "sum", "either", "value"]
OPTIONS = {"else": "otherwise", "set": "beside"}
"""Options of a row whose names are words of Python's."""


@dataclass(frozen=True)
class Row:
    """One scenario key and how a configuration says it.

    keys: configuration keys that may decide it. read: its value by a configuration; None leaves the scenario's
    default. write: what to set so that ``read`` gives a value, which an export tests; without it an export tells the
    key as not expressible.
    """

    target: str
    keys: tuple[str, ...]
    read: Read
    write: Write | None = None


@dataclass(frozen=True)
class Plain:
    """A row that a table says alone.

    kind: an integer, number or flag under another name (``not``: the opposite flag); one of some words; the product of
    ``key`` and ``factor``; the sum of the caps ``key`` and ``second``; whether ``key`` or ``second`` is set; or the
    value ``key`` itself where ``when`` holds. fsdp: stands for ``key`` where FSDP trains. default: of the
    configuration's value; without one 0 says nothing. when: test that must hold, under: flag that must be set, else
    ``otherwise`` is read. beside: what is written too where ``when`` does not hold. mean: words of the configuration
    (``*``: any ending) with the scenario's, the first of which is written; other: meaning of all further words,
    without it an error.
    """

    kind: Kind
    key: Any
    fsdp: str = ""
    second: str = ""
    factor: str = ""
    default: Any = None
    when: Test | None = None
    under: str = ""
    otherwise: Any = None
    beside: Mapping[str, Any] | None = None
    mean: tuple[tuple[Any, Any], ...] = ()
    other: Any = None
    trains: Test = bool

    def read(self, r: Reader) -> Any:
        """The scenario's value."""
        if (self.under and not r.flag(self.under)) or (self.when is not None and not self.when(r)):
            return self.otherwise
        key = self._key(r)
        match self.kind:
            case "integer":
                return (r.integer(key) or None) if self.default is None else r.integer(key, self.default)
            case "number":
                return r.value(key) and r.number(key) if self.default is None else r.number(key, self.default)
            case "flag" | "not":
                stated = self.default is not None or r.value(key) is not None
                return r.flag(key, bool(self.default)) != (self.kind == "not") if stated else None
            case "words":
                return self._meaning(r)
            case "product":
                return r.integer(key, 1) * r.integer(self.factor, 1)
            case "sum":
                return r.integer(key, 1) + r.integer(self.second, 1)
            case "either":
                return r.flag(key, self.default) or r.flag(self.second)
        return key

    def write(self, value: Any, r: Reader) -> Changes:
        """What to set for a value of the scenario's."""
        beside: Changes = {self.under: True} if self.under else {}
        if self.when is not None and not self.when(r):
            if self.beside is None:
                return {}
            beside |= self.beside
        return {**beside, **self._written(value, self._key(r), r)}

    def _written(self, value: Any, key: str, r: Reader) -> Changes:
        match self.kind:
            case "integer":
                return {key: 0 if value is None else value}
            case "not":
                return {key: not value}
            case "words":
                return next(({key: word} for word, meaning in self.mean if meaning == value), {})
            case "product":
                return {key: value // max(1, r.integer(self.factor, 1))}
            case "sum":
                first = r.integer(key, 1)
                return {self.second: value - first} if value > first else {key: value // 2, self.second: -(-value // 2)}
            case "either":
                return {key: True} if value else {key: False, self.second: False}
        return {key: value}

    def _key(self, r: Reader) -> Any:
        return self.fsdp if self.fsdp and not self.trains(r) else self.key

    def _meaning(self, r: Reader) -> Any:
        if isinstance(self.mean[0][0], bool):
            return dict(self.mean[:2])[r.flag(self.key, bool(self.default))]
        given = r.text(self.key, self.default or "")
        words = given if self.other is not None else given.lower()
        for word, meaning in self.mean:
            if word is not None and fnmatchcase(words, word):
                return meaning
        if words and self.other is None:
            listed = ", ".join(word for word, _ in self.mean)
            raise InputError(f"{r.where}: {self.key}: '{shortened(words)}' is not simulated; known: {listed}")
        return self.other


Functions = tuple[Read, Write | None]
"""How a row that no table can say is read and written."""


def table_rows(
    table: Mapping[str, Any], functions: Mapping[str, Functions], tests: Mapping[str, Test]
) -> tuple[Row, ...]:
    """The rows of a framework's table in its order.

    functions: of the targets for which the table has keys alone. tests: what ``when`` names; ``megatron``: whether
    Megatron-Core trains.
    """
    return tuple(_row(target, given, functions, tests) for target, given in table.items())


def _row(target: str, given: Any, functions: Mapping[str, Functions], tests: Mapping[str, Test]) -> Row:
    if isinstance(given, list):
        return Row(target, tuple(given), *functions[target])
    options = {OPTIONS.get(name, name): value for name, value in given.items()}
    kind = next(name for name in options if name in get_args(Kind))
    key, also, readonly = options.pop(kind), options.pop("also", ()), options.pop("readonly", kind == "value")
    if "when" in options:
        options["when"] = tests[options["when"]]
    plain = Plain(kind, key, trains=tests["megatron"], **options)
    keys = () if kind == "value" else (plain.key, plain.fsdp, plain.second)
    return Row(target, (*(key for key in keys if key), *also), plain.read, None if readonly else plain.write)
