"""What a sweep holds, the numbers of one scenario's step as columns, and rows as tables of pandas and files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rlsim.results.record import Interval, Number, Record, Row

if TYPE_CHECKING:
    from pandas import DataFrame

BATCH_KEYS = ("workload.prompts_per_step", "workload.generations_per_prompt")
"""Axes that change how many samples a step consumes."""
ACCEPTANCE_KEY = "speculation.acceptance_length"
DRAFT_KEYS = ("speculation.draft_length", "k")


def interval_columns(name: str) -> tuple[str, str, str]:
    """Columns of the mean and the ends of the quantity ``name``: step_s, step_low_s, step_high_s."""
    stem, unit = (name[:-2], "_s") if name.endswith("_s") else (name, "")
    return name, f"{stem}_low{unit}", f"{stem}_high{unit}"


def interval_in(row: Mapping[str, Any], name: str) -> Interval:
    """The quantity ``name`` of a row with its interval; the mean alone where the row has no ends."""
    return Interval(*(row[name] if row[each] is None else row[each] for each in interval_columns(name)))


@dataclass(frozen=True)
class Mean:
    """A number without an interval: nobody has looked at its error."""

    mean: Number
    low: None = None
    high: None = None


@dataclass(frozen=True)
class StepNumbers:
    """A scenario's step in numbers; seconds, tokens, bytes per GPU and USD, means over all replications.

    step_s: without an interval where only a search has seen the scenario. limit: the longest phase and its largest
    part. eager_share: of its engines' iterations, beyond the largest captured CUDA graph of captured_tokens. The
    baseline's numbers and the speed-ups over it are None where no baseline was asked for.
    """

    num_gpus: int
    generation_gpus: int
    training_gpus: int
    method: str
    draft_length: int
    acceptance_length: Number
    policy_lag: int
    step_s: Interval | Mean
    data_s: Number
    prepare_s: Number
    generation_s: Number
    logprob_s: Number
    train_s: Number
    refit_s: Number
    exposed_generation_s: Number
    tokens_per_s: Number
    tokens_per_s_per_gpu: Number
    cost_per_step_usd: Number
    energy_per_step_j: Number
    generation_memory_bytes: Number
    training_memory_bytes: Number
    eager_share: Number
    captured_tokens: int
    limit: str
    baseline_step_s: Number | None
    baseline_cost_per_step_usd: Number | None
    rollout_speedup: Interval | None
    end_to_end_speedup: Interval | None
    digest: str

    def row(self) -> Row:
        """Columns of results.csv and of plan.json; an interval takes three, with nothing in two of them where there is
        none; what is None takes none."""
        out: Row = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Interval | Mean):
                out |= zip(interval_columns(item.name), (value.mean, value.low, value.high), strict=True)
            elif value is not None:
                out[item.name] = value
        return out


class SweepResult(Record):
    """Rows in the order of the grid: the axes, status (ok, infeasible, invalid), reason, then the numbers.

    axes: values as written by the keys that take them, separated by commas. batch: prompts per step and generations
    per prompt of the scenario, where no axis varies them. replications of each cell; own_replications: of the scenario,
    which other commands simulate. caveats: what the answer is said with, such as a guessed length.
    """

    schema_: Literal["rlsim.sweep/1"] = Field(default="rlsim.sweep/1", alias="schema")
    scenario: str
    axes: dict[str, tuple[str, ...]]
    replications: int
    rows: tuple[Row, ...]
    batch: tuple[int, int] = Field(default=(1, 1), exclude=True)
    own_replications: int = Field(default=0, exclude=True)
    caveats: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Values of each axis by its column: its first key."""
        return {keys.partition(",")[0]: values for keys, values in self.axes.items()}

    @property
    def batch_varies(self) -> bool:
        """Whether cells consume different numbers of samples."""
        return any(key in BATCH_KEYS for keys in self.axes for key in keys.split(","))

    @property
    def done(self) -> list[Row]:
        """Rows of cells that can run."""
        return [row for row in self.rows if row["status"] == "ok"]

    def samples(self, row: Row) -> int:
        """Samples that a step of the cell consumes."""
        prompts, generations = (row.get(key, own) for key, own in zip(BATCH_KEYS, self.batch, strict=True))
        return int(prompts * generations)

    def to_frame(self) -> DataFrame:
        """The rows as a pandas table, axes first whatever the first rows lack."""
        return frame_of(
            self.rows, columns=list(dict.fromkeys(name for row in (*self.done, *self.rows) for name in row))
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shown = [*self.columns, "status", "step_s", "rollout_speedup", "end_to_end_speedup"]
        return str(self.to_frame()[[*shown, "cost_per_step_usd", "limit"]].to_html(index=False))


def break_even_lengths(rows: Sequence[Row], draft: str, column: str = "rollout_speedup") -> dict[Any, float]:
    """Acceptance length at which ``column`` crosses 1, by value of the ``draft`` axis; linear between cells.

    rows: cells that ran, with one acceptance length each. Drafts whose cells stay on one side of 1 have no entry.
    """
    out: dict[Any, float] = {}
    for k in sorted({row[draft] for row in rows}):
        points = sorted((row[ACCEPTANCE_KEY], row[column]) for row in rows if row[draft] == k)
        for (low, before), (high, after) in itertools.pairwise(points):
            if before <= 1.0 <= after and after > before:
                out[k] = low + (1.0 - before) / (after - before) * (high - low)
                break
    return out


LARGEST_INT = 2**63 - 1


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> DataFrame:
    """A table with whole numbers, floats or text in each column, and nothing where a row has no value.

    columns: default all, in the order of first appearance.
    """
    from pandas import DataFrame, Series

    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    return DataFrame({name: Series(*_column([row.get(name) for row in rows])) for name in names})


def _column(values: list[Any]) -> tuple[list[Any], None, str]:
    """Values, no index, and the type that holds them all: text where whole numbers exceed 64 bits."""
    given = [value for value in values if value is not None]
    types = {type(value) for value in given}
    numeric = bool(given) and types <= {int, float} and all(abs(v) <= LARGEST_INT for v in given if type(v) is int)
    if numeric and types == {int}:
        return values, None, "int64" if len(given) == len(values) else "Int64"
    if numeric:
        return values, None, "float64"
    return [None if value is None else str(value) for value in values], None, "str"


def write_csv(frame: DataFrame, path: Path) -> None:
    """One line per row; numbers with 9 significant digits, nothing where a row has no value."""
    frame.to_csv(path, index=False, float_format="%.9g", lineterminator="\n")


def write_parquet(frame: DataFrame, path: Path, identity: str, scenario: str) -> None:
    """The same rows with types, and in the file's metadata what they are the results of."""
    frame.attrs |= {"identity": identity, "scenario": scenario}
    frame.to_parquet(path, index=False)


def identity_in(path: Path) -> str | None:
    """What :func:`write_parquet` was given, None where the file is missing or none of its own."""
    return _attribute(path, "identity")


def scenario_in(path: Path) -> str:
    """The name of the scenario that :func:`write_parquet` was given, else that of the folder."""
    return _attribute(path, "scenario") or path.resolve().parent.name


def _attribute(path: Path, name: str) -> str | None:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_schema

    try:
        known = json.loads(read_schema(path).metadata[b"pandas"])
        return str(known["attributes"][name])
    except (OSError, ArrowInvalid, KeyError, TypeError, ValueError):
        return None
