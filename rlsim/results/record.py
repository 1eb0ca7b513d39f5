"""Records of answers: numbers with their digits, intervals from a few replications, and the base that writes JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path

LARGEST = 1e18
"""Largest magnitude of a number; the energy of a long run on a large cluster has 1e13 J."""
SHOWN_CHARACTERS = 120
P90_DEVIATIONS = 1.6448536269514722
"""Standard deviations within which 90 % of the absolute values of a normal distribution lie."""
# Below three degrees of freedom the expansion is off by more than 0.3 %.
_EXACT = {1: 6.313751514675043, 2: 2.919985580353726}


def rounded(value: float, digits: int = 9) -> float:
    """``value`` to so many significant digits: results are the same bytes on machines that add in another order."""
    return float(f"{value:.{digits}g}")


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
"""A finite number, written with all its digits."""
Rounded = Annotated[Number, PlainSerializer(rounded, return_type=float)]
"""A finite number, written with 9 significant digits."""
Rounded6 = Annotated[Number, PlainSerializer(partial(rounded, digits=6), return_type=float)]
"""A finite number, written with 6 significant digits."""
Row = dict[str, Any]
"""A line of a table: column to number or text."""


@dataclass(frozen=True)
class Interval:
    """A number with its 90 % interval."""

    mean: Rounded
    low: Rounded
    high: Rounded

    def times(self, factor: float) -> Interval:
        """Mean and ends times ``factor``, which is above 0."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor)

    def over(self, unit: float) -> Interval:
        """Mean and ends in a unit, which is above 0."""
        return Interval(self.mean / unit, self.low / unit, self.high / unit)


class Record(BaseModel):
    """Part of an answer: frozen, checked when it is made, and the same in memory, in JSON and read back from it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # Validators are built at first use: a command needs those of few records.
        defer_build=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        # Python uses the names, files the aliases, which are the keys of the contract.
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def as_dict(self) -> dict[str, Any]:
        """The content of the JSON file, in the order of its keys."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """The JSON file: the same bytes for the same answer."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path, most_bytes: int = DOCUMENT_BYTES) -> Self:
        """The record in a JSON file, whoever wrote it. Raises InputError naming the file and the first wrong key."""
        text, name = read_text(path, most_bytes), shown_path(path)
        try:
            # Strict: a number in quotes is a wrong file and no number.
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise InputError(f"{name}: {what_is_wrong(error)}") from None


class Loose(Record):
    """A record whose unknown keys are ignored, so that files of later releases and of others can be read."""

    model_config = ConfigDict(extra="ignore")


def what_is_wrong(error: ValidationError) -> str:
    """Text of the first mistake: another schema, or a key with its place and its content."""
    found = error.errors(include_url=False)
    # Another schema first: all other keys may be wrong only for that.
    wrong = next((one for one in found if one["loc"] == ("schema",)), found[0])
    if wrong["type"] == "json_invalid":
        return f"is no JSON ({shortened(wrong['msg'], SHOWN_CHARACTERS)})"
    place = shortened(".".join(str(key) for key in wrong["loc"]), SHOWN_CHARACTERS)
    if wrong["type"] == "missing":
        return f"key '{place}' is missing"
    given = wrong["input"]
    if place == "schema" and isinstance(given, str):
        return f"schema is '{shortened(given)}'; this version of rlsim reads {wrong['ctx']['expected']}"
    # Of lists and objects, which may be large, the kind is enough.
    shown = shortened(json.dumps(given)) if isinstance(given, str | float | bool | None) else type(given).__name__
    return f"'{place or 'the document'}': {wrong['msg'][:1].lower()}{wrong['msg'][1:]}, got {shown}"


def student_t95(degrees: int) -> float:
    """95 % quantile of Student's t: exact for 1 and 2 degrees, Cornish-Fisher expansion beyond (error below 0.3 %).

    Abramowitz and Stegun, 26.7.5.
    """
    if degrees in _EXACT:
        return _EXACT[degrees]
    z, v = P90_DEVIATIONS, float(degrees)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v ** (i + 1) for i, term in enumerate(terms))


PHASE_FLOOR = 0.01
"""Share of a step by which every phase may be off, with 90 % confidence, whatever its interval says.

Assumption: which timer takes the few tenths of a second that a driver spends between phases differs by framework and by
release, and nobody fitted them: ``data`` is expected within nothing at all, although one framework's is half a second
where another's is 0.02 s. ``rlsim check`` adds it to times before their logarithm is taken and to what is as expected;
remarks of ``rlsim log`` have the same.
"""


def interval(values: Sequence[float], floor: float = 0.0) -> Interval:
    """Mean of ``values`` and the 90 % interval for one more such value (normal prediction interval)."""
    count = len(values)
    # fsum: the same mean whatever the order of the replications.
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, mean, mean)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    # 1 + 1 / n: the variance of one more value and that of the mean.
    half = student_t95(count - 1) * deviation * math.sqrt(1 + 1 / count)
    # The floor may lie above the mean, which the interval must hold.
    return Interval(mean, min(mean, max(floor, mean - half)), mean + half)


def widened(quantity: Interval, deviation: float) -> Interval:
    """A positive quantity whose interval also holds a model error: standard deviation ``deviation`` of its logarithm.

    Half-widths on the log scale add in squares; zero stays zero.
    """
    if quantity.mean <= 0 or deviation <= 0:
        return quantity
    model = P90_DEVIATIONS * deviation
    # A lower end of 0 is infinitely far away in logarithms and stays 0.
    below = math.log(quantity.mean / quantity.low) if quantity.low > 0 else math.inf
    above = math.log(quantity.high / quantity.mean)
    low = quantity.mean * math.exp(-math.hypot(below, model)) if math.isfinite(below) else 0.0
    return Interval(quantity.mean, low, quantity.mean * math.exp(math.hypot(above, model)))
