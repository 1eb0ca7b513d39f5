"""A whole run on the CPU: complete, resumable after a kill, never leaving a bad file."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import BenchError, operators, recording, run
from bench import __file__ as bench_file
from bench.cases import Case, CaseList, write_whole
from bench.journal import Journal
from bench.measurements import Measurement, Sample, read_measurements
from bench.progress import Progress

CHILD = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from conftest import TINY
from bench.run import run
if __name__ == "__main__":
    run(TINY, "cpu", Path({out!r}), progress=False)
"""


def keys(path: Path) -> list[str]:
    return [record.case.key for record in read_measurements(path).records]


def start_child(tmp_path: Path, out: Path) -> subprocess.Popen[bytes]:
    script = tmp_path / "child.py"
    script.write_text(CHILD.format(paths=[str(Path(__file__).parent), str(Path(bench_file).parents[1])], out=str(out)))
    return subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE)


def test_a_killed_run_continues_and_ends_with_the_same_cells(tmp_path: Path, tiny: CaseList) -> None:
    out, expected = tmp_path / "out", [case.key for case in tiny.cases]
    journal = out / run.JOURNAL
    child = start_child(tmp_path, out)
    while child.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 10):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    kept = journal.read_bytes().count(b"\n")
    assert 10 <= kept < len(expected)
    assert not (out / run.MEASUREMENTS).exists()
    outcome = run.run(tiny, "cpu", out, progress=False)
    assert outcome.measured_now == len(expected) - kept
    assert keys(outcome.path) == expected
    assert len(outcome.whole.of()) == len(expected)
    assert all(record.seconds > 0 for record in outcome.whole.of())
    again = run.run(tiny, "cpu", out, progress=False)
    assert again.measured_now == 0
    assert keys(again.path) == expected


FEW = CaseList("few", 1.0, 0.03, {},
               [Case("launch_eager", {}, 1.0, 8.0), Case("rms_norm", {"rows": 2, "width": 8}, 1.0, 8.0)])  # fmt: skip


def test_a_time_that_is_not_finite_never_replaces_a_good_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = run.run(FEW, "cpu", tmp_path, progress=False).path.read_bytes()
    monkeypatch.setattr(recording, "measure", lambda *_: Sample(float("nan"), 0.0, 0.0, 3, 0.0))
    with pytest.raises(BenchError, match="nothing was overwritten"):
        run.run(FEW, "cpu", tmp_path, resume=False, progress=False)
    assert (tmp_path / run.MEASUREMENTS).read_bytes() == good


def test_a_disturbed_cell_gets_one_second_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Sample(5.0, 1.0, 9.0, 3, 0.5), Sample(2.0, 2.0, 2.0, 7, 0.01), Sample(1.0, 1.0, 1.0, 7, 0.01)]
    monkeypatch.setattr(recording, "measure", lambda *_: samples.pop(0))
    monkeypatch.setattr(run.Watch, "mark", lambda _, sample: sample)
    records = run.run(FEW, "cpu", tmp_path, progress=False).whole.records
    assert [record.seconds for record in records] == [1.0, 2.0]
    assert samples == []


def test_what_device_or_torch_cannot_do_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    product = Case("gemm", {"m": 1, "n": 16, "k": 16, "dtype": "fp8"})
    outcome = run.run(replace(FEW, cases=[product]), "cpu", tmp_path, progress=False)
    assert outcome.whole.of() == []
    assert "1 cases not supported here: this device has no FP8 matrix product" in run.report_text(outcome)

    def missing(*_: object) -> None:
        raise AttributeError("module 'torch' has no attribute '_grouped_mm'")

    monkeypatch.setitem(operators.OPERATORS, "launch_eager", missing)
    outcome = run.run(FEW, "cpu", tmp_path, progress=False)
    refused = {record.case.op: record.unsupported for record in outcome.whole.records}
    assert refused == {"launch_eager": "module 'torch' has no attribute '_grouped_mm'", "rms_norm": ""}


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu:0", ""])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(BenchError, match="unknown device"):
        run.open_device(name)


def test_a_missing_gpu_is_one_message_and_a_bar_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BenchError, match="no CUDA GPU here; use --device cpu"):
        run.open_device("cuda")
    stream = io.StringIO()
    bar = Progress(4, 2, shown=True, stream=stream)
    bar.advance("gemm")
    assert "3/4" in stream.getvalue()
    assert "gemm" in stream.getvalue()


def record(op: str, seconds: float = 1.0) -> Measurement:
    return Measurement(Case(op, {}), Sample(seconds, seconds, seconds, 3, 0.0))


def ops(journal: Journal) -> dict[str, Measurement]:
    return {found.case.op: found for found in journal.records.values()}


def test_records_are_there_after_reopening_the_later_of_a_cell_and_of_the_same_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "journal.jsonl"
    journal = Journal(path, "run")
    for op, seconds in (("a", 3.0), ("b", 2.0), ("a", 1.0)):
        journal.append(record(op, seconds))
    assert {op: found.seconds for op, found in ops(Journal(path, "run")).items()} == {"a": 1.0, "b": 2.0}
    Journal(tmp_path / "j", "old").append(record("a"))
    Journal(tmp_path / "j", "new").append(record("b"))
    assert set(ops(Journal(tmp_path / "j", "new"))) == {"b"}
    assert set(ops(Journal(tmp_path / "j", "old"))) == {"a"}
    journal = Journal(tmp_path / "j", "run")
    with pytest.raises(ValueError, match="JSON"):
        journal.append(record("a", float("nan")))


@pytest.mark.parametrize("kept", range(1, 30))
def test_a_line_torn_at_any_byte_costs_that_line_only(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "j"
    journal = Journal(path, "run")
    journal.append(record("a"))
    whole = path.read_bytes()
    journal.append(record("b"))
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    resumed = Journal(path, "run")
    assert set(ops(resumed)) == {"a"}
    resumed.append(record("c"))
    assert set(ops(Journal(path, "run"))) == {"a", "c"}


def test_a_full_disk_and_a_failed_replacement_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    journal = Journal(path, "run")
    journal.append(record("a"))
    before = path.read_bytes()
    real_write = os.write

    def short(handle: int, data: bytes) -> int:
        real_write(handle, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with pytest.raises(BenchError, match="No space left on device"):
            journal.append(record("b"))
    assert path.read_bytes() == before
    journal.append(record("c"))
    assert set(ops(Journal(path, "run"))) == {"a", "c"}
    path = tmp_path / "result.json"
    write_whole(path, "old", "cannot write")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(BenchError, match="No space"):
            write_whole(path, "new", "cannot write")
    assert path.read_text() == "old"
    assert {entry.name for entry in tmp_path.iterdir()} == {"result.json", "j"}


def test_files_of_before_are_read_with_what_they_lack_left_out(tmp_path: Path) -> None:
    path = run.run(FEW, "cpu", tmp_path, progress=False).path
    content = json.loads(path.read_text())
    del content["missing"]
    for one in content["measurements"]:
        for name in ("optimizer_s", "peak_bytes", "reserved_bytes", "prepare_s", "measure_s"):
            del one["facts"][name]
    path.write_text(json.dumps(content))
    read = read_measurements(path)
    assert read.missing == 0 and {one.facts.peak_bytes for one in read.records} == {None}


class Clock:
    """A clock that every case moves on by ten seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_budget_leaves_out_what_does_not_fit_and_calls_go_on_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, cases = Clock(), [Case("rms_norm", {"rows": rows, "width": 8}, 1.0, 8.0) for rows in range(1, 8)]
    wanted = replace(FEW, cases=cases)

    def slow(case: Case, *_: object) -> Measurement:
        clock.seconds += 10.0
        return Measurement(case, Sample(1.0, 1.0, 1.0, 7, 0.01))

    monkeypatch.setattr(run, "time", clock)
    monkeypatch.setattr(run, "record_of", slow)
    counts = []
    for _ in range(3):
        started = clock.seconds
        outcome = run.run(wanted, "cpu", tmp_path, progress=False, budget_s=35.0)
        assert clock.seconds - started <= 35.0
        counts.append((outcome.measured_now, outcome.whole.missing, len(read_measurements(outcome.path).records)))
    assert counts == [(3, 4, 3), (3, 1, 6), (1, 0, 7)]
    late = run.run(wanted, "cpu", tmp_path, resume=False, progress=False, budget_s=35.0, started=clock.seconds - 30.0)
    assert late.measured_now == 1, "what passed before counts too"


def test_a_case_at_which_the_device_fails_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(case: Case, *_: object) -> Measurement:
        raise recording.DeviceFailureError(f"the device failed at '{case.key}' (fault); run the same command again")

    with monkeypatch.context() as patch:
        patch.setattr(run, "record_of", failing)
        with pytest.raises(BenchError, match="the device failed"):
            run.run(FEW, "cpu", tmp_path, progress=False)
    outcome = run.run(FEW, "cpu", tmp_path, progress=False)
    assert [bool(one.sample) for one in outcome.whole.records] == [False, True]
    assert outcome.whole.records[0].unsupported == "the device failed at 'launch_eager {}' (fault)"
