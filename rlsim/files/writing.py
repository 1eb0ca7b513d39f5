"""Writing results whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import shown_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STAGE_PREFIX = ".rlsim-"
"""Beginning of the names of temporary folders; those of a killed run may be removed."""


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """A temporary folder in or beside ``out``; its files move into ``out`` when the block ends without an error.

    Where the block or the device fails nothing of it is left, and what ``out`` held before is untouched.
    Raises InputError naming ``out`` where it cannot be written (read-only, full, a file of that name).
    """
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{shown_path(out)}: is a file; --out needs a folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=STAGE_PREFIX, dir=out if out.is_dir() else out.parent))
        try:
            yield stage
            _move_files(stage, out)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{shown_path(out)}: cannot be written ({error.strerror or error})") from error


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Alone in ``folder`` while the block lasts, after whoever is there now, where the system has such locks."""
    if fcntl is None:
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        lock(opened, wait=True)
        yield
    finally:
        os.close(opened)


def lock(opened: int, wait: bool) -> bool:
    """Whether the lock of an open file or folder was had, which goes when that is closed or its process ends; True
    where the system has no such locks."""
    if fcntl is not None:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
    return True


def _move_files(stage: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    with exclusive(out):
        _replace(stage, out)


def _replace(stage: Path, out: Path) -> None:
    moved = [(path, out / path.relative_to(stage)) for path in sorted(stage.rglob("*"))]
    # All are looked at before the first is moved: a folder in the way must not leave half of them.
    for path, target in moved:
        if target.exists() and target.is_dir() != path.is_dir():
            kind = "a folder" if target.is_dir() else "a file"
            raise InputError(f"{shown_path(target)}: is {kind}, where a result has to go")
    for path, target in moved:
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            path.replace(target)
