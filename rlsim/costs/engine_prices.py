"""What one replica of the rollout engine takes: a pure function of exactly what its iterations depend on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rlsim.costs.device import Device
from rlsim.costs.draft import Drafting
from rlsim.costs.iteration import IterationCosts, build_iteration, decode_s
from rlsim.costs.layers import EngineLayers
from rlsim.costs.overheads import HostOverheads
from rlsim.costs.work import FloatArray
from rlsim.schema.engine import Engine
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation

ENGINES_KEPT = 48
"""Iteration tables kept per process; one of 8,192 sequences takes some 50 MB with its parts."""
ACCEPTANCE_KEYS = ("acceptance_length", "position_acceptance", "first_acceptance", "acceptance_decay")
"""Keys of speculation that decide how many iterations a response takes and not how long one lasts."""


@dataclass(frozen=True)
class EngineInputs:
    """Everything that an engine iteration depends on; equal inputs have equal prices.

    drafting: the speculation section without its acceptance. max_sequences: most sequences that a replica can ever
    decode at once. prompt_tokens: mean length of a prompt.
    """

    model: ModelCard
    device: Device
    engine: Engine
    drafting: Speculation
    host: HostOverheads
    max_sequences: int
    max_context_tokens: int
    prompt_tokens: float
    kv_capacity_tokens: float


def engine_inputs(
    scenario: Scenario,
    device: Device,
    host: HostOverheads,
    prompt_tokens: float,
    kv_capacity_tokens: float,
    running_sequences: int | None = None,
) -> EngineInputs:
    """What an iteration of the engine of ``scenario`` depends on.

    running_sequences: that its memory lets run at once (recurrent states); None: what the engine is told.
    """
    engine, most = scenario.released_engine, most_sequences(scenario)
    if running_sequences is not None and running_sequences < most:
        engine = engine.model_copy(update={"max_running_sequences": running_sequences})
        most = running_sequences
    return EngineInputs(
        scenario.model,
        device,
        engine,
        _drafting(scenario.speculation),
        host,
        most,
        scenario.workload.max_sequence_tokens,
        prompt_tokens,
        kv_capacity_tokens,
    )


def _drafting(speculation: Speculation) -> Speculation:
    """``speculation`` without the keys that no iteration depends on, so that variants share prices by equality."""
    plain = Speculation()
    if not speculation.active:
        return plain
    return speculation.model_copy(update={name: getattr(plain, name) for name in ACCEPTANCE_KEYS})


def most_sequences(scenario: Scenario) -> int:
    """Most sequences that one replica can ever decode at once."""
    workload, engine = scenario.workload, scenario.engine
    batches = math.ceil(max(2.0, scenario.loop.asynchrony.pace)) if scenario.loop.mode == "async" else 2
    in_flight = workload.samples_per_step * math.ceil(workload.generated_batch_factor) * batches
    replicas = scenario.cluster.generation // engine.gpus_per_replica
    group = workload.generations_per_prompt if engine.dispatch == "static" else 1
    return max(1, min(engine.max_running_sequences, math.ceil(in_flight / replicas) + group + 1))


@lru_cache(maxsize=ENGINES_KEPT)
def engine_prices(inputs: EngineInputs) -> IterationCosts:
    """Seconds of the engine's iterations, by part; the last few engines are kept."""
    layers, drafting = _engine(inputs)
    return build_iteration(
        layers,
        drafting,
        inputs.host,
        inputs.max_sequences,
        float(inputs.max_context_tokens),
        inputs.prompt_tokens,
        inputs.kv_capacity_tokens,
    )


def decode_points_s(inputs: EngineInputs, sequences: FloatArray, context_tokens: FloatArray) -> FloatArray:
    """Seconds of iterations that decode ``sequences`` at mean ``context_tokens``, without preparing a table."""
    return np.asarray(decode_points_of_hosts_s(inputs, [inputs.host], sequences, context_tokens)[0])


def decode_points_of_hosts_s(
    inputs: EngineInputs, hosts: Sequence[HostOverheads], sequences: FloatArray, context_tokens: FloatArray
) -> FloatArray:
    """:func:`decode_points_s` under each of ``hosts`` in place of the engine's own; shape (hosts, points)."""
    alike: dict[HostOverheads, list[int]] = {}
    for number, host in enumerate(hosts):
        kernels = HostOverheads(0.0, 0.0, overlap_s=host.overlap_s, network_hop_s=host.network_hop_s)
        alike.setdefault(kernels, []).append(number)
    out: FloatArray = np.empty((len(hosts), len(sequences)))
    for kernels, numbers in alike.items():
        layers, drafting = _engine(replace(inputs, host=kernels))
        out[numbers] = decode_s(layers, drafting, [hosts[number] for number in numbers], sequences, context_tokens)
    return out


def _engine(inputs: EngineInputs) -> tuple[EngineLayers, Drafting]:
    device = inputs.device
    operators = device.operators
    layers = EngineLayers(inputs.model, inputs.engine, operators, device.fabric, inputs.host)
    return layers, Drafting(layers, inputs.drafting, operators.profile.eager_launch_s.value)
