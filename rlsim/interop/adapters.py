"""The frameworks whose configurations are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlsim.interop.asked import Facts
from rlsim.interop.files import Bases
from rlsim.interop.nemo_rl import BASES as NEMO_RL_BASES
from rlsim.interop.nemo_rl import NEMO_RL
from rlsim.interop.nemo_rl_facts import nemo_rl_facts
from rlsim.interop.rows import Framework, Reader
from rlsim.interop.skyrl import BASES as SKYRL_BASES
from rlsim.interop.skyrl import SKYRL, skyrl_facts
from rlsim.interop.verl import BASES as VERL_BASES
from rlsim.interop.verl import VERL
from rlsim.interop.verl_facts import verl_facts


@dataclass(frozen=True)
class Adapter:
    """A framework: its tables, how its files inherit, and what its configuration says beside the rows."""

    framework: Framework
    bases: Bases
    facts: Callable[[Reader, Mapping[str, Any]], Facts]


ADAPTERS = {
    "nemo-rl": Adapter(NEMO_RL, NEMO_RL_BASES, nemo_rl_facts),
    "verl": Adapter(VERL, VERL_BASES, verl_facts),
    "skyrl": Adapter(SKYRL, SKYRL_BASES, skyrl_facts),
}
