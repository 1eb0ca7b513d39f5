"""What to measure next: how much regret of a choice, and how much of the step's interval, each measurement would save.

The interval is that of ``project``. Its sources (``uncertainty.sources``) are valued by the choice among a few
cheap alternatives to the scenario, all on the same draws. What the scenario states (lengths, acceptance...) is no part
of that interval: each stated input is simulated at both ends of a range.

With t_a the draws of the step of alternative a, choosing now takes the least mean; its expected regret is what always
knowing better would save, the expected value of perfect information. Knowing x alone saves

    min_a E[t_a] - E_x[min_a E[t_a | x]] >= 0,

its expected value of partial perfect information, where E[t_a | x] is a regression of the draws of t_a on those of x
(Strong, Oakley and Brennan 2014, doi:10.1177/0272989X13505910), here a cubic polynomial.
"""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.errors import Infeasible, InputError
from rlsim.files.progress import ProgressLine
from rlsim.loading.differences import changes
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides
from rlsim.planning.stated_inputs import UncertainInput, drawn_overrides, uncertain_inputs
from rlsim.projection.moves import LISTS, move_named, timed_of
from rlsim.projection.precision import Anchor, anchor
from rlsim.projection.summary import Timed, mean_value, timed
from rlsim.projection.uncertainty.predictive import DRAWS, HIGH, LOW, around
from rlsim.projection.uncertainty.sources import sources_of
from rlsim.projection.variant import SimulatedVariant, compared, compared_run, searched, simulate_variant
from rlsim.results.planning import Choice, InputEffect, Sensitivity, SourceValue
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

AS_IT_IS = "as it is"
DEGREE = 3
"""Degree of the polynomial; steps are close to exponential in normal variables of some 10 %."""
GRID = (np.arange(200) + 0.5) / 200
"""Quantiles at which the value of a stated input is averaged."""


Place = tuple[str, str, float]
"""An alternative, an input and a quantile of it."""
Steps = Mapping[Place, float]
"""Simulated steps in seconds."""


class Alternative(Struct, frozen=True):
    """A scenario to choose. changes: overrides that lead to it, as ``--set`` takes them."""

    name: str
    scenario: Scenario
    changes: tuple[str, ...] = ()


def alternatives(scenario: Scenario) -> tuple[Alternative, ...]:
    """The scenario as it is, and every way of a few moves that ask for keys alone (projection/moves.yaml)."""
    out = [Alternative(AS_IT_IS, scenario)]
    known = [move_named(name) for name in LISTS["alternatives"]]
    for overrides in (way for move in known if not move.missing(scenario) for way in move.ways(scenario)):
        try:
            other = vary(scenario, overrides)
        except InputError:
            continue
        if all(other != known.scenario for known in out):
            out.append(Alternative(_named(overrides), other, changes(scenario, other)))
    return tuple(out)


def _named(overrides: Overrides) -> str:
    return ", ".join(f"{key}={value}" for key, value in overrides.items())


class Arm(Struct, frozen=True, eq=False):
    """A simulated alternative. first_s: mean step on the work of a search, on which inputs are varied."""

    alternative: Alternative
    timed: Timed
    first_s: float


def sensitivity(scenario: Scenario, *, uncertain: Sequence[str] = ()) -> Sensitivity:
    """Rank what could be measured by the expected regret and the width of the interval that it would save.

    uncertain: ``key=low:high`` each, overriding or adding ranges of stated inputs. Raises InputError where a range
    cannot be simulated, and Infeasible where the scenario cannot run.
    """
    inputs, by = uncertain_inputs(scenario, uncertain), anchor(scenario)
    run = compared_run(scenario)
    wanted = alternatives(compared(scenario))
    points, arms = _points(wanted, inputs), [_arm(wanted[0], timed(run), by)]
    with ProgressLine("simulations", len(wanted) - 1 + len(points)) as progress:
        for one in wanted[1:]:
            with suppress(Infeasible, InputError):  # one that cannot run is no choice
                arms.append(_arm(one, timed_of(one.scenario), by))
            progress.advance(1)
        steps = {}
        for place, (other, overrides) in points.items():
            steps[place] = first_step_s(other, overrides)
            progress.advance(1)
    shorter = [_where_it_runs(one, steps) for one in inputs]
    again = _points(wanted, [new for new, old in zip(shorter, inputs, strict=True) if new is not None and new != old])
    steps |= {place: first_step_s(other, overrides) for place, (other, overrides) in again.items()}
    inputs = tuple(one for one in shorter if one is not None)
    return _answer(run, arms, inputs, steps)


def _where_it_runs(item: UncertainInput, steps: Steps) -> UncertainInput | None:
    """An input without the end of its assumed range at which the scenario as it is cannot run, such as of lengths that
    just fit; None where that leaves no range. What the user gave is refused later, by name."""
    failed = [math.isnan(steps.get((AS_IT_IS, item.key, place), 0.0)) for place in (0.0, 1.0)]
    if item.given or item.own is None or not any(failed):
        return item
    low, high = (item.own if fails else end for fails, end in zip(failed, (item.low, item.high), strict=True))
    ends = " and ".join(f"{end:g}" for fails, end in zip(failed, (item.low, item.high), strict=True) if fails)
    why = f"{item.reason}; cannot run at {ends}"
    return replace(item, low=low, high=high, reason=why) if low < high else None


def _points(wanted: Sequence[Alternative], inputs: Sequence[UncertainInput]) -> dict[Place, tuple[Scenario, Overrides]]:
    """Scenario and overrides of each simulation; inputs that change nothing of an alternative are left out."""
    out = {}
    for one, item in itertools.product(wanted, inputs):
        for quantile in item.simulated:
            if overrides := drawn_overrides(one.scenario, [item], np.array([quantile])):
                out[one.name, item.key, quantile] = (one.scenario, overrides)
    return out


def _arm(alternative: Alternative, found: Timed, by: Anchor | None) -> Arm:
    """by: carries its step over to what ``project`` answers."""
    scale = 1.0 if by is None else by.carried(found.step).scale
    return Arm(alternative, replace(found, step=found.step.times(scale)), first_step_s(alternative.scenario, {}))


def first_step_s(scenario: Scenario, overrides: Overrides) -> float:
    """Mean step of a varied scenario on the work of a search, in seconds; NaN where it cannot run."""
    try:
        # The draws are the same as of the arm it is compared with: those of a search are enough. Another value of a
        # guess is a guess still, as unsure of its memory.
        other = replaced(vary(searched(scenario), overrides), {"assumptions": scenario.assumptions})
        run = simulate_variant(other, tokens=False)
        return mean_value(run, lambda step: step.seconds)
    except (Infeasible, InputError):
        return math.nan


def _answer(run: SimulatedVariant, arms: Sequence[Arm], inputs: Sequence[UncertainInput], points: Steps) -> Sensitivity:
    own = arms[0]
    # Beside the scenario's own step, so that work which both share moves no order.
    steps = np.array([own.timed.step.believed / own.timed.step.over(arm.timed.step).believed for arm in arms])
    effects = {item.key: _effect(own, item, points) for item in inputs}
    whole = own.timed.prediction.step_factor * np.exp(sum(_drawn(effects[item.key], item) for item in inputs))
    sources = [
        SourceValue(
            **one.fields, narrowed=narrowed(np.log(own.timed.step.draws), one.draws), saved_s=saved(steps, one.draws)
        )
        for one in sources_of(run)
    ]
    return Sensitivity(
        scenario=run.scenario.name,
        step_s=own.timed.interval,
        step_with_inputs_s=around(own.timed.step_s, whole),
        chosen=arms[int(np.argmin(steps.mean(axis=1)))].alternative.name,
        regret_s=regret(steps),
        alternatives=_choices(arms, steps),
        sources=tuple(sorted(sources, key=lambda one: (-one.saved_s, -one.share))),
        inputs=_inputs(arms, steps, inputs, points),
    )


def _choices(arms: Sequence[Arm], steps: FloatArray) -> tuple[Choice, ...]:
    fastest, lost = np.argmin(steps, axis=0), regrets(steps)
    return tuple(
        Choice(
            name=arm.alternative.name,
            changes=arm.alternative.changes,
            step_s=arm.timed.interval,
            best=float(np.mean(fastest == place)),
            regret_s=float(lost[place]),
            saved_s=saved(steps, np.log(steps[place])),
        )
        for place, arm in enumerate(arms)
    )


def _inputs(
    arms: Sequence[Arm], steps: FloatArray, inputs: Sequence[UncertainInput], points: Steps
) -> tuple[InputEffect, ...]:
    out = []
    for item in inputs:
        effects = np.array([_effect(arm, item, points) for arm in arms])
        low, _, high = effects[0].tolist()
        # An alternative that cannot run at an end of the range is no choice while the input may lie there.
        finite = np.isfinite(effects).all(axis=1)
        means = steps.mean(axis=1)[finite]
        curves = np.array([through(item.places, effect, GRID) for effect in effects[finite]])
        out.append(
            InputEffect(
                key=item.key,
                low=item.low,
                high=item.high,
                at_low=math.expm1(low),
                at_high=math.expm1(high),
                saved_s=saved_by_input(means, curves),
                reason=item.reason,
            )
        )
    return tuple(sorted(out, key=lambda one: (-one.saved_s, -max(abs(one.at_low), abs(one.at_high)))))


def _effect(arm: Arm, item: UncertainInput, points: Steps) -> FloatArray:
    """Change of the logarithm of an alternative's step at the three places of an input's range."""
    # Points that change nothing of an alternative were not simulated (_points): there its own step stands.
    steps = [points.get((arm.alternative.name, item.key, place), arm.first_s) for place in item.places.tolist()]
    out = np.log(np.array(steps) / arm.first_s)
    if not arm.alternative.changes and not np.isfinite(out).all():
        raise InputError(
            f"{item.key}: the scenario cannot run at every value from {item.low:.6g} to {item.high:.6g}; give a range "
            f"in which it does with --uncertain {item.key}=LOW:HIGH"
        )
    return out


def _drawn(effect: FloatArray, item: UncertainInput) -> FloatArray:
    """Draws of an input's effect on the logarithm of the step, shape (DRAWS,), the same for equal keys."""
    seed = int.from_bytes(hashlib.blake2b(item.key.encode(), digest_size=8).digest(), "little")
    # Seeded by the key, so that an input moves alternatives alike; fixed quantiles have no sampling error of their own.
    quantiles = np.random.default_rng(seed).permutation((np.arange(DRAWS) + 0.5) / DRAWS)
    return through(item.places, effect, quantiles)


def regret(steps: FloatArray) -> float:
    """Expected regret of the alternative of least mean; steps: shape (alternatives, draws)."""
    return float(regrets(steps).min())


def regrets(steps: FloatArray) -> FloatArray:
    """Expected regret of each alternative, shape (alternatives,)."""
    return np.asarray(steps.mean(axis=1) - steps.min(axis=0).mean())


def fitted(known: FloatArray, values: FloatArray) -> FloatArray:
    """Regression of draws on those of what is known: E[values | known], shape of ``values`` (..., draws).

    Without spread in ``known`` the mean.
    """
    spread = float(np.std(known))
    if spread == 0:
        return np.broadcast_to(values.mean(axis=-1, keepdims=True), values.shape)
    # Standardised first: cubes of raw values would leave the matrix badly conditioned.
    design = np.vander((known - known.mean()) / spread, DEGREE + 1)
    found, *_ = np.linalg.lstsq(design, np.atleast_2d(values).T, rcond=None)
    return np.asarray((design @ found).T.reshape(values.shape))


def saved(steps: FloatArray, known: FloatArray) -> float:
    """Expected regret that knowing a quantity saves; known: its draws, shape (draws,)."""
    # The means of a least-squares fit with a constant are those of the draws, so that this is never negative.
    return max(0.0, regret(fitted(known, steps)))


def narrowed(values: FloatArray, known: FloatArray) -> float:
    """Width of the 90 % interval of draws when a quantity is known, over the width now."""
    before, after = (np.subtract(*np.quantile(each, (HIGH, LOW))) for each in (values, values - fitted(known, values)))
    return float(after / before) if before > 0 else 1.0


def through(points: FloatArray, values: FloatArray, at: FloatArray) -> FloatArray:
    """Values at ``at`` of the parabola through three points."""
    return np.asarray(np.polyval(np.polyfit(points, values, 2), at))


def saved_by_input(means: FloatArray, effects: FloatArray) -> float:
    """Expected regret that knowing a stated input saves, beyond the model's.

    means: expected steps, shape (alternatives,). effects: what the input does to the logarithm of each at equally
    likely values of it, shape (alternatives, values).
    """
    return max(0.0, regret(means[:, None] * np.exp(effects)))
