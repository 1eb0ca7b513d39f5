"""What the cost model assumes beside what a device measured of it; no projection reads it yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.measurements import Measurements
from research.assumptions.launches import draft_assumptions, launch_assumptions
from research.assumptions.rows import Assumption, Basis
from research.assumptions.training import training_assumptions
from research.assumptions.transfers import transfer_assumptions
from rlsim.calibration.columns import efficiencies_as_yaml
from rlsim.calibration.device_profile import DeviceRates
from rlsim.files.lookup import catalogue
from rlsim.parameters.sets import shipped
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import load_profile

GROUPS = (
    ("launches", launch_assumptions),
    ("draft passes", draft_assumptions),
    ("weights", transfer_assumptions),
    ("training", training_assumptions),
)


@dataclass(frozen=True)
class AssumptionCheck:
    """Rows by group, in the order in which they are shown."""

    device: str
    groups: dict[str, tuple[Assumption, ...]]

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """A table for each group; empty without rows."""
        if not any(self.groups.values()):
            return ""
        lines = [f"assumptions of the cost model beside measurements on {self.device}; no projection reads them"]
        for name, rows in self.groups.items():
            heads = (name, "measured as", "used", "measured", "ratio", "used value from")
            lines += ["", *table(heads, [_cells(one) for one in rows], style, "<<>>><")] if rows else []
        return "\n".join(lines)


def check_assumptions(
    measured: Measurements, folder: Path, name: str, profile: HardwareProfile, rates: DeviceRates
) -> AssumptionCheck:
    """Rows of everything that ``measured`` holds of an assumption.

    folder: operator tables of the same measurements. name, profile: of the device; where a profile of that name ships,
    it is the one that projections have used so far.
    """
    before = load_profile(name) if name in catalogue("hardware_profiles") else profile
    host = {"graph_replay_s": rates.host["graph_replay_s"]}
    tables = OperatorTables(folder, {"efficiency": efficiencies_as_yaml(rates.efficiency), "host": host})
    basis = Basis(before, tables, shipped())
    groups = {group: tuple(rows_of(measured, basis)) for group, rows_of in GROUPS}
    return AssumptionCheck(measured.metadata.device, groups)


def _cells(row: Assumption) -> tuple[str, ...]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}" if row.ratio >= 0.1 else f"{row.ratio:.1g}"
    return row.name, row.what, row.shown(row.used), row.shown(row.measured), ratio, row.origin or "-"
