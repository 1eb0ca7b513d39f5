"""The run itself: every case once in the order of the list, journalled as it is measured, within a budget if any."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import torch
import torch.multiprocessing as mp

from bench import BenchError, compiled, ipc
from bench.cases import COLLECTIVES, COMPILED, HANDED_OVER, TRAINING_STEP, Case, CaseList, is_isolated
from bench.collectives import measure_collectives
from bench.compiled import measure_compiled
from bench.ipc import measure_ipc
from bench.journal import Journal
from bench.measurements import Facts, Measurement, Measurements, Metadata, write_measurements
from bench.metadata import clocks, describe, fingerprint
from bench.progress import Progress
from bench.recording import DeviceFailureError, checked, free, record_of
from bench.timing import StopRule, Watch
from bench.workbench import UnsupportedError, Workbench

JOURNAL, MEASUREMENTS = "journal.jsonl", "measurements.json"
_LEAST_S, _MOST_S = 0.02, 1.0
_DISTURBED_SPREAD = 0.1
"""Spread from which a sample counts as disturbed by something else on the machine; such cases are measured once more
at the end.
"""
_REMEASURE_S, _REMEASURE_SHARE = 1.0, 0.25
"""Most seconds of measuring one case again, and of all together as a share of the run's budget."""
_ENDING_S, _ENDING_SHARE = 3.0, 0.1
"""Seconds of a budget that its end takes, and the largest share of it: clocks read once more, the file written."""
_FIRST_CASE_S, _FIRST_S = 0.5, {TRAINING_STEP: 10.0}
"""Assumed seconds of the first case of an operator, kernels loaded for the first time; later ones are known."""
_RECENT = 5
"""Cases of an operator of which the longest counts for the next."""
_LEAST_BESIDE_S = 10.0
"""Seconds below which a process beside this one is not worth its start."""
_BUSY_SHARE = 0.5
"""Load average per core from which a CPU counts as busy with something else."""


@dataclass(frozen=True)
class RunReport:
    """Where the measurements lie, all of them with their metadata, how many are of this call, and its seconds.

    now: what this call measured. limit_s: its budget, where one was given.
    """

    path: Path
    whole: Measurements
    now: Sequence[Measurement]
    seconds: float
    limit_s: float | None = None

    @property
    def measured_now(self) -> int:
        """Number of cases that this call measured."""
        return len(self.now)


def open_device(name: str) -> torch.device:
    """Device ``cpu``, ``cuda`` or ``cuda:N``. BenchError where it is unknown or this machine lacks it."""
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdigit())):
        raise BenchError(f"unknown device '{name}'; use cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BenchError(
            "device 'cuda': torch finds no CUDA GPU here; use --device cpu, or run on a machine with a GPU"
        )
    if index and int(index) >= torch.cuda.device_count():
        raise BenchError(f"device '{name}': this machine has {torch.cuda.device_count()} GPUs")
    device = torch.device(kind, int(index or 0)) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    return device


def run(
    wanted: CaseList,
    device_name: str,
    out: Path,
    resume: bool = True,
    progress: bool | None = None,
    budget_s: float | None = None,
    started: float | None = None,
) -> RunReport:
    """Measure the ``wanted`` cases in their order on a device into the folder ``out``.

    With ``resume`` the cases journalled there before under equal metadata are kept. ``measurements.json`` is written at
    the end of the list, or where ``budget_s`` seconds after ``started`` (of the monotonic clock; default: now) no
    further case fits; it then says how many are missing, and the same call continues. An interrupted call leaves the
    journal alone. progress: bar on stderr; None means on a terminal. Raises BenchError for everything that a user can
    mend.
    """
    started = time.monotonic() if started is None else started
    device = open_device(device_name)
    metadata = describe(device, wanted.name)
    journal = _open_journal(out, fingerprint(metadata), resume)
    deadline = math.inf if budget_s is None else started + budget_s - min(_ENDING_S, _ENDING_SHARE * budget_s)
    run_ = _Run(wanted, journal, Workbench(device, wanted.models), Watch(device), deadline)
    bar = Progress(len(wanted.cases), len(wanted.cases) - len(run_.missing()), progress)
    try:
        run_.measure_missing(bar)
        run_.remeasure()
    finally:
        bar.close()
    ended = clocks(device) if device.type == "cuda" else {}
    records = [journal.records[case.key] for case in wanted.cases if case.key in journal.records]
    left = len(wanted.cases) - len(records)
    whole = Measurements(replace(metadata, clocks_at_end=ended), wanted.models, records, left)
    write_measurements(out / MEASUREMENTS, whole)
    return RunReport(out / MEASUREMENTS, whole, run_.now, time.monotonic() - started, budget_s)


def _open_journal(out: Path, print_: str, resume: bool) -> Journal:
    path = out / JOURNAL
    if not resume:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise BenchError(f"cannot write {path}: {error.strerror}") from error
    return Journal(path, print_)


@dataclass(frozen=True)
class _Run:
    """One run on its way: what is wanted, what is there, the device, and when all must be done (inf: no such time)."""

    wanted: CaseList
    journal: Journal
    on: Workbench
    watch: Watch
    deadline: float
    now: list[Measurement] = field(default_factory=list)
    spent: dict[str, list[float]] = field(default_factory=dict)

    def missing(self) -> list[Case]:
        return [case for case in self.wanted.cases if case.key not in self.journal.records]

    def measure_missing(self, bar: Progress) -> None:
        missing = self.missing()
        left = sum(not is_isolated(case) for case in missing)
        aimed = time.monotonic() + self.wanted.budget_s * left / len(self.wanted.cases)
        aimed = aimed if math.isinf(self.deadline) else self.deadline
        for kind, cases in groupby(missing, key=_kind):
            alike, started = list(cases), time.monotonic()
            if kind is not _SINGLE:
                self._record(self._beside(kind, alike), bar)
                if is_isolated(alike[0]):
                    # Compilers have limits of their own, which are no part of what a list aims at.
                    aimed += time.monotonic() - started if math.isinf(self.deadline) else 0.0
                else:
                    left -= len(alike)
                continue
            left -= len(alike)
            for position, case in enumerate(alike):
                # Without a case measured a call would bring a run no further, however often it is given.
                if self.now and time.monotonic() + self._expected_s(case) > self.deadline:
                    continue
                share = (aimed - time.monotonic()) / (left + len(alike) - position)
                rule = StopRule(target_spread=self.wanted.target_spread, max_seconds=min(_MOST_S, max(_LEAST_S, share)))
                self._measure(case, rule, bar)

    def _measure(self, case: Case, rule: StopRule, bar: Progress) -> None:
        """One case in this process. A device that fails at it fails again: the next call goes on behind it."""
        started = time.monotonic()
        try:
            self._record([record_of(case, self.on, self.watch, rule)], bar)
        except DeviceFailureError as error:
            self.journal.append(Measurement(case, unsupported=str(error).partition(";")[0]))
            raise
        finally:
            self.spent.setdefault(case.op, []).append(time.monotonic() - started)

    def _expected_s(self, case: Case) -> float:
        """Seconds that a case will take: the most of the last ones of its operator."""
        known = self.spent.get(case.op, [])[-_RECENT:]
        return max(known) if known else _FIRST_S.get(case.op, _FIRST_CASE_S)

    def _record(self, records: Iterable[Measurement], bar: Progress) -> None:
        for record in records:
            self.journal.append(record)
            self.now.append(record)
            bar.advance(record.case.op)

    def _beside(self, kind: Kind, cases: Sequence[Case]) -> Iterator[Measurement]:
        """Cases that processes of their own take part in; left out where their start alone would take the rest."""
        left_s = self.deadline - time.monotonic()
        if left_s < _LEAST_BESIDE_S:
            return
        device, rule = self.on.device, StopRule(target_spread=self.wanted.target_spread)
        if kind[0] == _COLLECTIVE:
            samples = measure_collectives(list(cases), device)
            found: Iterator[Measurement] = (checked(case, sample, Facts()) for case, sample in samples)
        else:
            free(self.on)
            if kind[0] == HANDED_OVER:
                found = measure_ipc(cases, device, rule, min(ipc.LIMIT_S, left_s))
            else:
                found = measure_compiled(cases, device, self.wanted.models, rule, min(compiled.LIMIT_S, left_s))
        for record in _as_far_as(cases, found):
            # What the end of the budget broke off is no limit of the device.
            if record.sample is None and time.monotonic() > self.deadline:
                return
            yield record

    def remeasure(self) -> None:
        """Measure disturbed cases of a complete list once more; the sample with the smaller spread stays."""
        rule = StopRule(target_spread=self.wanted.target_spread, max_seconds=_REMEASURE_S)
        deadline = min(self.deadline, time.monotonic() + _REMEASURE_SHARE * self.wanted.budget_s)
        for case in self.wanted.cases if not self.missing() else ():
            first = self.journal.records[case.key]
            if case.op in COLLECTIVES or is_isolated(case) or first.remeasured or not _disturbed(first):
                continue
            most_s = _REMEASURE_S if math.isfinite(self.deadline) else 0.0
            if time.monotonic() + most_s > deadline:
                return
            second = record_of(case, self.on, self.watch, rule)
            better = min((first, second), key=lambda record: record.sample.spread if record.sample else math.inf)
            self.journal.append(replace(better, remeasured=True))


Kind = tuple[str, ...]
_SINGLE: Kind = ("single",)
_COLLECTIVE = "collective"


def _kind(case: Case) -> Kind:
    """Cases of one kind in a row are measured together: each number of ranks and mode of collectives is a job of its
    own, so that what one cannot do costs the others nothing.
    """
    if case.op in COLLECTIVES:
        return (_COLLECTIVE, str(case.number("ranks")), case.text("mode"))
    if is_isolated(case):
        return (HANDED_OVER,) if case.op == HANDED_OVER else (COMPILED,)
    return _SINGLE


def _disturbed(record: Measurement) -> bool:
    return record.sample is not None and (record.sample.throttled or record.sample.spread > _DISTURBED_SPREAD)


def _as_far_as(cases: Sequence[Case], records: Iterator[Measurement]) -> Iterator[Measurement]:
    """``records``, and where they break off the cases that are left as unsupported with the reason."""
    left = list(cases)
    try:
        for record in records:
            left.remove(record.case)
            yield record
    except (UnsupportedError, mp.ProcessRaisedException, mp.ProcessExitedException, OSError) as error:
        reason = ([line for line in str(error).splitlines() if line.strip()] or [type(error).__name__])[-1]
        for case in left:
            yield Measurement(case, unsupported=reason)


def report_text(report: RunReport) -> str:
    """Summary in a few lines."""
    records = report.whole.records
    lines = [f"{len(records)} cases, {report.measured_now} measured now in {report.seconds:.0f} s: {report.path}"]
    if report.whole.missing:
        budget = f"the budget of {report.limit_s:g} s" if report.limit_s is not None else "this run"
        lines.append(f"{report.whole.missing} cases are left after {budget}; the same command continues with them")
    if report.measured_now:
        lines += _busy(report.whole.metadata)
        lines += _seconds_text(report.now)
    throttled = sum(1 for record in records if record.sample and record.sample.throttled)
    if throttled:
        lines.append(f"{throttled} cases were measured while the device was slowed down or shared")
    reasons = Counter(record.unsupported for record in records if record.unsupported)
    lines += [f"{count} cases not supported here: {reason}" for reason, count in reasons.items()]
    return "\n".join(lines)


def _seconds_text(records: Sequence[Measurement]) -> list[str]:
    """Seconds by operator of what was measured, those that took most first."""
    prepared, measured = defaultdict[str, float](float), defaultdict[str, float](float)
    for record in records:
        prepared[record.case.op] += record.facts.prepare_s or 0.0
        measured[record.case.op] += record.facts.measure_s or 0.0
    ops = sorted(prepared, key=lambda op: -(prepared[op] + measured[op]))
    number = Counter(record.case.op for record in records)
    texts = [f"{op} {prepared[op]:.1f} + {measured[op]:.1f} ({number[op]})" for op in ops]
    return [f"seconds of preparing + measuring (cases): {', '.join(texts)}"]


def _busy(metadata: Metadata) -> list[str]:
    """Warning where a CPU was working for others when the run began."""
    load, cores = metadata.load_at_start, metadata.host_cores
    if metadata.device_type == "cuda" or load <= _BUSY_SHARE * cores:
        return []
    return [f"the machine was busy at the start (load {load} on {cores} cores): times may be too long"]
