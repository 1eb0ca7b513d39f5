"""What published runs reached: MFU of training steps, and memory bandwidth use of engine iterations.

``python -m research.efficiency`` writes calibration/efficiency.csv, by phase, model, device and precision: same tables,
same bytes.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from rlsim.costs.efficiency import iteration_bytes, peak_flops, update_flops
from rlsim.costs.memory import engine_memory
from rlsim.errors import RlsimError
from rlsim.evidence.engines import engine_setup, load_of
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import SkippedRow, Table, measured_value
from rlsim.evidence.training import MEASURED, trainer_row
from rlsim.files.reading import data_folder
from rlsim.projection.efficiency import TABLE
from rlsim.results.efficiency import MeasuredEfficiency

MOST_SHARE = 1.05
"""Largest share that a row may have; what exceeds it states another batch than it measured."""
Key = tuple[str, str, str, str]
"""Phase, model, device and precision."""


def training_shares(table: Table) -> Iterator[tuple[Key, float, str]]:
    """MFU of every measured training step that can be described, and the id of its row."""
    for row in table.rows:
        cells = row.cells
        try:
            seconds, found = measured_value(cells, *MEASURED), trainer_row(cells)
            scenario = found.scenario
            work = update_flops(scenario, found.batch.total_tokens.astype(np.float64)).model
            peak = peak_flops(scenario, training=True)
        except (SkippedRow, RlsimError, KeyError, ValueError):
            continue
        if seconds:
            share = work / seconds / scenario.cluster.num_gpus / peak
            yield ("train", scenario.model.name, scenario.hardware.name, scenario.trainer.precision), share, cells["id"]


def decode_shares(table: Table) -> Iterator[tuple[Key, float, str]]:
    """Bandwidth use of every measured iteration without drafts, and the id of its row."""
    for row in table.rows:
        cells = row.cells
        try:
            load = load_of(cells)
            setup = engine_setup(cells, load)
            memory = engine_memory(setup).parts
        except (SkippedRow, RlsimError, KeyError, ValueError):
            continue
        step_ms = measured_value(cells, "decode_step_ms_est", "tpot_ms")
        if step_ms is None or setup.speculation.active:
            continue
        batch, context = np.array([load.batch]), np.array([load.context_tokens])
        read = float(iteration_bytes(setup, memory, batch, context)[0])
        share = read / (1e-3 * step_ms) / setup.hardware.memory_bandwidth_bytes_per_s.value
        yield ("decode", setup.model.name, setup.hardware.name, setup.engine.weight_precision), share, cells["id"]


def measured_efficiency() -> list[MeasuredEfficiency]:
    """Median and best share by phase, model, device and precision of all published runs, and of all models together."""
    found: dict[Key, list[tuple[float, str]]] = defaultdict(list)
    for key, share, name in (
        *training_shares(Table.read(published_table("training_steps.csv"))),
        *decode_shares(Table.read(published_table("iterations.csv"))),
    ):
        if 0.0 < share <= MOST_SHARE:
            phase, _, device, precision = key
            found[key].append((share, name))
            found[phase, "any", device, precision].append((share, name))
    names = ("phase", "model", "device", "precision")
    return [
        MeasuredEfficiency(
            **dict(zip(names, key, strict=True)),
            runs=len(shares),
            median=float(np.median([share for share, _ in shares])),
            best=max(shares)[0],
            best_run=max(shares)[1],
        )
        for key, shares in sorted(found.items())
    ]


def efficiency_table() -> str:
    """The table as text."""
    rows = [one.as_dict() for one in measured_efficiency()]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "median": f"{row['median']:.4f}", "best": f"{row['best']:.4f}"} for row in rows)
    return out.getvalue()


if __name__ == "__main__":
    (data_folder("calibration") / TABLE).write_text(efficiency_table(), encoding="utf-8", newline="\n")
