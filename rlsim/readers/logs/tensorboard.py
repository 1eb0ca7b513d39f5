"""Metrics of a run, a number by name and step, and those of TensorBoard's event files, without TensorBoard: TFRecord
frames of Event messages.

A frame is the length of its data (8 bytes), the masked CRC-32C of these, the data, and the masked CRC-32C of the data
(tensorflow/core/lib/io/record_writer.h). An Event (tensorflow/core/util/event.proto) holds a step and a Summary of
values, a scalar as ``simple_value`` or as a tensor of one element. Every check sum is tested, nothing else is decoded.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsim.errors import InputError, shortened

SCALAR_BYTES = 2**16
"""Longest record that can hold scalars; images, audio and graphs have longer ones, which are passed over."""
MOST_RECORDS = 2_000_000
"""Records of an event file: a minute on a shared core, whose progress is printed."""
ADVANCED = 20_000
"""Records between two tellings of how far it is."""
Advance = Callable[[int, int], object]
HEADER, FOOTER = 12, 4
POLYNOMIAL = 0x82F63B78
"""CRC-32C, bits reversed (RFC 3720, appendix B.4)."""
MASK_DELTA = 0xA282EAD8
"""tensorflow/core/lib/hash/crc32c.h."""
VERSION = b"brain.Event:"
"""Beginning of ``file_version`` in the first record."""
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]

VARINT, EIGHT, COUNTED, FOUR = 0, 1, 2, 5
"""Wire types of protocol buffers (https://protobuf.dev/programming-guides/encoding); groups, 3 and 4, are refused."""
SIZES = {EIGHT: 8, FOUR: 4}
_VARINT = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")
_CONTENT = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}
"""Bytes of an element by the DataType of its tensor (tensorflow/core/framework/types.proto)."""


MOST_METRICS = 20_000
MOST_VALUES = 20_000_000
"""Metrics and values that are kept; a run of a thousand metrics and ten thousand steps has half as many."""
DEEPEST = 8
"""Nested mappings that are taken as parts of a name."""


RUNNING = "train_speed(s/it)"
"""ms-swift's mean over all steps so far."""


class Scalars:
    """Values by metric and step; a step that is told again, as after a restart, counts as told last.

    where: the log, for messages. remarks: on what of it is left out. retold: by metric and step, what was told first
    where another value took its place. running: (step, value) of means over all steps so far, in the order in which
    they were told (rows.py). banners: what the text around the metrics names of GPU and releases.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.values: dict[str, dict[int, float]] = {}
        self.retold: dict[str, dict[int, float]] = {}
        self.remarks: list[str] = []
        self.banners: dict[str, str] = {}
        self.broken: dict[str, set[int]] = {}
        self.told: dict[str, float] = {}
        self.running: dict[str, list[tuple[int, float]]] = {}
        self._count = 0

    def add(self, name: str, step: float, value: float) -> None:
        """One value. Raises InputError for a step that is no number of at least 0, and for more than is kept."""
        if not math.isfinite(step) or not 0 <= step < 2**53:
            raise InputError(
                f"{self.where}: a step must be a number of at least 0; got {step:g} of '{shortened(name)}'"
            )
        by_step, number = self.values.setdefault(name, {}), int(step)
        if number in by_step and by_step[number] != value:
            self.retold.setdefault(name, {}).setdefault(number, by_step[number])
        by_step[number] = value
        if name.endswith(RUNNING):
            self.running.setdefault(name, []).append((number, value))
        self._count += 1
        if self._count > MOST_VALUES or len(self.values) > MOST_METRICS:
            raise InputError(f"{self.where}: more than {MOST_METRICS:,} metrics or {MOST_VALUES:,} values")

    def add_all(self, step: float, record: Mapping[str, Any], comma: bool = False) -> None:
        """Every number of a record, also of nested ones, whose names are joined by a slash. comma: before decimals."""
        for name, value in flattened(record, comma=comma):
            self.add(name, step, value)


def flattened(
    record: Mapping[str, Any], prefix: str = "", depth: int = 0, comma: bool = False
) -> list[tuple[str, float]]:
    """(name, number) of a record; texts that are no numbers, lists and empty cells are left out."""
    out = []
    for name, value in record.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            out += flattened(value, f"{prefix}{name}/", depth + 1, comma)
        elif (found := number_of(value, comma)) is not None:
            out.append((f"{prefix}{name}", found))
    return out


_THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}(,\d{3})+(\.\d*)?\s*")


def number_of(value: object, comma: bool = False) -> float | None:
    """The number that a cell of a log holds, also with commas between thousands or before decimals; None of none.

    comma: commas stand before decimals throughout. NaN and infinities are numbers.
    """
    # true and false of JSON are integers to Python, and no metrics.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and "," in value:
        if comma:
            value = value.replace(".", "")
        value = value.replace(",", "" if _THOUSANDS.fullmatch(value) and not comma else ".")
    try:
        return float(value)
    except (ValueError, OverflowError):
        # An integer beyond a float's range overflows, where its text would be read as infinity.
        return math.inf if isinstance(value, int) else None


def decimal_commas(numbers: Iterable[object]) -> bool:
    """Whether commas in the numbers of a log stand before decimals: one at least cannot stand between thousands, and
    none has a point as well."""
    listed = [one.rstrip(".,") for one in numbers if isinstance(one, str)]
    found = [one for one in listed if "," in one and number_of(one) is not None]
    return any(not _THOUSANDS.fullmatch(one) for one in found) and not any("." in one for one in found)


def is_event_file(content: bytes) -> bool:
    """Whether a file begins with the record that TensorBoard's writers begin with."""
    return VERSION in content[: HEADER + 64] and len(content) >= HEADER + FOOTER


def add_events(scalars: Scalars, content: bytes, where: str, advance: Advance) -> None:
    """Scalars of an event file. advance: called with (done, total) records now and then.

    Raises InputError where it is cut short, a check sum is wrong or a record is none.
    """
    starts, sizes = _frames(content, where)
    _check_sums(np.frombuffer(content, dtype=np.uint8), starts, sizes, where)
    for number, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True), start=1):
        if number % ADVANCED == 0:
            advance(number, starts.size)
        if size <= SCALAR_BYTES:
            try:
                _add_event(scalars, content[start : start + size])
            except ValueError as error:
                raise InputError(f"{where}, record {number}: is no event of TensorBoard ({error})") from error


def _frames(content: bytes, where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and size of the data of each record."""
    starts, sizes, at = list[int](), list[int](), 0
    while at < len(content):
        left = len(content) - at
        size = int.from_bytes(content[at : at + 8], "little") if left >= HEADER else 0
        if left < HEADER + size + FOOTER:
            raise InputError(
                f"{where}, record {len(starts) + 1}: the file is cut short, or damaged here (at byte {at:,} of "
                f"{len(content):,})"
            )
        starts.append(at + HEADER)
        sizes.append(size)
        at += HEADER + size + FOOTER
        if len(starts) > MOST_RECORDS:
            raise InputError(f"{where}: more than {MOST_RECORDS:,} records, the most that are read; give a part of it")
    return np.array(starts, dtype=np.int64), np.array(sizes, dtype=np.int64)


def _check_sums(content: U8, starts: NDArray[np.int64], sizes: NDArray[np.int64], where: str) -> None:
    """Raise InputError for the first record whose length or data has another check sum than it says."""
    eight = np.full(starts.size, 8, dtype=np.int64)
    bad = _masked(_crc(content, starts - HEADER, eight)) != _stored(content, starts - 4)
    # Nothing is read of longer records, whose bytes would take most of the time.
    short = np.flatnonzero(sizes <= SCALAR_BYTES)
    sums = _masked(_crc(content, starts[short], sizes[short]))
    bad[short] |= sums != _stored(content, (starts + sizes)[short])
    if bad.any():
        raise InputError(f"{where}, record {int(bad.argmax()) + 1}: its check sum (CRC) is wrong; the file is damaged")


def _stored(content: U8, at: NDArray[np.int64]) -> U32:
    """Four bytes, little endian, at each place."""
    return np.asarray(content[at[:, None] + np.arange(4)].view("<u4")[:, 0], dtype=np.uint32)


def _masked(crc: U32) -> U32:
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(MASK_DELTA)


def _crc(content: U8, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> U32:
    """CRC-32C of the bytes at each place, byte by byte of all records at once: a million records take a second."""
    # Longest first: those that still have bytes are then a slice at the front.
    order = np.argsort(-sizes, kind="stable")
    begin, size = starts[order], sizes[order]
    crc, table = np.full(begin.size, 0xFFFFFFFF, dtype=np.uint32), _table()
    active = begin.size
    for place in range(int(size[0]) if size.size else 0):
        while size[active - 1] <= place:
            active -= 1
        now = crc[:active]
        crc[:active] = table[(now ^ content[begin[:active] + place]) & np.uint32(0xFF)] ^ (now >> np.uint32(8))
    out = np.empty_like(crc)
    out[order] = crc ^ np.uint32(0xFFFFFFFF)
    return out


@cache
def _table() -> U32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(POLYNOMIAL), table >> np.uint32(1))
    return table


def message(data: bytes) -> dict[tuple[int, int], list[Any]]:
    """Values of a message by (number, wire type): varints as integers, all others as bytes. Raises ValueError."""
    out, at = defaultdict[tuple[int, int], list[Any]](list), 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        size, at = _varint(data, at) if wire in (VARINT, COUNTED) else (SIZES.get(wire, len(data)), at)
        if wire == VARINT:
            out[key >> 3, wire].append(size)
            continue
        if size > len(data) - at:
            raise ValueError(f"wire type {wire} is none, or its field longer than its message")
        out[key >> 3, wire].append(data[at : at + size])
        at += size
    return out


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = _VARINT.match(data, at)
    if found is None:
        raise ValueError("a number ends with its message, or has more than ten bytes")
    return sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(found[0])), found.end()


def _add_event(scalars: Scalars, data: bytes) -> None:
    event = message(data)
    step = _signed(event[2, VARINT][-1]) if event[2, VARINT] else 0
    for summary in event[5, COUNTED]:
        # Summary.Value: tag is field 1, simple_value 2, tensor 8 (tensorflow/core/framework/summary.proto).
        for one in message(summary)[1, COUNTED]:
            value = message(one)
            tag = b"".join(value[1, COUNTED][-1:]).decode("utf-8")
            found = [*(_number("<f4", each) for each in value[2, FOUR]), *map(_tensor_scalar, value[8, COUNTED])]
            if tag and found and found[-1] is not None:
                scalars.add(tag, step, found[-1])


def _tensor_scalar(data: bytes) -> float | None:
    """The element of a TensorProto that has one; None of any other."""
    tensor = message(data)
    # TensorProto: dtype is field 1, tensor_content 4, float_val 5, double_val 6, int_val 7, int64_val 10
    # (tensorflow/core/framework/tensor.proto).
    found = [float(_signed(each)) for number in (7, 10) for each in tensor[number, VARINT]]
    for number, form, wire in ((5, "<f4", FOUR), (6, "<f8", EIGHT)):
        # A writer may pack repeated numbers into one field of bytes, or give each a field of its own.
        listed = [each for each in tensor[number, COUNTED] if len(each) == SIZES[wire]]
        found += [_number(form, each) for each in (*tensor[number, wire], *listed)]
    form = _CONTENT.get(next(reversed(tensor[1, VARINT]), 0), "")
    found += [_number(form, each) for each in tensor[4, COUNTED][-1:] if form and len(each) == np.dtype(form).itemsize]
    return found[0] if len(found) == 1 else None


def _number(form: str, data: bytes) -> float:
    """The one number in ``data``."""
    return float(np.frombuffer(data, dtype=form)[0])


def _signed(value: int) -> int:
    """A varint as int64."""
    return (value + 2**63) % 2**64 - 2**63
