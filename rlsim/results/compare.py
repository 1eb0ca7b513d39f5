"""What a comparison of two scenarios holds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rlsim.results.record import Interval, Number, Record


class PhaseChange(Record):
    """Seconds that a phase adds to the step of A and of B. share: of the difference of the steps."""

    phase: str
    before_s: Number
    after_s: Number
    share: Number | None


class Comparison(Record):
    """B against A. differences: dotted key -> (value in A, value in B); None where a side lacks the key.

    modes: sync or async; of an asynchronous one ``phases`` holds the exposed generation, which the trainer waits for.
    paired: both drew the same work, so that ``speedup`` (step of A over step of B) is taken replication by replication.
    explained_by: the phase with the largest difference; None where nothing differs.
    """

    schema_: Literal["rlsim.comparison/1"] = Field(default="rlsim.comparison/1", alias="schema")
    names: tuple[str, str] = Field(alias="scenarios")
    modes: tuple[str, str] = Field(exclude=True)
    differences: dict[str, tuple[Any, Any]]
    step_s: tuple[Interval, Interval]
    speedup: Interval
    paired: bool
    phases: tuple[PhaseChange, ...]
    explained_by: str | None
    cost_per_step_usd: tuple[Number, Number]
    energy_per_step_j: tuple[Number, Number]
    price_per_gpu_hour_usd: tuple[Number, Number]
    warnings: tuple[str, ...] = ()
