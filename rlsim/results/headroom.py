"""What a headroom ladder holds: a step as it is, and what it would take at each rung above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rlsim.results.answer import Answer
from rlsim.results.record import Record, Rounded


class Rung(Record):
    """A rung, with all below it. step_s, generation_s: of the step then; saved_s: by this rung.

    changes: keys that lead there; empty where none does. who: who can climb it, in words. why: it saves nothing, as.
    """

    name: str
    how: str
    step_s: Rounded
    generation_s: Rounded
    saved_s: Rounded
    changes: tuple[str, ...]
    who: str
    why: str = ""


class Headroom(Answer):
    """How far a step is from what would be possible. rungs: the first is the step as it is."""

    schema_: Literal["rlsim.headroom/1"] = Field(default="rlsim.headroom/1", alias="schema")
    scenario: str
    digest: str
    mode: Literal["sync", "async"]
    num_gpus: int
    model: str
    hardware: str
    rungs: tuple[Rung, ...]

    @property
    def step_s(self) -> float:
        """The step as it is."""
        return self.rungs[0].step_s

    def ratio(self, rung: Rung) -> float:
        """Times by which the step as it is exceeds that of a rung."""
        return self.step_s / rung.step_s if rung.step_s > 0 else float("inf")

    def rows_shown(self) -> Sequence[Record]:
        """The rungs."""
        return self.rungs
