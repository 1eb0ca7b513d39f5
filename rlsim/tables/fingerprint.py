"""Digests of files that an answer depends on, by their content."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from rlsim.files.lookup import catalogue
from rlsim.files.reading import TABLE_BYTES, TRACE_BYTES, read_bytes
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.files import EXPERT_EXCHANGE, MEASURED, available, table_path, tables_folder
from rlsim.tables.profile import table_device

_held: dict[tuple[str, str | None, str], Any] | None = None
Found = TypeVar("Found")


@contextmanager
def tables_held() -> Iterator[None]:
    """While it lasts, operator tables count as they were when they were first asked for.

    For the cells of a sweep or a search, each of which would look at 250 files three times.
    """
    global _held
    before = _held
    # Nested calls share what the outermost has found.
    _held = {} if before is None else before
    try:
        yield
    finally:
        _held = before


def _once(find: Callable[[HardwareProfile], Found]) -> Callable[[HardwareProfile], Found]:
    """``find`` that looks once at tables that are held."""

    def found(profile: HardwareProfile) -> Found:
        if _held is None:
            return find(profile)
        key = find.__name__, profile.operator_tables, profile.name
        if key not in _held:
            _held[key] = find(profile)
        return cast(Found, _held[key])

    return wraps(find)(found)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    return _digest(str(path), path.stat().st_mtime_ns, path.stat().st_size)


@lru_cache(maxsize=512)
def _digest(path: str, modified_ns: int, size: int) -> str:
    """A file is read again whenever its time of change or its size is another."""
    return hashlib.sha256(read_bytes(Path(path), max(TABLE_BYTES, TRACE_BYTES))).hexdigest()


def exchange_entry() -> tuple[str, str] | None:
    """(system, engine) of the first tables that hold the all-to-all around experts; None without."""
    root = tables_folder()
    return next((one for one in available() if table_path(root.joinpath(*one), EXPERT_EXCHANGE).is_file()), None)


@_once
def tables_digest(profile: HardwareProfile) -> str:
    """SHA-256 over all operator tables that a projection on ``profile`` can open.

    These are the profile's own of every engine (quantised products take the fastest of them), those of every system
    that ``rlsim calibrate`` measured here, from which a device without its own verification kernels borrows, and the
    measured exchange of experts; and the profiles of the devices that they were measured on.
    """
    folders, states = _folders(profile), list[tuple[str, str, int, int]]()
    devices = {table_device(profile).name, *(part for folder in folders for part in folder.parts[-2:])}
    for name, path in catalogue("hardware_profiles").items():
        if name in devices:
            states.append((name, str(path), path.stat().st_mtime_ns, path.stat().st_size))
    for folder in folders:
        # Entries and not paths: every cell of a sweep asks for the digest, and paths are slow to make and to sort.
        for entry in sorted((one for one in os.scandir(folder) if one.is_file()), key=lambda one: one.name):
            state = entry.stat()
            states.append((f"{folder.name}/{entry.name}", entry.path, state.st_mtime_ns, state.st_size))

    whole = hashlib.sha256()
    for name, path_of, modified_ns, size in states:
        whole.update(f"{name} {_digest(path_of, modified_ns, size)}\n".encode())
    return whole.hexdigest()


@_once
def tables_state(profile: HardwareProfile) -> int:
    """A number that changes when one of these tables is written; whatever is cached of tables is cached under it."""
    root = tables_folder()
    # A path of one's own replaces the root: pathlib joins an absolute right side so.
    own = [str(root / profile.operator_tables)] if profile.operator_tables is not None else []
    measured = [f"{root}/{system}/{MEASURED}" for system in os.listdir(root)]  # noqa: PTH208
    return hash(frozenset(one for folder in (*own, *measured, _exchange_folder()) for one in _written(folder)))


def _written(folder: str) -> Iterator[tuple[str, int, int]]:
    # Plain names: asked for each cell of a sweep, where paths would take most of the time.
    if os.path.isdir(folder):  # noqa: PTH112
        for entry in os.scandir(folder):
            if entry.is_dir():
                yield from _written(entry.path)
            else:
                state = entry.stat()
                yield entry.path, state.st_mtime_ns, state.st_size


@lru_cache(maxsize=1)
def _exchange_folder() -> str:
    return "/".join((str(tables_folder()), *(exchange_entry() or ("none",))))


def _folders(profile: HardwareProfile) -> tuple[Path, ...]:
    """Folders of the tables that a projection on ``profile`` can open."""
    root, exchange = tables_folder(), exchange_entry()
    folders = sorted(path for path in root.glob(f"*/{MEASURED}") if path.is_dir())
    if profile.operator_tables is not None:
        own = root / profile.operator_tables
        folders += sorted(path for path in own.glob("*") if path.is_dir())
        folders += [own] if own.is_dir() else []
    return tuple(dict.fromkeys((*folders, *([] if exchange is None else [root.joinpath(*exchange)]))))
