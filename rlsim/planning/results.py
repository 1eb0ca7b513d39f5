"""What sweeps, plans and comparisons answer: records to read, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from rlsim.errors import Infeasible
from rlsim.planning.grammar import Axis
from rlsim.planning.layouts import Layout
from rlsim.planning.objective import Objective
from rlsim.planning.outlook import Against, Kept, Outlook
from rlsim.results import Interval

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]
"""A line of a table: column to number or text."""
BATCH_KEYS = ("workload.prompts_per_step", "workload.generations_per_prompt")
"""Axes that change how many samples a step consumes."""
Status = Literal["ok", "infeasible", "invalid"]


def interval_columns(name: str) -> tuple[str, str, str]:
    """Columns of the mean and the ends of the quantity ``name``: step_s, step_low_s, step_high_s."""
    stem, unit = (name[:-2], "_s") if name.endswith("_s") else (name, "")
    return name, f"{stem}_low{unit}", f"{stem}_high{unit}"


@dataclass(frozen=True)
class Mean:
    """A number without an interval: nobody has looked at its error."""

    mean: float


@dataclass(frozen=True)
class CellNumbers:
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
    acceptance_length: float
    policy_lag: int
    step_s: Interval | Mean
    data_s: float
    prepare_s: float
    generation_s: float
    logprob_s: float
    train_s: float
    refit_s: float
    exposed_generation_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    cost_per_step_usd: float
    energy_per_step_j: float
    generation_memory_bytes: float
    training_memory_bytes: float
    eager_share: float
    captured_tokens: int
    limit: str
    baseline_step_s: float | None
    baseline_cost_per_step_usd: float | None
    rollout_speedup: Interval | None
    end_to_end_speedup: Interval | None
    digest: str

    def row(self) -> Row:
        """Columns of results.csv and of plan.json; an interval takes three, with nothing in two of them where there is
        none; what is None takes none."""
        out: Row = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Interval):
                out |= zip(interval_columns(item.name), (value.mean, value.low, value.high), strict=True)
            elif isinstance(value, Mean):
                out |= zip(interval_columns(item.name), (value.mean, None, None), strict=True)
            elif value is not None:
                out[item.name] = value
        return out


@dataclass(frozen=True)
class CellResult:
    """What a cell came to: numbers, or in one line the reason why it has none.

    infeasible: the reason with the bound that was violated.
    """

    status: Status
    reason: str = ""
    numbers: CellNumbers | None = None
    infeasible: Infeasible | None = None


@dataclass(frozen=True)
class SweepResult:
    """Rows in the order of the grid: the axes, status (ok, infeasible, invalid), reason, then the numbers.

    batch: prompts per step and generations per prompt of the scenario, where no axis varies them. replications of each
    cell; own_replications: of the scenario, which other commands simulate. caveats: what the
    answer is said with, such as a guessed length.
    """

    scenario: str
    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]
    replications: int
    batch: tuple[int, int]
    own_replications: int = 0
    caveats: tuple[str, ...] = ()

    @property
    def done(self) -> list[Row]:
        """Rows of cells that can run."""
        return [row for row in self.rows if row["status"] == "ok"]

    def samples(self, row: Row) -> int:
        """Samples that a step of the cell consumes."""
        prompts, generations = (row.get(key, own) for key, own in zip(BATCH_KEYS, self.batch, strict=True))
        return int(prompts * generations)

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``."""
        return {
            "schema": "rlsim.sweep/1",
            "scenario": self.scenario,
            "axes": {",".join(axis.keys): list(axis.values) for axis in self.axes},
            "replications": self.replications,
            "rows": list(self.rows),
        }

    def to_frame(self) -> DataFrame:
        """The rows as a pandas table, axes first whatever the first rows lack."""
        from rlsim.planning.frames import frame_of

        return frame_of(
            self.rows, columns=list(dict.fromkeys(name for row in (*self.done, *self.rows) for name in row))
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shown = [*(axis.name for axis in self.axes), "status", "step_s", "rollout_speedup", "end_to_end_speedup"]
        return str(self.to_frame()[[*shown, "cost_per_step_usd", "limit"]].to_html(index=False))


@dataclass(frozen=True)
class PlanRow:
    """One plan. trainers: trainer layouts it was chosen from. bound_s: closed-form bound on the search's drawn work.

    replications: drawn workloads behind the numbers; those of different counts do not compare. near_evidence: whether
    measured runs lie near it. outlook: how it turns out over the common draws; None where only the search has seen it.
    """

    layout: Layout
    trainers: int
    bound_s: float
    numbers: CellNumbers
    replications: int
    near_evidence: bool = False
    outlook: Outlook | None = None

    @property
    def name(self) -> str:
        """The plan in a line."""
        return str(self.layout)

    @property
    def step_s(self) -> float:
        """Its mean step time, the one number shown of it."""
        return self.numbers.step_s.mean

    def as_dict(self) -> Row:
        """Flat form of tables and JSON."""
        found = {"bound_s": self.bound_s, "replications": self.replications, "near_evidence": self.near_evidence}
        seen = {} if self.outlook is None else self.outlook.columns()
        return {"plan": self.name, **self.layout.overrides(), **found, **self.numbers.row(), **seen}


@dataclass(frozen=True)
class Change:
    """One stage on the way from the scenario as it is to the best plan, and the step after it."""

    what: str
    step_s: float


@dataclass(frozen=True)
class Plan:
    """The answer.

    best, near (within 3 % of it by the objective), pareto (mean step time against cost), by_group (best of every
    cluster size and lag): plans on their final numbers. best_near: the best of those near measured runs, None where the
    search met none; against_near: the best plan against it. against: the best plan against the scenario as it is and
    against every other finalist, best rival first. constraints: how the best plan keeps them. ranked: all plans on
    their final numbers, then what the search left behind them. current (the scenario as it is, None where it cannot
    run) and waterfall (what drafting, layouts, split and lag bring on the way from it). considered, configurations,
    simulated: combinations looked at, valid ones, and simulated ones. only_near: nothing but layouts near measured runs
    was looked at.
    """

    scenario: str
    objective: Objective
    objective_value: float
    best: PlanRow
    best_near: PlanRow | None
    against_near: Against | None
    near: tuple[PlanRow, ...]
    pareto: tuple[PlanRow, ...]
    by_group: tuple[PlanRow, ...]
    ranked: tuple[PlanRow, ...]
    current: CellNumbers | None
    waterfall: tuple[Change, ...]
    against: tuple[Against, ...]
    constraints: tuple[Kept, ...]
    considered: int
    configurations: int
    simulated: int
    only_near: bool = False
    best_scenario: str = field(repr=False, default="")

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``."""
        return {
            "schema": "rlsim.plan/2",
            "scenario": self.scenario,
            "objective": self.objective.measure,
            "statistic": self.objective.statistic,
            "objective_value": self.objective_value,
            "least_probability": self.objective.confidence,
            "best": self.best.as_dict(),
            "best_near_evidence": self.best_near.as_dict() if self.best_near is not None else None,
            "against_near_evidence": self.against_near.as_dict() if self.against_near is not None else None,
            "near": [row.as_dict() for row in self.near],
            "pareto": [row.as_dict() for row in self.pareto],
            "by_group": [row.as_dict() for row in self.by_group],
            "current": self.current.row() if self.current is not None else None,
            "waterfall": [vars(change) for change in self.waterfall],
            "against": [item.as_dict() for item in self.against],
            "constraints": [vars(item) for item in self.constraints],
            "considered": self.considered,
            "configurations": self.configurations,
            "simulated": self.simulated,
            "exhaustive": True,  # once there were sampled searches
            "only_near_evidence": self.only_near,
        }

    def to_frame(self) -> DataFrame:
        """All ranked plans as a pandas table, best first; intervals and outlooks of those with final numbers alone."""
        from rlsim.planning.frames import frame_of

        return frame_of([row.as_dict() for row in self.ranked])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        near = self.to_frame().head(len(self.near))
        shown = ["plan", "step_s", "step_low_s", "step_high_s", "step_p90_s", "cost_per_step_usd", "limit"]
        return str(near[shown].to_html(index=False))


@dataclass(frozen=True)
class PhaseChange:
    """Seconds that a phase adds to the step of A and of B. share: of the difference of the steps."""

    phase: str
    before_s: float
    after_s: float
    share: float | None


@dataclass(frozen=True)
class Comparison:
    """B against A. differences: dotted key -> (value in A, value in B); None where a side lacks the key.

    modes: sync or async; of an asynchronous one ``phases`` holds the exposed generation, which the trainer waits for.
    paired: both drew the same work, so that ``speedup`` (step of A over step of B) is taken replication by replication.
    """

    names: tuple[str, str]
    modes: tuple[str, str]
    differences: Mapping[str, tuple[Any, Any]]
    step_s: tuple[Interval, Interval]
    speedup: Interval
    paired: bool
    phases: tuple[PhaseChange, ...]
    cost_per_step_usd: tuple[float, float]
    energy_per_step_j: tuple[float, float]
    price_per_gpu_hour_usd: tuple[float, float]
    warnings: tuple[str, ...] = ()

    @property
    def explains(self) -> PhaseChange | None:
        """The phase with the largest difference; None where nothing differs."""
        largest = max(self.phases, key=lambda change: abs(change.after_s - change.before_s))
        return largest if largest.after_s != largest.before_s else None

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``."""
        return {
            "schema": "rlsim.comparison/1",
            "scenarios": list(self.names),
            "differences": {key: list(pair) for key, pair in self.differences.items()},
            "step_s": [quantity.as_dict() for quantity in self.step_s],
            "speedup": self.speedup.as_dict(),
            "paired": self.paired,
            "phases": [vars(change) for change in self.phases],
            "explained_by": self.explains.phase if self.explains else None,
            "cost_per_step_usd": list(self.cost_per_step_usd),
            "energy_per_step_j": list(self.energy_per_step_j),
            "price_per_gpu_hour_usd": list(self.price_per_gpu_hour_usd),
            "warnings": list(self.warnings),
        }
