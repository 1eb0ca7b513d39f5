"""Records of answers: numbers with their digits, intervals, and the base that writes JSON and reads it back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path

if TYPE_CHECKING:
    from typing import Self

LARGEST = 1e18
"""Largest magnitude of a number; the energy of a long run on a large cluster has 1e13 J."""
SHOWN_CHARACTERS = 120


def rounded(value: float, digits: int = 9) -> float:
    """``value`` to so many significant digits: results are the same bytes on machines that add in another order."""
    return float(f"{value:.{digits}g}")


def _rounded6(value: float) -> float:
    return rounded(value, 6)


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
"""A finite number, written with all its digits."""
Rounded = Annotated[Number, PlainSerializer(rounded, return_type=float)]
"""A finite number, written with 9 significant digits."""
Rounded6 = Annotated[Number, PlainSerializer(_rounded6, return_type=float)]
"""A finite number, written with 6 significant digits."""
Row = dict[str, Any]
"""A line of a table: column to number or text."""


@dataclass(frozen=True)
class Interval:
    """A number with its 90 % interval."""

    mean: Rounded
    low: Rounded
    high: Rounded

    def as_dict(self) -> dict[str, float]:
        """Mean and ends with 9 significant digits, so that files stay readable."""
        return {"mean": rounded(self.mean), "low": rounded(self.low), "high": rounded(self.high)}

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
        defer_build=True,
        allow_inf_nan=False,
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
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise InputError(f"{name}: {what_is_wrong(error)}") from None


def what_is_wrong(error: ValidationError) -> str:
    """What is wrong first: another schema, or a key with its place and what it holds."""
    found = error.errors(include_url=False)
    wrong = next((one for one in found if one["loc"] == ("schema",)), found[0])
    if wrong["type"] == "json_invalid":
        return f"is no JSON ({shortened(wrong['msg'], SHOWN_CHARACTERS)})"
    place = shortened(".".join(str(key) for key in wrong["loc"]), SHOWN_CHARACTERS)
    if wrong["type"] == "missing":
        return f"key '{place}' is missing"
    given = wrong["input"]
    if place == "schema" and isinstance(given, str):
        return f"schema is '{shortened(given)}'; this version of rlsim reads {wrong['ctx']['expected']}"
    shown = shortened(json.dumps(given)) if isinstance(given, str | float | bool | None) else type(given).__name__
    return f"'{place or 'the document'}': {wrong['msg'][:1].lower()}{wrong['msg'][1:]}, got {shown}"
