"""The link between nodes that a scenario has: as stated, as its profile says, or as users' clusters have it."""

from msgspec import Struct

from rlsim.costs.operators.collectives import Network
from rlsim.parameters.users import user_runs_of
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.scenario import Scenario
from rlsim.schema.users import EXCHANGES, FABRICS


class NodeLink(Struct, frozen=True):
    """Line rate of a node and direction in bytes/s; None: every GPU has the port of its profile.

    log_spread: standard deviation of its logarithm where nobody stated it; 0 where it is known. least_bytes_per_s:
    slowest that is then thought of. exchange: how experts exchange tokens over it, where not as its rate says; a name
    in rlsim/schema/fabrics.yaml.
    """

    bytes_per_s: float | None
    log_spread: float = 0.0
    least_bytes_per_s: float = 0.0
    exchange: str | None = None

    def of_gpu(self, profile: HardwareProfile, slower: float = 1.0) -> Network:
        """Share of a GPU of the link of its node; exchanges of experts ``slower`` times as long as they are thought."""
        own = None if self.bytes_per_s is None else self.bytes_per_s / profile.gpus_per_node.value
        if self.exchange is None:
            return Network(own)
        known = EXCHANGES[self.exchange]
        return Network(own, known["alltoall_s"] * slower, known["tokens_s"] * slower)

    @property
    def exchange_spread(self) -> float:
        """Standard deviation of the logarithm of exchanges of experts over it."""
        return 0.0 if self.exchange is None else float(EXCHANGES[self.exchange]["log_spread"])


def node_link(scenario: Scenario) -> NodeLink:
    """The link of ``scenario``: stated, else the profile's for one node or a stack of tuned recipes, else the middle of
    what users' clusters had, and never beyond the profile's."""
    cluster, stack = scenario.cluster, scenario.training_stack
    if cluster.link_stated:
        exchange = FABRICS[cluster.fabric].get("exchange") if cluster.fabric is not None else None
        return NodeLink(cluster.node_link_bytes_per_s, exchange=exchange)
    if stack is None or stack.tuned or not _crosses(scenario):
        return NodeLink(None)
    known = user_runs_of(scenario)
    if known is None:
        return NodeLink(None)
    device, link = scenario.training_device, known.node_link
    line = device.network_bandwidth_bytes_per_s.value * device.gpus_per_node.value
    return NodeLink(min(line, link.bytes_per_s), link.log_spread, link.least_bytes_per_s)


def _crosses(scenario: Scenario) -> bool:
    """Whether the scenario's GPUs fill more than one NVLink domain."""
    return scenario.cluster.num_gpus > max(
        one.nvlink_domain_gpus.value for one in (scenario.hardware, scenario.training_device)
    )
