"""The rules of strict YAML as PyYAML takes them."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, cast

import yaml

from rlsim.errors import InputError, shortened

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
    # Python knows both words without YAML's dot.
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _loader in (_Loader, _NumberedLoader, _OwnFilesLoader):
    for _tag, (_pattern, _first) in _SCALARS.items():
        _loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))
    _loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
    _loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


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


def load(text: str, where: str, own: bool, numbered: bool) -> Any:
    """The value of a document, as :func:`rlsim.files.yaml.parse_value`."""
    try:
        return yaml.load(text, Loader=_OwnFilesLoader if own else _NumberedLoader if numbered else _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {_describe(error)}") from error
    # Sections within each other without end, and whole numbers of more digits than Python converts (4,300).
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where}: not valid YAML ({error})") from error


def dump(document: Mapping[str, Any]) -> str:
    """A document in the order of its keys."""
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
    # repr is the shortest text that reads back as the same float.
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():e}".partition("e")
    scientific = f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent}"
    plain = repr(value)
    text = plain if len(plain) <= len(scientific) and "e" not in plain else scientific
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_SCALARS["float"][0]), list("-+.0123456789"))
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)
