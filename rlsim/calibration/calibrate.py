"""What ``rlsim calibrate --cases``, ``--device`` and ``--from-measurements`` call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import bench.__main__ as program
from bench import BenchError
from bench.cases import write_cases
from bench.measurements import read_measurements
from rlsim.calibration.cases import case_list
from rlsim.calibration.comparison import comparison_text
from rlsim.calibration.measured_tables import make_tables, system_of
from rlsim.calibration.merge import merge_tables, merged_text
from rlsim.errors import InputError
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.tables.operators import OperatorTables

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


@contextmanager
def _as_input_errors() -> Iterator[None]:
    """What the benchmark says of its input, as an InputError."""
    try:
        yield
    except BenchError as error:
        raise InputError(str(error)) from error


def write_case_list(device_type: str, quick: bool, path: Path) -> str:
    """Write what a quick or full run on ``cuda`` or ``cpu`` measures to ``path``; says how many cases."""
    if device_type not in ("cuda", "cpu"):
        raise InputError(f"cases are made for --device cuda or cpu, not '{device_type[:60]}'")
    wanted = case_list(device_type, quick)
    with _as_input_errors():
        write_cases(path, wanted)
    command = f"python -m bench --cases {path.name} --device {device_type} --out DIR"
    return f"{len(wanted.cases)} cases: {path}; measure them with the folder bench/ beside it: {command}"


def calibrate_device(
    device: str,
    out: Path,
    quick: bool,
    resume: bool = True,
    progress: bool | None = None,
    name: str | None = None,
    style: Style = DEFAULT_STYLE,
) -> CalibrationResult:
    """Measure ``device`` (cpu, cuda, cuda:N) into ``out`` and make tables of it there.

    An interrupted call is continued by the same call unless ``resume`` is False. progress: bar on stderr, None means
    on a terminal. Raises InputError for everything that a user can mend (no torch, no GPU, folder not writable).
    """
    with _as_input_errors():
        told = program.measure(case_list(device.partition(":")[0], quick), device, out, resume, progress)
    made = calibrate_measurements(out, out, name, style=style)
    return replace(made, text=f"{told}\n\n{made.text}")


def calibrate_measurements(
    measurements: Path, out: Path, name: str | None = None, merge_over: str | None = None, style: Style = DEFAULT_STYLE
) -> CalibrationResult:
    """Make tables of what ``python -m bench`` measured: ``measurements`` is its folder, or the file in it.

    name: of the profile; None takes a shipped one's where the device is known, else one made from the device's name.
    merge_over: engine (vllm, sglang, trtllm) over whose imported tables of the device the measured rows are laid; the
    merged tables go to ``out``/<system>/<engine>, and the profile names them.
    """
    with _as_input_errors():
        measured = read_measurements(measurements / MEASUREMENTS if measurements.is_dir() else measurements)
    chosen = name or profile_name(measured.metadata.device, measured.metadata.device_type)
    made = make_tables(measured, out, chosen, own_tables=merge_over is not None)
    texts = [made.text(style), comparison_text(measured, chosen, style)]
    if merge_over is not None:
        system = system_of(chosen)
        imported = OperatorTables.load(system, merge_over).folder
        merged = merge_tables(made.tables, imported, out / system / merge_over)
        texts.append(merged_text(merged, out / system / merge_over))
    counted = made.check.as_engines_run
    text = "\n\n".join(text for text in texts if text)
    return CalibrationResult(
        made.name, made.profile, made.tables, counted.median_abs_error, counted.p90_abs_error, text
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
