"""From what a user wrote to a checked Scenario: references, ``--set`` overrides, and the way back to YAML."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlsim.datafiles import DOCUMENT_BYTES, read_text, shown_path
from rlsim.errors import InputError, shortened
from rlsim.hardware.cards import load_card
from rlsim.hardware.fingerprint import file_digest, tables_digest
from rlsim.hardware.lookup import YAML_SUFFIXES, as_path, catalogue, delivered_lengths, find_entry, length_file
from rlsim.hardware.parameters import (
    DEFAULT,
    DEFAULT_ENGINES,
    DEFAULT_STACK,
    DEFAULT_TRAINING,
    DEFAULT_TRANSFERS,
    load_engine_parameters,
    load_parameters,
    load_stack,
    load_training_parameters,
    load_transfer_parameters,
    own_sets,
)
from rlsim.hardware.posterior import DEFAULT as DEFAULT_POSTERIOR
from rlsim.hardware.posterior import SUFFIX, load_posterior, posterior_digest
from rlsim.hardware.profile import anchored_tables, load_profile
from rlsim.loading_overrides import Setting, settings_of, told
from rlsim.loading_yaml import dump_yaml, line_finder, parse_yaml, read_yaml
from rlsim.schema.drafter import draft_model_from_card
from rlsim.schema.messages import as_input_error, is_key, unknown_key
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation

DRAWN_KEYS = (
    "prompt_tokens",
    "response_tokens",
    "agent.turns",
    "agent.observation_tokens",
    "agent.environment_s",
    "agent.judge.trajectory_s",
)
"""Keys of the workload that hold a distribution, a record with its kind."""
DIGEST_CHARACTERS = 16
"""Characters of a scenario's digest: 64 bits of its SHA-256, enough to tell scenarios apart in file names."""


def load_scenario(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Scenario from a YAML file, or by name one of those that come with rlsim (``quickstart``).

    overrides: ``a.b.c=value`` each, the value read as YAML; later ones win, and the whole is validated again.
    ``model``, ``hardware`` and ``speculation.draft`` may be a name, a path or an inline mapping; relative paths count
    from the scenario's folder first, then from the current one. Raises InputError naming file, key and bound.
    """
    path = find_scenario(path_or_name)
    return scenario_of_text(read_text(path, DOCUMENT_BYTES), shown_path(path), path.parent, overrides)


def scenario_of_text(text: str, where: str, folder: Path | None = None, overrides: Sequence[str] = ()) -> Scenario:
    """Scenario of a YAML document; where: its origin in messages; folder: what relative paths in it count from."""
    return _assemble(parse_yaml(text, where), settings_of(overrides), where, folder, text)


def vary(scenario: Scenario, *overrides: str | Mapping[str, Any]) -> Scenario:
    """A copy of ``scenario`` with overrides, validated like a file; later ones win. Raises InputError.

    overrides: ``"a.b=value"``, the value read as YAML, or mappings ``{"a.b": value}`` and ``{"a": {"b": value}}``,
    whose values are taken as they are; a section keeps the keys that a mapping does not name.
    """
    given = settings_of(overrides)
    return _assemble(_opened(scenario, given), given, f"scenario '{shortened(scenario.name)}'", None)


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
        raise InputError(f"{shown_path(given)}: no such file, and {error}") from error


def scenario_digest(scenario: Scenario) -> str:
    """Digest of everything the answer depends on, and of the scenario's name.

    Files count by their content, not by where they lie: length traces and every folder of operator tables that this
    scenario opens. The default parameters count by their values. Question and assumptions do not count.
    """
    from rlsim import __version__

    content = scenario.model_dump(mode="json", exclude={"question", "assumptions"})
    fitted = own_sets(scenario)
    content["simulation"]["parameters"] = fitted.steps.model_dump(mode="json")
    content["simulation"]["engine_parameters"] = fitted.engines.model_dump(mode="json")
    content["simulation"]["training_parameters"] = fitted.training.model_dump(mode="json")
    content["simulation"]["transfer_parameters"] = fitted.transfers.model_dump(mode="json")
    content["simulation"]["posterior"] = posterior_digest(scenario.simulation.posterior or DEFAULT_POSTERIOR)
    content["hardware"]["operator_tables"] = tables_digest(scenario.hardware)
    if scenario.workload.agent is None:
        del content["workload"]["agent"]  # scenarios that use neither keep the digests they had before
    if scenario.loop.start_unit == "group":
        del content["loop"]["start_unit"]
    _forget_unused(content["speculation"])
    if scenario.run is None:
        del content["run"]
    for length in _traces(content):
        trace = length_file(length["path"])
        if trace is not None:
            length["path"] = file_digest(trace)
    content["rlsim"] = __version__
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_CHARACTERS]


_NEWER_KEYS = (
    "online_interval_steps", "online_packing", "variation", "sampling", "drift", "policy", "off_above_sequences",
)  # fmt: skip
"""Keys of speculation that came after the first digests; at their defaults they count for nothing."""


def _forget_unused(speculation: dict[str, Any]) -> None:
    """Leave out the newer keys at their defaults, so that scenarios without them keep the digests they had."""
    for name in _NEWER_KEYS:
        if speculation[name] == Speculation.model_fields[name].default:
            del speculation[name]


def dump_scenario(scenario: Scenario) -> str:
    """YAML that loads to an equal Scenario: references inline, defaults written out, keys in the schema's order."""
    return dump_yaml(scenario)


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
    document: dict[str, Any],
    given: Sequence[Setting],
    where: str,
    folder: Path | None,
    text: str = "",
) -> Scenario:
    """The scenario of ``document`` under overrides; text: the YAML it was read from, for the lines of messages."""
    origin = f"{where} with {told(given)}" if given else where
    changed = [setting.key for setting in given]
    _name_parameters(document)
    _drop_other_kinds(document, given)
    opened: dict[str, dict[str, Any]] = {}
    for setting in given:
        _apply(document, setting, opened, origin, folder)
    _drop_stale_words(document, changed, given if text else ())
    _name_parameters(document)
    for path in _REFERENCES:
        *section, key = path.split(".")
        holder = document.get(section[0]) if section else document
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            holder[key] = _resolve(path, holder[key], origin, folder)
    _anchor_files(document, folder, origin)
    _anchor_posterior(document, folder, origin)
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as error:
        raise as_input_error(error, origin, Scenario, _line_finder(text, changed)) from error
    for number, assumption in enumerate(scenario.assumptions):
        unknown = next((key for key in assumption.keys if not is_key(key, Scenario)), None)
        if unknown is not None:
            raise InputError(f"{origin}: assumptions[{number}]: {unknown_key(unknown, Scenario)}")
    return scenario


def _line_finder(text: str, changed: Sequence[str]) -> Callable[[str], int | None]:
    """Lines of keys in ``text``; none for keys that an override has set."""
    find = line_finder(text) if text else None
    return lambda key: None if find is None or any(_same_branch(key, other) for other in changed) else find(key)


@lru_cache(maxsize=4096)
def _prefixes(key: str) -> tuple[str, ...]:
    """A dotted key and the sections that it lies in."""
    parts = key.split(".")
    return tuple(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _same_branch(key: str, other: str) -> bool:
    """Whether one of two dotted keys is, or lies below, the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _name_parameters(document: dict[str, Any]) -> None:
    """Put the names of the default stack and of the default parameters where none are given."""
    if document.get("stack") is None:
        document["stack"] = DEFAULT_STACK
    simulation = document.setdefault("simulation", {})
    if isinstance(simulation, dict):
        defaults = {
            "parameters": DEFAULT,
            "engine_parameters": DEFAULT_ENGINES,
            "training_parameters": DEFAULT_TRAINING,
            "transfer_parameters": DEFAULT_TRANSFERS,
            "posterior": DEFAULT_POSTERIOR,
        }
        missing = {key: name for key, name in defaults.items() if simulation.get(key) is None}
        document["simulation"] = {**simulation, **missing}


def _drop_other_kinds(document: dict[str, Any], given: Sequence[Setting]) -> None:
    """A length whose kind an override changes keeps none of its keys: they describe another distribution."""
    kinds = {setting.key: setting.value for setting in given}
    for name, owner, key in _drawn(document):
        wanted = kinds.get(f"workload.{name}.kind")
        if wanted is not None and isinstance(owner[key], dict) and owner[key].get("kind") != wanted:
            owner[key] = {}


def _drop_stale_words(document: dict[str, Any], changed: Sequence[str], told: Sequence[Setting]) -> None:
    """Assumptions about keys that an override changes fall, and the question gives way to the overrides in ``told``."""
    given = document.get("assumptions")
    above = {prefix for key in changed for prefix in _prefixes(key)}
    below = set(changed)

    def _in_branch(key: str) -> bool:
        return key in above or any(prefix in below for prefix in _prefixes(key))

    if isinstance(given, list) and "assumptions" not in changed:
        document["assumptions"] = [
            entry for entry in given if not any(_in_branch(str(key)) for key in _keys_told(entry))
        ]
    telling = [key for key in changed if key.split(".")[0] not in ("name", "question", "assumptions", "simulation")]
    if telling and "question" not in changed and isinstance(document.get("name"), str | None):
        shown = [setting.text for setting in told if setting.key in telling]
        document["question"] = shortened(f"{document.get('name')} with {', '.join(shown)}", 200) if shown else ""


def _keys_told(assumption: object) -> Sequence[object]:
    """Keys that an assumption speaks of, a checked record or what a file holds in its place."""
    keys = assumption.get("keys") if isinstance(assumption, dict) else getattr(assumption, "keys", None)
    return keys if isinstance(keys, list | tuple) else ()


def _opened(scenario: Scenario, given: Sequence[Setting]) -> dict[str, Any]:
    """``scenario`` as a document whose sections on the way to ``given`` keys are mappings.

    All others stay the checked records they are: a search varies a scenario thousands of times in a few keys.
    """
    document = {**vars(scenario), "assumptions": list(scenario.assumptions)}
    for path in dict.fromkeys(prefix for setting in given for prefix in _prefixes(setting.key)):
        holder: Any = document
        *above, part = path.split(".")
        for name in above:
            holder = holder.get(name) if isinstance(holder, dict) else None
        section = holder.get(part) if isinstance(holder, dict) else None
        if isinstance(section, BaseModel | dict):
            holder[part] = dict(section if isinstance(section, dict) else vars(section))
    if isinstance(document["workload"], dict):
        for name in DRAWN_KEYS:
            holder = document["workload"]
            for part in name.split("."):
                if not isinstance(holder.get(part), BaseModel | dict):
                    break
                holder[part] = holder = dict(holder[part])
    return document


def _apply(
    document: dict[str, Any], setting: Setting, opened: dict[str, dict[str, Any]], origin: str, folder: Path | None
) -> None:
    """Set one key; sections on the way are copied, so that YAML aliases of them keep their values.

    opened: sections by their keys that settings before this one have copied already.
    """
    *sections, key = setting.key.split(".")
    holder, path = document, ""
    for part in sections:
        path = f"{path}.{part}" if path else part
        section = holder.get(part)
        if isinstance(section, str) and path in _REFERENCES:
            section = _resolve(path, section, origin, folder)
        if not isinstance(section, dict | None):
            raise InputError(f"{origin}: '{shortened(path)}' holds a value, not further keys")
        if section is None or section is not opened.get(path):
            section = holder[part] = opened[path] = dict(section or {})
        holder = section
    holder[key] = setting.value


def _resolve(path: str, reference: str, origin: str, folder: Path | None) -> dict[str, Any]:
    try:
        return _REFERENCES[path](reference, folder)
    except InputError as error:
        raise InputError(f"{origin}: {path}: {error}") from error
    except (OSError, ValueError) as error:  # a NUL or whatever else the system refuses as a path
        raise InputError(f"{origin}: {path}: {shortened(repr(reference))} cannot be a path ({error})") from error


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
    "simulation.parameters": lambda reference, folder: load_parameters(reference, folder).model_dump(mode="json"),
    "simulation.engine_parameters": lambda reference, folder: load_engine_parameters(reference, folder).model_dump(
        mode="json"
    ),
    "simulation.training_parameters": lambda reference, folder: load_training_parameters(reference, folder).model_dump(
        mode="json"
    ),
    "stack": lambda reference, folder: load_stack(reference, folder).model_dump(mode="json"),
    "trainer.stack": lambda reference, folder: load_stack(reference, folder).model_dump(mode="json"),
    "simulation.transfer_parameters": lambda reference, folder: load_transfer_parameters(reference, folder).model_dump(
        mode="json"
    ),
}
"""Keys whose value may be a name or a path instead of a mapping."""


def _traces(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for _, owner, key in _drawn(document):
        length = owner[key]
        if isinstance(length, dict) and length.get("kind") == "trace" and isinstance(length.get("path"), str):
            yield length


def _drawn(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Distributions that a document's workload holds: name below the workload, the mapping that holds it, its key."""
    for name in DRAWN_KEYS:
        owner: Any = document.get("workload")
        *path, key = name.split(".")
        for part in path:
            owner = owner.get(part) if isinstance(owner, dict) else None
        if isinstance(owner, dict) and key in owner:
            yield name, owner, key


def _anchor_files(document: dict[str, Any], folder: Path | None, origin: str) -> None:
    """Traces and tables beside the scenario get their whole path, so that the scenario means the same from anywhere."""
    for length in _traces(document):
        found = length_file(length["path"], folder)
        if found is not None and found.parent != delivered_lengths():
            length["path"] = str(found.resolve())
    profile = document.get("hardware")
    if isinstance(profile, dict) and isinstance(profile.get("operator_tables"), str):
        try:
            profile["operator_tables"] = anchored_tables(profile["operator_tables"], folder or Path())
        except InputError as error:
            raise InputError(f"{origin}: hardware.{error}") from error


def _anchor_posterior(document: dict[str, Any], folder: Path | None, origin: str) -> None:
    """A posterior given by its file gets the whole path; one that cannot be read is told before anything runs."""
    simulation = document.get("simulation")
    given = simulation.get("posterior") if isinstance(simulation, dict) else None
    if not isinstance(simulation, dict) or not isinstance(given, str):
        return
    try:
        path = as_path(given, (SUFFIX,), folder)
        if path is not None:
            simulation["posterior"] = str(path.resolve())
        load_posterior(simulation["posterior"])
    except InputError as error:
        raise InputError(f"{origin}: simulation.posterior: {error}") from error
