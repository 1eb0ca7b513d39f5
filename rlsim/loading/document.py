"""A scenario as the plain mapping that a file holds: references, overrides of its keys, files that it names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlsim.errors import InputError, shortened
from rlsim.files.lookup import YAML_SUFFIXES, as_path, delivered_lengths, length_file
from rlsim.files.yaml import read_yaml
from rlsim.loading.models import lacking_tower, load_card, tower_of
from rlsim.loading.overrides import Places, Setting, prefixes
from rlsim.parameters.posterior import DEFAULT as DEFAULT_POSTERIOR
from rlsim.parameters.posterior import SUFFIX, load_posterior
from rlsim.parameters.sets import (
    DEFAULT,
    DEFAULT_ENGINES,
    DEFAULT_STACK,
    DEFAULT_TRAINING,
    DEFAULT_TRANSFERS,
    UNNAMED_STACK,
    load_engine_parameters,
    load_measured,
    load_parameters,
    load_stack,
    load_training_parameters,
    load_transfer_parameters,
)
from rlsim.schema.drafter import draft_model_from_card
from rlsim.schema.speculation import ACCEPTANCE_AT, ACCEPTANCE_KEYS, Speculation
from rlsim.tables.profile import anchored_tables, load_profile

DESCRIBED = ("assumptions", "missing")
"""Sections of sentences with the keys that they speak of."""
_SPOKEN_OF = ("keys", "belongs_to")
DRAWN_KEYS = (
    "prompt_tokens", "response_tokens", "agent.turns", "agent.observation_tokens", "agent.environment_s",
    "agent.start_s", "agent.judge.trajectory_s", "agent.replay",
)  # fmt: skip
"""Keys of the workload that hold a distribution, a record with its kind."""


def name_parameters(document: dict[str, Any]) -> None:
    """Put the names of the default stack and of the default parameters where none are given."""
    if document.get("stack") is None:
        engine = document.get("engine")
        served = isinstance(engine, dict) and engine.get("in_process") is False
        document["stack"] = UNNAMED_STACK if served else DEFAULT_STACK
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


def apply_settings(
    document: dict[str, Any], given: Sequence[Setting], places: Places, folder: Path | None, shown: Sequence[Setting]
) -> str:
    """Put settings into a document; folder: what relative paths count from; shown: settings that the question names.

    Returns what is wrong where a drafter would have the acceptance of another, else nothing.
    """
    changed = [setting.key for setting in given]
    name_parameters(document)
    _drop_other_kinds(document, given)
    opened: dict[str, dict[str, Any]] = {}
    # Settings copy the sections that they change, so that this stays the section as it was.
    before = document.get("speculation")
    for setting in given:
        _apply_setting(document, setting, opened, places, folder)
    anothers = _carry_acceptance(document, before, changed, places)
    _drop_stale_words(document, changed, shown)
    return anothers


def _drop_other_kinds(document: dict[str, Any], given: Sequence[Setting]) -> None:
    """A length whose kind an override changes keeps none of its keys: they describe another distribution."""
    kinds = {setting.key: setting.value for setting in given}
    for name, owner, key in drawn(document):
        wanted = kinds.get(f"workload.{name}.kind")
        if wanted is not None and isinstance(owner[key], dict) and owner[key].get("kind") != wanted:
            owner[key] = {}


def _drop_stale_words(document: dict[str, Any], changed: Sequence[str], shown: Sequence[Setting]) -> None:
    """Sentences about keys that an override changes fall; the question gives way to the overrides in ``shown``."""
    above = {prefix for key in changed for prefix in prefixes(key)}
    below = set(changed)

    def stale(entry: object) -> bool:
        """Whether an assumption, a checked record or what a file holds in its place, is about a changed key."""
        held = entry if isinstance(entry, dict) else {name: getattr(entry, name, None) for name in _SPOKEN_OF}
        lists = [keys for name in _SPOKEN_OF if isinstance(keys := held.get(name), list | tuple)]
        parts = [prefixes(str(key)) for keys in lists for key in keys]
        return any(part[-1] in above or not below.isdisjoint(part) for part in parts)

    for section in DESCRIBED:
        given = document.get(section)
        if isinstance(given, list) and section not in changed:
            document[section] = [entry for entry in given if not stale(entry)]
    # How much is simulated changes no question.
    telling = [key for key in changed if key.split(".")[0] not in ("name", "question", *DESCRIBED, "simulation")]
    if telling and "question" not in changed and isinstance(document.get("name"), str | None):
        texts = list(dict.fromkeys(setting.text for setting in shown if setting.key in telling))
        document["question"] = shortened(f"{document.get('name')} with {', '.join(texts)}", 200) if texts else ""


def _apply_setting(
    document: dict[str, Any], setting: Setting, opened: dict[str, dict[str, Any]], places: Places, folder: Path | None
) -> None:
    """Set one key; sections on the way are copied, so that YAML aliases of them keep their values.

    opened: sections by their keys that settings before this one have copied already.
    """
    *sections, key = setting.key.split(".")
    holder, path = document, ""
    for part in sections:
        path = f"{path}.{part}" if path else part
        section = holder.get(part)
        if isinstance(section, str) and path in REFERENCES:
            section = resolve(path, section, places, folder)
        if not isinstance(section, dict | None):
            raise InputError(f"{places.before}'{shortened(path)}' holds a value, not further keys")
        if section is None or section is not opened.get(path):
            section = holder[part] = opened[path] = dict(section or {})
        holder = section
    holder[key] = _in_section(holder.get(key), setting.value)


def _in_section(held: object, value: Any) -> Any:
    """``value`` within a section that it can only mean one key of: a number of a length or of a hardware value, and the
    method none of speculation; elsewhere ``value`` itself."""
    if not isinstance(held, dict | BaseModel) or isinstance(value, bool):
        return value
    section = dict(held)
    # Quantiles have a list of tokens, which no number replaces: their mean_tokens is meant.
    numbers = ("value", "mean_tokens", "tokens") if isinstance(value, int | float) else ()
    name = next((one for one in numbers if one in section and not isinstance(section[one], list | tuple)), None)
    if value == "none" and "method" in section:
        name = "method"
    return value if name is None else {**section, name: value}


def _carry_acceptance(document: dict[str, Any], before: object, changed: Sequence[str], places: Places) -> str:
    """Let a stated acceptance keep the draft length that it was stated at, where only the length changes; one that is
    stated anew replaces it.

    before: the section on speculation without the changes. Returns what is wrong where method or draft change and the
    acceptance of the former one would stay, else nothing.
    """
    section = document.get("speculation")
    given = {key.removeprefix("speculation.") for key in changed if key.startswith("speculation.")}
    old = dict(before) if isinstance(before, dict | Speculation) else {}
    stated = next((key for key in ACCEPTANCE_KEYS if old.get(key) is not None), None)
    if not isinstance(section, dict) or stated is None or "speculation" in changed:
        return ""
    if given.intersection(ACCEPTANCE_KEYS):
        anew = any(section.get(key) is not None for key in given.intersection(ACCEPTANCE_KEYS))
        replaced = (*ACCEPTANCE_KEYS, ACCEPTANCE_AT) if anew else (ACCEPTANCE_AT,)
        section.update({key: None for key in replaced if key not in given and key in section})
        return ""
    length = old.get("draft_length")
    if "draft_length" in given and ACCEPTANCE_AT not in given and stated != "first_acceptance" and length:
        at = old.get(ACCEPTANCE_AT) or length
        # None where both agree: the scenario then equals one in which the length never changed.
        section[ACCEPTANCE_AT] = None if at == section.get("draft_length") else at
    return _anothers(section, old, stated, given, places)


def _anothers(section: Mapping[str, Any], old: Mapping[str, Any], stated: str, given: set[str], places: Places) -> str:
    """What is wrong where a drafter would have the acceptance that was stated for another."""
    method, former = section.get("method"), old.get("method", "none")
    other = {"method": method != former and former != "none", "draft": old.get("draft") is not None}
    key = next((key for key, differs in other.items() if key in given and differs), None)
    # Whoever switches drafts off states no acceptance for anything.
    if key is None or method in (None, "none") or not section.get("draft_length"):
        return ""
    value = old[stated]
    shown = f"[{', '.join(f'{each:g}' for each in value)}]" if isinstance(value, list | tuple) else value
    return places.message(
        f"speculation.{key}",
        f"{stated} {shown} was stated for another drafter ({former}); state that of this one beside it, such as "
        f"speculation.{stated}={shown} if it is the same",
    )


def resolve(path: str, reference: str, places: Places, folder: Path | None) -> dict[str, Any]:
    """What the key ``path`` names, as a mapping. Raises InputError naming place and key."""
    found = referred(path, reference, places, folder)
    return found.model_dump(mode="json") if isinstance(found, BaseModel) else found


def referred(path: str, reference: str, places: Places, folder: Path | None) -> BaseModel | dict[str, Any]:
    """The same as the checked record that it is, where nothing in it is overridden."""
    with places.at(path):
        try:
            return REFERENCES[path](reference, folder)
        except (OSError, ValueError) as error:  # a NUL or whatever else the system refuses as a path
            raise InputError(f"{shortened(repr(reference))} cannot be a path ({error})") from error


def _load_draft(reference: str, folder: Path | None) -> BaseModel | dict[str, Any]:
    """A drafter card file (it has ``kind``), or any dense model card as an external draft model."""
    path = as_path(reference, YAML_SUFFIXES, folder)
    # Drafter cards have a kind and model cards have none: one key takes both.
    if path is not None and path.suffix in YAML_SUFFIXES:
        card = read_yaml(path)
        if "kind" in card:
            return card
    return draft_model_from_card(load_card(reference, folder))


REFERENCES: dict[str, Callable[[str, Path | None], BaseModel | dict[str, Any]]] = {
    "model": load_card,
    "hardware": load_profile,
    "training_hardware": load_profile,
    "speculation.draft": _load_draft,
    "simulation.parameters": load_parameters,
    "simulation.engine_parameters": load_engine_parameters,
    "simulation.training_parameters": load_training_parameters,
    "simulation.measured_stack": load_measured,
    "stack": load_stack,
    "trainer.stack": load_stack,
    "simulation.transfer_parameters": load_transfer_parameters,
}
"""Keys whose value may be a name or a path instead of a mapping."""


def state_tower(document: dict[str, Any]) -> None:
    """Say in ``missing`` what of a model that sees is not stated, where the model is given by its name."""
    model, given = document.get("model"), document.get("missing") or []
    if not isinstance(model, str) or not isinstance(given, list):
        return
    lacking = lacking_tower(model)
    if lacking is None or as_path(model, (*YAML_SUFFIXES, ".json"), None) is not None:
        return
    workload = document.get("workload")
    seen = tower_of(model) is not None and isinstance(workload, dict) and bool(workload.get("images"))
    others = [one for one in given if not (isinstance(one, dict) and one.get("part") == lacking["part"])]
    document["missing"] = others if seen else [*others, lacking]


def resolve_pools(document: dict[str, Any], places: Places, folder: Path | None) -> None:
    """Put cards in the place of the names of models of pools."""
    pools = document.get("pools")
    if isinstance(pools, list):
        document["pools"] = [
            {**pool, "model": referred("model", pool["model"], places, folder)}
            if isinstance(pool, dict) and isinstance(pool.get("model"), str)
            else pool
            for pool in pools
        ]


def traces(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Lengths of a document that are read from a file."""
    for _, owner, key in drawn(document):
        length = owner[key]
        if isinstance(length, dict) and length.get("kind") == "trace" and isinstance(length.get("path"), str):
            yield length


def drawn(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Distributions that a document's workload holds: name below the workload, the mapping that holds it, its key."""
    for name in DRAWN_KEYS:
        owner, key = holder_of(document, f"workload.{name}")
        if isinstance(owner, dict) and key in owner:
            yield name, owner, key


def holder_of(document: dict[str, Any], path: str) -> tuple[Any, str]:
    """What holds a dotted key in a document, None where a section on the way is none; and the key's last part."""
    *sections, key = path.split(".")
    holder: Any = document
    for name in sections:
        holder = holder.get(name) if isinstance(holder, dict) else None
    return holder, key


def anchor_references(document: dict[str, Any], folder: Path | None, places: Places) -> None:
    """References to files beside the scenario get their whole path, so that a file that extends it finds them."""
    for path in REFERENCES:
        holder, key = holder_of(document, path)
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            with places.at(path):
                found = as_path(holder[key], (*YAML_SUFFIXES, ".json"), folder)
            if found is not None and found.exists():
                value, section = str(found.resolve()), path.rpartition(".")[0]
                # Sections are copied, for YAML aliases share them.
                document |= {section: {**holder, key: value}} if section else {key: value}


def anchor_files(document: dict[str, Any], folder: Path | None, places: Places) -> None:
    """Traces and tables beside the scenario get their whole path, so that the scenario means the same from anywhere."""
    for length in traces(document):
        found = length_file(length["path"], folder)
        # Delivered tables keep their bare names, so that the scenario means the same in another installation.
        if found is not None and found.parent != delivered_lengths():
            length["path"] = str(found.resolve())
    for key in ("hardware", "training_hardware"):
        profile = document.get(key)
        if isinstance(profile, dict) and isinstance(profile.get("operator_tables"), str):
            try:
                profile["operator_tables"] = anchored_tables(profile["operator_tables"], folder or Path())
            except InputError as error:
                raise InputError(f"{places.before}{key}.{error}") from error
    _anchor_posterior(document, folder, places)


def _anchor_posterior(document: dict[str, Any], folder: Path | None, places: Places) -> None:
    """A posterior given by its file gets the whole path; one that cannot be read is refused before anything runs."""
    simulation = document.get("simulation")
    given = simulation.get("posterior") if isinstance(simulation, dict) else None
    if not isinstance(simulation, dict) or not isinstance(given, str):
        return
    with places.at("simulation.posterior"):
        path = as_path(given, (SUFFIX,), folder)
        if path is not None:
            simulation["posterior"] = str(path.resolve())
        load_posterior(simulation["posterior"])
