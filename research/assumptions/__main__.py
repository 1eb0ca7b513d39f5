"""``python -m research.assumptions MEASUREMENTS TABLES [NAME]``: what the cost model assumes beside what was measured.

MEASUREMENTS: folder or file that ``python -m bench`` wrote. TABLES: folder that ``rlsim calibrate`` wrote of it. NAME:
of the profile there; default: the shipped one of the device.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.measurements import read_measurements
from research.assumptions.check import check_assumptions
from rlsim.calibration.calibrate import MEASUREMENTS, profile_name
from rlsim.calibration.device_profile import rates_of
from rlsim.calibration.measured_tables import ENGINE, system_of
from rlsim.tables.profile import load_profile


def main() -> None:
    """Print a table for each group of assumptions."""
    parser = argparse.ArgumentParser(prog="python -m research.assumptions", description=__doc__)
    parser.add_argument("measurements", type=Path)
    parser.add_argument("tables", type=Path)
    parser.add_argument("name", nargs="?")
    given = parser.parse_args()
    path = given.measurements / MEASUREMENTS if given.measurements.is_dir() else given.measurements
    measured = read_measurements(path)
    name = given.name or profile_name(measured.metadata.device, measured.metadata.device_type)
    folder = given.tables / system_of(name) / ENGINE
    profile = load_profile(str(given.tables / f"{name}.yaml"))
    print(check_assumptions(measured, folder, name, profile, rates_of(measured)).text() or "nothing was measured")


if __name__ == "__main__":
    main()
