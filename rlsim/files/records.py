"""Dataclasses whose fields are read and methods compiled for those classes alone that a process uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, cast

_PSEUDO = ("ClassVar", "InitVar", "KW_ONLY")
"""In annotations of what is no plain field."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, order=False):
        """The standard library's decorator, in an eighth of its time.

        That one compiles six methods a class, 0.5 ms: with the 180 classes of a projection the largest single part of
        a cold start. Here all classes share them but ``__init__``, which is compiled when a first object is made. That
        of a class that is not frozen takes half as long: such are the few that a search makes by the hundred thousand.
        """
        if order:
            return dataclasses.dataclass(frozen=frozen, eq=eq, order=order)
        made = partial(_made, frozen=frozen, eq=eq)
        return made if cls is None else made(cls)


def _made(cls: type, frozen: bool, eq: bool) -> type:
    own = set(vars(cls))
    cls.__dataclass_fields__ = _Unread(cls)  # type: ignore[attr-defined]
    methods: dict[str, Any] = {"__init__": _first_init(cls), "__repr__": _shown}
    if eq:
        methods |= {"__eq__": _equal} | ({} if "__eq__" in own else {"__hash__": _hashed if frozen else None})
    for name, method in methods.items():
        if name not in own or (name == "__hash__" and vars(cls)[name] is None):
            setattr(cls, name, method)
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refused, _refused  # type: ignore[assignment]
    return cls


class _Unread:
    """The fields of a class in their place until they are asked for: most classes of a process make no object."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __get__(self, one: object, owner: type) -> Any:
        dataclasses.dataclass(init=False, repr=False, eq=False)(self.cls)
        return owner.__dataclass_fields__  # type: ignore[attr-defined]


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """Fields by name: what :func:`dataclasses.fields` says, in a fifth of the time while nobody asked for that."""
    kept = vars(cls).get("__dataclass_fields__")
    kinds = vars(cls).get("__annotations__", {})
    if not isinstance(kept, _Unread) or any(word in str(kind) for kind in kinds.values() for word in _PSEUDO):
        return {one.name: one for one in dataclasses.fields(cast(Any, cls))}
    found: dict[str, dataclasses.Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        if "__dataclass_fields__" in vars(base):
            found |= _fields(base)
    for name in kinds:
        value = vars(cls).get(name, dataclasses.MISSING)
        found[name] = value if isinstance(value, dataclasses.Field) else dataclasses.field(default=value)
    return found


def _first_init(cls: type) -> Callable[..., None]:
    def init(self: Any, *given: Any, **named: Any) -> None:
        compiled = _compiled_init(cls)
        setattr(cls, "__init__", compiled)  # noqa: B010 - mypy refuses the assignment
        compiled(self, *given, **named)

    return init


def _compiled_init(cls: Any) -> Callable[..., None]:
    names: dict[str, Any] = {"_missing": dataclasses.MISSING}
    head, named, body = ["self"], ["*"], []
    for name, field in ((name, one) for name, one in _fields(cls).items() if one.init):
        place = named if field.kw_only is True else head
        value, default = name, f"_{name}_default"
        if field.default_factory is not dataclasses.MISSING:
            names[default] = field.default_factory
            place.append(f"{name}=_missing")
            value = f"{default}() if {value} is _missing else {value}"
        elif field.default is not dataclasses.MISSING:
            names[default] = field.default
            place.append(f"{name}={default}")
        else:
            place.append(name)
        body.append(f"{name}={value}")
    if cls.__setattr__ is _refused:  # in two thirds of the time that setting one by one takes past what is refused
        body = [f" self.__dict__.update({', '.join(body)})"]
    else:  # in half of that
        body = [f" self.{one}" for one in body] or [" pass"]
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    # The standard library builds the same function the same way: a loop over fields costs five times as much a call.
    parameters = ", ".join(head + named[len(named) == 1 :])
    exec("\n".join([f"def __init__({parameters}):", *body]), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


@cache
def _values_of(cls: type[Any], hashed: bool = False) -> Callable[[Any], tuple[Any, ...]]:
    """A function from an object of ``cls`` to its compared values, or those of them that its hash is made of."""
    names = [name for name, one in _fields(cls).items() if one.compare and (one.hash is not False or not hashed)]
    if len(names) < 2:
        return lambda one: tuple(getattr(one, name) for name in names)
    return attrgetter(*names)


def _equal(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    values = _values_of(cast(Any, type(self)))
    return values(self) == values(other)


def _hashed(self: Any) -> int:
    return hash(_values_of(self.__class__, True)(self))


@recursive_repr()
def _shown(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name, one in _fields(type(self)).items() if one.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refused(self: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")
