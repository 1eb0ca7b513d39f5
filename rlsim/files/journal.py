"""The journal of a long command: finished cells, one JSON line each, so that nothing finished is computed twice."""

import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from rlsim.errors import InputError, RlsimError
from rlsim.files.writing import lock


class Journal:
    """Append-only file in the output folder.

    The first line identifies what is computed; a line is only believed when its newline was written and its sum
    holds, so that an end at any moment costs at most the line being written. command: what computes (sweep, run),
    which the file is named after. Raises InputError where the folder holds another one's.
    """

    def __init__(self, folder: Path, identity: str, command: str) -> None:
        self.path, self._command = folder / journal_name(command), command
        self.rows: dict[int, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("a+b")
            if not lock(self._file.fileno(), wait=False):
                raise InputError(f"{self.path}: another rlsim writes there; choose another --out")
            whole = self._read(identity)
            # Behind half a line the next one would be no line of its own.
            self._file.truncate(whole)
            self._file.seek(whole)
            if not whole:
                self._write([{command: identity}])
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error
        except InputError:
            self._file.close()
            raise

    def _read(self, identity: str) -> int:
        """Take over the complete lines; gives their length in bytes. A cell whose line is torn is computed again."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        if not lines:
            return 0
        try:
            found = json.loads(lines[0])[self._command]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"{self.path}: is no journal of {self._command}, or damaged; choose another --out or delete the file"
            ) from error
        if found != identity:
            raise InputError(
                f"{self.path}: belongs to another, interrupted {self._command}; finish that one, choose another --out "
                "or delete the file"
            )
        for line in lines[1:]:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                entry = json.loads(line)
                if entry == _entry(entry["cell"], entry["row"]):
                    self.rows[entry["cell"]] = entry["row"]
        return whole

    def add(self, rows: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """Put finished cells down."""
        added = dict(rows)
        self.rows |= added
        self._write([_entry(index, row) for index, row in added.items()])

    def _write(self, entries: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
        try:
            self._file.write(text.encode())
            # What only the process's buffer holds ends with it.
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


def _entry(cell: int, row: dict[str, Any]) -> dict[str, Any]:
    """The line of a cell. Its sum is one of what is read back: floats survive JSON to the last bit."""
    return {"cell": cell, "row": row, "sum": zlib.crc32(json.dumps([cell, row]).encode())}


def journal_name(command: str) -> str:
    """File name of the journal of a command."""
    return f"{command}.journal"


@contextmanager
def opened_journal(out: Path | None, identity: str, command: str) -> Iterator[Journal | None]:
    """The journal of ``out``, None without one. It goes when the block is done and stays where that is interrupted.

    Where the question is wrong (an error of the user's before any cell ran, which has no status or the status ok)
    nothing stays, nor any folder that was made for it.
    """
    if out is None:
        yield None
        return
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    journal = Journal(out, identity, command)
    try:
        yield journal
    except BaseException as error:
        begun = any(row.get("status", "ok") == "ok" for row in journal.rows.values())
        if isinstance(error, RlsimError) and not begun:
            journal.remove()
            # The innermost stands first, so that each is empty when it is its turn.
            for folder in made:
                folder.rmdir()
        else:
            journal.close()
        raise
    journal.remove()
