"""The journal keeps whole lines only, whatever interrupts it."""

import errno
import os
from pathlib import Path

import pytest

from bench import BenchError
from bench.cases import Case, write_whole
from bench.journal import Journal
from bench.measurements import Measurement, Sample


def record(op: str, seconds: float = 1.0) -> Measurement:
    return Measurement(Case(op, {}), Sample(seconds, seconds, seconds, 3, 0.0))


def ops(journal: Journal) -> dict[str, Measurement]:
    return {found.case.op: found for found in journal.records.values()}


def test_records_are_there_after_reopening_the_later_of_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "journal.jsonl"
    journal = Journal(path, "run")
    for op, seconds in (("a", 3.0), ("b", 2.0), ("a", 1.0)):
        journal.append(record(op, seconds))
    assert {op: found.seconds for op, found in ops(Journal(path, "run")).items()} == {"a": 1.0, "b": 2.0}


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


def test_another_fingerprint_is_ignored_and_kept(tmp_path: Path) -> None:
    Journal(tmp_path / "j", "old").append(record("a"))
    Journal(tmp_path / "j", "new").append(record("b"))
    assert set(ops(Journal(tmp_path / "j", "new"))) == {"b"}
    assert set(ops(Journal(tmp_path / "j", "old"))) == {"a"}


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "run")
    with pytest.raises(ValueError, match="JSON"):
        journal.append(record("a", float("nan")))


def test_an_impossible_folder_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="cannot write"):
        Journal(tmp_path / "file" / "j", "run")


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_whole(path, "old", "cannot write")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(BenchError, match="No space"):
            write_whole(path, "new", "cannot write")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
