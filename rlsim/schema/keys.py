"""Every key that a scenario can hold: what it means, its type, its bounds and its default."""

import ast
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rlsim.schema.base import Strict
from rlsim.schema.messages import models_in
from rlsim.schema.scenario import Scenario

_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}
_BOUNDS = {"gt": "above {}", "ge": "at least {}", "lt": "below {}", "le": "at most {}"}
_LENGTHS = {"min_length": "at least {} {of}", "max_length": "at most {} {of}"}
# A sentence or a clause that begins with "Default", up to its end; a point within a number ends none.
_DEFAULT_TEXT = re.compile(r"(?:^|(?<=[.;] )|(?<=; ))[Dd]efault\b(?P<text>[^.]*(?:\.(?! |$)[^.]*)*)")


@dataclass(frozen=True)
class Key:
    """One key. record: the class that holds it, as keys of lengths stand in several kinds of them.

    kind: its type in words. bounds: in words, empty without. default: as YAML; None where a value is required.
    default_told: what the description says of the default. section: whether further keys lie below it.
    """

    dotted: str
    record: str
    description: str
    kind: str
    bounds: str
    default: str | None
    default_told: str
    section: bool


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key in the order of the schema; one of several kinds of a section appears once for each kind."""
    return tuple(_keys(described(Scenario), ""))


def keys_named(dotted: str) -> tuple[Key, ...]:
    """The key ``dotted`` in every record that holds it; () where there is none."""
    return tuple(key for key in all_keys() if key.dotted == dotted)


@cache
def described(model: type[BaseModel]) -> type[BaseModel]:
    """``model`` with what its source says below each field as the field's description, and all records within it.

    Not done on import: it reads sources, and only the two commands that show descriptions need them.
    """
    # Inherited keys are described in the class that declares them.
    for base in model.__mro__:
        if issubclass(base, Strict):
            _describe(model, base)
    for field in model.model_fields.values():
        for inner in models_in(field.annotation):
            described(inner)
    # Descriptions came after the class was built: its JSON Schema must be made anew.
    model.model_rebuild(force=True)
    return model


def _describe(model: type[BaseModel], base: type[BaseModel]) -> None:
    """Give fields of ``model`` what the source of ``base``, itself or what it inherits from, says below them."""
    [parsed] = ast.parse(inspect.getsource(base)).body
    # A text below a field is an expression that Python evaluates and forgets: only the source holds it.
    for stated, text in pairwise(parsed.body if isinstance(parsed, ast.ClassDef) else ()):
        if isinstance(stated, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            name = ast.unparse(stated.target)
            model.model_fields[name].description = " ".join(str(text.value.value).split())


def _keys(model: type[BaseModel], above: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        inner = list(models_in(field.annotation))
        dotted = above + name
        yield _key(dotted, model, field, inner)
        for record in inner:
            yield from _keys(record, f"{dotted}.")


def _key(dotted: str, model: type[BaseModel], field: FieldInfo, inner: list[type[BaseModel]]) -> Key:
    description = field.description or (_first_sentence(inner[0]) if inner else "")
    found = _DEFAULT_TEXT.search(description)
    return Key(
        dotted,
        model.__name__,
        description,
        _kind(field.annotation),
        ", ".join(dict.fromkeys(_bounds(field.metadata, field.annotation))),
        _default(field),
        found["text"].strip(" :,;") if found else "",
        bool(inner),
    )


def _first_sentence(record: type[BaseModel]) -> str:
    """What a section's class says of itself."""
    return re.split(r"(?<=\.)\s", (record.__doc__ or "").strip(), maxsplit=1)[0]


def _kind(annotation: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_kind(each) for each in arguments))
    if origin is dict:
        return f"mapping of {' to '.join(_kind(each) for each in arguments)}"
    if origin is tuple:
        entries = list(dict.fromkeys(_kind(each) for each in arguments if each is not Ellipsis))
        return f"list of {' and '.join(entries)}"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"section ({annotation.__name__})"
    return _WORDS.get(annotation, str(annotation))


def _bounds(metadata: Any, annotation: Any) -> Iterator[str]:
    """Bounds of a value in words, those inside its type included; entries of lists are left out."""
    for entry in metadata:
        for name, text in (_BOUNDS | _LENGTHS).items():
            bound = getattr(entry, name, None)
            if bound is not None:
                unit = "characters" if "text" in _kind(annotation).split(" | ") else "entries"
                yield text.format(f"{bound:,}" if isinstance(bound, int) else f"{bound:g}", of=unit)
        if isinstance(entry, FieldInfo):
            yield from _bounds(entry.metadata, annotation)
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from _bounds(more, inner)
    elif get_origin(annotation) in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _bounds((), each)


def _default(field: FieldInfo) -> str | None:
    value = field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined
    if value is PydanticUndefined:
        return None
    if isinstance(value, BaseModel):
        return "its own defaults"
    if isinstance(value, tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    return as_yaml(value)


def as_yaml(value: object) -> str:
    """A plain value as a scenario writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'
