"""A benchmark of predicted RL steps: scores of anybody's predictions, and baselines that fit nothing."""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlsim.costs.engine.hosts import NO_HOST
from rlsim.costs.engine.prices import decode_points_of_hosts_s
from rlsim.costs.prices import PriceInputs
from rlsim.errors import InputError, RlsimError
from rlsim.evidence.steps import PROMPT_TOKENS, scenario_of
from rlsim.evidence.tables import Row, SkippedRow, read_table
from rlsim.files.reading import shown_path
from rlsim.results.record import P90_DEVIATIONS
from rlsim.results.site import BenchmarkScore
from rlsim.results.validation import Score

MEASURED = "total_step_time_s"
SAME_QUESTION = ("model", "gpu", "num_gpus", "prompts_per_step", "generations_per_prompt", "max_seq_len")
"""Rows equal in these answer one question in different ways: layout, precision, release, asynchrony."""
PARAMETERS = {"DeepSeek-V3": (671e9, 37e9)}
"""All and active parameters of models whose names do not tell them (arXiv 2412.19437)."""
PEAKS = {"h100": (989e12, 3.35e12), "gb200": (2450e12, 8.0e12)}
"""BF16 FLOP/s without sparsity and bytes/s of HBM, datasheets."""
TRAINING_SHARE, DECODE_SHARE = 0.4, 0.5
"""Shares of both peaks that a practitioner assumes; passes of the policy: 2 FLOPs a parameter and token forward, 6 an
update. Nothing is fitted."""


def number(row: Row, *columns: str) -> float | None:
    """The first of some columns that holds a number; None where none does."""
    for column in columns:
        try:
            return float(row.get(column) or "")
        except ValueError:
            continue
    return None


def crps(log_error: float, deviation: float) -> float:
    """Continuous ranked probability score of ln(measured / predicted), normal around 0 (Gneiting and Raftery 2007,
    section 4.2); of a prediction without an interval the absolute error."""
    if not deviation:
        return abs(log_error)
    z = log_error / deviation
    density, below = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), math.erf(z / math.sqrt(2))
    return deviation * (z * below + 2 * density - 1 / math.sqrt(math.pi))


def regret(rows: Sequence[tuple[Row, float, float]]) -> tuple[float, int]:
    """How much longer the configuration that looks fastest takes than the fastest one, mean over questions with more
    than one measured answer, and their number. rows: cells, measured, predicted."""
    questions = defaultdict(list)
    for cells, measured, predicted in rows:
        questions[tuple(cells.get(column, "") for column in SAME_QUESTION)].append((predicted, measured))
    lost = [min(one)[1] / min(each[1] for each in one) - 1 for one in questions.values() if len(one) > 1]
    return (statistics.mean(lost) if lost else 0.0), len(lost)


def cells_of(path: Path, *columns: str) -> list[Row]:
    """Rows of a table that has these columns. Raises InputError."""
    return [row.cells for row in read_table(path, columns) if not row.problem]


def score(predictions: Path, steps: Path) -> BenchmarkScore:
    """Errors, coverage, CRPS and regret of a file of predictions.

    predictions: with the columns id, predicted_s, low_s, high_s (the ends of a 90 % interval, blank without), or the
    rows.csv of a validation. steps: the measured ones. Raises InputError where no row is of a measured step.
    """
    measured = {row["id"]: (row, time) for row in cells_of(steps, "id", MEASURED) if (time := number(row, MEASURED))}
    rows, widths, held, scores = list[tuple[Row, float, float]](), list[float](), list[bool](), list[float]()
    for row in cells_of(predictions, "id"):
        found, predicted = measured.get(row["id"]), number(row, "predicted_s", "predicted")
        if found is None or predicted is None:
            continue
        if predicted <= 0:
            raise InputError(f"{shown_path(predictions)}: {row['id']}: predicted_s must be above 0")
        cells, time = found
        rows.append((cells, time, predicted))
        low, high = number(row, "low_s", "low") or 0.0, number(row, "high_s", "high") or 0.0
        deviation = 0.0
        if 0 < low <= high:
            held.append(low <= time <= high)
            widths.append((high - low) / 2 / predicted)
            deviation = math.log(high / low) / (2 * P90_DEVIATIONS)
        scores.append(crps(math.log(time / predicted), deviation))
    if not rows:
        raise InputError(f"{shown_path(predictions)}: no row has an id of {steps.name} and a number in predicted_s")
    errors = Score.of_errors([predicted / time - 1 for _, time, predicted in rows])
    lost, questions = regret(rows)
    return BenchmarkScore(
        rows=len(rows), of=len(measured), median_abs_error=errors.median_abs_error or 0.0,
        p90_abs_error=errors.p90_abs_error or 0.0, bias=errors.bias or 0.0,
        coverage=sum(held) / len(held) if held else None, half_width=statistics.median(widths) if widths else None,
        crps=statistics.mean(scores), regret=lost, questions=questions,
    )  # fmt: skip


class Question(NamedTuple):
    """What a baseline needs of a row. flops, bandwidth: peaks of a GPU, per second; whole, active: parameters;
    samples, tokens: of a step, in the mean; parallel: GPUs of a replica of the engine; batch: samples of one."""

    flops: float
    bandwidth: float
    whole: float
    active: float
    samples: float
    tokens: float
    parallel: float
    batch: float
    training_gpus: float


def question_of(row: Row) -> Question | None:
    """What a row asks; None where it does not tell enough."""
    device, sizes = PEAKS.get(row["gpu"].lower()), PARAMETERS.get(row["model"]) or billions(row["model"])
    gpus, samples, tokens = number(row, "num_gpus"), number(row, "rollout_batch"), number(row, "avg_seq_len")
    if device is None or sizes is None or gpus is None or samples is None or tokens is None:
        return None
    parallel = number(row, "gen_tp") or 1.0
    batch = samples / max(1.0, (number(row, "gen_gpus") or gpus) / parallel)
    return Question(*device, *sizes, samples, tokens, parallel, batch, number(row, "train_gpus") or gpus)


def by_hand(row: Row) -> float | None:
    """Seconds of a step from a roofline on the back of an envelope; None where the row does not tell enough."""
    asked = question_of(row)
    if asked is None:
        return None
    # A replica reads its weights once for each token of its longest sample, here all alike, and computes the batch's.
    read_s = 2 * asked.whole / (asked.parallel * DECODE_SHARE * asked.bandwidth)
    compute_s = 2 * asked.active * asked.batch / (asked.parallel * TRAINING_SHARE * asked.flops)
    return _with_training(row, asked, asked.tokens * max(read_s, compute_s))


def by_operators(row: Row) -> float | None:
    """Seconds of a step from AIConfigurator's operator tables for decoding a full batch at the mean context (its static
    mode: no host, no waits, no lengths that differ) and the formula for training; None where something lacks."""
    asked = question_of(row)
    if asked is None:
        return None
    try:
        scenario = scenario_of(row)
        context = np.array([PROMPT_TOKENS + asked.tokens / 2])
        batch = np.array([math.ceil(asked.batch)])
        each_s = decode_points_of_hosts_s(PriceInputs(scenario).engine, [NO_HOST], batch, context)[0, 0]
    except (RlsimError, SkippedRow):
        return None
    return _with_training(row, asked, asked.tokens * float(each_s))


def _with_training(row: Row, asked: Question, generation_s: float) -> float:
    """Seconds of the step: generation and the trainer's passes by formula, one after the other or beside each other."""
    passes = 6 + 2 * (row.get("prev_logprobs_recomputed") == "true") + 2 * (row.get("reference_logprobs") == "true")
    peak = asked.training_gpus * TRAINING_SHARE * asked.flops
    train_s = passes * asked.active * asked.samples * asked.tokens / peak
    return max(generation_s, train_s) if row.get("async_engine") == "true" else generation_s + train_s


def billions(model: str) -> tuple[float, float] | None:
    """All and active parameters by a model's name."""
    found = re.search(r"(\d+(?:\.\d+)?)B(?:-A(\d+(?:\.\d+)?)B)?", model)
    return None if found is None else (float(found[1]) * 1e9, float(found[2] or found[1]) * 1e9)


BASELINES: Mapping[str, Callable[[Row], float | None]] = {"by-hand": by_hand, "operators": by_operators}


def baseline(name: str, steps: Path) -> str:
    """A file of predictions by a baseline. Raises InputError where it has no such name."""
    if name not in BASELINES:
        raise InputError(f"{name}: no such baseline; there are {', '.join(BASELINES)}")
    found = {row["id"]: BASELINES[name](row) for row in cells_of(steps, "id", "gpu", "model")}
    lines = [f"{row},{time_s:.4g},," for row, time_s in found.items() if time_s is not None]
    return "\n".join(["id,predicted_s,low_s,high_s", *lines]) + "\n"
