"""Answers as plain data, for the golden net."""

import hashlib
import re
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from pydantic import BaseModel

TESTS = Path(__file__).parents[1]
APART = {"model", "hardware", "name", "parameters"}
"""Of a scenario, what imports look up."""
TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/\S*/|" + re.escape(str(TESTS.parent)) + "/")
MOST_DEEP = 12


def plain(value: Any, depth: int = 0) -> Any:
    """Of a value all that is data, as nested mappings, lists and plain values."""
    match value:
        case Enum():
            return str(value.value)
        case bool() | int() | float() | None:
            return value
        case str():
            return TEMPORARY.sub("", value)
        case bytes():
            return hashlib.sha256(value).hexdigest()
        case Path():
            return value.name
        case np.generic() | np.ndarray():
            return value.tolist()
        case set() | frozenset():
            return sorted(map(str, value))
        case list() | tuple() if depth <= MOST_DEEP:
            return [plain(one, depth + 1) for one in value]
    held = _held(value) if depth <= MOST_DEEP else None
    if held is None:
        return type(value).__name__
    return {str(key): plain(one, depth + 1) for key, one in held.items()}


def _held(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a record by name; None of what has none."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        # Defaults are left out, so that a new key of the schema moves nothing.
        names = value.model_fields_set - (APART if type(value).__name__ == "Scenario" else set())
        return {name: getattr(value, name) for name in type(value).model_fields if name in names}
    if isinstance(value, Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None
