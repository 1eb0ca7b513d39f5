"""Hardware profile: one GPU, its node, its fabric; every number with the place it comes from."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rlsim.errors import InputError
from rlsim.schema.base import Name, PositiveFloat, Strict

Provenance = Literal["datasheet", "measured", "assumed"]


BOUNDS: dict[str, tuple[float, float, str]] = {
    "memory_bytes": (1e8, 1e13, "bytes"),
    "memory_bandwidth_bytes_per_s": (1e8, 1e15, "bytes/s"),
    "bf16_flops": (1e8, 1e18, "FLOP/s"),
    "fp8_flops": (1e8, 1e18, "FLOP/s"),
    "nvfp4_flops": (1e8, 1e18, "FLOP/s"),
    "nvlink_bandwidth_bytes_per_s": (1e6, 1e14, "bytes/s"),
    "network_bandwidth_bytes_per_s": (1e6, 1e14, "bytes/s"),
    "host_link_bandwidth_bytes_per_s": (1e6, 1e14, "bytes/s"),
    "nvlink_latency_s": (1e-9, 1e-2, "seconds"),
    "network_latency_s": (1e-9, 1e-1, "seconds"),
    "eager_launch_s": (1e-8, 1e-2, "seconds"),
    "host_memory_bytes": (1e9, 1e15, "bytes"),
    "l2_bytes": (1e4, 1e11, "bytes"),
}
"""Least and greatest values and their unit: from a core of a busy processor to ten times the largest announced GPU, so
that what is off by a prefix (GB/s, TFLOP/s, GiB, microseconds) falls outside."""


class SourcedValue(Strict):
    """A number with its origin. ``float(q)`` and ``int(q)`` give the number."""

    value: Annotated[PositiveFloat, Field(description="The number, in the unit that the key names.")]
    source: Annotated[Provenance, Field(description="Kind of origin.")]
    ref: Annotated[Name, Field(description="Document, table or reason.")]

    def __float__(self) -> float:
        return self.value

    def __int__(self) -> int:
        return int(self.value)


class HardwareProfile(Strict):
    """One GPU type in its system. Rates are dense and per GPU; link rates are per GPU and direction."""

    name: Annotated[Name, Field(description="Name of the profile.")]
    description: Annotated[Name, Field(description="The system in one sentence.")]
    memory_bytes: Annotated[SourcedValue, Field(description="Memory of one GPU as its driver reports it.")]
    memory_bandwidth_bytes_per_s: Annotated[SourcedValue, Field(description="Peak bandwidth of the GPU memory.")]
    bf16_flops: Annotated[SourcedValue, Field(description="Peak dense BF16 rate in FLOP/s.")]
    fp8_flops: Annotated[SourcedValue, Field(description="Peak dense FP8 rate in FLOP/s.")]
    nvfp4_flops: Annotated[SourcedValue | None, Field(description="Peak dense NVFP4 rate in FLOP/s; null without.")] = (
        None
    )
    nvlink_bandwidth_bytes_per_s: Annotated[SourcedValue, Field(description="NVLink rate.")]
    nvlink_domain_gpus: Annotated[SourcedValue, Field(description="GPUs that reach each other over NVLink.")]
    gpus_per_node: Annotated[SourcedValue, Field(description="GPUs under one operating system.")]
    nvlink_latency_s: Annotated[
        SourcedValue, Field(description="Time of a small-message step over NVLink, in a graph.")
    ]
    network_bandwidth_bytes_per_s: Annotated[SourcedValue, Field(description="Rate of the scale-out network.")]
    network_latency_s: Annotated[SourcedValue, Field(description="Latency of one message over the network.")]
    host_link_bandwidth_bytes_per_s: Annotated[SourcedValue, Field(description="Rate between a GPU and its host.")]
    host_memory_bytes: Annotated[SourcedValue, Field(description="Host memory of one node.")]
    l2_bytes: Annotated[SourcedValue, Field(description="Last-level cache of the GPU.")]
    power_w: Annotated[SourcedValue, Field(description="Power limit of one GPU.")]
    price_per_gpu_hour_usd: Annotated[SourcedValue, Field(description="Price of a GPU hour; set your own.")]
    host_cpu: Annotated[Name, Field(description="Host processor.")]
    eager_launch_s: Annotated[
        SourcedValue,
        Field(description="Host time per operator that an eager launch adds to one replayed from a graph."),
    ]
    operator_tables: Annotated[
        Name | None, Field(description="Folder of measured operator tables under calibration/; null without.")
    ] = None

    @model_validator(mode="after")
    def _in_their_units(self) -> Self:
        for key, (least, most, unit) in BOUNDS.items():
            quantity = getattr(self, key)
            if quantity is not None and not least <= quantity.value <= most:
                raise ValueError(f"{key} must be in {unit}, between {least:g} and {most:g}; got {quantity.value:g}")
        return self

    @model_validator(mode="after")
    def _whole_gpus(self) -> Self:
        for key in ("nvlink_domain_gpus", "gpus_per_node"):
            value = float(getattr(self, key))
            if value != int(value):
                raise ValueError(f"{key} must be a whole number, got {value:g}")
        return self

    @model_validator(mode="after")
    def _nodes_fill_the_domain(self) -> Self:
        domain, node = int(self.nvlink_domain_gpus), int(self.gpus_per_node)
        if domain % node and node % domain:
            raise ValueError(f"gpus_per_node {node} and nvlink_domain_gpus {domain} do not divide each other")
        return self

    def flops(self, precision: str) -> float:
        """Peak dense FLOP/s at ``precision`` (bf16, fp8 or nvfp4). InputError where the GPU has no such unit."""
        rates = {"bf16": self.bf16_flops, "fp8": self.fp8_flops, "nvfp4": self.nvfp4_flops}
        rate = rates.get(precision)
        if rate is None:
            known = ", ".join(name for name, quantity in rates.items() if quantity is not None)
            raise InputError(f"hardware '{self.name}' has no {precision} rate; it has {known}")
        return rate.value
