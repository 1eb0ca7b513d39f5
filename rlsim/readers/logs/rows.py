"""Rows of metrics, as JSON, CSV and wandb hold them, the number of the step that each is of, and means over all steps
so far as seconds of single ones.

ms-swift writes the seconds since the training began over the steps since then (``train_speed(s/it)``; swift/trainers/
patcher.py and swift/megatron/callbacks/print.py at 3602360a): warm-up, checkpoints and validation stay in it for good,
and a step that slows moves it by one part in as many as there were.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rlsim.errors import InputError
from rlsim.readers.logs.naming import TIMER, canonical, of_one_process
from rlsim.readers.logs.tensorboard import Scalars, decimal_commas, number_of

ROW = "_step"
"""wandb's own count: of the rows of a trainer that logs several a step (slime, prime-rl), of the steps of any other."""
OWN = ("rollout/step", "step", "Step", "train/global_step", "global_step")
"""Keys with the trainer's count: slime's (slime/observability/rollout_metrics.py at 624b824a, wandb.log without a
step), prime-rl's (monitors/wandb/monitor.py at 559b4477), and that of transformers and OpenRLHF."""
LATER = ("trainer/global_step", "training/global_step", "iteration", "global_step/max_steps")
"""Keys that count what may be a part of a step, as verl's fully asynchronous trainer does."""
NESTED = ("data", "metrics")
"""Keys under which verl's file logger and ROLL's tracker keep the metrics of a step."""
RUN = " - "
"""What stands between the run and the metric in columns of a chart that wandb exports."""
_SIDES = ("__MIN", "__MAX")
"""Endings of columns that wandb adds to each metric of an exported chart."""


class Rows:
    """Metrics by row, each with the number of its step, where it has one."""

    def __init__(self, scalars: Scalars) -> None:
        self.scalars = scalars
        self.found: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []

    def take(self, row: Mapping[str, Any]) -> None:
        """A row as it was read."""
        values = next((row[name] for name in NESTED if isinstance(row.get(name), Mapping)), row)
        told = {name: value for name, value in values.items() if name != ROW and not name.endswith(_SIDES)}
        # wandb's exports of charts name the run before the metric.
        parted = [name.rpartition(RUN) for name in told]
        clean = {name.strip(): value for (_, _, name), value in zip(parted, told.values(), strict=True)}
        runs = {run.strip() for run, dash, name in parted if dash and canonical(name) is not None}
        if len(clean) < len(told) or len(runs) > 1:
            raise InputError(f"{self.scalars.where}: holds several runs (columns 'RUN - METRIC'); export one of them")
        self.keep(row, clean)

    def keep(self, row: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """The metrics of a row, whose number of a step is one of its keys."""
        steps = {name: row[name] for name in (*OWN, ROW, *LATER) if name in row}
        self.found.append((steps, of_one_process(metrics)))

    def add(self) -> None:
        """Put all rows into the scalars: where any has the number of a step, those without are left out."""
        comma = decimal_commas(value for _, row in self.found for value in row.values())
        keys = self._keys()
        rows = [(_number(steps, keys, comma), row) for steps, row in self.found]
        numbered = any(step is not None for step, _ in rows)
        left = 0
        for count, (step, row) in enumerate(rows, start=1):
            if step is None and numbered:
                # Rows of something else, as of an evaluation, are none that anybody misses.
                left += any(canonical(name) is not None for name in row)
                continue
            self.scalars.add_all(float(count) if step is None else step, row, comma)
        if left:
            self.scalars.remarks.append(f"{left} of {len(rows)} rows have no number of a step and are left out")

    def _keys(self) -> Sequence[str]:
        """Keys that may hold the number of a step, the first that a row has counting."""
        known = [(steps, row) for steps, row in self.found if any(canonical(name) is not None for name in row)]
        # Each timer that trl profiles has a row of its own, which says nothing of the trainer's step (reading.py).
        if any(name.startswith(TIMER) for _, row in known for name in row):
            return (ROW, *OWN, *LATER)
        own = sum(any(name in steps for name in OWN) for steps, _ in known)
        return (*OWN, *LATER) if known and 2 * own >= len(known) else (ROW, *LATER, *OWN)


def _number(steps: Mapping[str, Any], keys: Sequence[str], comma: bool) -> float | None:
    given = next((name for name in keys if name in steps), None)
    return None if given is None else number_of(str(steps[given]).partition("/")[0], comma)


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
