"""What one replica of the rollout engine takes: a pure function of exactly what its iterations depend on."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine import iteration
from rlsim.costs.engine.capture import largest_captured_tokens
from rlsim.costs.engine.device_times import DeviceTimes, PrefillTimes, cached_s, compute_bound, plain_s
from rlsim.costs.engine.draft import Drafting
from rlsim.costs.engine.draft_policy import DraftPolicy, policy_costs
from rlsim.costs.engine.hosts import NO_HOST, HostOverheads
from rlsim.costs.engine.iteration import DevicePoints, IterationCosts
from rlsim.costs.engine.layers import EngineLayers
from rlsim.costs.measured import measured_costs, measured_iterations, of_method, stack_of
from rlsim.costs.operators.device import Device
from rlsim.costs.vision import tower_s
from rlsim.schema.base import changed, replaced
from rlsim.schema.engine import Engine
from rlsim.schema.model import ModelCard
from rlsim.schema.parameters import MeasuredStack
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.units import FloatArray, distinct

ENGINES_KEPT = 48
"""Iteration tables cached per process; one of 8,192 sequences takes some 50 MB with its parts."""
TIMES_KEPT = 96
"""Device times cached per process, of a search's engines."""
POINTS_KEPT = 256
"""Sets of single iterations cached per process."""
ROUTING_OVERLAP = 0.71
"""Default of workload.routing_overlap: 0.73 at two positions, 0.70 at four."""
HOST_KEYS = ("host_iteration_s", "host_sequence_s", "host", "host_slowdown")
"""Keys of the engine that :class:`HostOverheads` holds."""
ACCEPTANCE_KEYS = (
    "acceptance_length", "acceptance_at_draft_length", "position_acceptance", "first_acceptance", "acceptance_decay",
    "variation", "sampling", "drift", "online_interval_steps", "online_packing", "policy", "off_above_sequences",
    "schedule", "trained_context_tokens",
)  # fmt: skip
"""Keys of speculation that decide how many iterations a response takes and not how long one lasts, or that
``EngineInputs.policy`` holds."""


class EngineInputs(Struct, frozen=True):
    """Everything that an engine iteration depends on; equal inputs have equal prices.

    drafting: the speculation section without its acceptance. policy: of draft lengths that follow the live batch; None
    where draft_length is fixed. max_sequences: most sequences that a replica can ever
    decode at once. prompt_tokens: mean length of a prompt. routing_overlap: see Workload; 1 where it changes nothing.
    vision_token_s: what a vision tower adds to a token of a prompt.
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
    policy: DraftPolicy | None = None
    measured: MeasuredStack | None = None
    routing_overlap: float = 1.0
    vision_token_s: float = 0.0


def engine_inputs(
    scenario: Scenario, device: Device, host: HostOverheads, prompt_tokens: float, kv_capacity_tokens: float
) -> EngineInputs:
    """What an iteration of the engine of ``scenario`` depends on, where every sequence that it may run fits."""
    drafting = Speculation()
    if scenario.speculation.active:
        # Without the keys that no iteration depends on variants share prices by equality.
        drafting = replaced(scenario.speculation, {name: getattr(drafting, name) for name in ACCEPTANCE_KEYS})
    return EngineInputs(
        scenario.model, device, scenario.released_engine, drafting, host, most_sequences(scenario),
        scenario.workload.max_sequence_tokens, prompt_tokens, kv_capacity_tokens, measured=stack_of(scenario),
        routing_overlap=_overlap(scenario),
        vision_token_s=tower_s(scenario, device.operators, scenario.engine.tensor_parallel) / max(prompt_tokens, 1.0),
    )  # fmt: skip


def _overlap(scenario: Scenario) -> float:
    stated = scenario.workload.routing_overlap
    if scenario.model.moe is None or not scenario.speculation.active:
        return 1.0
    return ROUTING_OVERLAP if stated is None else stated


def running_at_most(inputs: EngineInputs, sequences: int | None) -> EngineInputs:
    """Inputs of the engine where its memory lets ``sequences`` run at once (recurrent states); None: any number."""
    if sequences is None or sequences >= inputs.max_sequences:
        return inputs
    return replace(inputs, engine=changed(inputs.engine, max_running_sequences=sequences), max_sequences=sequences)


def most_sequences(scenario: Scenario) -> int:
    """Most sequences that one replica can ever decode at once."""
    workload, engine = scenario.workload, scenario.engine
    batches = math.ceil(max(2.0, scenario.loop.asynchrony.pace)) if scenario.loop.mode == "async" else 2
    started = math.ceil(workload.generated_batch_factor) * workload.launch_factor
    in_flight = workload.samples_per_step * started * batches
    replicas = scenario.replicas
    # A static assignment may put a whole group more on one replica than on another.
    group = workload.launched_generations if engine.dispatch == "static" else 1
    return max(1, min(scenario.released_engine.most_running, math.ceil(in_flight / replicas) + group + 1))


@lru_cache(maxsize=ENGINES_KEPT)
@np.errstate(invalid="raise", divide="raise")
def engine_prices(inputs: EngineInputs) -> IterationCosts:
    """Seconds of the engine's iterations, by part; the last few engines are cached."""
    if inputs.policy is not None:
        lengths = range(inputs.drafting.draft_length + 1)
        return policy_costs([engine_prices(drafting_fixed(inputs, k)) for k in lengths], inputs.policy)
    if inputs.measured is not None:
        limits = inputs.max_sequences, float(inputs.max_context_tokens), inputs.kv_capacity_tokens
        return measured_costs(inputs.measured, inputs.engine, inputs.drafting, limits)
    prefill = _prefill_times(_engine(inputs), inputs.max_sequences, inputs.prompt_tokens)
    return _prepared(inputs, _device_times(inputs), prefill)


def engine_times(inputs: EngineInputs) -> IterationCosts:
    """:func:`engine_prices` for who looks at no part of an iteration, such as a search: the same table.

    What the device does is cut from the table of as many sequences as ever were asked for, since splits of a cluster
    mostly differ in how many a replica may run. What bounds a part is then found over all of them.
    """
    if inputs.policy is not None or inputs.measured is not None:
        return engine_prices(inputs)
    kernels = _engine(_kernels(inputs))
    key = kernels, inputs.max_context_tokens, inputs.prompt_tokens
    device = _largest.get(key)
    if device is None or len(device.eager) <= inputs.max_sequences:
        if len(_largest) >= TIMES_KEPT:
            _largest.clear()
        # Threads may find one at the same time: each goes on with its own, and whichever is last is what stays.
        device = _largest[key] = _device_times(inputs).bare()
    prefill = _known_prefill(kernels, inputs.max_sequences, inputs.prompt_tokens)
    return _prepared(inputs, device.up_to(inputs.max_sequences), prefill)


_largest: dict[tuple[Drafting, int, float], DeviceTimes] = {}
"""Device times of an engine of as many sequences as ever were asked for. Values are never changed, only replaced."""


@np.errstate(invalid="raise", divide="raise")
def _device_times(inputs: EngineInputs) -> DeviceTimes:
    context = float(inputs.max_context_tokens)
    return DeviceTimes.of(_engine(inputs), inputs.max_sequences, context, inputs.prompt_tokens)


@np.errstate(invalid="raise", divide="raise")
def _prefill_times(engine: Drafting, max_sequences: int, prompt_tokens: float) -> PrefillTimes:
    return PrefillTimes.of(engine, max_sequences, max(prompt_tokens, 1.0))


_known_prefill = lru_cache(maxsize=4 * TIMES_KEPT)(_prefill_times)


@np.errstate(invalid="raise", divide="raise")
def _prepared(inputs: EngineInputs, device: DeviceTimes, prefill: PrefillTimes) -> IterationCosts:
    seen = prefill if not inputs.vision_token_s else prefill.seeing(inputs.vision_token_s)
    return iteration.build_iteration(_engine(inputs), device, seen, inputs.kv_capacity_tokens)


def _kernels(inputs: EngineInputs) -> EngineInputs:
    """Inputs without the host, but for its terms of kernels: many hosts share a device's work."""
    bare = changed(inputs.engine, **dict.fromkeys(HOST_KEYS))
    return replace(inputs, engine=bare, host=inputs.host.of_kernels, vision_token_s=0.0)


def drafting_fixed(inputs: EngineInputs, draft_length: int) -> EngineInputs:
    """Inputs of the engine when it drafts ``draft_length`` tokens at once for every sequence.

    vLLM's largest graph in tokens comes from the longest draft that it is started with and holds for shorter ones;
    SGLang and TensorRT-LLM capture sequences.
    """
    engine, longest = inputs.engine, inputs.drafting.queries
    if engine.name == "vllm" and engine.max_captured_tokens is None:
        captured = largest_captured_tokens(engine, longest, inputs.device.operators.profile)
        engine = changed(engine, max_captured_tokens=captured)
    drafting = replaced(inputs.drafting, {"draft_length": draft_length}) if draft_length else Speculation()
    return replace(inputs, engine=engine, drafting=drafting, policy=None)


def decode_points_s(inputs: EngineInputs, sequences: FloatArray, context_tokens: FloatArray) -> FloatArray:
    """Seconds of iterations that decode ``sequences`` at mean ``context_tokens``, without preparing a table."""
    return np.asarray(decode_points_of_hosts_s(inputs, [inputs.host], sequences, context_tokens)[0])


@np.errstate(invalid="raise", divide="raise")
def decode_points_of_hosts_s(
    inputs: EngineInputs, hosts: Sequence[HostOverheads], sequences: FloatArray, context_tokens: FloatArray
) -> FloatArray:
    """:func:`decode_points_s` under each of ``hosts`` in place of the engine's own; shape (hosts, points).

    Under a policy these are reference iterations.
    """
    chosen = _chosen_points_s(inputs, hosts, sequences, context_tokens)
    if chosen is not None:
        return chosen
    if inputs.measured is not None:
        drafted = float(inputs.drafting.draft_length if inputs.drafting.active else 0)
        plain, token = measured_iterations(inputs.measured, of_method(inputs.drafting)).at(drafted, sequences)
        return np.tile(plain + token * context_tokens, (len(hosts), 1))
    # Many hosts, and cells of a sweep over them, share a device's work.
    engine = changed(inputs.engine, **dict.fromkeys(HOST_KEYS))
    sequences, contexts = np.asarray(sequences, dtype=np.float64), np.asarray(context_tokens, dtype=np.float64)
    bare = replace(inputs, engine=replaced(engine, {"max_captured_tokens": None}), host=NO_HOST)
    cached_s = _cached_s(_engine(bare), sequences.tobytes(), contexts.tobytes())
    # Neither hosts nor graphs decide what compute binds.
    bound = compute_bound(_engine(bare), sequences)
    out: FloatArray = np.empty((len(hosts), len(sequences)))
    for number, host in enumerate(hosts):
        kernels = _engine(replace(inputs, engine=engine, host=host.of_kernels))
        points = DevicePoints(sequences, _plain_s(kernels, sequences.tobytes()), cached_s, bound)
        out[number] = iteration.decode_s(engine, inputs.drafting.active, points, host)
    return out


@lru_cache(maxsize=POINTS_KEPT)
def _cached_s(engine: Drafting, sequences: bytes, context_tokens: bytes) -> FloatArray:
    return _unchangeable(cached_s(engine, np.frombuffer(sequences), np.frombuffer(context_tokens)))


def _unchangeable(seconds: FloatArray) -> FloatArray:
    seconds.setflags(write=False)  # all who ask get the same array
    return seconds


@lru_cache(maxsize=POINTS_KEPT)
def _plain_s(engine: Drafting, sequences: bytes) -> FloatArray:
    return _unchangeable(plain_s(engine, np.frombuffer(sequences)))


def _chosen_points_s(
    inputs: EngineInputs, hosts: Sequence[HostOverheads], sequences: FloatArray, context_tokens: FloatArray
) -> FloatArray | None:
    """Points of reference iterations; None where a draft length is fixed."""
    choice = None if inputs.policy is None else engine_prices(inputs).choice
    if choice is None:
        return None
    n = np.clip(sequences.astype(np.int64), 0, len(choice.repeats) - 1)
    out: FloatArray = np.zeros((len(hosts), len(sequences)))
    for length in distinct(np.concatenate((choice.low[n], choice.high[n]))).tolist():
        share = np.where(choice.low[n] == length, 1 - choice.share[n], 0.0)
        share = share + np.where((choice.high[n] == length) & (choice.low[n] != length), choice.share[n], 0.0)
        used = np.flatnonzero(share > 0)
        if used.size:
            fixed = drafting_fixed(inputs, length)
            found = decode_points_of_hosts_s(fixed, hosts, sequences[used], context_tokens[used])
            out[:, used] += share[used] * choice.repeats[n[used]] * found
    return out


def _engine(inputs: EngineInputs) -> Drafting:
    device = inputs.device
    layers = EngineLayers(
        inputs.model, inputs.engine, device.operators, device.fabric, inputs.host, inputs.routing_overlap
    )
    return Drafting(layers, inputs.drafting, device.profile.eager_launch_s.value)
