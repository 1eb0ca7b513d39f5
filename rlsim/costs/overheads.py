"""What no operator table holds, for one scenario: its own values where it states them, fitted ones elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlsim.schema.parameters import GlobalParameters
from rlsim.schema.scenario import Scenario


@dataclass(frozen=True)
class HostOverheads:
    """Scheduler and executor time of an engine iteration: a fixed part and one for each decoding sequence."""

    iteration_s: float
    sequence_s: float


@dataclass(frozen=True)
class TrainingOverheads:
    """Share of the operator tables' speed that training reaches, and least host time of a MoE layer's forward pass."""

    dense_efficiency: float
    moe_efficiency: float
    moe_host_layer_s: float


@dataclass(frozen=True)
class Overheads:
    """Host and framework costs; see GlobalParameters for the meaning of each. source: name of the fitted set.

    step_error: standard deviation of a time as a share of it, of the fit and of the measured tables together;
    tables_error: the part of the tables.
    """

    host_iteration_s: float
    host_sequence_s: float
    dense_efficiency: float
    moe_efficiency: float
    moe_host_layer_s: float
    refit_tensor_s: float
    refit_fixed_s: float
    step_error: float
    speedup_error: float
    source: str
    tables_error: float = 0.0

    @property
    def host(self) -> HostOverheads:
        """The engine's share of them."""
        return HostOverheads(self.host_iteration_s, self.host_sequence_s)

    @property
    def training(self) -> TrainingOverheads:
        """The trainer's share of them."""
        return TrainingOverheads(self.dense_efficiency, self.moe_efficiency, self.moe_host_layer_s)


def overheads_of(scenario: Scenario, fitted: GlobalParameters, tables_error: float = 0.0) -> Overheads:
    """Overheads of ``scenario``: a stated key wins over the fitted value.

    tables_error: of the operator tables in use, by their self-checks (:func:`rlsim.costs.borrowed.tables_error`).
    """
    engine, trainer, loop, profile = scenario.engine, scenario.trainer, scenario.loop, scenario.hardware
    nodes = -(-engine.gpus_per_replica // int(profile.gpus_per_node))
    in_process = engine.dispatch == "static" if engine.in_process is None else engine.in_process
    iteration_s, sequence_s = fitted.host(
        engine.name, engine.version, engine.gpus_per_replica, nodes, in_process, profile.host_cpu
    )
    framework = fitted.fsdp_efficiency if trainer.backend == "fsdp" else 1.0
    colocated = scenario.cluster.colocated
    return Overheads(
        host_iteration_s=_stated(engine.host_iteration_s, iteration_s),
        host_sequence_s=_stated(engine.host_sequence_s, sequence_s),
        dense_efficiency=_stated(trainer.device_efficiency, fitted.dense_efficiency * framework),
        moe_efficiency=_stated(
            trainer.moe_device_efficiency, _stated(trainer.device_efficiency, fitted.moe_efficiency * framework)
        ),
        moe_host_layer_s=_stated(trainer.moe_host_layer_s, fitted.moe_host_layer_s),
        refit_tensor_s=_stated(loop.refit_tensor_s, fitted.colocated_tensor_s if colocated else fitted.split_tensor_s),
        refit_fixed_s=_stated(loop.refit_fixed_s, fitted.colocated_fixed_s if colocated else fitted.split_fixed_s),
        step_error=math.hypot(fitted.step_error, tables_error),
        speedup_error=fitted.speedup_error,
        source=fitted.name,
        tables_error=tables_error,
    )


def _stated(value: float | None, default: float) -> float:
    return default if value is None else value
