"""The journal of a sweep: finished cells, one JSON line each, so that nothing finished is ever computed twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rlsim.errors import InputError
from rlsim.outputs import STAGE_PREFIX

JOURNAL = "sweep.journal"


class Journal:
    """Append-only file in the output folder.

    The first line identifies the sweep; a line is only believed when its newline was written, so that an end at any
    moment costs at most the line being written. Raises InputError where the folder holds another sweep.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.path = folder / JOURNAL
        self.rows: dict[int, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            whole = self._read(identity)
            if whole:
                _clean(folder)
            self._file: BinaryIO = self.path.open("r+b" if self.path.exists() else "xb")
            self._file.truncate(whole)
            self._file.seek(whole)
            if not whole:
                self._write([{"sweep": identity}])
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error

    def _read(self, identity: str) -> int:
        """Take over the complete lines; gives their length in bytes."""
        if not self.path.exists():
            return 0
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        if not lines:
            return 0
        if json.loads(lines[0]).get("sweep") != identity:
            raise InputError(
                f"{self.path}: belongs to another, interrupted sweep; finish that one, choose another --out "
                "or delete the file"
            )
        for line in lines[1:]:
            entry = json.loads(line)
            self.rows[entry["cell"]] = entry["row"]
        return whole

    def add(self, rows: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """Put finished cells down."""
        added = dict(rows)
        self.rows |= added
        self._write([{"cell": index, "row": row} for index, row in added.items()])

    def _write(self, entries: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
        try:
            self._file.write(text.encode())
            self._file.flush()
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({error.strerror or error})") from error

    def close(self) -> None:
        """Keep the file for the next run."""
        self._file.close()

    def remove(self) -> None:
        """Nothing is left to go on with: the results are written, or there are none."""
        self._file.close()
        self.path.unlink()


@contextmanager
def opened_journal(out: Path | None, identity: str) -> Iterator[Journal | None]:
    """The journal of ``out``, None without one. It goes when the block is done and stays where that is interrupted.

    Where the sweep is wrong (InputError before any cell ran) nothing stays, nor any folder that was made for it.
    """
    if out is None:
        yield None
        return
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    journal = Journal(out, identity)
    try:
        yield journal
    except InputError:
        if any(row["status"] == "ok" for row in journal.rows.values()):
            journal.close()
            raise
        journal.remove()
        for folder in made:
            folder.rmdir()
        raise
    except BaseException:
        journal.close()
        raise
    journal.remove()


def _clean(folder: Path) -> None:
    """Remove half-written results of a run that was killed while it wrote them."""
    for stage in folder.glob(f"{STAGE_PREFIX}*"):
        shutil.rmtree(stage)
