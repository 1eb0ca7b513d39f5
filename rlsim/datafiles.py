"""Where the project's data folders are: in a checkout beside the package, in a wheel inside it."""

from __future__ import annotations

from pathlib import Path

from rlsim.errors import InputError

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """Folder ``name`` (hardware_profiles, calibration or scenarios) of this installation.

    Raises InputError where the installation lacks it (a wheel built without its data).
    """
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise InputError(f"data folder '{name}' is missing from this installation of rlsim; reinstall it")
