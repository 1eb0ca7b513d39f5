"""A whole run as data: what ``run`` returns, what its report reads and what run.json and steps.csv hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rlsim.results.projection import Interval, rounded
from rlsim.results.trace import PHASES, TokenLedger

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = "rlsim.run/1"
CAUSES = (
    "steps",
    "validation",
    "checkpoints",
    "stalls",
    "slow_nodes",
    "replica_faults",
    "restarts",
    "steps_again",
)
"""What the seconds of a run go to; they add up to it. steps: the undisturbed ones. restarts: from failures of training
GPUs until all train again; steps_again: what they undo since the last checkpoint."""
STATES = (
    "acceptance_length",
    "response_tokens",
    "truncated_share",
    "mean_batch",
    "mean_context_tokens",
    "staleness",
    "oldest",
    "samples",
    "generated_tokens",
    "trained_tokens",
)
"""What a step was like besides its times. acceptance_length: tokens per verification. response_tokens: mean of the
generated responses. mean_batch, mean_context_tokens: of the engines' decode iterations, over the steps that were
simulated together. staleness, oldest: mean and largest age of the samples in steps."""
COLUMNS = ("step", "end_s", "step_s", *(f"{cause}_s" for cause in CAUSES), *PHASES, *STATES)
"""Columns of steps.csv. step: from 1. end_s: since the run began. step_s: with all that it lost, the sum of the columns
of the causes. Phases are those of the undisturbed step."""


@dataclass(frozen=True)
class Loss:
    """Seconds of a run that one cause takes, with the 90 % interval of such runs, and how often it happened."""

    cause: str
    seconds: Interval
    events: float


@dataclass(frozen=True)
class Part:
    """Consecutive steps of a run, first to last, counted from 1: means over them.

    step_s: with all that they lost; its interval is that of the model. The other names are those of the columns.
    """

    first: int
    last: int
    step_s: Interval
    exposed_generation_s: float
    acceptance_length: float
    response_tokens: float
    truncated_share: float
    mean_batch: float
    staleness: float
    tokens_per_s_per_gpu: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            name: value.as_dict() if isinstance(value, Interval) else rounded(value) if name not in _WHOLE else value
            for name, value in vars(self).items()
        }


_WHOLE = ("first", "last")


@dataclass(frozen=True)
class RunSide:
    """The run with speculation, or without.

    seconds: its interval holds the model's error and what chance brings, as failures. run_error_s: standard error of
    the mean over replications; None of one. step_deviation_s: standard deviation between undisturbed steps.
    energy_at_most_j: all GPUs at their power limit all the time; busy_share: GPU seconds in which a pool works over all
    of them. tokens: where response tokens went; None for agents. ages: share of the trained samples by age in versions.
    steps: values of every step by column, mean over replications.
    """

    method: str
    draft_length: int
    seconds: Interval
    cost_usd: Interval
    energy_at_most_j: Interval
    busy_share: float
    samples: int
    generated_tokens: float
    trained_tokens: float
    tokens: TokenLedger | None
    ages: Mapping[int, float]
    run_error_s: float | None
    step_deviation_s: float
    ledger: tuple[Loss, ...]
    parts: tuple[Part, ...]
    steps: Mapping[str, tuple[float, ...]] = field(repr=False)

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted."""
        return self.method != "none" and self.draft_length > 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        error = None if self.run_error_s is None else rounded(self.run_error_s)
        return {
            "method": self.method,
            "draft_length": self.draft_length,
            "seconds": self.seconds.as_dict(),
            "cost_usd": self.cost_usd.as_dict(),
            "energy_at_most_j": self.energy_at_most_j.as_dict(),
            "busy_share": rounded(self.busy_share),
            "samples": self.samples,
            "generated_tokens": rounded(self.generated_tokens),
            "trained_tokens": rounded(self.trained_tokens),
            "tokens": None if self.tokens is None else {k: rounded(v) for k, v in asdict(self.tokens).items()},
            "staleness": {str(age): rounded(share) for age, share in self.ages.items()},
            "sampling": {"run_error_s": error, "step_deviation_s": rounded(self.step_deviation_s)},
            "ledger": {
                loss.cause: {"seconds": loss.seconds.as_dict(), "events": rounded(loss.events)} for loss in self.ledger
            },
            "parts": [part.as_dict() for part in self.parts],
            "steps": {name: [rounded(value) for value in values] for name, values in self.steps.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunSide:
        """The side that a run.json holds. KeyError and TypeError where it is none."""
        same = ("method", "draft_length", "busy_share", "samples", "generated_tokens", "trained_tokens")
        tokens = content["tokens"]
        return cls(
            **{name: content[name] for name in same},
            seconds=Interval(**content["seconds"]),
            cost_usd=Interval(**content["cost_usd"]),
            energy_at_most_j=Interval(**content["energy_at_most_j"]),
            tokens=None if tokens is None else TokenLedger(**tokens),
            ages={int(age): share for age, share in content["staleness"].items()},
            **content["sampling"],
            ledger=tuple(
                Loss(cause, Interval(**loss["seconds"]), loss["events"]) for cause, loss in content["ledger"].items()
            ),
            parts=tuple(Part(**{**part, "step_s": Interval(**part["step_s"])}) for part in content["parts"]),
            steps={name: tuple(values) for name, values in content["steps"].items()},
        )


@dataclass(frozen=True)
class Run:
    """The answer of ``run``: a run of a number of steps, and the same without speculation on the same drawn work.

    baseline, speedup: None where nothing is drafted or the baseline was not asked for.
    """

    scenario: str
    question: str
    digest: str
    seed: int
    replications: int
    mode: str
    num_gpus: int
    model: str
    hardware: str
    num_steps: int
    baseline: RunSide | None
    candidate: RunSide
    speedup: Interval | None
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    price_per_gpu_hour_usd: float
    price_source: str
    resolved_scenario: str = field(repr=False, default="")

    @property
    def asynchronous(self) -> bool:
        """Whether generation runs beside the trainer."""
        return self.mode == "async"

    @property
    def sides(self) -> dict[str, RunSide]:
        """The sides by their names."""
        if self.baseline is None:
            return {"candidate" if self.candidate.speculates else "autoregressive": self.candidate}
        return {"baseline": self.baseline, "candidate": self.candidate}

    def as_dict(self) -> dict[str, Any]:
        """The content of run.json."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "digest": self.digest,
            "seed": self.seed,
            "replications": self.replications,
            "steps": self.num_steps,
            "baseline": None if self.baseline is None else self.baseline.as_dict(),
            "candidate": self.candidate.as_dict(),
            "speedup": None if self.speedup is None else self.speedup.as_dict(),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], about: Mapping[str, Any]) -> Run:
        """The run that a run.json holds; about: the attributes that are not in it, such as ``mode`` and ``model``.

        Numbers have the digits of the file. KeyError and TypeError where it is none.
        """
        baseline, speedup = content["baseline"], content["speedup"]
        return cls(
            **about,
            **{name: content[name] for name in ("scenario", "digest", "seed", "replications")},
            num_steps=content["steps"],
            baseline=None if baseline is None else RunSide.from_dict(baseline),
            candidate=RunSide.from_dict(content["candidate"]),
            speedup=None if speedup is None else Interval(**speedup),
            assumptions=tuple(content["assumptions"]),
            warnings=tuple(content["warnings"]),
        )

    def to_json(self) -> str:
        """run.json, the same bytes for the same scenario, seed and number of steps."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """steps.csv: one line for every step of every side."""
        lines = [",".join(("side", *COLUMNS))]
        for name, side in self.sides.items():
            columns = (side.steps[column] for column in COLUMNS)
            lines += (",".join((name, *(f"{value:.9g}" for value in row))) for row in zip(*columns, strict=True))
        return "\n".join(lines) + "\n"

    def to_frame(self) -> DataFrame:
        """The steps as a pandas table with columns of each side."""
        from pandas import DataFrame, concat

        frames = {name: DataFrame(dict(side.steps)).set_index("step") for name, side in self.sides.items()}
        return concat(frames, axis=1)
