"""What every answer can do: be printed, be a table of pandas, be shown in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rlsim.results.record import Record, Row

if TYPE_CHECKING:
    from pandas import DataFrame

LARGEST_INT = 2**63 - 1
MOST_LINES = 40
"""Of a text that is not asked for in full."""
Render = Callable[["Answer", Any], str]
"""From an answer and the style of a terminal (or None) to its text."""
_renderers: list[Render] = []


def rendered_by(render: Render) -> None:
    """Let ``print`` show answers as ``render`` does: results know no report, whoever knows both says so."""
    _renderers[:] = [render]


def interval_columns(name: str) -> tuple[str, str, str]:
    """Columns of the mean and the ends of the quantity ``name``: step_s, step_low_s, step_high_s."""
    stem, unit = (name[:-2], "_s") if name.endswith("_s") else (name, "")
    return name, f"{stem}_low{unit}", f"{stem}_high{unit}"


class Answer(Record):
    """An answer: ``print`` shows it as the command line does, a notebook as a table, and pandas has its rows."""

    rows_in: ClassVar[str] = ""
    """The field whose records are the lines of :meth:`to_frame`, of answers that write no table of their own."""

    def __str__(self) -> str:
        return self.text()

    def text(self, style: Any = None, full: bool = False) -> str:
        """The printed text, in ``full`` or in at most 40 lines; style: of a terminal (``rlsim.report.table``)."""
        if not _renderers:
            return repr(self)
        text = _renderers[0](self, style)
        return text if full or text.count("\n") <= MOST_LINES else _shortened(text)

    def to_frame(self) -> DataFrame:
        """The answer's rows as a pandas table, in the units that the columns name; intervals as mean, low and high."""
        return frame_of([flat(row) for row in getattr(self, self.rows_in)])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(self.to_frame().to_html(index=False, float_format="{:.4g}".format, max_rows=50))


def _shortened(text: str) -> str:
    """The text in at most MOST_LINES lines: its longest sections end early and say how much follows."""
    sections = [section.rstrip("\n").split("\n") for section in text.split("\n\n")]
    left_out = [0] * len(sections)
    while sum(len(lines) + 1 + (cut > 0) for lines, cut in zip(sections, left_out, strict=True)) - 1 > MOST_LINES:
        longest = max(range(len(sections)), key=lambda place: len(sections[place]))
        # Line by line from whatever is longest then: short sections stay as they are.
        sections[longest].pop()
        left_out[longest] += 1
    shown = [
        "\n".join([*lines, f"  ... {cut:,} more lines (--full, in Python .text(full=True))"] if cut else lines)
        for lines, cut in zip(sections, left_out, strict=True)
    ]
    return "\n\n".join(shown)


def flat(record: Record) -> Row:
    """A record as one line of a table: an interval takes three columns, what has no number is text."""
    out: Row = {}
    for name, value in record.as_dict().items():
        # as_dict() has made mappings of intervals.
        if isinstance(value, dict) and value.keys() == {"mean", "low", "high"}:
            out |= dict(zip(interval_columns(name), value.values(), strict=True))
        elif isinstance(value, dict):
            out |= {name: ", ".join(f"{key}={entry}" for key, entry in value.items())}
        else:
            out[name] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return out


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> DataFrame:
    """A table with whole numbers, floats or text in each column, and nothing where a row has no value.

    columns: default all, in the order of first appearance.
    """
    # Inside: pandas takes longer to import than a projection to print.
    from pandas import DataFrame, Series

    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    return DataFrame({name: Series(*_column([row.get(name) for row in rows])) for name in names})


def _column(values: list[Any]) -> tuple[list[Any], None, str]:
    """Values, no index, and the type that holds them all: text where whole numbers exceed 64 bits."""
    given = [value for value in values if value is not None]
    # type() and not isinstance(): a bool is no whole number here.
    types = {type(value) for value in given}
    numeric = bool(given) and types <= {int, float} and all(abs(v) <= LARGEST_INT for v in given if type(v) is int)
    if numeric and types == {int}:
        # NumPy's int64 has no missing values, pandas' Int64 has.
        return values, None, "int64" if len(given) == len(values) else "Int64"
    if numeric:
        return values, None, "float64"
    return [None if value is None else str(value) for value in values], None, "str"
