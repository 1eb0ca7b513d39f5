"""The profile on which operator tables were measured, so that a changed profile moves measured times too."""

from __future__ import annotations

from functools import lru_cache

from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.profile import list_profiles, load_profile


def table_device(profile: HardwareProfile) -> HardwareProfile:
    """The shipped profile whose ``operator_tables`` are those of ``profile``; the profile itself where none ships.

    A profile that differs from it (a user who halves a bandwidth) sees measured times scaled by the ratio of both
    rooflines; an unchanged one sees them as measured.
    """
    if profile.operator_tables is None:
        return profile
    return _measured_on(profile.operator_tables) or profile


@lru_cache(maxsize=32)
def _measured_on(tables: str) -> HardwareProfile | None:
    # Tables have the name of their device; others (H800, H20) carry its times over.
    names = sorted(list_profiles(), key=lambda other: other != tables)
    shipped = (load_profile(other) for other in names)
    return next((other for other in shipped if other.operator_tables == tables), None)
