"""Caches of what workloads draw, whose keys know the files that a workload names: an edited file is read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

from rlsim.files.lookup import length_file
from rlsim.schema.base import Strict
from rlsim.schema.workload import TraceLength, TraceTime

Given = ParamSpec("Given")
Found = TypeVar("Found")
PATHS_KEPT = 64


def cached_with_files(maxsize: int) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """A decorator as ``functools.lru_cache`` that forgets an answer when a file changes that its section names.

    It is for functions whose first argument is a section of a scenario, given by place.
    """

    def decorate(function: Callable[Given, Found]) -> Callable[Given, Found]:
        @lru_cache(maxsize=maxsize)
        def kept(states: object, *args: Any, **kwargs: Any) -> Found:
            return function(*args, **kwargs)

        @wraps(function)
        def asked(*args: Given.args, **kwargs: Given.kwargs) -> Found:
            # What a section and numbers are made of is hashable; ParamSpec cannot say so.
            return kept(_states(cast(Strict, args[0])), *args, **kwargs)  # type: ignore[arg-type]

        asked.__dict__["cache_clear"] = kept.cache_clear
        return asked

    return decorate


def _states(section: Strict) -> tuple[tuple[int, int], ...]:
    """Time of change and size of every file that the section names; what is not there is told where it is read."""
    files = [length_file(path) for path in _paths(section)]
    states = [file.stat() for file in files if file is not None]
    return tuple((state.st_mtime_ns, state.st_size) for state in states)


@lru_cache(maxsize=PATHS_KEPT)
def _paths(section: Strict) -> tuple[str, ...]:
    return tuple(_named(section))


def _named(section: Strict) -> Iterator[str]:
    if isinstance(section, TraceLength | TraceTime):
        yield section.path
    for _, value in section:
        if isinstance(value, Strict):
            yield from _named(value)
