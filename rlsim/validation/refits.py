"""Published weight transfers between split pools beside those of the cost model.

The GPUs of NeMo-RL's figures are not named; its nodes have eight, and H100 is assumed.
"""

from __future__ import annotations

from rlsim.results import Interval
from rlsim.validation.halves import TableRecords
from rlsim.validation.study import PublishedFigure, published_table
from rlsim.validation.table import read_table
from rlsim.validation.transfer_rows import validate_transfers

_COLUMNS = ("id", "framework", "model", "gpu", "train_gpus", "gen_gpus", "backend", "gen_tp", "method", "refit_s")


def published_refits() -> tuple[tuple[PublishedFigure, ...], tuple[tuple[str, str], ...]]:
    """PublishedFigure transfers, and (id, reason) of those that are not simulated."""
    records = read_table(published_table("refit.csv"), _COLUMNS)
    compared, skipped = [], []
    found = validate_transfers(TableRecords("refit.csv", "", records))
    for row, record in zip(found.rows, records, strict=True):
        cell = record.cells
        if row.predicted is None or row.measured is None:
            skipped.append((row.id, str(row.skipped)))
            continue
        label = f"{row.id}: {cell['model']}, {cell['train_gpus']} + {cell['gen_gpus']} GPUs, {cell['method']}"
        group = f"refit, {cell['framework'].split()[0]}"
        interval = Interval(row.predicted, row.predicted, row.predicted)
        compared.append(PublishedFigure(group, label, "s", row.measured, interval))
    return tuple(compared), tuple(skipped)
