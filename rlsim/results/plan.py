"""What a plan answers: the best configuration, the finalists, cost against time, and how sure the order is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter

from rlsim.results.record import Interval, Number, Record, Row
from rlsim.results.sweep import StepNumbers, frame_of, interval_columns

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class PlanRow:
    """One plan. overrides: what turns the scenario into it. bound_s: closed-form bound on the search's drawn work.

    replications: drawn workloads behind the numbers; those of different counts do not compare. step_p90_s: seconds that
    90 % of its steps do not exceed; None where only the search has seen it. beats_current: probability that it beats
    the scenario as it is; None where that cannot run. trainers: layouts of the trainer it was chosen from.
    """

    name: str
    overrides: Mapping[str, Any]
    bound_s: Number
    replications: int
    numbers: StepNumbers
    step_p90_s: Number | None = None
    beats_current: Number | None = None
    trainers: int = 0

    @property
    def step_s(self) -> float:
        """Its mean step time, the one number shown of it."""
        return self.numbers.step_s.mean

    def row(self) -> Row:
        """Its columns in ranked.csv and plan.json."""
        found = {"bound_s": self.bound_s, "replications": self.replications}
        drawn = {} if self.step_p90_s is None else {"step_p90_s": self.step_p90_s, "beats_current": self.beats_current}
        return {"plan": self.name, **self.overrides, **found, **self.numbers.row(), **drawn}


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a flat row by field."""
    values: dict[str, Any] = {}
    for item in fields(StepNumbers):
        mean, low, high = (row.get(name) for name in interval_columns(item.name))
        ends = {} if low is None else {"low": low, "high": high}
        values[item.name] = {"mean": mean, **ends} if ends or item.name == "step_s" else mean
    return values


def _read_numbers(value: Any) -> Any:
    return TypeAdapter(StepNumbers).validate_python(_nested(value)) if isinstance(value, dict) else value


def _read_row(value: Any) -> Any:
    """The plan of a flat row, as plan.json holds it."""
    if not isinstance(value, dict):
        return value
    overrides = {key: each for key, each in value.items() if "." in key or key in ("lag", "k")}
    given = ("bound_s", "replications", "step_p90_s", "beats_current")
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


class Plan(Record):
    """The answer.

    objective, statistic: what is made best; objective_value: of the best plan, in the objective's unit.
    least_probability: with which constraints hold. finalists: plans on their final numbers, best first. pareto: those
    that no other finalist beats in mean step and cost at once, cheapest first. current: the scenario as it is, None
    where it cannot run; waterfall: what drafting, layouts, split and lag bring on the way from it. against: the best
    plan against the scenario as it is and against every other finalist. considered, configurations, simulated:
    combinations looked at, valid ones, simulated ones. rest: plans that the search alone has seen, best first; steps:
    of the run that was asked for; best_scenario: YAML of the best plan; changes: what to set for it. The last four are
    not in plan.json.
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
    rest: tuple[PlanRow, ...] = Field(default=(), exclude=True)
    steps: int | None = Field(default=None, exclude=True)
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
