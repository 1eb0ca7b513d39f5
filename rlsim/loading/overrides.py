"""Overrides of a scenario's keys, as ``--set`` and ``vary()`` take them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import parse_value

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


def told(given: Sequence[Setting]) -> str:
    """The first of ``given`` as messages repeat them; a search gives thousands of settings that none needs."""
    shown = ""
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


def same_branch(key: str, other: str) -> bool:
    """Whether one of two dotted keys is, or lies below, the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


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
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{section}{key}.")
        else:
            yield Setting(f"{section}{key}", list(value) if isinstance(value, tuple) else value)
