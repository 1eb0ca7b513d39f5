"""A framework whose configurations are known: what it says of the keys of a scenario, and which of its keys rlsim has
no use for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from rlsim.files.yaml import read_yaml
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.reader import Reader

TABLES = Path(__file__).parent / "keys"


class Row(Protocol):
    """One scenario key: its value by a configuration, and what to set so that a configuration gives a value."""

    @property
    def target(self) -> str:
        """The scenario key."""

    def read(self, r: Reader) -> Any:
        """Its value; None leaves the scenario's default."""

    def key(self, r: Reader) -> str:
        """The key of the configuration that a message about it names."""

    def write(self, value: Any, r: Reader) -> Mapping[str, Any]:
        """Keys of the configuration to set."""


@dataclass(frozen=True)
class Framework:
    """Everything rlsim knows of a framework's configuration.

    rows: rules for scenario keys, in the order of a document. declared: keys that these read or write. facts: what a
    configuration says beside them. assumed: assumptions of a scenario that is read from it. unused: sections that it
    does not use, beside those that are not enabled, by it and by the scenario's keys. irrelevant: sections and keys
    that do not change the time of a step, by reason. not_simulated: those that may, and that no scenario key says.
    model: key that names the model. node_size: key that holds the GPUs of a node. shipped: file names of the
    framework's own base configurations and the shipped trees that stand in for each, one over the other, where the file
    is not there. start: those under a file that inherits from none of them; start_asynchronous: under an export of an
    asynchronous scenario. form: hydra (defaults are Hydra's lists), yaml, toml, or words (options as argparse takes
    them; dashes: with dashes in their names). entry: patterns of the programs that launch it, with what they read
    unasked (config; or folder and name of a Hydra configuration). renamed: keys of earlier releases by what they are
    called now. begin: keys that an export without a base begins with. decides: None: what was read for which scenario
    key tells which keys decided it; else scenario keys by keys that may decide them.
    """

    name: str
    rows: Sequence[Row]
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
    decides: Mapping[str, Sequence[str]] | None = None

    @property
    def hydra(self) -> bool:
        """Whether defaults are Hydra's lists."""
        return self.form == "hydra"

    def decided(self, key: str, r: Reader) -> Sequence[str]:
        """Scenario keys that a declared key decides in a configuration."""
        return r.purposes(key) if self.decides is None else self.decides[key]

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
        for near in ([part for part in parts if part[0] == section], reversed(parts)):
            names = {part[2]: "".join(part) for part in near}
            found = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
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
