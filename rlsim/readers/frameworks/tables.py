"""A framework whose rules are formulas in its table ``keys/NAME.yaml``: those that are no module of adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlsim.errors import shortened
from rlsim.files.yaml import read_yaml
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.formulas import Formula
from rlsim.readers.frameworks.framework import TABLES, Framework, dotted
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.rows import Row, Test, table_rows, test_of


def table_framework(name: str) -> Framework:
    """The framework of the table ``keys/NAME.yaml``."""
    given = read_yaml(TABLES / f"{name.replace('-', '_')}.yaml")
    sections = {f"{name}/": f"{section}." for name, section in given.pop("sections", {}).items()}
    given["rows"] = {
        target: dict([row.split()]) if isinstance(row, str) else row for target, row in given["rows"].items()
    }
    table = _written_out(given, sections)
    tests: dict[str, Test] = {}
    tests.update({name: Formula(text, tests) for name, text in table.get("tests", {}).items()})
    said = {name: Formula(str(text), tests) for name, text in table.get("facts", {}).items()}
    elsewhere = [table["model"], *table.get("elsewhere", []), *(key for one in said.values() for key in one.keys)]
    rows, settings = table_rows(table["rows"], tests), tuple(table.get("settings", {}).items())
    idle = {
        section: tests.get(idle) or Formula(idle, tests) if isinstance(idle, str) else idle
        for section, idle in table.get("idle", {}).items()
    }
    assumptions = [(test_of(one.get("when"), tests), one["text"], one["keys"]) for one in table.get("assumptions", [])]

    def facts(r: Reader) -> Facts:
        found, model = {name: formula(r) for name, formula in said.items()}, table["model"]
        stated = {name: value for name, value in found.items() if value is not None}
        return Facts(**{"model": r.text(model), "model_key": model, "settings": settings, **stated})

    def unused(r: Reader, scenario: Mapping[str, Any]) -> Iterator[str]:
        for section, one in idle.items():
            if one.items() <= scenario.items() if isinstance(one, Mapping) else one(r):
                yield section

    decides = _decides(rows, elsewhere)
    as_given = ("name", "node_size", "model", "shipped", "start", "form", "renamed", "begin", "dashes")
    return Framework(
        **{name: table[name] for name in as_given if name in table},
        rows=rows,
        declared=frozenset(decides),
        facts=facts,
        assumed=lambda r: _assumed(r, assumptions),
        unused=unused,
        irrelevant=dotted(table["irrelevant"]),
        not_simulated=dotted(table["not_simulated"]),
        start_asynchronous=table.get("start_asynchronous", ()),
        entry={pattern: options or {} for pattern, options in table.get("entry", {}).items()},
        decides=decides,
    )


def _assumed(r: Reader, assumptions: Sequence[tuple[Test | None, str, Sequence[str]]]) -> list[dict[str, Any]]:
    """Assumptions of a scenario that is read from a configuration."""
    return [
        {"text": re.sub(r"\{([\w.]+)\}", lambda key: shortened(str(r.value(key[1]))), text), "keys": list(keys)}
        for test, text, keys in assumptions
        if test is None or test(r)
    ]


def _decides(rows: Sequence[Row], elsewhere: Sequence[str]) -> dict[str, list[str]]:
    """Scenario keys by each key of the configuration that may decide them; none of those read elsewhere."""
    out: dict[str, list[str]] = {key: [] for row in rows for key in row.keys}
    for row in rows:
        for key in dict.fromkeys(row.keys):
            out[key].append(row.target)
    return {**{key: [] for key in elsewhere}, **out}


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
