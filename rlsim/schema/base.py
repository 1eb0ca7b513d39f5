"""The common base of every input record, and the value types they share."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_COUNTED = 2**40
"""Largest whole number of a card or a profile: products of a few of them are still numbers of a machine."""
PositiveInt = Annotated[int, Field(gt=0, le=MOST_COUNTED)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MOST_COUNTED)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0)]
Fraction01 = Annotated[float, Field(ge=0.0, le=1.0)]
"""A share: 0 <= x <= 1."""
PositiveFraction = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share that must not vanish: 0 < x <= 1."""
Name = Annotated[str, Field(min_length=1)]
Precision = Literal["bf16", "fp8", "nvfp4"]
"""Number format of weights, activations or KV cache."""


def _lists_to_tuples(value: Any) -> Any:
    return tuple(_lists_to_tuples(item) for item in value) if isinstance(value, list) else value


class Strict(BaseModel):
    """Frozen record that takes exactly its declared keys and types.

    An integer is accepted where a float is expected; a bool or a string never stands for a number, and neither
    infinity nor NaN is a number. YAML sequences arrive as lists and are stored as tuples.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        defer_build=True,  # a command uses some of the classes that it imports; each is built at its first use
        protected_namespaces=(),  # keys such as `model_...` are ours to name
    )

    @model_validator(mode="before")
    @classmethod
    def _freeze_sequences(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        # YAML gives lists where frozen records hold tuples, and strict validation takes neither for the other.
        return {key: _lists_to_tuples(value) for key, value in data.items()}

    def model_post_init(self, context: Any, /) -> None:
        """Raises ValueError where keys do not fit each other, which pydantic reports like any other of its errors.

        An after-validator would do the same, with a signature to inspect and a schema around that of each class.
        """
        for problem in self._problems():
            raise ValueError(problem)

    def _problems(self) -> Iterable[str]:
        """Messages on keys that are right by themselves and not together; the first is raised."""
        return ()


def check_inverse(quantiles: Sequence[float], values: Sequence[float], name: str) -> None:
    """Raise ValueError where points are no inverse distribution function of something that is not negative."""
    if len(quantiles) != len(values):
        raise ValueError(f"quantiles has {len(quantiles)} entries and {name} {len(values)}; they must agree")
    if quantiles[0] != 0 or quantiles[-1] != 1:
        raise ValueError("quantiles must start at 0 and end at 1")
    if any(b <= a for a, b in pairwise(quantiles)):
        raise ValueError("quantiles must increase strictly")
    if values[0] < 0 or any(b < a for a, b in pairwise(values)):
        raise ValueError(f"{name} must be non-negative and must not decrease")


class Quantiles(Strict):
    """Empirical inverse distribution function, linear between its points; the values stand in the next key."""

    kind: Literal["quantiles"] = "quantiles"
    quantiles: tuple[float, ...] = Field(min_length=2)
    """Increasing, from 0 to 1."""

    @model_validator(mode="after")
    def _shape(self) -> Self:
        name = list(type(self).model_fields)[2]  # after kind and quantiles
        check_inverse(self.quantiles, getattr(self, name), name)
        return self


Section = TypeVar("Section", bound=BaseModel)


def changed(record: Section, **values: Any) -> Section:
    """A copy of ``record`` with other values of some keys, validated like a file. Raises pydantic's ValidationError."""
    return type(record).model_validate({**dict(record), **values})


def replaced(record: Section, values: Mapping[str, Any]) -> Section:
    """A copy of ``record`` as no file may state it: moved by a posterior, or without what a part ignores."""
    return record.model_copy(update=dict(values))
