"""Archives of arrays: what is damaged is told, whatever it is that breaks."""

import io
import random
import zipfile

import numpy as np
import pytest

from rlsim.files.archives import archive, unarchived


def test_arrays_come_back_and_only_the_wanted_ones_are_read() -> None:
    arrays = {"a": np.arange(1000, dtype=np.int32), "b": np.linspace(0.0, 1.0, 7)}
    content = archive(arrays)
    assert content == archive(arrays)
    found = unarchived(content)
    assert all(np.array_equal(found[name], values) for name, values in arrays.items())
    assert list(unarchived(content, lambda name: name == "b")) == ["b"]


def test_damage_anywhere_is_a_value_error_or_does_not_matter() -> None:
    content = archive({"numbers": np.random.default_rng(0).integers(0, 50, 3000), "words": np.array(["one", "two"])})
    drawn, refused = random.Random(1), 0
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(drawn.choice([1, 3, 20])):
            damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
        if drawn.random() < 0.1:
            del damaged[drawn.randrange(len(damaged)) :]
        try:
            unarchived(bytes(damaged))
        except ValueError:
            refused += 1
    assert refused > 1000


def test_a_header_that_claims_more_than_there_is_memory_for_is_refused() -> None:
    header, buffer = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.npy", header.getvalue() + b"\0" * 24)
    with pytest.raises(ValueError, match=r"allocate|memory|read"):
        unarchived(buffer.getvalue())
