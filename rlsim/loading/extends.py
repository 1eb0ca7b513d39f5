"""Scenarios that extend others: ``extends: base.yaml``, or the name of a scenario that comes with rlsim."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.files.yaml import parse_yaml
from rlsim.loading.document import anchor_files, anchor_references, apply_settings
from rlsim.loading.overrides import Places, settings_of

EXTENDS = "extends"
"""Key of a file that names the scenario which it changes."""
MAX_PARENTS = 8
"""Longest chain of files that extend each other."""


@dataclass(frozen=True)
class _File:
    """One file of a chain. where: its name in messages; folder: what relative paths in it count from."""

    where: str
    text: str
    document: dict[str, Any]
    folder: Path | None


def with_parents(
    document: dict[str, Any], text: str, where: str, folder: Path | None, path: Path | None = None
) -> tuple[dict[str, Any], Places]:
    """What a file says together with those that it extends, and where all of it stands.

    Mappings are merged key by key, everything else replaces what the parent has, as ``--set`` would; an empty mapping
    changes nothing. Assumptions of the parent about keys that the file changes fall, the others stand before its own.
    Relative paths count from the file that they are written in. document: of ``text``; path: of the file, where it is
    one. Raises InputError for a parent that cannot be read, a cycle and more than ``MAX_PARENTS``.
    """
    if EXTENDS not in document:
        return document, Places(where, ((where, text),))
    chain = _chain(_File(where, text, document, folder), path)
    places = Places(where, tuple((file.where, file.text) for file in chain))
    for file in chain:
        anchor_references(file.document, file.folder, places)
        anchor_files(file.document, file.folder, places)
    merged = chain[-1].document
    for file in reversed(chain[:-1]):
        merged = _merged(merged, file, places)
    return merged, places


def _chain(first: _File, path: Path | None) -> list[_File]:
    """The file and those that it extends, nearest first; each loses the key that names the next."""
    chain, seen = [first], [] if path is None else [path.resolve()]
    while EXTENDS in chain[-1].document:
        file = chain[-1]
        with Places(file.where, ((file.where, file.text),)).at(EXTENDS):
            reference = file.document.pop(EXTENDS)
            if not isinstance(reference, str) or not reference:
                got = shortened(repr(reference))
                raise InputError(f"must be a file or the name of a scenario, got {got}")
            known, folder = catalogue("scenarios"), file.folder
            parent = as_path(reference, YAML_SUFFIXES, folder) or find_entry(reference, known, "scenario")
            where = shown_path(parent)
            # Before the length of the chain, or every circle would be called too long a chain.
            if parent.resolve() in seen:
                circle = " -> ".join(shortened(one) for one in (*(file.where for file in chain[-MAX_PARENTS:]), where))
                raise InputError(f"the files extend each other in a circle ({circle})")
            if len(chain) > MAX_PARENTS:
                raise InputError(f"more than {MAX_PARENTS} files extend each other")
            # Resolved: links and relative parts may name one file in several ways.
            seen.append(parent.resolve())
            text = read_text(parent, DOCUMENT_BYTES)
        chain.append(_File(where, text, parse_yaml(text, where), parent.parent))
    return chain


def _merged(parent: dict[str, Any], file: _File, places: Places) -> dict[str, Any]:
    """The parent's document with what the file says."""
    own = dict(file.document)
    assumptions = own.pop("assumptions", ())
    # {} is left out, which as an override would take a section back to its defaults.
    given = [setting for setting in settings_of([own]) if setting.value != {}]
    document = dict(parent)
    anothers = apply_settings(document, given, places, file.folder, given)
    if anothers:
        raise InputError(anothers)
    inherited = document.get("assumptions") or []
    if isinstance(inherited, list) and isinstance(assumptions, list | tuple):
        document["assumptions"] = [*inherited, *assumptions]
    else:  # validation says what is wrong with it
        document["assumptions"] = assumptions if not isinstance(assumptions, tuple) else inherited
    return document
