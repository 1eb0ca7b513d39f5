"""What ``rlsim calibrate --device`` and ``--from-measurements`` call."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlsim.calibration.comparison import comparison_text
from rlsim.calibration.fit import fit_measurements, system_of
from rlsim.calibration.measure import measure_device
from rlsim.calibration.merge import merge_tables, merged_text
from rlsim.calibration.selfcheck import read_measurements
from rlsim.hardware.tables import OperatorTables

MEASUREMENTS = "measurements.json"
_KNOWN_DEVICES = {
    r"A100-SXM": "a100_sxm",
    r"H100 80GB HBM3|H100 SXM": "h100_sxm",
    r"H200": "h200_sxm",
    r"GB200": "gb200_nvl72",
    r"GB300": "gb300_nvl72",
    r"B200": "b200_sxm",
}
"""Names that torch reports, in the order in which they are tried, with the shipped profile that each means."""


@dataclass(frozen=True)
class CalibrationResult:
    """Outcome of a calibration: ``profile`` can be named in a scenario's hardware key; ``text`` is for people."""

    name: str
    profile: Path
    tables: Path
    median_abs_error: float
    p90_abs_error: float
    text: str


def calibrate_device(
    device: str, out: Path, quick: bool, resume: bool = True, progress: bool | None = None, name: str | None = None
) -> CalibrationResult:
    """Measure ``device`` (cpu, cuda, cuda:N) into ``out`` and fit it there.

    An interrupted call is continued by the same call unless ``resume`` is False. progress: bar on stderr, None means
    on a terminal. Raises InputError for everything that a user can mend (no torch, no GPU, folder not writable).
    """
    measure_device(device, out, quick, resume=resume, progress=progress)
    return calibrate_measurements(out, out, name)


def calibrate_measurements(
    measurements: Path, out: Path, name: str | None = None, merge_over: str | None = None
) -> CalibrationResult:
    """Fit what a training container measured: ``measurements`` is the folder that it wrote, or the file in it.

    name: of the profile; None takes a shipped one's where the device is known, else one made from the device's name.
    merge_over: engine (vllm, sglang, trtllm) over whose imported tables of the device the measured rows are laid; the
    merged tables go to ``out``/<system>/<engine>, and the profile names them.
    """
    path = measurements / MEASUREMENTS if measurements.is_dir() else measurements
    circumstances = read_measurements(path)["circumstances"]
    chosen = name or profile_name(str(circumstances["device"]), str(circumstances["device_type"]))
    fit = fit_measurements(path, out, chosen, own_tables=merge_over is not None)
    texts = [fit.text(), comparison_text(path, chosen)]
    if merge_over is not None:
        system = system_of(chosen)
        imported = OperatorTables.load(system, merge_over).folder
        merged = merge_tables(fit.tables, imported, out / system / merge_over)
        texts.append(merged_text(merged, out / system / merge_over))
    return CalibrationResult(
        fit.name,
        fit.profile,
        fit.tables,
        fit.check.median_abs_error,
        fit.check.p90_abs_error,
        "\n\n".join(text for text in texts if text),
    )


def profile_name(device: str, device_type: str) -> str:
    """Profile name of a device as torch reports it: ``cpu_local`` for any CPU."""
    if device_type == "cpu":
        return "cpu_local"
    for pattern, known in _KNOWN_DEVICES.items():
        if re.search(pattern, device):
            return known
    words = re.sub(r"[^a-z0-9]+", "_", device.lower().removeprefix("nvidia")).strip("_")
    return f"{words}_local"
