"""The grammar of ``--vary``: from text to axes, from axes to the cells of a grid."""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from msgspec import Struct

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import parse_value
from rlsim.loading.variation import Overrides, Setting, check_key

MAX_CELLS = 1_000_000
"""Most cells of one sweep; a larger grid is a slip of the pen."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::({_NUMBER}))?")
_GEOMETRIC = re.compile(rf"({_NUMBER})\.\.({_NUMBER})x({_NUMBER})")


_DOTS = re.compile(rf"({_NUMBER})\.\.+({_NUMBER})")
FORMS = "write a list a,b,c, a range 1:8 or 1:16:2, or 64..1024x2"
SHOWN_CHARACTERS = 100


class Axis(Struct, frozen=True):
    """Keys that take the same value in every cell, and their values as written."""

    keys: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def settings(self) -> list[Setting]:
        """The values as YAML reads them."""
        return [parse_value(value, f"--vary {self.name}={shortened(value)}") for value in self.values]

    @property
    def name(self) -> str:
        """Column of the axis: its first key."""
        return self.keys[0]


def parse_axis(text: str) -> Axis:
    """Axis of ``key=values``; several keys separated by commas take the same value.

    values: a list ``a,b,c`` (commas inside brackets belong to a value), a range ``1:8`` or ``1:16:2`` with both ends,
    or a geometric range ``64..1024x2``. Raises InputError for unknown keys, empty ranges and repeated values.

    >>> parse_axis("cluster.num_gpus=64..512x2").values
    ('64', '128', '256', '512')
    """
    left, equals, right = text.partition("=")
    keys = tuple(key.strip() for key in left.split(","))
    whole = f"--vary {shortened(text, SHOWN_CHARACTERS)}"
    if not equals or not all(keys):
        raise InputError(f"{whole} is not KEY=VALUES, such as speculation.draft_length=1:8")
    for key in keys:
        check_key(key, whole)
    values = _values(right.strip(), whole)
    # Quadratic, so for lists that somebody may have typed alone; a range repeats no value.
    repeated = next((value for value in values if values.count(value) > 1), None) if len(values) < 1000 else None
    if repeated is not None:
        raise InputError(f"{whole}: the value {shortened(repeated)} stands there twice")
    return Axis(keys, values)


def axis_of(keys: str, values: Any) -> Axis:
    """Axis of values as Python holds them: each of a sequence, or what a text or a number says of itself.

    >>> axis_of("k", range(0, 5, 2)).values
    ('0', '2', '4')
    """
    if isinstance(values, str):
        return parse_axis(f"{keys}={values}")
    given = list(values) if isinstance(values, Iterable) and not isinstance(values, Mapping) else [values]
    try:
        return parse_axis(f"{keys}={','.join(map(_written, given))}")
    except (TypeError, ValueError):
        raise InputError(f"{shortened(keys)}: values of a sweep are numbers, texts, lists and mappings") from None


def _written(value: Any) -> str:
    """A value as YAML reads it again: texts as they are where nothing in them means something else."""
    # Texts such as null or true look plain and are read as something else: JSON's quotes save them.
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_./][\w./-]*", value) and parse_value(value, value) == value:
        return value
    # NumPy's scalars, which json cannot write.
    plain = value.item() if hasattr(value, "item") else value
    return json.dumps(dict(plain) if isinstance(plain, Mapping) else plain)


def _values(text: str, whole: str) -> tuple[str, ...]:
    if (match := _RANGE.fullmatch(text)) is not None:
        # Decimals, since people write them: in floats 0:0.5:0.1 has a value 0.30000000000000004 and may miss its end.
        low, high, step = (Decimal(part or 1) for part in match.groups())
        if step <= 0:
            raise InputError(f"{whole}: the step must be above 0, got {step}")
        return _up_to(low, high, lambda value: value + step, whole)
    if (match := _GEOMETRIC.fullmatch(text)) is not None:
        low, high, factor = map(Decimal, match.groups())
        if factor <= 1 or low <= 0:
            raise InputError(f"{whole}: a geometric range needs a start above 0 and a factor above 1")
        return _up_to(low, high, lambda value: value * factor, whole)
    # Neither form, but YAML would take it for a text and the sweep for one odd value.
    if (match := _DOTS.fullmatch(text)) is not None:
        hint = "did you mean {0}:{1}, or {0}..{1}x2?".format(*match.groups())
        raise InputError(f"{whole}: '{shortened(text)}' is no value; {hint}")
    values = tuple(part.strip() for part in _split(text))
    if not all(values):
        raise InputError(f"{whole}: an empty value; {FORMS}")
    for value in values:
        try:
            parse_value(value, shortened(value))
        except InputError as error:
            raise InputError(f"{whole}: {error}; {FORMS}") from None
    return values


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _up_to(low: Decimal, high: Decimal, following: Callable[[Decimal], Decimal], whole: str) -> tuple[str, ...]:
    """A range from ``low`` to at most ``high``, as people write numbers."""
    if high < low:
        raise InputError(f"{whole}: the range is empty, {high} lies below {low}")
    out = [low]
    while (value := following(out[-1])) <= high:
        out.append(value)
        # Asked within the loop: 0:1e12:0.001 must be refused before it fills the memory.
        if len(out) > MAX_CELLS:
            raise InputError(f"{whole}: more than {MAX_CELLS:,} values")
    # Whole numbers without a point, since keys that are integers take no 8.0; normalize() alone writes 100 as 1E+2.
    return tuple(str(int(v)) if v == v.to_integral_value() else f"{v.normalize():f}" for v in out)


def grid(axes: Sequence[Axis]) -> list[Overrides]:
    """The overrides of each cell; the last axis runs fastest. Raises InputError for a key on two axes."""
    keys = [key for axis in axes for key in axis.keys]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise InputError(f"--vary: the key {shortened(twice)} stands on two axes")
    # Counted before a cell is made: a million of them fit into memory, the slips of the pen beyond them may not.
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_CELLS:
        raise InputError(f"--vary: the grid has {count:,} cells, more than {MAX_CELLS:,}")
    return [
        {key: value for axis, value in zip(axes, values, strict=True) for key in axis.keys}
        for values in itertools.product(*(axis.settings for axis in axes))
    ]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Cluster sizes from ``64,128``, ``64:256:64`` or ``64..1024x2``. Raises InputError."""
    whole = f"--gpus {shortened(text)}"
    try:
        sizes = tuple(int(value) for value in _values(text.strip(), whole))
    except ValueError as error:
        raise InputError(f"{whole}: cluster sizes are whole numbers") from error
    if min(sizes) < 1:
        raise InputError(f"{whole}: a cluster has at least 1 GPU")
    return tuple(sorted(set(sizes)))
