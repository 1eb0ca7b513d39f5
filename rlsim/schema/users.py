"""How runs of users deviate from tuned ones: what rlsim learned from runs whose makers tuned nothing for it; and the
networks between nodes by name, with the line rate of a node that its GPUs share."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from rlsim.files.yaml import lists_beside
from rlsim.schema.base import NonNegativeFloat, PositiveFloat, Strict
from rlsim.schema.engine import HostClass

FabricName = Literal[
    "profile", "infiniband_8x400", "roce_8x400", "roce_8x200", "efa_p5", "efa_p5_sockets", "efa_p4d", "efa_p6_b200",
    "efa_p6_b300", "ethernet_2x100", "ethernet_100", "tcp_25", "tcp_10",
]  # fmt: skip
_NETWORKS = lists_beside(__file__, "fabrics.yaml")
FABRICS: Mapping[str, Mapping[str, Any]] = _NETWORKS["fabrics"]
"""By name, the rate of a node in bytes/s and direction (bytes_per_s) and where it is from."""
EXCHANGES: Mapping[str, Mapping[str, Any]] = _NETWORKS["exchanges"]
"""Exchanges of tokens between experts over networks on which latency and rate of the line do not tell their time."""


def as_profile(name: str) -> bool:
    """Whether a fabric is the one of the hardware profile."""
    return FABRICS[name]["bytes_per_s"] is None


class UserLink(Strict):
    """Links between nodes of clusters of users, as their training steps showed them."""

    bytes_per_s: PositiveFloat
    """Middle of the line rates of a node and direction."""
    log_spread: NonNegativeFloat
    """Standard deviation of their logarithm."""
    least_bytes_per_s: PositiveFloat
    """Slowest that is thought of."""
    source: str = Field(min_length=1)
    """Where they are from."""
    values: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Line rates of single sources, from the update of FSDP trainers."""


class UserHost(Strict):
    """Hosts of users' rollout engines beyond those of measured servers: processors, containers, engines that share
    them."""

    iteration_s: NonNegativeFloat
    """Middle of what they add to an iteration."""
    sequence_s: NonNegativeFloat
    """The same for each running sequence, which moves with it."""
    log_spread: NonNegativeFloat
    """Standard deviation of the logarithm of both."""
    source: str = Field(min_length=1)
    """Where they are from."""


class UserDeviation(Strict):
    """A phase of the runs of one family over what mechanisms and fitted terms say, as a logarithm."""

    phase: str = Field(min_length=1)
    """generation, logprob, train or transfer."""
    family: str = Field(min_length=1)
    """Backend or engine, model class and framework, most general first, by commas; all: any."""
    mean: float
    """Mean deviation of a source of this family."""
    above: NonNegativeFloat
    """Standard deviation of a source's deviation upwards from it, that of the mean included."""
    below: NonNegativeFloat
    """The same downwards: what a run misses of a tuned one costs time more often than it saves any."""
    sources: int = Field(ge=0)
    """Sources behind it."""
    rows: int = Field(ge=0)
    """Measured values behind it."""


class LeftOut(Strict):
    """How left-out sources were met."""

    values: int = Field(ge=0)
    """Measured values."""
    median_error: NonNegativeFloat
    """Median of |predicted / measured - 1|."""
    bias: float
    """Median of predicted / measured - 1."""
    coverage: float = Field(ge=0, le=1)
    """Share inside 90 % intervals."""


class UserFit(Strict):
    """Record of the fit."""

    command: str
    """How it was made."""
    rows: int = Field(ge=0)
    """Measured steps."""
    sources: int = Field(ge=0)
    """Sources of them."""
    data_digest: str
    """Digest of the table."""
    left_out: dict[str, LeftOut] = Field(default_factory=dict)
    """By phase, with each source left out of the fit in turn."""


class UserRuns(Strict):
    """Deviations of users' runs and their networks."""

    name: str = Field(min_length=1)
    """Name of the set."""
    description: str = Field(min_length=1)
    """How it was fitted."""
    fit: UserFit
    node_link: UserLink
    """Network between nodes where a scenario states none."""
    host: UserHost
    """Host of the engines where a scenario states none (engine.host, engine.host_slowdown, engine.host_iteration_s)."""
    host_classes: dict[HostClass, UserHost] = Field(default_factory=dict)
    """The same by the class that a scenario states; a class without an entry adds nothing."""
    deviations: tuple[UserDeviation, ...] = ()
    """By phase and family."""
