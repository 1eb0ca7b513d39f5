"""Seconds of one weight transfer, by method: closed forms of bytes, tensors, layout and links.

Roots: NeMo-RL (packed broadcast over all ranks of both pools, resharding, CUDA IPC, NIXL), verl (bucketed broadcast
from one rank, sharded deltas, checkpoint engines), SkyRL (a collective for each tensor), checkpoint-engine (broadcast
from host memory). A transfer of a framework without a row takes the values over all of them.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from rlsim.costs.interface import Part
from rlsim.schema.engine_parameters import TransferFamily, TransferParameters, TransferValues

Method = Literal[
    "cuda_ipc", "nccl_per_tensor", "nccl_broadcast", "nccl_reshard", "checkpoint_engine", "checkpoint_engine_p2p",
    "rdma", "delta_sharded", "disk",
]  # fmt: skip
ONLOAD = "trainer weights from host memory"
MASTER_RATIO = 2.0
"""Bytes of FSDP's FP32 weights, which a gather moves, over those in BF16 (verl and SkyRL cast after the gather)."""
DELTA_BYTES_RATIO = 3.0
"""Bytes of a changed BF16 value with its 4-byte place over those of the value."""


class Links(Struct, frozen=True):
    """Line rates per GPU and direction, and how many GPUs share what.

    node_bytes_per_s: of the link of a node; None where every GPU has a port of its own.
    """

    nvlink_bytes_per_s: float
    domain_gpus: int
    node_gpus: int
    network_bytes_per_s: float
    host_bytes_per_s: float
    grace: bool = False
    node_bytes_per_s: float | None = None

    def ports(self, count: int) -> float:
        """Ports' worth of rate that ``count`` ports of a node have together; a link that they share bounds it."""
        shared = self.node_bytes_per_s
        return count if shared is None else min(count, shared / self.network_bytes_per_s)


class Sender(Struct, frozen=True):
    """The trainer's side of a transfer.

    copy_gpus: GPUs over which one copy of the weights is sharded; expert_parallel, pipeline_parallel: how. full_state:
    the whole state is gathered before anything is sent (FSDP1). onload_bytes: per GPU, that lie in host memory and come
    to the GPU for the transfer. in_host_memory: the weights lie in host memory already, split over the engine's GPUs.
    """

    gpus: int
    copy_gpus: int = 1
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    fsdp: bool = False
    full_state: bool = False
    onload_bytes: float = 0.0
    in_host_memory: bool = False


class Receiver(Struct, frozen=True):
    """The engine's side. loads False: the weights are received and not loaded, and nothing is exported."""

    gpus: int
    replica_gpus: int = 1
    loads: bool = True


class TransferJob(Struct, frozen=True):
    """What is moved, from where to where.

    full_bytes: one copy of the weights in BF16; wire_bytes: as they travel. expert_share: of the bytes, those of routed
    experts. stacked_tensors: weight tensors with all experts of a layer as one. changed_share: of the values, those
    that a delta holds. full_experts: every GPU receives all experts. quantised: the engine quantises on arrival.
    one_kind: both sides are of one kind of GPU; two kinds are in no domain of NVLink together. gathered_bytes: that the
    trainer gathers, in BF16; None: what it sends.
    """

    method: Method
    full_bytes: float
    wire_bytes: float
    tensors: float
    stacked_tensors: float
    sender: Sender
    receiver: Receiver
    links: Links
    expert_share: float = 0.0
    changed_share: float = 0.02
    full_experts: bool = False
    quantised: bool = False
    disk_bytes_per_s: float = 5e9
    one_kind: bool = True
    gathered_bytes: float | None = None

    @property
    def in_one_domain(self) -> bool:
        """Whether NVLink joins all GPUs that take part."""
        if not self.one_kind:
            return False
        # What leaves host memory or stays on its GPU crosses no NVLink between sender and receiver.
        senders = 0 if self.sender.in_host_memory or self.method == "cuda_ipc" else self.sender.gpus
        return senders + self.receiver.gpus <= self.links.domain_gpus

    @property
    def sent_tensors(self) -> float:
        """Weight tensors of one training rank."""
        sender = self.sender
        experts = (self.tensors - self.stacked_tensors) / sender.expert_parallel
        return (self.stacked_tensors + experts) / sender.pipeline_parallel

    @property
    def received_bytes(self) -> float:
        """Bytes that one GPU of the engine receives."""
        if self.method == "nccl_reshard":
            return self.wire_bytes / self.receiver.replica_gpus
        if self.method == "rdma" and not self.full_experts:
            share = self.expert_share
            # Of experts a GPU fetches those it holds, of the rest all.
            return self.wire_bytes * (1 - share + share / self.receiver.replica_gpus)
        if self.method == "delta_sharded":
            return self.wire_bytes * self.changed_share * DELTA_BYTES_RATIO
        return self.wire_bytes


class TransferTerms(Struct, frozen=True):
    """Fitted values for one framework. tensor_s: stated host time per tensor; error: of the logarithm.

    factor: on all that a transfer takes, the deviation of the groups of runs that it belongs to.
    """

    values: TransferValues
    family: TransferFamily
    fixed_s: float
    tensor_s: float | None = None
    error: float = 0.0
    source: str = ""
    factor: float = 1.0

    @classmethod
    def of(
        cls,
        fitted: TransferParameters,
        framework: str,
        tensor_s: float | None = None,
        fixed_s: float | None = None,
        colocated: bool = False,
    ) -> TransferTerms:
        """Values for ``framework``; a stated time wins over a fitted one."""
        family = fitted.family(framework)
        # Pools of their own wait for each other through a driver, as the rows of all frameworks but the default's did;
        # on shared GPUs nobody else is waited for.
        own = min(family.fixed_s, fitted.values.fixed_s) if colocated else family.fixed_s
        fixed = own if fixed_s is None else fixed_s
        return cls(fitted.values, family, fixed, tensor_s, fitted.error_of(framework), fitted.name)

    def host(self, links: Links) -> float:
        """Host times of this framework on this host relative to the values."""
        return self.family.host_factor * (self.values.grace_factor if links.grace else 1.0)


def at_line_rate(job: TransferJob, terms: TransferTerms) -> list[Part]:
    """Parts of a transfer on links in seconds, at the rates of their datasheets: none can be shorter."""
    onload = job.sender.onload_bytes / job.links.host_bytes_per_s
    return [Part(ONLOAD, onload, "host link"), *_wire(job, _Rates(job, terms, line=True))]


def transfer_parts(job: TransferJob, terms: TransferTerms, stated_bytes_per_s: float | None = None) -> list[Part]:
    """Parts of a transfer in seconds, one after the other; a stated rate replaces what the links allow."""
    rates = _Rates(job, terms)
    if stated_bytes_per_s:
        wire = [Part("weights on the wire", job.wire_bytes / stated_bytes_per_s, "network", "assumed")]
    else:
        wire = _wire(job, rates)
    values, host = terms.values, terms.host(job.links)
    quantised_s = job.tensors * values.quantise_tensor_s * host if job.quantised else 0.0
    # Resharding: an engine GPU receives from every rank that holds a part of the copy.
    connected_s = job.sender.copy_gpus * values.shard_peer_s * host if job.method == "nccl_reshard" else 0.0
    return [
        Part(ONLOAD, job.sender.onload_bytes / values.pageable_out_bytes_per_s, "host link"),
        *wire,
        Part("handling of weight tensors", job.tensors * tensor_s(job, terms), "host"),
        Part("quantisation of weight tensors", quantised_s, "host"),
        Part("connections of shards", connected_s, "host"),
        Part("refit synchronisation", terms.fixed_s, "host"),
    ]


class _Rates(Struct, frozen=True):
    """Achieved rates of one job in bytes/s; line: those of the links."""

    job: TransferJob
    terms: TransferTerms
    line: bool = False

    def share(self, share: float, factor: float = 1.0) -> float:
        """Share of a link that is reached, of a fitted one and its factors; never more than all of it."""
        # Fitted factors of a framework may carry a share above the link.
        return 1.0 if self.line else min(1.0, share * self.terms.family.link_factor * factor)

    def collective(self, factor: float = 1.0) -> tuple[float, float]:
        """NVLink and one GPU's network port in a collective; factor: on their shares, of a gather."""
        links, values = self.job.links, self.terms.values
        nvlink = links.nvlink_bytes_per_s * self.share(values.nvlink_share, factor)
        return nvlink, links.network_bytes_per_s * self.share(values.network_share, factor)

    @property
    def shard(self) -> float:
        """One GPU receiving for itself: over NVLink where it joins everyone."""
        links, share = self.job.links, self.share(self.terms.values.shard_share)
        port = links.network_bytes_per_s / links.node_gpus * links.ports(links.node_gpus)
        return share * (links.nvlink_bytes_per_s if self.job.in_one_domain else port)

    @property
    def host(self) -> float:
        """Pinned host memory to one GPU."""
        return self.job.links.host_bytes_per_s * (1.0 if self.line else self.terms.values.host_link_share)

    @property
    def broadcast(self) -> float:
        """One sender to everyone, pipelined: NVLink inside a domain, the sending node's ports beyond it."""
        job, (nvlink, port) = self.job, self.collective()
        if job.in_one_domain:
            return nvlink
        beside = job.receiver.gpus if job.sender.in_host_memory else job.sender.gpus
        ports = min(job.links.node_gpus, beside) if self.terms.family.rails == "node" else 1
        return min(nvlink, job.links.ports(ports) * port)


def gather_s(gathered_bytes: float, gpus: int, links: Links, rates: tuple[float, float], ports: int) -> float:
    """Seconds until each of ``gpus`` GPUs holds all bytes, of which each held an equal part.

    A ring: over NVLink in a domain; between domains over at most ``ports`` ports of each. rates: achieved over NVLink
    and over a port, in bytes/s.
    """
    nvlink, port = rates
    if gpus <= 1:
        return 0.0
    # Rings in and between domains run at the same time: the slower one sets the pace.
    inside = min(gpus, links.domain_gpus)
    local = gathered_bytes * (gpus - 1) / gpus / nvlink
    domains = math.ceil(gpus / inside)
    return max(local, gathered_bytes * (domains - 1) / domains / (links.ports(min(inside, ports)) * port))


def _wire(job: TransferJob, rates: _Rates) -> list[Part]:
    """Gathers, sends and copies of the method."""
    sender, method = job.sender, job.method
    gathered_bytes = job.full_bytes if job.gathered_bytes is None else job.gathered_bytes
    whole = gathered_bytes * (MASTER_RATIO if sender.fsdp else 1.0)
    # FSDP gathers one tensor after the other, each too small for more than one port of a node; the groups of its expert
    # ranks gather side by side.
    ports = sender.expert_parallel if sender.fsdp else job.links.domain_gpus
    gather_rates = rates.collective(rates.terms.family.gather_factor)
    gather = gather_s(whole, sender.copy_gpus, job.links, gather_rates, ports)
    if sender.in_host_memory or not job.receiver.loads:
        gather = 0.0
    before, sent = gather if sender.full_state else 0.0, _sent_s(job, rates)
    gathered = before if method in ("nccl_reshard", "rdma", "delta_sharded") else before + gather
    if method == "nccl_broadcast" and not sender.fsdp:
        # With two buffers the shorter runs under the longer; FSDP gathers tensor by tensor before a bucket is full.
        gathered, sent = before, max(gather, sent)
    copied = job.full_bytes / sender.gpus / rates.host if method.startswith("checkpoint") else 0.0
    return [
        Part("gathering of full tensors", gathered, "network"),
        Part("weights to host memory", 0.0 if sender.in_host_memory else copied, "host link"),
        Part("weights on the wire", sent, "network"),
    ]


def _sent_s(job: TransferJob, rates: _Rates) -> float:
    """Seconds on the wire, of whole tensors that the sender holds."""
    method, receiver, values = job.method, job.receiver, rates.terms.values
    if method == "cuda_ipc":
        return 0.0
    if method == "nccl_reshard":
        # All GPUs at once, bounded by the busier side: what one receives, or what one sends to all replicas.
        replicas = receiver.gpus / receiver.replica_gpus
        return max(job.received_bytes, job.wire_bytes * replicas / job.sender.gpus) / rates.shard
    if method == "rdma":
        return job.received_bytes / rates.shard
    if method == "delta_sharded":
        # Changed values with their places: found and packed, sent, unpacked.
        found = 0.0 if rates.line else 1 / values.delta_bytes_per_s
        return job.received_bytes * (found + 1 / rates.broadcast)
    if method == "disk":
        # One copy written by the trainer's nodes together, then read by each engine node.
        nodes = math.ceil(job.sender.gpus / job.links.node_gpus)
        return job.wire_bytes * (1 / nodes + 1) / job.disk_bytes_per_s
    broadcast_s = job.wire_bytes / rates.broadcast
    if not method.startswith("checkpoint"):
        return broadcast_s
    # Buckets of host memory to their GPU, each broadcast to all: the slower of two stages that overlap.
    from_host_s = max(job.wire_bytes / receiver.gpus / rates.host, broadcast_s)
    if method == "checkpoint_engine":
        return from_host_s
    # One copy from other nodes' host memory over the ports of the nodes that fetch it.
    network = job.links.network_bytes_per_s * rates.share(values.shard_share)
    return from_host_s + job.wire_bytes / (job.links.ports(min(job.links.node_gpus, receiver.gpus)) * network)


def tensor_s(job: TransferJob, terms: TransferTerms) -> float:
    """Seconds per weight tensor of the method's work on the host, stated or fitted."""
    if terms.tensor_s is not None:
        return terms.tensor_s
    v, sender = terms.values, job.sender
    export = v.export_tensor_s if not sender.in_host_memory else 0.0
    load = v.load_tensor_s if job.receiver.loads else 0.0
    nodes = math.ceil(sender.copy_gpus / job.links.node_gpus)
    gathered = v.fsdp_tensor_s + (nodes - 1) * v.fsdp_node_s
    if sender.fsdp and job.receiver.loads and not sender.in_host_memory:
        export += gathered
    stacked = job.stacked_tensors / job.tensors
    # Of experts only those that a GPU holds are loaded, as one stacked tensor of each kind.
    sharded_load = load * (1 if job.full_experts else stacked)
    per_method = {
        "cuda_ipc": export + load + v.ipc_tensor_s,
        "nccl_per_tensor": export + load + v.collective_tensor_s,
        # Time is of a rank's own tensors; the caller multiplies by all of them.
        "nccl_reshard": v.shard_tensor_s * job.sent_tensors / job.tensors,
        "rdma": v.rdma_tensor_s + sharded_load,
        "delta_sharded": v.delta_tensor_s + (gathered if sender.full_state else 0.0),
    }
    return per_method.get(job.method, export + load) * terms.host(job.links)
