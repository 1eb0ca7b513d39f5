"""A move that an answer names."""

from rlsim.results.record import Interval, Record, Rounded6


class TryFirst(Record):
    """A move that was simulated for the answer, on the work of one replication. changes: overrides that apply it.

    step_s: expected after it. speedup: the step now over that.
    """

    name: str
    title: str
    changes: tuple[str, ...]
    step_s: Interval
    speedup: Rounded6
