"""Strict YAML: what a person means by ``1e-6``, ``no`` and a repeated key, one message for the rest, and back."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, delivered, read_text, shown_path
from rlsim.files.yaml_rules import dump, load

MAX_NODES = 1_000_000
"""Values of one document after its aliases are expanded; guards against documents that grow without bound."""


def _count_nodes(value: Any, budget: int) -> int:
    """Nodes of ``value`` with shared parts counted every time; stops beyond ``budget``."""
    total, stack = 0, [value]
    while stack and total <= budget:
        item = stack.pop()
        total += 1
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return total


def parse_value(text: str, where: str, own: bool = False, numbered: bool = False) -> Any:
    """Any YAML value, read by the same rules; ``where`` names the origin in messages. Raises InputError.

    own: rlsim wrote it or comes with it. numbered: keys may be numbers and flags, which count as their texts.
    """
    value = load(text, where, own, numbered)
    if _count_nodes(value, MAX_NODES) > MAX_NODES:
        raise InputError(f"{where}: the document has more than {MAX_NODES} values once its aliases are expanded")
    return value


def parse_yaml(text: str, where: str, own: bool = False) -> dict[str, Any]:
    """Mapping of one YAML document; ``where`` names the origin in messages; own: it comes with rlsim.

    Raises InputError for duplicate keys, python tags, several documents, an empty document or one that is no mapping.
    """
    return mapping_of(parse_value(text, where, own), where)


def mapping_of(value: Any, where: str) -> dict[str, Any]:
    """The value of a document as a mapping. Raises InputError where it is none or empty."""
    if value is None:
        raise InputError(f"{where}: the document is empty; expected keys with values")
    if not isinstance(value, dict):
        given = "a list" if isinstance(value, list) else f"the single value {shortened(repr(value))}"
        raise InputError(f"{where}: expected a mapping of keys to values, got {given}")
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """Mapping of a YAML file; raises InputError naming the file (and the line) for whatever keeps it from being one."""
    return mapping_of(read_value(path), shown_path(path))


def read_value(path: Path) -> Any:
    """Any value of a YAML file; raises InputError."""
    return parse_value(read_text(path, DOCUMENT_BYTES), shown_path(path), own=delivered(path))


def lists_beside(module: str, name: str = "names.yaml") -> Mapping[str, Any]:
    """The mapping in the YAML file ``name`` beside a module of rlsim; module: its ``__file__``."""
    return _lists(Path(module).with_name(name))


@cache  # two modules of a room share one file
def _lists(path: Path) -> Mapping[str, Any]:
    return read_yaml(path)


def dump_yaml(record: BaseModel) -> str:
    """``record`` as YAML in the order of its schema, readable by rlsim's own strict reader."""
    return dump_document(record.model_dump(mode="json"))


def dump_document(document: Mapping[str, Any]) -> str:
    """Plain values as YAML in their own order, readable by rlsim's own strict reader."""
    return dump(document)
