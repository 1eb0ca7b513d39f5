"""The frameworks whose configurations are known, for all that reads or writes one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from rlsim.readers.frameworks.framework import Framework, framework_of

TABLES = ("nemo-rl", "verl", "skyrl", "slime", "areal", "prime-rl", "openrlhf", "roll", "trl")
"""Frameworks with a table of their own."""
FORKS = {"vime": "slime", "miles": "slime"}
"""Frameworks with the words of another one."""


@cache
def _adapter(name: str) -> Framework:
    if name in FORKS:
        return replace(_adapter(FORKS[name]), name=name)
    return framework_of(name.replace("-", "_"))


class _Adapters(Mapping[str, Framework]):
    """Frameworks by their names; a table is read when its framework is asked for."""

    def __getitem__(self, name: str) -> Framework:
        return _adapter(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*TABLES, *FORKS))

    def __len__(self) -> int:
        return len(TABLES) + len(FORKS)


ADAPTERS: Mapping[str, Framework] = _Adapters()
