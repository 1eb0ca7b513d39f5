"""What a launcher asks before a run, how far single keys may grow before it no longer fits, and what is enough."""

from typing import Literal

from pydantic import Field

from rlsim.results.answer import Answer
from rlsim.results.memory import MemoryUse
from rlsim.results.record import Interval, Record, Rounded, Rounded6


class Layout(Record):
    """A faster layout of the same GPUs. speedup: over the scenario as it is, on the same drawn work, with the
    probability ``shorter`` that there is any; None where that cannot run. changes: what to set for it."""

    name: str
    step_s: Interval
    usd_per_step: Rounded
    speedup: Rounded6 | None
    shorter: Rounded6 | None
    changes: tuple[str, ...]


class Preflight(Answer):
    """A run before it starts. runs: whether it can; reason: why not, with ``settings`` each of which alone would help.

    memory: of a GPU by pool, with the probability that it fits. better: a faster layout, None where none was found.
    """

    schema_: Literal["rlsim.preflight/1"] = Field(default="rlsim.preflight/1", alias="schema")
    scenario: str
    cluster: str
    runs: bool
    reason: str = ""
    settings: tuple[str, ...] = ()
    step_s: Interval | None = None
    usd_per_step: Rounded | None = None
    memory: dict[str, MemoryUse] = Field(default_factory=dict)
    better: Layout | None = None
    missing: tuple[str, ...] = ()


class Largest(Record):
    """A key's value now, and the largest with which the scenario fits. limit: what refuses the next one, empty where
    nothing does up to ``largest``."""

    key: str
    now: float
    largest: float
    limit: str

    @property
    def room(self) -> float:
        """Times that the value may grow."""
        return self.largest / self.now


class FreeKeys(Answer):
    """How far keys may grow, one at a time, the nearest limit first. fit_probability: with which it then fits."""

    rows_in = "keys"
    schema_: Literal["rlsim.free/1"] = Field(default="rlsim.free/1", alias="schema")
    scenario: str
    fit_probability: Rounded6
    keys: tuple[Largest, ...]


class Enough(Record):
    """A limit on how much runs at once: its value now (None: no limit), the least with which a step is as short as
    without it within ``EnoughPlaces.tolerance``, and the step at the three, on the same drawn work."""

    key: str
    now: int | None
    enough: int
    now_step_s: Rounded
    enough_step_s: Rounded
    unlimited_step_s: Rounded


class EnoughPlaces(Answer):
    """How many places are enough, each limit alone with the others as they are, and all of them at once."""

    rows_in = "keys"
    schema_: Literal["rlsim.enough/1"] = Field(default="rlsim.enough/1", alias="schema")
    scenario: str
    tolerance: Rounded6
    keys: tuple[Enough, ...]
    together_step_s: Rounded
    """Mean step with every limit at what is enough of it."""


CliffKind = Literal["end", "graphs", "waiting", "cache"]


class Cliff(Record):
    """Where something else begins. value: the last one before; beyond: the first one after, of which ``text`` says what
    happens there; step_s, beyond_step_s: mean seconds of a step at both, None where it does not run."""

    kind: CliffKind
    value: float
    beyond: float
    text: str
    step_s: Rounded
    beyond_step_s: Rounded | None


class Cliffs(Answer):
    """The nearest cliff of each kind on either side of a key's value ``now``, the nearest first."""

    rows_in = "cliffs"
    schema_: Literal["rlsim.cliffs/1"] = Field(default="rlsim.cliffs/1", alias="schema")
    scenario: str
    key: str
    now: float
    step_s: Rounded
    cliffs: tuple[Cliff, ...]
