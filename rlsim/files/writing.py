"""Writing results whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import shown_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STAGE_PREFIX = ".rlsim-"
"""Beginning of the names of temporary folders in ``--out``."""


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """A temporary folder in ``out``; its files move into ``out`` when the block ends without an error.

    Where the block or the device fails nothing of it is left, and what ``out`` held before is untouched; what a killed
    run left goes with the next one. Raises InputError naming ``out`` where it cannot be written (read-only, full, a
    file of that name).
    """
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{shown_path(out)}: is a file; --out needs a folder")
        made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        try:
            with _stage(out) as stage:
                yield stage
                with exclusive(out):
                    _replace(stage, out)
        except BaseException:
            if made:
                with suppress(OSError):  # another one writes there too
                    out.rmdir()
            raise
    except OSError as error:
        raise InputError(f"{shown_path(out)}: cannot be written ({error.strerror or error})") from error


@contextmanager
def _stage(out: Path) -> Iterator[Path]:
    """A temporary folder, locked while it is filled, so that those of killed runs are known by having no lock."""
    with ExitStack() as filled:
        with exclusive(out):
            # All under the folder's lock: a stage that is made and not yet locked looks like that of a killed run.
            _remove_left(out)
            stage = Path(tempfile.mkdtemp(prefix=STAGE_PREFIX, dir=out))
            # An error here would hide the one that ended the block; what stays goes with the next run.
            filled.callback(shutil.rmtree, stage, ignore_errors=True)
            filled.enter_context(exclusive(stage))
        yield stage


def _remove_left(out: Path) -> None:
    """Remove the temporary folders of killed runs."""
    for left in out.glob(f"{STAGE_PREFIX}*") if fcntl is not None else ():
        with suppress(OSError):
            # A link of that name may lead anywhere; only folders that a run made are removed.
            opened = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if lock(opened, wait=False):
                    shutil.rmtree(left)
            finally:
                os.close(opened)


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


def _replace(stage: Path, out: Path) -> None:
    # Sorted, so that a folder is made before what it holds is moved.
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
            # Within one file system at once: a reader finds the old file or the new one.
            path.replace(target)
