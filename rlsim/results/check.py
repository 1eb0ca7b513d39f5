"""What a check of a run holds: its phases beside what is expected, and what explains the difference; and a headroom
ladder: a step as it is, and what it would take at each rung above."""

from typing import Literal

from pydantic import Field

from rlsim.results.answer import Answer
from rlsim.results.planning import Blame, Sensitivity, Techniques
from rlsim.results.projection import Method
from rlsim.results.record import Interval, Number, Record, Rounded, Rounded6

Verdict = Literal["as expected", "slow", "fast", "not given"]


class CheckedPhase(Record):
    """A phase of the step. expected_s: with its 90 % interval; measured_s: None where it was not given.

    ratio: measured over expected; lost_s: measured beyond expected. verdict: against the interval and the noise.
    expected_mfu, mfu: share of the GPUs' peak that the model's own FLOP are, expected and at the measured time; None of
    phases that compute nothing (docs/glossary.md).
    """

    phase: str
    expected_s: Interval
    measured_s: Rounded | None
    ratio: Rounded6 | None
    lost_s: Rounded | None
    verdict: Verdict
    expected_mfu: Rounded6 | None = None
    mfu: Rounded6 | None = None


class Explanation(Record):
    """A fault that may be behind a run. name: of the catalogue; changes: what the scenario then is, at the severity
    that explains the run best. phases_s: what it then expects. gain_s: seconds of the measured step that a cure saves.
    misstated: the scenario and not the run is to be put right.
    """

    name: str
    title: str
    probability: Rounded6
    severity: Rounded6 | None
    changes: tuple[str, ...]
    phases_s: dict[str, Rounded]
    cure: str
    gain_s: Rounded
    misstated: bool = False


class Measurement(Record):
    """What separates two explanations: a figure or a part of a phase, how to read it, and what each expects of it."""

    between: tuple[str, str]
    figure: str
    title: str
    how: str
    values: tuple[Number, Number]


class ExplanationGroup(Record):
    """Explanations whose expected phases agree within the noise. probability: that one of them is behind the run."""

    probability: Rounded6
    members: tuple[Explanation, ...]


class StatedFault(Record):
    """A known misconfiguration that the scenario itself states. saved_s: of the expected step, without it."""

    name: str
    title: str
    cure: str
    changes: tuple[str, ...]
    saved_s: Rounded


class Check(Answer):
    """A run beside what is expected of it. noise: deviation of each measured time's logarithm.

    healthy, unlisted: probability that nothing is wrong, and that the cause is in no list. groups: explanations, most
    probable first. tests: what separates the first ones, cheapest first. stated: what the scenario itself states.
    tuned_step_s: expected of a run as tuned as the recipes of the stack's makers; null where the stack is one of those.
    tried: faults simulated; without_effect: those that would not change the scenario's step. cannot_tell: what a
    verdict would need, where the expected step is known to no better than a factor of two; empty otherwise.
    """

    rows_in = "phases"
    schema_: Literal["rlsim.check/1"] = Field(default="rlsim.check/1", alias="schema")
    scenario: str
    digest: str
    source: str = ""
    mode: Literal["sync", "async", "supervised", "rollouts_alone"]
    num_gpus: int
    model: str
    hardware: str
    method: Method
    noise: Rounded6
    phases: tuple[CheckedPhase, ...]
    figures: dict[str, Rounded] = Field(default_factory=dict)
    healthy: Rounded6
    unlisted: Rounded6
    groups: tuple[ExplanationGroup, ...]
    tests: tuple[Measurement, ...]
    stated: tuple[StatedFault, ...]
    tuned_step_s: Interval | None = None
    tried: int
    without_effect: int
    remarks: tuple[str, ...] = ()
    cannot_tell: str = ""

    @property
    def step(self) -> CheckedPhase:
        """The step as a whole."""
        return self.phases[0]

    @property
    def likely_healthy(self) -> bool:
        """Whether nothing being wrong explains the run best."""
        first = self.groups[0].probability if self.groups else 0.0
        return not self.cannot_tell and self.healthy >= max(first, self.unlisted)


class Rung(Record):
    """A rung, with all below it. step_s, generation_s: of the step then; saved_s: by this rung.

    changes: keys that lead there; empty where none does. who: who can climb it, in words. why: it saves nothing, as.
    """

    name: str
    how: str
    step_s: Rounded
    generation_s: Rounded
    saved_s: Rounded
    changes: tuple[str, ...]
    who: str
    why: str = ""


class Headroom(Answer):
    """How far a step is from what would be possible. rungs: the first is the step as it is."""

    rows_in = "rungs"
    schema_: Literal["rlsim.headroom/1"] = Field(default="rlsim.headroom/1", alias="schema")
    scenario: str
    digest: str
    mode: Literal["sync", "async", "supervised", "rollouts_alone"]
    num_gpus: int
    model: str
    hardware: str
    rungs: tuple[Rung, ...]

    @property
    def step_s(self) -> float:
        """The step as it is."""
        return self.rungs[0].step_s

    def ratio(self, rung: Rung) -> float:
        """Times by which the step as it is exceeds that of a rung."""
        return self.step_s / rung.step_s if rung.step_s > 0 else float("inf")


class Improvement(Answer):
    """What would shorten a step: moves ranked, why GPUs are idle, how far the ideal is, and what is worth measuring.

    Parts that were not asked for are null.
    """

    schema_: Literal["rlsim.improvement/1"] = Field(default="rlsim.improvement/1", alias="schema")
    scenario: str
    digest: str
    moves: Techniques | None = None
    idle: Blame | None = None
    headroom: Headroom | None = None
    inputs: Sensitivity | None = None
