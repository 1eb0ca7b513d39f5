"""A framework whose configurations are known: what it says of the keys of a scenario, and which of its keys rlsim has
no use for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import read_yaml
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.options import Change, Options
from rlsim.readers.frameworks.reader import Reader

TABLES = Path(__file__).parent / "keys"
MOST_KEYS = 8
"""Keys that a message on values of the wrong kind names."""


C = TypeVar("C", bound=Options)
W = TypeVar("W")


@dataclass(frozen=True)
class Rule(Generic[C]):
    """One scenario key and how a configuration says it.

    reading: its value; None leaves the scenario's default. writing: what to set so that ``reading`` gives a value,
    which an export tests; without it the key has no counterpart in an export. when: condition of ``reading``, without
    which ``otherwise`` is read.
    """

    target: str
    options: type[C]
    reading: Callable[[C], Any]
    writing: Callable[[C, Any], Iterable[Change | None]] | None = None
    when: Callable[[C], bool] | None = None
    otherwise: Any = None

    def meaning(self, c: C) -> Any:
        """The scenario's value by the options of a configuration."""
        return self.reading(c) if self.when is None or self.when(c) else self.otherwise

    def read(self, r: Reader) -> Any:
        """The scenario's value. Raises InputError where the configuration's values do not fit."""
        return evaluated(r, self.target, lambda: self.meaning(self.options(r)))

    def key(self, r: Reader) -> str:
        """The key of the configuration that a message about it names: where no value is given, the first without one
        that is neither a section, which says a mode, nor the launcher's.
        """
        with r.deciding(self.target) as seen:
            value = self.meaning(self.options(r))
        asked = [key for key in seen if "." in key and not key.startswith("launcher.") and not r.value(key)]
        return ((asked if value is None else []) or seen or [self.target])[0]

    def write(self, value: Any, r: Reader) -> dict[str, Any]:
        """What to set for a value of the scenario's."""
        if (writing := self.writing) is None:
            return {}
        return evaluated(r, self.target, lambda: dict(filter(None, writing(self.options(r), value))))


def evaluated(r: Reader, purpose: str, of: Callable[[], W]) -> W:
    """The outcome of ``of``, whose reads count for ``purpose``. Raises InputError where values do not fit."""
    with r.deciding(purpose) as seen:
        try:
            return of()
        # Rules compute with values as they stand in somebody's file: a list where a number belongs is the file's fault.
        except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError) as error:
            # What was read last is what the computation failed on.
            last = sorted(dict.fromkeys(reversed(seen)), key=lambda key: r.value(key) is None)[:MOST_KEYS]
            shown = ", ".join(f"{r.shown(key)}={shortened(str(r.value(key)), 60)}" for key in last)
            raise InputError(f"{r.where}: {shown or purpose}: of a kind that rlsim cannot reckon with") from error


@dataclass(frozen=True)
class Framework:
    """Everything rlsim knows of a framework's configuration.

    rules: of scenario keys, in the order of a document. declared: keys that these read or write. facts: what a
    configuration says beside them. assumed: assumptions of a scenario that is read from it. unused: sections that it
    does not use, beside those that are not enabled, by it and by the scenario's keys. irrelevant: sections and keys
    that do not change the time of a step, by reason. not_simulated: those that may, and that no scenario key says.
    model: key that names the model. node_size: key that holds the GPUs of a node. shipped: file names of the
    framework's own base configurations and the shipped trees that stand in for each, one over the other, where the file
    is not there. start: those under a file that inherits from none of them; start_asynchronous: under an export of an
    asynchronous scenario. form: hydra (defaults are Hydra's lists), yaml, toml, or words (options as argparse takes
    them; dashes: with dashes in their names). python: its launchers are Python too. entry: patterns of the programs
    that launch it, with what they read unasked (config; or folder and name of a Hydra configuration). language: pattern
    of the words by which any other program is taken for the first of them. renamed: keys of earlier releases by what
    they are called now. home: its repository and the folder of it that holds its configurations. begin: keys that an
    export without a base begins with. stack: its own in calibration/stacks; empty where it is simulated as another's.
    programs: by what it runs the loops that no option that rlsim writes makes of another (names of loop.style, sync,
    and partial for one whose generation stops while the trainer works).
    spelled_out: gives the words of a launch with what an option's file stands for, by the documents that the script
    writes and by the file of a name.
    """

    name: str
    rules: Sequence[Rule[Any]]
    declared: frozenset[str]
    facts: Callable[[Reader], Facts]
    assumed: Callable[[Reader], list[dict[str, Any]]]
    unused: Callable[[Reader, Mapping[str, Any]], Iterable[str]]
    irrelevant: Mapping[str, Sequence[str]]
    not_simulated: Mapping[str, Sequence[str]]
    model: str
    node_size: str
    shipped: Mapping[str, Sequence[str]]
    start: Sequence[str]
    entry: Mapping[str, Mapping[str, str]]
    start_asynchronous: Sequence[str] = ()
    form: str = "yaml"
    renamed: Mapping[str, str] = field(default_factory=dict)
    begin: Mapping[str, Any] = field(default_factory=dict)
    dashes: bool = False
    python: bool = False
    language: str = ""
    home: str = "its repository"
    stack: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    spelled_out: Callable[[Sequence[str], Mapping[str, str], Callable[[str], Path | None]], Sequence[str]] | None = None

    @property
    def hydra(self) -> bool:
        """Whether defaults are Hydra's lists."""
        return self.form == "hydra"

    @property
    def whereabouts(self) -> str:
        """What a message says of a file of the framework's that is not there."""
        return f"; what is {self.name}'s own stands in {self.home}: give --root with a clone of it"

    @cached_property
    def known(self) -> frozenset[str]:
        """Every key with an entry of its own."""
        return self.declared.union(*self.irrelevant.values(), *self.not_simulated.values())

    def nearest(self, key: str) -> str | None:
        """The known key closest to ``key``: one of its own section, then one with a like ending."""
        former = any(f"{key}.".startswith(f"{old}.") for old in self.renamed)
        if former or self.why(key) is not None or key in self.known:
            return key
        section, _, name = key.rpartition(".")
        parts = [known.rpartition(".") for known in sorted(self.known)]
        # Reversed, so that of keys with the same ending the alphabet's first is entered last and stays.
        for near in ([part for part in parts if part[0] == section], reversed(parts)):
            names = {part[2]: "".join(part) for part in near}
            found = difflib.get_close_matches(name, names, cutoff=0.7)
            if found:
                return names[found[0]]
        return None

    def why(self, key: str) -> tuple[str, str] | None:
        """Whether a key is irrelevant or not simulated, and the reason; by the longest entry that covers it.

        A ``*`` of an entry stands within one name.
        """
        covering = [
            (len(entry), (status, reason))
            for status, table in (("irrelevant", self.irrelevant), ("not_simulated", self.not_simulated))
            for reason, group in table.items()
            for entry in group
            if f"{key}.".startswith(f"{entry}.")
            or ("*" in entry and re.match(re.escape(entry).replace(r"\*", "[^.]*") + r"(\.|$)", key))
        ]
        return max(covering, key=lambda entry: entry[0])[1] if covering else None


def tables_of(name: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """Of a framework's table the keys that decide nothing by their reasons, ``irrelevant`` and ``not_simulated``."""
    given = read_yaml(TABLES / f"{stem_of(name)}.yaml")
    return {status: dotted(given[status]) for status in ("irrelevant", "not_simulated")}


def dotted(unused: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Whole keys by the reason that they are not used for."""
    return {
        reason: tuple(f"{section}.{name}".lstrip(".") for section, names in group.items() for name in names.split())
        for reason, group in unused.items()
    }


def stem_of(name: str) -> str:
    """Name of a framework's files."""
    return name.replace("-", "_")
