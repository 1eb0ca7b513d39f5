"""A run beside its scenario: measured, predicted before and after it was taken in, and other ways to run it.

Its phases are evidence on top of a posterior as :mod:`rlsim.projection.uncertainty.learning` takes it, one row for
each: its median over the steady steps against the median of the simulated ones, with the error that so few steps leave.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rlsim.errors import Infeasible, shortened
from rlsim.loading.scenario import dump_scenario, vary
from rlsim.parameters.posterior import SUFFIX, Posterior
from rlsim.projection.efficiency import efficiency_of, measured_beside
from rlsim.projection.precision import precise
from rlsim.projection.summary import speedups, timed
from rlsim.projection.uncertainty.predictive import around, prediction_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.readers.logs.growth import growth_of
from rlsim.readers.logs.learning import Explained, learn_run, predicted_of, values_of
from rlsim.readers.logs.naming import PHASES, Quantity
from rlsim.readers.logs.reading import RunLog
from rlsim.readers.logs.steady import Measured, Steady, Taken, steady_of, with_facts
from rlsim.results import Interval
from rlsim.results.efficiency import MeasuredEfficiency, PhaseEfficiency
from rlsim.results.record import P90_DEVIATIONS, PHASE_FLOOR
from rlsim.schema.base import changed
from rlsim.schema.scenario import Scenario

POSTERIOR_NAME = f"posterior{SUFFIX}"
_WORDS = re.compile(r"\s+(?=[a-z_][a-z_0-9.]*=)")
"""Blanks between the settings of one what-if; those within a value are none of them."""
Advance = Callable[[int, int], object]


@dataclass(frozen=True)
class PhaseLine:
    """One phase. before, after: predicted median of a step with its 90 % interval, seconds; None where the scenario
    has no such phase. error: what so few measured and simulated steps leave open, in logarithms. untold_s: seconds
    by which any phase may be off (PHASE_FLOOR)."""

    quantity: Quantity
    measured: Measured
    before: Interval | None
    after: Interval | None
    error: float = 0.0
    untold_s: float = 0.0

    @property
    def contradicts(self) -> bool:
        """Whether the measured median lies outside the updated interval, widened by its error and ``untold_s``."""
        if self.after is None or self.measured.median <= 0:
            return False
        wide = math.exp(P90_DEVIATIONS * self.error)
        low, high = self.after.low / wide - self.untold_s, self.after.high * wide + self.untold_s
        return not low <= self.measured.median <= high


@dataclass(frozen=True)
class WhatIf:
    """Another way to run it. phases: predicted medians of the steps from the posterior with the run; before: without.

    speedup: end to end over the run as it is; samples: of its step over those of the run's. reason: why it cannot run.
    """

    settings: str
    phases: Mapping[str, Interval]
    before: Mapping[str, Interval]
    speedup: Interval | None = None
    samples: float = 1.0
    reason: str = ""


@dataclass(frozen=True, eq=False)
class RunAnswer:
    """All that a log says of a scenario. calibrated: the scenario as the log tells it, without the posterior.

    efficiency: of the measured phases; measured_efficiency: what other runs of the model on the device reached.
    """

    log: RunLog
    steady: Steady
    calibrated: Scenario
    taken: tuple[Taken, ...]
    phases: tuple[PhaseLine, ...]
    explained: Mapping[str, Explained]
    posterior: Posterior
    what_ifs: tuple[WhatIf, ...]
    remarks: tuple[str, ...]
    efficiency: tuple[PhaseEfficiency, ...] = ()
    measured_efficiency: tuple[MeasuredEfficiency, ...] = ()

    def scenario_yaml(self) -> str:
        """The calibrated scenario, to lie beside the posterior's file."""
        simulation = changed(self.calibrated.simulation, posterior=POSTERIOR_NAME)
        return dump_scenario(changed(self.calibrated, simulation=simulation))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        written = TypeAdapter(Interval | None).dump_python
        return {
            "schema": "rlsim.runlog/1",
            "log": self.log.where,
            "form": self.log.form,
            "scenario": self.calibrated.name,
            "steps": {"first": self.steady.first, "last": self.steady.last, "dropped": self.steady.dropped},
            "taken": list(map(vars, self.taken)),
            "phases": [
                {
                    "phase": line.quantity,
                    "metrics": list(self.log.metrics[line.quantity]),
                    "measured": vars(line.measured),
                    "before": written(line.before),
                    "after": written(line.after),
                }
                for line in self.phases
            ],
            "explained": {
                kind: {"surprise": one.surprise, "sources": dict(one.by_source), "left": one.left}
                for kind, one in self.explained.items()
            },
            "what_if": TypeAdapter(tuple[WhatIf, ...]).dump_python(self.what_ifs, mode="json"),
            "efficiency": [one.as_dict() for one in self.efficiency],
            "measured_efficiency": [one.as_dict() for one in self.measured_efficiency],
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True)
class Asked:
    """What is asked of a log. chosen: first and last step to take. what_ifs: overrides, several of one joined by
    blanks. as_stated: keep the scenario's lengths and acceptance whatever the log tells."""

    chosen: tuple[int, int] | None = None
    what_ifs: Sequence[str] = ()
    as_stated: bool = False


PLAIN = Asked()
"""All steady steps, and no what-ifs."""


def answer_run(
    log: RunLog, scenario: Scenario, asked: Asked = PLAIN, advance: Advance = lambda done, total: None
) -> RunAnswer:
    """Take the steady steps of ``log`` as evidence of ``scenario``, and predict from what is then known.

    advance: called with (done, total) simulations. Raises InputError and Infeasible where the log or the scenario
    cannot be used.
    """
    log = log.of_loop(scenario.loop.mode)
    steady = steady_of(log, asked.chosen)
    given, taken = (scenario, ()) if asked.as_stated else with_facts(scenario, steady)
    changes = [_WORDS.split(text.strip()) for text in asked.what_ifs]
    varied = [vary(given, *words) for words in changes]
    total, done = 2 + 2 * len(varied), 0

    def counted(one: Scenario) -> SimulatedVariant:
        nonlocal done
        run = precise(simulate_variant(one))
        prediction_of(run)
        done += 1
        advance(done, total)
        return run

    before = counted(given)
    posterior, explained = learn_run(before, steady, shortened(Path(log.where).name))
    with tempfile.TemporaryDirectory(prefix="rlsim-") as folder:
        own = posterior.at(Path(folder) / POSTERIOR_NAME)
        after = counted(vary(given, own))
        lines = tuple(_line(quantity, steady, before, after) for quantity in PHASES if quantity in steady.found)
        tried = tuple(
            _what_if(text, one, vary(one, own), after, counted, steady.span)
            for text, one in zip(asked.what_ifs, varied, strict=True)
        )
    growth = growth_of(log, given)
    remarks = (*steady.remarks, *([growth.text] if growth else []), *_remarks(log, given, lines))
    return RunAnswer(
        log, steady, given, taken, lines, explained, posterior, tried, remarks,
        _efficiency(after, lines), measured_beside(given),
    )  # fmt: skip


def _efficiency(run: SimulatedVariant, lines: Sequence[PhaseLine]) -> tuple[PhaseEfficiency, ...]:
    """Of the phases that the log tells: the simulated work over the measured seconds."""
    measured = {f"{line.quantity}_s": line.measured.median for line in lines if line.measured.median > 0}
    out = []
    for one in efficiency_of(run):
        if one.phase in measured:
            faster = run.phases_s[one.phase] / measured[one.phase]
            names = ("tokens_per_s_per_gpu", "mfu", "hfu", "bandwidth_use")
            rates = {name: None if (rate := getattr(one, name)) is None else rate * faster for name in names}
            out.append(one.model_copy(update=rates))
    return tuple(out)


def _line(quantity: Quantity, steady: Steady, before: SimulatedVariant, after: SimulatedVariant) -> PhaseLine:
    found, span = steady.found[quantity], steady.span
    sides = median_of(before, quantity, span), median_of(after, quantity, span)
    steps_s = [predicted_of(after, "step", span)]
    if "step" in steady.found:
        steps_s.append(steady.found["step"].median)
    return PhaseLine(quantity, found, *sides, found.error(values_of(after, quantity, span)), PHASE_FLOOR * max(steps_s))


def median_of(run: SimulatedVariant, quantity: Quantity, span: int = 1) -> Interval | None:
    """Predicted median of a phase over the steps, with its 90 % interval; None where the scenario has none of it.
    span: as of :func:`values_of`."""
    lagged = run.scenario.loop.mode == "async"
    if (quantity == "exposed_generation") != lagged and quantity.endswith("generation"):
        return None
    median = predicted_of(run, quantity, span)
    return around(median, prediction_of(run).factor("step" if quantity == "step" else f"{quantity}_s", median))


def _what_if(
    settings: str,
    before: Scenario,
    after: Scenario,
    now: SimulatedVariant,
    simulated: Callable[[Scenario], SimulatedVariant],
    span: int,
) -> WhatIf:
    try:
        runs = simulated(before), simulated(after)
    except Infeasible as error:
        return WhatIf(settings, {}, {}, reason=str(error))
    found: list[dict[str, Interval]] = [
        {name: value for name in PHASES if (value := median_of(run, name, span)) is not None} for run in runs
    ]
    samples = after.workload.samples_per_step / now.scenario.workload.samples_per_step
    return WhatIf(settings, found[1], found[0], speedups(timed(now), timed(runs[1]))[1].interval, samples)


def _remarks(log: RunLog, scenario: Scenario, lines: Sequence[PhaseLine]) -> list[str]:
    out = log.contradictions(scenario)
    for line in lines:
        phase = line.quantity.replace("_", " ")
        if line.before is None:
            out.append(f"{phase}: a scenario with loop.mode {scenario.loop.mode} has no such phase")
        elif line.contradicts:
            out.append(
                f"{phase}: measured outside what even the updated model expects; what the scenario states "
                "(batch, lengths, layout, environment) is more likely to be wrong than the model"
            )
    if scenario.workload.agent is not None:
        out.append(
            "exposed generation of agents waits for their environment (workload.agent.environment_s), which no term "
            "of the model moves"
        )
    return out
