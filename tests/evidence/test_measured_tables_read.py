"""Reading tables that nobody vouches for."""

from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.evidence.tables import MAX_LINE_CHARACTERS, MAX_ROWS, read_table


def table(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_reads_cells_by_column_with_a_byte_order_mark_quotes_and_windows_line_ends(tmp_path: Path) -> None:
    path = table(tmp_path, b'\xef\xbb\xbfid, note\r\na," x, y "\r\n\r\n"b","say ""hi"""\r\n')
    records = read_table(path, ("id",))
    assert [dict(r.cells) for r in records] == [{"id": "a", "note": "x, y"}, {"id": "b", "note": 'say "hi"'}]
    assert [r.line for r in records] == [2, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("identity,b\n1,2\n", r"column id \(there is 'identity'\)|column id is missing"),
        ("iD,b\n1,2\n", "column id"),
        ("id,id\n1,2\n", "column id appears more than once"),
        (b"id\n\xff\xfe\n", "not UTF-8"),
        (b"id\na\0b\n", "it has NUL bytes"),
        ('id\n"never closed\n', "not CSV"),
        ("id\n" + "x" * (MAX_LINE_CHARACTERS + 1), "line 2 is longer"),
    ],
)
def test_what_is_no_table_is_told_in_one_line(tmp_path: Path, content: bytes | str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_table(table(tmp_path, content), ("id",))
    assert "\n" not in str(caught.value)
    assert "t.csv" in str(caught.value)


def test_a_million_rows_are_refused_after_a_few_have_been_read(tmp_path: Path) -> None:
    path = table(tmp_path, "id\n" + "r\n" * 1_000_000)
    with pytest.raises(InputError, match=f"more than {MAX_ROWS:,} rows"):
        read_table(path, ("id",))


def test_records_of_another_width_keep_their_place_and_carry_the_problem(tmp_path: Path) -> None:
    records = read_table(table(tmp_path, "id,b\n1\n2,3,4\n5,6\n" + "y" * 20_000 + ",7\n"), ("id",))
    assert [bool(r.problem) for r in records] == [True, True, False, True]
    assert "line 2 has 1 cells, the header 2" in records[0].problem
    assert len(records[3].cells["id"]) <= 200
