"""Seconds of collective operations: measured tables inside their range, latency plus bytes over bandwidth beyond it.

A group of GPUs is laid out consecutively: it fills a node, then the NVLink domain, then crosses the network. Message
sizes are bytes of the full (unsharded) tensor; nothing to send takes no time. Where the profile's NVLink differs from
that of the measured device, measured times scale by the ratio of the two latency-and-bandwidth models.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from rlsim.costs.operators.operators import KERNEL_FLOOR_S, TableSource
from rlsim.costs.operators.time import OperatorTime, modelled, ratio_or_one
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import OperatorTables
from rlsim.units import BYTES_PER_ELEMENT, FloatArray

LINK_EFFICIENCY = 0.75
"""Share of link bandwidth that large collectives reach where no table says so (NCCL tables: 0.7-0.85). Assumption."""

EXCHANGE_PHASES = {"two_sided": ("prepare", "dispatch", "combine"), "one_sided": ("dispatch", "combine")}
"""Phases of an all-to-all around experts by transport."""


class Network(Struct, frozen=True):
    """The network between nodes, where it is not the profile's.

    bytes_per_s: share of a GPU of the line of its node; None: the profile's. alltoall_s: further latency of an
    all-to-all that crosses it. tokens_s: of an exchange of tokens (DeepEP), for each further domain.
    """

    bytes_per_s: float | None = None
    alltoall_s: float = 0.0
    tokens_s: float = 0.0


PROFILE_NETWORK = Network()
"""That of the hardware profile."""


class Collectives:
    """Collective times of one hardware profile. reference: the profile that ``tables`` were measured on.

    stands_in: the tables are of another engine. exchange: tables with the measured all-to-all around experts, of this
    device or of another with NVLink between nodes. rack_aligned: see Cluster. network: what of the network between
    nodes is not as in the profile.
    """

    def __init__(
        self,
        profile: HardwareProfile,
        tables: OperatorTables | None,
        reference: HardwareProfile | None = None,
        exchange: TableSource | None = None,
        stands_in: bool = False,
        rack_aligned: bool = True,
        network: Network = PROFILE_NETWORK,
    ) -> None:
        self.stands_in, self.rack_aligned = stands_in, rack_aligned
        self.profile, self.tables, self.reference, self.exchange = profile, tables, reference or profile, exchange
        self._measured_here = self.profile == self.reference
        self.domain = int(profile.nvlink_domain_gpus)
        self.nvlink = profile.nvlink_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
        self.network = (network.bytes_per_s or profile.network_bandwidth_bytes_per_s.value) * LINK_EFFICIENCY
        self.crossing = network

    @property
    def at_line_rate(self) -> Collectives:
        """These over the network of the profile."""
        if self.crossing == PROFILE_NETWORK:
            return self
        own = self.tables, self.reference, self.exchange, self.stands_in, self.rack_aligned
        return Collectives(self.profile, *own)

    def _inside(self, gpus: int, stride: int) -> int:
        """Members of a group of ``gpus`` (placed ``stride`` apart) that share one NVLink domain."""
        inside = max(1, min(gpus, self.domain // stride if stride < self.domain else 1))
        if self.rack_aligned or gpus * stride <= int(self.profile.gpus_per_node):
            return inside
        return min(inside, -(-gpus // 2))  # half of the group in one domain, half in the next

    def all_reduce(
        self,
        gpus: int,
        message_bytes: ArrayLike,
        graph: bool = True,
        shared_domain: bool = True,
        network_hop_s: float = 0.0,
    ) -> OperatorTime:
        """All-reduce of an activation inside an engine replica: the engine's own kernel inside NVLink, NCCL beyond.

        shared_domain False: the engine's kernel shares buffers between processes of one operating system only, so that
        a replica over several nodes uses NCCL also where NVLink joins them. graph False: the device time of an eager
        launch (input copied first), without the host's time to launch it. network_hop_s: what a hop between nodes adds
        to the latency of the network.
        """
        size = np.asarray(message_bytes, dtype=np.float64)
        if gpus <= 1:
            return _free(size)
        inside = self._inside(gpus, 1)
        if gpus > int(self.profile.gpus_per_node) and not shared_domain:
            base = self._on_nvlink("all_reduce", inside, size, lambda n, s: self._nccl("all_reduce", n, s))
        else:
            base = self._on_nvlink("all_reduce", inside, size, lambda n, s: self._engine_all_reduce(n, s, graph))
        if inside == gpus:
            return base
        # Inside the domain the message is shared out, so that each of its GPUs sends a part of it over the network.
        groups = math.ceil(gpus / inside)
        # A ring, there and back: NCCL's choice over the few nodes of an engine.
        hops = 2.0 * (groups - 1) * (self.profile.network_latency_s.value + network_hop_s)
        wire = 2.0 * (groups - 1) / groups * size / inside / self.network
        return base + modelled(np.where(size > 0, hops + wire, 0.0), "network")

    def _engine_all_reduce(self, gpus: int, size: FloatArray, graph: bool) -> TableTime | None:
        if self.tables is None:
            return None
        replayed, eager = (self.tables.all_reduce_s(gpus, size, mode) for mode in (True, False))
        if eager is None or (graph and replayed is not None):
            return replayed
        # The eager rows were timed from the host and hold one launch, the replayed ones do not.
        device = eager.seconds - self.reference.eager_launch_s.value
        if replayed is None:
            # The launch may have been shorter than its datasheet says: no kernel takes less than an empty one.
            return TableTime(np.maximum(device, KERNEL_FLOOR_S), np.zeros_like(eager.measured))
        return TableTime(np.maximum(replayed.seconds, device), replayed.measured & eager.measured)

    def collective(self, op: str, gpus: int, message_bytes: ArrayLike, stride: int = 1) -> OperatorTime:
        """all_gather, reduce_scatter or alltoall over ``gpus`` GPUs placed ``stride`` apart.

        op alltoall: message_bytes is what one GPU sends in all. Across the domain the ring (or the exchange) is bounded
        by the larger of its NVLink and its network share.
        """
        size = np.asarray(message_bytes, dtype=np.float64)
        if gpus <= 1:
            return _free(size)
        inside = self._inside(gpus, stride)
        local = self._on_nvlink(op, inside, size, lambda n, s: self._nccl(op, n, s))
        if inside == gpus:
            return local
        groups = math.ceil(gpus / inside)
        latency = (groups - 1) * self.profile.network_latency_s.value
        latency += self.crossing.alltoall_s if op == "alltoall" else 0.0
        # Of an exchange each GPU sends what is for other domains; of a ring the GPUs of a domain share what leaves it.
        per_gpu = size * (1 - inside / gpus) if op == "alltoall" else size * (groups - 1) / groups / inside
        # NCCL pipelines chunks over both links: the slower one sets the pace, and only latencies add up.
        across = np.maximum(local.seconds, per_gpu / self.network) + latency
        return modelled(np.where(size > 0, across, 0.0), "network")

    def token_exchange(
        self, gpus: int, token_bytes: float, copies: int, following: float | None = None
    ) -> OperatorTime:
        """Tokens from one GPU to the GPUs of their experts (or back), a copy for each GPU, across domains one for each.

        token_bytes: of the tokens of one GPU; copies: experts of a token. following: experts of a GPU, where those of a
        token follow each other; else they are drawn evenly over ``gpus``. The slower of NVLink and network bounds a
        pipelined exchange over both.
        """
        if gpus <= 1:
            return _free(np.zeros(()))
        inside = self._inside(gpus, 1)
        domains = math.ceil(gpus / inside)
        places, groups = _distinct(gpus, copies), _distinct(domains, copies)
        if following is not None:
            # A run of neighbours crosses a border between GPUs once in `each` experts.
            places, groups = (
                min(n, 1.0 + (copies - 1) / each) for n, each in ((gpus, following), (domains, following * inside))
            )
        # (n - 1) / n: the copy for a place of the sender's own moves over no link.
        near = token_bytes * places * (gpus - 1) / gpus / self.nvlink
        far = token_bytes * groups * (domains - 1) / domains / self.network
        hop_s = self.profile.network_latency_s.value + self.crossing.tokens_s
        latency = self.profile.nvlink_latency_s.value + (domains - 1) * hop_s
        return modelled(max(near if inside > 1 else 0.0, far) + latency, "network")

    def _nccl(self, op: str, gpus: int, size: FloatArray) -> TableTime | None:
        return None if self.tables is None else self.tables.collective_s(op, gpus, size)

    def _on_nvlink(
        self, op: str, gpus: int, size: FloatArray, look_up: Callable[[int, FloatArray], TableTime | None]
    ) -> OperatorTime:
        """Inside one NVLink domain: measured, or carried over from a smaller measured group, or the link model.

        Beyond the measured group the wire time grows with (N - 1) / N, and every doubling adds what the last measured
        one added: 0.3 to 1 us for engines' kernels and 5 to 10 us for NCCL, where the link's own latency says 5 us.
        """
        if gpus <= 1:
            return _free(size)
        # Tables are looked up by the logarithm of the size, which nothing sent has none of.
        sent, measured = np.maximum(size, 1.0), gpus
        timed: OperatorTime | None = None
        while measured >= 2:
            found = look_up(measured, sent)
            if found is not None:
                seconds, known = found.seconds, found.measured.astype(np.float64)
                if measured < gpus:
                    half, growth = look_up(measured // 2, sent), ((gpus - 1) / gpus) / ((measured - 1) / measured)
                    latency = np.full_like(seconds, self.profile.nvlink_latency_s.value)
                    step = latency if half is None else np.maximum(seconds - half.seconds, 0.0)
                    seconds = np.maximum(seconds * growth, seconds + math.log2(gpus / measured) * step)
                timed = OperatorTime(seconds, known, "network")
                if not self._measured_here:
                    # By the link model of both devices: a ratio of datasheets, so that it stays a modelled time.
                    here, there = (_link_s(device, op, measured, sent) for device in (self.profile, self.reference))
                    timed = timed.scaled_by(here / there)
                if self.stands_in or measured < gpus:
                    timed = timed.unmeasured()
                break
            measured = 1 << ((measured - 1).bit_length() - 1)  # tables hold powers of two
        if timed is None:
            timed = modelled(_link_s(self.profile, op, gpus, sent), "network")
        return OperatorTime(np.where(size > 0, timed.seconds, 0.0), timed.measured, "network")

    def expert_exchange(self, gpus: int, tokens: ArrayLike, hidden: int, precision: str, top_k: int) -> OperatorTime:
        """Tokens to the GPUs of their experts and back over NVLink, ``tokens`` of them on each GPU.

        The faster of the measured transports, on another device times the ratio of what the links of both take;
        without a measurement that: three small messages' latency and the bytes of top_k copies (in the precision of the
        experts on the way there, BF16 on the way back) over the link.
        """
        own, measured = np.maximum(np.asarray(tokens, dtype=np.float64), 1.0), list[OperatorTime]()
        copies = own * min(top_k, gpus - 1) * hidden * (BYTES_PER_ELEMENT[precision] + BYTES_PER_ELEMENT["bf16"])
        here = modelled(_exchange_link_s(self.profile, copies), "network")
        if self.exchange is None:
            return here
        for name, phases in EXCHANGE_PHASES.items():
            look = self.exchange.tables.expert_exchange_s
            found = [look((name, phase), precision, hidden, gpus, own) for phase in phases]
            known = [timed for timed in found if timed is not None]
            if len(known) == len(phases):
                whole = np.all([timed.measured for timed in known], axis=0).astype(np.float64)
                measured.append(OperatorTime(np.sum([timed.seconds for timed in known], axis=0), whole, "network"))
        if not measured:
            return here
        # One transport for all sizes, as an engine is started with one (VLLM_ALL2ALL_BACKEND).
        fastest = min(measured, key=lambda timed: float(np.sum(timed.seconds)))
        return fastest.scaled_by(ratio_or_one(here.seconds, _exchange_link_s(self.exchange.device, copies)))

    def broadcast(self, message_bytes: float, crosses_network: bool) -> OperatorTime:
        """Pipelined broadcast of a large message from one source: bounded by the source's own link."""
        rate = self.network if crosses_network else self.nvlink
        return modelled(message_bytes / rate, "network")

    def host_copy(self, copied_bytes: float) -> OperatorTime:
        """Copy between a GPU and its host, one direction."""
        rate = self.profile.host_link_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
        return modelled(copied_bytes / rate, "host link")


def _distinct(places: int, copies: int) -> float:
    """Expected places that ``copies`` even draws among ``places`` hit."""
    return places * (1.0 - (1.0 - 1.0 / places) ** copies)


def _free(size: FloatArray) -> OperatorTime:
    return OperatorTime(np.zeros_like(size), np.ones_like(size), "none")


def _exchange_link_s(profile: HardwareProfile, moved_bytes: FloatArray) -> FloatArray:
    """Latencies and bytes of an exchange around experts on NVLink, there and back."""
    messages = 2.0 * len(EXCHANGE_PHASES["two_sided"])
    rate = profile.nvlink_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
    return np.asarray(messages * profile.nvlink_latency_s.value + moved_bytes / rate, dtype=np.float64)


def _link_s(profile: HardwareProfile, op: str, gpus: int, size: FloatArray) -> FloatArray:
    """Latency and bandwidth of a collective on NVLink: a tree's latency and twice the traffic for an all-reduce."""
    latency, bandwidth = profile.nvlink_latency_s.value, profile.nvlink_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
    wire = (gpus - 1) / gpus * size / bandwidth
    if op == "all_reduce":
        return np.asarray(2 * math.log2(gpus) * latency + 2 * wire, dtype=np.float64)
    return np.asarray((gpus - 1) * latency + wire, dtype=np.float64)
