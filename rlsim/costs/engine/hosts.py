"""Host and graph terms of an engine: what a release was measured to leave exposed, what an RL framework adds, and what
hosts unlike those make of both."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.releases import prefill_factor, schedules_ahead, unhidden_s
from rlsim.costs.users import user_host
from rlsim.schema.base import replaced
from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import EngineParameters
from rlsim.schema.model import ModelCard
from rlsim.schema.parameters import GlobalParameters
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.units import FloatArray


class HostOverheads(Struct, frozen=True):
    """What tables of kernels do not hold of an engine iteration.

    iteration_s, sequence_s: scheduler and executor, a fixed part and one for each decoding sequence of an attention
    copy; drafting_iteration_s, drafting_sequence_s: what speculation adds to both. overlap_s: of each kernel's measured
    time what a replayed graph hides. network_hop_s: see EngineParameters. prefill_s: that a prefill takes at least, to
    be launched. layers_s: small kernels of all layers. factor: on whole iterations, the deviation of the groups of runs
    that they belong to. ahead_s: of a host slower than those measured, what it takes to prepare the next iteration
    while the device works on this one.
    """

    iteration_s: float
    sequence_s: float
    overlap_s: float = 0.0
    network_hop_s: float = 0.0
    drafting_iteration_s: float = 0.0
    drafting_sequence_s: float = 0.0
    prefill_s: float = 0.0
    layers_s: float = 0.0
    factor: float = 1.0
    ahead_s: float = 0.0

    def seconds(self, sequences: FloatArray, drafting: bool, device_s: FloatArray | float = 0.0) -> FloatArray:
        """Host time that an iteration waits for with ``sequences`` running in an attention copy, in seconds.

        device_s: the device's work on it, beside which the next one is prepared.
        """
        plain = self.iteration_s + self.sequence_s * sequences + np.maximum(0.0, self.ahead_s - device_s)
        return plain + self.drafting_iteration_s + self.drafting_sequence_s * sequences if drafting else plain

    def factors(self, compute_bound: FloatArray) -> FloatArray:
        """Deviation of iterations: of their device's time.

        It was learned from steps that mostly decode, bound by host and memory. What is bound by compute may take longer
        in a run, yet no less than the kernels that were measured for it.
        """
        return self.factor + compute_bound * max(0.0, 1.0 - self.factor)

    @property
    def of_kernels(self) -> HostOverheads:
        """The three host terms that kernels depend on."""
        return HostOverheads(0.0, 0.0, self.overlap_s, self.network_hop_s, layers_s=self.layers_s)


NO_SPECULATION = Speculation()
NO_HOST = HostOverheads(0.0, 0.0)
"""Device time alone."""


def engine_host(
    engine: Engine, card: ModelCard, fitted: EngineParameters, drafting: Speculation = NO_SPECULATION
) -> HostOverheads:
    """Host and graph terms of an engine that serves ``card``, as its release was measured.

    A stated key wins over a fitted value.
    """
    family = fitted.family(engine.name)
    waited_s = unhidden_s(engine, card, drafting, family.unhidden_s)
    iteration_s = stated(engine.host_iteration_s, family.iteration_s + waited_s)
    prefill_s = prefill_factor(engine, drafting) * family.prefill.seconds(card, engine.weight_precision)
    return HostOverheads(
        iteration_s, stated(engine.host_sequence_s, family.sequence_s), family.overlap_s, fitted.network_hop_s,
        family.drafting_iteration_s, family.drafting_sequence_s, prefill_s,
        fitted.layers.seconds(card, engine.weight_precision),
    )  # fmt: skip


def rollout_host(
    scenario: Scenario, fitted: GlobalParameters, engines: EngineParameters, factor: float = 1.0
) -> HostOverheads:
    """Host and graph terms of a rollout engine: those of serving, and what an RL framework's executor adds.

    Time per sequence is the framework's alone: it takes responses when they are complete, where a server hands every
    token of every sequence to a client.
    """
    engine, profile = scenario.released_engine, scenario.hardware
    nodes = -(-engine.gpus_per_replica // int(profile.gpus_per_node))
    in_process = engine.dispatch == "static" if engine.in_process is None else engine.in_process
    added_s, framework_sequence_s = fitted.host(
        fitted.release(engine.name, engine.version), engine.gpus_per_replica, nodes, in_process, profile.host_cpu
    )
    served = engine_host(engine, scenario.model, engines, scenario.speculation)
    if engine.name != "sglang":
        # The measured steps ran as their releases do, so that what these wait for is in the framework's terms.
        by_default = replaced(engine, {"async_scheduling": None})
        added_s -= unhidden_s(by_default, scenario.model, scenario.speculation, 0.0)
    if (host := user_host(scenario)) is not None:
        added_s, framework_sequence_s = added_s + host.iteration_s, framework_sequence_s + host.sequence_s
    found = replace(served, iteration_s=max(0.0, served.iteration_s + added_s), sequence_s=framework_sequence_s)
    if engine.host_slowdown is not None:
        found = slowed(found, engine.host_slowdown, scenario)
    return replace(
        found,
        iteration_s=stated(engine.host_iteration_s, found.iteration_s),
        sequence_s=stated(engine.host_sequence_s, found.sequence_s),
        ahead_s=0.0 if engine.host_iteration_s is not None else found.ahead_s,
        factor=factor,
    )


def slowed(host: HostOverheads, slowdown: float, scenario: Scenario) -> HostOverheads:
    """``host`` on a machine that takes ``slowdown`` times as long for an interpreter's work.

    Schedulers and executors are Python: their time goes with that of one thread. What is hidden behind the device comes
    out once it takes longer than the device's work.
    """
    engine, card, drafting = scenario.released_engine, scenario.model, scenario.speculation
    hidden_s = 0.0
    if schedules_ahead(engine, card, drafting):
        waiting = replaced(engine, {"async_scheduling": False, "overlap_scheduling": None})
        hidden_s = unhidden_s(waiting, card, drafting, 0.0)
    return replace(
        host,
        iteration_s=host.iteration_s * slowdown,
        sequence_s=host.sequence_s * slowdown,
        drafting_iteration_s=host.drafting_iteration_s * slowdown,
        drafting_sequence_s=host.drafting_sequence_s * slowdown,
        prefill_s=host.prefill_s * slowdown,
        ahead_s=hidden_s * slowdown if slowdown > 1.0 else 0.0,
    )


def stated(value: float | None, default: float) -> float:
    """``value`` where a scenario states it, else ``default``."""
    return default if value is None else value
