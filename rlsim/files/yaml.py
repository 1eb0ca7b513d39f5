"""Strict YAML: what a person means by ``1e-6``, ``no`` and a repeated key, one message for the rest, and back."""

from __future__ import annotations

import marshal
import os
import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml
from pydantic import BaseModel

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, delivered, read_text, shown_path

MAX_NODES = 1_000_000
"""Values of one document after its aliases are expanded; guards against documents that grow without bound."""

_RULES = Path(__file__).stat()
"""What values of files were kept by; another edition of these rules reads them anew."""

_SCALARS: dict[str, tuple[str, Sequence[str]]] = {
    "int": (r"^[-+]?[0-9][0-9_]*$", "-+0123456789"),
    "float": (
        r"^(?:[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    "bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "null": (r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    "merge": (r"^<<$", "<"),
}
"""Scalars of YAML 1.2's core schema, and merge keys: how they look, and what they begin with."""


class _Strict:
    """YAML 1.2 core scalars: no octal, no sexagesimal, no dates, no yes/no; mappings without repeated keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        _reject_bad_keys(node)
        return cast(dict[Hashable, Any], super().construct_mapping(node, deep))  # type: ignore[misc]


class _Loader(_Strict, yaml.SafeLoader):
    """The rules in Python, with a guard against depth."""


class _NumberedLoader(_Loader):
    """The same rules, and any scalar as a key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith((":merge", ":str")):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


class _OwnFilesLoader(_Strict, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same rules by libyaml, ten times as fast. For files that come with rlsim: it has no guard against depth."""


def _reject_bad_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        if key.tag != "tag:yaml.org,2002:str":
            shown = shortened(repr(key.value)) if isinstance(key, yaml.ScalarNode) else "a collection"
            raise yaml.MarkedYAMLError(None, None, f"a key must be a name, got {shown}", key.start_mark)
        if key.value in seen:
            raise yaml.MarkedYAMLError(None, None, f"duplicate key '{shortened(key.value)}'", key.start_mark)
        seen.add(key.value)


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node).replace("_", ""))


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _loader in (_Loader, _NumberedLoader, _OwnFilesLoader):
    for _tag, (_pattern, _first) in _SCALARS.items():
        _loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))
    _loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
    _loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


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


def _describe(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error).splitlines()[0]
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "not valid YAML"
    if "'\\t'" in problem:
        problem = "a tab, which YAML does not take for indentation; use spaces"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


class Place(NamedTuple):
    """Where a key stands in a file, both counted from 1. exact: False where the section stands there and lacks it."""

    line: int
    column: int
    exact: bool

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


def place_finder(text: str) -> Callable[[str], Place | None]:
    """A function from a dotted key of the document ``text`` to its place; where the document lacks it, its section's.

    It gives None for a key whose section is not there either.
    """
    root = yaml.compose(text, Loader=_Loader)

    def place_of(dotted: str) -> Place | None:
        node, mark = root, None
        for part in re.findall(r"[^.\[\]]+", dotted):
            entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
            if isinstance(node, yaml.MappingNode):
                entries = {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
            elif isinstance(node, yaml.SequenceNode):
                entries = {str(index): (value, value) for index, value in enumerate(node.value)}
            if part not in entries:
                return None if mark is None else Place(mark.line + 1, mark.column + 1, False)
            key, node = entries[part]
            mark = key.start_mark
        return None if mark is None else Place(mark.line + 1, mark.column + 1, True)

    return place_of


def parse_value(text: str, where: str, own: bool = False, numbered: bool = False) -> Any:
    """Any YAML value, read by the same rules; ``where`` names the origin in messages. Raises InputError.

    own: rlsim wrote it or comes with it. numbered: keys may be numbers and flags, which count as their texts.
    """
    try:
        value = yaml.load(text, Loader=_OwnFilesLoader if own else _NumberedLoader if numbered else _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {_describe(error)}") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where}: not valid YAML ({error})") from error
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
    """Any value of a YAML file; raises InputError. A file that comes with rlsim is parsed once an installation.

    Its value is kept as Python keeps byte code, among that of this package, for as long as the file stays as it is.
    """
    if not delivered(path):
        return parse_value(read_text(path, DOCUMENT_BYTES), shown_path(path))
    kept = Path(cache_from_source(str(Path(__file__).with_name(re.sub(r"\W", "_", shown_path(path)) + ".py"))))
    state = [(one.st_mtime_ns, one.st_size) for one in (path.stat(), _RULES)] if path.is_file() else None
    with suppress(OSError, ValueError, EOFError, TypeError):
        known, value = marshal.loads(kept.read_bytes())
        if known == state:
            return value
    value = parse_value(read_text(path, DOCUMENT_BYTES), shown_path(path), own=True)
    if not sys.dont_write_bytecode:
        with suppress(OSError, ValueError):  # a folder that cannot be written, a value that is none of JSON's
            kept.parent.mkdir(parents=True, exist_ok=True)
            beside = kept.with_suffix(f".{os.getpid()}")
            beside.write_bytes(marshal.dumps((state, value)))
            beside.replace(kept)
    return value


@cache
def lists_beside(module: str, name: str = "names.yaml") -> dict[str, Any]:
    """The mapping in the YAML file ``name`` beside a module of rlsim; module: its ``__file__``."""
    return read_yaml(Path(module).with_name(name))


def dump_yaml(record: BaseModel) -> str:
    """``record`` as YAML in the order of its schema, readable by rlsim's own strict reader."""
    return dump_document(record.model_dump(mode="json"))


def dump_document(document: Mapping[str, Any]) -> str:
    """Plain values as YAML in their own order, readable by rlsim's own strict reader."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes every text that rlsim's reader would take for a number, and keeps lists of numbers on one line."""


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    numbers = all(isinstance(item, int | float) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=numbers)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Unprintable characters (line breaks of any kind) only survive escaped between double quotes."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    """The shorter of plain and scientific form, both exact: 72.0, 0.0015, 2.5e+15."""
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():e}".partition("e")
    scientific = f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent}"
    plain = repr(value)
    text = plain if len(plain) <= len(scientific) and "e" not in plain else scientific
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_SCALARS["float"][0]), list("-+.0123456789"))
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)
