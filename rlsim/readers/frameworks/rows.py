"""The tables of a framework: which of its keys decide which scenario key, and which ones rlsim has no use for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlsim.errors import InputError, shortened
from rlsim.readers.frameworks.interpolation import Interpolation
from rlsim.readers.frameworks.trees import ConfigTree

Changes = dict[str, Any]
"""Configuration keys with the values to write."""
_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
"""Texts that the frameworks' YAML 1.1 loaders take for true and false."""


class Reader:
    """Typed values of a configuration; it remembers which keys were asked for.

    Every getter gives ``default`` where the key is not there or null, and raises InputError naming file and key where
    its value is of another kind.
    """

    def __init__(self, tree: ConfigTree) -> None:
        self.where = tree.where
        self.read: set[str] = set()
        self._values = Interpolation(tree, self.read)

    def value(self, key: str) -> Any:
        """The resolved value; None where it is not there."""
        self.read.add(key)
        return self._values.value(key)

    def integer(self, key: str, default: int = 0) -> int:
        """A whole number; 8.0 counts as 8."""
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self._error(key, "must be a whole number", found)
        return found

    def number(self, key: str, default: float = 0.0) -> float:
        """A number."""
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self._error(key, "must be a number", found)
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false, also as YAML 1.1 writes them."""
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, str):
            found = _WORDS.get(found.lower(), found)
        if not isinstance(found, bool):
            raise self._error(key, "must be true or false", found)
        return found

    def text(self, key: str, default: str = "") -> str:
        """A text."""
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, str) or found == "???":
            raise self._error(key, "must be given" if found == "???" else "must be text", found)
        return found

    def _error(self, key: str, problem: str, found: Any) -> InputError:
        return InputError(f"{self.where}: {key}: {problem}, got {shortened(repr(found))}")


Read = Callable[[Reader], Any]
Write = Callable[[Any, Reader], Changes]


@dataclass(frozen=True)
class Row:
    """One scenario key and how a configuration says it.

    keys: configuration keys that may decide it. read: its value by a configuration; None leaves the scenario's
    default. write: what to set so that ``read`` gives a value; without it an export tells the key as not expressible.
    """

    target: str
    keys: tuple[str, ...]
    read: Read
    write: Write | None = None


@dataclass(frozen=True)
class Framework:
    """Everything rlsim knows of a framework's configuration.

    irrelevant: sections and keys that do not change the time of a step, by reason. not_simulated: those that may, and
    that no scenario key says. relevant_elsewhere: keys that an assumption or an option reads. idle: sections that a
    configuration does not use, beside those that are not enabled.
    """

    name: str
    rows: Sequence[Row]
    irrelevant: Mapping[str, Sequence[str]]
    not_simulated: Mapping[str, Sequence[str]]
    relevant_elsewhere: Sequence[str] = ()
    idle: Callable[[Reader], Sequence[str]] = lambda reader: ()
    known: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        keys = {key for row in self.rows for key in row.keys} | set(self.relevant_elsewhere)
        for table in (self.irrelevant, self.not_simulated):
            keys |= {key for group in table.values() for key in group}
        object.__setattr__(self, "known", frozenset(keys))

    def nearest(self, key: str) -> str | None:
        """The known key closest to ``key``: one of its own section, then one with a like ending."""
        if self.why(key) is not None or key in self.known:
            return key
        section, _, name = key.rpartition(".")
        beside = {
            known.rpartition(".")[2]: known for known in sorted(self.known) if known.rpartition(".")[0] == section
        }
        for names in (beside, {known.rpartition(".")[2]: known for known in sorted(self.known, reverse=True)}):
            found = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
            if found:
                return names[found[0]]
        return None

    def why(self, key: str) -> tuple[str, str] | None:
        """Whether a key is irrelevant or not simulated, and the reason; by the longest entry that covers it."""
        best: tuple[int, str, str] | None = None
        for status, table in (("irrelevant", self.irrelevant), ("not_simulated", self.not_simulated)):
            for reason, group in table.items():
                for entry in group:
                    if f"{key}.".startswith(f"{entry}.") and (best is None or len(entry) > best[0]):
                        best = (len(entry), status, reason)
        return None if best is None else best[1:]


def integer(target: str, key: str) -> Row:
    """A whole number under another name."""
    return Row(target, (key,), lambda r: r.integer(key) or None, lambda value, r: {key: value})


def number(target: str, key: str) -> Row:
    """A number under another name."""
    return Row(target, (key,), lambda r: r.value(key) and r.number(key), lambda value, r: {key: value})


def flag(target: str, key: str, inverted: bool = False) -> Row:
    """true or false under another name; inverted: the opposite."""
    return Row(
        target,
        (key,),
        lambda r: None if r.value(key) is None else r.flag(key) != inverted,
        lambda value, r: {key: value != inverted},
    )


def choice(target: str, key: str, values: Mapping[str, str]) -> Row:
    """One of some words: the configuration's on the left, the scenario's on the right; the first one is written."""

    def read(r: Reader) -> str | None:
        given = r.text(key).lower()
        if given and given not in values:
            raise InputError(f"{r.where}: {key}: '{shortened(given)}' is not simulated; known: {', '.join(values)}")
        return values.get(given)

    def write(value: str, r: Reader) -> Changes:
        word = next((left for left, right in values.items() if right == value), None)
        if word is None:
            raise InputError(f"{target}: {value} has no counterpart in {key}")
        return {key: word}

    return Row(target, (key,), read, write)


def layout(target: str, key: str, strategy_key: str, megatron: Callable[[Reader], bool]) -> Row:
    """A parallel size that Megatron has under ``key`` and FSDP does not; written, it chooses Megatron."""
    return Row(
        target,
        (key, strategy_key),
        lambda r: r.integer(key, 1) if megatron(r) else 1,
        lambda value, r: {key: value} if megatron(r) else {strategy_key: "megatron", key: value},
    )


def product(target: str, keys: tuple[str, ...], factor: str) -> Row:
    """A number that the first of ``keys`` states divided by the key ``factor``."""
    key = keys[0]

    def write(value: int, r: Reader) -> Changes:
        times = r.integer(factor, 1)
        return {key: value // times} if value % times == 0 else {}

    return Row(target, keys, lambda r: r.integer(key, 1) * r.integer(factor, 1), write)


def sequence_cap(prompt: str, response: str) -> Row:
    """Caps of prompt and response, which add up to that of a sequence."""

    def write(value: int, r: Reader) -> Changes:
        first = r.integer(prompt, 1)
        if value > first:
            return {response: value - first}
        return {prompt: value // 2, response: value - value // 2}

    keys = (prompt, response)
    return Row("workload.max_sequence_tokens", keys, lambda r: sum(r.integer(key, 1) for key in keys), write)


def either(target: str, first: str, second: str, default: bool) -> Row:
    """Whether one of two flags is set; the first is written, the second one switched off with it."""
    return Row(
        target,
        (first, second),
        lambda r: r.flag(first, default) or r.flag(second),
        lambda value, r: {first: value} if value else {first: value, second: False},
    )


def unused_keys(framework: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Dotted keys by reason that do not change the time of a step, and those that may and that no scenario key says."""
    tables = yaml.safe_load((Path(__file__).parent / "keys" / f"{framework}.yaml").read_text(encoding="utf-8"))

    def dotted(table: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
        return {
            reason: tuple(f"{section}.{name}".lstrip(".") for section, names in group.items() for name in names.split())
            for reason, group in table.items()
        }

    return dotted(tables["irrelevant"]), dotted(tables["not_simulated"])
