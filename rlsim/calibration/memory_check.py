"""Whole training steps as measured beside what a projection makes of the same model, layout and batch on one GPU: the
memory of its trainer and the seconds of its update.

The measured step holds what Megatron-Core holds on one rank: BF16 weights, FP32 gradients, FP32 weights and moments of
the optimizer. Bytes are those of tensors, so that the prediction counts without the runtime of the process.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.cases import TRAINING_STEP, Case, ModelDims
from bench.measurements import Measurement, Measurements
from rlsim.calibration.columns import efficiencies_as_yaml
from rlsim.calibration.device_profile import DeviceRates
from rlsim.calibration.selfcheck import card_of
from rlsim.costs.memory import trainer_memory
from rlsim.costs.prices import PriceInputs
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import load_scenario
from rlsim.report.format import percent, signed_percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.schema.base import changed
from rlsim.schema.hardware import BOUNDS, HardwareProfile, SourcedValue
from rlsim.schema.scenario import Scenario
from rlsim.tables.operators import OperatorTables
from rlsim.units import GIGA, MILLISECOND

_PROMPT_TOKENS = 1
"""Of a trained sequence; the trainer sees the whole."""


@dataclass(frozen=True)
class CheckedTraining:
    """One training step: bytes and seconds as measured and as predicted."""

    case: Case
    measured_bytes: float
    predicted_bytes: float
    measured_s: float
    predicted_s: float

    @property
    def memory_error(self) -> float:
        """(predicted - measured) / measured bytes."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def time_error(self) -> float:
        """(predicted - measured) / measured seconds."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class MemoryCheck:
    """All training steps of a device whose peaks were measured."""

    points: tuple[CheckedTraining, ...]

    @property
    def median_abs_error(self) -> float:
        """Median of the absolute relative errors of memory; NaN without points."""
        return statistics.median(abs(one.memory_error) for one in self.points) if self.points else math.nan

    @property
    def median_abs_time_error(self) -> float:
        """The same of seconds."""
        return statistics.median(abs(one.time_error) for one in self.points) if self.points else math.nan

    def summary(self) -> dict[str, float | int | None]:
        """Number of steps and errors as metadata.yaml states them."""
        errors = (self.median_abs_error, self.median_abs_time_error)
        memory, seconds = (round(error, 4) if self.points else None for error in errors)
        return {"cases": len(self.points), "median_abs_error": memory, "median_abs_time_error": seconds}


def memory_check(measured: Measurements, tables: Path, profile: HardwareProfile, rates: DeviceRates) -> MemoryCheck:
    """Every training step with a measured peak beside its prediction; none where a projection refuses the layout."""
    found = OperatorTables(tables, {"efficiency": efficiencies_as_yaml(rates.efficiency)})
    points = (_checked(record, measured.models, found, profile) for record in measured.of(TRAINING_STEP))
    return MemoryCheck(tuple(point for point in points if point is not None))


def _checked(
    record: Measurement, models: Mapping[str, ModelDims], tables: OperatorTables, profile: HardwareProfile
) -> CheckedTraining | None:
    case, peak = record.case, record.facts.peak_bytes
    if peak is None:
        return None
    try:
        scenario = scenario_of(case, models[case.text("model")].with_layers(case.number("layers")), profile)
        parts = trainer_memory(scenario)
        samples = case.number("samples") * case.number("micro_batches")
        lengths = np.full(samples, float(case.number("tokens")))
        seconds = PriceInputs(scenario, tables).batch_cost(lengths, samples).train.seconds
    except (Infeasible, InputError):  # tables of a run that ended early may lack what an update is made of
        return None
    # The peak is of allocated bytes: what the allocator reserves besides and CUDA holds is not in it.
    held = parts.total - parts.runtime - (parts.slack or 0.0)
    return CheckedTraining(case, float(peak), held, record.seconds, float(seconds))


def scenario_of(case: Case, dims: ModelDims, profile: HardwareProfile) -> Scenario:
    """The training step as a scenario of one GPU."""
    tokens, samples = case.number("tokens"), case.number("samples")
    # The tables that the measurement makes are given to the prices; a name would be looked up where none are yet. As
    # much memory as a device can have: a prediction that would not fit is an error to be shown.
    memory = SourcedValue(value=BOUNDS["memory_bytes"][1], source="assumed", ref="what was measured did fit")
    device = changed(profile, operator_tables=None, memory_bytes=memory)
    return load_scenario({
        "name": "training step",
        "model": card_of(dims, longest=tokens).model_dump(mode="json"),
        "hardware": device.model_dump(mode="json"),
        "cluster": {"num_gpus": 1},
        "workload": {
            "prompts_per_step": case.number("micro_batches"),
            "generations_per_prompt": samples,
            "prompt_tokens": {"kind": "constant", "tokens": _PROMPT_TOKENS},
            "response_tokens": {"kind": "constant", "tokens": tokens - _PROMPT_TOKENS},
            "max_sequence_tokens": tokens,
        },
        "trainer": {
            "backend": "megatron",
            "recompute": case.text("recompute"),
            "sequence_packing": False,
            "micro_batch_samples": samples,
            "reference_logprobs": False,
            "gradient_precision": "fp32",  # as the step's own, whatever frameworks have
        },
    })  # fmt: skip


def memory_text(check: MemoryCheck, style: Style = DEFAULT_STYLE) -> str:
    """Table of predicted beside measured bytes and seconds, and the errors; empty without points."""
    if not check.points:
        return ""
    keys = ("model", "layers", "tokens", "recompute")
    heads = (*keys, "measured GB", "predicted GB", "error", "measured ms", "predicted ms", "error")
    rows = [
        (
            *(str(point.case.params[key]) for key in keys),
            *(f"{size / GIGA:.2f}" for size in (point.measured_bytes, point.predicted_bytes)),
            signed_percent(point.memory_error, 1),
            *(f"{seconds / MILLISECOND:.1f}" for seconds in (point.measured_s, point.predicted_s)),
            signed_percent(point.time_error, 1),
        )
        for point in check.points
    ]
    memory, seconds = percent(check.median_abs_error, 1), percent(check.median_abs_time_error, 1)
    title = "training steps on one GPU: tensors of the trainer and seconds of an update, as a projection predicts them"
    errors = f"training: median error of memory {memory}, of seconds {seconds} over {len(check.points)} steps"
    return "\n".join([title, *table(heads, rows, style, "<"), errors])
