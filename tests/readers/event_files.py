"""Event files of TensorBoard as its writers make them, for tests: straight from the format's description."""

import struct
from collections.abc import Iterable, Mapping


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit (RFC 3720, appendix B.4).

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return size + masked(size) + data + masked(data)


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def counted(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def simple(value: float) -> bytes:
    return varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(value: float) -> bytes:
    """A DT_FLOAT tensor of one element by its content."""
    return counted(8, b"\x08\x01" + counted(2, b"") + counted(4, struct.pack("<f", value)))


def tensor_listed(value: float) -> bytes:
    """The same by its packed list."""
    return counted(8, b"\x08\x01" + counted(5, struct.pack("<f", value)))


def event(step: int, values: Mapping[str, bytes]) -> bytes:
    summary = b"".join(counted(1, counted(1, tag.encode()) + value) for tag, value in values.items())
    return b"\x09" + struct.pack("<d", 1.7e9) + b"\x10" + varint(step) + counted(5, summary)


def event_file(events: Iterable[bytes]) -> bytes:
    version = b"\x09" + struct.pack("<d", 1.7e9) + counted(3, b"brain.Event:2")
    return b"".join(frame(data) for data in (version, *events))
