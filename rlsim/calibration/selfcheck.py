"""The check that matters: composites, which no fit has seen, predicted from measured operators and held against their
measurement. Standard library only.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsim.calibration.cell import Cell
from rlsim.calibration.predict import OperatorTimes, predict_composite
from rlsim.errors import InputError
from rlsim.units import MILLISECOND

_COMPOSITES = ("decode_iteration", "speculative_step")


@dataclass(frozen=True)
class CheckedPoint:
    """One composite: draft_length 0 is plain decoding. Seconds measured and predicted."""

    model: str
    layers: int
    mode: str
    batch: int
    draft_length: int
    context: int
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class SelfCheck:
    """All checked composites of a device; ``skipped`` says why others could not be predicted."""

    device: str
    points: tuple[CheckedPoint, ...]
    skipped: tuple[str, ...] = ()

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


def read_measurements(path: Path) -> dict[str, Any]:
    """Content of a measurements.json. InputError where it is missing or none."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; a run that was interrupted has none, run it again to the end"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from error
    if not isinstance(whole, dict) or whole.get("schema") != "rlsim.measurements/1":
        raise InputError(f"{path} is no measurement of rlsim (schema rlsim.measurements/1)")
    return whole


def check_file(path: Path) -> SelfCheck:
    """Self-check of a measurements.json."""
    whole = read_measurements(path)
    return check_records(whole["cells"], whole["circumstances"])


def check_records(records: Sequence[Mapping[str, Any]], circumstances: Mapping[str, Any]) -> SelfCheck:
    """Predict every measured composite among ``records`` from the other records."""
    times = OperatorTimes(records)
    device_type = str(circumstances["device_type"])
    points: list[CheckedPoint] = []
    skipped: list[str] = []
    for record in records:
        if record["op"] not in _COMPOSITES or "sample" not in record:
            continue
        cell = Cell(record["op"], tuple(record["params"].items()))
        try:
            predicted = predict_composite(times, cell, device_type)
        except InputError as error:
            skipped.append(str(error))
            continue
        measured = float(record["sample"]["seconds_median"])
        points.append(CheckedPoint(**record["params"], measured_s=measured, predicted_s=predicted))
    return SelfCheck(str(circumstances["device"]), tuple(points), tuple(skipped))


def check_text(check: SelfCheck) -> str:
    """Table of predicted beside measured, and the errors."""
    names = ("model", "layers", "mode", "batch", "k", "context", "measured ms", "predicted ms", "error")
    head = "{:<14} {:>6} {:<6} {:>5} {:>2} {:>7} {:>12} {:>13} {:>7}".format(*names)
    lines = [f"self-check on {check.device}: composites predicted from operators", head]
    lines += [
        f"{p.model:<14} {p.layers:>6} {p.mode:<6} {p.batch:>5} {p.draft_length:>2} {p.context:>7} "
        f"{p.measured_s / MILLISECOND:>12.4f} {p.predicted_s / MILLISECOND:>13.4f} {p.error * 100:>+6.1f}%"
        for p in check.points
    ]
    for mode in dict.fromkeys(point.mode for point in check.points):
        part = SelfCheck(check.device, tuple(point for point in check.points if point.mode == mode))
        lines.append(_errors_line(mode, part))
    lines += [f"{check.skipped.count(reason)} composites skipped: {reason}" for reason in dict.fromkeys(check.skipped)]
    return "\n".join(lines)


def _errors_line(mode: str, part: SelfCheck) -> str:
    median, p90 = part.median_abs_error * 100, part.p90_abs_error * 100
    return f"{mode}: median error {median:.1f} %, p90 {p90:.1f} % over {len(part.points)} composites"
