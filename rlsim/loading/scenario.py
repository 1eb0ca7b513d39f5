"""From what a user wrote to a checked Scenario: references, ``--set`` overrides, and the way back to YAML."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlsim.errors import InputError, shortened
from rlsim.files.lookup import YAML_SUFFIXES, catalogue, find_entry, length_file
from rlsim.files.reading import DOCUMENT_BYTES, delivered, installed_version, read_text, shown_path
from rlsim.files.yaml import dump_yaml, parse_yaml, read_yaml
from rlsim.loading.document import (
    DESCRIBED,
    DRAWN_KEYS,
    REFERENCES,
    anchor_files,
    apply_settings,
    holder_of,
    name_parameters,
    referred,
    resolve_pools,
    state_tower,
    traces,
)
from rlsim.loading.extends import EXTENDS, with_parents
from rlsim.loading.overrides import Places, Setting, prefixes, settings_of
from rlsim.loading.variation import WORDS, has_words, without_words
from rlsim.parameters.posterior import DEFAULT as DEFAULT_POSTERIOR
from rlsim.parameters.posterior import evidence_path, posterior_digest
from rlsim.parameters.sets import SETS, own_sets
from rlsim.parameters.users import DEFAULT as DEFAULT_USERS
from rlsim.parameters.users import user_runs_digest
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.messages import as_input_error, is_key, unknown_key
from rlsim.schema.scenario import Scenario
from rlsim.tables.fingerprint import file_digest, tables_digest

DIGEST_CHARACTERS = 16
"""Characters of a scenario's digest: 64 bits of its SHA-256, enough to tell scenarios apart in file names."""

FOREIGN_SUFFIXES = (".md", ".py", ".txt", ".csv", ".ipynb", ".html", ".png")
"""Files that are no scenario, whatever they hold."""


def load_scenario(
    path_or_name: str | Path | Mapping[str, Any],
    overrides: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = (),
) -> Scenario:
    """Scenario from a YAML file, by name one of those that come with rlsim (``quickstart``), or from a mapping of what
    a file would hold (``{"extends": "quickstart", "model": "qwen3-8b"}``), whose relative paths count from here.

    overrides: ``a.b.c=value`` each, the value read as YAML, or mappings as of :func:`vary`; later ones win, and the
    whole is validated again.
    Words are overrides too (:mod:`rlsim.loading.variation`: ``k=5``, ``lag=1``). ``model``, ``hardware`` and
    ``speculation.draft`` may be a name, a path or an inline mapping; relative paths count from the scenario's folder
    first, then from the current one. A file may change another: ``extends`` (:mod:`rlsim.loading.extends`). Raises
    InputError naming file, line, key and bound.
    """
    given = [overrides] if isinstance(overrides, str | Mapping) else overrides
    if isinstance(path_or_name, Mapping):
        document = {"name": "mapping", **_plain(path_or_name)}
        return _of_document(*with_parents(document, "", "the scenario", Path()), Path(), given)
    path = find_scenario(path_or_name)
    if path.is_file() and path.suffix.lower() in FOREIGN_SUFFIXES:
        raise InputError(f"{shown_path(path)}: a scenario is a YAML file ({path.suffix} is none); rlsim new writes one")
    text, where = read_text(path, DOCUMENT_BYTES), shown_path(path)
    if not delivered(path):
        return scenario_of_text(text, where, path.parent, given, path)
    return _of_document(*with_parents(read_yaml(path), text, where, path.parent, path), path.parent, given)


def as_scenario(scenario: Scenario | Path | str) -> Scenario:
    """The scenario itself, or the one of that path or name: what every function of the library's front door takes."""
    return scenario if isinstance(scenario, Scenario) else load_scenario(scenario)


def _plain(value: Any) -> Any:
    """A document as a file would give it: sequences as lists, paths as text, nothing shared with the caller."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def scenario_of_text(
    text: str,
    where: str,
    folder: Path | None = None,
    overrides: Sequence[str | Mapping[str, Any]] = (),
    path: Path | None = None,
) -> Scenario:
    """Scenario of a YAML document; where: its origin in messages; folder: what relative paths in it count from.

    path: of the file that holds it, which it must not extend.
    """
    return _of_document(*with_parents(parse_yaml(text, where), text, where, folder, path), folder, overrides)


def _of_document(
    document: dict[str, Any], places: Places, folder: Path | None, overrides: Sequence[str | Mapping[str, Any]]
) -> Scenario:
    """Scenario of a whole document with overrides."""
    given: Sequence[Setting] = settings_of(overrides)
    if has_words(given):
        given = _worded(document, places, folder, given)
    return _assemble(document, replace(places, given=given), folder)


def _worded(
    document: dict[str, Any], places: Places, folder: Path | None, given: Sequence[Setting]
) -> Sequence[Setting]:
    """``given`` without words, which mean something on the scenario that the document is without overrides."""
    try:
        # A copy, since assembling fills references in place, and the document is assembled again with its settings.
        base = _assemble(deepcopy(document), places, folder)
    except InputError:
        if any(setting.key in WORDS for setting in given):
            raise
        return given  # a size alone, in a file that is no scenario without its overrides
    return without_words(base, given, replace(places, given=given).before)


def places_of(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Places:
    """Where the keys of a scenario stand that :func:`load_scenario` reads. Raises InputError."""
    path = find_scenario(path_or_name)
    text, where = read_text(path, DOCUMENT_BYTES), shown_path(path)
    _, places = with_parents(parse_yaml(text, where), text, where, path.parent, path)
    return replace(places, given=settings_of(overrides))


def vary(scenario: Scenario, *overrides: str | Mapping[str, Any]) -> Scenario:
    """A copy of ``scenario`` with overrides, validated like a file; later ones win. Raises InputError.

    overrides: ``"a.b=value"``, the value read as YAML, or mappings ``{"a.b": value}`` and ``{"a": {"b": value}}``,
    whose values are taken as they are; a section keeps the keys that a mapping does not name, and an empty mapping
    takes it back to its defaults.
    """
    given = settings_of(overrides)
    where = f"scenario '{shortened(scenario.name)}'"
    if has_words(given):
        given = without_words(scenario, given, Places(where, given=given).before)
    return _assemble(_opened(scenario, given), Places(where, given=given), None)


def find_scenario(path_or_name: str | Path) -> Path:
    """The path as given where it exists, else the scenario of that name that comes with rlsim.

    The name may carry the folder ``scenarios/`` and the suffix ``.yaml``. Raises InputError with the nearest names.
    """
    given = Path(path_or_name)
    if given.exists() or given.is_absolute() or given.suffix not in ("", *YAML_SUFFIXES):
        return given
    # Any other folder is a path that is not there, and no name in disguise.
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
    fitted, simulation = own_sets(scenario), scenario.simulation
    own = simulation.model_dump(mode="json", exclude={"posterior", *SETS.values()})
    if simulation.measured_stack is None:
        del own["measured_stack"]  # scenarios of before have no such key
    own["user_runs"] = user_runs_digest(simulation.user_runs or DEFAULT_USERS)
    if scenario.training_stack is None or scenario.training_stack.tuned:
        del own["user_runs"]  # tuned stacks have no part in it
    own["posterior"] = posterior_digest(simulation.posterior or DEFAULT_POSTERIOR)
    # Answers name their nearest measured runs, which are read from there.
    own["evidence"] = file_digest(evidence_path())
    sets = {SETS[name]: _canonical_of(one) for name, one in fitted.sets.items()}
    content = {
        name: _canonical_of(section) if isinstance(section, BaseModel) else _canonical(section)
        for name, section in scenario
        if name not in ("question", *DESCRIBED, "pools", "simulation")
    }
    if scenario.pools:
        content["pools"] = _canonical([pool.model_dump(mode="json") for pool in scenario.pools])
    else:  # scenarios of before have no such keys
        content["cluster"] = _canonical(scenario.cluster.model_dump(mode="json", exclude={"pool_gpus"}))
    content["simulation"] = _joined({**{name: _canonical(value) for name, value in own.items()}, **sets})
    content["hardware"] = _of_device(scenario.hardware)
    if scenario.training_hardware is None:
        del content["training_hardware"]  # scenarios of before have no such key
    else:
        content["training_hardware"] = _of_device(scenario.training_hardware)
    # Asked of the text: a search takes the digest of thousands of scenarios, of which few have traces.
    if '"kind":"trace"' in content["workload"]:
        workload = scenario.workload.model_dump(mode="json")
        for length in traces({"workload": workload}):
            trace = length_file(length["path"])
            if trace is not None:
                length["path"] = file_digest(trace)
        content["workload"] = _canonical(workload)
    # Another version may answer the same scenario otherwise.
    content["rlsim"] = _canonical(installed_version())
    return hashlib.sha256(_joined(content).encode()).hexdigest()[:DIGEST_CHARACTERS]


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _canonical_of(record: BaseModel) -> str:
    """JSON of a record; a search asks for thousands of scenarios that share most of theirs."""
    return _canonical(record.model_dump(mode="json"))


def _joined(texts: Mapping[str, str]) -> str:
    """JSON of a mapping whose values are JSON already."""
    return "{" + ",".join(f'"{name}":{texts[name]}' for name in sorted(texts)) + "}"


def _of_device(profile: HardwareProfile) -> str:
    """JSON of a profile with the content of its operator tables in place of their name."""
    return _canonical({**profile.model_dump(mode="json"), "operator_tables": tables_digest(profile)})


def dump_scenario(scenario: Scenario) -> str:
    """YAML that loads to an equal Scenario: references inline, defaults written out, keys in the schema's order."""
    return dump_yaml(scenario)


def scenario_json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file for editors; unlike a resolved Scenario it takes names and paths as references."""
    from rlsim.schema.keys import described  # reads sources, which no other command needs

    schema = described(Scenario).model_json_schema()
    for path in (*REFERENCES, "pool.model"):  # a pool's too (resolve_pools)
        *section, key = path.split(".")
        owner = schema["$defs"][section[0].capitalize()] if section else schema
        inline = owner["properties"][key]
        words = {name: inline.pop(name) for name in ("description", "default") if name in inline}
        owner["properties"][key] = {"anyOf": [{"type": "string"}, *inline.get("anyOf", [inline])], **words}
    _let_extend(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _let_extend(schema: dict[str, Any]) -> None:
    """Let a file extend another: then no key is required, neither here nor in the sections."""
    needed: dict[str, Any] = {"required": schema.pop("required"), "properties": {}}
    for name, section in schema["properties"].items():
        required = schema["$defs"].get(section.get("$ref", "").rpartition("/")[2], {}).pop("required", None)
        if required:
            needed["properties"][name] = {"required": required}
    extended = "Scenario that this file changes: a path, counted from its folder, or the name of a bundled one."
    schema["properties"] = {EXTENDS: {"type": "string", "description": extended}, **schema["properties"]}
    schema |= {"if": {"required": [EXTENDS]}, "else": needed}


def _assemble(document: dict[str, Any], places: Places, folder: Path | None) -> Scenario:
    """The scenario of ``document`` under the overrides of ``places``; folder: what relative paths count from."""
    anothers = apply_settings(document, places.given, places, folder, places.given if places.files else ())
    name_parameters(document)
    state_tower(document)
    for path in REFERENCES:
        holder, key = holder_of(document, path)
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            holder[key] = referred(path, holder[key], places, folder)
    resolve_pools(document, places, folder)
    anchor_files(document, folder, places)
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as error:
        raise as_input_error(error, places.origin, Scenario, places.place) from error
    if anothers:
        raise InputError(anothers)
    for section in DESCRIBED:
        for number, entry in enumerate(getattr(scenario, section)):
            unknown = next((key for key in entry.keys if not is_key(key, Scenario)), None)
            if unknown is not None:
                raise InputError(places.message(f"{section}[{number}]", unknown_key(unknown, Scenario)))
    return scenario


def _opened(scenario: Scenario, given: Sequence[Setting]) -> dict[str, Any]:
    """``scenario`` as a document whose sections on the way to ``given`` keys are mappings.

    All others stay the checked records they are: a search varies a scenario thousands of times in a few keys.
    """
    document = {**vars(scenario), **{name: list(getattr(scenario, name)) for name in DESCRIBED}}
    keys = [setting.key for setting in given]
    # Distributions become mappings too, since a change of their kind empties them (_drop_other_kinds).
    if any(key.partition(".")[0] == "workload" for key in keys):
        keys += [f"workload.{name}" for name in DRAWN_KEYS]
    for path in dict.fromkeys(prefix for key in keys for prefix in prefixes(key)):
        holder, part = holder_of(document, path)
        section = holder.get(part) if isinstance(holder, dict) else None
        if isinstance(section, BaseModel | dict):
            holder[part] = dict(section if isinstance(section, dict) else vars(section))
    return document
