"""The frameworks whose configurations are known, for all that reads or writes one."""

from rlsim.readers.frameworks.nemo_rl import NEMO_RL
from rlsim.readers.frameworks.skyrl import SKYRL
from rlsim.readers.frameworks.verl import VERL

ADAPTERS = {framework.name: framework for framework in (NEMO_RL, VERL, SKYRL)}
