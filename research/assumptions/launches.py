"""Assumptions on launches: eager, from compiled code, in a replayed graph, of draft passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bench.cases import COMPILED, ModelDims
from bench.measurements import Measurement, Measurements
from research.assumptions.cases import DEPTH_BATCH, DEPTH_CONTEXT
from research.assumptions.rows import (
    Assumption,
    Basis,
    assumed,
    by,
    divided,
    host_taken,
    launched,
    of_mode,
    slope,
    slope_of,
    taken,
)
from rlsim.calibration.selfcheck import card_of, speculation_of
from rlsim.costs.engine.device_times import COMPILED_LAUNCH, cached_s, plain_s
from rlsim.costs.engine.draft import Drafting
from rlsim.costs.engine.hosts import HostOverheads
from rlsim.costs.engine.layers import GRAPH_NODE_S, UNCOMPILED_LAUNCHES, EngineLayers
from rlsim.costs.engine.releases import proposer_launches
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.operators import KERNEL_FLOOR_S, Operators
from rlsim.schema.engine import Engine
from rlsim.schema.speculation import Speculation

_CODE = "rlsim/costs, assumption"
_COUNTED = "rlsim/costs, counted in vLLM's layers"
_TINY_OVERLAP_S = 1e-9
"""Overlap by which the kernels are counted that the cost model shortens; far under any kernel's time."""


def launch_assumptions(measured: Measurements, basis: Basis) -> list[Assumption]:
    """Rows of iterations at several depths and of chains of kernels."""
    steps = measured.of("depth_iteration")
    if not steps:
        return []
    dims = measured.models[steps[0].case.text("model")]
    eager, compiled = of_mode(steps, "eager"), of_mode(steps, COMPILED)
    launch_s, layers = basis.profile.eager_launch_s.value, _layers(dims, basis)
    from_profile = f"{basis.profile.eager_launch_s.source}: hardware profile {basis.profile.name}"
    kernel_s, compiled_s = (slope_of(each, launched, host_taken) for each in (eager, compiled))
    per_layer, name = layers.launches() / dims.layers, "COMPILED_LAUNCH x eager_launch_s"
    depth = by("layers")
    return [
        *assumed("eager_launch_s", launch_s, from_profile, kernel_s, "host time of a kernel of eager iterations"),
        *assumed(name, COMPILED_LAUNCH * launch_s, f"{_CODE} x profile", compiled_s, "host time of a compiled kernel"),
        *assumed("COMPILED_LAUNCH", COMPILED_LAUNCH, _CODE, divided(compiled_s, kernel_s), "compiled over eager", "1"),
        *assumed(
            "UNCOMPILED_LAUNCHES", UNCOMPILED_LAUNCHES, _COUNTED, slope_of(eager, depth, launched),
            "kernels of a layer in torch, nothing fused", "1",
        ),
        *assumed(
            "EngineLayers.launches", per_layer, _COUNTED, slope_of(compiled, depth, launched),
            "kernels of a compiled layer", "1",
        ),
        *assumed(
            "UNCOMPILED_LAUNCHES x eager_launch_s", UNCOMPILED_LAUNCHES * launch_s, f"{_COUNTED} x profile",
            slope_of(eager, depth, host_taken), "host time of an eager layer",
        ),
        *assumed(
            f"launches x {name}", per_layer * COMPILED_LAUNCH * launch_s, f"{_COUNTED} x profile",
            slope_of(compiled, depth, host_taken), "host time of a compiled layer",
        ),
        *_captured(of_mode(steps, "graph"), dims, basis),
        *_hidden(measured.of("launch_chain"), steps),
    ]  # fmt: skip


def _captured(steps: Sequence[Measurement], dims: ModelDims, basis: Basis) -> list[Assumption]:
    """A layer and a kernel in a replayed graph. What a layer takes less than its operators alone, over the kernels that
    the cost model shortens by an engine's overlap, is that overlap.
    """
    depths = [step.case.number("layers") for step in steps]
    layer_s = slope_of(steps, by("layers"), taken)
    alone_s, shortened_s = (slope(_priced(dims, depths, basis, overlap_s)) for overlap_s in (0.0, _TINY_OVERLAP_S))
    if layer_s is None or alone_s is None or shortened_s is None:
        return []
    overlap_s = (alone_s - layer_s) / ((alone_s - shortened_s) / _TINY_OVERLAP_S)
    kernel_s = slope_of(steps, launched, taken)
    engines = basis.fitted.engines
    rows = assumed("captured layer", alone_s, "cost model on these tables", layer_s, "replayed layer, by depth")
    rows += assumed(
        "GRAPH_NODE_S", GRAPH_NODE_S, "rlsim/costs, Megatron-LM PR 6453", kernel_s, "mean kernel of a replayed layer"
    )
    for one in engines.families:
        what = "operators alone less a replayed layer, per kernel"
        rows += assumed(f"overlap_s ({one.engine})", one.overlap_s, f"fitted: {engines.name}", overlap_s, what)
    return rows


def _priced(dims: ModelDims, depths: Iterable[int], basis: Basis, overlap_s: float) -> list[tuple[float, float]]:
    """(layers, seconds) of captured decode iterations by the cost model."""
    batch, context = np.array([float(DEPTH_BATCH)]), np.array([DEPTH_CONTEXT + 1.0])
    out = []
    for depth in depths:
        layers = _layers(dims.with_layers(depth), basis, overlap_s)
        plain = Drafting(layers, Speculation(), 0.0)
        out.append((float(depth), float(plain_s(plain, batch)[0] + cached_s(plain, batch, context)[0])))
    return out


def _hidden(chains: Sequence[Measurement], steps: Sequence[Measurement]) -> list[Assumption]:
    """The rule that eager work takes the longer of its launches and its device work, and kernels of no work."""
    rule = "rlsim/costs/engine/device_times.py, structure"
    replayed = {one.case.number("elements"): one.seconds for one in of_mode(chains, "graph")}
    eager = {one.case.number("elements"): one.seconds for one in of_mode(chains, "eager")}
    both = sorted(replayed.keys() & eager.keys())
    if not both:
        return []
    launch_s = eager[both[0]]
    kernels = _farthest(eager[size] / max(launch_s, replayed[size]) for size in both)
    captured = {one.case.number("layers"): one.seconds for one in of_mode(steps, "graph")}
    waited = [
        one.seconds / max(one.facts.host_s, captured[one.case.number("layers")])
        for one in of_mode(steps, "eager")
        if one.facts.host_s is not None and one.case.number("layers") in captured
    ]
    what = "farthest from it"
    return [
        *assumed("KERNEL_FLOOR_S", KERNEL_FLOOR_S, _CODE, replayed[both[0]], "replayed kernel of one value"),
        *assumed("max(launch, device), kernels", 1.0, rule, kernels, f"chains of {len(both)} lengths, {what}", "1"),
        *assumed("max(launch, device), steps", 1.0, rule, _farthest(waited), f"eager iterations, {what}", "1"),
    ]


def _farthest(ratios: Iterable[float]) -> float | None:
    """The ratio that is farthest from 1, either way."""
    return max(ratios, key=lambda ratio: abs(np.log(ratio)), default=None)


def draft_assumptions(measured: Measurements, basis: Basis) -> list[Assumption]:
    """A further draft pass, by the number of sequences: as one graph with the others, as a graph of its own, eager."""
    records = measured.of("draft_passes")
    rows: list[Assumption] = []
    count = proposer_launches(Engine()) + UNCOMPILED_LAUNCHES
    launches = f"PROPOSER_LAUNCHES + UNCOMPILED_LAUNCHES, {count}"
    for batch in sorted({record.case.number("batch") for record in records}):
        own = [record for record in records if record.case.number("batch") == batch]
        for mode, origin, what in (
            ("one_graph", "cost model on these tables", "all passes as one graph"),
            ("graph_each", "cost model on these tables", "a graph for each pass"),
            ("eager", f"{launches} x eager_launch_s", "passes launched one by one"),
        ):
            chosen = of_mode(own, mode)
            used = slope((k, _drafted_s(one, measured, basis)) for one in chosen for k in [by("draft_length")(one)])
            found = slope_of(chosen, by("draft_length"), taken)
            rows += assumed(f"draft pass ({mode}), batch {batch}", used, origin, found, what)
        host_s = slope_of(of_mode(own, "eager"), by("draft_length"), host_taken)
        used = count * basis.profile.eager_launch_s.value
        rows += assumed(f"draft pass (host), batch {batch}", used, launches, host_s, "its launches alone")
    return rows


def _drafted_s(record: Measurement, measured: Measurements, basis: Basis) -> float:
    """The passes of ``record`` by the cost model."""
    case = record.case
    dims, k = measured.models[case.text("model")], case.number("draft_length")
    eager = case.text("mode") == "eager"
    drafting = Drafting(
        _layers(dims, basis), speculation_of(dims, k, not eager), basis.profile.eager_launch_s.value if eager else 0.0
    )
    sequences, context = np.array([case.number("batch") * 1.0]), np.array([case.number("context") + 1.0])
    passes, _ = drafting.passes(sequences, np.array([eager]), np.zeros(1))
    return float(passes.seconds[0] + drafting.cached_attention(sequences, context).seconds[0])


def _layers(dims: ModelDims, basis: Basis, overlap_s: float = 0.0) -> EngineLayers:
    """The reference engine on the measured operators."""
    profile, tables = basis.profile, basis.tables
    engine = Engine(cuda_graphs=True, max_captured_tokens=65536)
    host = HostOverheads(0.0, 0.0, overlap_s)
    return EngineLayers(card_of(dims), engine, Operators(profile, tables), Collectives(profile, tables), host)
