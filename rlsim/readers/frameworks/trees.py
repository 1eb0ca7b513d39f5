"""Nested mappings of a configuration: dotted keys, merging in layers, bounds, and overrides as frameworks take them on
their command lines (Hydra's ``key=value``, ``+``, ``++`` and ``~``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import parse_value

MAX_VALUES = 20_000
"""Values of one configuration, aliases expanded. Real recipes have below 2,000."""
MAX_DEPTH = 40
"""Sections within each other. Real recipes have below 10."""
REPLACING = "_override_"
"""Key of NeMo-RL (v0.5 and later) by which a mapping replaces its parent's instead of merging with it."""

Mappings = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """One file, shipped tree or command line: values with interpolations as they stand; own: it is rlsim's default."""

    where: str
    values: Mappings
    own: bool = False


@dataclass(frozen=True)
class ConfigTree:
    """A configuration after inheritance and overrides, before interpolation.

    where: the file, for messages. given: dotted keys that the user's files and overrides state, with their origin.
    notes: what stood in for what while it was read. aliases: keys by which rows read others, which hold the same.
    """

    where: str
    values: Mappings
    given: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


def check_bounds(values: Any, where: str) -> None:
    """Raise InputError where a document is too large or too deep once its aliases are expanded."""
    # A stack in place of recursion: how deep a document is, is what is asked here.
    total, stack = 0, [(values, 0)]
    while stack:
        item, depth = stack.pop()
        total += 1
        if total > MAX_VALUES or depth > MAX_DEPTH:
            bound = f"{MAX_VALUES:,} values" if total > MAX_VALUES else f"{MAX_DEPTH} sections within each other"
            raise InputError(f"{where}: is no configuration of a framework: more than {bound}")
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        stack.extend((child, depth + 1) for child in children)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of everything that is no section; an empty section and a list count as one value."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Mappings:
    """``above`` laid over ``below``: sections merge, anything else replaces, as OmegaConf merges."""
    out = dict(below)
    for key, value in above.items():
        if isinstance(value, dict):
            own = {name: inner for name, inner in value.items() if name != REPLACING}
            parent = below.get(key)
            keeps = isinstance(parent, dict) and value.get(REPLACING) is not True
            out[key] = merged(parent if keeps and isinstance(parent, dict) else {}, own)
        else:
            out[key] = value
    return out


def stacked(layers: list[Layer], where: str, notes: tuple[str, ...] = ()) -> ConfigTree:
    """The tree of some layers, later ones above. Raises InputError where it is out of bounds."""
    values: Mappings = {}
    given: dict[str, str] = {}
    for layer in layers:
        check_bounds(layer.values, layer.where)
        _check_sections(values, layer)
        values = merged(values, layer.values)
        if not layer.own:
            given.update({key: layer.where for key, _ in leaves(layer.values)})
    check_bounds(values, where)
    # A later layer may put a value in place of a section of which an earlier one gave keys.
    held = {key for key, _ in leaves(values)}
    return ConfigTree(where, values, {key: origin for key, origin in given.items() if key in held}, notes)


def _check_sections(below: Mappings, layer: Layer) -> None:
    """Raise InputError where a number, a text or a list stands where the layers below have a section: all of its keys
    would be gone. null and false leave a section out; a reference may be one, a list of mappings are several (NeMo-RL's
    ``data.train``)."""
    for key, value in leaves(layer.values):
        held = lookup(below, key)
        left_out = value is None or value is False or value == {} or (isinstance(value, str) and "${" in value)
        several = isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
        if isinstance(held, dict) and held and not left_out and not several:
            raise InputError(f"{layer.where}: {key}: must be a section, got {shortened(repr(value))}")


def renamed(tree: ConfigTree, names: Mapping[str, str]) -> ConfigTree:
    """``tree`` with what keys of earlier releases hold under their present names too, told in its notes."""
    moved = [old for old in names if present(tree.values, old) and old not in tree.aliases.values()]
    if not moved:
        return tree
    values, given = tree.values, dict(tree.given)
    for old in moved:
        values = merged(values, nested({names[old]: lookup(tree.values, old)}))
        for key in [key for key in given if f"{key}.".startswith(f"{old}.")]:
            given[names[old] + key[len(old) :]] = given.pop(key)
    # Reversed, so that of two former names for one key the table's first is written back.
    aliases = {**tree.aliases, **{names[old]: old for old in reversed(moved)}}
    note = f"names of another release or algorithm: {', '.join(moved[:4])}{', ...' if len(moved) > 4 else ''}"
    return ConfigTree(tree.where, values, given, (*tree.notes, note), aliases)


def lookup(values: Mapping[str, Any], key: str) -> Any:
    """Value of a dotted key; None where it is not there."""
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def present(values: Mapping[str, Any], key: str) -> bool:
    """Whether a dotted key is there, if only with null."""
    section, _, name = key.rpartition(".")
    holder = lookup(values, section) if section else values
    return isinstance(holder, dict) and name in holder


def nested(flat: Mapping[str, Any]) -> Mappings:
    """Sections from dotted keys."""
    out: Mappings = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        holder = out
        for section in sections:
            holder = holder.setdefault(section, {})
            if not isinstance(holder, dict):
                raise InputError(f"'{shortened(key)}': '{shortened(section)}' holds a value, not further keys")
        holder[name] = value
    return out


def without(values: Mapping[str, Any], key: str) -> Mappings:
    """A copy that lacks a dotted key."""
    section, _, rest = key.partition(".")
    out = dict(values)
    if rest and isinstance(out.get(section), dict):
        out[section] = without(out[section], rest)
    elif not rest:
        out.pop(section, None)
    return out


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
    values, given = tree.values, dict(tree.given)
    for text in overrides:
        found = _OVERRIDE.match(text)
        if found is None or (found["value"] is None and found["sign"] != "~"):
            if where:
                continue
            raise InputError(f"override '{shortened(text)}' is not KEY=VALUE, +KEY=VALUE, ++KEY=VALUE or ~KEY")
        sign, key = found["sign"], found["key"]
        if sign in ("", "~") and not where and not present(values, key) and (near := nearest(key)) != key:
            hint = f"; did you mean '{near}'?" if near else ""
            raise InputError(f"{tree.where}: override of unknown key '{shortened(key)}'{hint} (+KEY=VALUE adds a key)")
        if sign == "~":
            values = without(values, key)
            given = {name: origin for name, origin in given.items() if not f"{name}.".startswith(f"{key}.")}
            continue
        try:
            value = _value(found["value"], text)
        except InputError:
            if not where:
                raise
            value = found["value"]
        if not sign and isinstance(value, str) and isinstance(lookup(values, key), dict):
            continue  # an option of one of Hydra's groups, whose file was read in its place: engine=fsdp
        above = nested({key: value})
        values = merged(values, above)
        given |= dict.fromkeys((name for name, _ in leaves(above)), where or COMMAND_LINE)
    check_bounds(values, tree.where)
    return ConfigTree(tree.where, values, given, tree.notes)


def _value(given: str, text: str) -> object:
    if given.startswith("${"):
        return given
    spaced = _TIGHT_COLON.sub(r"\1: ", given) if given.startswith(("{", "[")) else given
    return parse_value(spaced, f"override {shortened(text)}")
