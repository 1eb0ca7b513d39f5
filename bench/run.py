"""The run itself: every case once, journalled as it is measured, written as a whole only when all are there."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.multiprocessing as mp

from bench import BenchError
from bench.cases import COLLECTIVES, HANDED_OVER, Case, CaseList, is_isolated
from bench.collectives import measure_collectives
from bench.compiled import measure_compiled
from bench.ipc import measure_ipc
from bench.journal import Journal
from bench.measurements import Facts, Measurement, Measurements, Metadata, write_measurements
from bench.metadata import clocks, describe, fingerprint
from bench.progress import Progress
from bench.recording import checked, record_of
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
_BUSY_SHARE = 0.5
"""Load average per core from which a CPU counts as busy with something else."""


@dataclass(frozen=True)
class RunReport:
    """Where the measurements lie, all of them with their metadata, how many are of this call, and its seconds."""

    path: Path
    whole: Measurements
    measured_now: int
    seconds: float


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


def run(wanted: CaseList, device_name: str, out: Path, resume: bool = True, progress: bool | None = None) -> RunReport:
    """Measure all ``wanted`` cases on a device into the folder ``out``.

    With ``resume`` the cases journalled there before under equal metadata are kept. ``measurements.json`` is replaced
    only by a complete run with finite times. progress: bar on stderr; None means on a terminal. Raises BenchError for
    everything that a user can mend.
    """
    device = open_device(device_name)
    metadata = describe(device, wanted.name)
    journal = _open_journal(out, fingerprint(metadata), resume)
    started = time.monotonic()
    run_ = _Run(wanted, journal, Workbench(device, wanted.models), Watch(device))
    before = len(wanted.cases) - len(run_.missing())
    bar = Progress(len(wanted.cases), before, progress)
    try:
        run_.measure_missing(bar)
        run_.remeasure()
    finally:
        bar.close()
    ended = clocks(device) if device.type == "cuda" else {}
    records = [journal.records[case.key] for case in wanted.cases]
    whole = Measurements(replace(metadata, clocks_at_end=ended), wanted.models, records)
    write_measurements(out / MEASUREMENTS, whole)
    return RunReport(out / MEASUREMENTS, whole, len(records) - before, time.monotonic() - started)


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
    """One run on its way: what is wanted, what is there, and the device."""

    wanted: CaseList
    journal: Journal
    on: Workbench
    watch: Watch

    def missing(self) -> list[Case]:
        return [case for case in self.wanted.cases if case.key not in self.journal.records]

    def measure_missing(self, bar: Progress) -> None:
        missing = self.missing()
        for record in self._isolated([case for case in missing if is_isolated(case)]):
            self.journal.append(record)
            bar.advance(record.case.op)
        missing = self.missing()
        deadline = time.monotonic() + self.wanted.budget_s * len(missing) / len(self.wanted.cases)
        for record in _collective_records([case for case in missing if case.op in COLLECTIVES], self.on.device):
            self.journal.append(record)
            bar.advance(record.case.op)
        single = [case for case in missing if case.op not in COLLECTIVES]
        for position, case in enumerate(single):
            share = (deadline - time.monotonic()) / (len(single) - position)
            rule = StopRule(target_spread=self.wanted.target_spread, max_seconds=min(_MOST_S, max(_LEAST_S, share)))
            self.journal.append(record_of(case, self.on, self.watch, rule))
            bar.advance(case.op)

    def _isolated(self, cases: Sequence[Case]) -> Iterator[Measurement]:
        """Cases that a process of its own takes part in, with time limits of their own: first, while memory is free."""
        device, rule = self.on.device, StopRule(target_spread=self.wanted.target_spread)
        compiled = [case for case in cases if case.op != HANDED_OVER]
        handed = [case for case in cases if case.op == HANDED_OVER]
        if compiled:
            yield from _as_far_as(compiled, measure_compiled(compiled, device, self.wanted.models, rule))
        if handed:
            yield from _as_far_as(handed, measure_ipc(handed, device, rule))

    def remeasure(self) -> None:
        """Measure disturbed cases once more; the sample with the smaller spread stays."""
        rule = StopRule(target_spread=self.wanted.target_spread, max_seconds=_REMEASURE_S)
        deadline = time.monotonic() + _REMEASURE_SHARE * self.wanted.budget_s
        for case in self.wanted.cases:
            first = self.journal.records[case.key]
            if time.monotonic() > deadline:
                return
            if case.op in COLLECTIVES or is_isolated(case) or first.remeasured or not _disturbed(first):
                continue
            second = record_of(case, self.on, self.watch, rule)
            better = min((first, second), key=lambda record: record.sample.spread if record.sample else math.inf)
            self.journal.append(replace(better, remeasured=True))


def _disturbed(record: Measurement) -> bool:
    return record.sample is not None and (record.sample.throttled or record.sample.spread > _DISTURBED_SPREAD)


def _collective_records(cases: Sequence[Case], device: torch.device) -> Iterator[Measurement]:
    """Samples of the collectives; those that the processes did not deliver are unsupported with the reason.

    Each number of ranks and mode is a job of its own: what one cannot do costs the others nothing.
    """
    for job in dict.fromkeys((case.number("ranks"), case.text("mode")) for case in cases):
        own = [case for case in cases if (case.number("ranks"), case.text("mode")) == job]
        samples = measure_collectives(own.copy(), device)
        yield from _as_far_as(own, (checked(case, sample, Facts()) for case, sample in samples))


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
    if report.measured_now:
        lines += _busy(report.whole.metadata)
    throttled = sum(1 for record in records if record.sample and record.sample.throttled)
    if throttled:
        lines.append(f"{throttled} cases were measured while the device was slowed down or shared")
    reasons = Counter(record.unsupported for record in records if record.unsupported)
    lines += [f"{count} cases not supported here: {reason}" for reason, count in reasons.items()]
    return "\n".join(lines)


def _busy(metadata: Metadata) -> list[str]:
    """Warning where a CPU was working for others when the run began."""
    load, cores = metadata.load_at_start, metadata.host_cores
    if metadata.device_type == "cuda" or load <= _BUSY_SHARE * cores:
        return []
    return [f"the machine was busy at the start (load {load} on {cores} cores): times may be too long"]
