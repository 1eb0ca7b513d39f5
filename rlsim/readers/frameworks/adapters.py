"""The frameworks whose configurations are known, for all that reads or writes one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from rlsim.readers.frameworks.framework import Framework, framework_of
from rlsim.readers.frameworks.nemo_rl import NEMO_RL
from rlsim.readers.frameworks.verl import VERL

TABLES = {"skyrl": "skyrl", "slime": "slime", "areal": "areal", "prime-rl": "prime_rl", "openrlhf": "openrlhf",
          "roll": "roll", "trl": "trl"}  # fmt: skip
"""Frameworks of which a table says everything, with its file."""
FORKS = {"vime": "slime", "miles": "slime"}
"""Frameworks with the words of another one."""


@cache
def _adapter(name: str) -> Framework:
    if name in FORKS:
        return replace(_adapter(FORKS[name]), name=name)
    return {"nemo-rl": NEMO_RL, "verl": VERL}.get(name) or framework_of(TABLES[name])


class _Adapters(Mapping[str, Framework]):
    """Frameworks by their names; a table is read when its framework is asked for."""

    def __getitem__(self, name: str) -> Framework:
        return _adapter(name)

    def __iter__(self) -> Iterator[str]:
        return iter(("nemo-rl", "verl", *TABLES, *FORKS))

    def __len__(self) -> int:
        return 2 + len(TABLES) + len(FORKS)


ADAPTERS: Mapping[str, Framework] = _Adapters()
