"""Caches of what is drawn from sections of a scenario that may name files."""

from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

from rlsim.files.lookup import length_file
from rlsim.schema import workload as section
from rlsim.schema.base import Strict

Given = ParamSpec("Given")
Found = TypeVar("Found")


def cached_with_files(
    maxsize: int, small: Callable[[Any], bool] = lambda part: False, most_small: int = 0
) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """A decorator as ``functools.lru_cache`` that forgets an answer when a file changes that its section names.

    It is for functions whose first argument is a section of a scenario, given by place. most_small: answers kept of
    sections that are ``small``, whose answers take little memory, beside ``maxsize`` of others.
    """

    def decorate(function: Callable[Given, Found]) -> Callable[Given, Found]:
        def with_states(states: object, *args: Any, **kwargs: Any) -> Found:
            return function(*args, **kwargs)

        cached, of_small = lru_cache(maxsize)(with_states), lru_cache(most_small)(with_states)

        @wraps(function)
        def asked(*args: Given.args, **kwargs: Given.kwargs) -> Found:
            part = cast(Strict, args[0])
            # What a section and numbers are made of is hashable; ParamSpec cannot say so.
            return (of_small if small(part) else cached)(_states(part), *args, **kwargs)  # type: ignore[arg-type]

        def clear() -> None:
            cached.cache_clear()
            of_small.cache_clear()

        asked.__dict__["cache_clear"] = clear
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
