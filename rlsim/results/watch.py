"""What a watch of a running job prints: one record every few steps, and one where the run is no longer what it was."""

from typing import Literal

from pydantic import Field

from rlsim.results.record import Interval, Record, Rounded, Rounded6

WatchVerdict = Literal["learning", "as usual", "as expected", "slow", "fast", "cannot tell", "other work", "changed"]


class Moved(Record):
    """A quantity that moved with step ``since``. before, after: seconds or tokens."""

    quantity: str
    since: int
    before: Rounded
    after: Rounded
    ratio: Rounded6


class Suspect(Record):
    """A fault that explains it. gain_s: of a step, by its cure."""

    name: str
    title: str
    probability: Rounded6
    cure: str
    gain_s: Rounded


class WatchLine(Record):
    """A run at ``step``. step_s: median of the latest steps; own_s: the level that it learnt; expected_s: of the
    scenario, null without one. alarm: a fault is likely. stands_since: the step of an earlier alarm that the run is not
    over, null without one. moved, suspects: empty where nothing changed. experiment: what
    to try next, in words.
    """

    schema_: Literal["rlsim.watch/1"] = Field(default="rlsim.watch/1", alias="schema")
    step: int
    verdict: WatchVerdict
    alarm: bool = False
    stands_since: int | None = None
    step_s: Rounded | None = None
    own_s: Rounded | None = None
    expected_s: Interval | None = None
    moved: tuple[Moved, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    experiment: str = ""
    remark: str = ""
