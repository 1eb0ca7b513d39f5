"""All random work of one replication, drawn at once and before anything is priced.

Common random numbers: batches depend on seed, replication and step alone, so variants that are compared meet the same
work and their ratios hold little of its spread (a loop that trains on what is done first still makes other batches of
it: ``projection.uncertainty.estimate``).
"""

import math
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.errors import InputError
from rlsim.schema.run import Points
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Speculation
from rlsim.schema.workload import Workload
from rlsim.units import FloatArray, IntArray, digest_of
from rlsim.workload.acceptance import Acceptance, DraftPlan
from rlsim.workload.acceptance_steps import acceptance_at
from rlsim.workload.batches import (
    SMALL_STEPS_KEPT,
    Generated,
    draw_iterations,
    draw_moves,
    draw_rollouts,
    is_small,
)
from rlsim.workload.file_cache import cached_with_files
from rlsim.workload.lengths import UNSCALED, Place, Scales

STEPS_KEPT = 128
"""Drawn steps cached per process: variants of a scenario that differ in neither workload nor acceptance meet the same.
A plan comes back to the ten steps of a lagged loop at every draft length; one of 8,192 samples takes 0.3 MB."""
STALE_BATCHES, FEW_STALE_BATCHES = 3, 1
"""Batches drawn to take the place of stale ones, for each that is trained on: at most, and at first. Few loops drop
more than they train on, and of agents the draws are half of the time."""


class TooFewDrawnError(Exception):
    """A loop dropped more stale groups than FEW_STALE_BATCHES stand for: it runs on more work as if that had been there
    from the start."""


class DrawnStep(Struct, frozen=True, eq=False, dict=True):
    """The rollouts of one step (several under dynamic sampling) and the decode iterations of each of their samples.

    Trajectories of several turns have iterations for each of these. acceptance: of a verification, where any was drawn.
    """

    rollouts: tuple[Generated, ...]
    iterations: tuple[IntArray, ...]
    acceptance: Acceptance | None = None

    @cached_property
    def trained_tokens(self) -> FloatArray:
        """Prompt plus response tokens of every sample that the step trains on."""
        trained = [one.batch.total_tokens[one.trained] for one in self.rollouts]
        return np.concatenate(trained).astype(np.float64)

    @cached_property
    def trained_digest(self) -> bytes:
        """Digest of these, by which prices tell batches apart."""
        return digest_of(self.trained_tokens)

    @property
    def generated_samples(self) -> int:
        """Samples of all rollouts, trained on or not."""
        return sum(one.batch.samples for one in self.rollouts)

    @cached_property
    def generated_tokens(self) -> int:
        """Response tokens of all rollouts."""
        return sum(int(one.generated.response_tokens.sum()) for one in self.rollouts)

    @property
    def consumed_tokens(self) -> int:
        """Response tokens of the samples that the step trains on; of single responses."""
        return sum(int(one.batch.response_tokens[one.trained].sum()) for one in self.rollouts)

    @cached_property
    def tokens_per_verification(self) -> float:
        """Mean tokens that a decode iteration gave a sequence; the first token of a response comes from its prefill.

        Verifications count whole, as engines count them, with the tokens of the last one that nobody needs: a renewal
        overshoots by (E[X^2] - E[X]) / 2 E[X] in the mean. 0 where there was none: responses of one token.
        """
        iterations = sum(int(counts.sum()) for counts in self.iterations)
        responses = sum(counts.size for counts in self.iterations)
        if not iterations:
            return 0.0
        tokens, one = float(self.generated_tokens - responses), self.acceptance
        if one is None or not one.draft_length:
            return tokens / iterations
        # Mean tokens of the last verification that the response no longer needs (renewal theory, see the docstring).
        cut = (one.second_moment - one.mean) / (2.0 * one.mean)
        tokens += cut * sum(int(np.count_nonzero(counts)) for counts in self.iterations)
        return min(1.0 + one.draft_length, tokens / iterations)


class DrawnWorkload(Struct, frozen=True, eq=False):
    """Steps of one replication: ``trained`` ones in the order of training, then those generated ahead of them.

    few: of those that take the place of stale ones not all that may be: whoever asks for more raises TooFewDrawnError.
    """

    steps: tuple[DrawnStep, ...]
    trained: int
    few: bool = False


class Stretch(Struct, frozen=True):
    """The part of a run that is drawn. first: number of its first step, from 0: of the steps trained before it.

    growth, turns_growth: points (step, factor) of the scale of response lengths and of turns, linear in between and
    constant outside.
    """

    first: int = 0
    growth: Points = ()
    turns_growth: Points = ()

    def scales(self, step: int) -> Scales:
        """Factors on lengths and turns of a step."""
        return Scales(_factor(self.growth, step), _factor(self.turns_growth, step))


def _factor(points: Points, step: int) -> float:
    if not points:
        return 1.0
    steps, factors = zip(*points, strict=True)
    return float(np.interp(step, steps, factors))


BEGINNING = Stretch()
"""The first steps of a run, whose lengths are those of the scenario."""


def steps_per_lag_cycle(scenario: Scenario) -> int:
    """Consecutive steps that make one observation: those of the versions that overlap in an asynchronous loop, the
    rounds of a cycle under tail batching, else 1.

    At lag L the batches of L steps start together and finish together, so a generation-bound trainer waits for the
    first of them and hardly for the others (185, 42, 185, 42 s at lag 2): only the mean over all L means anything.
    So do short rounds put off what a long one pays for.
    """
    return scenario.cycle_steps


def steps_ahead(scenario: Scenario, trained: int, stale_batches: int = STALE_BATCHES) -> int:
    """Steps generated beyond those trained on: as far as the loop lets generation get ahead.

    Where stale groups are dropped, others take their places, ``stale_batches`` for each that is trained on; a loop that
    drops STALE_BATCHES times as many as it trains on is refused.
    """
    if scenario.loop.mode == "sync":
        return 0
    rules = scenario.loop.asynchrony
    # The pace counts the batch in training too; a queue that counts at the take has one more started by then.
    # 1e-9: a whole number may come out a hair above itself, as 25 x (1 + 1.2) = 55.00000000000001.
    ahead = math.ceil(rules.pace - 1e-9) - 1 + rules.at_take
    return ahead if rules.stale == "train" else ahead + stale_batches * trained


MOST_SAMPLES, MOST_LAGGED_SAMPLES = 30_000_000, 10_000_000
"""Samples of all steps of a replication, in a loop whose steps are simulated one by one and in one that is simulated as
a whole: 2 GB either way; the limit of a step says what one costs (schema/workload.py)."""


def draw(
    scenario: Scenario,
    replication: int,
    plan: DraftPlan | None = None,
    stretch: Stretch = BEGINNING,
    stale_batches: int = STALE_BATCHES,
) -> DrawnWorkload:
    """All work that one replication of ``scenario`` meets.

    plan: of draft lengths that follow the live batch, as prices give it. stretch: the part of a run. stale_batches: see
    :func:`steps_ahead`. Raises InputError and Infeasible as its parts do.
    """
    trained, samples = scenario.measured_steps.stop, scenario.workload.samples_per_step
    most = MOST_SAMPLES if scenario.loop.mode == "sync" else MOST_LAGGED_SAMPLES
    if trained * samples > most:
        raise InputError(
            f"{trained:,} steps of {samples:,} samples are more than the {most:,} that a replication may hold: "
            f"simulation.steps and warmup_steps of {max(1, most // samples):,} together would fit"
        )
    ahead = steps_ahead(scenario, trained, stale_batches)
    numbers = range(stretch.first, stretch.first + trained + ahead)
    drawn = (draw_step(scenario, step, replication, plan, stretch.scales(step)) for step in numbers)
    return DrawnWorkload(tuple(drawn), trained, few=ahead < steps_ahead(scenario, trained))


def draw_step(
    scenario: Scenario, step: int, replication: int, plan: DraftPlan | None = None, scales: Scales = UNSCALED
) -> DrawnStep:
    """The work of one step, at the acceptance of that step."""
    place = Place(scenario.simulation.seed, step, replication)
    return _drawn_step(scenario.workload, scenario.speculation, place, plan, scales)


@cached_with_files(STEPS_KEPT, is_small, SMALL_STEPS_KEPT)
def _drawn_step(
    workload: Workload, speculation: Speculation, place: Place, plan: DraftPlan | None, scales: Scales
) -> DrawnStep:
    rollouts, iterations = draw_rollouts(workload, place, scales), list[IntArray]()
    acceptance, moves = acceptance_at(speculation, place.step), None
    for number, rollout in enumerate(rollouts):
        # A repeated rollout has streams of its own, or it would generate the unusable groups again.
        own = place._replace(number=number)
        if speculation.variation is not None and speculation.active:
            moves = replace(draw_moves(workload, speculation.variation, acceptance, rollout, own), plan=plan)
        iterations.append(draw_iterations(rollout.generated, acceptance, own, moves))
    return DrawnStep(rollouts, tuple(iterations), acceptance)
