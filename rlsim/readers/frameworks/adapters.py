"""The frameworks whose configurations are known, for all that reads or writes one."""

from rlsim.readers.frameworks.framework import framework_of
from rlsim.readers.frameworks.nemo_rl import NEMO_RL
from rlsim.readers.frameworks.verl import VERL

TABLES = ("skyrl",)
"""Those of which a table says everything."""
ADAPTERS = {framework.name: framework for framework in (NEMO_RL, VERL, *map(framework_of, TABLES))}
