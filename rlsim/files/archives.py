"""Arrays in one .npz file: equal arrays give equal bytes, and reading one of them reads no other."""

from __future__ import annotations

import io
import marshal
import mmap
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsim.files.kept import keep, kept_path
from rlsim.files.reading import delivered, read_bytes, shown_path

Arrays = dict[str, NDArray[np.generic]]

MOST_BYTES = 1 << 28
"""Most bytes that the wanted arrays of an archive may take; a posterior of all shipped measurements takes 0.4 MB."""


def archive(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Arrays as one .npz file without times of day, so that equal arrays give equal bytes."""
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, values in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(values), allow_pickle=False)
            file.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), content.getvalue(), zipfile.ZIP_DEFLATED
            )
    return buffer.getvalue()


def unarchived(content: bytes, wanted: Callable[[str], bool] = lambda name: True) -> Arrays:
    """Arrays of an archive by name, those that are wanted. Raises ValueError where ``content`` is none."""
    import zipfile  # which a start that finds what it needs unpacked does without

    # A compression or encryption that zipfile does not know is a kind of RuntimeError, a header that claims more values
    # than fit into memory a MemoryError.
    damaged = (zipfile.BadZipFile, zlib.error, EOFError, OSError, MemoryError, RuntimeError)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            found = [entry for entry in file.infolist() if wanted(entry.filename.removesuffix(".npy"))]
            unpacked_bytes = sum(entry.file_size for entry in found)  # more than it says is never read of an entry
            if unpacked_bytes > MOST_BYTES:
                raise ValueError(f"unpacks to {unpacked_bytes:,} bytes; at most {MOST_BYTES:,} are read")
            return {
                entry.filename.removesuffix(".npy"): np.lib.format.read_array(
                    io.BytesIO(file.read(entry)), allow_pickle=False
                )
                for entry in found
            }
    except damaged as error:
        raise ValueError(str(error)) from error


def read_arrays(
    path: Path, most_bytes: int, part: str = "", wanted: Callable[[str], bool] = lambda name: True
) -> Arrays:
    """:func:`unarchived` of a file; the arrays of one that comes with rlsim are unpacked once an installation.

    part: what ``wanted`` asks for, in a word. Raises InputError where there is no file, ValueError where it is none.
    """

    def unpacked() -> Arrays:
        return unarchived(read_bytes(path, most_bytes), wanted)

    if not (delivered(path) and path.is_file()):
        return unpacked()
    return recalled_arrays(f"{shown_path(path)} {part}", (path.stat().st_mtime_ns, path.stat().st_size), unpacked)


ALIGNED = 64
"""Bytes that arrays of a kept file begin at multiples of: a cache line."""


def recalled_arrays(name: str, state: Any, make: Callable[[], Arrays]) -> Arrays:
    """:func:`rlsim.files.kept.recalled` of arrays, into which nobody writes.

    They lie as they are in a file that is mapped into memory: read and unpacked they would be copied twice, and of a
    megabyte each start takes a few pages.
    """
    kept = kept_path(name)
    with suppress(OSError, ValueError, EOFError, TypeError), kept.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        known, places = marshal.loads(mapped[int.from_bytes(mapped[:ALIGNED], "little") :])
        if known == state:
            whole = np.frombuffer(mapped, np.uint8)
            return {
                one: whole[start : start + size].view(kind).reshape(shape) for one, kind, shape, start, size in places
            }
    arrays = make()
    keep(kept, lambda: _laid_out(state, arrays))
    return arrays


def _laid_out(state: Any, arrays: Arrays) -> bytes:
    """A file of :func:`recalled_arrays`: where its end begins that says what it holds, arrays, and that."""
    whole, places = bytearray(ALIGNED), list[tuple[str, str, tuple[int, ...], int, int]]()
    for name, one in arrays.items():
        places.append((name, one.dtype.str, one.shape, len(whole), one.nbytes))
        whole += one.tobytes()
        whole += bytes(-len(whole) % ALIGNED)
    whole[:ALIGNED] = len(whole).to_bytes(ALIGNED, "little")
    return bytes(whole) + marshal.dumps((state, places))
