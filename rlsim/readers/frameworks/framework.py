"""The frameworks whose configurations are known, and the tables of each: which of its keys decide which scenario key,
and which ones rlsim has no use for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from rlsim.errors import shortened
from rlsim.files.yaml import read_yaml
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.reader import Formula, Reader
from rlsim.readers.frameworks.rows import Row, Test, table_rows, test_of


@dataclass(frozen=True)
class Framework:
    """Everything rlsim knows of a framework's configuration.

    irrelevant: sections and keys that do not change the time of a step, by reason. not_simulated: those that may, and
    that no scenario key says. elsewhere: keys that an assumption or an option reads; the first names the model.
    node_size: key that holds the GPUs of a node. shipped: file names of the framework's own base configurations and
    the shipped trees that stand in for each, one over the other, where the file is not there. start: those under a
    file that inherits from none of them; start_asynchronous: under an export of an asynchronous scenario. form: hydra
    (defaults are Hydra's lists), yaml, toml, or words (options as argparse takes them; dashes: with dashes in their
    names). entry: patterns of the programs that launch it, with what they read unasked (config; or folder and name of
    a Hydra configuration). renamed: keys of earlier releases by what they are called now. begin: keys that an export
    without a base begins with. said: formulas of what a configuration says beside its rows; settings: scenario keys
    that all have, with their values. idle: sections that a configuration does not use where scenario keys have the
    values there, or where a test holds, beside those that are not enabled. assumptions: tests, sentences that hold
    then, and scenario keys that they are of; {KEY} in a sentence is what a configuration holds.
    """

    name: str
    rows: Sequence[Row]
    irrelevant: Mapping[str, Sequence[str]]
    not_simulated: Mapping[str, Sequence[str]]
    elsewhere: Sequence[str]
    node_size: str
    shipped: Mapping[str, Sequence[str]]
    start: Sequence[str]
    start_asynchronous: Sequence[str]
    entry: Mapping[str, Mapping[str, str]]
    said: Mapping[str, Formula]
    settings: Sequence[tuple[str, Any]]
    idle: Mapping[str, Mapping[str, Any] | Test]
    assumptions: Sequence[tuple[Test | None, str, Sequence[str]]]
    form: str = "yaml"
    renamed: Mapping[str, str] = field(default_factory=dict)
    begin: Mapping[str, Any] = field(default_factory=dict)
    dashes: bool = False

    def facts(self, r: Reader) -> Facts:
        """What a configuration says beside its rows."""
        found, model_key = {name: formula(r) for name, formula in self.said.items()}, self.elsewhere[0]
        stated = {name: value for name, value in found.items() if value is not None}
        return Facts(**{"model": r.text(model_key), "model_key": model_key, "settings": self.settings, **stated})

    @property
    def hydra(self) -> bool:
        """Whether defaults are Hydra's lists."""
        return self.form == "hydra"

    def assumed(self, r: Reader) -> list[dict[str, Any]]:
        """Assumptions of a scenario that is read from a configuration."""
        return [
            {"text": re.sub(r"\{([\w.]+)\}", lambda key: shortened(str(r.value(key[1]))), text), "keys": list(keys)}
            for test, text, keys in self.assumptions
            if test is None or test(r)
        ]

    @cached_property
    def decides(self) -> Mapping[str, Sequence[str]]:
        """Scenario keys by each key of the configuration that may decide them; none of those read elsewhere."""
        out: dict[str, list[str]] = {key: [] for row in self.rows for key in row.keys}
        for row in self.rows:
            for key in dict.fromkeys(row.keys):
                out[key].append(row.target)
        return {**dict.fromkeys(self.elsewhere, ()), **out}

    @cached_property
    def known(self) -> frozenset[str]:
        """Every key with an entry of its own."""
        unused = (*self.irrelevant.values(), *self.not_simulated.values())
        return frozenset(self.decides).union(*unused)

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


FORKS = {"vime": "slime", "miles": "slime"}
"""Frameworks with the words of another one."""


@cache
def framework_of(name: str) -> Framework:
    """The framework of the table ``keys/NAME.yaml``, or of the one whose words it has."""
    if name in FORKS:
        return replace(framework_of(FORKS[name]), name=name)
    given = read_yaml(Path(__file__).parent / "keys" / f"{name.replace('-', '_')}.yaml")
    sections = {f"{name}/": f"{section}." for name, section in given.pop("sections", {}).items()}
    given["rows"] = {
        target: dict([row.split()]) if isinstance(row, str) else row for target, row in given["rows"].items()
    }
    table = _written_out(given, sections)
    tests: dict[str, Test] = {}
    tests.update({name: Formula(text, tests) for name, text in table.get("tests", {}).items()})
    facts = {name: Formula(str(text), tests) for name, text in table.get("facts", {}).items()}
    elsewhere = [key for formula in facts.values() for key in formula.keys]
    as_given = ("name", "node_size", "shipped", "start", "form", "renamed", "begin", "dashes")
    return Framework(
        **{name: table[name] for name in as_given if name in table},
        rows=table_rows(table["rows"], tests),
        irrelevant=_dotted(table["irrelevant"]),
        not_simulated=_dotted(table["not_simulated"]),
        elsewhere=(table["model"], *table.get("elsewhere", []), *elsewhere),
        start_asynchronous=table.get("start_asynchronous", table["start"]),
        entry={pattern: options or {} for pattern, options in table.get("entry", {}).items()},
        said=facts,
        settings=tuple(table.get("settings", {}).items()),
        idle={
            section: tests.get(idle) or Formula(idle, tests) if isinstance(idle, str) else idle
            for section, idle in table.get("idle", {}).items()
        },
        assumptions=[
            (test_of(one.get("when"), tests), one["text"], one["keys"]) for one in table.get("assumptions", [])
        ],
    )


def _written_out(value: Any, sections: Mapping[str, str]) -> Any:
    """``value`` with the names of sections written out, in keys of mappings and within formulas too."""
    if isinstance(value, dict):
        return {_written_out(name, sections): _written_out(inner, sections) for name, inner in value.items()}
    if isinstance(value, list):
        return [_written_out(inner, sections) for inner in value]
    if isinstance(value, str) and "[" in value:
        return re.sub(r"(?<=\[)(\w+/)", lambda found: sections.get(found[1], found[1]), value)
    head, slash, name = value.partition("/") if isinstance(value, str) else ("", "", "")
    return f"{sections[head + slash]}{name}" if head + slash in sections else value


def _dotted(unused: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Whole keys by the reason that they are not used for."""
    return {
        reason: tuple(f"{section}.{name}".lstrip(".") for section, names in group.items() for name in names.split())
        for reason, group in unused.items()
    }
