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


def applied(tree: ConfigTree, overrides: Sequence[str], nearest: Callable[[str], str | None]) -> ConfigTree:
    """``tree`` under overrides in their order.

    nearest: the known key that is closest to one, for messages; the key itself where it is known. Raises InputError
    for a word that is no override, for ``key=`` of a key that neither the configuration nor the framework has (Hydra
    wants ``+key=`` there), and for ``~key`` of one that is not set.
    """
    for text in overrides:
        found = _OVERRIDE.match(text)
        if found is None or (found["value"] is None and found["sign"] != "~"):
            raise InputError(f"override '{shortened(text)}' is not KEY=VALUE, +KEY=VALUE, ++KEY=VALUE or ~KEY")
        sign, key = found["sign"], found["key"]
        near = nearest(key)
        if sign in ("", "~") and near != key and not present(tree.values, key):
            hint = f"; did you mean '{near}'?" if near else ""
            raise InputError(f"{tree.where}: override of unknown key '{shortened(key)}'{hint} (+KEY=VALUE adds a key)")
        if sign == "~":
            given = {name: origin for name, origin in tree.given.items() if not f"{name}.".startswith(f"{key}.")}
            tree = ConfigTree(tree.where, without(tree.values, key), given, tree.notes)
            continue
        value: object = found["value"]
        if not found["value"].startswith("${"):
            spaced = (
                _TIGHT_COLON.sub(r"\1: ", found["value"]) if found["value"].startswith(("{", "[")) else found["value"]
            )
            value = parse_value(spaced, f"override {shortened(text)}")
        above = stacked([Layer(tree.where, tree.values, own=True), Layer(COMMAND_LINE, nested({key: value}))], "")
        given = {name: origin for name, origin in tree.given.items() if name != key}
        tree = ConfigTree(tree.where, above.values, {**given, **above.given}, tree.notes)
    return tree
