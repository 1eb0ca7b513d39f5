"""Run files of wandb, written here as its format is described: read to the digit, cut anywhere, damaged anywhere."""

import json
import struct
import zlib
from pathlib import Path

import pytest
from event_files import counted, varint

from rlsim.errors import InputError
from rlsim.readers.logs.reading import read_log

BLOCK = 32768


def history(step: int, **metrics: object) -> bytes:
    """A Record with the history of a step; names with two underscores are nested keys."""
    items = b""
    for name, value in metrics.items():
        first, _, last = name.partition("__")
        key = counted(2, first.encode()) + counted(2, last.encode()) if last else counted(1, name.encode())
        items += counted(1, key + counted(16, json.dumps(value).encode()))
    number = varint(2 << 3 | 2) + bytes([2]) + varint(1 << 3) + bytes([step])
    return varint(1 << 3) + bytes([step]) + counted(2, items + number)


def run_file(records: list[bytes]) -> bytes:
    """Records in blocks: whole, or as a first, middle and last piece; what is too little for a head is zeros."""
    out = b":W&B\xe1\xbe\x00"
    for record in records:
        left, first = record, True
        while first or left:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                continue
            piece, left = left[: room - 7], left[room - 7 :]
            kind = (1 if not left else 2) if first else (4 if not left else 3)
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
            first = False
    return out


def steps(count: int) -> list[bytes]:
    timed = {"timing_s__gen": 12.5, "timing_s__update_actor": 4.25, "note": "x" * 300}
    return [history(step, timing_s__step=20.0 + step, **timed) for step in range(1, count + 1)]


def test_a_run_file_is_read_to_the_digit_also_across_blocks(tmp_path: Path) -> None:
    console = counted(4, counted(3, b"a line " * 12_000))  # of several blocks, and no history
    content = run_file([steps(1)[0], console, *steps(100)[1:]])
    assert len(content) > 3 * BLOCK
    (tmp_path / "run-abc.wandb").write_bytes(content)
    for place in (tmp_path, tmp_path / "run-abc.wandb"):
        log = read_log(place)
        assert (log.form, log.framework, log.steps) == ("wandb", "verl", tuple(range(1, 101)))
        assert log.values["step"].tolist() == [20.0 + step for step in range(1, 101)]
        assert set(log.values["generation"]) == {12.5} and set(log.values["train"]) == {4.25} and not log.remarks


@pytest.mark.parametrize("room", [0, 1, 6, 7, 8])
def test_a_head_that_no_longer_fits_into_its_block_is_in_the_next_one(room: int, tmp_path: Path) -> None:
    first, second = steps(2)
    filled = run_file([first])
    console = counted(4, b"x" * (BLOCK - len(filled) - 7 - 4 - room))
    content = run_file([first, console, second])
    assert len(run_file([first, console])) == BLOCK - room
    (tmp_path / "run-abc.wandb").write_bytes(content)
    assert read_log(tmp_path / "run-abc.wandb").steps == (1, 2)


def test_a_running_jobs_file_ends_with_its_last_whole_record(tmp_path: Path) -> None:
    file, content = tmp_path / "run-abc.wandb", run_file(steps(4))
    for cut in (1, 5, 200):
        file.write_bytes(content[:-cut])
        log = read_log(file)
        assert log.steps == (1, 2, 3) and log.remarks == ("the last record is cut and left out",)


def test_a_damaged_run_file_is_one_message(tmp_path: Path) -> None:
    file, content = tmp_path / "run-abc.wandb", run_file(steps(3))
    for place in range(7, 400, 13):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        file.write_bytes(bytes(damaged))
        try:
            assert "cut" in read_log(file).remarks[0]  # a size that reaches beyond the file
        except InputError as error:
            assert str(file.name) in str(error)
    file.write_bytes(run_file([counted(2, counted(1, counted(1, b"k") + counted(16, b"{")))]))
    with pytest.raises(InputError, match="record 1: is no record of wandb"):
        read_log(file)


def test_files_beside_a_run_file_name_what_it_ran_on(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "wandb-metadata.json").write_text(json.dumps({"gpu": "NVIDIA H20", "gpu_count": 8}))
    (tmp_path / "files" / "requirements.txt").write_text("sglang==0.4.6.post1\n")
    (tmp_path / "run-abc.wandb").write_bytes(run_file(steps(5)))
    for place in (tmp_path, tmp_path / "run-abc.wandb"):
        assert read_log(place).banners == {"gpu": "H20", "sglang": "0.4.6.post1"}
