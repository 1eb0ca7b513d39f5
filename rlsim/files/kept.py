"""What is worked out once an installation and kept as Python keeps byte code: plain values, and pydantic's schemas."""

from __future__ import annotations

import marshal
import os
import pickle
import re
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache, wraps
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, TypeVar

from pydantic import VERSION, BaseModel, ConfigDict
from pydantic_core import SchemaError, SchemaSerializer, SchemaValidator

_PACKAGE = Path(__file__).resolve().parent.parent
_SCHEMA_ROOMS = ("schema", "results")


def recalled(name: str, state: Any, make: Callable[[], Any]) -> Any:
    """What ``make`` once made for ``name`` (plain values), for as long as ``state`` (the same) is as it was then."""
    kept = kept_path(name)
    with suppress(OSError, ValueError, EOFError, TypeError):
        known, value = marshal.loads(kept.read_bytes())
        if known == state:
            return value
    value = make()
    if value is not None:
        keep(kept, lambda: marshal.dumps((state, value)))
    return value


def kept_path(name: str) -> Path:
    """Where what was once made for ``name`` is kept, no matter whether it is there."""
    return Path(cache_from_source(str(Path(__file__).with_name(re.sub(r"\W", "_", name) + ".py"))))


def keep(kept: Path, content: Callable[[], bytes]) -> None:
    """Write what is kept, at once, unless Python keeps no byte code."""
    if not sys.dont_write_bytecode:
        with suppress(OSError, ValueError):  # a folder that cannot be written, a value that is not plain
            kept.parent.mkdir(parents=True, exist_ok=True)
            beside = kept.with_suffix(f".{os.getpid()}")
            try:
                beside.write_bytes(content())
                beside.replace(kept)
            finally:  # where another process has what was there mapped, Windows lets nothing take its place
                beside.unlink(missing_ok=True)


RECORDS_KEPT = 64
Record = TypeVar("Record")
Found = TypeVar("Found")
Key = TypeVar("Key", bound=Hashable)


def remembered(known: dict[Key, Found], most: int, key: Key, find: Callable[[], Found]) -> Found:
    """What was found for ``key`` before, else now; all is forgotten where it becomes more than ``most``."""
    found = known.get(key)
    if found is None:
        if len(known) >= most:
            known.clear()
        found = known[key] = find()
    return found


def of_each(function: Callable[[Record], Found]) -> Callable[[Record], Found]:
    """``function`` of a frozen record, worked out once for each of the last few objects.

    ``lru_cache`` would hash them: for a model card that takes as long as most that is asked of one.
    """
    known: dict[int, tuple[Record, Found]] = {}

    @wraps(function)
    def asked(record: Record) -> Found:
        # Nobody else has that number while its object is kept.
        return remembered(known, RECORDS_KEPT, id(record), lambda: (record, function(record)))[1]

    return asked


class KeptModel(BaseModel):
    """A pydantic model whose schema is worked out once an installation: the largest part of a cold start if it is not.

    Pydantic has its validators made of a schema of plain values, which takes a hundredth of the time that it takes to
    find that schema.
    """

    # No name is refused for looking like one of pydantic's own: that check is a tenth of what making a class takes.
    model_config = ConfigDict(defer_build=True, protected_namespaces=())

    @classmethod
    def model_rebuild(cls, **given: Any) -> bool | None:
        """Complete the class, as pydantic does when it is first used."""
        given["_parent_namespace_depth"] = given.get("_parent_namespace_depth", 2) + 1  # this function's own frame
        plain = getattr(cls, "__pydantic_fields_complete__", False) and not cls.__pydantic_decorators__.computed_fields
        plain &= not given.get("force", False)  # someone changed the fields
        room = cls.__module__.split(".")[:2]
        if cls.__pydantic_complete__ or not plain or room not in [["rlsim", name] for name in _SCHEMA_ROOMS]:
            return super().model_rebuild(**given)

        def found() -> bytes | None:
            done = super(KeptModel, cls).model_rebuild(**given)
            with suppress(pickle.PicklingError, AttributeError, TypeError):  # something in it has no name
                return pickle.dumps(cls.__pydantic_core_schema__) if done else None
            return None

        kept = recalled(f"{cls.__module__}.{cls.__qualname__}", _sources(), found)
        if kept is not None and not cls.__pydantic_complete__:
            try:
                schema = inner = pickle.loads(kept)
                while "config" not in inner:
                    inner = inner["schema"]
                made = SchemaValidator(schema, inner["config"]), SchemaSerializer(schema, inner["config"])
            except (
                AttributeError,
                EOFError,
                ImportError,
                LookupError,
                TypeError,
                ValueError,
                SchemaError,
                pickle.UnpicklingError,
            ):  # fmt: skip - a name that moved, a pydantic that lays schemas out otherwise, a damaged file
                return super().model_rebuild(**given)
            cls.__pydantic_core_schema__, (cls.__pydantic_validator__, cls.__pydantic_serializer__) = schema, made
            cls.__pydantic_complete__ = True
        return cls.__pydantic_complete__


@cache
def _sources() -> tuple[object, ...]:
    """What schemas follow from: pydantic, and the state of every source that says something of a field."""
    folders = (*_SCHEMA_ROOMS, "files", "")
    files = sorted(
        (one.path, one.stat().st_mtime_ns, one.stat().st_size)
        for folder in folders for one in os.scandir(_PACKAGE / folder) if one.name.endswith((".py", ".yaml"))
    )  # fmt: skip
    return (VERSION, *files)
