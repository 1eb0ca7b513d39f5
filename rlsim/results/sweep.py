"""What a sweep and a plan hold, the numbers of a step as columns, and rows as tables of pandas and files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter

from rlsim.results.answer import Answer, frame_of, interval_columns
from rlsim.results.record import Interval, Number, Record, Row

if TYPE_CHECKING:
    from pandas import DataFrame

BATCH_KEYS = ("workload.prompts_per_step", "workload.generations_per_prompt")
"""Axes that change how many samples a step consumes."""
ACCEPTANCE_KEY = "speculation.acceptance_length"
DRAFT_KEYS = ("speculation.draft_length", "k")


def interval_in(row: Mapping[str, Any], name: str) -> Interval:
    """The quantity ``name`` of a row with its interval; the mean alone where the row has no ends."""
    return Interval(*(row[name] if row[each] is None else row[each] for each in interval_columns(name)))


@dataclass(frozen=True)
class Mean:
    """A number without an interval: nobody has looked at its error."""

    mean: Number
    low: None = None
    high: None = None

    def times(self, factor: float) -> Mean:
        """The number times a known ``factor``."""
        return Mean(factor * self.mean)


@dataclass(frozen=True)
class StepNumbers:
    """A scenario's step in numbers; seconds, tokens, bytes per GPU and USD, means over all replications.

    step_s: without an interval where only a search has seen the scenario. limit: the longest phase and its largest
    part. eager_share: of its engines' iterations, beyond the largest captured CUDA graph of captured_tokens, 0 without
    graphs. The baseline's numbers and the speed-ups over it are None where no baseline was asked for.
    """

    num_gpus: int
    generation_gpus: int
    training_gpus: int
    reference_gpus: int
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

    @property
    def step(self) -> Interval:
        """The step in seconds; its interval has no width where only a search has seen the scenario."""
        return self.step_s if isinstance(self.step_s, Interval) else Interval(*[self.step_s.mean] * 3)

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


class SweepResult(Answer):
    """Rows in the order of the grid: the axes, status (ok, infeasible, invalid), reason, then the numbers.

    axes: values as written by the keys that take them, separated by commas. batch: prompts per step and generations
    per prompt of the scenario, where no axis varies them. replications of each cell; own_replications: those that
    the scenario states, which other commands simulate, else 0. caveats: what the answer is said with, such as a
    guessed length. verdict: of the fastest cell, that nobody measured its device, or that one fitted term decides.
    """

    schema_: Literal["rlsim.sweep/1"] = Field(default="rlsim.sweep/1", alias="schema")
    scenario: str
    axes: dict[str, tuple[str, ...]]
    replications: int
    rows: tuple[Row, ...]
    batch: tuple[int, int] = Field(default=(1, 1), exclude=True)
    own_replications: int | None = Field(default=None, exclude=True)
    caveats: tuple[str, ...] = Field(default=(), exclude=True)
    verdict: tuple[str, ...] = ()

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
        prompts, generations = (row.get(key, stated) for key, stated in zip(BATCH_KEYS, self.batch, strict=True))
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
            # Two cells at exactly 1 have no crossing between them to divide by.
            if before <= 1.0 <= after and after > before:
                out[k] = low + (1.0 - before) / (after - before) * (high - low)
                break
    return out


def write_csv(frame: DataFrame, path: Path) -> None:
    """One line per row; numbers with 9 significant digits, nothing where a row has no value."""
    frame.to_csv(path, index=False, float_format="%.9g", lineterminator="\n")


def write_parquet(frame: DataFrame, path: Path, identity: str, scenario: str) -> None:
    """Write the rows of :func:`write_csv` with types, and in the file's metadata what they are the results of."""
    # pandas writes attrs into the footer, which can be read without the rows.
    frame.attrs |= {"identity": identity, "scenario": scenario}
    frame.to_parquet(path, index=False)


def identity_in(path: Path) -> str | None:
    """The identity that :func:`write_parquet` was given, None where the file is missing or another's."""
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
    # Whatever else lies there is no sweep of rlsim; nothing is wrong with that.
    except (OSError, ArrowInvalid, KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True)
class PlanRow:
    """One plan. overrides: what turns the scenario into it. bound_s: closed-form bound on the search's drawn work.

    replications: drawn workloads behind the numbers; those of different counts do not compare. step_p90_s: seconds that
    90 % of its steps do not exceed; None where only the search has seen it. beats_current: probability that it beats
    the scenario as it is; None where that cannot run. trainers: layouts of the trainer it was chosen from. fits:
    probability that memory suffices; None where only the search has seen it.
    """

    name: str
    overrides: Mapping[str, Any]
    bound_s: Number
    replications: int
    numbers: StepNumbers
    step_p90_s: Number | None = None
    beats_current: Number | None = None
    trainers: int = 0
    fits: Number | None = None

    @property
    def step_s(self) -> float:
        """Mean seconds of a step of the plan."""
        return self.numbers.step_s.mean

    def row(self) -> Row:
        """The plan as columns of ranked.csv and plan.json."""
        found = {"bound_s": self.bound_s, "replications": self.replications}
        drawn = {} if self.step_p90_s is None else {"step_p90_s": self.step_p90_s, "beats_current": self.beats_current}
        drawn |= {} if self.fits is None else {"fits": self.fits}
        return {"plan": self.name, **self.overrides, **found, **self.numbers.row(), **drawn}


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a flat row by field."""
    values: dict[str, Any] = {}
    for item in fields(StepNumbers):
        mean, low, high = (row.get(name) for name in interval_columns(item.name))
        ends = {} if low is None else {"low": low, "high": high}
        # step_s is a record even without ends (Mean), all others then are plain numbers.
        values[item.name] = {"mean": mean, **ends} if ends or item.name == "step_s" else mean
    return values


def _read_numbers(value: Any) -> Any:
    return TypeAdapter(StepNumbers).validate_python(_nested(value)) if isinstance(value, dict) else value


def _read_row(value: Any) -> Any:
    """The plan of a flat row, as plan.json holds it."""
    if not isinstance(value, dict):
        return value
    # The row is flat: keys of a scenario have a dot, but for the two short ones.
    overrides = {key: each for key, each in value.items() if "." in key or key in ("lag", "k")}
    given = ("bound_s", "replications", "step_p90_s", "beats_current", "fits")
    content = {"name": value.get("plan"), "overrides": overrides, "numbers": _nested(value)}
    content |= {name: value[name] for name in given if name in value}
    return TypeAdapter(PlanRow).validate_python(content)


FlatRow = Annotated[PlanRow, PlainSerializer(PlanRow.row), BeforeValidator(_read_row)]
"""A plan that files hold as one flat row."""
FlatNumbers = Annotated[StepNumbers, PlainSerializer(StepNumbers.row), BeforeValidator(_read_numbers)]


class Change(Record):
    """One stage on the way from the scenario as it is to the best plan, and the step after it."""

    what: str
    step_s: Number


class Against(Record):
    """A plan against a rival over the common draws.

    wins: share of draws in which the plan is better by the measure of the objective, equal ones counting half. ratio:
    the rival's measure (seconds of a step, or its cost or energy) over the plan's, with its 90 % interval.
    """

    rival: str
    wins: Number
    ratio: Interval


class ConstraintMet(Record):
    """A constraint and how the best plan meets it.

    limit, value: the most that is allowed and what the plan takes in the mean, in ``unit``. probability: that it is
    met; 1 where it holds by construction, None where no measurement says.
    """

    constraint: str
    limit: Number
    value: Number
    unit: str
    probability: Number | None


class Unsure(Record):
    """A layout of engine or trainer that is not offered. fits: probability that its memory suffices."""

    layout: str
    fits: Number


class Plan(Answer):
    """The answer.

    objective, statistic: what is made best; objective_value: of the best plan, in the objective's unit.
    least_probability: with which constraints hold. finalists: plans on their final numbers, best first. pareto: those
    that no other finalist beats in mean step and cost at once, cheapest first. current: the scenario as it is, None
    where it cannot run; waterfall: what drafting, layouts, split and lag bring on the way from it. against: the best
    plan against the scenario as it is and against every other finalist. considered, configurations, simulated:
    combinations looked at, valid ones, simulated ones. model, hardware, price_per_gpu_hour_usd, assumptions: of the
    scenario, as it is with the best plan. rest: plans that the search alone has seen, best first, where they were asked
    for; fit_probability: of memory, with which plans fit; current_fits: with which the scenario as it is does; unsure:
    layouts that fit less surely, the likeliest first; verdict: that memory of the scenario as it is may not suffice,
    that nobody measured the device; steps: of the run that was asked for; best_scenario: YAML of the best plan;
    changes: what to set for it. The last three and ``rest`` are not in plan.json.
    """

    schema_: Literal["rlsim.plan/3"] = Field(default="rlsim.plan/3", alias="schema")
    scenario: str
    objective: str
    statistic: str
    objective_value: Number
    least_probability: Number
    best: FlatRow
    finalists: tuple[FlatRow, ...]
    pareto: tuple[FlatRow, ...]
    current: FlatNumbers | None
    waterfall: tuple[Change, ...]
    against: tuple[Against, ...]
    constraints: tuple[ConstraintMet, ...]
    considered: int
    configurations: int
    simulated: int
    fit_probability: Number = 0.5
    current_fits: Number | None = None
    unsure: tuple[Unsure, ...] = ()
    rest: tuple[PlanRow, ...] = Field(default=(), exclude=True)
    steps: int | None = Field(default=None, exclude=True)
    model: str = ""
    hardware: str = ""
    price_per_gpu_hour_usd: Number = 0.0
    assumptions: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    best_scenario: str = Field(default="", exclude=True, repr=False)
    changes: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def ranked(self) -> tuple[PlanRow, ...]:
        """The finalists, then what the search left behind them."""
        return (*self.finalists, *self.rest)

    def to_frame(self) -> DataFrame:
        """All ranked plans as a pandas table, best first; intervals of those with final numbers alone."""
        return frame_of([row.row() for row in self.ranked])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shown = ["plan", "step_s", "step_low_s", "step_high_s", "step_p90_s", "cost_per_step_usd", "limit"]
        return str(self.to_frame().head(len(self.finalists))[shown].to_html(index=False))
