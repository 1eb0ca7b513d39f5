"""What a run of a user leaves open besides guesses: its network, its host, and what nobody's model explains.

The network and the host are drawn from what users' clusters had; phases are priced at points of both and interpolated.
What remains is a deviation of each phase with the spread that left-out sources showed (rlsim validate, kind wild).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from msgspec.structs import replace

from rlsim.costs.engine.hosts import HostOverheads
from rlsim.costs.engine.prices import decode_points_s
from rlsim.costs.links import node_link
from rlsim.costs.operators.groups import phase_groups
from rlsim.costs.prices import PriceInputs, trained_batch
from rlsim.costs.users import user_deviation, user_host
from rlsim.loading.scenario import vary
from rlsim.parameters.terms import fitted_of
from rlsim.projection.uncertainty.slopes import points_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

POINTS = (-2.5, -1.25, 0.0, 1.25, 2.5)
"""Standard deviations at which phases are priced; beyond them they stay."""
LINK = "cluster.fabric"
HOST = "engine.host_iteration_s"
SERVERS_SPREAD = 0.31
"""Standard deviation of the logarithm of servers' speed around that of the hosts that the fit belongs to, whose
interpreters nobody measured: published launches take 5 to 14 us on x86 hosts (slopes.LAUNCH_SPREAD), as 90 % of them.
"""
OWN_LOG = "own_log"
"""Of a posterior's fit: the log of a run that it was learnt from."""
LAYOUT = ("rollout of run: ", "training of run: ", "transfer of run: ")
Curve = Mapping[str, tuple[float, ...]]
"""By phase, what it adds to the logarithm of its time at each of POINTS."""


def moved_along(curve: Curve, phase: str, normals: FloatArray) -> FloatArray:
    """Change of the logarithm of the time of ``phase`` in each draw, between the points of ``curve``."""
    return np.interp(normals, POINTS, curve[phase]) if phase in curve else np.zeros_like(normals)


def link_curve(run: SimulatedVariant) -> Curve:
    """Trainer and transfer by the network between nodes; empty where it is known."""
    scenario, link = run.scenario, node_link(run.scenario)
    if link.exchange_spread and scenario.model.moe is not None:
        spread = link.exchange_spread
        return _curve(lambda x: trained_s(run, PriceInputs(scenario, slower_exchange=math.exp(x * spread))))
    if not link.log_spread or link.bytes_per_s is None:
        return {}
    device = scenario.training_device
    line = device.network_bandwidth_bytes_per_s.value * device.gpus_per_node.value

    def seconds(deviations: float) -> dict[str, float]:
        drawn = float(link.bytes_per_s or line) * math.exp(-deviations * link.log_spread)
        rate = min(line, max(link.least_bytes_per_s, drawn))
        return trained_s(run, PriceInputs(vary(scenario, {"cluster.node_bandwidth_bytes_per_s": rate})))

    return _curve(seconds)


def trained_s(run: SimulatedVariant, other: PriceInputs) -> dict[str, float]:
    """Seconds of the trainer's phases of the first measured batch and of the transfer under another network."""
    batch = trained_batch(run.first_step)
    cost = other.batch_cost(batch.total_tokens, batch.generated_samples)
    transfer = other.transfers.prepare() if run.scenario.cluster.colocated else other.transfers.transfer()
    return {"logprob": cost.logprob.seconds, "train": cost.train.seconds, "transfer": transfer.seconds}


def host_curve(run: SimulatedVariant) -> Curve:
    """Generation by the host of the engines; empty where its time is known."""
    inputs, (sequences, contexts, counts) = run.inputs.engine, points_of(run.counters)
    unsure, spread = _unsure_host(run.scenario, inputs.host)
    if not spread or not len(counts):
        return {}

    def seconds(deviations: float) -> dict[str, float]:
        more = math.exp(deviations * spread) - 1.0
        moved = replace(
            inputs.host,
            iteration_s=inputs.host.iteration_s + more * unsure.iteration_s,
            sequence_s=inputs.host.sequence_s + more * unsure.sequence_s,
            ahead_s=inputs.host.ahead_s + more * unsure.ahead_s,
        )
        stated = replace(inputs, host=moved)
        return {"generation": float(counts @ decode_points_s(stated, sequences, contexts)) + run.counters.prefill_s}

    return _curve(seconds)


def _unsure_host(scenario: Scenario, host: HostOverheads) -> tuple[HostOverheads, float]:
    """What of ``host`` moves, and the standard deviation of its logarithm: what users' hosts add, or all of it where
    its speed was compared with that of servers that nobody measured so."""
    if scenario.engine.host_slowdown is not None and scenario.engine.host_iteration_s is None:
        return host, SERVERS_SPREAD
    user = user_host(scenario)
    return (host, 0.0) if user is None else (HostOverheads(user.iteration_s, user.sequence_s), user.log_spread)


def _curve(seconds: Callable[[float], Mapping[str, float]]) -> Curve:
    found = [seconds(point) for point in POINTS]
    middle = found[POINTS.index(0.0)]
    return {
        phase: tuple(math.log(one[phase] / base_s) for one in found) for phase, base_s in middle.items() if base_s > 0
    }


def known_phases(scenario: Scenario) -> frozenset[str]:
    """Phases of which the posterior knows what this layout takes, from a log of its own (readers/logs/learning.py):
    neither users' deviations nor their hosts and networks leave these open."""
    posterior = fitted_of(scenario).posterior
    if posterior is None or OWN_LOG not in posterior.fit:
        return frozenset()
    return frozenset(phase for phase, group in layout_groups(scenario).items() if posterior.place(group) is not None)


def layout_groups(scenario: Scenario) -> dict[str, str]:
    """By phase, the group of what its layout alone takes beyond or below prediction."""
    found = {
        phase: [one for one in groups if one.startswith(LAYOUT)] for phase, groups in phase_groups(scenario).items()
    }
    return {phase: groups[0] for phase, groups in found.items() if groups}


def deviation_spreads(run: SimulatedVariant) -> dict[str, tuple[float, float]]:
    """By phase, standard deviations up and down of what users' runs of its family take beyond what is said of them."""
    found = {phase: user_deviation(run.scenario, phase) for phase in ("generation", "logprob", "train", "transfer")}
    return {phase: (one.above, one.below) for phase, one in found.items() if one is not None and one.above > 0}
