"""``python -m research.assumptions MEASUREMENTS TABLES [NAME]``: what the cost model assumes beside what was measured.

``python -m research.assumptions --cases FILE [--device cpu] [--quick]`` writes what ``python -m bench run FILE``
measures for it. MEASUREMENTS: folder or file that it wrote. TABLES: folder that ``rlsim calibrate`` wrote of it. NAME:
of the profile there; default: the shipped one of the device.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cases import write_cases
from bench.measurements import read_measurements
from research.assumptions.cases import wider_list
from research.assumptions.check import check_assumptions
from rlsim.calibration.calibrate import MEASUREMENTS, profile_name
from rlsim.calibration.device_profile import rates_of
from rlsim.calibration.measured_tables import ENGINE, system_of
from rlsim.tables.profile import load_profile


def main() -> None:
    """Print a table for each group of assumptions."""
    parser = argparse.ArgumentParser(prog="python -m research.assumptions", description=__doc__)
    parser.add_argument("measurements", type=Path, nargs="?")
    parser.add_argument("tables", type=Path, nargs="?")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.cases is not None:
        write_cases(given.cases, wider_list(given.device, given.quick))
        return
    if given.tables is None:
        parser.error("MEASUREMENTS and TABLES, or --cases FILE")
    path = given.measurements / MEASUREMENTS if given.measurements.is_dir() else given.measurements
    measured = read_measurements(path)
    name = given.name or profile_name(measured.metadata.device, measured.metadata.device_type)
    folder = given.tables / system_of(name) / ENGINE
    profile = load_profile(str(given.tables / f"{name}.yaml"))
    print(check_assumptions(measured, folder, name, profile, rates_of(measured)).text() or "nothing was measured")


if __name__ == "__main__":
    main()
