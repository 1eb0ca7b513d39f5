"""Where the keys of a scenario stand: in its file, in one that it extends, or in an override."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rlsim.files.yaml import Place, place_finder
from rlsim.loading.overrides import Setting, same_branch, told


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
        return f"{self.where} with {told(self.given)}" if self.given else self.where

    @property
    def before(self) -> str:
        """The same with what parts it from the message."""
        return f"{self.origin}: "

    def place(self, key: str) -> str | None:
        """The place of a dotted key for messages, or None where none is known.

        For a key that an override set, the place of the value that stood there before.
        """
        above = [setting.key for setting in self.given if same_branch(key, setting.key)]
        if not above:
            return self._of_file(key, False)
        found = self._of_file(key, True) or self._of_file(above[-1], True)
        return None if found is None else f"in place of {found}"

    def exact(self, key: str) -> str | None:
        """The place of a key in the first file that holds it itself."""
        return self._of_file(key, True)

    def message(self, key: str, text: object) -> str:
        """What is wrong with a key: origin, place, key, ``text``."""
        place = self.place(key)
        return f"{self.before}{f'{place}: ' if place else ''}{key}: {text}"

    def _of_file(self, key: str, exact: bool) -> str | None:
        """The place in the first file that holds the key, else that of its section where ``exact`` does not forbid."""
        found = [(name, place) for name, place in self._all(key) if place.exact or not exact]
        if not found:
            return None
        name, place = next((one for one in found if one[1].exact), found[0])
        return str(place) if name == self.files[0][0] else f"{name}, {place}"

    def _all(self, key: str) -> list[tuple[str, Place]]:
        places = ((name, find(key)) for name, find in self._finders)
        return [(name, place) for name, place in places if place is not None]

    @cached_property
    def _finders(self) -> list[tuple[str, Callable[[str], Place | None]]]:
        return [(name, place_finder(text)) for name, text in self.files]
