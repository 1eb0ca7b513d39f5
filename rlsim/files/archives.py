"""Arrays in one .npz file: equal arrays give equal bytes, and reading one of them reads no other."""

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsim.files.reading import read_bytes

Arrays = dict[str, NDArray[np.generic]]

MOST_BYTES = 1 << 28
"""Most bytes that the wanted arrays of an archive may take; a posterior of all shipped measurements takes 0.4 MB."""


def archive(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Arrays as one .npz file without times of day, so that equal arrays give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, values in arrays.items():
            content = io.BytesIO()
            # Rows in C's order: equal arrays that lie otherwise in memory would give other bytes.
            np.lib.format.write_array(content, np.ascontiguousarray(values), allow_pickle=False)
            file.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), content.getvalue(), zipfile.ZIP_DEFLATED
            )
    return buffer.getvalue()


def unarchived(content: bytes, wanted: Callable[[str], bool] = lambda name: True) -> Arrays:
    """Arrays of an archive by name, those that are wanted. Raises ValueError where ``content`` is none."""
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


def read_arrays(path: Path, most_bytes: int, wanted: Callable[[str], bool] = lambda name: True) -> Arrays:
    """:func:`unarchived` of a file. Raises InputError where there is no file, ValueError where it is no archive."""
    return unarchived(read_bytes(path, most_bytes), wanted)
