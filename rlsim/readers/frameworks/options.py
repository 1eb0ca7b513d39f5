"""Options of a framework's configuration as typed attributes, read where they are used.

A class of :class:`Options` declares the keys of a section, one attribute each; ``Part`` puts a section into the whole.
Of an instance an attribute is the option's value in a configuration, and reading it is recorded as a use for the
scenario key that is being decided; of the class it is the :class:`Option`, whose ``to`` is a change to write.

An option with a default gives that where its key is not there or null; without one it gives None. A text of no
characters counts as not there where no default is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast, overload

from rlsim.errors import shortened
from rlsim.readers.frameworks.reader import Reader

T = TypeVar("T")
TRUE = ("true", "yes", "on", "1")
"""Words that other loaders take for true."""


class Change(NamedTuple):
    """A key of a configuration and the value to write; None unsets it."""

    key: str
    value: Any


class Condition(NamedTuple):
    """That an option has one of some values, which ``met`` asks of a configuration; ``change`` gives it the first."""

    met: Callable[[Reader], bool]
    change: Change


class Option(Generic[T]):
    """One key.

    kind: how its value is read. name: its name where the attribute's differs. stated: it has a default. decides: it
    counts as used where it is read.
    """

    key: str

    def __init__(self, kind: Callable[[Reader, str], T], name: str = "", stated: bool = False) -> None:
        self._kind, self.name, self.stated = kind, name, stated
        self.decides = True

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Options, owner: type) -> T: ...
    def __get__(self, instance: Options | None, owner: type) -> Self | T:
        return self if instance is None else self._kind(instance.r, self.key)

    def read(self, r: Reader) -> T:
        """Its value in a configuration. Raises InputError naming the key where that is of another kind."""
        return self._kind(r, self.key)

    def to(self, value: T | None) -> Change:
        """The change that gives it ``value``."""
        return Change(self.key, value)

    def holds(self, *values: T | None) -> Condition:
        """The condition that it has one of ``values``."""
        return Condition(lambda r: self.read(r) in values, self.to(values[0]))


class Options:
    """A section of a configuration, or the whole. section: its dotted name."""

    def __init__(self, r: Reader) -> None:
        self.r = r

    def __init_subclass__(cls, section: str = "") -> None:
        for attribute, option in vars(cls).items():
            if isinstance(option, Option):
                option.key = f"{section}.{option.name or attribute}".lstrip(".")

    def shown(self, option: Option[Any]) -> str:
        """What a configuration holds, short and readable enough for a message."""
        return shortened(str(self.r.value(option.key)))

    @classmethod
    def every(cls) -> Iterator[Option[Any]]:
        """The options of this section and of its parts."""
        # vars has what a class itself defines: options that it inherits stand in its bases.
        for base in cls.__mro__:
            for member in vars(base).values():
                if isinstance(member, Option):
                    yield member
                elif isinstance(member, Part):
                    yield from member.of.every()


O = TypeVar("O", bound=Options)  # noqa: E741


class Part(Generic[O]):
    """A section as an attribute of the whole."""

    def __init__(self, of: type[O]) -> None:
        self.of = of

    @overload
    def __get__(self, instance: None, owner: type) -> type[O]: ...
    @overload
    def __get__(self, instance: Options, owner: type) -> O: ...
    def __get__(self, instance: Options | None, owner: type) -> type[O] | O:
        return self.of if instance is None else self.of(instance.r)


def aside(option: Option[T]) -> Option[T]:
    """An option that is read without saying what is simulated; the table of the framework has what becomes of it."""
    option.decides = False
    return option


class Kind(Generic[T]):
    """Makers of options whose values a getter of the reader gives."""

    def __init__(self, read: Callable[[Reader, str, T], T]) -> None:
        self.read = read

    @overload
    def __call__(self, default: T, *, name: str = "") -> Option[T]: ...
    @overload
    def __call__(self, default: None = None, *, name: str = "") -> Option[T | None]: ...
    def __call__(self, default: T | None = None, *, name: str = "") -> Option[T] | Option[T | None]:
        """An option with or without a default."""
        read: Callable[..., T] = self.read
        if default is not None:
            return Option(lambda r, key: read(r, key, default), name, stated=True)
        return Option(lambda r, key: None if r.value(key) in (None, "") else read(r, key), name)


integer = Kind(Reader.integer)
"""A whole number; 8.0 counts as 8."""
number = Kind(Reader.number)
flag = Kind(Reader.flag)
"""true or false, also as YAML 1.1 writes them."""
text = Kind(Reader.text)


def size(*, name: str = "") -> Option[int]:
    """A whole number of at least 1; 1 where it is not there."""
    return Option(Reader.size, name, stated=True)


def switch(default: bool = False, *, name: str = "") -> Option[bool]:
    """Whether a switch is on; whatever no loader takes for true is off."""
    on: Callable[[Any], bool] = lambda found: default if found is None else str(found).lower() in TRUE  # noqa: E731
    return Option(lambda r, key: on(r.value(key)), name, stated=True)


def integers(*, name: str = "") -> Option[list[int]]:
    """A list of whole numbers; one alone counts as a list; empty where it is not there."""

    def listed(r: Reader, key: str) -> list[int]:
        found = r.value(key)
        numbers = [] if found in (None, "") else found if isinstance(found, list) else [found]
        # Not isinstance: true is an int to Python.
        if not all(type(number) is int for number in numbers):
            raise r.error(key, "must be a list of whole numbers", found)
        return cast(list[int], numbers)

    return Option(listed, name, stated=True)


def words(*, name: str = "") -> Option[list[str]]:
    """A list of texts; one text counts as those between its commas and spaces; empty where it is not there."""

    def listed(r: Reader, key: str) -> list[str]:
        found = r.value(key)
        texts = found if isinstance(found, list) else [] if found is None else str(found).strip("[]").split(",")
        return [word.strip(" '\"") for text in texts for word in str(text).split() if word.strip(" '\"")]

    return Option(listed, name, stated=True)


def batches(*, name: str = "") -> Option[tuple[tuple[int, int, int], ...]]:
    """(From, to, value) by batch, as vLLM's schedules of drafts without contexts; empty where it is not there."""

    def listed(r: Reader, key: str) -> tuple[tuple[int, int, int], ...]:
        found = r.value(key)
        rows = found if isinstance(found, list) else [] if found in (None, "") else [found]
        # Not isinstance for the numbers: true is an int to Python.
        if not all(isinstance(row, list) and len(row) == 3 and all(type(n) is int for n in row) for row in rows):
            raise r.error(key, "must be a list of [from, to, tokens], whole numbers", found)
        return tuple((first, last, value) for first, last, value in rows)

    return Option(listed, name, stated=True)


def section(*, name: str = "", resolved: bool = True) -> Option[dict[str, Any] | None]:
    """A section as it stands; None where it is something else. resolved: with what its interpolations refer to."""
    read = Reader.value if resolved else Reader.raw
    return Option(lambda r, key: found if isinstance(found := read(r, key), dict) else None, name)


def anything(*, name: str = "", resolved: bool = True) -> Option[Any]:
    """A value of any kind, for keys that several kinds have a meaning of; None for a text of no characters."""
    read = Reader.value if resolved else Reader.raw
    return Option(lambda r, key: None if (found := read(r, key)) == "" else found, name)
