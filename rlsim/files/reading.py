"""The project's data folders, in a checkout beside the package or in a wheel inside it, and bounded reading."""

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from rlsim.errors import InputError, shortened

_PACKAGE = Path(__file__).resolve().parent.parent

DOCUMENT_BYTES = 2**20
"""Largest YAML or JSON document: scenario, model, profile, parameters. The longest shipped one has 6 KiB."""
TABLE_BYTES = 64 * 2**20
"""Largest file of measured steps, iterations or operators."""
PATH_CHARACTERS = 150
"""Longest path that a message repeats."""
_SHIPPED = (("scenarios",), ("hardware_profiles",), ("calibration",), ("rlsim",))
TRACE_BYTES = 256 * 2**20
"""Largest file of request lengths: some million lines."""
GZIP = b"\x1f\x8b"
"""How a file that gzip packed begins (RFC 1952, section 2.3.1)."""
LINE_CHARACTERS = 32 * 2**20
"""Longest line of a trace or a log; one of a sample with its tokens and log-probabilities has some 5 MiB."""
MOST_LINES = 5_000_000
"""Lines of a trace that are read: 16 s of CSV on a shared core."""
LOG_LINES = 1_000_000
"""Lines of a log that are read: 12 to 17 s of JSON lines on a shared core."""


_only: list[Path] = []


def confine(folder: Path) -> None:
    """From now on this process reads files of this installation and below ``folder`` alone: for texts of strangers,
    which may name any path."""
    _only[:] = [folder.resolve()]


def check_readable(path: Path) -> None:
    """Raises InputError where ``path`` lies outside of what :func:`confine` leaves."""
    try:
        outside = bool(_only) and not delivered(path) and not path.resolve().is_relative_to(_only[0])
    except (OSError, ValueError):  # a loop of links, or a NUL
        outside = True
    if outside:
        raise InputError(f"{shown_path(path)}: lies outside of what was passed, and nothing else is read")


def data_folder(name: str) -> Path:
    """Folder ``name`` (hardware_profiles, calibration or scenarios) of this installation.

    Raises InputError where the installation lacks it (a wheel built without its data).
    """
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise InputError(f"data folder '{name}' is missing from this installation of rlsim; reinstall it")


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Content of a regular file of at most ``most_bytes``.

    Raises InputError naming the file where it is missing, a folder, a device or pipe (which may never end), larger or
    unreadable.
    """
    check_readable(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{shown_path(path)}: is a folder; expected a file")
        if not stat.S_ISREG(mode):
            raise InputError(f"{shown_path(path)}: is no regular file (a device or pipe)")
        with path.open("rb") as file:
            # One byte too many tells a larger file, also one that grows while it is read.
            content = file.read(most_bytes + 1)
    except FileNotFoundError as error:
        raise InputError(f"{shown_path(path)}: no such file") from error
    except OSError as error:
        raise InputError(f"{shown_path(path)}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{shown_path(path)}: cannot be a path ({error})") from error
    if len(content) > most_bytes:
        raise InputError(f"{shown_path(path)}: is larger than {most_bytes / 2**20:,.0f} MiB, the most that is read")
    return content


def read_text(path: Path, most_bytes: int) -> str:
    """Text of a UTF-8 file, under the conditions of :func:`read_bytes`; of one that gzip packed what it holds, as
    large at most. Raises InputError also where it is binary.
    """
    data = read_bytes(path, most_bytes)
    try:
        text = (_unpacked(path, data, most_bytes) if data.startswith(GZIP) else data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{shown_path(path)}: is not a text file (not UTF-8)") from error
    if "\0" in text:
        raise InputError(f"{shown_path(path)}: is not a text file (it has NUL bytes)")
    return text


def _unpacked(path: Path, data: bytes, most_bytes: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(most_bytes + 1)  # a small file may hold any number of bytes
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{shown_path(path)}: is no whole gzip file ({error})") from error
    if len(unpacked) > most_bytes:
        raise InputError(f"{shown_path(path)}: holds more than {most_bytes / 2**20:,.0f} MiB, the most that is read")
    return unpacked


def text_lines(text: str, where: str, most: int = MOST_LINES) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of every line of ``text``; only LF, CR LF and CR end one.

    Raises InputError naming ``where`` before the first line where there are more than ``most``, and naming the line
    where it has more than LINE_CHARACTERS.
    """
    # Not splitlines, which also ends lines at form feeds and at separators of Unicode within a text.
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (lines := text.count("\n")) > most:
        raise InputError(f"{where}: {lines:,} lines are more than {most:,}, the most that are read; give a part of it")
    start, number = 0, 0
    while start < len(text):
        end = text.find("\n", start)
        end, number = (len(text) if end < 0 else end), number + 1
        if end - start > LINE_CHARACTERS:
            raise InputError(
                f"{where}, line {number}: is longer than {LINE_CHARACTERS:,} characters, the most that is read"
            )
        yield number, text[start:end]
        start = end + 1


def shown_path(path: Path) -> str:
    """``path`` as messages name it: files of this installation from their data folder on, others as they were given."""
    root = _home_of(path)
    return str(path.relative_to(root)) if root is not None else shortened(str(path), PATH_CHARACTERS)


def delivered(path: Path) -> bool:
    """Whether a file comes with this installation."""
    return _home_of(path) is not None


def _home_of(path: Path) -> Path | None:
    """Where the data folder that a file lies in lies itself."""
    parts = path.parts  # compared by hand: pathlib's own way to ask takes ten times as long, a hundredth of a start
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        depth = len(root.parts)
        if parts[:depth] == root.parts and parts[depth : depth + 1] in _SHIPPED and ".." not in parts:
            return root
    return None


@cache
def installed_version() -> str:
    """The version of rlsim; another one reads nothing that this one left half done."""
    # importlib.metadata, which finds it in the same place, takes a third of the time of `rlsim --help`.
    for folder in sorted(sys.path, key=lambda one: not one.endswith("-packages")):  # where it nearly always is
        with suppress(OSError), os.scandir(folder or ".") as found:
            for one in found:
                if one.name.startswith("rlsim-") and one.name.endswith(".dist-info"):
                    said = Path(one.path, "METADATA").read_text(encoding="utf-8")
                    return said.partition("\nVersion: ")[2].partition("\n")[0].strip()
    return "0+unknown"  # run from a source tree that was never installed
