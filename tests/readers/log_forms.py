"""Records of runs as each framework prints or writes them (benchmarks/framework_logs.py), and what they say.

Numbers are made up; they have as many digits as every format prints.
"""

import json
from collections.abc import Callable, Mapping

from benchmarks.framework_logs import CONSOLES, ROWS, Writer

Made = tuple[str, Mapping[str, float]]
LEVEL = {"generation": 30.25, "logprob": 6.0, "train": 14.0, "refit": 6.5, "data": 0.5, "prompt_tokens": 107.0,
         "response_tokens": 700.5}  # fmt: skip


def written(writer: Writer, told: frozenset[str]) -> Callable[[int], Made]:
    """Records of a writer, and which of their numbers it tells."""

    def made(n: int) -> Made:
        step = {"step": 60.25 + n, **LEVEL}
        return writer(n, step), {name: value for name, value in step.items() if name in told}

    return made


def lines_of(metrics: Mapping[str, float]) -> Callable[[int], Made]:
    """JSON lines with a step and the same metrics, the first of which is the step's time."""

    def made(n: int) -> Made:
        first = next(iter(metrics))
        row = {"step": n} | metrics | {first: metrics[first] + n}
        return json.dumps(row) + "\n", {"step": metrics[first] + n}

    return made


FORMS: Mapping[str, Callable[[int], Made]] = {
    **{name: written(*one) for name, one in (CONSOLES | ROWS).items()},
    "JSON of slime": lines_of({"perf/step_time": 40, "perf/train_wait_time": 20, "perf/actor_train_time": 15}),
    "JSON of trl": lines_of({"train/step_time": 40, "train/completions/mean_length": 20}),
    "JSON of OpenRLHF": lines_of({"train/timing/step_total": 40, "train/timing/generation": 20}),
    "JSON of ROLL": lines_of({"time/step_total": 40, "time/step_generate": 20}),
}
