"""What no operator table holds, for one scenario: its own values where it states them, fitted ones elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlsim.costs.refit_methods import TransferTerms
from rlsim.costs.work import FloatArray
from rlsim.hardware.parameters import transfer_parameters_of
from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import EngineParameters
from rlsim.schema.parameters import GlobalParameters
from rlsim.schema.scenario import Scenario


@dataclass(frozen=True)
class HostOverheads:
    """What tables of kernels do not hold of an engine iteration.

    iteration_s, sequence_s: scheduler and executor, a fixed part and one for each decoding sequence of an attention
    copy; drafting_iteration_s, drafting_sequence_s: what speculation adds to both. overlap_s: of each kernel's measured
    time what a replayed graph hides. network_hop_s: see EngineParameters.
    """

    iteration_s: float
    sequence_s: float
    overlap_s: float = 0.0
    network_hop_s: float = 0.0
    drafting_iteration_s: float = 0.0
    drafting_sequence_s: float = 0.0

    def seconds(self, sequences: FloatArray, drafting: bool) -> FloatArray:
        """Host time of an iteration with ``sequences`` running in an attention copy, in seconds."""
        plain = self.iteration_s + self.sequence_s * sequences
        return plain + self.drafting_iteration_s + self.drafting_sequence_s * sequences if drafting else plain


NO_HOST = HostOverheads(0.0, 0.0)
"""Device time alone."""


def engine_host(engine: Engine, fitted: EngineParameters) -> HostOverheads:
    """Host and graph terms of a serving engine, as its release was measured; a stated key wins over a fitted value."""
    family = fitted.family(engine.name)
    return HostOverheads(
        _stated(engine.host_iteration_s, family.host_s(engine.version)),
        _stated(engine.host_sequence_s, family.sequence_s),
        family.overlap_s,
        fitted.network_hop_s,
        family.drafting_iteration_s,
        family.drafting_sequence_s,
    )


@dataclass(frozen=True)
class TrainingOverheads:
    """Share of the operator tables' speed that training reaches, and least host time of a MoE layer's forward pass."""

    dense_efficiency: float
    moe_efficiency: float
    moe_host_layer_s: float


@dataclass(frozen=True)
class Overheads:
    """Host and framework costs; see GlobalParameters for the meaning of each. source: name of the fitted set.

    engine: host and graph terms of the rollout engine. refit: weight transfers.

    step_error: standard deviation of a time as a share of it, of the fit and of the measured tables together;
    tables_error: the part of the tables.
    """

    engine: HostOverheads
    dense_efficiency: float
    moe_efficiency: float
    moe_host_layer_s: float
    refit: TransferTerms
    step_error: float
    speedup_error: float
    source: str
    tables_error: float = 0.0

    @property
    def training(self) -> TrainingOverheads:
        """The trainer's share of them."""
        return TrainingOverheads(self.dense_efficiency, self.moe_efficiency, self.moe_host_layer_s)


def rollout_host(scenario: Scenario, fitted: GlobalParameters, engines: EngineParameters) -> HostOverheads:
    """Host and graph terms of a rollout engine: those of serving, and what an RL framework's executor adds.

    Time per sequence is the framework's alone: it takes responses when they are complete, where a server hands every
    token of every sequence to a client.
    """
    engine, profile = scenario.engine, scenario.hardware
    nodes = -(-engine.gpus_per_replica // int(profile.gpus_per_node))
    in_process = engine.dispatch == "static" if engine.in_process is None else engine.in_process
    added_s, framework_sequence_s = fitted.host(
        engine.name, engine.version, engine.gpus_per_replica, nodes, in_process, profile.host_cpu
    )
    served = engine_host(engine, engines)
    return replace(
        served,
        iteration_s=_stated(engine.host_iteration_s, served.iteration_s + added_s),
        sequence_s=_stated(engine.host_sequence_s, framework_sequence_s),
    )


def overheads_of(
    scenario: Scenario, fitted: GlobalParameters, engines: EngineParameters, tables_error: float = 0.0
) -> Overheads:
    """Overheads of ``scenario``: a stated key wins over the fitted value.

    tables_error: of the operator tables in use, by their self-checks (:func:`rlsim.costs.borrowed.tables_error`).
    """
    trainer, loop = scenario.trainer, scenario.loop
    framework = fitted.fsdp_efficiency if trainer.backend == "fsdp" else 1.0
    return Overheads(
        engine=rollout_host(scenario, fitted, engines),
        dense_efficiency=_stated(trainer.device_efficiency, fitted.dense_efficiency * framework),
        moe_efficiency=_stated(
            trainer.moe_device_efficiency, _stated(trainer.device_efficiency, fitted.moe_efficiency * framework)
        ),
        moe_host_layer_s=_stated(trainer.moe_host_layer_s, fitted.moe_host_layer_s),
        refit=TransferTerms.of(
            transfer_parameters_of(scenario), loop.refit_framework, loop.refit_tensor_s, loop.refit_fixed_s
        ),
        step_error=math.hypot(fitted.step_error, tables_error),
        speedup_error=fitted.speedup_error,
        source=fitted.name,
        tables_error=tables_error,
    )


def _stated(value: float | None, default: float) -> float:
    return default if value is None else value
