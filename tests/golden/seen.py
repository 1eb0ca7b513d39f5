"""Answers that the tests of the readers and of whole runs get, whole: ``python -m tests.golden.seen`` writes seen.csv
anew (10 minutes), from the root of the checkout.

A test looks at the part of an answer that its rule is about; of what the functions that it calls answer, every value is
compared here, in runs that choose nightly tests too. A call is known by its function and what it is given, with the
contents of files, so that a new or changed test meets nothing that is stored. Where an answer is meant to move, run it
again; SEEN_SHOWN=1 prints each answer of the tests that are run, here and in an earlier checkout.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TextIO

import numpy as np
import pytest
from msgspec import Struct
from pydantic import BaseModel

from rlsim.errors import Infeasible, InputError

SEEN = Path(__file__).with_name("seen.csv")
TESTS = Path(__file__).parents[1]
ROOMS = {"readers": "rlsim.readers", "runs": "rlsim.runs"}
"""Folders of tests, and the packages whose functions are compared in them."""
APART = {"model", "hardware", "name", "parameters"}
"""Of a scenario, what imports look up."""
CLASSES = ("Watcher",)
"""Whose methods are compared as functions are."""
UNSTABLE = re.compile(r"digest|version|path|file|seconds_taken|wall|where")
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/\S*/|" + re.escape(str(TESTS.parent)) + "/")
MOST = 250
"""Calls of one function that are stored of a file of tests; examples of a property are many more."""
MOST_DEEP, MOST_BYTES = 12, 5_000_000


def plain(value: Any, depth: int = 0) -> Any:
    """Of a value all that is data, as nested mappings, lists and plain values."""
    match value:
        case Enum():
            return str(value.value)
        case bool() | int() | float() | None:
            return value
        case str():
            return TEMPORARY.sub("", value)
        case bytes():
            return hashlib.sha256(value).hexdigest()
        case Path():
            return value.name
        case np.generic() | np.ndarray():
            return value.tolist()
        case set() | frozenset():
            return sorted(map(str, value))
        case list() | tuple() if depth <= MOST_DEEP:
            return [plain(one, depth + 1) for one in value]
    held = _held(value) if depth <= MOST_DEEP else None
    if held is None:
        return type(value).__name__
    return {str(key): plain(one, depth + 1) for key, one in held.items()}


def _held(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a record by name; None of what has none."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        # Defaults are left out, so that a new key of the schema moves nothing.
        names = value.model_fields_set - (APART if type(value).__name__ == "Scenario" else set())
        return {name: getattr(value, name) for name in type(value).model_fields if name in names}
    if isinstance(value, Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def lines_of(tree: Any, place: str = "") -> Iterator[str]:
    """A line for every value with its place; of sentences the numbers, for their wording is free."""
    if isinstance(tree, dict):
        for key in tree:
            if not UNSTABLE.search(key):
                yield from lines_of(tree[key], f"{place}.{key}")
    elif isinstance(tree, list):
        for number, one in enumerate(tree):
            yield from lines_of(one, f"{place}.{number}")
    elif isinstance(tree, str) and " " in tree:
        words = (word for word in tree.split() if "/" not in word)
        yield f"{place} {' '.join(found for word in words for found in NUMBER.findall(word))}"
    else:
        yield f"{place} {tree:.5g}" if isinstance(tree, float) else f"{place} {tree}"


def given_text(value: Any) -> str:
    """What a call is given, with the contents of files."""
    if isinstance(value, str) and value.startswith((tempfile.gettempdir(), str(TESTS.parent))):
        value = Path(value)
    if isinstance(value, Path) and value.exists():
        files = [value] if value.is_file() else [one for one in sorted(value.rglob("*"))[:200] if one.is_file()]
        held = b"\0".join(one.name.encode() + one.read_bytes()[:MOST_BYTES] for one in files)
        return f"{value.name} {hashlib.sha256(held).hexdigest()}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(given_text, value))
    return repr(plain(value))


class MovedError(AssertionError):
    """An answer is another than the stored one."""


class Seen:
    """Answers that are stored, or written to the file that SEEN names."""

    def __init__(self) -> None:
        self.stored = dict[str, str]()
        self.out, self.shown = os.environ.get("SEEN", ""), "SEEN_SHOWN" in os.environ
        if not self.out and SEEN.exists():
            with SEEN.open(newline="", encoding="utf-8") as file:
                self.stored = {key: answer for _, row in csv.reader(file) for key, _, answer in
                               (one.partition(":") for one in row.split(" "))}  # fmt: skip

    def take(self, file: str, name: str, given: str, answer: Any) -> None:
        """Compare an answer, or write it down."""
        key = hashlib.sha256(f"{file} {name} {given}".encode()).hexdigest()[:8]
        lines = "\n".join(lines_of(plain(answer)))
        digest = hashlib.sha256(lines.encode()).hexdigest()[:4]
        if self.shown:
            print(f"---- {file} {name} {key}\n{lines}")
        if self.out:
            with Path(self.out).open("a", encoding="utf-8") as out:
                out.write(f"{file} {name} {key} {digest}\n")
        elif self.stored.get(key, digest) != digest:
            raise MovedError(f"the answer of {name} moved: if meant, run python -m tests.golden.seen and say why; "
                        "SEEN_SHOWN=1 prints it, here and in an earlier checkout")  # fmt: skip

    def watched(self, function: Callable[..., Any], file: str, method: bool = False) -> Callable[..., Any]:
        """The function, whose answers are taken."""
        name = f"{function.__module__}.{function.__qualname__}"

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            own = [repr(plain(vars(args[0])))] if method else []
            given = " ".join([*own, *map(given_text, args[method:]), *(f"{n}={given_text(kwargs[n])}" for n in kwargs)])
            try:
                answer = function(*args, **kwargs)
            except (InputError, Infeasible) as error:
                self.take(file, name, given, ["refused", str(error)])
                raise
            if not isinstance(answer, Iterator):
                self.take(file, name, given, answer)
            return answer

        return call

    def printed(self, command: Callable[..., Any]) -> Callable[..., Any]:
        """The command line, of whose output the numbers are taken."""

        def call(words: list[str]) -> None:
            out, held = sys.stdout, io.StringIO()
            given = given_text(words)
            sys.stdout = _Both(out, held)  # type: ignore[assignment]
            try:
                command(words)
            finally:
                sys.stdout = out
                lines = [f"{line} " for line in held.getvalue().split("\n")]
                self.take("command line", " ".join(words[:1]), given, lines)

        return call


class _Both(io.TextIOBase):
    """Standard output, of which a copy is held."""

    def __init__(self, out: TextIO, held: TextIO) -> None:
        self.out, self.held = out, held

    def write(self, text: str) -> int:
        self.held.write(text)
        return self.out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)


def watch(session: pytest.Session) -> None:
    """From now on take the answers that the rooms' tests get, where nightly tests are chosen."""
    seen = None
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "/")
        if file.parent.parent == TESTS and file.parent.name in ROOMS:
            seen = seen or Seen()
            _watch_module(module, file, seen)
    if seen is not None:
        for item in session.items:
            command = getattr(item, "_fixtureinfo", None) and item._fixtureinfo.name2fixturedefs.get("run")  # type: ignore[attr-defined]
            if command and hasattr(command[-1].func, "__globals__"):
                command[-1].func.__globals__["main"] = seen.printed(_original(command[-1].func.__globals__["main"]))
                break


def _original(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "__wrapped__", function)


def _watch_module(module: ModuleType, file: Path, seen: Seen) -> None:
    package = ROOMS[file.parent.name]
    for name, one in list(vars(module).items()):
        if not str(getattr(one, "__module__", "")).startswith(package):
            continue
        if isinstance(one, FunctionType) and not hasattr(one, "__wrapped__"):
            setattr(module, name, seen.watched(one, file.stem))
        elif name in CLASSES:
            for own, method in list(vars(one).items()):
                if isinstance(method, FunctionType) and own[0] != "_" and not hasattr(method, "__wrapped__"):
                    setattr(one, own, seen.watched(method, one.__name__, method=True))


def main() -> None:
    """The file, anew; what two runs answer differently, as by the clock, is left out."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "calls")
        own = {**os.environ, "SEEN": str(out)}
        rooms = [str(TESTS / room) for room in ROOMS]
        for _ in range(2):
            subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "2", *rooms], env=own, check=True)
        answers, calls = defaultdict[str, set[str]](set), defaultdict[tuple[str, str], dict[str, None]](dict)
        for line in out.read_text(encoding="utf-8").splitlines():
            *where, key, digest = line.split(" ")
            answers[key].add(digest)
            calls[where[0], where[-1]][key] = None
    rows = defaultdict[str, list[str]](list)
    for (file, _), keys in sorted(calls.items()):
        rows[file] += [f"{key}:{min(answers[key])}" for key in sorted(keys)[:MOST] if len(answers[key]) == 1]
    with SEEN.open("w", newline="", encoding="utf-8") as stored:
        csv.writer(stored, lineterminator="\n").writerows((file, " ".join(row)) for file, row in rows.items() if row)


if __name__ == "__main__":
    main()
