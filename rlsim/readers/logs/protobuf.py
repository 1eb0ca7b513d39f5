"""The wire format of protocol buffers, as far as TensorBoard's scalars need it.

https://protobuf.dev/programming-guides/encoding: keys of number and wire type, varints, 4 and 8 bytes, and counted
bytes. Nothing is decoded that was not asked for; groups (wire types 3 and 4) are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, EIGHT, COUNTED, FOUR = 0, 1, 2, 5
Field = tuple[int, int, int | bytes]


class MalformedError(ValueError):
    """Bytes that are no message."""


def fields(data: bytes) -> Iterator[Field]:
    """(number, wire type, value) of a message: varints as integers, all others as bytes. Raises MalformedError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == COUNTED:
            size, at = _varint(data, at)
        elif wire in (FOUR, EIGHT):
            size = 4 if wire == FOUR else 8
        else:
            raise MalformedError(f"wire type {wire}")
        if size > len(data) - at:
            raise MalformedError("a field is longer than its message")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(data):
            raise MalformedError("a number ends with its message")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise MalformedError("a number has more than ten bytes")


def signed(value: int) -> int:
    """A varint as int64."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def float_of(data: bytes) -> float:
    """Four bytes."""
    return float(struct.unpack("<f", data)[0])


def double_of(data: bytes) -> float:
    """Eight bytes."""
    return float(struct.unpack("<d", data)[0])
