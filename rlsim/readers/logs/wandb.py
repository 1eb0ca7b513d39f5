"""Metrics of a run file of wandb (run-ID.wandb, all that an offline run leaves), without wandb.

Blocks of 32 KiB as of LevelDB's log, with zlib's CRC-32 (wandb/wandb 0552ec8a, wandb/sdk/internal/datastore.py), hold
messages ``Record``, whose field 2 is a step's history: items with a key or nested keys and a value in JSON, and the
step's number (00243053, wandb/proto/wandb_internal.proto).
"""

import json
import struct
import zlib
from collections.abc import Iterator

from rlsim.errors import InputError
from rlsim.readers.logs.rows import ROW, Rows
from rlsim.readers.logs.tensorboard import COUNTED, MOST_RECORDS, VARINT, Scalars, message

START = b":W&B\xe1\xbe\x00"
"""Identity, magic number and version."""
BLOCK = 2**15
HEAD = struct.Struct("<IHB")
"""Of a piece: its check sum, its size, and where in its record it lies."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def is_run_file(content: bytes) -> bool:
    """Whether a file begins as wandb's run files do."""
    return content.startswith(START)


def add_run_file(scalars: Scalars, content: bytes, where: str) -> None:
    """Numbers of the history of a run file. The last record of a running job may be cut: it is left out with a remark.
    Raises InputError where a check sum is wrong or a record is none."""
    rows = Rows(scalars)
    for number, data in enumerate(_records(scalars, content, where), start=1):
        if number > MOST_RECORDS:
            raise InputError(f"{where}: more than {MOST_RECORDS:,} records, the most that are read")
        try:
            for history in message(data)[2, COUNTED]:
                _add_history(rows, history)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}, record {number}: is no record of wandb ({error})") from error
    rows.add()


def _records(scalars: Scalars, content: bytes, where: str) -> Iterator[bytes]:
    at, pieces = len(START), list[bytes]()
    while at < len(content):
        left = BLOCK - at % BLOCK
        if left < HEAD.size:  # too little for a head: zeros up to the next block
            at += left
            continue
        begin = at + HEAD.size
        checked, size, kind = HEAD.unpack_from(content, at) if begin <= len(content) else (0, len(content), FULL)
        if begin + size > len(content):
            scalars.remarks.append("the last record is cut and left out")
            return
        data = content[begin : begin + size]
        # As in LevelDB's log the check sum is of the kind and the data behind it.
        if not FULL <= kind <= LAST or zlib.crc32(data, zlib.crc32(bytes([kind]))) != checked:
            raise InputError(f"{where}, byte {at:,}: its check sum (CRC) is wrong; the file is damaged")
        at = begin + size
        # A first piece without its last is of a writer that died: the next record begins anew.
        pieces = [data] if kind in (FULL, FIRST) else [*pieces, data]
        if kind in (FULL, LAST):
            yield b"".join(pieces)


def _add_history(rows: Rows, data: bytes) -> None:
    history, row = message(data), dict[str, object]()
    for item in history[1, COUNTED]:
        entry = message(item)
        # HistoryItem: key is field 1, nested_key 2, value_json 16; of a field that is sent twice the last counts.
        keys = entry[1, COUNTED][-1:] or entry[2, COUNTED]
        row["/".join(key.decode("utf-8") for key in keys)] = json.loads(b"".join(entry[16, COUNTED][-1:]))
    for counter in history[2, COUNTED]:
        row.setdefault(ROW, next(reversed(message(counter)[1, VARINT]), 0))
    if isinstance(row.get(ROW), int | float):
        rows.keep(row, {name: value for name, value in row.items() if name != ROW})
