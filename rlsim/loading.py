"""From what a user wrote to a checked Scenario: references, ``--set`` overrides, and the way back to YAML."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rlsim.errors import InputError
from rlsim.hardware.cards import load_card
from rlsim.hardware.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.hardware.profile import load_profile
from rlsim.loading_yaml import parse_value, read_yaml
from rlsim.schema.drafter import draft_model_from_card
from rlsim.schema.messages import as_input_error
from rlsim.schema.scenario import Scenario

DIGEST_CHARACTERS = 16
"""Characters of a scenario's digest: 64 bits of its SHA-256, enough to tell scenarios apart in file names."""


def load_scenario(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Scenario from a YAML file, or by name one of those that come with rlsim (``quickstart``).

    overrides: ``a.b.c=value`` each, the value read as YAML; later ones win, and the whole is validated again.
    ``model``, ``hardware`` and ``speculation.draft`` may be a name, a path or an inline mapping; relative paths count
    from the scenario's folder first, then from the current one. Raises InputError naming file, key and bound.
    """
    path = find_scenario(path_or_name)
    return _assemble(read_yaml(path), overrides, str(path), path.parent)


def vary(scenario: Scenario, *overrides: str | Mapping[str, Any]) -> Scenario:
    """A copy of ``scenario`` with overrides, validated like a file; later ones win. Raises InputError.

    overrides: ``"a.b=value"``, the value read as YAML, or mappings ``{"a.b": value}`` and ``{"a": {"b": value}}``,
    whose values are taken as they are; a section keeps the keys that a mapping does not name.
    """
    return _assemble(scenario.model_dump(mode="json"), overrides, f"scenario '{scenario.name}'", None)


def find_scenario(path_or_name: str | Path) -> Path:
    """The path as given where it exists, else the scenario of that name that comes with rlsim.

    The name may carry the folder ``scenarios/`` and the suffix ``.yaml``. Raises InputError with the nearest names.
    """
    given = Path(path_or_name)
    if given.exists() or given.is_absolute() or given.suffix not in ("", *YAML_SUFFIXES):
        return given
    if given.parent not in (Path(), Path("scenarios")):
        return given
    try:
        return find_entry(given.stem, catalogue("scenarios"), "scenario")
    except InputError as error:
        raise InputError(f"{given}: no such file, and {error}") from error


def scenario_digest(scenario: Scenario) -> str:
    """Digest of everything the answer depends on; a trace file counts by its content, not by where it lies."""
    content = scenario.model_dump(mode="json")
    for length in _traces(content):
        trace = Path(length["path"])
        if trace.is_file():
            length["path"] = hashlib.sha256(trace.read_bytes()).hexdigest()
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_CHARACTERS]


def dump_scenario(scenario: Scenario) -> str:
    """YAML that loads to an equal Scenario: references inline, defaults written out, keys in the schema's order."""
    return dump_yaml(scenario)


def dump_yaml(record: BaseModel) -> str:
    """``record`` as YAML in the order of its schema, readable by rlsim's own strict reader."""
    return yaml.dump(record.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def scenario_json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file for editors; unlike a resolved Scenario it takes names and paths as references."""
    schema = Scenario.model_json_schema()
    for path in _REFERENCES:
        *section, key = path.split(".")
        owner = schema["$defs"][section[0].capitalize()] if section else schema
        inline = owner["properties"][key]
        described = {name: inline.pop(name) for name in ("description", "default") if name in inline}
        owner["properties"][key] = {"anyOf": [{"type": "string"}, *inline.get("anyOf", [inline])], **described}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _assemble(
    document: dict[str, Any], overrides: Sequence[str | Mapping[str, Any]], where: str, folder: Path | None
) -> Scenario:
    given = [setting for override in overrides for setting in _settings(override)]
    origin = f"{where} with {', '.join(text for _, text, _ in given)}" if given else where
    for dotted, _, value in given:
        _apply(document, dotted, value, origin, folder)
    for path in _REFERENCES:
        *section, key = path.split(".")
        holder = document.get(section[0]) if section else document
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            holder[key] = _resolve(path, holder[key], origin, folder)
    _anchor_traces(document, folder)
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise as_input_error(error, origin, Scenario) from error


def _settings(override: str | Mapping[str, Any], section: str = "") -> Iterator[tuple[str, str, Any]]:
    """Dotted key, ``key=value`` as text, and value of every setting of one override."""
    if isinstance(override, str):
        dotted, equals, text = override.partition("=")
        if not equals or not all(dotted.strip().split(".")):
            raise InputError(f"'{override}' is not KEY=VALUE, such as engine.tensor_parallel=8")
        yield dotted.strip(), override, parse_value(text, f"--set {override}")
        return
    for key, value in override.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{section}{key}.")
        else:
            text = f"{section}{key}={json.dumps(value, default=str)}"
            yield f"{section}{key}", text, list(value) if isinstance(value, tuple) else value


def _apply(document: dict[str, Any], dotted: str, value: Any, origin: str, folder: Path | None) -> None:
    """Set one key; sections on the way are copied, so that YAML aliases of them keep their values."""
    parts = dotted.split(".")
    holder = document
    for depth, part in enumerate(parts[:-1], start=1):
        path = ".".join(parts[:depth])
        section = holder.get(part)
        if isinstance(section, str) and path in _REFERENCES:
            section = _resolve(path, section, origin, folder)
        if not isinstance(section, dict | None):
            raise InputError(f"{origin}: '{path}' holds a value, not further keys")
        holder[part] = holder = dict(section or {})
    holder[parts[-1]] = value


def _resolve(path: str, reference: str, origin: str, folder: Path | None) -> dict[str, Any]:
    try:
        return _REFERENCES[path](reference, folder)
    except InputError as error:
        raise InputError(f"{origin}: {path}: {error}") from error
    except (OSError, ValueError) as error:  # a NUL or whatever else the system refuses as a path
        raise InputError(f"{origin}: {path}: {reference!r} cannot be a path ({error})") from error


def _load_draft(reference: str, folder: Path | None) -> dict[str, Any]:
    """A drafter card file (it has ``kind``), or any dense model card as an external draft model."""
    path = as_path(reference, YAML_SUFFIXES, folder)
    if path is not None and path.suffix in YAML_SUFFIXES:
        card = read_yaml(path)
        if "kind" in card:
            return card
    return draft_model_from_card(load_card(reference, folder)).model_dump(mode="json")


_REFERENCES: dict[str, Callable[[str, Path | None], dict[str, Any]]] = {
    "model": lambda reference, folder: load_card(reference, folder).model_dump(mode="json"),
    "hardware": lambda reference, folder: load_profile(reference, folder).model_dump(mode="json"),
    "speculation.draft": _load_draft,
}
"""Keys whose value may be a name or a path instead of a mapping."""


def _traces(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    workload = document.get("workload")
    for key in ("prompt_tokens", "response_tokens"):
        length = workload.get(key) if isinstance(workload, dict) else None
        if isinstance(length, dict) and length.get("kind") == "trace" and isinstance(length.get("path"), str):
            yield length


def _anchor_traces(document: dict[str, Any], folder: Path | None) -> None:
    """Trace files beside the scenario get their whole path, so that the scenario means the same from anywhere."""
    for length in _traces(document):
        beside = (folder or Path()) / length["path"]
        if beside.is_file():
            length["path"] = str(beside.resolve())


class _Dumper(yaml.SafeDumper):
    """Quotes every text that rlsim's reader would take for a number, and keeps lists of numbers on one line."""


def _represent_list(dumper: _Dumper, items: list[Any]) -> yaml.Node:
    numbers = all(isinstance(item, int | float) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=numbers)


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    """Unprintable characters (line breaks of any kind) only survive escaped between double quotes."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


def _represent_float(dumper: _Dumper, value: float) -> yaml.Node:
    """The shorter of plain and scientific form, both exact: 72.0, 0.0015, 2.5e+15."""
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():e}".partition("e")
    scientific = f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent}"
    plain = repr(value)
    text = plain if len(plain) <= len(scientific) and "e" not in plain else scientific
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)
