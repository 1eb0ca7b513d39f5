"""The frameworks whose configurations are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.files import Bases
from rlsim.readers.frameworks.nemo_rl import BASES as NEMO_RL_BASES
from rlsim.readers.frameworks.nemo_rl import NEMO_RL, nemo_rl_facts
from rlsim.readers.frameworks.rows import Framework, Reader
from rlsim.readers.frameworks.skyrl import BASES as SKYRL_BASES
from rlsim.readers.frameworks.skyrl import SKYRL, skyrl_facts
from rlsim.readers.frameworks.verl import BASES as VERL_BASES
from rlsim.readers.frameworks.verl import VERL, verl_facts


@dataclass(frozen=True)
class Adapter:
    """A framework: its tables, how its files inherit, and what its configuration says beside the rows.

    node_keys: keys that hold the GPUs of a node.
    """

    framework: Framework
    bases: Bases
    facts: Callable[[Reader, Mapping[str, Any]], Facts]
    node_keys: tuple[str, ...]


ADAPTERS = {
    "nemo-rl": Adapter(NEMO_RL, NEMO_RL_BASES, nemo_rl_facts, ("cluster.gpus_per_node",)),
    "verl": Adapter(VERL, VERL_BASES, verl_facts, ("trainer.n_gpus_per_node",)),
    "skyrl": Adapter(SKYRL, SKYRL_BASES, skyrl_facts, ("trainer.placement.policy_num_gpus_per_node",)),
}
