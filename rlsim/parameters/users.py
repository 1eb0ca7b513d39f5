"""Deviations of users' runs from tuned ones: NAME.yaml in calibration/users/, and what of them a scenario takes."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from rlsim.files.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.files.reading import data_folder
from rlsim.parameters.posterior import NONE
from rlsim.schema.messages import read_record
from rlsim.schema.scenario import Scenario
from rlsim.schema.users import UserDeviation, UserRuns
from rlsim.tables.fingerprint import file_digest

DEFAULT = "wild"
"""The set that comes with rlsim."""


def user_runs_path(name_or_path: str, base: Path | None = None) -> Path:
    """File of the set called ``name_or_path``, or the file of that path. Raises InputError with the nearest."""
    if name_or_path == DEFAULT:  # asked for by every scenario of a user
        return data_folder("calibration") / "users" / f"{DEFAULT}.yaml"
    hint = f"; give the path of a .yaml file, or {NONE}"
    return as_path(name_or_path, YAML_SUFFIXES, base) or find_entry(
        name_or_path, catalogue("calibration", "users"), "set of users' runs", hint
    )


def load_user_runs(name_or_path: str = DEFAULT) -> UserRuns | None:
    """The set of that name or path; None for ``none``."""
    if name_or_path == NONE:
        return None
    path = user_runs_path(name_or_path)
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=32)
def _read(path: Path, modified_ns: int, size: int) -> UserRuns:
    """A file is read again whenever its time of change or its size is another."""
    return read_record(path, UserRuns)


def user_runs_of(scenario: Scenario) -> UserRuns | None:
    """The set that ``scenario`` takes; None where it names none."""
    return load_user_runs(scenario.simulation.user_runs or DEFAULT)


def user_runs_digest(name_or_path: str) -> str:
    """Digest of the set's file, wherever it lies; ``none`` for none."""
    return NONE if name_or_path == NONE else file_digest(user_runs_path(name_or_path))


def deviation_of(known: UserRuns, phase: str, families: Sequence[str]) -> UserDeviation | None:
    """The deviation of ``phase`` of the first of ``families`` that the set holds; None without any."""
    found = {one.family: one for one in known.deviations if one.phase == phase}
    return next((found[family] for family in families if family in found), None)
