"""A run as data: what ``run`` returns, what its report reads and what run.json and steps.csv hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from rlsim.results.projection import PHASES, About, Side, TokenLedger
from rlsim.results.record import Interval, Record, Rounded

if TYPE_CHECKING:
    from typing import Self

    from pandas import DataFrame

CAUSES = ("steps", "validation", "checkpoints", "stalls", "slow_nodes", "replica_faults", "restarts", "steps_again")
"""What the seconds of a run go to; they add up to it. steps: the undisturbed ones. restarts: from failures of training
GPUs until all train again; steps_again: what they undo since the last checkpoint."""
STATES = (
    *("acceptance_length", "response_tokens", "truncated_share", "mean_batch", "mean_context_tokens", "staleness"),
    *("oldest", "samples", "generated_tokens", "trained_tokens"),
)
"""What a step was like besides its times. acceptance_length: tokens per verification. response_tokens: mean of the
generated responses. mean_batch, mean_context_tokens: of the engines' decode iterations, over the steps that were
simulated together. staleness, oldest: mean and largest age of the samples in steps."""
COLUMNS = ("step", "end_s", "step_s", *(f"{cause}_s" for cause in CAUSES), *PHASES, *STATES)
"""Columns of steps.csv. step: from 1. end_s: since the run began. step_s: with all that it lost, the sum of the columns
of the causes. Phases are those of the undisturbed step."""


class Loss(Record):
    """Seconds of a run that one cause takes, with the 90 % interval of such runs, and how often it happened."""

    seconds: Interval
    events: Rounded


class Part(Record):
    """Consecutive steps of a run, first to last, counted from 1: means over them.

    step_s: with all that they lost; its interval is that of the model. The other names are those of the columns.
    """

    first: int
    last: int
    step_s: Interval
    exposed_generation_s: Rounded
    acceptance_length: Rounded
    response_tokens: Rounded
    truncated_share: Rounded
    mean_batch: Rounded
    staleness: Rounded
    tokens_per_s_per_gpu: Rounded


@dataclass(frozen=True)
class RunSampling:
    """What the drawn work leaves open. run_error_s: standard error of the mean over replications; None of one.

    step_deviation_s: standard deviation between undisturbed steps.
    """

    run_error_s: Rounded | None
    step_deviation_s: Rounded


class RunSide(Side):
    """The run with speculation, or without.

    seconds: its interval holds the model's error and what chance brings, as failures. energy_at_most_j: all GPUs at
    their power limit all the time; busy_share: GPU seconds in which a pool works over all of them. tokens: where
    response tokens went; None for agents. ages: share of the trained samples by age in versions. ledger: what the
    seconds go to, by cause. steps: values of every step by column, mean over replications.
    """

    seconds: Interval
    cost_usd: Interval
    energy_at_most_j: Interval
    busy_share: Rounded
    samples: int
    generated_tokens: Rounded
    trained_tokens: Rounded
    tokens: TokenLedger | None
    ages: dict[int, Rounded] = Field(alias="staleness")
    sampling: RunSampling
    ledger: dict[str, Loss]
    parts: tuple[Part, ...]
    steps: dict[str, tuple[Rounded, ...]] = Field(repr=False)

    @model_validator(mode="after")
    def _equal_columns(self) -> Self:
        lengths = {len(values) for values in self.steps.values()}
        if len(lengths) != 1 or lengths == {0} or not {"step", "step_s"} <= self.steps.keys():
            # Reports and steps.csv walk the columns side by side.
            raise ValueError("the columns of 'steps' must be equally long, and not empty")
        return self


class Run(About):
    """The answer of ``run``: a run of a number of steps, and the same without speculation on the same drawn work.

    baseline, speedup: None where nothing is drafted or the baseline was not asked for.
    """

    schema_: Literal["rlsim.run/1"] = Field(default="rlsim.run/1", alias="schema")
    replications: int
    num_steps: int = Field(alias="steps")
    baseline: RunSide | None
    candidate: RunSide
    speedup: Interval | None
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def sides(self) -> dict[str, RunSide]:
        """The sides by their names."""
        if self.baseline is None:
            return {"candidate" if self.candidate.speculates else self.alone: self.candidate}
        return {"baseline": self.baseline, "candidate": self.candidate}

    def to_csv(self) -> str:
        """steps.csv: one line for every step of every side."""
        lines = [",".join(("side", *COLUMNS))]
        for name, side in self.sides.items():
            columns = (side.steps[column] for column in COLUMNS)
            # Nine digits, as everywhere: the same bytes on machines that add in another order.
            lines += (",".join((name, *(f"{value:.9g}" for value in row))) for row in zip(*columns, strict=True))
        return "\n".join(lines) + "\n"

    def to_frame(self) -> DataFrame:
        """The steps as a pandas table with columns of each side."""
        from pandas import DataFrame, concat

        frames = {name: DataFrame(dict(side.steps)).set_index("step") for name, side in self.sides.items()}
        return concat(frames, axis=1)
