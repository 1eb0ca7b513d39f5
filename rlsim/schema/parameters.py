"""What no operator table holds: few global parameters, fitted to measured RL steps, each with a physical meaning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlsim.schema.base import Fraction01, NonNegativeFloat, PositiveFloat, PositiveFraction, Strict
from rlsim.schema.engine_parameters import standing_for


class EngineHost(Strict):
    """Host overhead that an RL framework adds to one engine release: its executor and its handling of requests."""

    engine: str = Field(min_length=1, description="Engine.")
    version: str = Field(min_length=1, description="Release.")
    iteration_s: NonNegativeFloat = Field(description="Added host time per iteration of a single-GPU engine, x86 host.")


class FitRecord(Strict):
    """How the parameters came about and how well they do."""

    command: str = Field(description="Command that makes this file anew.")
    rows: int = Field(ge=0, description="Measured steps used.")
    data_digest: str = Field(description="SHA-256 (first 16 hex digits) of the table of steps.")
    median_error: NonNegativeFloat = Field(
        description="Median absolute relative error of the step time on the rows used."
    )
    p90_error: NonNegativeFloat = Field(description="90th percentile of the same.")
    fitted: tuple[str, ...] = Field(
        default=(),
        description="Values that these steps determined, such as dense_efficiency or engine_hosts.0.17.1; all others "
        "are assumed: taken over from where the fit started.",
    )
    skipped: dict[str, str] = Field(
        default_factory=dict, description="Rows of the table that were not used, each with its reason."
    )
    held_out_median_error: dict[str, NonNegativeFloat] = Field(
        description="Median error on rows of a group left out of the fit, by grouping (model, device, release)."
    )


class GlobalParameters(Strict):
    """Global parameters of host and trainer."""

    name: str = Field(min_length=1, description="Name of the set.")
    description: str = Field(description="What it was fitted to.")
    fit: FitRecord
    engine_hosts: tuple[EngineHost, ...] = Field(min_length=1, description="Newest release last; it is the default.")
    sequence_s: NonNegativeFloat = Field(
        description="Host time per running sequence and iteration, x86 host; in place of a server's, which hands on "
        "every token."
    )
    in_process_iteration_s: NonNegativeFloat = Field(
        description="Added per iteration where the engine shares the caller's process (offline generation)."
    )
    in_process_sequence_s: NonNegativeFloat = Field(description="The same per running sequence and iteration.")
    executor_s: NonNegativeFloat = Field(description="Host time per iteration of an engine spread over several GPUs.")
    node_executor_s: NonNegativeFloat = Field(description="The same beyond executor_s over several nodes.")
    host_cpu_factors: dict[str, PositiveFloat] = Field(description="Host time relative to x86 by host processor.")
    dense_efficiency: PositiveFraction = Field(
        description="Speed of the kernels of dense layers in RL trainers over that of tuned pretraining."
    )
    moe_efficiency: PositiveFraction = Field(description="The same for layers with experts.")
    fsdp_efficiency: PositiveFraction = Field(
        description="The same of FSDP (DTensor) relative to Megatron-Core, in the passes of an update."
    )
    moe_host_layer_s: NonNegativeFloat = Field(
        description="Least host time of one MoE layer's forward pass in RL trainers (many small kernels), whatever the "
        "host: steps on x86 and on Grace tell no difference."
    )
    colocated_tensor_s: NonNegativeFloat = Field(
        description="Host time per weight tensor that a colocated hand-over of the releases with measured steps takes "
        "beyond the measured transfers, which are of later code."
    )
    step_error: Fraction01 = Field(
        description="Standard deviation of ln(predicted / measured) of steps of models left out of the fit."
    )
    speedup_error: Fraction01 = Field(
        description="Standard deviation of ln(predicted / measured) of generation speed-ups by speculation: "
        "14 published cells of arXiv 2604.26779 (rlsim validate published)."
    )

    def __hash__(self) -> int:
        """Equal sets have equal names and errors; the mappings in them have no hash of their own."""
        return hash((self.name, self.engine_hosts, self.dense_efficiency, self.step_error))

    def origin(self, name: str) -> Literal["fitted", "assumed"]:
        """Whether the value called ``name`` was determined by measured steps."""
        return "fitted" if name in self.fit.fitted else "assumed"

    def release(self, engine: str, version: str | None) -> EngineHost:
        """The fitted release whose host times stand for ``version`` of ``engine``.

        It is the newest one that is not newer, the oldest where all are newer, and the newest without a version. An
        engine without a fit takes the last release of the file.
        """
        releases = [host for host in self.engine_hosts if host.engine == engine] or list(self.engine_hosts[-1:])
        if version is None:
            return releases[-1]
        return standing_for(version, releases, lambda host: host.version)

    def host(
        self, engine: str, version: str | None, gpus: int, nodes: int, in_process: bool, host_cpu: str
    ) -> tuple[float, float]:
        """Host seconds (per iteration, per running sequence) of a replica over ``gpus`` GPUs on ``nodes`` nodes.

        A release without a fit takes that of :meth:`release`.
        """
        found = self.release(engine, version)
        spread = (self.executor_s if gpus > 1 else 0.0) + (self.node_executor_s if nodes > 1 else 0.0)
        iteration = found.iteration_s + spread + (self.in_process_iteration_s if in_process else 0.0)
        sequence = self.sequence_s + (self.in_process_sequence_s if in_process else 0.0)
        factor = self.host_factor(host_cpu)
        return iteration * factor, sequence * factor

    def host_factor(self, host_cpu: str) -> float:
        """Host time relative to x86; 1 for processors without a fit."""
        words = host_cpu.lower()
        return next((factor for name, factor in self.host_cpu_factors.items() if name.lower() in words), 1.0)
