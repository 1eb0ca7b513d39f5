"""Which results a folder holds, by the names of its files."""

from __future__ import annotations

from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import shown_path

KINDS = {
    "projection": ("projection.json", "rlsim project --out"),
    "run": ("run.json", "rlsim run --out"),
    "plan": ("plan.json", "rlsim plan --out"),
    "sweep": ("results.csv", "rlsim sweep --out"),
    "validation": ("validation.json", "rlsim validate --out"),
    "blame": ("blame.json", "rlsim blame --out"),
}
"""File that makes a folder one of a kind, and the command that writes it."""


def kinds_in(folder: Path) -> list[str]:
    """Kinds of results in a folder, in the order of KINDS.

    Raises InputError where it is no folder, or says what is missing where it holds none.
    """
    if not folder.is_dir():
        what = "is a file; expected a folder of results" if folder.exists() else "no such folder"
        raise InputError(f"{shown_path(folder)}: {what}")
    found = [kind for kind, (name, _) in KINDS.items() if (folder / name).exists()]
    if not found:
        expected = ", ".join(f"{name} ({command})" for name, command in KINDS.values())
        raise InputError(f"{shown_path(folder)}: holds no results; expected one of {expected}")
    return found


def file_in(folder: Path, name: str) -> Path | None:
    """A file of the folder; None where there is none.

    Raises InputError where it is a link that leads out of the folder: its content may be nobody's to publish.
    """
    path = folder / name
    if not path.exists():
        return None
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{shown_path(path)}: is a link that leads out of the folder")
    return path


def needed_file(folder: Path, name: str) -> Path:
    """The same for a file that must be there."""
    path = file_in(folder, name)
    if path is None:
        raise InputError(f"{shown_path(folder / name)}: no such file")
    return path
