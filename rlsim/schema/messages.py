"""From a pydantic validation error to the one line that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rlsim.errors import InputError

MAX_SHOWN = 3
"""Problems told in one message; the rest are counted."""

_BOUNDS = {
    "greater_than": ("must be above {gt}", True),
    "greater_than_equal": ("must be at least {ge}", True),
    "less_than": ("must be below {lt}", True),
    "less_than_equal": ("must be at most {le}", True),
    "literal_error": ("must be one of {expected}", True),
    "missing": ("is required", False),
    "finite_number": ("must be a finite number", True),
    "int_type": ("must be a whole number", True),
    "int_from_float": ("must be a whole number", True),
    "float_type": ("must be a number", True),
    "bool_type": ("must be true or false", True),
    "string_type": ("must be text", True),
    "string_too_short": ("must not be empty", False),
    "tuple_type": ("must be a list", True),
    "too_short": ("needs at least {min_length} entries", False),
    "too_long": ("takes at most {max_length} entries", False),
    "model_type": ("must be a mapping of keys to values", True),
    "model_attributes_type": ("must be a mapping of keys to values", True),
    "union_tag_not_found": ("needs the key {discriminator}", False),
    "union_tag_invalid": ("has {discriminator} '{tag}'; it must be one of {expected_tags}", False),
}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _walk(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, list[type[BaseModel]]]:
    """Dotted key of ``loc`` and the models that hold its last part; parts that name a union branch are left out."""
    models, holders, dotted = [model], [model], ""
    for position, part in enumerate(loc):
        if isinstance(part, int):
            dotted += f"[{part}]"
            continue
        fields = [holder.model_fields[part] for holder in models if part in holder.model_fields]
        if not fields and position < len(loc) - 1:
            named = [holder for holder in models if part in (holder.__name__, _tag(holder, part))]
            models = named or models
            continue
        if not fields and any(part == _tag(holder, part) for holder in models):
            continue
        dotted += f".{part}" if dotted else part
        holders = models
        models = [inner for field in fields for inner in _models_in(field.annotation)]
    return dotted, holders


def _tag(model: type[BaseModel], part: str) -> str | None:
    """``part`` where some field of ``model`` is fixed to that literal, so that it names a branch of a tagged union."""
    return next((part for field in model.model_fields.values() if get_args(field.annotation) == (part,)), None)


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in _models_in(field.annotation):
            yield from _all_keys(inner, f"{prefix}{name}.")


def nearest_key(dotted: str, model: type[BaseModel]) -> str | None:
    """The valid dotted key of ``model`` closest to ``dotted``: a neighbour first, then the same name elsewhere.

    ``dotted`` itself, valid in another branch of a union, is never the answer.
    """
    parent, _, leaf = dotted.rpartition(".")
    keys = [key for key in dict.fromkeys(_all_keys(model)) if key != dotted]
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == parent}
    close = difflib.get_close_matches(leaf, siblings, n=1)
    if close:
        return siblings[close[0]]
    leaves: dict[str, str] = {}
    for key in keys:
        leaves.setdefault(key.rpartition(".")[2], key)
    close = difflib.get_close_matches(leaf, leaves, n=1)
    return leaves[close[0]] if close else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(dotted: str, holders: list[type[BaseModel]], model: type[BaseModel]) -> str:
    here = {name for holder in holders for name in holder.model_fields}
    branch = dotted in set(_all_keys(model)) and dotted.rpartition(".")[2] not in here
    near = None if branch else nearest_key(dotted, model)
    if near is not None:
        return f"unknown key '{dotted}'; did you mean '{near}'?"
    valid = ", ".join(dict.fromkeys(name for holder in holders for name in holder.model_fields))
    return f"unknown key '{dotted}'; valid here: {valid}"


def _problem(error: ErrorDetails, model: type[BaseModel]) -> str:
    dotted, holders = _walk(model, error["loc"])
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(dotted, holders, model)
    key = f"{dotted}: " if dotted else ""
    if kind == "value_error":
        return key + error["msg"].removeprefix("Value error, ")
    template, with_input = _BOUNDS.get(kind, (error["msg"], True))
    text = template.format(**context) if kind in _BOUNDS else template
    return f"{key}{text}" + (f", got {_shown(error['input'])}" if with_input else "")


def as_input_error(error: ValidationError, where: str, model: type[BaseModel]) -> InputError:
    """One InputError line for ``error`` of ``model``: origin, dotted key, violated bound, nearest valid key.

    where: file or option that the values came from. Unknown keys come first, since a misspelt key also leaves a
    required one missing; at most three problems are told, the rest counted.
    """
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    problems = list(dict.fromkeys(_problem(detail, model) for detail in details))
    more = f" (and {len(problems) - MAX_SHOWN} more)" if len(problems) > MAX_SHOWN else ""
    return InputError(f"{where}: {'; '.join(problems[:MAX_SHOWN])}{more}")
