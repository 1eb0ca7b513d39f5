"""How a framework's configuration says the keys of a scenario: the rows of its table in ``keys/*.yaml``.

``target: KIND KEY`` or ``target: {KIND: KEY, option: ...}``: read and written by the kind and the options of
:class:`Plain`. ``target: {cases: [{is: VALUE, KEY: HELD, ...}, ...]}``: by :class:`Case`. ``target: [{KIND: KEY, when:
TEST, ...}, ...]``: as the first of them whose test holds. ``target: {formula: TEXT, set: {KEY: TEXT}}``: by formulas
(:mod:`.formulas`). ``section/name`` is a key of one of the table's sections. A test is a name of the table's tests, or
a formula. ``also`` adds keys to those that decide the target, ``keys`` names them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from rlsim.errors import InputError, shortened
from rlsim.readers.frameworks.formulas import KEEP, Formula
from rlsim.readers.frameworks.reader import Reader

Changes = dict[str, Any]
"""Configuration keys with the values to write."""
Test = Callable[[Reader], bool]
Read = Callable[[Reader], Any]
Write = Callable[[Any, Reader], Changes]
Kind = Literal["integer", "number", "flag", "not", "words", "value", "cases"]
OPTIONS = {"else": "otherwise", "set": "beside"}
"""Options of a row whose names are words of Python's."""


@dataclass(frozen=True)
class Row:
    """One scenario key and how a configuration says it.

    keys: configuration keys that may decide it. reading: its value by a configuration; None leaves the scenario's
    default. writing: what to set so that ``reading`` gives a value, which an export tests; without it an export
    tells the key as not expressible.
    """

    target: str
    keys: tuple[str, ...]
    reading: Read
    writing: Write | None = None

    def read(self, r: Reader) -> Any:
        """Its value by a configuration."""
        return self.reading(r)

    def key(self, r: Reader) -> str:
        """The key that a message about it names."""
        return self.keys[0]

    def write(self, value: Any, r: Reader) -> Changes:
        """What to set."""
        return {} if self.writing is None else self.writing(value, r)


@dataclass(frozen=True)
class Case:
    """A way of a configuration to say one value of the scenario's.

    where: what keys hold; of a list one entry, the first of which is written; null: nothing. beside: what is written
    too. when: test that must hold.
    """

    value: Any
    where: Mapping[str, Any]
    beside: Mapping[str, Any]
    when: Test | None

    @classmethod
    def of(cls, given: Mapping[str, Any], tests: Mapping[str, Test]) -> Case:
        """A case as a table writes it."""
        where = {key: held for key, held in given.items() if key not in ("is", "set", "when")}
        return cls(given["is"], where, given.get("set", {}), test_of(given.get("when"), tests))

    def missing(self, r: Reader) -> Iterator[tuple[str, Any]]:
        """Keys that hold something else, with what they should."""
        for key, held in self.where.items():
            wanted = held if isinstance(held, list) else [held]
            if not any(_holds(r, key, value) for value in wanted):
                yield key, wanted[0]


def test_of(given: str | None, tests: Mapping[str, Test]) -> Test | None:
    """A test by its name, or the formula that is one."""
    if given is None:
        return None
    return tests[given] if given in tests else Formula(given, tests)


def _holds(r: Reader, key: str, value: Any) -> bool:
    if isinstance(value, bool):
        return r.flag(key) == value
    if value is None:
        return r.value(key) in (None, "")
    return r.text(key) == value if isinstance(value, str) else r.number(key) == value


@dataclass(frozen=True)
class Plain:
    """A row that a table says alone.

    kind: an integer, number or flag under another name (``not``: the opposite flag); one of some words; the value
    ``key`` itself where ``when`` holds; or the first of the cases ``key`` that holds, else the last. default: of the
    configuration's value; without one 0 says nothing. least: smallest integer that is written. when: test that must
    hold, under: flag that must be set, else ``otherwise`` is read. beside: what is written too where ``when`` does not
    hold. mean: words of the configuration (``*``: any ending) with the scenario's, the first of which is written;
    other: meaning of all further words, without it an error.
    """

    kind: Kind
    key: Any
    default: Any = None
    least: int = 0
    when: Test | None = None
    under: str = ""
    otherwise: Any = None
    beside: Mapping[str, Any] | None = None
    mean: tuple[tuple[Any, Any], ...] = ()
    other: Any = None

    def read(self, r: Reader) -> Any:
        """The scenario's value."""
        if (self.under and not r.flag(self.under)) or (self.when is not None and not self.when(r)):
            return self.otherwise
        key = self.key
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
            case "cases":
                cases = self._cases(r)
                return next((case for case in cases[:-1] if not any(case.missing(r))), cases[-1]).value
        return key

    def write(self, value: Any, r: Reader) -> Changes:
        """What to set for a value of the scenario's."""
        beside: Changes = {self.under: value is not None} if self.under else {}
        if self.under and value is None:
            return beside
        if self.when is not None and not self.when(r):
            if self.beside is None:
                return {}
            beside |= self.beside
        return {**beside, **self._written(value, self.key, r)}

    def _written(self, value: Any, key: str, r: Reader) -> Changes:
        match self.kind:
            case "integer":
                return {key: max(self.least, value or 0)}
            case "not":
                return {key: not value}
            case "words":
                return next(({key: word} for word, meaning in self.mean if meaning == value), {})
            case "cases":
                said = next((case for case in self._cases(r) if case.value == value), None)
                return {} if said is None else {**dict(said.missing(r)), **said.beside}
        return {key: value}

    def _cases(self, r: Reader) -> list[Case]:
        return [case for case in self.key if case.when is None or case.when(r)]

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


def table_rows(table: Mapping[str, Any], tests: Mapping[str, Test]) -> tuple[Row, ...]:
    """The rows of a framework's table in its order.

    tests: what ``when`` names; ``megatron``: whether Megatron-Core trains, else ``fsdp``.
    """
    every = {"fsdp": lambda r: not tests["megatron"](r), **tests}
    return tuple(_row(target, given, every) for target, given in table.items())


def _row(target: str, given: Any, tests: Mapping[str, Test]) -> Row:
    if isinstance(given, list):
        return _alternatives([(one.get("when"), _row(target, one, tests)) for one in given], tests)
    if "formula" in given:
        return _reckoned(target, given, tests)
    options = {OPTIONS.get(name, name): value for name, value in given.items()}
    kind = next(name for name in options if name in get_args(Kind))
    key, also, readonly = options.pop(kind), options.pop("also", ()), options.pop("readonly", kind == "value")
    decided = tuple(options.pop("keys", ()))
    options["when"] = test_of(options.get("when"), tests)
    keys = () if kind == "value" else (key,)
    if kind == "cases":
        key = tuple(Case.of(case, tests) for case in key)
        keys = decided or tuple(name for case in key for name in (*case.where, *case.beside))
    plain = Plain(kind, key, **options)
    return Row(target, (*keys, *also), plain.read, None if readonly else plain.write)


def _reckoned(target: str, given: Mapping[str, Any], tests: Mapping[str, Test]) -> Row:
    """A row that formulas read and, with ``set``, write."""
    read, when = Formula(given["formula"], tests), test_of(given.get("when"), tests)
    written = {key: Formula(str(text), tests) for key, text in given.get("set", {}).items()}
    also = (*given.get("also", ()), *(when.keys if isinstance(when, Formula) else ()), *written)

    def write(value: Any, r: Reader) -> Changes:
        return {key: found for key, formula in written.items() if (found := formula(r, value)) is not KEEP}

    return Row(
        target,
        tuple(given.get("keys", (*read.keys, *also))),
        lambda r: read(r) if when is None or when(r) else given.get("else"),
        write if written else None,
    )


def _alternatives(rows: Sequence[tuple[str | None, Row]], tests: Mapping[str, Test]) -> Row:
    """Of rows with the names of their tests the first whose test holds; none says nothing."""

    asked = [(test_of(name, tests), row) for name, row in rows]

    def chosen(r: Reader) -> Row | None:
        return next((row for test, row in asked if test is None or test(r)), None)

    def read(r: Reader) -> Any:
        row = chosen(r)
        return None if row is None else row.read(r)

    def write(value: Any, r: Reader) -> Changes:
        row = chosen(r)
        return {} if row is None else row.write(value, r)

    return Row(rows[0][1].target, tuple(key for _, row in rows for key in row.keys), read, write)
