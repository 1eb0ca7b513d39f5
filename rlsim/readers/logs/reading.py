"""A log of a run: its file, folder or text, the steps of it that count, and its quantities, a number by step."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mode
from typing import Literal

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.files.reading import LOG_LINES, TABLE_BYTES, TRACE_BYTES, read_bytes, shown_path, text_lines
from rlsim.loading.overrides import value_at
from rlsim.readers.logs.banners import banners_beside, contradictions, layout_contradictions
from rlsim.readers.logs.forms import SAMPLES, add_text
from rlsim.readers.logs.naming import FACTS, LESS, PHASES, TIMER, Naming, canonical, frameworks, naming_of, scale_of
from rlsim.readers.logs.retold import told_twice
from rlsim.readers.logs.rows import take_apart
from rlsim.readers.logs.tensorboard import Advance, Scalars, add_events, is_event_file, number_of
from rlsim.readers.logs.wandb import add_run_file, is_run_file
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

EVENT_FILES, RUN_FILES = "*tfevents*", "*.wandb"
TEXT_FILES = ("*.jsonl", "*.log*", "*.out", "*.txt", "*.csv", "*.json")
"""Text logs of a folder; a run that several of them hold is read in the order in which they were written."""
STDIN = Path("-")
MOST_FILES = 64
TRAINER_STEP = "train/global_step"
SAME_BATCH = 1e-6
WAITS = 0.1
"""Share of a step that a trainer waits from which on the rollout sets the pace: twice a step's noise. Convention."""
SELDOM = 0.1
"""Share of the steps up to which a part of a sum counts as one that comes and goes. Assumption."""
LONGEST_S = 1e7
"""Longest time of a step, four months; what is longer is no time in seconds."""
_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
"""Beginnings of text that PowerShell writes."""


@dataclass(frozen=True, eq=False)
class RunLog:
    """The steps of a run. steps: their numbers, increasing, shape (n,); values: seconds or tokens of each, shape (n,),
    NaN where a step does not tell them. metrics: the names that each quantity was read from, with a minus where they
    are taken off. samples: of one step, where the log states them. framework: whose names these are; waits: its
    generation is what the loop waits for. remarks: on what was left out or told twice. banners: what it names of GPU
    and releases. span: steps of the trainer that a record of the log holds, whose mean its seconds then are.
    """

    where: str
    form: str
    steps: tuple[int, ...]
    values: Mapping[str, FloatArray]
    metrics: Mapping[str, tuple[str, ...]]
    samples: float | None = None
    remarks: tuple[str, ...] = ()
    framework: str = ""
    waits: bool = False
    banners: Mapping[str, str] = field(default_factory=dict)
    span: int = 1

    def contradictions(self, scenario: Scenario) -> list[str]:
        """Remarks where the log states another number of samples, other GPUs, or another engine, model or layout than
        the scenario, and which side of an asynchronous loop sets its pace."""
        samples = scenario.workload.samples_per_step
        out = contradictions(
            self.banners, scenario.hardware.name, scenario.engine.name, scenario.released_engine.version
        )
        if self.samples and abs(self.samples / samples - 1) > SAME_BATCH:
            told = (
                f"the log has {self.samples:,.0f} samples in a step, scenario '{scenario.name}' {samples:,}: check both"
            )
            out.append(told)
        keys = ("engine.tensor_parallel", "engine.pipeline_parallel", "cluster.num_gpus")
        stated = {key: int(str(value_at(scenario, key))) for key in keys}
        pace = self._pace() if scenario.loop.mode == "async" else ""
        return [*out, *layout_contradictions(self.banners, scenario.model.name, stated), *([pace] if pace else [])]

    def _pace(self) -> str:
        """Which side sets the pace of an asynchronous loop, by the share of a step that its trainer waits."""
        if "exposed_generation" not in self.values or "step" not in self.values:
            return ""
        share = float(np.nanmedian(self.values["exposed_generation"] / self.values["step"]))
        told = f"its trainer waits for samples in {100 * share:.0f} % of a step"
        if not share < WAITS:  # NaN too
            return "" if math.isnan(share) else f"the rollout sets the pace: {told}"
        return (
            f"the trainer sets the pace: {told}, so that more GPUs for generation gain at most that; where the loop is "
            "slower than in turns all the same, look into the trainer's phases and what stands between them"
        )

    def of_loop(self, mode: Literal["sync", "async"]) -> RunLog:
        """The log of a loop of that mode: what a synchronous loop waits for is its generation, and what an
        asynchronous one does not wait for is told by no phase."""
        kept, other = ("generation", "exposed_generation") if mode == "sync" else ("exposed_generation", "generation")
        move = other in self.values and kept not in self.values and (mode == "sync" or self.waits)
        gone = not move and (mode == "sync" or self.waits or kept in self.values)
        values, metrics = dict(self.values), dict(self.metrics)
        if move:
            values[kept], metrics[kept] = values[other], metrics[other]
        if move or gone:
            values.pop(other, None)
            metrics.pop(other, None)
        return replace(self, values=values, metrics=metrics)


def read_log(path: Path, advance: Advance = lambda done, total: None) -> RunLog:
    """The log in ``path``: a file in any form of the frameworks' loggers, a folder of one (TensorBoard, MLflow, text),
    or standard input where it is ``-``.

    advance: called with (done, total) records of an event file now and then.

    Raises InputError naming file and place where it cannot be read, holds no time of a step, or one that is none.
    """
    if path == STDIN:
        return read_text_log(sys.stdin.read(TRACE_BYTES), "standard input")
    scalars = Scalars(shown_path(path))
    if not path.is_dir():
        return log_of(scalars, _added(scalars, read_bytes(path, TRACE_BYTES), path, advance))
    if (path / "metrics").is_dir() and not any(path.glob(EVENT_FILES)):
        _add_mlflow(scalars, path / "metrics")
        return log_of(scalars, "MLflow")
    return _folder(scalars, path, advance)


def read_text_log(text: str, where: str) -> RunLog:
    """The log that a text holds; ``where`` names it in messages. Raises InputError as :func:`read_log` does."""
    scalars = Scalars(where)
    return log_of(scalars, add_text(scalars, text))


def _text(content: bytes, where: str) -> str:
    """Text of a log; a character that is cut or damaged is one unknown character."""
    # utf-8-sig: editors of Windows begin a text with a mark, which would be part of the first name.
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8-sig")
    text = content.decode(encoding, errors="replace")
    if "\0" in text:
        raise InputError(f"{where}: is not a text file (it has NUL bytes)")
    return text


def _folder(scalars: Scalars, path: Path, advance: Advance) -> RunLog:
    events = sorted(path.glob(EVENT_FILES)) or sorted(path.glob(f"*/{EVENT_FILES}"))
    runs = events or sorted(path.glob(RUN_FILES))
    texts = [] if runs else [file for form in TEXT_FILES for file in path.glob(form)]
    files = runs or sorted(dict.fromkeys(texts), key=lambda file: (file.stat().st_mtime_ns, file.name))
    if not files:
        raise InputError(
            f"{shown_path(path)}: the folder holds no event files of TensorBoard ({EVENT_FILES}), no run file of wandb "
            f"({RUN_FILES}), no metrics/ of MLflow and no text log"
        )
    if len(files) > MOST_FILES:
        raise InputError(f"{shown_path(path)}: holds {len(files):,} logs; at most {MOST_FILES} are read")
    size, form = 0, ""
    for file in files:
        content = read_bytes(file, TRACE_BYTES)
        size += len(content)
        if size > TABLE_BYTES:
            raise InputError(f"{scalars.where}: files of more than {TABLE_BYTES / 2**20:,.0f} MiB are not read")
        form = _added(scalars, content, file, advance)
    return log_of(scalars, form)


def _added(scalars: Scalars, content: bytes, path: Path, advance: Advance) -> str:
    """Take the metrics of a file in; the name of its form."""
    where = shown_path(path)
    if is_event_file(content):
        add_events(scalars, content, where, advance)
        return "TensorBoard"
    if is_run_file(content):
        add_run_file(scalars, content, where)
        scalars.banners |= banners_beside(path)
        return "wandb"
    return add_text(scalars, _text(content, where))


def _add_mlflow(scalars: Scalars, folder: Path) -> None:
    """MLflow's file store: a file for each metric, of lines with a time stamp, a value and a step."""
    left = TABLE_BYTES
    for file in sorted(one for one in folder.rglob("*") if one.is_file())[: 64 * MOST_FILES]:
        content = read_bytes(file, left)
        left -= len(content)
        for _, line in text_lines(_text(content, shown_path(file)), shown_path(file), LOG_LINES):
            cells = [number_of(cell) for cell in line.split()]
            if len(cells) == 3 and cells[1] is not None and cells[2] is not None:
                scalars.add(file.relative_to(folder).as_posix(), cells[2], cells[1])


def log_of(scalars: Scalars, form: str) -> RunLog:
    """The log of metrics by name and step. Raises InputError where they hold no time of a step."""
    _gather_timers(scalars)
    take_apart(scalars)
    naming = naming_of(list(scalars.values))
    metrics = naming.metrics
    if not any(quantity in metrics for quantity in PHASES):
        listed = shortened(", ".join(list(scalars.values)[:8]) or "none", 150)
        raise InputError(
            f"{scalars.where}: no time of a step under a name that is known ({', '.join(frameworks())}); metrics: "
            f"{listed}"
        )
    steps = sorted({step for names in metrics.values() for step in scalars.values[names[0]]})
    if not steps:
        raise InputError(f"{scalars.where}: no step tells a time that can be read")
    values = {
        quantity: np.array([_value(scalars, names, step, quantity) for step in steps])
        * _whole(scalars, names, steps, naming)
        for quantity, names in metrics.items()
    }
    values = {name: one for name, one in values.items() if np.isfinite(one).any()}
    if not any(quantity in values for quantity in PHASES):
        raise InputError(f"{scalars.where}: no step tells a time that can be read")
    if (idle := values.pop("trainer_idle", None)) is not None and "step" in values:
        values.setdefault("exposed_generation", idle * values["step"])
        metrics = {"exposed_generation": metrics["trainer_idle"], **metrics}
    span = _one_step(values, values.pop("trainer_step", None), idle is not None)
    aside = _without_aside(scalars, naming, steps, values)
    samples = scalars.values.get(SAMPLES, {}).get(0)
    if samples is None and "samples" in values:
        samples = float(np.nanmedian(values["samples"]))
    used = [name for quantity in (*PHASES, *FACTS) for name in metrics.get(quantity, ()) if name[:1] != LESS]
    remarks = (*scalars.remarks, *told_twice(scalars, used), *aside)
    if form == "console":
        form = "table" if naming.framework == "rlsim" else f"console of {naming.framework}"
    return RunLog(
        scalars.where,
        form,
        tuple(steps),
        values,
        metrics,
        samples,
        remarks,
        naming.framework,
        naming.waits,
        scalars.banners,
        span,
    )


def _one_step(values: dict[str, FloatArray], counted: FloatArray | None, added_up: bool) -> int:
    """Divide times that are of several steps of the trainer by how many these are; returns how many, mostly.

    counted: number of the trainer's last step at each record; added_up: whether records add the steps between up.
    """
    if counted is None or not added_up or counted.size < 2:
        return 1
    apart = np.diff(counted)
    usual = Counter(apart[apart > 0].tolist()).most_common(1)
    if not usual or usual[0][0] <= 1:
        return 1
    span = float(usual[0][0])
    # The first record may hold fewer, and one after a restart or a lost one as many as usual.
    held = np.array([min(counted[0], span) or span, *np.where((apart > 0) & (apart <= span), apart, span)])
    for name in PHASES:
        if name in values:
            values[name] = values[name] / held
    return int(span)


def _gather_timers(scalars: Scalars) -> None:
    """Number metrics by the trainer's step where each timer has a row of its own, as trl's profiler writes them to
    wandb (huggingface/trl f2cd5771, trl/extras/profiling.py): the timers between two records of the trainer add up."""
    ends = scalars.values.get(TRAINER_STEP, {})
    timers = [name for name in scalars.values if name.startswith(TIMER)]
    apart = [row not in ends for name in timers for row in scalars.values[name]]
    if sum(apart) <= len(apart) / 2:
        return
    logged = {row for name, one in scalars.values.items() if name not in timers and canonical(name) for row in one}
    beside = sum(row in logged for name in timers for row in scalars.values[name])
    # Rows without the trainer's, whose steps nobody knows; Megatron-SWIFT's timers are in the row of what it logs
    # (swift/megatron/callbacks/wandb.py at 3602360a).
    if not ends and len(timers) > 1 and 2 * beside < len(apart):
        for name in timers:
            scalars.values.pop(name)
    if not ends:
        return
    # Above 2^53 a float no longer has every whole number.
    if wrong := [step for step in ends.values() if not 0 <= step < 2**53]:  # NaN too
        raise InputError(f"{scalars.where}: '{TRAINER_STEP}' must be a number of at least 0, got {wrong[0]:g}")
    rows = np.array(sorted(ends))
    # A trainer may log every few steps; those before the first record are as many as before the second.
    between = np.diff([ends[row] for row in rows.tolist()])
    # A row that is lost, the trainer's or of a timer, leaves sums of others.
    there = np.array(sorted({row for values in scalars.values.values() for row in values}))
    held = np.diff(np.searchsorted(there, rows)) == np.diff(rows)
    usual = max([1.0, *(one for one, _ in Counter(between[held].tolist()).most_common(1))])
    whole = np.array([True, *(held & (between == usual))])
    # What stands before the first record by more rows than one takes is of a record that is lost.
    taken = Counter(np.diff(rows)[whole[1:]].tolist()).most_common(1)
    begin = rows[0] - taken[0][0] if taken else -math.inf
    whole[0] = bool(taken) or rows.size == 1
    for name, values in scalars.values.items():
        parts: dict[int, list[float]] = {}
        for row, value in sorted(values.items()):
            if row > begin and (place := int(np.searchsorted(rows, row))) < len(rows):
                parts.setdefault(place, []).append(value)
        found = {place: one[-1] for place, one in parts.items()}
        if name in timers:
            count = mode(map(len, parts.values())) if parts else 0
            found = {p: sum(one) / usual for p, one in parts.items() if whole[p] and len(one) == count}
        scalars.values[name] = {int(ends[int(rows[place])]): value for place, value in found.items()}
    scalars.retold.clear()


def _value(scalars: Scalars, names: tuple[str, ...], step: int, quantity: str) -> float:
    """Sum of the metrics of a quantity at a step; NaN for a step without the first one, which tells nothing."""
    if step not in scalars.values[names[0]]:
        return math.nan
    total = 0.0
    for name in names:
        bare = name.removeprefix(LESS)
        value = scalars.values[bare].get(step, 0.0)
        if not 0 <= value <= LONGEST_S or (quantity in FACTS and value <= 0):
            raise InputError(f"{scalars.where}, step {step}: '{shortened(bare)}' cannot be {value:g}")
        total += (-1 if name != bare else 1) * value * scale_of(bare)
    # Timers begin and end apart: a rest of next to nothing may come out below it.
    return max(0.0, total)


def _whole(scalars: Scalars, names: tuple[str, ...], steps: list[int], naming: Naming) -> FloatArray:
    """1 for each step that tells all parts of a quantity, NaN for one without a part that others have: its record is
    cut, and the sum of the rest is no time of it. What few steps tell comes and goes, as saving does."""

    def told(bare: str) -> float:
        return scalars.told.get(bare, len(scalars.values[bare]) / len(steps))

    out, first = np.ones(len(steps)), scalars.values[names[0]]
    for bare in (name.removeprefix(LESS) for name in names[1:]):
        part, broken = scalars.values[bare], scalars.broken.get(bare, set())
        usual = bare not in naming.aside and told(bare) > SELDOM * told(names[0].removeprefix(LESS))
        out[[step in first and step not in part and (usual or step in broken) for step in steps]] = math.nan
    return out


def _without_aside(
    scalars: Scalars, naming: Naming, steps: list[int], values: dict[str, FloatArray]
) -> tuple[str, ...]:
    """Take validation and checkpoints off the steps that hold them, and remark on it.

    Whether a timer of the step holds them differs between releases: it does where steps with them take longer than the
    others by at least half of what they take.
    """
    out: list[str] = []
    if "step" not in values:
        return ()
    step_s = values["step"]
    for name in naming.aside:
        aside = np.array([scalars.values[name].get(step, 0.0) for step in steps])
        held = np.isfinite(step_s) & (aside > 0)
        others = np.isfinite(step_s) & (aside == 0)
        if not held.any() or not others.any() or name in naming.metrics.get("step", ()):
            continue
        longer = float(np.median(step_s[held]) - np.median(step_s[others]))
        if longer >= 0.5 * float(np.median(aside[held])):
            step_s[held] = np.maximum(0.0, step_s[held] - aside[held])
            out.append(f"'{name}' is taken off {np.count_nonzero(held)} steps that hold it")
    return tuple(out)
