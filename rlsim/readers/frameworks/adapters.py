"""The frameworks whose configurations are known, for all that reads or writes one."""

from dataclasses import replace

from rlsim.readers.frameworks.framework import framework_of
from rlsim.readers.frameworks.nemo_rl import NEMO_RL
from rlsim.readers.frameworks.verl import VERL

TABLES = ("skyrl", "slime", "areal", "prime_rl", "openrlhf", "roll", "trl")
"""Those of which a table says everything."""
FORKS = {"vime": "slime", "miles": "slime"}
"""Frameworks with the words of another one."""
_KNOWN = {framework.name: framework for framework in (NEMO_RL, VERL, *map(framework_of, TABLES))}
ADAPTERS = {**_KNOWN, **{fork: replace(_KNOWN[name], name=fork) for fork, name in FORKS.items()}}
