"""A user's own measurements over imported tables: the user's win, and every row says where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from rlsim.calibration.columns import Columns, row_count, take
from rlsim.calibration.table_writing import write_table
from rlsim.files.writing import staged_folder
from rlsim.tables.files import KERNEL, LAYOUTS, METADATA, TableLayout, read_columns, read_metadata
from rlsim.units import BoolArray

OWN = "rlsim: "
"""Prefix of the kernel column of a row that the user measured."""


@dataclass(frozen=True)
class Merged:
    """Rows of one table: imported ones left, replaced and added by measured ones, and measured ones left out.

    left_out: sizes that are no node of the imported grid; there they would turn their neighbours into guesses.
    """

    imported: int
    replaced: int
    added: int
    left_out: int


def merge_tables(measured: Path, imported: Path, out: Path) -> dict[str, Merged]:
    """Write the tables of folder ``imported`` with those of folder ``measured`` over them to folder ``out``.

    Returns what became of each table's rows. Raises InputError where a folder holds no tables or ``out`` cannot be
    written.
    """
    stated, own = read_metadata(imported), read_metadata(measured)
    merged: dict[str, Merged] = {}
    with staged_folder(out) as stage:
        for layout in LAYOUTS:
            table, report = _merge(layout, read_columns(measured, layout), read_columns(imported, layout))
            if row_count(table):
                write_table(stage, layout, table)
                merged[layout.name] = report
        stated["merged"] = {
            "measured": own.get("measured", {}),
            "rows": {name: vars(report) for name, report in merged.items()},
        }
        stated.update({name: own[name] for name in ("host", "self_check") if name in own})
        text = yaml.safe_dump(stated, sort_keys=False, width=120, allow_unicode=True)
        (stage / METADATA).write_text(text, encoding="utf-8")
    return merged


def merged_text(merged: dict[str, Merged], out: Path) -> str:
    """What became of the rows, table by table."""
    lines = [f"merged tables {out}"]
    for name, rows in merged.items():
        own = f"{rows.replaced} replaced, {rows.added} added, {rows.left_out} left out (not on the imported grid)"
        lines.append(f"  {name}: {rows.imported} imported rows kept, {own}")
    return "\n".join(lines)


def _merge(layout: TableLayout, own: Columns, imported: Columns) -> tuple[Columns, Merged]:
    if not row_count(own):
        return imported, Merged(row_count(imported), 0, 0, 0)
    own = {**own, KERNEL: np.array([f"{OWN}{kernel}" for kernel in own[KERNEL]])}
    if not row_count(imported):
        return own, Merged(0, 0, row_count(own), 0)
    kept = take(own, _on_grid(layout, own, imported))
    known = set(_identities(kept, (*layout.keys, *layout.sizes)))
    overridden = np.array([row in known for row in _identities(imported, (*layout.keys, *layout.sizes))])
    rest = take(imported, ~overridden)
    table = {name: np.concatenate([rest[name], kept[name]]) for name in imported}
    replaced = int(overridden.sum())
    counts = Merged(row_count(rest), replaced, row_count(kept) - replaced, row_count(own) - row_count(kept))
    return table, counts


def _identities(table: Columns, names: Sequence[str]) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].tolist() for name in names), strict=True))


def _on_grid(layout: TableLayout, own: Columns, imported: Columns) -> BoolArray:
    """Rows whose key is new, or whose every size is a node of the imported grid of that key."""
    nodes: dict[tuple[object, ...], set[object]] = {}
    keys = _identities(imported, layout.keys)
    for size in layout.sizes:
        for key, value in zip(keys, imported[size].tolist(), strict=True):
            nodes.setdefault((*key, size), set()).add(value)
    own_keys = _identities(own, layout.keys)
    fits = [
        all((*key, size) not in nodes or own[size][row] in nodes[(*key, size)] for size in layout.sizes)
        for row, key in enumerate(own_keys)
    ]
    return np.array(fits, dtype=bool)
