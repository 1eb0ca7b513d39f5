"""Typed values of a framework's configuration."""

from __future__ import annotations

from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.readers.frameworks.interpolation import Interpolation
from rlsim.readers.frameworks.trees import ConfigTree, lookup

_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
"""Texts that the frameworks' YAML 1.1 loaders take for true and false."""


class Reader:
    """Typed values of a configuration; it remembers which keys were asked for.

    Every getter gives ``default`` where the key is not there or null, and raises InputError naming file and key where
    its value is of another kind. mean_tokens: mean sample with its prompt, where it is known beside the configuration.
    """

    def __init__(self, tree: ConfigTree, mean_tokens: float | None = None) -> None:
        self.where = tree.where
        self.mean_tokens = mean_tokens
        self.read: set[str] = set()
        self._tree, self._values = tree, Interpolation(tree, self.read)

    def value(self, key: str) -> Any:
        """The resolved value; None where it is not there."""
        self.read.add(key)
        return self._values.value(key)

    def raw(self, key: str) -> Any:
        """What a key holds, references unresolved."""
        self.read.add(key)
        return lookup(self._tree.values, key)

    def integer(self, key: str, default: int = 0) -> int:
        """A whole number; 8.0 counts as 8."""
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self.error(key, "must be a whole number", found)
        return found

    def real_tokens(self, samples: int, cap: int) -> int:
        """Tokens of a micro-batch of so many samples without padding: mean ones, and at least one of ``cap``."""
        return max(cap, round(samples * (self.mean_tokens or cap)))

    def fitting(self, tokens: int, cap: int) -> int | None:
        """Samples of which a micro-batch without padding has so many tokens; None where no number of them has."""
        samples = max(1, round(tokens / (self.mean_tokens or cap)))
        return samples if self.real_tokens(samples, cap) == tokens else None

    def size(self, key: str) -> int:
        """A whole number of at least 1; 1 where it is not there."""
        found = self.integer(key, 1)
        if found < 1:
            raise self.error(key, "must be a whole number of at least 1", found)
        return found

    def number(self, key: str, default: float = 0.0) -> float:
        """A number."""
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.error(key, "must be a number", found)
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false, also as YAML 1.1 writes them."""
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, str):
            found = _WORDS.get(found.lower(), found)
        if not isinstance(found, bool):
            raise self.error(key, "must be true or false", found)
        return found

    def text(self, key: str, default: str = "") -> str:
        """A text."""
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, str) or found == "???":
            raise self.error(key, "must be given" if found == "???" else "must be text", found)
        return found

    def error(self, key: str, problem: str, found: Any) -> InputError:
        """That a key holds what it must not."""
        return InputError(f"{self.where}: {key}: {problem}, got {shortened(repr(found))}")
