"""Overrides of a scenario's keys, as ``--set`` and ``vary()`` take them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import parse_value
from rlsim.files.yaml_rules import Place, place_finder

OVERRIDES_CHARACTERS = 100
"""Most of a list of overrides that a message repeats."""


@dataclass(frozen=True)
class Setting:
    """One override: dotted key and value; written: as the user wrote it, ``key=value``."""

    key: str
    value: Any
    written: str | None = None

    @property
    def text(self) -> str:
        """``key=value`` for messages."""
        return self.written or f"{self.key}={json.dumps(self.value, default=str)}"


def shown_settings(given: Sequence[Setting]) -> str:
    """The first of ``given`` as messages repeat them; a search gives thousands of settings that none needs."""
    shown = ""
    # A word becomes several settings with the same text: it is repeated once.
    for text in dict.fromkeys(setting.text for setting in given):
        shown += f", {text}" if shown else text
        if len(shown) > OVERRIDES_CHARACTERS:
            break
    return shortened(shown, OVERRIDES_CHARACTERS)


@lru_cache(maxsize=4096)
def prefixes(key: str) -> tuple[str, ...]:
    """A dotted key and the sections that it lies in."""
    parts = key.split(".")
    return tuple(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def value_at(record: Any, key: str) -> Any:
    """What a dotted key or property of a record is; None where a section of it is missing."""
    for name in key.split("."):
        record = record.get(name) if isinstance(record, dict) else getattr(record, name, None)
    return record


def settings_of(overrides: Sequence[str | Mapping[str, Any]]) -> list[Setting]:
    """Every setting of some overrides in their order, ``"a.b=value"`` or mappings. Raises InputError."""
    return [setting for override in overrides for setting in _settings(override)]


def _settings(override: str | Mapping[str, Any], section: str = "") -> Iterator[Setting]:
    """Every setting of one override."""
    if isinstance(override, str):
        dotted, equals, text = override.partition("=")
        if not equals or not all(dotted.strip().split(".")):
            raise InputError(f"'{shortened(override)}' is not KEY=VALUE, such as engine.tensor_parallel=8")
        value = parse_value(text, shortened(override, OVERRIDES_CHARACTERS))
        yield Setting(dotted.strip(), value, override)
        return
    for key, value in override.items():
        # An empty mapping is a value, which takes its section back to the defaults (vary).
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{section}{key}.")
        else:
            yield Setting(f"{section}{key}", list(value) if isinstance(value, tuple) else value)


@dataclass(frozen=True)
class Places:
    """The texts that a scenario was read from.

    where: the scenario as messages name it. files: (name, text) of its file, then of those that it extends; none for a
    scenario in memory. given: the overrides.
    """

    where: str
    files: tuple[tuple[str, str], ...] = ()
    given: Sequence[Setting] = field(default=())

    @property
    def origin(self) -> str:
        """What messages begin with."""
        return f"{self.where} with {shown_settings(self.given)}" if self.given else self.where

    @property
    def before(self) -> str:
        """The same with what parts it from the message."""
        return f"{self.origin}: "

    def place(self, key: str) -> str | None:
        """The place of a dotted key for messages, or None where none is known.

        For a key that an override set, the place of the value that stood there before.
        """
        given = [setting.key for setting in self.given]
        above = [one for one in given if f"{key}.".startswith(f"{one}.") or f"{one}.".startswith(f"{key}.")]
        if not above:
            return self._of_file(key, False)
        found = self._of_file(key, True) or self._of_file(above[-1], True)
        # Whoever reads this looks into the file, where another value stands than the one complained of.
        return None if found is None else f"in place of {found}"

    def exact(self, key: str) -> str | None:
        """The place of a key in the first file that holds it itself."""
        return self._of_file(key, True)

    @contextmanager
    def at(self, key: str) -> Iterator[None]:
        """What is wrong within it is wrong with a key: InputError says so."""
        try:
            yield
        except InputError as error:
            raise InputError(self.message(key, error)) from error

    def message(self, key: str, text: object) -> str:
        """What is wrong with a key: origin, place, key, ``text``."""
        place = self.place(key)
        return f"{self.before}{f'{place}: ' if place else ''}{key}: {text}"

    def _of_file(self, key: str, exact: bool) -> str | None:
        """The place in the first file that holds the key, else that of its section where ``exact`` does not forbid."""
        places = ((name, find(key)) for name, find in self._finders)
        found = [(name, place) for name, place in places if place is not None and (place.exact or not exact)]
        if not found:
            return None
        name, place = next((one for one in found if one[1].exact), found[0])
        return str(place) if name == self.files[0][0] else f"{name}, {place}"

    @property
    def _finders(self) -> list[tuple[str, Callable[[str], Place | None]]]:
        return [(name, place_finder(text)) for name, text in self.files]
