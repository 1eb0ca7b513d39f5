"""The only place with powers of ten and two. Everything else is seconds, bytes, FLOP and tokens."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
GIB = float(2**30)
MICROSECOND = 1e-6
MILLISECOND = 1e-3
SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6

BYTES_PER_ELEMENT = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125,
                     "int4": 0.5625, "fp32": 4.0}  # fmt: skip
"""Bytes of one stored value by precision; NVFP4 is 4 bits plus one FP8 scale for 16 values, MXFP4 plus one for 32, INT4
plus one in BF16 for 32 (config.json of Kimi-K2-Thinking; slime/tools/convert_hf_to_int4.py); the scales of FP8 blocks
(128 x 128) are not counted."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The values in order, each once: np.unique, which would import numpy.ma at every start."""
    ordered = np.sort(values, axis=None)
    # The first value has none before it, and of no values there is no first.
    firsts: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: ordered.size]]
    return firsts


def digest_of(values: FloatArray) -> bytes:
    """16 bytes by which arrays are told apart."""
    return hashlib.blake2b(values.tobytes(), digest_size=16).digest()
