"""Damaged records of every framework and form: one clear message, or steps of which every number stood there."""

import random

import pytest

from rlsim.errors import InputError
from rlsim.readers.logs.reading import read_text_log
from tests.readers.damage import LOOSE, damaged, invented, records

RECORDS = records()


def found_in(name: str, seed: str, count: int) -> tuple[int, list[tuple[str, list[str], str]]]:
    """Of ``count`` damaged records, how many were read, and those said to hold what was not there. Of a single step
    that is left nobody can tell that a part of it is missing."""
    text, numbered = RECORDS[name]
    rng, true, read = random.Random(f"{name} {seed}"), read_text_log(text, name), 0
    wrong = list[tuple[str, list[str], str]]()
    for _ in range(count):
        kind, broken = damaged(text, rng, name in LOOSE)
        try:
            log = read_text_log(broken, name)
        except InputError as error:
            assert "\n" not in str(error) and len(str(error)) < 600
            continue
        read += 1
        if len(log.steps) > 1 and (steps := invented(true, log, numbered)):
            wrong.append((kind, steps[:3], broken))
    return read, wrong


@pytest.mark.parametrize("name", RECORDS)
def test_damaged_records_are_one_message_or_steps_that_were_there(name: str) -> None:
    read, wrong = found_in(name, "fast", 40)
    # Most damage leaves much that can be read; a document of JSON is read whole or not at all.
    assert wrong == [] and read >= (5 if name == "JSON array" else 15)


@pytest.mark.nightly
@pytest.mark.parametrize("name", RECORDS)
def test_five_hundred_damaged_records_of_each_form(name: str) -> None:
    read, wrong = found_in(name, "nightly", 500)
    assert wrong == [] and read >= (50 if name == "JSON array" else 200)


def test_a_record_in_order_is_whole_and_one_that_lost_a_heading_is_left_out() -> None:
    text, _ = RECORDS["NeMo-RL"]
    whole = read_text_log(text, "log")
    lines = text.splitlines(keepends=True)
    heading = next(k for k, line in enumerate(lines) if "Step 5/" in line)
    without = read_text_log("".join(lines[:heading] + lines[heading + 1 :]), "log")
    # The lines of 5 may be of 4 now; and of the last step nobody knows whether a heading after it is lost.
    assert set(whole.steps) - set(without.steps) == {4, 5, 10}
    assert "left out" in without.remarks[0]


def test_a_comma_is_before_decimals_where_it_cannot_be_between_thousands() -> None:
    text = "step:1 - timing_s/step:60,125 - timing_s/gen:30,25\n"
    assert read_text_log(text, "log").values["step"].tolist() == [60.125]
    text = "step:1 - timing_s/step:1,060 - timing_s/gen:1,030.5\n"
    assert read_text_log(text, "log").values["step"].tolist() == [1060]
    assert "generation" not in read_text_log("step:1 - timing_s/step:60.5 - timing_s/gen:1 030,5\n", "log").values
