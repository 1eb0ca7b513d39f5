"""The check that matters: engine steps, which no table has seen, as the cost model of every projection predicts them
from the measured operators, beside their measurement.

The scenario of a step is one GPU in BF16 without a scheduler. A captured step is one graph, so that nothing in it waits
for the host; an eager one launches every kernel at the measured cost of a launch.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.cases import Case, ModelDims
from bench.measurements import Measurements
from rlsim.calibration.columns import efficiencies_as_yaml
from rlsim.calibration.device_profile import DeviceRates
from rlsim.costs.engine.device_times import DeviceTimes, PrefillTimes
from rlsim.costs.engine.draft import Drafting
from rlsim.costs.engine.iteration import build_iteration
from rlsim.costs.engine.layers import EngineLayers
from rlsim.costs.interface import IterationTable
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.operators import Operators
from rlsim.report.format import percent, signed_percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.results.validation import ComparedRow, Validation
from rlsim.schema.architecture import MoECard
from rlsim.schema.base import changed
from rlsim.schema.drafter import DraftCard
from rlsim.schema.engine import Engine
from rlsim.schema.hardware import HardwareProfile, SourcedValue
from rlsim.schema.model import ModelCard
from rlsim.schema.speculation import Speculation
from rlsim.tables.operators import OperatorTables
from rlsim.units import MILLISECOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = ("decode_iteration", "speculative_step")


@dataclass(frozen=True)
class CheckedPoint:
    """One engine step, in seconds as measured and as predicted."""

    case: Case
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class SelfCheck:
    """All checked engine steps of a device."""

    device: str
    points: tuple[CheckedPoint, ...]

    @property
    def median_abs_error(self) -> float:
        """Median of the absolute relative errors; NaN without points."""
        return statistics.median(self._errors()) if self.points else math.nan

    @property
    def p90_abs_error(self) -> float:
        """Smallest error that at least 90 % of the points do not exceed; NaN without points."""
        errors = self._errors()
        return errors[math.ceil(0.9 * len(errors)) - 1] if errors else math.nan

    def _errors(self) -> list[float]:
        return sorted(abs(point.error) for point in self.points)

    def of_mode(self, mode: str) -> SelfCheck:
        """The points of one mode, graph or eager."""
        return replace(self, points=tuple(point for point in self.points if point.case.text("mode") == mode))

    @property
    def as_engines_run(self) -> SelfCheck:
        """The captured steps, as engines run them; the eager ones of a device without graphs.

        What a torch loop spends on its host in an eager step is not what an engine spends there.
        """
        return self.of_mode("graph") if self.of_mode("graph").points else self

    def summary(self) -> dict[str, float | int | None]:
        """Number of steps and errors as metadata.yaml states them."""
        counted = self.as_engines_run
        errors = (counted.median_abs_error, counted.p90_abs_error)
        median, p90 = (round(error, 4) if counted.points else None for error in errors)
        return {"composites": len(counted.points), "median_abs_error": median, "p90_abs_error": p90}


def self_check(measured: Measurements, tables: Path, profile: HardwareProfile, rates: DeviceRates) -> SelfCheck:
    """Every measured engine step beside its prediction from the operator tables in folder ``tables``."""
    launch = SourcedValue(value=rates.eager_launch_s, source="measured", ref="host time of the measured loop")
    # An eager step is launched by this very loop, whatever an engine takes on the device.
    device = changed(profile, eager_launch_s=launch)
    found = OperatorTables(tables, {"efficiency": efficiencies_as_yaml(rates.efficiency)})
    cases = [record.case for record in measured.of(*STEPS)]
    # One table of the largest batch serves all smaller ones of its settings.
    alike: dict[Settings, int] = {}
    for case in cases:
        alike[_settings(case)] = max(alike.get(_settings(case), 0), case.number("batch"))
    priced = {
        settings: iteration_table(measured.models[settings[0]].with_layers(settings[1]), found, device, settings, most)
        for settings, most in alike.items()
    }
    points = (
        CheckedPoint(record.case, record.seconds, step_seconds(priced[_settings(record.case)], record.case))
        for record in measured.of(*STEPS)
    )
    return SelfCheck(measured.metadata.device, tuple(points))


Settings = tuple[str, int, str, int, int]


def _settings(case: Case) -> Settings:
    """Model, layers, mode, draft length and context: what one iteration table is made for."""
    numbers = (case.number("draft_length"), case.number("context"))
    return case.text("model"), case.number("layers"), case.text("mode"), *numbers


def step_seconds(table: IterationTable, case: Case) -> float:
    """Seconds of one iteration of ``table`` at the batch and context of ``case``; the new token counts as cached."""
    batch = case.number("batch")
    places = np.arange(table.attention_s.shape[1]) * table.context_step_tokens
    attention = np.interp(case.number("context") + 1.0, places, table.attention_s[batch])
    return float(table.step_s[batch] + attention)


def iteration_table(
    dims: ModelDims, tables: OperatorTables, profile: HardwareProfile, settings: Settings, most: int
) -> IterationTable:
    """Iterations of up to ``most`` sequences of the reference engine, as the cost model of a projection prices them."""
    *_, mode, draft_length, context = settings
    captured = mode == "graph"
    # Above any batch of the check: whether a step was captured is a setting here, not a matter of its size.
    engine = Engine(cuda_graphs=captured, max_captured_tokens=65536, max_running_sequences=most)
    operators = Operators(profile, tables)
    layers = EngineLayers(card_of(dims), engine, operators, Collectives(profile, tables))
    launch_s = 0.0 if captured else profile.eager_launch_s.value
    drafting = Drafting(layers, speculation_of(dims, draft_length, captured), launch_s)
    # One prompt of one token: the part of the table that prices prefill is not asked for.
    device = DeviceTimes.of(drafting, most, context + 1.0, 1.0)
    # inf: the check runs without a scheduler, so that no cache limits its batches.
    return build_iteration(drafting, device, PrefillTimes.of(drafting, most, 1.0), math.inf).table


def card_of(dims: ModelDims, name: str = "measured", longest: int = 1, source: str = "rlsim calibrate") -> ModelCard:
    """Model card of the reference model that was measured. longest: sequence in tokens."""
    moe = None
    if dims.experts:
        moe = MoECard(num_experts=dims.experts, top_k=dims.top_k, expert_intermediate_size=dims.width)
    return ModelCard(
        name=name, hidden_size=dims.hidden, num_layers=dims.layers, num_heads=dims.heads,
        num_kv_heads=dims.kv_heads, head_dim=dims.head_dim, intermediate_size=dims.width, vocab_size=dims.vocabulary,
        qk_norm=bool(dims.qk_norm), moe=moe, max_position_embeddings=longest, source=source,
    )  # fmt: skip


def speculation_of(dims: ModelDims, draft_length: int, captured: bool) -> Speculation:
    """Speculation of the reference model with its EAGLE-3 head; none at draft length 0."""
    if not draft_length:
        return Speculation()
    layer = dims.draft_layer
    draft = DraftCard(
        kind="eagle3", hidden_size=layer.hidden, num_heads=layer.heads, num_kv_heads=layer.kv_heads,
        head_dim=layer.head_dim, intermediate_size=layer.width, vocab_size=layer.vocabulary, source="rlsim calibrate",
    )  # fmt: skip
    return Speculation(
        method="eagle3",
        draft_length=draft_length,
        acceptance_length=1.0,
        draft=draft,
        draft_graph="one" if captured else "none",
    )


def check_text(check: SelfCheck, style: Style = DEFAULT_STYLE) -> str:
    """Table of predicted beside measured, and the errors."""
    heads = ("model", "layers", "mode", "batch", "k", "context", "measured ms", "predicted ms", "error")
    keys = ("model", "layers", "mode", "batch", "draft_length", "context")
    rows = [
        (
            *(str(p.case.params[key]) for key in keys),
            *(f"{seconds / MILLISECOND:.4f}" for seconds in (p.measured_s, p.predicted_s)),
            signed_percent(p.error, 1),
        )
        for p in check.points
    ]
    lines = [f"self-check on {check.device}: engine steps predicted from operators", *table(heads, rows, style, "<><>")]
    for mode in dict.fromkeys(point.case.text("mode") for point in check.points):
        part = check.of_mode(mode)
        errors = f"median error {percent(part.median_abs_error, 1)}, p90 {percent(part.p90_abs_error, 1)}"
        lines.append(f"{mode}: {errors} over {len(part.points)} engine steps")
    return "\n".join(lines)


def check_picture(check: SelfCheck) -> Figure:
    """Predicted over measured milliseconds, by mode and drafted tokens."""
    from rlsim.report.figures.validation import scatter

    rows = [
        ComparedRow(
            id=str(number),
            group=f"{point.case.text('mode')}, k = {point.case.number('draft_length')}",
            unit="ms",
            measured=point.measured_s / MILLISECOND,
            predicted=point.predicted_s / MILLISECOND,
        )
        for number, point in enumerate(check.points)
    ]
    counted = check.as_engines_run
    median, p90 = (percent(error, 1) for error in (counted.median_abs_error, counted.p90_abs_error))
    found = Validation.of("iterations", rows, table="all engine steps")
    return scatter(found, f"{check.device}: as engines run, median error {median}, p90 {p90}")
