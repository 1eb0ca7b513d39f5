"""Metrics of a text's lines, gathered into the records of its steps, and which of these can be trusted.

A text loses lines, doubles them and mixes them up on its way, and what is left still looks like a record. A record that
may hold numbers of another step is left out, and a text of such records is refused: a step that never was is worse than
none.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from statistics import mode

import numpy as np
from msgspec import Struct, field

from rlsim.errors import InputError
from rlsim.readers.logs.tensorboard import Scalars, decimal_commas, number_of

ORDERED = 0.7
"""Share of a text with records over several lines that is in order at least: below it no line can be trusted. A restart
breaks the order of steps once, a lost heading twice. Assumption."""
BACK = 0.2
"""Share of the steps of such a text that come after a later one at most, but one of a restart. Assumption."""


class Entry(Struct):
    """A metric of a line. number: as it is written, empty where a line end broke it; scale: seconds of its unit;
    cut: the text ends with the number."""

    name: str
    number: str
    scale: float
    line: int
    cut: bool = False


class Record(Struct, eq=False):
    """What stands between the beginnings of two steps. step: its number, None where it has none; line: where that
    stands, after ``led`` metrics; opened: a bracket opens it; summed: timers that may run several times in it; started:
    how often each did."""

    step: int | None = None
    line: int = 0
    summed: bool = False
    opened: bool = False
    led: int = 0
    entries: list[Entry] = field(default_factory=list)
    started: Counter[str] = field(default_factory=Counter)

    @property
    def lines(self) -> int:
        """Lines that it takes."""
        return len({one.line for one in self.entries})


class Records:
    """The records of a text. A step without a number is counted: it ends where a metric comes again."""

    def __init__(self) -> None:
        self.all: list[Record] = [Record()]

    @property
    def now(self) -> Record:
        """The record that lines go to."""
        return self.all[-1]

    def begin(self, step: int | None, line: int, summed: bool = False, opened: bool = False) -> None:
        """A record of step ``step``, or of the next one."""
        if not self.now.entries:
            opened |= self.all.pop().opened
        self.all.append(Record(step, line, summed, opened))

    def add(self, entry: Entry) -> None:
        """A metric of the record."""
        now = self.now
        if now.step is None and not now.summed and any(one.name == entry.name for one in now.entries):
            self.begin(None, entry.line)
        self.now.entries.append(entry)

    def into(self, scalars: Scalars) -> None:
        """Put the numbers of the records that can be trusted into ``scalars``. Raises InputError where lines are out of
        order."""
        found = [one for one in self.all if one.entries]
        if not found:
            return
        comma = decimal_commas(entry.number for one in found for entry in one.entries)
        several = float(np.median([one.lines for one in found])) > 1
        whole = _numbered(scalars, found, several)
        if whole and not several:
            for one in whole:
                one.entries = [entry for entry in one.entries if entry.line == one.line] or one.entries
        elif whole:
            whole = _following(scalars, whole)
        else:
            whole = _in_order(scalars, found) if several else found
        for name, count in Counter(name for one in found for name in {entry.name for entry in one.entries}).items():
            scalars.values.setdefault(name, {})
            scalars.told[name] = count / len(found)
        rows = [(one.step, row) for one in whole if (row := _row(one, comma))]
        # A line that was written twice is no second step.
        rows = [pair for k, pair in enumerate(rows) if pair[0] is not None or not k or pair[1] != rows[k - 1][1]]
        names = Counter(name for _, row in rows for name in row)
        for count, (step, row) in enumerate(rows, start=1):
            # The number with which a text ends may be cut; of a metric that stands there alone nobody can tell.
            cut = (
                {one.name for one in found[-1].entries if one.cut and names[one.name] > 1} if count == len(rows) else ()
            )
            number = count if step is None else step
            scalars.add_all(float(number), {k: v for k, v in row.items() if k not in cut and v == v})
            for name in (*cut, *(k for k, v in row.items() if v != v)):
                scalars.values.setdefault(name, {})
                scalars.broken.setdefault(name, set()).add(number)
        if left := len(found) - len(rows):
            scalars.remarks.append(f"{left} of {len(found)} records are cut, doubled or mixed up, and left out")


def _numbered(scalars: Scalars, found: Sequence[Record], several: bool) -> list[Record]:
    """The records with numbers where most have one: what stands before the first is cut. Where few have, all are
    counted."""
    numbered = [one for one in found if one.step is not None]
    if 2 * len(numbered) >= len(found):
        return numbered
    if numbered and several:
        raise InputError(f"{scalars.where}: most of its records have lost the numbers of their steps")
    for one in numbered:
        one.step = None
    return []


def _following(scalars: Scalars, found: list[Record]) -> list[Record]:
    """Records over several lines that the next step follows: the heading of one that is lost leaves its lines to the
    record before it."""
    # Some print several records of a step, each with its number.
    runs = [list(run) for _, run in groupby(found, lambda one: one.step)]
    size = mode(map(len, runs))
    led = mode(one.led for one in found)
    apart = np.diff([run[0].step or 0 for run in runs]).tolist()
    usual = Counter(one for one in apart if one > 0).most_common(1)
    opened = 2 * sum(one.opened for one in found) > len(found)
    full = [len(run) == size and all(one.led == led and one.opened == opened for one in run) for run in runs]
    follows = [bool(usual) and one == usual[0][0] and after for one, after in zip(apart, full[1:], strict=True)]
    back = sum(one < 0 for one in apart)
    if back > max(1.0, BACK * len(apart)) or sum(follows) < (1 - ORDERED) * len(follows):
        raise InputError(f"{scalars.where}: its steps are not in the order in which they were written")
    # Nothing follows the last one: it is whole where nothing is out of order. A record that is cut is of its step.
    kept = [*follows, all(follows)]
    return [
        one
        for run, fine in zip(runs, kept, strict=True)
        if fine
        for one in run
        if one.led == led and one.opened == opened
    ]


def _in_order(scalars: Scalars, found: list[Record]) -> list[Record]:
    """Counted records over several lines whose metrics come in the order of the fullest of them."""
    if any(one.summed for one in found):
        return found
    fullest = max(found, key=lambda one: len(one.entries))
    counts = Counter(name for one in found for name in {entry.name for entry in one.entries})
    place = {entry.name: k for k, entry in enumerate(fullest.entries)}
    # Checkpoints and validation come and go.
    usual = {name for name in place if 2 * counts[name] >= len(found)}
    opened = 2 * sum(one.opened for one in found) > len(found)
    if not opened and len(found) > 1 and usual - {entry.name for entry in found[-1].entries}:
        raise InputError(f"{scalars.where}: ends within a step, or begins within one; nothing tells which")

    def fine(one: Record) -> bool:
        places = [place[entry.name] for entry in one.entries if entry.name in place and not _by_size(entry.name)]
        return one.opened == opened and places == sorted(places)

    right = [True, *map(fine, found), True]
    # Lines that stand wrong in one record are missing in another near by.
    out = [one for k, one in enumerate(found) if all(right[k : k + 3])]
    if sum(len(one.entries) for one in found if fine(one)) < ORDERED * sum(len(one.entries) for one in found):
        raise InputError(f"{scalars.where}: its lines are not in the order in which they were written")
    return out


def _by_size(name: str) -> bool:
    """Whether NeMo-RL prints a timer behind that of the step, the longest first (grpo.py at 7ea279ab)."""
    return name.startswith("timing/train/") and name != "timing/train/total_step_time"


def _row(record: Record, comma: bool) -> dict[str, float]:
    """The numbers of a record; empty where one comes again as another, since they may be of two steps."""
    row, counts = dict[str, float](), Counter(entry.name for entry in record.entries)
    for entry in record.entries:
        value = number_of(entry.number.rstrip(".,") or "nan", comma)
        if value is None:
            continue
        value *= entry.scale
        if record.summed:
            row[entry.name] = row.get(entry.name, 0.0) + value
        elif row.setdefault(entry.name, value) != value:
            return {}
    if record.summed and any(counts[name] > 1 for name in counts if name.rpartition("/")[2] == "step"):
        return {}
    # A timer that ran twice was started twice.
    several = [name for name in row if record.summed and counts[name] > 1]
    return {k: v for k, v in row.items() if k not in several or record.started[k] == counts[k]}
