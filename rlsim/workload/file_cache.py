"""Caches of what is drawn from sections of a scenario that may name files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

from rlsim.files.lookup import length_file
from rlsim.schema import workload as section
from rlsim.schema.base import Strict

Given = ParamSpec("Given")
Found = TypeVar("Found")


def cached_with_files(maxsize: int) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """A decorator as ``functools.lru_cache`` that forgets an answer when a file changes that its section names.

    It is for functions whose first argument is a section of a scenario, given by place.
    """

    def decorate(function: Callable[Given, Found]) -> Callable[Given, Found]:
        @lru_cache(maxsize=maxsize)
        def cached(states: object, *args: Any, **kwargs: Any) -> Found:
            return function(*args, **kwargs)

        @wraps(function)
        def asked(*args: Given.args, **kwargs: Given.kwargs) -> Found:
            # What a section and numbers are made of is hashable; ParamSpec cannot say so.
            return cached(_states(cast(Strict, args[0])), *args, **kwargs)  # type: ignore[arg-type]

        asked.__dict__["cache_clear"] = cached.cache_clear
        return asked

    return decorate


def _states(part: Strict) -> tuple[tuple[int, int], ...]:
    """Time of change and size of every file that the section names; what is not there is refused where it is read."""
    files = [length_file(path) for path in _paths(part)]
    states = [file.stat() for file in files if file is not None]
    return tuple((state.st_mtime_ns, state.st_size) for state in states)


@lru_cache(maxsize=64)
def _paths(part: Strict) -> tuple[str, ...]:
    return tuple(_named(part))


def _named(part: Strict) -> Iterator[str]:
    if isinstance(part, section.TraceLength | section.TraceTime | section.Replay):
        yield part.path
    for _, value in part:
        if isinstance(value, Strict):
            yield from _named(value)
