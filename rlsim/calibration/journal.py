"""Journal of measured cells, one JSON line each, that survives being killed at any moment (standard library only)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlsim.errors import InputError

Record = dict[str, Any]


class Journal:
    """Append-only file of records of one run; a line counts only where it is whole and of the same ``fingerprint``.

    Records of another fingerprint (another device, torch or benchmark version) stay in the file and are ignored.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.records: dict[str, Record] = {}
        self._size = 0
        try:
            self._open()
        except OSError as error:
            raise _unwritable(path, error) from error

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        with self.path.open("ab") as file:
            file.truncate(len(whole))
        self._size = len(whole)
        for line in whole.splitlines():
            record = _parse(line)
            if record is not None and record.get("fingerprint") == self.fingerprint:
                self.records[record["cell"]] = record

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record (with key ``cell``); a failed write leaves the file as it was. InputError where it cannot be
        written.
        """
        full: Record = {**record, "fingerprint": self.fingerprint}
        line = (json.dumps(full, allow_nan=False, separators=(",", ":")) + "\n").encode()
        try:
            self._write(line)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self._size += len(line)
        self.records[full["cell"]] = full

    def _write(self, line: bytes) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(handle, line) != len(line):
                raise OSError("the disk is full")
        except OSError:
            os.ftruncate(handle, self._size)
            raise
        finally:
            os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step, so that a reader finds the old file or the new one. InputError on
    failure.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "cell" in record else None


def _unwritable(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(
        f"cannot write {path}: {reason}; what was measured before is kept, run the same command again to continue"
    )
