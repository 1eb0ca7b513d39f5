"""Journal of measured cases, one JSON line each, that survives being killed at any moment (standard library only)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bench import BenchError
from bench.measurements import KEPT, Measurement, measurement_from


class Journal:
    """Append-only file of the measurements of one run; a line counts only where it is whole and of the same
    ``fingerprint``.

    Lines of another fingerprint (another device, torch or benchmark version) stay in the file and are ignored.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.records: dict[str, Measurement] = {}
        self._size = 0
        try:
            self._open()
        except OSError as error:
            raise self._unwritable(error) from error

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        with self.path.open("ab") as file:
            file.truncate(len(whole))
        self._size = len(whole)
        for line in whole.splitlines():
            try:
                content_of_line = json.loads(line)
                if content_of_line["fingerprint"] == self.fingerprint:
                    record = measurement_from(content_of_line)
                    self.records[record.case.key] = record
            except (ValueError, KeyError, TypeError):
                continue

    def append(self, record: Measurement) -> None:
        """Add one record; a failed write leaves the file as it was. BenchError where it cannot be written."""
        full = {**record.as_json(), "fingerprint": self.fingerprint}
        line = (json.dumps(full, allow_nan=False, separators=(",", ":")) + "\n").encode()
        try:
            self._write(line)
        except OSError as error:
            raise self._unwritable(error) from error
        self._size += len(line)
        self.records[record.case.key] = record

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

    def _unwritable(self, error: OSError) -> BenchError:
        return BenchError(f"cannot write {self.path}: {error.strerror or error}; {KEPT}")
