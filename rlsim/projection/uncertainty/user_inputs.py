"""What a run of a user leaves open besides guesses: its network, its host, and what nobody's model explains.

The network and the host are drawn from what users' clusters had; phases are priced at points of both and interpolated.
What remains is a deviation of each phase with the spread that left-out sources showed (rlsim validate, kind wild).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from msgspec.structs import replace

from rlsim.costs.engine.prices import decode_points_s
from rlsim.costs.links import node_link
from rlsim.costs.prices import PriceInputs, trained_batch
from rlsim.costs.users import user_deviation, user_host
from rlsim.loading.scenario import vary
from rlsim.projection.uncertainty.slopes import points_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.units import FloatArray

POINTS = (-2.5, -1.25, 0.0, 1.25, 2.5)
"""Standard deviations at which phases are priced; beyond them they stay."""
LINK = "cluster.fabric"
HOST = "engine.host_iteration_s"
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
    """Generation by the host of the engines; empty where it is known."""
    host, (sequences, contexts, counts) = user_host(run.scenario), points_of(run.counters)
    if host is None or not host.log_spread or not len(counts):
        return {}
    inputs = run.inputs.engine

    def seconds(deviations: float) -> dict[str, float]:
        more = math.exp(deviations * host.log_spread) - 1.0
        moved = replace(
            inputs.host,
            iteration_s=inputs.host.iteration_s + more * host.iteration_s,
            sequence_s=inputs.host.sequence_s + more * host.sequence_s,
        )
        stated = replace(inputs, host=moved)
        return {"generation": float(counts @ decode_points_s(stated, sequences, contexts)) + run.counters.prefill_s}

    return _curve(seconds)


def _curve(seconds: Callable[[float], Mapping[str, float]]) -> Curve:
    found = [seconds(point) for point in POINTS]
    middle = found[POINTS.index(0.0)]
    return {
        phase: tuple(math.log(one[phase] / base_s) for one in found) for phase, base_s in middle.items() if base_s > 0
    }


def deviation_spreads(run: SimulatedVariant) -> dict[str, tuple[float, float]]:
    """By phase, standard deviations up and down of what users' runs of its family take beyond what is said of them."""
    found = {phase: user_deviation(run.scenario, phase) for phase in ("generation", "logprob", "train", "transfer")}
    return {phase: (one.above, one.below) for phase, one in found.items() if one is not None and one.above > 0}
