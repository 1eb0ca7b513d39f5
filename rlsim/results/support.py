"""What supports an answer: the measured runs nearest to it, and what its interval comes from."""

from __future__ import annotations

from rlsim.results.record import Record, Rounded6


class Difference(Record):
    """What a measured run differs in: what was asked and what was measured."""

    feature: str
    asked: str
    measured: str


class MeasuredRun(Record):
    """A measured run by the id of its row, and all that it differs in, most first."""

    id: str
    differences: tuple[Difference, ...]


class NearestRuns(Record):
    """Measured runs of one kind (iteration, training, transfer or step), nearest first; none where none was measured.

    share: of the step that such runs tell of.
    """

    kind: str
    share: Rounded6
    runs: tuple[MeasuredRun, ...]


class VarianceSource(Record):
    """A source of the step's interval. share: of the variance of the logarithm of the step, of all sources 1.

    kind: what measures it (launches, iterations, training, transfers, steps). assumed: whether no measurement says
    anything of it. settle: what to measure; command: what takes that in.
    """

    source: str
    kind: str
    share: Rounded6
    assumed: bool
    settle: str
    command: str


class Support(Record):
    """What supports the candidate's step. half_width: half its 90 % interval over the step."""

    half_width: Rounded6
    nearest: tuple[NearestRuns, ...]
    sources: tuple[VarianceSource, ...]
