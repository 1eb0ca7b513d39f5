"""Hardware profiles by name or path."""

import re
from functools import lru_cache
from pathlib import Path

from rlsim.errors import InputError, shortened
from rlsim.files.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.files.reading import shown_path
from rlsim.schema.base import changed
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.messages import read_record


def list_profiles() -> list[str]:
    """Names of the profiles that come with rlsim, sorted."""
    return list(catalogue("hardware_profiles"))


def profile_called(gpu: str) -> str | None:
    """Shipped profile that a GPU is called by: ``H100``, ``h100 pcie``, ``RTX 4090``, ``GB300 NVL72 (72 GPUs)``.

    The first words count as far as profiles begin with them; of several boards of a chip SXM and NVL72 have no name of
    their own. None where no profile begins so, or several chips do.
    """
    found = _called(gpu)
    return None if found is None else found[0]


def _called(gpu: str) -> tuple[str, list[str]] | None:
    """The profile of :func:`profile_called` and the words of ``gpu`` that it does not count."""
    words = [word for word in re.split(r"[\s_-]+", gpu.lower()) if word]
    # The most words first: h100 pcie is the board, h100 alone the chip.
    for count in range(len(words), 0, -1):
        head = "_".join(words[:count])
        # Whole words: b20 must not find b200.
        found = [name for name in list_profiles() if f"{name}_".startswith(f"{head}_")]
        if found:
            plain = [name for name in found if name.endswith(UNNAMED_BOARDS)] or found
            return (plain[0], words[count:]) if len(plain) == 1 else None
    return None


OF_EVERY_BOARD = re.compile(r"\d+|\d*(g|gb|gib)|hbm\d*e?|sxm\d*|gpus?")
"""Words that name no other board of a chip: its memory, its socket, how many."""
UNNAMED_BOARDS = ("_sxm", "_nvl72")
"""Ends of profiles that a chip's bare name means."""


def load_profile(name_or_path: str | Path, base: Path | None = None) -> HardwareProfile:
    """Profile by name (``gb200_nvl72``, case-insensitive; ``b200``, the chip alone; ``h100 80gb``) or from a YAML file.

    base: folder from which a relative path counts. Raises InputError for an unknown name or an invalid file.
    """
    name = str(name_or_path)
    otherwise = "; rlsim hardware list names all, or give the path of a profile"
    known = catalogue("hardware_profiles")
    path = as_path(name, YAML_SUFFIXES, base)
    if path is None:
        # b200 where one board of that chip is known; a chip with several has to be told apart
        called = _called(name.partition("(")[0])
        # Any other word may be a board that has no profile, or one that was written wrongly.
        if called is not None and not all(map(OF_EVERY_BOARD.fullmatch, called[1])):
            raise InputError(f"unknown hardware profile '{shortened(name)}'; nearest: {called[0]}{otherwise}")
        path = find_entry(called[0] if called else name, known, "hardware profile", otherwise)
    state = path.stat() if path.is_file() else None
    profile = _read(path, *((state.st_mtime_ns, state.st_size) if state else (0, 0)))
    own = anchored_tables(profile.operator_tables, path.parent)
    return profile if own == profile.operator_tables else changed(profile, operator_tables=own)


@lru_cache(maxsize=32)  # a projection asks four times for its own device, a fit for all of them
def _read(path: Path, modified_ns: int, size: int) -> HardwareProfile:
    """A file is read again whenever its time of change or its size is another."""
    return read_record(path, HardwareProfile)


def anchored_tables(operator_tables: str | None, folder: Path) -> str | None:
    """The whole path of a folder of tables that is written as a path, relative to ``folder``; names stay as they are.

    Raises InputError where it is a path and no such folder is there.
    """
    if operator_tables is None or (not operator_tables.startswith((".", "/", "~")) and "/" not in operator_tables):
        return operator_tables
    path = as_path(operator_tables, (), folder)
    if path is None or not path.is_dir():
        raise InputError(
            f"operator_tables: no folder {shortened(repr(operator_tables))} of measured tables, counted from "
            f"{shown_path(folder.resolve())} or from here; rlsim calibrate makes one"
        )
    return str(path.resolve())


def table_device(profile: HardwareProfile) -> HardwareProfile:
    """The shipped profile whose ``operator_tables`` are those of ``profile``; the profile itself where none ships.

    A profile that differs from it (a user who halves a bandwidth) sees measured times scaled by the ratio of both
    rooflines; an unchanged one sees them as measured.
    """
    return (profile.operator_tables and _measured_on(profile.operator_tables)) or profile


@lru_cache(maxsize=32)
def _measured_on(tables: str) -> HardwareProfile | None:
    # Tables have the name of their device; others (H800, H20) carry its times over.
    names = sorted(list_profiles(), key=lambda other: other != tables)
    shipped = (load_profile(other) for other in names)
    return next((other for other in shipped if other.operator_tables == tables), None)
