"""Overrides as frameworks take them on their command lines (Hydra's ``key=value``, ``+``, ``++`` and ``~``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import parse_value
from rlsim.readers.frameworks.trees import ConfigTree, Layer, nested, present, stacked, without

_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+|~|)(?P<key>[A-Za-z_][\w-]*(?:\.[\w-]+)*)(?:=(?P<value>.*))?$", re.DOTALL)
_TIGHT_COLON = re.compile(r"([{,]\s*[\w.]+):(?=[^\s}])")
"""Hydra writes {a:1} where YAML wants {a: 1}."""
COMMAND_LINE = "command line"


def applied(
    tree: ConfigTree, overrides: Sequence[str], nearest: Callable[[str], str | None], where: str = ""
) -> ConfigTree:
    """``tree`` under overrides in their order.

    nearest: the known key that is closest to one, for messages; the key itself where it is known. where: script that
    the overrides stand in, whose keys are taken as they are. Raises InputError for a word that is no override, for
    ``key=`` of a key that neither the configuration nor the framework has (Hydra wants ``+key=`` there), and for
    ``~key`` of one that is not set.
    """
    waiting: list[Layer] = []

    def laid() -> ConfigTree:
        if not waiting:
            return tree
        above = stacked([Layer(tree.where, tree.values, own=True), *waiting], "")
        given = {**tree.given, **above.given}
        waiting.clear()
        return ConfigTree(tree.where, above.values, given, tree.notes)

    for text in overrides:
        found = _OVERRIDE.match(text)
        if found is None or (found["value"] is None and found["sign"] != "~"):
            if where:
                continue
            raise InputError(f"override '{shortened(text)}' is not KEY=VALUE, +KEY=VALUE, ++KEY=VALUE or ~KEY")
        sign, key = found["sign"], found["key"]
        if sign in ("", "~") and not where and not present(tree.values, key):
            tree = laid()
            near = nearest(key)
            if near != key and not present(tree.values, key):
                hint = f"; did you mean '{near}'?" if near else ""
                raise InputError(
                    f"{tree.where}: override of unknown key '{shortened(key)}'{hint} (+KEY=VALUE adds a key)"
                )
        if sign == "~":
            tree = laid()
            given = {name: origin for name, origin in tree.given.items() if not f"{name}.".startswith(f"{key}.")}
            tree = ConfigTree(tree.where, without(tree.values, key), given, tree.notes)
            continue
        try:
            waiting.append(Layer(where or COMMAND_LINE, nested({key: _value(found["value"], text)})))
        except InputError:
            if not where:
                raise
            waiting.append(Layer(where, nested({key: found["value"]})))
    return laid()


def _value(given: str, text: str) -> object:
    if given.startswith("${"):
        return given
    spaced = _TIGHT_COLON.sub(r"\1: ", given) if given.startswith(("{", "[")) else given
    return parse_value(spaced, f"override {shortened(text)}")
