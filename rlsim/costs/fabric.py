"""Seconds of collective operations: measured tables inside their range, latency plus bytes over bandwidth beyond it.

A group of GPUs is laid out consecutively: it fills a node, then the NVLink domain, then crosses the network. Message
sizes are bytes of the full (unsharded) tensor; nothing to send takes no time. Where the profile's NVLink differs from
that of the measured device, measured times scale by the ratio of the two latency-and-bandwidth models.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from rlsim.costs.operators import KERNEL_FLOOR_S, Timed, modelled
from rlsim.costs.work import FloatArray
from rlsim.hardware.interpolation import Lookup
from rlsim.hardware.tables import OperatorTables
from rlsim.schema.hardware import HardwareProfile

LINK_EFFICIENCY = 0.75
"""Share of link bandwidth that large collectives reach where no table says so (NCCL tables: 0.7-0.85). Assumption."""


class Fabric:
    """Collective times of one hardware profile. reference: the profile that ``tables`` were measured on."""

    def __init__(
        self, profile: HardwareProfile, tables: OperatorTables | None, reference: HardwareProfile | None = None
    ) -> None:
        self.profile, self.tables, self.reference = profile, tables, reference or profile
        self.domain = int(profile.nvlink_domain_gpus)
        self.nvlink = profile.nvlink_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
        self.network = profile.network_bandwidth_bytes_per_s.value * LINK_EFFICIENCY

    def _inside(self, gpus: int, stride: int) -> int:
        """Members of a group of ``gpus`` (placed ``stride`` apart) that share one NVLink domain."""
        return max(1, min(gpus, self.domain // stride if stride < self.domain else 1))

    def all_reduce(self, gpus: int, message_bytes: ArrayLike, graph: bool = True) -> Timed:
        """All-reduce of an activation inside an engine replica: the engine's own kernel inside a node, NCCL beyond.

        Engines share buffers between processes of one operating system only, so a replica over several nodes uses NCCL
        also where NVLink joins them. graph False: the device time of an eager launch (input copied first), without the
        host's time to launch it.
        """
        size = np.asarray(message_bytes, dtype=np.float64)
        if gpus <= 1:
            return _free(size)
        inside = self._inside(gpus, 1)
        if gpus > int(self.profile.gpus_per_node):
            base = self._on_nvlink("all_reduce", inside, size, lambda n, s: self._nccl("all_reduce", n, s))
        else:
            base = self._on_nvlink("all_reduce", inside, size, lambda n, s: self._engine_all_reduce(n, s, graph))
        if inside == gpus:
            return base
        groups = math.ceil(gpus / inside)
        hops = 2.0 * math.ceil(math.log2(groups)) * self.profile.network_latency_s.value
        wire = 2.0 * (groups - 1) / groups * size / inside / self.network
        return base + modelled(np.where(size > 0, hops + wire, 0.0), "network")

    def _engine_all_reduce(self, gpus: int, size: FloatArray, graph: bool) -> Lookup | None:
        if self.tables is None:
            return None
        replayed, eager = (self.tables.all_reduce_s(gpus, size, mode) for mode in (True, False))
        if eager is None or (graph and replayed is not None):
            return replayed
        device = eager.seconds - self.reference.eager_launch_s.value
        if replayed is None:
            return Lookup(np.maximum(device, KERNEL_FLOOR_S), np.zeros_like(eager.measured))
        return Lookup(np.maximum(replayed.seconds, device), replayed.measured & eager.measured)

    def collective(self, op: str, gpus: int, message_bytes: ArrayLike, stride: int = 1) -> Timed:
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
        per_gpu = size * (1 - inside / gpus) if op == "alltoall" else size * (groups - 1) / groups / inside
        across = np.maximum(local.seconds, per_gpu / self.network) + latency
        return modelled(np.where(size > 0, across, 0.0), "network")

    def _nccl(self, op: str, gpus: int, size: FloatArray) -> Lookup | None:
        return None if self.tables is None else self.tables.collective_s(op, gpus, size)

    def _on_nvlink(
        self, op: str, gpus: int, size: FloatArray, look_up: Callable[[int, FloatArray], Lookup | None]
    ) -> Timed:
        """Inside one NVLink domain: measured, or carried over from a smaller measured group, or the link model.

        Beyond the measured group the wire time grows with (N - 1) / N and every further step adds its latency.
        """
        if gpus <= 1:
            return _free(size)
        sent = np.maximum(size, 1.0)
        timed, measured = modelled(_link_s(self.profile, op, gpus, sent), "network"), gpus
        while measured >= 2:
            found = look_up(measured, sent)
            if found is not None:
                ratio = _link_s(self.profile, op, measured, sent) / _link_s(self.reference, op, measured, sent)
                timed = Timed(found.seconds, found.measured.astype(np.float64), "network").scaled(ratio)
                break
            measured //= 2
        if 2 <= measured < gpus:
            steps = math.log2(gpus / measured) if op == "all_reduce" else gpus - measured
            growth = ((gpus - 1) / gpus) / ((measured - 1) / measured)
            timed = modelled(timed.seconds * growth + steps * self.profile.nvlink_latency_s.value, "network")
        return Timed(np.where(size > 0, timed.seconds, 0.0), timed.measured, "network")

    def broadcast(self, message_bytes: float, crosses_network: bool) -> Timed:
        """Pipelined broadcast of a large message from one source: bounded by the source's own link."""
        rate = self.network if crosses_network else self.nvlink
        return modelled(message_bytes / rate, "network")

    def host_copy(self, copied_bytes: float) -> Timed:
        """Copy between a GPU and its host, one direction."""
        rate = self.profile.host_link_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
        return modelled(copied_bytes / rate, "host link")


def _free(size: FloatArray) -> Timed:
    return Timed(np.zeros_like(size), np.ones_like(size), "none")


def _link_s(profile: HardwareProfile, op: str, gpus: int, size: FloatArray) -> FloatArray:
    """Latency and bandwidth of a collective on NVLink: a tree's latency and twice the traffic for an all-reduce."""
    latency, bandwidth = profile.nvlink_latency_s.value, profile.nvlink_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
    wire = (gpus - 1) / gpus * size / bandwidth
    if op == "all_reduce":
        return np.asarray(2 * math.log2(gpus) * latency + 2 * wire, dtype=np.float64)
    return np.asarray((gpus - 1) * latency + wire, dtype=np.float64)
