"""How far published memory lies from what is counted: ``python -m research.memory_spread``.

Deviations of engines' caches (GiB, of GPUs that share experts and of others) and of trainers' peaks (logarithm),
with the median of their size and their root mean square; of trainers by framework and all frameworks alike. What it
prints are value and residual of ``spread`` in rlsim/costs/memory.yaml.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rlsim.evidence.memory.left_out import ENGINES, TRAINERS, framework_spread, known_rows


def main() -> None:
    """Print the spreads."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in known_rows():
        if row.kind == ENGINES:
            found[f"cache, {'shared experts' if row.shares_experts else 'others'}, GiB"].append(row.away)
        elif row.kind == TRAINERS:
            found["trainer"].append(row.away)
            found[f"trainer, {row.cells['framework']}"].append(row.away)
    for name, values in sorted(found.items()):
        size = np.abs(values)
        print(
            f"{name}: rows {len(values)}, rms {np.sqrt(np.mean(np.square(values))):.3f}, median {np.median(size):.3f}"
        )
    trainers = [row for row in known_rows() if row.kind == TRAINERS]
    print(f"trainer, frameworks alike: {framework_spread(trainers):.3f}")
    for name in sorted({row.cells["framework"] for row in trainers}):
        print(f"trainer, {name}, pooled with all: {framework_spread(trainers, name):.3f}")


if __name__ == "__main__":
    main()
