"""How far published memory lies from what is counted: ``python -m research.memory_spread``.

Deviations of engines' caches (GiB of a GPU, dense models and mixtures of experts) and of trainers' peaks (logarithm),
with the median of their size and their root mean square; of trainers by framework too. What it prints are value and
residual of ``spread`` in rlsim/costs/memory.yaml: no term follows a framework, so that leaving one out changes none.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from rlsim.costs.memory import engine_spread
from rlsim.evidence.compare import validate_table
from rlsim.evidence.memory.scenarios import engine_row
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import Kind, read_table
from rlsim.units import GIB

_ENDS = 1.645
"""Standard deviations to the ends of the intervals of the table."""


def main() -> None:
    """Print the spreads."""
    path = published_table("memory/rows.csv")
    cells = {record.cells["id"]: record.cells for record in read_table(path, ("id", "kind"))}
    found: dict[str, list[float]] = defaultdict(list)
    for row in validate_table(path, Kind.MEMORY).rows:
        if row.predicted is None or row.measured is None or row.low is None or row.high is None:
            continue
        if row.group == "engine cache":
            # The interval is that of the spread, in the row's unit.
            scenario = engine_row(cells[row.id], 1024)
            kind = "dense" if scenario.model.moe is None else "experts"
            unit = (row.predicted - row.low) / _ENDS / engine_spread(scenario)
            found[f"cache, {kind}, GiB"].append((row.measured - row.predicted) / unit / GIB)
        elif row.group == "trainer peak":
            away = math.log(row.measured / row.predicted)
            found["trainer"].append(away)
            found[f"trainer, {row.details['framework']}"].append(away)
    for name, values in sorted(found.items()):
        size = np.abs(values)
        print(
            f"{name}: rows {len(values)}, rms {np.sqrt(np.mean(np.square(values))):.3f}, median {np.median(size):.3f}"
        )


if __name__ == "__main__":
    main()
