"""check(): is a run healthy, and if not, which known misconfiguration explains its phases best?"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.attribution import likelihood
from rlsim.attribution.faults import Faulty, Pattern, figures
from rlsim.costs.links import node_link
from rlsim.errors import InputError
from rlsim.loading.scenario import as_scenario, vary
from rlsim.projection.effects import longer_responses
from rlsim.projection.moves import FAULTS, Fault, best_way, faults, move_named, timed_of
from rlsim.projection.precision import precise
from rlsim.projection.project import identity
from rlsim.projection.tuned import tuned_step_s
from rlsim.projection.uncertainty.inputs import guesses_of
from rlsim.projection.variant import compared, simulate_variant
from rlsim.results import Interval
from rlsim.results.check import Check, CheckedPhase, Explanation, ExplanationGroup, Measurement, StatedFault
from rlsim.results.record import PHASE_FLOOR
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Scenario
from rlsim.schema.stated import RESPONSE
from rlsim.schema.workload import ConstantLength
from rlsim.units import FloatArray

Progress = Callable[[int, int], object]
REFINED = 14
"""Faults whose milder severities are simulated too: those that explain the run best at the gravest or on the way."""
EXTENSIONS = 1
"""Severities beyond the gravest of the list that are tried, each as much graver as the one before it was. Assumption: a
cause several times graver than any that users met is another cause."""
WIDE = 2.0
"""Upper over lower end of the expected step from which nothing can be said of a run."""
LENGTH = "response_tokens"
"""Figure that replaces a guessed length."""
SHOWN = 0.005
"""Least probability of an explanation that is shown."""
DISTINCT = 4.0
"""Deviations of a figure by which it separates two explanations."""
LEAST_PART = 0.03
"""Share of a step by which a part must differ for a profile to separate two explanations."""


class _Scored(Struct, frozen=True, eq=False):
    """A fault with its fit and the simulated pattern nearest to it."""

    fault: Fault
    fit: likelihood.Fit
    nearest: Pattern
    log_weight: float
    probability: float = 0.0


class _Run(Struct, frozen=True, eq=False):
    """What was measured of a run, what is expected of it, and its simulations under faults. step_s: as measured, else
    expected; possible: faults that the scenario can have."""

    observed: likelihood.Observed
    expected: Mapping[str, Interval]
    faulty: Faulty
    step_s: float
    possible: Sequence[Fault]

    def logs(self, pattern: Pattern) -> FloatArray:
        """Logarithms of what is measured under a pattern."""
        return likelihood.logs_of(self.observed, self.expected, self.faulty.healthy, pattern)

    def scored(self, fault: Fault, path: likelihood.Path, nearest: Pattern) -> _Scored:
        """A fault along its path of severities."""
        fit, total = likelihood.fitted(self.observed, path), sum(fault.prior for fault in self.possible)
        # Priors of the possible faults add up to 1, so that healthy and unlisted weigh as much beside few of them as
        # beside many.
        return _Scored(fault, fit, nearest, math.log(fault.prior / total) + fit.log_likelihood)


def check(
    scenario: Scenario | Path | str,
    measured: Mapping[str, float],
    noise: likelihood.Noise | None = None,
    faulty: Faulty | None = None,
    progress: Progress | None = None,
    own_level: bool = False,
) -> Check:
    """Whether a run of ``scenario`` is as expected, and what explains it where it is not.

    measured: seconds of phases (step, generation or exposed_generation, logprob, train, refit, data), and figures of
    the catalogue by name. noise: deviation of the logarithms of the times, of all or by name, default 0.05. faulty:
    simulations of the scenario under faults, to be used again. progress: called with (done, total) faults. own_level:
    the times are those expected, moved as the run moved from its own level: the model's error of that cancels.
    Raises InputError where nothing that was measured can be expected or times contradict each other, and Infeasible
    where the scenario cannot run.
    """
    noise = {} if noise is None else noise
    asked, (scenario, measured) = len(measured), known_lengths(as_scenario(scenario), measured)
    simulated = precise(simulate_variant(scenario))
    given, remarks = likelihood.sorted_out(simulated, measured, noise)
    expected = likelihood.expected_phases(simulated)
    observed = likelihood.observed_of(simulated, expected, given, noise, own_level)
    faulty = faulty or Faulty(scenario)
    expected_s = expected["step"].mean
    right = ("longer_responses",) if len(measured) < asked else ()  # a length that the run itself shows
    possible = [one for one in faults() if one.does not in right and not one.missing(faulty.scenario)]
    run = _Run(observed, expected, faulty, given.get("step", expected_s), possible)
    scored = _scores(run, progress)
    healthy = run.logs(faulty.healthy)
    phases, impossible = _possible_phases(likelihood.checked_phases(simulated, expected, given, observed))
    *shares, ranked = _ranked(observed, healthy, scored)
    groups = _grouped(observed, [one for one in ranked if one.probability >= SHOWN])
    return Check(
        **identity(scenario),
        method=scenario.speculation.method if scenario.speculation.active else "none",
        noise=noise if isinstance(noise, float) else float(np.mean(list(noise.values()) or [likelihood.NOISE])),
        phases=phases,
        figures={name: value for name, value in given.items() if name not in expected},
        healthy=shares[0],
        unlisted=shares[1],
        groups=tuple(_group(group, run) for group in groups),
        tests=_tests(groups, faulty.healthy.step_s),
        stated=_stated(scenario, expected_s),
        tuned_step_s=tuned_step_s(simulated),
        tried=len(possible),
        without_effect=len(possible) - len(scored),
        remarks=(*remarks, *impossible),
        cannot_tell=_cannot_tell(scenario, expected["step"]),
    )


def _possible_phases(phases: Sequence[CheckedPhase]) -> tuple[tuple[CheckedPhase, ...], tuple[str, ...]]:
    """The phases without a share of the peak that no GPU reaches, and what such a one means."""
    above = [one for one in phases if one.mfu is not None and one.mfu > 1]
    remarks = tuple(
        f"{one.phase}: the scenario's work in {one.measured_s:g} s is more than its GPUs can do at their peak: the run "
        "had other GPUs, more of them, fewer tokens or a smaller batch, or the time is of another part of the step"
        for one in above
    )
    return tuple(one.model_copy(update={"mfu": None}) if one in above else one for one in phases), remarks


def _ranked(
    observed: likelihood.Observed, healthy: FloatArray, scored: Sequence[_Scored]
) -> tuple[float, float, list[_Scored]]:
    """Probabilities that nothing is wrong and of a cause on no list, and the faults with theirs, likely ones first."""
    weights = [math.log(FAULTS["healthy"]) + float(observed.log_likelihood(healthy))]
    weights.append(math.log(FAULTS["unlisted"]) + float(observed.log_likelihood_unlisted(healthy)))
    shares = likelihood.probabilities([*weights, *(one.log_weight for one in scored)]).tolist()
    weighed = [replace(one, probability=share) for one, share in zip(scored, shares[2:], strict=True)]
    # What brings nothing of what was given nearer explains none of it: a serial reward makes no step faster.
    moving = [one for one in weighed if observed.nearer(one.fit.logs, healthy)]
    return shares[0], shares[1], sorted(moving, key=lambda one: -one.probability)


def known_lengths(scenario: Scenario, measured: Mapping[str, float]) -> tuple[Scenario, Mapping[str, float]]:
    """The scenario with the length of responses that the run shows, where its own is a guess: an input, and no fault.

    Returns the measured values without it then.
    """
    tokens = measured.get(LENGTH)
    guessed = any(RESPONSE in one.keys and one.log_spread is not None for one in scenario.assumptions)
    length = scenario.workload.response_tokens
    mean = length.tokens if isinstance(length, ConstantLength) else length.mean_tokens
    if not (guessed and mean and tokens):
        return scenario, measured
    change = longer_responses(scenario, tokens / mean)
    if change is None:
        raise InputError(f"{LENGTH}={tokens:g}: the scenario's cap of a sequence leaves no room for that mean")
    left = tuple(one for one in scenario.assumptions if RESPONSE not in one.keys)
    stated = replaced(vary(scenario, change.keys), {"assumptions": left})
    return stated, {name: value for name, value in measured.items() if name != LENGTH}


def _cannot_tell(scenario: Scenario, step_s: Interval) -> str:
    """What a verdict would need, where the expected step is known to no better than a factor of WIDE; else empty."""
    if step_s.high <= WIDE * step_s.low:
        return ""
    network = ["the network between its nodes (cluster.fabric)"] if node_link(scenario).log_spread else []
    return "; ".join((*network, *guesses_of(scenario))) or "what the interval leans on (rlsim project --full)"


def _scores(run: _Run, progress: Progress | None) -> list[_Scored]:
    """Faults that change anything with their fits.

    Each is simulated at its gravest first, which gives a path from the healthy run; those that fit best at all their
    severities.
    """
    healthy, total, crude = run.logs(run.faulty.healthy), len(run.possible) + REFINED, list[_Scored]()
    for done, fault in enumerate(run.possible, start=1):
        # Gravest first, and lazily: where that cannot run the next milder one is simulated.
        found = ((severity, run.faulty.with_fault(fault, severity)) for severity in fault.severities[::-1] or (1.0,))
        severity, pattern = next(((at, one) for at, one in found if one is not None), (1.0, None))
        if pattern is not None:
            logs = run.logs(pattern)
            # Straight lines of logarithms stand in for milder severities until the fault is refined.
            points = [logs] if not fault.severities else [healthy + s * (logs - healthy) for s in (0.25, 0.5, 0.75, 1)]
            path = likelihood.Path(np.full(len(points), severity), np.array(points))
            crude.append(run.scored(fault, path, pattern))
        if progress is not None:
            progress(done, total)
    # Only the best are simulated at all severities: a simulation for each would take most of the time.
    crude.sort(key=lambda one: -one.log_weight)
    refined = []
    for done, one in enumerate(crude[:REFINED], start=len(run.possible) + 1):
        refined.append(_refined(run, one))
        if progress is not None:
            progress(done, total)
    return [*refined, *crude[REFINED:]]


def _refined(run: _Run, one: _Scored) -> _Scored:
    if not one.fault.severities:
        return one
    tried = ((severity, run.faulty.with_fault(one.fault, severity)) for severity in one.fault.severities)
    simulated = [(severity, found) for severity, found in tried if found is not None]
    path = likelihood.Path.through([(severity, run.logs(found)) for severity, found in simulated], one.fault.whole)
    best = run.scored(one.fault, path, one.nearest)
    for _ in range(EXTENSIONS):
        # A fault may be graver than the list has it: on, until it explains the run or reaches past it.
        if len(simulated) < 2 or best.fit.severity != simulated[-1][0]:
            break
        severity = simulated[-1][0] ** 2 / simulated[-2][0]
        found = run.faulty.with_fault(one.fault, severity)
        if found is None:
            break
        simulated.append((severity, found))
        path = likelihood.Path.through([(at, run.logs(pattern)) for at, pattern in simulated], one.fault.whole)
        best = run.scored(one.fault, path, one.nearest)
    nearest = min(simulated, key=lambda pair: abs(math.log(pair[0] / best.fit.severity)))[1]
    return replace(best, nearest=nearest)


def _grouped(observed: likelihood.Observed, ranked: Sequence[_Scored]) -> list[list[_Scored]]:
    """Explanations that agree with the best of their group within the noise, the most probable group first."""
    groups: list[list[_Scored]] = []
    for one in ranked:
        # Compared with the best of a group alone: chains of near neighbours would join what differs.
        home = next((group for group in groups if observed.agree(group[0].fit.logs, one.fit.logs)), None)
        if home is None:
            groups.append([one])
        else:
            home.append(one)
    return sorted(groups, key=lambda group: -sum(one.probability for one in group))


def _group(group: Sequence[_Scored], run: _Run) -> ExplanationGroup:
    members = tuple(_explanation(one, run) for one in group)
    return ExplanationGroup(probability=sum(one.probability for one in group), members=members)


def _explanation(one: _Scored, run: _Run) -> Explanation:
    fault, healthy, expected_s = one.fault, run.faulty.healthy, run.expected["step"].mean
    values = zip(run.observed.names, (np.exp(one.fit.logs) - run.observed.floors).tolist(), strict=True)
    phases = {name: max(0.0, value) for name, value in values if name in healthy.phases}
    # Where the step was not measured, it is the expected one moved as the simulations differ.
    faulty_s = phases.get("step", expected_s + one.nearest.step_s - healthy.step_s)
    return Explanation(
        name=fault.name,
        title=fault.title,
        probability=one.probability,
        severity=one.fit.severity if fault.severities else None,
        changes=_changes(fault, run.faulty, one.fit.severity),
        phases_s=phases,
        cure=fault.cure,
        gain_s=run.step_s * (1.0 - min(1.0, expected_s / faulty_s)),
        misstated=fault.misstated,
    )


def _changes(fault: Fault, faulty: Faulty, severity: float) -> tuple[str, ...]:
    """The fault as overrides of the scenario; in words where no key states it."""
    change = fault.of(faulty.scenario, severity, faulty.healthy.step_s)
    if change is None:
        return ()
    if not change.keys:
        return (change.how,)
    return tuple(f"{key}={_plain(value)}" for key, value in change.keys.items() if value is not None)


def _plain(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _tests(groups: Sequence[Sequence[_Scored]], step_s: float) -> tuple[Measurement, ...]:
    """Measurements that separate the best explanation from the next ones of its group and from the next group."""
    if not groups:
        return ()
    first, *others = groups[0]
    rivals = [*others[:3], *(group[0] for group in groups[1:2])]
    found = [_test(first, rival, step_s) for rival in rivals]
    # Read once, a figure tells the first from all of them.
    return tuple({one.figure: one for one in reversed(found) if one is not None}.values())[::-1]


def _test(first: _Scored, second: _Scored, step_s: float) -> Measurement | None:
    """The cheapest figure, else the part of a profile, that differs most between two explanations."""
    between = (first.fault.name, second.fault.name)
    one, other = first.nearest.figures, second.nearest.figures
    # In the order of the catalogue, cheapest to read first; a profile costs a run.
    for name, figure in figures().items():
        if name in one and name in other:
            apart = abs(math.log((one[name] + figure.floor) / (other[name] + figure.floor)))
            if apart > DISTINCT * figure.spread:
                values = one[name], other[name]
                return Measurement(between=between, figure=name, title=figure.title, how=figure.how, values=values)
    parts, rest = first.nearest.parts, second.nearest.parts
    every = {key: (parts.get(key, 0.0), rest.get(key, 0.0)) for key in (*parts, *rest)}
    if not every:
        return None
    (phase, part), values = max(every.items(), key=lambda item: abs(item[1][0] - item[1][1]))
    if abs(values[0] - values[1]) < LEAST_PART * step_s:
        return None
    title = f"seconds of {part} in {phase.removesuffix('_s')}"
    return Measurement(between=between, figure=f"{phase}/{part}", title=title, how="a profile of a step", values=values)


def _stated(scenario: Scenario, expected_s: float) -> tuple[StatedFault, ...]:
    """Known misconfigurations that the scenario states itself and that cost it time, by what ``improve`` shows of the
    moves that undo them. expected_s: its step, as ``project`` answers."""
    one, found = compared(scenario), []
    for fault in faults():
        if not (fault.undo and fault.stated(scenario)):
            continue
        undone = best_way(one, move_named(fault.undo))
        if isinstance(undone, str):
            continue
        step_s = timed_of(one).step_s
        # Below that the gain lies within what every phase may be off by.
        if step_s - undone.step_s >= 2 * PHASE_FLOOR * step_s:
            about = {"name": fault.name, "title": fault.title, "cure": fault.cure}
            keys = tuple(f"{key}={_plain(value)}" for key, value in undone.overrides.items())
            found.append(StatedFault(**about, changes=keys, saved_s=expected_s / step_s * (step_s - undone.step_s)))
    return tuple(sorted(found, key=lambda one: -one.saved_s))
