"""Networks between nodes by name, with the line rate of a node that its GPUs share."""

from collections.abc import Mapping
from typing import Any, Literal

from rlsim.files.yaml import lists_beside

FabricName = Literal[
    "profile", "infiniband_8x400", "roce_8x400", "roce_8x200", "efa_p5", "efa_p5_sockets", "efa_p4d", "ethernet_2x100",
    "ethernet_100", "tcp_25", "tcp_10",
]  # fmt: skip
FABRICS: Mapping[str, Mapping[str, Any]] = lists_beside(__file__, "fabrics.yaml")["fabrics"]
"""By name, the rate of a node in bytes/s and direction (bytes_per_s) and where it is from."""


def as_profile(name: str) -> bool:
    """Whether a fabric is the one of the hardware profile."""
    return FABRICS[name]["bytes_per_s"] is None
