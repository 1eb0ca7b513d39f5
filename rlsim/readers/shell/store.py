"""Where a shell keeps variables, arrays and parameters, and what of them is not known."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlsim.readers.shell.arithmetic import NotKnown
from rlsim.readers.shell.syntax import tokens

Elements = dict[int | str, str]
"""Those of an array by their number, of an associative one by their key."""


def end_of(held: Elements) -> int:
    """The number behind an array's last."""
    return max((key for key in held if isinstance(key, int)), default=-1) + 1


@dataclass
class Store(ABC):
    """Variables and arrays of a script. run: the output of a command line within ``$(...)``, None where a program would
    print it; given: set from outside, which the script cannot change; unknown: what programs would say; status: ``$?``,
    None of a program; lost: lists among the last words of which nobody knows how long they are."""

    where: str
    run: Callable[[str], str | None]
    texts: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, Elements] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    given: frozenset[str] = frozenset()
    expanded: int = 0
    unknown: set[str] = field(default_factory=set)
    associative: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    status: str | None = "0"
    lost: set[str] = field(default_factory=set)

    def value(self, name: str) -> str | None:
        """Text of a variable or parameter; None where it is not set."""
        if name.isdigit():
            return (
                self.words[int(name) - 1] if 0 < int(name) <= len(self.words) else self.where if name == "0" else None
            )
        if name in ("@", "*"):
            return " ".join(self.words) if self.words else None
        if name == "#":
            return str(len(self.words))
        if name == "?":
            return self.status
        if name in self.arrays:
            return self.element(name, "0")
        return self.texts.get(name)

    def elements(self, name: str) -> Elements:
        """Those of an array in its order, a plain variable as one, none of what is not set."""
        if name in self.arrays:
            held = self.arrays[name]
            return held if name in self.associative else {key: held[key] for key in sorted(held)}
        return {0: self.texts[name]} if name in self.texts else {}

    def key(self, name: str, index: str) -> int | str:
        """What a subscript names; a number below 0 counts from the end. Raises NotKnown."""
        if name in self.associative:
            return self.text(index)
        at = self.arithmetic(index)
        return at if at >= 0 else at + end_of(self.elements(name))

    def element(self, name: str, index: str) -> str | None:
        """One element; None where it is not there."""
        return None if name in self.unknown else self.elements(name).get(self.key(name, index))

    def number_text(self, name: str, index: int | None, empty: bool = False) -> str:
        """What arithmetic takes a name for. Raises NotKnown of what is not set, which may be set from outside."""
        value = self.value(name) if index is None else self.element(name, str(index))
        if value is None and (name in self.unknown or not empty):
            raise NotKnown(name)
        return value or ""

    def assign(self, name: str, value: str) -> None:
        """Set a variable."""
        if name in self.given:
            return
        self.unknown.discard(name)
        if name in self.arrays:
            self.arrays[name] = {**self.arrays[name], 0: value}
        else:
            self.texts[name] = value

    def assign_element(self, name: str, index: str, value: str, more: bool = False) -> None:
        """Set one element. Raises NotKnown where its subscript is."""
        if name in self.given:
            return
        key, held = self.key(name, index), dict(self.elements(name))
        held[key] = held.get(key, "") + value if more else value
        self.texts.pop(name, None)
        self.arrays[name] = held

    def assign_array(self, name: str, inner: str, more: bool) -> None:
        """Set all elements from the words between brackets; those that a program would print are not known."""
        if name in self.given:
            return
        held: Elements = dict(self.elements(name)) if more else {}
        unsure, end = more and name in self.unknown, end_of(held)
        for token in tokens(inner, self.where):
            pair = re.match(r"\[([^\]]+)\]=(.*)$", token.text, re.DOTALL)
            if pair and token.kind == "word":
                key: int | str = self.text(pair[1]) if name in self.associative else self.arithmetic(pair[1])
                held[key], end = self.text(pair[2]), key + 1 if isinstance(key, int) else end
                continue
            self.lost.clear()
            for part in self.fields(token.text) if token.kind == "word" else ():
                if part.startswith("$("):
                    unsure = True
                else:
                    held[end], end = part, end + 1
            unsure |= bool(self.lost)
        self.texts.pop(name, None)
        self.arrays[name] = held
        (self.unknown.add if unsure else self.unknown.discard)(name)

    def forget(self, name: str) -> None:
        """Unset a variable whose value a program would print."""
        self.unset(name)
        if name not in self.given:
            self.unknown.add(name)

    def unset(self, name: str) -> None:
        """Unset a variable, or one element ``NAME[KEY]``."""
        name, mark, index = name.partition("[")
        if name in self.given:
            return
        if mark:
            key = self.key(name, index.rstrip("]"))
            self.arrays[name] = {one: text for one, text in self.elements(name).items() if one != key}
            return
        self.texts.pop(name, None)
        self.arrays.pop(name, None)
        for kind in (self.unknown, self.associative, self.integers):
            kind.discard(name)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """As within a subshell: what is set goes with it."""
        names = ("texts", "arrays", "words", "unknown", "associative", "integers")
        before = {name: getattr(self, name).copy() for name in names}
        try:
            yield
        finally:
            self.__dict__.update(before)

    @abstractmethod
    def fields(self, word: str, empty: bool = False) -> list[str]:
        """The fields that a word gives."""

    @abstractmethod
    def text(self, word: str, empty: bool = False) -> str:
        """One text of a word."""

    @abstractmethod
    def arithmetic(self, text: str, empty: bool = False) -> int:
        """An integer expression."""
