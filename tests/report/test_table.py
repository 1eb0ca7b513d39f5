"""The terminal table: it aligns, it fits, it keeps every word."""

from __future__ import annotations

import re

from rlsim.report.style import Style
from rlsim.report.table import RULE, Cell, Row, table

HEADS = ("", "baseline", "speedup")
ROWS = [
    ("data", Cell("0.1", "0.1", "0.2"), "-"),
    ("exposed generation", Cell("15.8", "12.5", "120.0"), "saves 15.8 s"),
    RULE,
    Row(("step", Cell("112.0", "90.0", "131.0"), Cell("1.28x", "1.09", "1.51")), strong=True),
]


def test_means_and_ends_of_intervals_align():
    assert table(HEADS, ROWS, Style()) == [
        "                       baseline              speedup",
        "  data                   0.1 [ 0.1,   0.2]       -",
        "  exposed generation    15.8 [12.5, 120.0]   saves 15.8 s",
        "  " + "─" * 61,
        "  step                 112.0 [90.0, 131.0]   1.28x [1.09, 1.51]",
    ]


def test_narrower_tables_move_together_then_drop_intervals_but_the_last_then_wrap_words():
    widths = {width: table(HEADS, ROWS, Style(width)) for width in (100, 62, 52, 40)}
    assert all(max(map(len, lines)) <= width for width, lines in widths.items())
    assert "12.5" in "".join(widths[62]) and "12.5" not in "".join(widths[52])
    assert all("[1.09, 1.51]" in lines[-1] for lines in widths.values())
    assert [line.split()[0] for line in widths[40][1:4]] == ["data", "exposed", "generation"]


def test_words_stand_left_and_numbers_right():
    lines = table(("model", "bound", "s"), [("a", "memory", "1.5"), ("bb", "host", "10.5")], Style(), "<<>")
    assert lines == ["  model   bound       s", "  a       memory    1.5", "  bb      host     10.5"]


def test_ascii_tables_are_ascii_and_emphasis_shifts_nothing():
    rows = [("größe", "1"), RULE, Row(("b", "2"), strong=True)]
    assert all(line.isascii() for line in table(("", "s"), rows, Style(encoding="ascii")))
    plain, colored = table(("", "s"), rows, Style()), table(("", "s"), rows, Style(color=True))
    assert [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in colored] == plain
    assert "\x1b[1m" in colored[-1] and "\x1b[1m" not in colored[1]
