"""What a training job calls: its metrics, a record a line, in a file that ``rlsim watch`` reads.

The standard library alone: nothing of rlsim or its dependencies is loaded into a job.
"""

import importlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

WHERE = "RLSIM_LIVE"
"""Environment variable with the file of a job; without it RECORDS in the current folder."""
RECORDS = "rlsim_live.jsonl"
_failed: set[str] = set()
"""Files that could not be written; each is named in the job's log once."""


def live_report(
    metrics: Mapping[str, Any], step: int | None = None, path: str | Path | None = None, prefix: str = ""
) -> bool:
    """Append the numbers of ``metrics`` to a file as one JSON line; returns whether they were written.

    metrics: as a framework logs them, under its own names, nested or flat; tensors of one element count as numbers
    (``float`` waits for their GPU), all else is left out. step: training step; records of one step add up. path:
    default $RLSIM_LIVE, else rlsim_live.jsonl in the current folder. prefix: put before every name, as NeMo-RL's
    ``timing/train``. Never raises for what cannot be written: a diagnosis must not end a job.
    """
    target = str(path or os.environ.get(WHERE) or RECORDS)
    record = dict(_numbers(metrics, f"{prefix}/" if prefix else ""))
    if not record:
        return False
    if step is not None:
        record["_step"] = int(step)
    line = f"{json.dumps(record)}\n".encode()
    try:
        # One write to the end of the file: lines of several processes do not mix.
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            return os.write(descriptor, line) == len(line)
        finally:
            os.close(descriptor)
    except OSError as error:
        if target not in _failed:
            _failed.add(target)
            logging.getLogger("rlsim").warning("live_report: %s: %s", target, error.strerror)
        return False


def trainer_callback(path: str | Path | None = None) -> Any:
    """A ``transformers.TrainerCallback`` that reports what a trainer logs (trl, Unsloth, ms-swift), on its first rank.

    Where the trainer logs no ``step_time`` it is the mean of the steps since the last record. path: as of
    :func:`live_report`. Raises ModuleNotFoundError without transformers.
    """
    base: Any = importlib.import_module("transformers").TrainerCallback

    class LiveReport(base):  # type: ignore[misc]
        """Reports on_log; the clock runs from on_step_begin to on_step_end."""

        def __init__(self) -> None:
            self.begun_s, self.steps_s = 0.0, list[float]()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.begun_s = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps_s.append(time.perf_counter() - self.begun_s)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            timed = {"step_time": sum(self.steps_s) / len(self.steps_s)} if self.steps_s else {}
            self.steps_s.clear()
            if state.is_world_process_zero:
                live_report({**timed, **(logs or {})}, state.global_step, path)

    return LiveReport()


def _numbers(metrics: Mapping[str, Any], before: str) -> Iterator[tuple[str, float]]:
    """Finite numbers by name, names of nested mappings joined by a slash."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}/")
        elif not isinstance(value, bool | str | bytes):
            try:
                number = float(value)
            # Whatever a framework logs: tables, histograms, tensors of many elements.
            except Exception:
                continue
            if math.isfinite(number):
                yield f"{before}{name}", number
