"""A running job beside what its scenario expects and beside its own level: lines every few steps, alarms at changes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from rlsim.errors import Infeasible, InputError
from rlsim.readers.logs.changes import LEARNT, LEAST_DEVIATION, Change, Level, changes_of, level_of, relative
from rlsim.readers.logs.growth import growth_of
from rlsim.readers.logs.naming import PHASES
from rlsim.readers.logs.reading import RunLog
from rlsim.readers.logs.source import latest
from rlsim.readers.logs.steady import measured_of, steady_of, with_facts
from rlsim.results import Interval
from rlsim.results.check import Check
from rlsim.results.watch import Moved, Suspect, WatchLine, WatchVerdict
from rlsim.schema.scenario import Scenario


class Explain(Protocol):
    """``rlsim.attribution.check.check``: a scenario, measured values, and deviations of their logarithms."""

    def __call__(
        self, scenario: Scenario, measured: Mapping[str, float], noise: Mapping[str, float], *, own_level: bool = False
    ) -> Check:
        """own_level: the values are those expected, moved as the run moved from its own level."""


SHOWN = 3
"""Suspects of an alarm."""
LIKELY = 0.3
"""Probability of a fault from which on it is an alarm. Assumption: a person looks once in three times for nothing."""
TOGETHER = 4
"""Steps between which the beginnings of one change in several quantities may lie."""
RECENT = 5
"""Steps whose median stands for what a step takes now."""


class Watcher:
    """What has been seen of a run. scenario: what it should be, None to know the run by itself alone; every: steps
    between two lines; written: the last step of lines that an interrupted watch of it has given, which do not come
    again."""

    def __init__(self, scenario: Scenario | None, explain: Explain, every: int = 10, written: int = -1) -> None:
        self.scenario, self.explain, self.every = scenario, explain, every
        self.last = self.written = written
        self.told, self.grown = 0, 1.0
        self.moved: Sequence[Change] = ()
        self.level: Level | None = None
        self.first: Check | None = None
        self.base: Level | None = None
        self.unsettled: tuple[Sequence[Change], WatchLine] | None = None
        self.standing: WatchLine | None = None
        self.expected_s: Interval | None = None
        self.unexplained = ""

    def lines(self, log: RunLog) -> list[WatchLine]:
        """The lines that are due now that the run has come as far as ``log``."""
        if self.scenario is not None:
            log = log.of_loop(self.scenario.loop.mode)
        if log.steps[-1] < self.written:  # a run that began anew
            self.last = self.written = -1
        changes, level = changes_of(log)
        out, now = list[WatchLine](), log.steps[-1]
        if self.level is None and (base := level_of(log)) is not None:
            self.base = base
            out.append(self._verdict(log, base))
        self.level = level
        for group in together(changes[self.told :]):
            out += self._settled(log, max(one.found for one in group))
            out.append(self._changed(log, group))
        out += self._settled(log)
        self.told = max(self.told, len(changes))
        self.last = max((self.last, *(line.step for line in out)))
        due = self.last < 0 or now >= self.last + self.every
        grown = self._grown(log, now) if due or out else None
        if due or grown is not None:
            out.append(grown or self._line(log, now, "learning" if level is None else "as usual"))
            self.last = now
        return [line for line in out if line.step > self.written]

    def _line(
        self, log: RunLog, step: int, verdict: WatchVerdict, own: Level | None = None,
        moved: Sequence[Change] = (), found: Check | None = None, alarm: bool = False, remark: str = "",
    ) -> WatchLine:  # fmt: skip
        level = own or self.level
        suspects = tuple(
            Suspect(name=one.name, title=one.title, probability=one.probability, cure=one.cure, gain_s=one.gain_s)
            for group in (found.groups if found is not None else ())
            for one in group.members
        )
        named = [
            one.name for group in (found.groups[:2] if alarm and found is not None else ()) for one in group.members
        ]
        if further := [name.replace("_", " ") for name in named if name not in {one.name for one in suspects[:SHOWN]}]:
            remark = f"{remark}; " * bool(remark) + f"looks the same or nearly so: {', '.join(further)}"
        if alarm and found is not None:
            remark = "; ".join(filter(None, (remark, *_on_no_list(found, moved))))
        since = None if alarm or self.standing is None else self.standing.step
        line = WatchLine(
            step=step, verdict=verdict, alarm=alarm, stands_since=since, step_s=latest(log, RECENT, step),
            own_s=None if level is None else level.medians.get("step"), expected_s=self.expected_s,
            moved=tuple(
                Moved(quantity=one.quantity, since=one.since, before=one.before, after=one.after, ratio=one.ratio)
                for one in moved
            ),
            suspects=suspects[:SHOWN] if alarm else (),
            experiment=suspects[0].cure if alarm and suspects else "", remark=remark,
        )  # fmt: skip
        # The first of one alarm: what judges it again later is no other.
        self.standing = self.standing or (line if alarm else None)
        return line

    def _over(self, moved: Sequence[Change], found: Check | None) -> str:
        """That the last alarm is over, in words: the run is faster again, or a check says so of the change behind it.
        What a run takes from its first step on no check of a change sees: only a faster step ends that alarm."""
        if self.standing is None:
            return ""
        if not (found.likely_healthy if found is not None and self.standing.moved else _slower_s(moved) < 0):
            return ""
        text, self.standing = f"the alarm of step {self.standing.step:,} is over", None
        return text

    def _verdict(self, log: RunLog, level: Level) -> WatchLine:
        """Of the run's own level, once it is learnt."""
        chosen = (level.first, log.steps[log.steps.index(level.first) + level.steps - 1])
        if self.scenario is None:
            return self._line(log, chosen[1], "as usual", level)
        steady = steady_of(log, chosen)
        try:
            self.scenario, _ = with_facts(self.scenario, steady, stated=False)
            self.first = found = self.explain(self.scenario, *measured_of(steady))
            self.expected_s = found.step.expected_s
        except (InputError, Infeasible) as error:
            return self._line(log, chosen[1], "cannot tell", level, remark=str(error))
        if found.cannot_tell:
            remark = f"its interval is too wide to judge: {found.cannot_tell}"
            return self._line(log, chosen[1], "cannot tell", level, found=found, remark=remark)
        alarm, remark = not found.likely_healthy and _likely(found), "; ".join(log.contradictions(self.scenario))
        verdict = found.step.verdict if found.step.verdict in ("slow", "fast") else "as expected"
        return self._line(log, chosen[1], verdict, level, found=found, alarm=alarm, remark=remark)

    def _changed(self, log: RunLog, moved: Sequence[Change]) -> WatchLine:
        """Of quantities that moved together: other work, or a fault."""
        since, step = min(one.since for one in moved), max(one.found for one in moved)
        before = self.moved if self.moved and abs(since - self.moved[0].since) <= TOGETHER else []
        if before and _phase_seconds(moved) <= _phase_seconds(before):  # the rest of a change that was explained
            return self._line(log, step, "changed", moved=moved)
        self.moved = moved = [*before, *moved]
        line = self._judged(log, moved, step)
        self.unsettled = None if self.scenario is None else (moved, line)
        return line

    def _settled(self, log: RunLog, before: float = math.inf) -> list[WatchLine]:
        """The last change judged again by as many steps as a level takes, all of them before the step ``before``; no
        line where it comes out as it did."""
        if self.unsettled is None:
            return []
        moved, first = self.unsettled
        place = log.steps.index(min(one.since for one in moved)) + LEARNT - 1
        if place >= len(log.steps) or log.steps[place] >= before:
            return []
        self.unsettled = None
        if log.steps[place] <= first.step:
            return []
        line = self._judged(log, moved, log.steps[place])
        same = (line.alarm, [one.name for one in line.suspects[:1]]) == (
            first.alarm,
            [one.name for one in first.suspects[:1]],
        )
        return [] if same else [line]

    def _grown(self, log: RunLog, now: int) -> WatchLine | None:
        """The verdict on steps that grow little by little, once for each tenth by which they do."""
        growth = growth_of(log, self.scenario, self.grown)
        if growth is None or growth.begun is not None:  # a jump is a change, and told as one
            return None
        self.grown = growth.ratio
        moved = [Change(name, growth.first, now, *both) for name, both in {**growth.seconds, **growth.work}.items()]
        if growth.leaks:
            line = self._judged(log, moved, now, growth.recent)
            line = line.model_copy(update={"alarm": True, "stands_since": None, "remark": growth.text})
            self.standing = self.standing or line
            return line
        return self._line(log, now, "other work", moved=moved, remark=growth.text)

    def _judged(self, log: RunLog, moved: Sequence[Change], step: int, since: int | None = None) -> WatchLine:
        """The verdict on a change by the steps up to ``step``; since: the first of them that counts, where it is not
        the one with which the change began."""
        slower = any(one.quantity in PHASES and one.ratio > 1 for one in moved)
        work = any(one.work for one in moved)
        found = None if self.scenario is None else self._explained(log, moved, step, since)
        # Without a scenario nobody knows what other work would take.
        alarm = slower and (not work if found is None else not found.likely_healthy and _likely(found))
        if work and found is not None:
            self.expected_s = found.step.expected_s
        verdict: WatchVerdict = "other work" if work and not alarm else "changed"
        remark = self.unexplained if alarm else self._over(moved, found)
        return self._line(log, step, verdict, moved=moved, found=found, alarm=alarm, remark=remark)

    def _explained(self, log: RunLog, moved: Sequence[Change], until: int, since: int | None) -> Check | None:
        """The check of what the run takes since the change, as far as it moved from its own level; the scenario has the
        lengths of the steps since then, so that what they take is no fault."""
        self.unexplained = ""
        if self.scenario is None or self.first is None or self.base is None:
            return None
        since = min(one.since for one in moved) if since is None else since
        place = log.steps.index(since)
        now = level_of(log, place, log.steps.index(until) - place + 1)
        if now is None:
            return None
        expected = {phase.phase: phase.expected_s.mean for phase in self.first.phases}
        measured = relative(self.base, now, expected, PHASES)
        steady = steady_of(log, (since, until))
        _, errors = measured_of(steady)
        try:
            scenario, _ = with_facts(self.scenario, steady)
            noise = {name: max(LEAST_DEVIATION, errors.get(name, 0.0)) for name in measured}
            # The model's error cancels between times of the same work, and not between those of other work.
            return self.explain(scenario, measured, noise, own_level=not any(one.work for one in moved))
        except (InputError, Infeasible) as error:
            self.unexplained = f"no fault can be named: {error}"
            return None


def together(changes: Sequence[Change]) -> list[list[Change]]:
    """Changes that began within the same few steps, in the order in which they were found."""
    groups: list[list[Change]] = []
    for one in sorted(changes, key=lambda change: change.found):
        home = next((group for group in groups if abs(group[0].since - one.since) <= TOGETHER), None)
        if home is None:
            groups.append([one])
        else:
            home.append(one)
    return groups


def _phase_seconds(moved: Sequence[Change]) -> float:
    """Seconds by which phases moved."""
    return sum(abs(one.after - one.before) for one in moved if one.quantity in PHASES and one.quantity != "step")


def _slower_s(moved: Sequence[Change]) -> float:
    """Seconds that a step takes longer by what moved: its own where it did, else those of its phases."""
    own = [one for one in moved if one.quantity == "step"]
    return sum(one.after - one.before for one in own or moved if one.quantity in PHASES)


def _on_no_list(found: Check, moved: Sequence[Change]) -> Iterator[str]:
    """What an alarm rests on where no known fault is the likeliest: phases beyond their intervals, and remarks. Where
    quantities moved, these are told, and the seconds of the check are those expected, moved as much: of no step."""
    if found.unlisted <= max((group.probability for group in found.groups), default=0.0):
        return
    for one in found.phases if not moved else ():
        if one.verdict in ("slow", "fast") and one.measured_s is not None:
            low, high = one.expected_s.low, one.expected_s.high
            yield f"{one.phase} {one.measured_s:.4g} s where {low:.4g} to {high:.4g} is expected"
    yield f"likelier than any known fault: a cause on no list ({100 * found.unlisted:.0f} %)"
    yield from found.remarks


def _likely(found: Check) -> bool:
    return max((found.unlisted, *(group.probability for group in found.groups))) >= LIKELY
