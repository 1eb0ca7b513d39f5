"""Steps that a log tells more than once: after a restart, or because it holds several runs."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.readers.logs.tensorboard import Scalars

FEWEST = 3
"""Steps told twice from which on their median tells runs apart."""
APART = 1.3
"""Times by which that median differs between two runs. A run that starts again repeats its own; two runs whose steps
take as long are told as one that did. Assumption."""


def told_twice(scalars: Scalars, metrics: Sequence[str]) -> tuple[str, ...]:
    """A remark where steps of ``metrics`` are told again with other values, by the first of them that is.

    Raises InputError where they begin again at the first step and take another time throughout: these are several runs.
    """
    for name in metrics:
        before = {step: value for step, value in scalars.retold.get(name, {}).items() if math.isfinite(value)}
        now = scalars.values[name]
        if before and all(math.isfinite(now[step]) for step in before):
            return (_told(scalars, name, before, now),)
    return ()


def _told(scalars: Scalars, name: str, before: Mapping[int, float], now: Mapping[int, float]) -> str:
    """The remark on one metric."""
    steps = sorted(before)
    first, last = (float(np.median([values[step] for step in steps])) for values in (before, now))
    which = f"step {steps[0]} is" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]} are"
    values = f"'{shortened(name)}' {first:.4g}, then {last:.4g}{' in the median' if len(steps) > 1 else ''}"
    anew = steps[0] in sorted(now)[:2] and len(steps) >= FEWEST
    if anew and max(first, last) > APART * min(first, last):
        raise InputError(f"{scalars.where}: holds several runs ({which} told twice: {values}); give one of them alone")
    return f"{which} told twice, as after a restart, and counted as told last ({values}); of two runs give one alone"
