"""Times that a log tells as the mean over all steps so far, taken apart into those of each step.

ms-swift writes the seconds since the training began over the steps since then (``train_speed(s/it)``; swift/trainers/
patcher.py and swift/megatron/callbacks/print.py at 3602360a): warm-up, checkpoints and validation stay in it for good,
and a step that slows moves it by one part in as many as there were.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from rlsim.readers.logs.tensorboard import Scalars


def take_apart(scalars: Scalars) -> None:
    """Put seconds of single steps in place of running means."""
    for name, told in scalars.running.items():
        values, retold = dict[int, float](), dict[int, float]()
        for step, seconds in single_steps(told):
            if step in values and values[step] != seconds:
                retold.setdefault(step, values[step])
            values[step] = seconds
        scalars.values[name], scalars.retold[name] = values, retold


def single_steps(told: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """(step, its seconds), from (step, mean since the beginning) in the order in which they were told.

    A step told again ends a validation, which is none of the next step; one that comes after a later one begins a
    resumed run, whose count starts anew. Of steps that are told every few the mean over these.
    """
    out = list[tuple[int, float]]()
    usual = _gap(told)
    start, before, elapsed_s = 0, 0, 0.0
    for place, (step, mean_s) in enumerate(told):
        if place == 0 or step < before:
            # What was done before this run began nobody says: it logs every so many steps.
            start = before = max(0, step - usual)
            elapsed_s = 0.0
        now_s = mean_s * (step - start)
        if step > before and now_s >= elapsed_s:
            out.append((step, (now_s - elapsed_s) / (step - before)))
        before, elapsed_s = step, now_s
    return out


def _gap(told: Sequence[tuple[int, float]]) -> int:
    """Steps between two that are told, mostly."""
    apart = Counter(after - step for (step, _), (after, _) in pairwise(told) if after > step)
    return apart.most_common(1)[0][0] if apart else 1
